"""Every message to a user: said in full (given, expected, fix), read by a test, and raised at the user's line."""

from __future__ import annotations

import ast
import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import glassgrad
from glassgrad import (Bug, Context, Device, DeviceError, DTypeError, FormatError, GlassgradError, InputError, JitError,
                       ShapeError, Tensor, c_kernel)
from glassgrad.base import errors
from glassgrad.jit import TinyJit, guards
from glassgrad.nn.datasets.files import DataFile, read_checked
from glassgrad.runtime import user_device as plugin
from glassgrad.runtime.cpu import c_compiler as ccompiler, llvm_compiler as llvm, worker_pool as workers
from glassgrad.tensor.memory import dlpack

ROOT = Path(__file__).resolve().parents[2]
USERS = [name for name in errors.__all__ if name not in ("GlassgradError", "Bug")]
TESTS = "\n".join(p.read_text() for p in sorted((ROOT / "tests").rglob("*.py")))
READ = re.sub(r"\s+", " ", re.sub(r"[\"']\s*\n\s*f?[\"']|\\\n", "", TESTS))


class Raised(NamedTuple):
    place: str
    kind: str
    what: str                # the longest piece of the message that is fixed text
    said: frozenset[str]


def pieces(node: ast.expr) -> list[str]:
    """The fixed text in a string expression."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return [str(v.value) for v in node.values if isinstance(v, ast.Constant)]
    if isinstance(node, ast.BinOp):
        return pieces(node.left) + pieces(node.right)
    return []


def all_raised() -> list[Raised]:
    found = []
    for path in sorted((ROOT / "glassgrad").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in USERS and node.args:
                what = max(pieces(node.args[0]), key=len, default="")
                said = frozenset([*("what", "given", "expected", "fix")[:len(node.args)],
                                  *[k.arg or "" for k in node.keywords]])
                found.append(Raised(f"{path.relative_to(ROOT)}:{node.lineno}", node.func.id, what.strip(), said))
    return found


RAISED = all_raised()


def test_there_is_something_to_check() -> None:
    assert len(RAISED) > 100 and {r.kind for r in RAISED} <= set(USERS)


def test_every_message_says_given_expected_and_mend() -> None:
    silent = [f"{r.place} {r.kind}: {r.what!r} lacks {', '.join(sorted({'given', 'expected', 'fix'} - r.said))}"
              for r in RAISED if not {"given", "expected", "fix"} <= r.said]
    assert not silent, "\n".join(silent)


def unread(folders: tuple[str, ...]) -> list[str]:
    """Messages of some folders (or files) whose text is in no test."""
    return [f"{r.place} {r.kind}: {r.what!r}" for r in RAISED if len(r.what) > 8 and r.what not in READ
            and r.place.startswith(tuple(f"glassgrad/{f}" for f in folders))]


def test_every_message_is_read_by_a_test() -> None:
    """A new one goes into test_messages_tensor.py, test_messages_nn.py, or beside the tests of what raises it."""
    missing = unread(("",))
    assert not missing, "read by no test:\n" + "\n".join(missing)


def test_messages_do_not_shout_or_print_internals() -> None:
    for r in RAISED:
        assert not re.search(r"[^.]\.$|!$", r.what) and not re.search(r"UOp|uop|\bops?\.\w|<class|0x", r.what), r


def test_every_kind_of_error_is_public_and_pythons_own_too() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert getattr(glassgrad, name) is kind
        if name not in ("GlassgradError", "Bug"):
            assert issubclass(kind, GlassgradError) and any(
                base.__module__ == "builtins" and base not in (Exception, object) for base in kind.__mro__), name
    assert not issubclass(Bug, GlassgradError)


def test_a_message_is_laid_out_for_reading() -> None:
    error = ShapeError("what", given="one\ntwo", expected="three", fix="four", where="file.py:1")
    assert str(error) == """\
what
  given:    one
            two
  expected: three
  fix:      four
  at:       file.py:1"""
    assert (error.what, error.given, error.expected, error.fix, error.where) == \
        ("what", "one\ntwo", "three", "four", "file.py:1")
    assert str(ShapeError("what", where="x")) == "what\n  at:       x"


def test_our_own_faults_say_so() -> None:
    assert str(Bug("odd")) == "odd\n  this is a bug in glassgrad, not in your program; please report it"


def test_mistakes_are_raised_where_they_are_made_not_when_they_run() -> None:
    x = Tensor.ones(2, 3)
    with pytest.raises(ShapeError) as error:
        lazy = x @ Tensor.ones(2, 3)                                # the mistake
        lazy.realize()                                              # not here
    line = next(i for i, text in enumerate(open(__file__), 1) if text.rstrip().endswith("# the mistake"))
    assert error.value.where == f"{__file__}:{line}"


# -- whole messages that no other test reads -----------------------------------------------------------------
def text(error: pytest.ExceptionInfo[GlassgradError]) -> str:
    return str(error.value).partition("\n  at: ")[0]


def test_reading_inside_a_jitted_function() -> None:
    @TinyJit
    def reads(x: Tensor) -> Tensor:
        return x * x.sum().item()

    with pytest.raises(JitError) as error:
        reads(Tensor([1.0, 2.0]))
    assert text(error).splitlines()[0] == "a value is read inside a jitted function"
    assert all(f"\n  {word}" in text(error) for word in ("given:", "expected:", "fix:"))


def test_a_function_that_launches_other_work_at_each_call() -> None:
    state = {"n": 0}

    @TinyJit
    def changes(x: Tensor) -> Tensor:
        state["n"] += 1
        for _ in range(state["n"]):
            x = x + 1                                               # again and again
        return x

    with pytest.raises(JitError) as error:
        for _ in range(6):
            changes(Tensor([1.0]))
    line = next(i for i, row in enumerate(open(__file__), 1) if row.rstrip().endswith("# again and again"))
    assert text(error) == f"""\
this function launches other work at each call
  given:    another graph is computed, first at {__file__}:{line}; the function itself changes state['n'], from 3 to 4
  expected: the same kernels on the same constants whenever the arguments look the same
  fix:      make what changes an argument or a tensor, or leave the jit off this function"""


def test_a_function_that_does_more_than_compute() -> None:
    seen: list[int] = []

    @TinyJit
    def collects(x: Tensor) -> Tensor:
        seen.append(1)
        return x * 2

    with pytest.raises(JitError) as error:
        for _ in range(6):
            collects(Tensor([1.0]))
    assert text(error) == """\
a replay of this function would not do what it does
  given:    the function itself changes the length of seen, from 1 to 2
  expected: a function that only computes tensors: later calls replay its kernels, not its Python
  fix:      do that outside, keep it in a tensor, or leave the jit off"""


def test_a_jit_of_nothing() -> None:
    with pytest.raises(JitError) as error:
        TinyJit(3)  # type: ignore[arg-type]
    assert text(error) == """\
TinyJit wraps a function
  given:    3
  expected: something that can be called
  fix:      write @TinyJit above a def"""


def test_a_compiler_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(ccompiler, "find_compiler", lambda: ("/usr/bin/odd",))
    monkeypatch.setattr(ccompiler, "_version", lambda command: "odd")
    monkeypatch.setattr(ccompiler.subprocess, "run", refuse)
    with pytest.raises(DeviceError) as error:
        ccompiler.compile_c("int x;")
    assert text(error) == """\
the C compiler cannot be started
  given:    /usr/bin/odd: no more processes
  expected: a program that runs
  fix:      set the environment variable CC to a C compiler that works"""


def test_llvmlite_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(DeviceError) as error:
        llvm.compile_ir("define i32 @two() { ret i32 2 }")
    message = text(error).splitlines()
    assert message[0] == "the CPU device compiles with llvmlite, which is not installed"
    assert message[1].startswith("  given:    import llvmlite: ")
    assert message[2:] == ["  expected: llvmlite 0.45 or newer",
                           "  fix:      pip install llvmlite, or use a C compiler with CLANG=1"]


def test_llvmlite_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM 15, of llvmlite 0.44, wants pointers with types."""
    monkeypatch.setattr(pytest.importorskip("llvmlite.binding"), "llvm_version_info", (15, 0, 7))
    with pytest.raises(DeviceError) as error:
        llvm.compile_ir("define i32 @two() { ret i32 2 }")
    assert text(error) == """\
the CPU device compiles with llvmlite, and this one is too old
  given:    llvmlite with LLVM 15.0.7
  expected: llvmlite 0.45 or newer
  fix:      pip install --upgrade llvmlite, or use a C compiler with CLANG=1"""
    with Context(CACHE=0), pytest.raises(DeviceError, match="test_errors.py:"):       # compiled by another thread
        (Tensor([1.0, 2.0], device="CPU") * 1.25 + 77).sin().realize()


@pytest.mark.parametrize("call, message", [
    (lambda: Tensor([7]).div(2, rounding_mode="up"), """\
there is no such rounding mode
  given:    'up'
  expected: None, "trunc" or "floor"
  fix:      write rounding_mode="floor\""""),
    (lambda: (Tensor([1]) > 0).where(Tensor([1], dtype="uint8"), 300), """\
a number does not fit into uint8
  given:    300
  expected: a number from 0 to 255
  fix:      cast the tensor to a wider type first: x.cast(dtypes.int64)"""),
    (lambda: plugin.Allocator()._alloc(4), """\
this allocator cannot allocate
  given:    Allocator
  expected: a method _alloc(size, options)
  fix:      write it in your subclass"""),
    (lambda: plugin.Allocator().copyin(0, memoryview(b"")), """\
this allocator cannot copy in
  given:    Allocator
  expected: a method copyin(dest, memoryview)
  fix:      write it in your subclass"""),
    (lambda: plugin.Allocator().copyout(memoryview(b""), 0), """\
this allocator cannot copy out
  given:    Allocator
  expected: a method copyout(memoryview, src)
  fix:      write it in your subclass"""),
    (lambda: plugin.Compiled("MY", plugin.MallocAllocator()), """\
a device needs something that runs kernels
  given:    MY without a runtime
  expected: Compiled(device, allocator, renderer, compiler, Runner)
  fix:      pass your Runner class"""),
], ids=lambda value: value.splitlines()[0] if isinstance(value, str) else "")
def test_messages(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GlassgradError) as error:
        call()
    assert text(error) == message


def test_a_c_kernel_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(Device["CPU"].memory), "on_host", False)
    with pytest.raises(DeviceError) as error:
        c_kernel("", "f")(Tensor([1.0], device="CPU"))
    assert text(error) == """\
a kernel of your own runs on the processor or with CUDA
  given:    a tensor on CPU
  expected: a device whose memory has addresses
  fix:      move it: x.to("CPU")"""


def test_arrays_that_dlpack_brings_and_we_cannot_take() -> None:
    capsule = Tensor([1.0, 2.0]).__dlpack__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    array = ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(dlpack._Managed)).contents.array
    array.device.kind = 2
    with pytest.raises(DeviceError) as error:
        Tensor.from_dlpack(capsule)
    assert text(error) == """\
the array is not in the host's memory
  given:    DLPack device 2
  expected: the CPU, 1
  fix:      move it to the CPU first"""
    with pytest.raises(DTypeError) as refused:
        dlpack._dtype_of(dlpack._DLDataType(5, 64, 1))
    assert text(refused) == """\
this DLPack type has no counterpart
  given:    code 5, 64 bits, 1 lanes
  expected: numbers or truth values of one lane
  fix:      convert it on the other side"""
    later = Tensor([1.0, 2.0]).__dlpack__(max_version=(1, 0))
    dlpack._Versioned.from_address(pointer_of(later, b"dltensor_versioned")).major = 2
    with pytest.raises(InputError) as version:
        Tensor.from_dlpack(later)
    assert text(version) == """\
this DLPack capsule is of a later version
  given:    version 2.0
  expected: version 1
  fix:      go through NumPy: Tensor(numpy.asarray(array))"""


def test_arrays_of_other_libraries_that_are_not_to_be_had() -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises(InputError) as unshared:
        Tensor.from_dlpack(np.ones(1, ">f4"))
    assert text(unshared) == """\
the other library does not share this array
  given:    ndarray: DLPack only supports native byte order.
  expected: an array whose memory can be shared
  fix:      copy its values: Tensor(array)"""
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError) as odd:
        Tensor(torch.ones(2, dtype=torch.complex64))
    assert text(odd) == """\
cannot make a tensor of this tensor of PyTorch
  given:    complex64, torch.strided
  expected: bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, float16, bfloat16, float32, float64, \
float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz
  fix:      convert it first, for example with t.to_dense().float()"""
    with pytest.raises(InputError, match="float32, torch.strided without values"):
        Tensor(torch.ones(2, device="meta"))


def test_a_function_that_sees_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MOST_BINDINGS", 5)
    rows = [[i] for i in range(50)]
    with pytest.raises(JitError) as error:
        for _ in range(4):
            TinyJit(lambda x: x + rows[0][0])(Tensor([1.0]))
    assert text(error) == """\
this function can see too much to be watched
  given:    more than 5 values in its closure, globals and objects
  expected: a function that sees its model and little else
  fix:      pass the data as arguments, as tensors"""


def test_a_data_file_that_is_another(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(b"abc")
    with pytest.raises(FormatError) as error:
        read_checked(tmp_path / "images", DataFile("images", 2, "00ff"))
    assert text(error) == f"""\
{tmp_path / "images"} is not the published file
  given:    3 bytes with SHA-256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad
  expected: 2 bytes with SHA-256 00ff
  fix:      remove it, so that it is fetched again"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other semaphores")
def test_no_semaphore_left() -> None:
    class System:
        @staticmethod
        def sem_init(*args: object) -> int:
            return -1

    with pytest.raises(DeviceError) as error:
        workers.Bells._posix(type("Holder", (), {"_kept": []})(), System)  # type: ignore[arg-type]
    assert text(error) == """\
the system has no semaphore left
  given:    sem_init
  expected: a semaphore
  fix:      end other programs, or set THREADS=1"""


if __name__ == "__main__":
    print("\n".join(unread(("",))) or "every message is read by a test")
