"""Devices: which one is the default, what happens where something is missing, and that all give the same numbers."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import run_script

from glassgrad import Device, DeviceError, Tensor
from glassgrad.base.settings import SETTINGS
from glassgrad.cli import doctor
from glassgrad.runtime import devices
from glassgrad.runtime.backend import DeviceRecord
from glassgrad.runtime.cpu import c_compiler as ccompiler
from glassgrad.runtime.host_memory import HostMemory
from glassgrad.runtime.python.python_device import PythonDevice

WHERE = "from glassgrad import Device, Tensor; print(Device.DEFAULT, Tensor([1]).device, (Tensor([1, 2]) + 1).tolist())"


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No setting, no flag, no assignment chooses a device."""
    for name in (*SETTINGS, *Device.flags, "DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Device, "_default", None)
    return monkeypatch


# -- the default ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("environment, expected", [
    ({}, "CPU"), ({"CLANG": "1"}, "CLANG"), ({"PYTHON": "1"}, "PYTHON"), ({"LLVM": "1"}, "CPU"),
    ({"DEV": "python"}, "PYTHON"), ({"DEVICE": "CLANG"}, "CLANG"),
], ids=str)
def test_a_script_runs_where_its_environment_says(environment: dict[str, str], expected: str) -> None:
    assert run_script(WHERE, **environment)[0].split(maxsplit=2) == [expected, expected, "[2, 3]\n"]


def test_the_order_of_choice(nothing_set: pytest.MonkeyPatch) -> None:
    assert Device.DEFAULT == "CPU"
    nothing_set.setenv("DEVICE", "PYTHON")
    assert Device.DEFAULT == "PYTHON"
    nothing_set.setenv("CLANG", "1")
    assert Device.DEFAULT == "CLANG", "a flag before DEVICE"
    nothing_set.setenv("CLANG", "0")
    assert Device.DEFAULT == "PYTHON", "only 1 switches a flag on"
    nothing_set.setenv("DEV", "CPU")
    nothing_set.setenv("CLANG", "1")
    assert Device.DEFAULT == "CPU", "DEV before flags"
    Device.DEFAULT = "clang"
    assert Device.DEFAULT == "CLANG", "an assignment before all"
    assert Tensor([1]).device == "CLANG"
    Device.DEFAULT = None  # type: ignore[assignment]
    assert Device.DEFAULT == "CPU"


@pytest.mark.parametrize("said, make", [
    ("DEV=quantum", lambda m: m.setenv("DEV", "quantum")),
    ("DEVICE=quantum", lambda m: m.setenv("DEVICE", "quantum")),
])
def test_a_device_that_is_not_here_is_never_replaced(said: str, make: Any, nothing_set: pytest.MonkeyPatch) -> None:
    make(nothing_set)
    with pytest.raises(DeviceError) as error:
        Tensor([1.0])
    assert str(error.value).partition("\n  at: ")[0] == f"""\
there is no such device
  given:    {said}
  expected: one of CPU, CLANG, PYTHON, OPENCL, CUDA, WASM, WEBGPU, AMD, METAL
  fix:      check the name, or register a device: Device.register(name, YourDevice)"""
    assert f"{__file__}:" in str(error.value), "at the user's line"


def test_wrong_names() -> None:
    for name, given in (("GPU7", "'GPU7'"), ("", "''")):
        with pytest.raises(DeviceError) as error:
            Tensor([1.0], device=name)
        assert f"given:    {given}" in str(error.value)
    with pytest.raises(DeviceError) as error:
        Device.canonicalize(3)  # type: ignore[arg-type]
    assert str(error.value).partition("\n  at: ")[0] == """\
a device is named by a string
  given:    3
  expected: a name such as "CPU"
  fix:      write device="CPU\""""


def test_memory_has_a_plain_name_of_its_device_where_an_adapter_has_its_own() -> None:
    import glassgrad.torch as torch
    x = torch.tensor([1.0, 2.0])
    made = (x * 2).zeros_like() + x.exp()
    assert type(made.device) is torch.device
    assert type(made.realize().uop.device) is str and made.uop.device == Device.DEFAULT
    for tensor in (x.to(torch.device("cpu")), torch.zeros(2, device=torch.device("cpu")).contiguous()):
        assert type(tensor.realize().uop.device) is str
        assert tensor.uop.device == Device.canonicalize("cpu")
        assert type(Device.canonicalize(tensor.device)) is str


def test_a_newcomers_device_is_one_more_entry(nothing_set: pytest.MonkeyPatch) -> None:
    nothing_set.setitem(Device._devices, "MY", PythonDevice)
    nothing_set.setitem(Device._opened, "MY", PythonDevice("MY"))
    total = Tensor([1, 2, 3], device="MY") + Tensor([4, 5, 6], device="my")
    assert total.device == "MY" and total.tolist() == [5, 7, 9]
    assert "MY" in Device.get_available_devices()


def test_register_adds_a_device_with_its_other_names(nothing_set: pytest.MonkeyPatch) -> None:
    Device.register("my", PythonDevice, aliases=("mine",), target="an interpreter", install="nothing")
    try:
        record = Device.records["MY"]
        assert (record.names, record.target, record.install) == (("MY", "MINE"), "an interpreter", "nothing")
        assert (Tensor([1, 2], device="mine") + 1).tolist() == [2, 3] and Device["MINE"] is Device["MY"]
        assert Device.flags["MINE"] == "MY" and Device.is_available("mine")
        nothing_set.setenv("MINE", "1")
        assert Device.DEFAULT == "MY" and Tensor([1.0]).device == "MY"
    finally:
        Device.unregister("MY")
    with pytest.raises(DeviceError, match="there is no such device"):
        Tensor([1.0], device="mine")


def test_both_ways_to_register_lead_to_one_record() -> None:
    class Mine(PythonDevice):
        def __init__(self) -> None:
            super().__init__("MY")

    for register in (lambda: Device.register("MY", Mine), lambda: Device._devices.__setitem__("MY", Mine),
                     lambda: Device.register("MY", lambda: Mine())):
        register()
        assert isinstance(Device.records["MY"], DeviceRecord) and isinstance(Device["MY"], Mine)
        Device.unregister("MY")


@pytest.mark.parametrize("name, given, what", [
    ("MY", 3, "a device is registered by something that makes it\n  given:    3\n"
              "  expected: a class or a function, called with the device's name\n"
              "  fix:      Device.register('MY', YourDevice)"),
    ("my device", PythonDevice, "a device's name is a word\n  given:    'my device'\n"
                                "  expected: letters and digits, as in \"MY\"\n"
                                "  fix:      Device.register(\"MY\", YourDevice)"),
])
def test_what_cannot_be_registered(name: str, given: Any, what: str) -> None:
    with pytest.raises(DeviceError) as error:
        Device.register(name, given)
    assert str(error.value).partition("\n  at: ")[0] == what


@pytest.mark.parametrize("here, expected", [(("OPENCL", "CUDA"), "OPENCL"), (("CUDA",), "CUDA"), ((), "OPENCL")])
def test_gpu_is_opencl_or_else_cuda(here: tuple[str, ...], expected: str, nothing_set: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise DeviceError(f"there is no {name} here")

    for name in ("OPENCL", "CUDA"):
        nothing_set.setitem(Device._devices, name,
                            DeviceRecord(name, PythonDevice if name in here else absent, ("GPU",)))
    nothing_set.setenv("GPU", "1")
    assert Device.DEFAULT == Device.canonicalize("gpu") == expected


@pytest.mark.parametrize("package", ["raise OSError('no libOpenCL')", "def get_platforms(): 1 / 0",
                                     "get_platforms = None"])
def test_a_package_that_raises_anything_leaves_the_other_devices(package: str, tmp_path: Path) -> None:
    (tmp_path / "pyopencl.py").write_text(package)
    out, errors = run_script("""
        import sys
        sys.path.insert(0, FOLDER)
        from glassgrad import Device, DeviceError
        from glassgrad.cli.doctor import show_devices
        assert not Device.is_available("OPENCL") and "CPU" in Device.get_available_devices()
        show_devices()
        try:
            Device["OPENCL"]
        except DeviceError as error:
            print(error.what, "|", error.__cause__ is not None)
    """.replace("FOLDER", repr(str(tmp_path))))
    assert out.endswith("the device OPENCL does not open | True\n"), errors
    assert "OPENCL   not here: " in out and "or use another device: DEV=CPU" in out


@pytest.mark.parametrize("package", ["llvmlite", "torch", "ziglang"])
@pytest.mark.parametrize("stand_in", [
    "ModuleType(NAME)", "type('Broken', (ModuleType,), {'__getattr__': lambda *_: 1 / 0})(NAME)",
])
def test_a_stand_in_for_a_package_does_not_end_the_doctor(package: str, stand_in: str) -> None:
    """`sys.modules` has modules of other programs, half imported ones, and empty ones of tests."""
    out, errors = run_script(f"""
        import sys
        from types import ModuleType
        NAME = {package!r}
        sys.modules[NAME] = {stand_in}
        from glassgrad import Device, Tensor
        from glassgrad.cli.doctor import self_test, show_devices
        show_devices()
        print([self_test(name) for name in ("CPU", "PYTHON")], "PYTHON" in Device.get_available_devices())
    """)
    assert out.endswith("[True, True] True\n"), errors


def test_a_device_that_raises_anything_is_not_available() -> None:
    def broken(name: str) -> Any:
        return [][0]

    Device.register("BROKEN", broken)
    try:
        assert not Device.is_available("BROKEN") and "CPU" in Device.get_available_devices()
        with pytest.raises(DeviceError, match="the device BROKEN does not open") as caught:
            Tensor([1.0], device="BROKEN").tolist()
        assert isinstance(caught.value.__cause__, IndexError)
    finally:
        Device.unregister("BROKEN")


def test_the_doctor_says_what_a_device_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(*_: Any) -> Any:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(Tensor, "backward", raises)
    assert not doctor.self_test("PYTHON")
    assert capsys.readouterr().out == "PYTHON   FAILED: RuntimeError: the driver is gone\n"


def test_tinygrads_flag_for_opencl_chooses_it_or_says_what_is_missing(nothing_set: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise DeviceError(f"there is no {name} here")

    nothing_set.setitem(Device._devices, "OPENCL", Device.records["OPENCL"]._replace(open=absent))
    nothing_set.setenv("CL", "1")
    assert Device.DEFAULT == Device.canonicalize("cl") == "OPENCL"
    with pytest.raises(DeviceError, match="there is no OPENCL here"):
        Tensor([1.0])


def test_a_plug_in_is_found_by_its_entry_point(nothing_set: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "plugged"

        @staticmethod
        def load() -> Any:
            return lambda: PythonDevice("PLUGGED")

    found = {"glassgrad.devices": [Entry]}
    nothing_set.setattr("importlib.metadata.entry_points", lambda group: found.get(group, []))
    nothing_set.setattr(Device, "_devices", dict(Device._devices))
    nothing_set.setattr(Device, "_opened", dict(Device._opened))
    assert Device.canonicalize("Plugged") == "PLUGGED"
    assert (Tensor([1.0], device="plugged") * 2).tolist() == [2.0]


# -- where something is missing ------------------------------------------------------------------------------
def test_without_llvmlite_a_c_compiler_is_used(nothing_set: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    nothing_set.setattr(devices, "find_spec", lambda name: None)
    opened = devices.open_cpu("CPU")
    assert (opened.name, opened.language) == ("CPU", "c")
    notice = capsys.readouterr()
    compiler = ccompiler.find_compiler()[0]
    assert notice.err == f"glassgrad: no llvmlite: CPU kernels are compiled by {compiler}; pip install llvmlite\n"
    assert notice.out == ""


def test_without_any_compiler_kernels_are_interpreted(nothing_set: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    nothing_set.setattr(devices, "find_spec", lambda name: None)
    nothing_set.setattr(ccompiler, "find_spec", lambda name: None)
    nothing_set.setattr(ccompiler.shutil, "which", lambda name: None)
    nothing_set.delenv("CC", raising=False)
    ccompiler._find.cache_clear()
    try:
        opened = devices.open_cpu("CPU")
        assert isinstance(opened, PythonDevice) and opened.name == "CPU"
        assert capsys.readouterr().err == "glassgrad: no llvmlite and no C compiler: CPU kernels are interpreted, " \
                                          "slowly; pip install llvmlite\n"
        with pytest.raises(DeviceError, match="the CLANG device needs a C compiler, and none was found"):
            devices.open_clang("CLANG")
    finally:
        ccompiler._find.cache_clear()


HIDE = """
    import importlib.abc, importlib.util, sys
    HIDDEN = ("llvmlite", "ziglang")

    class Hide(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in HIDDEN:
                raise ModuleNotFoundError(f"No module named {name!r}")

    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else found(name, package)
    sys.meta_path.insert(0, Hide())
"""
SOFTMAX = """
    from glassgrad import Tensor
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    print((x @ x).softmax().tolist())
"""


def test_whole_scripts_run_without_llvmlite_and_without_compilers() -> None:
    expected, silence = run_script(SOFTMAX)
    assert silence == ""
    out, err = run_script(HIDE + SOFTMAX)
    assert out == expected
    assert re.fullmatch(r"glassgrad: no llvmlite: CPU kernels are compiled by \S+; pip install llvmlite\n", err)
    out, err = run_script(HIDE + SOFTMAX, PATH="/nowhere", CC="")
    assert out == expected
    assert err == "glassgrad: no llvmlite and no C compiler: CPU kernels are interpreted, slowly; " \
                  "pip install llvmlite\n"


# -- the same numbers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["CPU", "CLANG", "PYTHON"])
def test_every_device_computes_the_same(name: str, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((7, 13)).astype("float32"), rng.standard_normal((13, 5)).astype("float32")
    x, y = Tensor(a, device=name), Tensor(b, device=name)
    product = a.astype("float64") @ b
    np.testing.assert_allclose((x @ y).numpy(), product, rtol=1e-5, atol=1e-5)
    weights = np.exp(product - product.max(1, keepdims=True))
    np.testing.assert_allclose((x @ y).softmax().numpy(), weights / weights.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    (x @ y).relu().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), (product > 0) @ b.T, rtol=1e-5, atol=1e-5)
    assert x.grad.device == name


def test_random_numbers_are_the_same_on_every_device() -> None:
    drawn = []
    for name in ("CPU", "CLANG", "PYTHON"):
        Tensor.manual_seed(7)
        drawn.append(Tensor.rand(5, 7, device=name).tolist())
    assert drawn[0] == drawn[1] == drawn[2]


def test_tensors_travel_between_devices() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], device="CPU")
    there = (x + 1).to("PYTHON")
    assert there.device == "PYTHON" and (there * 2).to("CPU").tolist() == [[4.0, 6.0], [8.0, 10.0]]
    with pytest.raises(DeviceError) as error:
        _ = x + there
    assert str(error.value).partition("\n  at: ")[0] == """\
operands live on different devices
  given:    CPU and PYTHON
  expected: one device
  fix:      move one: x.to("CPU")"""


@pytest.mark.parametrize("name", ["CPU", "CLANG", "PYTHON"])
def test_memory_comes_back(name: str) -> None:
    memory: HostMemory = Device[name].memory
    gc.collect()
    before = memory.stats().live
    x = (Tensor.ones(1024, 1024, device=name).contiguous() * 2).realize()
    assert memory.stats().live == before + (4 << 20)
    del x
    assert memory.stats().live == before
    Device[name].empty_cache()
    Device[name].synchronize()


# -- starting ------------------------------------------------------------------------------------------------
def test_a_warm_process_loads_neither_llvmlite_nor_numpy() -> None:
    script = """
        import sys
        from glassgrad import Tensor
        a, b = Tensor([1.0, 2.0, 3.0]), Tensor([4.0, 5.0, 6.0])
        print((a + b).sum().item())
        heavy = ("numpy", "llvmlite", "glassgrad.compiler.lower.lower", "glassgrad.compiler.render.llvm.llvm_ir")
        print(*[m for m in heavy if m in sys.modules])
    """
    assert run_script(script)[0].splitlines()[0] == "21.0"
    assert run_script(script)[0].splitlines() == ["21.0", ""]


def test_importing_loads_neither() -> None:
    script = """
        import sys
        import glassgrad
        heavy = ("numpy", "llvmlite", "tqdm", "subprocess", "asyncio", "email", "importlib.metadata", "multiprocessing")
        print(*[m for m in heavy if m in sys.modules])
    """
    assert run_script(script)[0].split() == []
