"""Compile LLVM IR. In: IR text that is already vectorized. Out: the bytes of an ELF object.

Does not know graphs, caches or loading. llvmlite is imported on the first compile, because a warm process
that finds its kernels in the disk cache never needs it. Measured on a 2.1 GHz Xeon: importing llvmlite takes
40 to 190 ms (once), a target machine 0.8 ms (once), parsing and verifying a small kernel 0.1 ms, its code 2 ms
at level 1 (0.6 ms at level 0; 0.5 ms even for an empty module), a 14 x 32 matmul tile 9 ms. LLVM works outside
the GIL.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import lru_cache
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.packages import find_spec
from glassgrad.base.settings import settings
from glassgrad.runtime.cpu.elf_loader import ElfObject
from glassgrad.runtime.cpu.processor import host_description

# A target machine serves one thread at a time. LLVM is called, and its objects are freed, only under this lock, which a
# fork acquires: so llvmlite's internal lock is free in the child.
_lock = held_at_fork(threading.RLock(), "compiler")


def _binding() -> Any:
    try:
        from llvmlite import binding
    except ImportError as missing:
        raise DeviceError("the CPU device compiles with llvmlite, which is not installed",
                          given=f"import llvmlite: {missing}", expected="llvmlite 0.45 or newer",
                          fix="pip install llvmlite, or use a C compiler with CLANG=1") from None
    if binding.llvm_version_info < (20,):            # it may not know all of the text that we write
        raise DeviceError("the CPU device compiles with llvmlite, and this one is too old",
                          given=f"llvmlite with LLVM {'.'.join(map(str, binding.llvm_version_info))}",
                          expected="llvmlite 0.45 or newer",
                          fix="pip install --upgrade llvmlite, or use a C compiler with CLANG=1")
    return binding


@lru_cache(maxsize=1)
def compiler_version() -> str:
    """Return the compiler's version for cache keys, without loading it (`importlib.metadata` would take 20 ms)."""
    found = find_spec("llvmlite")
    if found is None or found.origin is None:
        return "no llvmlite"
    try:
        with open(os.path.join(os.path.dirname(found.origin), "_version.py"), encoding="utf-8") as file:
            version = file.read().partition("version_version = '")[2].partition("'")[0]
    except OSError:
        version = ""
    return f"llvmlite {version or os.stat(found.origin).st_mtime_ns}"


@lru_cache(maxsize=16)
def _target_machine(features: str, level: int) -> tuple[Any, str, str]:
    binding = _binding()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    host = host_description()
    # Position-independent code, since the loader may place it anywhere: no absolute 32-bit addresses.
    machine = binding.Target.from_triple(host.triple).create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=level, reloc="pic", codemodel="small")
    return machine, host.triple, str(machine.target_data)


@lru_cache(maxsize=1)
def _host_features() -> str:
    return str(_binding().get_host_cpu_features().flatten())


def _feature_text() -> str:
    items = [_host_features()]
    if host_description().arch == "x86_64":
        items.append("-prefer-256-bit")  # <16 x float> in our IR means one register, not two
        if not host_description().fast_gathers:
            items.append("+prefer-no-gather")
    elif sys.platform != "linux":
        items.append("+reserve-x18")     # macOS and Windows keep this register for themselves
    return ",".join(filter(None, [*items, settings.CPU_FEATURES.replace(" ", "")]))


def _emitted(text: str, level: int, form: str) -> Any:
    """Compile IR text to an "object" or to "assembly"."""
    with _lock:
        binding = _binding()
        machine, triple, layout = _target_machine(_feature_text(), level)
        module = binding.parse_assembly(text)
        module.triple, module.data_layout = triple, layout
        module.verify()
        made = getattr(machine, f"emit_{form}")(module)
        module.close()
    return made


def compile_ir(text: str, *, level: int = 1) -> bytes:
    """Compile IR for this machine at codegen level `level`, without optimization passes.

    >>> compile_ir("define i32 @two() { ret i32 2 }")[:4]
    b'\\x7fELF'
    """
    try:
        data: bytes = _emitted(text, level, "object")
    except DeviceError:
        raise
    except RuntimeError as wrong:
        raise Bug(f"LLVM refuses the IR we made: {' '.join(str(wrong).split())}") from wrong
    missing = ElfObject(data).undefined()
    if missing:
        raise Bug(f"LLVM made calls to {', '.join(missing)}, for which this target has no instruction; "
                  "the renderer must expand them")
    return data


def assembly(text: str, *, level: int = 1) -> str:
    """Compile IR as `compile_ir` does, but to assembly text for people to read."""
    return str(_emitted(text, level, "assembly"))
