"""Compile C with the compiler that the machine has. In: C text. Out: the bytes of an ELF object.

Does not know graphs, caches or loading. Looks for $CC, clang, gcc, cc and the `ziglang` package, in that order. The
code is freestanding: it includes only headers that need no library, and calls no external function. A small kernel
takes 20 to 40 ms with gcc, most of which is starting processes.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.base.packages import find_spec
from glassgrad.base.settings import settings
from glassgrad.runtime.cpu.elf_loader import ElfObject

# No global fast-math: -ffp-contract=fast only fuses a * b + c. -fno-builtin, and for gcc the flag after it,
# keep loops from becoming calls to memset and memcpy: there is no library to link with.
FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-ffreestanding", "-fno-builtin", "-fno-math-errno",
         "-fno-trapping-math", "-ffp-contract=fast", "-fwrapv", "-fno-stack-protector",
         "-fno-asynchronous-unwind-tables",
         "-fPIC", "-fvisibility=hidden", "-w")
_GCC_FLAGS = ("-fno-tree-loop-distribute-patterns",)


@lru_cache(maxsize=8)
def _find(override: str) -> tuple[str, ...]:
    if override:
        words = tuple(shlex.split(override))
        if not shutil.which(words[0]):
            raise DeviceError("the C compiler named by CC cannot be found", given=f"CC={override}",
                              expected="a program on the PATH, such as clang or gcc",
                              fix="correct the environment variable CC, or unset it")
        return words
    for name in ("clang", "gcc", "cc"):
        path = shutil.which(name)
        if path:
            return (path,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise DeviceError("the CLANG device needs a C compiler, and none was found",
                      given="no $CC, clang, gcc, cc or ziglang", expected="a C compiler on the PATH",
                      fix="install clang or gcc, or pip install ziglang, or use the CPU device")


def find_compiler() -> tuple[str, ...]:
    """Return the command that compiles C, as a list of words."""
    return _find(os.environ.get("CC", ""))


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> str:
    words = [*command, "--version"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        found = ""
    return f"{' '.join(command)} {found.partition(chr(10))[0]}"


def compiler_version() -> str:
    """Return the compiler's name and version, for cache keys."""
    return _version(find_compiler())


def _target_flags(command: tuple[str, ...]) -> list[str]:
    """Return the flags for this machine: ELF everywhere, the host's features, and those of CPU_FEATURES."""
    is_gcc = "clang" not in _version(command).lower() and "ziglang" not in command
    flags = list(_GCC_FLAGS) if is_gcc else []
    arm = platform.machine().lower() in ("arm64", "aarch64")
    flags.append("-mcpu=native" if arm and not is_gcc else "-march=native")
    if sys.platform == "darwin":
        flags.append(f"--target={'aarch64' if arm else 'x86_64'}-unknown-linux-gnu")
        flags += ["-ffixed-x18"] if arm else []  # reserved by the system
    elif sys.platform == "win32" and not is_gcc:
        flags.append(f"--target={'aarch64' if arm else 'x86_64'}-pc-windows-msvc-elf")
    if not arm:
        flags.append("-mprefer-vector-width=512")  # a 64-byte vector type is one register
    for item in filter(None, settings.CPU_FEATURES.replace(" ", "").split(",")):
        flags.append(f"-m{'no-' if item[0] == '-' else ''}{item[1:]}")
    return flags


def compile_c(text: str) -> bytes:
    """Compile C for this machine.

    >>> compile_c("int two(void) { return 2; }")[:4]
    b'\\x7fELF'
    """
    command = find_compiler()
    data, messages = _compiled(text, command)
    if not data:
        plain, said = _compiled("int two(void) { return 2; }", command)
        if not plain:
            raise DeviceError("the C compiler does not work",
                              given=f"{' '.join(command)}, which fails on any source: {said.strip() or 'no message'}",
                              expected="a C compiler that writes object files",
                              fix="set the environment variable CC to a C compiler that works")
        raise Bug(_first_error(messages, text, command))
    missing = ElfObject(data).undefined()
    if missing:
        raise Bug(f"the C compiler made calls to {', '.join(missing)}; the renderer must write them out")
    return data


def _compiled(text: str, command: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the object file that the compiler makes of a source, b"" if it makes none, and its messages."""
    # A temporary folder rather than stdout: not every compiler writes objects to a pipe.
    with tempfile.TemporaryDirectory(prefix="glassgrad-") as folder:
        out = os.path.join(folder, "kernel.o")
        words = [*command, "-c", *FLAGS, *_target_flags(command), "-o", out, "-"]
        try:
            done = subprocess.run(words, input=text.encode(), capture_output=True, check=False)
        except OSError as wrong:
            raise DeviceError("the C compiler cannot be started", given=f"{' '.join(command)}: {wrong}",
                              expected="a program that runs",
                              fix="set the environment variable CC to a C compiler that works") from wrong
        messages = done.stderr.decode("utf-8", "replace")
        if done.returncode != 0 or not os.path.exists(out):
            return b"", messages
        with open(out, "rb") as file:
            return file.read(), messages


def _first_error(messages: str, text: str, command: tuple[str, ...]) -> str:
    """Return the compiler's first error message, with the source line that it points at."""
    lines = messages.splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    words = first.split(":")
    source = text.splitlines()
    number = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    shown = f"\n  line {number}: {source[number - 1].strip()}" if 0 < number <= len(source) else ""
    return f"{os.path.basename(command[0])} refuses the C we made: {first}{shown}"
