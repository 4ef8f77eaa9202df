"""LLVM, the C compiler and the description of the host. References: LLVM's own view of the processor, and NumPy."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import run_script

from glassgrad import Tensor
from glassgrad.base.errors import Bug, DeviceError, InputError
from glassgrad.base.settings import Context, settings
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.runtime.compiled_kernels import SWITCH_INTERVAL, CompileQueue
from glassgrad.runtime.cpu import c_compiler as ccompiler, llvm_compiler as llvm, processor as host
from glassgrad.runtime.cpu.elf_loader import Image
from glassgrad.runtime.cpu.native_device import NativeDevice

ROOT = Path(__file__).resolve().parents[2]

AXPY_IR = """
define void @axpy(ptr %args, i64 %task, ptr %scratch) nounwind {
  %y.at = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %args
  %y = load ptr, ptr %y.at
  %offset = mul i64 %task, 16
  %xp = getelementptr float, ptr %x, i64 %offset
  %yp = getelementptr float, ptr %y, i64 %offset
  %xv = load <16 x float>, ptr %xp, align 4
  %yv = load <16 x float>, ptr %yp, align 4
  %p = fmul <16 x float> %xv, splat (float 3.0)
  %s = fadd <16 x float> %p, %yv
  store <16 x float> %s, ptr %yp, align 4
  ret void
}
"""
AXPY_C = """
#include <stdint.h>
void axpy(void **args, int64_t task, void *scratch) {
  float *x = (float *)args[0] + 16 * task, *y = (float *)args[1] + 16 * task;
  for (int i = 0; i < 16; i++) y[i] += 3.0f * x[i];
}
"""


def run_axpy(data: bytes, rng: np.random.Generator) -> None:
    image = Image(data)
    axpy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(image.address("axpy"))
    x, y = rng.standard_normal((2, 64)).astype(np.float32)
    expected = y + 3 * x
    args = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
    for task in range(4):
        axpy(ctypes.addressof(args), task, None)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_ir_is_compiled(level: int, rng: np.random.Generator) -> None:
    pytest.importorskip("llvmlite")
    text = AXPY_IR.replace("splat (float 3.0)", "<" + ", ".join(["float 3.0"] * 16) + ">")
    run_axpy(llvm.compile_ir(text, level=level), rng)


def test_c_is_compiled(rng: np.random.Generator) -> None:
    try:
        ccompiler.find_compiler()
    except DeviceError as missing:
        pytest.skip(str(missing))
    run_axpy(ccompiler.compile_c(AXPY_C), rng)


def test_c_loops_do_not_become_calls() -> None:
    text = """
    #include <stdint.h>
    struct wide { float v[256]; };
    void fill(void **args, int64_t n, void *scratch) {
      float *x = args[0], *y = args[1];
      for (int64_t i = 0; i < n; i++) x[i] = 0;
      for (int64_t i = 0; i < n; i++) y[i] = x[i + 7];
    }"""
    image = Image(ccompiler.compile_c(text))
    fill = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(image.address("fill"))
    x, y = np.arange(107, dtype=np.float32), np.ones(100, np.float32)
    fill(ctypes.addressof((ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)), 100, None)
    assert not x[:100].any() and (y == np.concatenate([x[7:100], x[100:]])).all()


def test_c_reaches_its_own_tables_and_functions() -> None:
    text = """
    int one(int x) { return x + 1; }
    int two(int x) { return x * 2; }
    int (*const functions[2])(int) = {one, two};
    const double numbers[3] = {0.5, 1.5, 2.5};
    int call(int which, int x) { return functions[which](x); }
    const void *where(void) { return &functions; }
    double number(int i) { return numbers[i]; }"""
    image = Image(ccompiler.compile_c(text))
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(image.address("call"))
    assert [call(0, 20), call(1, 20)] == [21, 40]
    assert ctypes.CFUNCTYPE(ctypes.c_size_t)(image.address("where"))() == image.address("functions")
    number = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int)(image.address("number"))
    assert [number(i) for i in range(3)] == [0.5, 1.5, 2.5]


def test_bad_ir_is_our_bug() -> None:
    pytest.importorskip("llvmlite")
    with pytest.raises(Bug, match="LLVM refuses the IR we made: .*'%x' defined with type 'float'"):
        llvm.compile_ir("define float @f(float %x) { %y = fadd double %x, %x\n ret float %y }")
    with pytest.raises(Bug, match="LLVM refuses the IR we made: .*does not dominate"):
        llvm.compile_ir("define i32 @f() {\na: br label %b\nb: %y = add i32 %z, 1\n %z = add i32 %y, 1\n ret i32 %z }")


def test_library_calls_are_our_bug() -> None:
    pytest.importorskip("llvmlite")
    text = "declare float @llvm.sin.f32(float)\n" \
           "define float @f(float %x) nounwind { %y = call float @llvm.sin.f32(float %x)\n ret float %y }"
    with pytest.raises(Bug, match="LLVM made calls to sinf, for which this target has no instruction"):
        llvm.compile_ir(text)
    with pytest.raises(Bug, match="the C compiler made calls to sinf"):
        ccompiler.compile_c("float sinf(float); float f(float x) { return sinf(x); }")


def test_bad_c_is_our_bug_and_shows_the_line() -> None:
    with pytest.raises(Bug) as caught:
        ccompiler.compile_c("int f(void) {\n  return undeclared_name + 1;\n}")
    first, second, *_ = str(caught.value).splitlines()
    assert "refuses the C we made: " in first and "undeclared_name" in first
    assert second == "  line 2: return undeclared_name + 1;"


def test_no_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(ccompiler, "find_spec", lambda name: None)
    ccompiler._find.cache_clear()
    try:
        with pytest.raises(DeviceError) as caught:
            ccompiler.compile_c("int x(void) { return 1; }")
        assert str(caught.value).partition("\n  at:")[0] == (
            "the CLANG device needs a C compiler, and none was found\n"
            "  given:    no $CC, clang, gcc, cc or ziglang\n"
            "  expected: a C compiler on the PATH\n"
            "  fix:      install clang or gcc, or pip install ziglang, or use the CPU device")
        monkeypatch.setattr(ccompiler, "find_spec", lambda name: object())
        assert ccompiler.find_compiler() == (sys.executable, "-m", "ziglang", "cc")
        monkeypatch.setenv("CC", "no-such-compiler -O9")
        with pytest.raises(DeviceError, match="the C compiler named by CC cannot be found"):
            ccompiler.find_compiler()
    finally:
        ccompiler._find.cache_clear()


def test_environment_chooses_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = ccompiler.find_compiler()[0]
    fake = tmp_path / "my compiler"
    fake.write_text(f"#!/bin/sh\nexec {real} \"$@\"\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", f"'{fake}' -O1")
    assert ccompiler.find_compiler() == (str(fake), "-O1")
    assert ccompiler.compile_c("int two(void) { return 2; }")[:4] == b"\x7fELF"


DECIDING = ["avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "avx512fp16", "avx512vnni",
            "amx-tile", "amx-bf16", "amx-int8", "sse4.1", "bmi", "bmi2", "lzcnt", "popcnt"]


@pytest.mark.parametrize("does, said", [("echo 'no license' >&2; exit 3", "no license"), ("exit 0", "no message")])
def test_a_c_compiler_that_makes_nothing_is_no_bug_of_ours(
    does: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "cc"
    broken.write_text(f"#!/bin/sh\n{does}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(DeviceError) as error:
        ccompiler.compile_c("int two(void) { return 2; }")
    assert error.value.advice == (
        "the C compiler does not work\n"
        f"  given:    {broken}, which fails on any source: {said}\n"
        "  expected: a C compiler that writes object files\n"
        "  fix:      set the environment variable CC to a C compiler that works")


def test_host_agrees_with_llvm() -> None:
    binding = pytest.importorskip("llvmlite.binding")
    seen, reference = host.host_description(), binding.get_host_cpu_features()
    if seen.arch == "x86_64" and sys.platform == "linux":
        assert {name: name in seen.features for name in DECIDING} == {name: reference[name] for name in DECIDING}
    assert seen.triple.split("-")[0] == binding.get_default_triple().split("-")[0].replace("arm64", "aarch64")
    assert 8 << 10 <= seen.l1_bytes <= 1 << 20 and seen.l1_bytes < seen.l2_bytes


def test_cpu_features_override() -> None:
    pytest.importorskip("llvmlite")
    if "avx512f" not in host.host_description().features:
        pytest.skip("this processor has no AVX-512 to take away")
    text = AXPY_IR.replace("splat (float 3.0)", "<" + ", ".join(["float 3.0"] * 16) + ">")
    wide = host.host_description()
    assert (wide.vector_bytes, wide.vector_registers) == (64, 32) and "zmm" in llvm.assembly(text)
    with Context(CPU_FEATURES="-avx512f"):
        narrow = host.host_description()
        assert (narrow.vector_bytes, narrow.vector_registers, "avx512bf16" in narrow.features) == (32, 16, False)
        assert narrow.key != wide.key
        assert "zmm" not in llvm.assembly(text) and "ymm" in llvm.assembly(text)
        assert ccompiler.compile_c(AXPY_C) != b""
    with Context(CPU_FEATURES="avx2"):
        with pytest.raises(InputError, match="the setting CPU_FEATURES cannot be read"):
            host.host_description()


@pytest.mark.parametrize("cpu, features, fast", [
    ("GenuineIntel a Cascade Lake", {"avx512f", "avx512vnni"}, False),
    ("GenuineIntel a Sapphire Rapids", {"avx512f", "avxvnni"}, True),
    ("AuthenticAMD a Zen 5", {"avx512f", "avxvnni"}, False)])
def test_gathers_are_used_where_they_are_fast(cpu, features, fast, monkeypatch) -> None:
    pytest.importorskip("llvmlite")
    target = host.HostTarget("x86_64", cpu, frozenset(features), "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(llvm, "host_description", lambda: target)
    assert target.fast_gathers == fast
    assert ("+prefer-no-gather" in llvm._feature_text().split(",")) == (not fast)


@pytest.mark.parametrize("cpu, features, steps", [
    ("GenuineIntel a Cascade Lake", {"avx512f", "avx512vnni"}, 64 << 10),
    ("GenuineIntel an Ice Lake", {"avx512f", "avx512vbmi"}, 0),
    ("AuthenticAMD a Zen 4", {"avx512f", "avx512vbmi"}, 0), ("GenuineIntel a Haswell", {"avx2"}, 0)])
def test_little_kernels_have_narrow_vectors_on_the_first_processors_with_avx512(cpu, features, steps) -> None:
    target = host.HostTarget("x86_64", cpu, frozenset(features), "x86_64-unknown-linux-gnu")
    assert target.narrow_steps == Target.of(target).narrow_steps == steps


@pytest.mark.parametrize("files, own, expected", [
    ({"cpu.max": "max 100000\n"}, "0::/\n", None),
    ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
    ({"cpu.max": "max 100000", "a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 4.0),
    ({"cpu,cpuacct/x/cpu.cfs_quota_us": "50000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
     "3:cpu,cpuacct:/x\n2:memory:/y\n0::/\n", 0.5),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/\n", None),
    ({}, "", None),
])
def test_control_group_quota(files: dict[str, str], own: str, expected: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert host._group_quota(str(tmp_path), str(tmp_path / "own")) == expected


def test_cores_follow_affinity() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity on this system")
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" \
             "from glassgrad.runtime.cpu.processor import available_cores; print(available_cores())"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True).stdout == "1\n"


def test_compiler_version_is_llvmlites() -> None:
    llvmlite = pytest.importorskip("llvmlite")
    assert llvm.compiler_version() == f"llvmlite {llvmlite.__version__}"


def test_describing_the_host_loads_no_compiler() -> None:
    script = "import sys; from glassgrad.runtime.cpu import llvm_compiler, processor\n" \
             "processor.host_description(); llvm_compiler.compiler_version()\n" \
             "print([name for name in ('llvmlite', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


def test_a_first_small_result_loads_and_opens_little(tmp_path: Path) -> None:
    """With nothing in the cache: no C, no NumPy, no pool of threads; and the answer of a plan that needs no helpers."""
    pytest.importorskip("llvmlite")
    script = "import sys\nfrom glassgrad import Tensor\n" \
             "print((Tensor([1.0, 2.0, 3.0]) + Tensor([4.0, 5.0, 6.0])).sum().item())\n" \
             "early = ['subprocess'] if sys.version_info < (3, 11) else []       # by `platform` of Python 3.10\n" \
             "print([n for n in ('numpy', 'subprocess', 'concurrent.futures', " \
             "'glassgrad.compiler.render.c.c_source') if n in sys.modules and n not in early])\n" \
             "from glassgrad.runtime.cpu.worker_pool import open_pools\nprint(bool(open_pools))\n" \
             "print(Tensor.ones(1000, 1000).contiguous().realize().sum().item(), bool(open_pools))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "CACHE_DIR": str(tmp_path), "THREADS": "2", "DEV": "CPU"})
    assert done.stdout.splitlines() == ["21.0", "[]", "False", "1000000.0 True"], done.stderr


def test_where_no_thread_starts_kernels_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    queue, done = CompileQueue(), []
    waits = [queue.start(lambda: done.append(1) or "name") for _ in range(2)]      # type: ignore[func-returns-value]
    assert done == [1, 1] and [wait() for wait in waits] == ["name", "name"]


def test_what_a_compile_raises_reaches_who_waits_for_it() -> None:
    def wrong() -> None:
        raise ValueError("no")

    queue = CompileQueue()
    first, second = queue.start(wrong), queue.start(lambda: "name")
    assert second() == "name"
    with pytest.raises(ValueError, match="no"):
        first()


def test_a_compile_has_the_settings_of_the_thread_that_queued_it() -> None:
    with Context(CACHE_MB=7, CPU_FEATURES="-avx512f"):
        wait = CompileQueue().start(lambda: (settings.CACHE_MB, settings.CPU_FEATURES))
    assert wait() == (7, "-avx512f") and settings.CACHE_MB != 7


def test_a_compile_leaves_the_turns_of_threads_as_they_were() -> None:
    usual, seen, queue = sys.getswitchinterval(), [], CompileQueue()
    try:
        sys.setswitchinterval(0.25)
        for _ in range(2):
            queue.start(lambda: seen.append(sys.getswitchinterval()))()
            for thread in threading.enumerate():
                if thread.name == "glassgrad-compile":
                    thread.join()
            assert sys.getswitchinterval() == 0.25
    finally:
        sys.setswitchinterval(usual)
    assert seen == pytest.approx([SWITCH_INTERVAL] * 2)


def test_after_a_failure_what_was_not_begun_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    device, compiled = NativeDevice("CPU", "llvm"), []
    held, entered = threading.Event(), threading.Event()

    def compile_source(source: str) -> bytes:
        compiled.append(source)
        entered.set()
        held.wait(20)
        raise Bug("it is Monday")

    def write(ast: UOp, moves: Any, say: bool = True) -> Any:
        if ast is kernels[-1]:
            entered.wait(20)
            raise Bug("the last one cannot be written")
        return NativeDevice.write(device, ast, moves, say)

    monkeypatch.setattr(device, "compile_source", compile_source)
    monkeypatch.setattr(device, "write", write)
    kernels = [(Tensor([1.0, 2.0]) * n).schedule()[-1].ast for n in (3, 5, 7)]
    with Context(CACHE=0), pytest.raises(Bug, match="the last one"):
        device.programs(kernels)
    held.set()
    for thread in threading.enumerate():
        if thread.name == "glassgrad-compile":
            thread.join()
    assert len(compiled) == 1


@pytest.mark.only_on("CPU", reason="LLVM's code generator")
@pytest.mark.parametrize("lanes", [2, 3, 5, 7])
def test_a_few_integers_become_bytes(lanes: int) -> None:
    """In a process of its own: on AArch64 three of them ended it, inside LLVM's code generator."""
    script = f"""
        from glassgrad import Tensor, dtypes
        x = Tensor(list(range(-1, {lanes} - 1)), dtype=dtypes.int64).realize()
        print(x.cast(dtypes.int8).tolist(), x.flip(0).cast(dtypes.uint8).tolist(), (x > 0).tolist(), x.bool().tolist())
    """
    x = np.arange(-1, lanes - 1)
    expected = [x.astype(np.int8), x[::-1].astype(np.uint8), x > 0, x != 0]
    out, errors = run_script(script, CACHE="0")
    assert out.split("\n")[0] == " ".join(str(array.tolist()) for array in expected), errors
