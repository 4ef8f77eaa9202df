"""`glassgrad doctor` and `glassgrad data`: check this machine. In: the machine. Out: text, and an exit status.

Shows what glassgrad runs on, what each device lacks and how to get it, and where compiled kernels and data are stored;
computes something on every device that opens, and compares it with NumPy.
"""

from __future__ import annotations

import os
import platform
import time

import numpy as np

from glassgrad.base.errors import DeviceError, GlassgradError
from glassgrad.base.settings import SETTINGS, settings
from glassgrad.cli import installed
from glassgrad.nn.datasets.files import CIFAR_10, FASHION_MNIST, MNIST, whereabouts
from glassgrad.runtime import disk_cache
from glassgrad.runtime.devices import Device
from glassgrad.tensor.tensor import Tensor


def show_devices() -> int:
    """Print one line per device: what it is here, or what it lacks."""
    for name in Device.records:
        print(f"{name:<8} {describe(name)}{marked(name)}")
    return 0


def marked(name: str) -> str:
    """Return a remark for the default device; "" for the others."""
    return " (the default)" if name == Device.DEFAULT else ""


def describe(name: str) -> str:
    """Say what a device is on this machine, or what it lacks and how to get it, in one line."""
    try:
        return str(Device[name].description)
    except DeviceError as problem:
        said = f"{problem.given}; {problem.fix}"
    except ImportError as problem:
        said = f"{problem}; install {Device.records[name].install}"
    return "not here: " + " ".join(said.split())           # a driver's message may have several lines


def doctor() -> int:
    """Print the state of glassgrad on this machine; return 1 if a device that opens computes wrongly."""
    _heading("versions")
    _row("glassgrad", installed("glassgrad") or "not installed: run from a source folder")
    _row("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("numpy", "llvmlite", "tqdm", "torch"):
        absent = "absent; only the tests need it" if package == "torch" else f"absent; pip install {package}"
        _row(package, installed(package) or absent)
    _heading("devices")
    show_devices()
    _heading("memory")
    show_memory()
    _heading("compiled kernels")
    show_cache()
    _heading("data")
    show_data()
    changed = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    if changed:
        _heading("settings from the environment")
        for name, value in changed.items():
            _row(name, f"{value}    {SETTINGS[name].doc}")
    _heading("self-test")
    sound = [self_test(name) for name in Device.get_available_devices()]
    print("\nAll is well." if all(sound) else "\nSomething is wrong: see above.")
    return 0 if all(sound) else 1


def show_memory() -> None:
    """Print the machine's memory, and the memory in use on open devices."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = {line.split(":")[0]: int(line.split()[1]) >> 10 for line in file}
        _row("machine", f"{facts['MemAvailable']:,} of {facts['MemTotal']:,} MiB free")
    except (OSError, KeyError, ValueError):             # not Linux
        pass
    _row("limit", f"{settings.MEMORY_MB:,} MiB" if settings.MEMORY_MB else "none; MEMORY_MB=n sets one")
    for name, device in Device.opened.items():
        stats = getattr(device.memory, "stats", None)
        if stats is not None:
            now = stats()
            _row(name, f"{now.live >> 20:,} MiB in use, {now.pooled >> 20:,} MiB kept for reuse, "
                       f"{now.peak >> 20:,} MiB at most")


def show_cache() -> None:
    """Print where compiled kernels are cached, and how many."""
    folder = disk_cache.default_folder()
    if not settings.CACHE or not folder:
        _row("cache", "off: CACHE=0" if folder else "off: there is no folder for caches; CACHE_DIR=path names one")
        return
    files = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names
             if f"{os.sep}data{os.sep}" not in place + os.sep]
    size = sum(disk_cache.disk_bytes(os.stat(file)) for file in files if os.path.exists(file))
    _row("folder", folder)
    _row("holds", f"{len(files):,} files, {size / 2**20:.1f} of at most {settings.CACHE_MB:,} MiB; it may be removed")
    nearest = folder
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.access(nearest, os.W_OK):
        _row("trouble", f"{nearest} cannot be written to: kernels are compiled anew in every process")


def show_data() -> int:
    """Print, for each data set, where it would be read from."""
    for dataset in (MNIST, FASHION_MNIST, CIFAR_10):
        print(f"{dataset.title:<14} {whereabouts(dataset)}")
    return 0


def self_test(device: str) -> bool:
    """Compute a value and its gradient on a device; return whether NumPy agrees."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((17, 33)), random.standard_normal((33, 9))
    start = time.perf_counter()
    try:
        left, right = Tensor(x.astype(np.float32), device=device), Tensor(w.astype(np.float32), device=device)
        value = ((left @ right).softmax(1) ** 2).sum()
        value.backward()
        assert left.grad is not None
        got, gradient = value.item(), left.grad.numpy()
    except GlassgradError as problem:
        print(f"{device:<8} FAILED: {problem.advice}")
        return False
    except Exception as problem:
        print(f"{device:<8} FAILED: {type(problem).__name__}: {problem}")
        return False
    scores = np.exp(x @ w)
    chance = scores / scores.sum(1, keepdims=True)
    slope = 2 * chance ** 2 - chance * (2 * chance ** 2).sum(1, keepdims=True)
    error = max(abs(got - float((chance ** 2).sum())), float(np.abs(gradient - slope @ w.T).max()))
    good = error < 1e-4
    print(f"{device:<8} {'right' if good else 'WRONG'}: a value and its gradient differ from NumPy's by {error:.0e} "
          f"({time.perf_counter() - start:.2f} s)")
    return good


def _heading(text: str) -> None:
    print(f"\n{text}" if text != "versions" else text)


def _row(name: str, text: object) -> None:
    print(f"{name:<14} {text}")
