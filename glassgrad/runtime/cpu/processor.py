"""Describe this processor. In: what the operating system reports. Out: a `HostTarget`.

Does not know compilers: a warm process takes its kernels from the disk cache, so it must learn the cache key and the
vector width without loading LLVM. `CPU_FEATURES` adds and removes features, to try other code paths.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from functools import lru_cache

from glassgrad.base.cached_property import cached_property
from glassgrad.base.errors import InputError
from glassgrad.base.settings import settings


@dataclass(frozen=True)
class HostTarget:
    """A processor; `features` are spelled as LLVM spells them (`avx512f`, `amx-bf16`, `neon`).

    >>> target = HostTarget("x86_64", "a cpu", frozenset({"avx", "avx2", "fma"}), "x86_64-unknown-linux-gnu")
    >>> target.vector_bytes, target.vector_registers
    (32, 16)
    """
    arch: str                       # "x86_64" or "aarch64"
    cpu: str                        # a name for people and for cache keys
    features: frozenset[str]
    triple: str                     # always one whose objects are ELF
    l1_bytes: int = 32 << 10        # data cache of one core
    l2_bytes: int = 1 << 20

    @cached_property
    def vector_bytes(self) -> int:
        """The width of the widest vector register worth using."""
        return 64 if "avx512f" in self.features else 32 if "avx2" in self.features else 16

    @property
    def vector_registers(self) -> int:
        """The number of vector registers."""
        return 32 if self.arch == "aarch64" or "avx512f" in self.features else 16

    @property
    def fast_gathers(self) -> bool:
        """Whether a gather is faster than a load for each lane. It is not on AMD's processors, nor on Intel's before
        those with AVX-VNNI, where microcode against data sampling made it 10 to 50 times slower (x.gather(-1, index) of
        2 million float32 on a Cascade Lake: 41 ms, and 2.0 ms with loads; on a Sapphire Rapids 1.1 ms, and 1.3 ms with
        loads)."""
        return "GenuineIntel" in self.cpu and "avxvnni" in self.features

    @property
    def narrow_steps(self) -> int:
        """The number of element steps of a kernel up to which 256-bit vectors are better than 512-bit ones. Intel's
        first processors with AVX-512 (before Ice Lake) lower a core's clock for a millisecond after a 512-bit
        instruction, and Python runs on that core too. On a Cascade Lake `(a + b).realize()` of 100 floats takes 27.3 us
        with 256 bits and 31.6 us with 512; from 64,000 elements on there was no difference."""
        is_early = "avx512f" in self.features and "avx512vbmi" not in self.features
        return 64 << 10 if is_early and "GenuineIntel" in self.cpu else 0

    @property
    def key(self) -> str:
        """One line for cache keys, with everything that decides which machine code can run."""
        return f"{self.triple} {self.cpu} {','.join(sorted(self.features))}"


# Features that decide which code we emit: Linux's spelling -> LLVM's, where the two differ.
_LINUX_TO_LLVM = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "abm": "lzcnt", "bmi1": "bmi", "rdrand": "rdrnd",
    "pclmulqdq": "pclmul", "sha_ni": "sha", "avx_vnni": "avxvnni", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx512_vnni": "avx512vnni", "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq", "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16", "amx_int8": "amx-int8", "amx_fp16": "amx-fp16",
    "asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod", "atomics": "lse",
}
# The system also lists flags that no code depends on (`hypervisor`, `smep`); only names with these prefixes are kept.
_KEPT = ("sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "lzcnt", "popcnt", "movbe", "gfni", "cx", "adx",
         "neon", "full", "dot", "lse", "sve", "bf16", "i8mm")


def _apply_overrides(features: frozenset[str], text: str) -> frozenset[str]:
    changed = set(features)
    for item in filter(None, text.replace(" ", "").split(",")):
        if item[0] not in "+-" or len(item) == 1:
            raise InputError("the setting CPU_FEATURES cannot be read", given=f"CPU_FEATURES={text}",
                             expected="features with a sign, separated by commas, such as -avx512f,+avx2",
                             fix="put + or - before each feature")
        (changed.add if item[0] == "+" else changed.discard)(item[1:])
        if item == "-avx512f":  # LLVM also drops the features that depend on it
            changed = {name for name in changed if not name.startswith("avx512")}
    return frozenset(changed)


def _read(path: str, limit: int = 16384) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _linux() -> tuple[str, frozenset[str], int, int]:
    # The first processor's paragraph is enough, and on large machines the whole file takes milliseconds.
    fields: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    naming = ("vendor_id", "model name", "cpu family", "model", "stepping",     # x86
              "CPU implementer", "CPU part", "CPU variant")                     # Arm
    cpu = " ".join(fields[name] for name in naming if fields.get(name))
    sizes = {1: 0, 2: 0}
    for index in range(4):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = (_read(f"{folder}/{name}").strip() for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and level in ("1", "2") and size.endswith("K"):
            sizes[int(level)] = int(size[:-1]) << 10
    names = (_LINUX_TO_LLVM.get(flag, flag) for flag in flags)
    return cpu, frozenset(name for name in names if name.startswith(_KEPT)), sizes[1], sizes[2]


def _macos(arch: str) -> tuple[str, frozenset[str], int, int]:
    libc = ctypes.CDLL(None)

    def ask(name: str) -> bytes:
        size = ctypes.c_size_t(0)
        if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)):
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
        return buffer.raw[:size.value]

    def number(name: str) -> int:
        return int.from_bytes(ask(name), "little")

    cpu = ask("machdep.cpu.brand_string").rstrip(b"\0").decode("utf-8", "replace")
    if arch == "aarch64":
        optional = {"FEAT_FP16": "fullfp16", "FEAT_BF16": "bf16", "FEAT_DotProd": "dotprod",
                    "FEAT_I8MM": "i8mm", "FEAT_LSE": "lse", "FEAT_SME": "sme"}
        names = {"neon"} | {llvm for name, llvm in optional.items() if number(f"hw.optional.arm.{name}")}
    else:
        text = ask("machdep.cpu.features") + b" " + ask("machdep.cpu.leaf7_features")
        spelled = {"avx1.0": "avx", "bmi1": "bmi", "sse4.1": "sse4.1", "sse4.2": "sse4.2", "rdrand": "rdrnd"}
        flags = text.replace(b"\0", b" ").decode("ascii", "replace").lower().split()
        names = {spelled.get(flag, flag) for flag in flags}
    l2 = number("hw.perflevel0.l2cachesize") or number("hw.l2cachesize")
    return cpu, frozenset(names), number("hw.perflevel0.l1dcachesize") or number("hw.l1dcachesize"), l2


def _windows(arch: str) -> tuple[str, frozenset[str], int, int]:
    names = {"neon"} if arch == "aarch64" else {"sse", "sse2"}
    present = ctypes.CDLL("kernel32").IsProcessorFeaturePresent
    if arch == "x86_64" and present(40):                # PF_AVX2_INSTRUCTIONS_AVAILABLE
        names |= {"avx", "avx2", "fma", "f16c"}         # every processor with AVX2 has these
    if arch == "x86_64" and present(41):                # PF_AVX512F_INSTRUCTIONS_AVAILABLE
        names |= {"avx512f"}
    return platform.processor() or os.environ.get("PROCESSOR_IDENTIFIER", ""), frozenset(names), 0, 0


def _elf_triple(arch: str) -> str:
    # Object format ELF, calling convention the system's: Windows has its own, macOS shares Linux's.
    return f"{arch}-pc-windows-msvc-elf" if sys.platform == "win32" else f"{arch}-unknown-linux-gnu"


@lru_cache(maxsize=8)
def _describe(overrides: str, matrix_unit: int) -> HostTarget:
    machine = platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if sys.platform == "darwin":
        cpu, features, l1, l2 = _macos(arch)
    elif sys.platform == "win32":
        cpu, features, l1, l2 = _windows(arch)
    else:
        cpu, features, l1, l2 = _linux()
    features = _apply_overrides(features, overrides)
    if "amx-tile" in features and not (matrix_unit and request_amx()):
        features = frozenset(name for name in features if not name.startswith("amx"))
    return HostTarget(arch, cpu or machine, features, _elf_triple(arch), l1 or 32 << 10, l2 or 1 << 20)


def host_description() -> HostTarget:
    """This machine's processor, after the overrides of `CPU_FEATURES` and `MATRIX_UNIT`.

    >>> host_description().vector_bytes in (16, 32, 64)
    True
    """
    return _describe(settings.CPU_FEATURES, settings.MATRIX_UNIT)


@lru_cache(maxsize=1)
def request_amx() -> bool:
    """Ask Linux for permission to use the AMX tile registers, for all threads of this process and of its forks. Without
    permission the first tile instruction is fatal. No other system is known to grant it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = (ctypes.c_long(number) for number in (158, 0x1023, 18))
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def available_cores() -> int:
    """Return how many threads this process may keep busy, by its affinity and the quota of its control group.

    >>> available_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _group_quota() if sys.platform == "linux" else None
    return max(1, cores if quota is None else min(cores, int(quota + 0.5)))


_cores = lru_cache(maxsize=1)(available_cores)


def worker_count() -> int:
    """Return how many threads share the tasks of a kernel: THREADS, or one per core that this process may use."""
    return settings.THREADS or _cores()


def _group_quota(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> float | None:
    """Return the number of processors that Linux control groups allow (the least over all parents), or None without a
    limit."""
    limits = []
    for line in _read(own).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, names = root, ["cpu.max"]                                  # version 2: "150000 100000"
        elif "cpu" in controllers.split(","):
            base, names = f"{root}/{controllers}", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]    # version 1
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            folder = "/".join([base, *parts[:depth]])
            words = " ".join(_read(f"{folder}/{name}") for name in names).split()
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # not "max" or "-1"
                limits.append(int(words[0]) / int(words[1]))
    return min(limits, default=None)
