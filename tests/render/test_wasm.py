"""WebAssembly: the bytes and the text of modules, and the device WASM with its memory, its errors and without NumPy.

Every op, every cast and random loop trees run as WebAssembly in test_render.py, test_render_memory.py,
test_render_ops.py and test_render_fuzz.py, beside LLVM IR and C. The whole suite does with `DEVICE=WASM ./dev test`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from render_kernels import matmul, needs_wasmtime, wasm_module
from test_render_fuzz import Maker
from test_render_golden import elementwise, row_sum, shifted

from glassgrad import Context, Device, DeviceError, MemoryLimitError, Tensor, dtypes, nn
from glassgrad.base.errors import Bug
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.optimize.targets.target import WASM
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.wasm.instruction_encoding import OPCODES, Code, type_of
from glassgrad.runtime.wasm import linear_memory
from glassgrad.runtime.wasm.linear_memory import LinearMemory

GOLDEN = Path(__file__).parent / "golden"
KERNELS = {"elementwise": elementwise, "row_sum": row_sum, "shifted": shifted,
           "matmul": lambda: matmul(8, 32, 100, 4, 2, 4)}


# -- modules ----------------------------------------------------------------------------------------------------------
def without_names(module: bytes) -> bytes:
    """A module without its custom sections, which only hold names."""
    out, at = module[:8], 8
    while at < len(module):
        number, size, shift = module[at], 0, 0
        start, at = at, at + 1
        while True:
            byte = module[at]
            at += 1
            size, shift = size | (byte & 0x7f) << shift, shift + 7
            if not byte & 0x80:
                break
        out += module[start:at + size] if number else b""
        at += size
    return out


def assert_same_module(kernel: Kernel) -> None:
    import wasmtime
    text = make_source(kernel, WASM, "wat")
    assert without_names(bytes(wasmtime.wat2wasm(text))) == wasm_module(kernel), text


@needs_wasmtime
@pytest.mark.parametrize("name", KERNELS)
def test_another_assembler_makes_the_same_bytes_of_the_text(name: str) -> None:
    assert_same_module(KERNELS[name]())


@needs_wasmtime
@pytest.mark.parametrize("seed", range(8))
def test_another_assembler_makes_the_same_bytes_of_random_kernels(seed: int) -> None:
    assert_same_module(Maker(seed).kernel())


@needs_wasmtime
def test_every_instruction_has_the_opcode_that_another_assembler_gives_it() -> None:
    """One function for each; after `unreachable` an instruction needs no operands."""
    import wasmtime
    wrong = []
    for name, opcode in OPCODES.items():
        kind, _, operation = name.partition(".")
        if kind in ("local", "call", "br_if", "select") or operation == "const":
            continue                                                     # in every kernel
        more = " 0" if "_lane" in operation else " " + " ".join(map(str, range(16))) if operation == "shuffle" else ""
        end = "" if "store" in operation else " drop"
        module = bytes(wasmtime.wat2wasm(f"(module (memory 0) (func unreachable {name}{more}{end}))"))
        if b"\x00\x00" + opcode not in module:                  # no locals, unreachable, and it
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("name", ["row_sum"])
def test_the_text_is_as_it_was(name: str) -> None:
    text = make_source(KERNELS[name](), WASM, "wat")
    file = GOLDEN / f"{name}.wat"
    assert text == file.read_text(), f"if that is meant, write the new text to {file}"


def test_types_of_instructions() -> None:
    expected = {"i64.lt_s": "i32", "f64.add": "f64", "i32x4.all_true": "i32", "v128.load": "v128", "i64.eqz": "i32",
                "i8x16.extract_lane_s": "i32", "i32.wrap_i64": "i32", "f32.convert_i64_u": "f32", "f32x4.eq": "v128"}
    assert {name: type_of(Code(name)) for name in expected} == expected


# -- memory -----------------------------------------------------------------------------------------------------------
class Plain:
    """A linear memory without an engine."""

    def __init__(self, most: int):
        self.bytes, self.most = bytearray(1 << 16), most

    def size(self) -> int: return len(self.bytes)

    def grow(self, nbytes: int) -> bool:
        if len(self.bytes) + nbytes > self.most:
            return False
        self.bytes += bytearray(nbytes)
        return True

    def read(self, address: int, nbytes: int) -> bytearray: return self.bytes[address:address + nbytes]
    def write(self, address: int, data: bytes) -> None: self.bytes[address:address + len(data)] = data


def test_blocks_never_overlap_and_released_ones_join_again(rng: np.random.Generator) -> None:
    memory = LinearMemory(Plain(64 << 20))
    blocks: list = []
    for _ in range(400):
        if blocks and rng.random() < 0.45:
            memory.release(blocks.pop(rng.integers(len(blocks))))
        else:
            blocks.append(memory.allocate(int(rng.choice([0, 1, 63, 64, 65, 1000, 70_000, 300_000]))))
        used = sorted((b.address, b.address + b.size) for b in blocks)
        assert all(a[1] <= b[0] for a, b in zip(used, used[1:]))
        assert all(start % 64 == 0 and end + linear_memory.SPARE <= memory.content.size() for start, end in used)
    for block in blocks:
        memory.release(block)
    end = (memory.content.size() - linear_memory.SPARE) // 64 * 64
    assert memory._sizes == {linear_memory.FIRST: end - linear_memory.FIRST}
    with pytest.raises(Bug, match="released twice"):
        memory.release(blocks[0])


def test_a_full_memory_is_said() -> None:
    memory = LinearMemory(Plain(1 << 20), limit=1 << 20)
    kept = memory.allocate(700_000)
    with pytest.raises(MemoryLimitError) as caught:
        memory.allocate(500_000)
    assert str(caught.value).startswith(
        "there is not enough memory for this tensor\n"
        "  given:    512.0 KiB more, with 704.0 KiB in use\n"
        "  expected: at most 1.0 MiB: WebAssembly's addresses have 32 bits\n"
        "  fix:      use smaller tensors or batches, or let go of tensors\n"
        f"  at:       {__file__}:")
    memory.release(kept)
    memory.release(memory.allocate(500_000))


def test_memory_mb_limits_a_linear_memory_too() -> None:
    memory = LinearMemory(Plain(64 << 20))
    with Context(MEMORY_MB=1):
        kept = memory.allocate(700_000)
        with pytest.raises(MemoryLimitError, match=r"at most 1.0 MiB in use \(MEMORY_MB=1\)"):
            memory.allocate(500_000)
        memory.release(kept)
        memory.release(memory.allocate(500_000))


# -- the device -------------------------------------------------------------------------------------------------------
SAMPLE = {
    "elements": lambda x: ((x + 1) * 2).relu().exp(), "a sine": lambda x: (x * 100).sin(),
    "logarithms": lambda x: x.abs().log2(), "rows": lambda x: x.softmax(-1), "columns": lambda x: x.sum(0),
    "everything": lambda x: x.sum(), "indices": lambda x: x.argmax(1), "a product": lambda x: x @ x.T,
    "a deep product": lambda x: x.reshape(-1, 7).T @ x.reshape(-1, 7), "a sort": lambda x: x.sort(1)[0],
    "a running sum": lambda x: x.cumsum(1), "small floats": lambda x: (x.half() * 3).bfloat16().float(),
    "a product of bytes": lambda x: (x * 100).cast(dtypes.int8) @ (x.T * 100).cast(dtypes.int8),
    "a product of short integers": lambda x: (x * 900).cast(dtypes.uint16) @ (x.T * 900).cast(dtypes.uint16),
    "eight bits": lambda x: (x * 100).cast(dtypes.int8) * 3, "many bits": lambda x: (x * 1e9).long() // 7 % 1000,
    "a padded cut": lambda x: x[:, ::3].pad(((1, 1), (0, 2))), "flipped": lambda x: x.flip(1).T.contiguous(),
    "truth": lambda x: ((x > 0) & (x < 0.5)).where(x, -1).any(0), "statistics": lambda x: x.layernorm(),
    "a lookup": lambda x: x[(x[:, 0] * 10).int() % 5],
    "a convolution": lambda x: x[:36, :36].reshape(1, 1, 36, 36).conv2d(x[:9, :9].reshape(9, 1, 3, 3), padding=1),
    "random numbers": lambda x: Tensor.rand(50, device=x.device) < 2,
}


@needs_wasmtime
@pytest.mark.parametrize("name", SAMPLE)
def test_the_device_computes_as_the_interpreter_does(name: str) -> None:
    data = np.random.default_rng(3).uniform(-1, 1, (37, 63)).astype("float32")
    found, expected = (SAMPLE[name](Tensor(data, device=device)).numpy() for device in ("WASM", "PYTHON"))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@needs_wasmtime
def test_training_steps_give_what_the_interpreter_gives() -> None:
    def losses(device: str) -> list[float]:
        data = np.random.default_rng(5)
        x, y = (Tensor(data.uniform(-1, 1, shape).astype("float32"), device=device) for shape in ((16, 9), (16, 3)))
        w, v = (Tensor(data.uniform(-1, 1, shape).astype("float32"), device=device) for shape in ((9, 12), (12, 3)))
        optimizer = nn.optim.Adam([w, v], lr=0.05)
        found = []
        for _ in range(4):
            loss = ((x @ w).tanh() @ v - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found
    found = losses("WASM")
    np.testing.assert_allclose(found, losses("PYTHON"), rtol=1e-5)
    assert found[-1] < found[0]


@needs_wasmtime
def test_the_source_is_text_and_the_loops_are_checked() -> None:
    with Context(CHECK=1):
        x = Tensor.rand(33, 5, device="WASM")
        assert (x.softmax(1).sum() - 33).abs().item() < 1e-3
    [kernel] = (Tensor([1.0, 2.0], device="WASM") * 3).schedule()
    assert "(f32x4.mul" in Device["WASM"].source(kernel.ast)


@needs_wasmtime
def test_too_large_a_tensor_is_said_with_its_line() -> None:
    with pytest.raises(MemoryLimitError, match=r"(?s)5.0 GiB more.*at most 4.0 GiB.*test_wasm.py"):
        Tensor.full((5 << 30,), 1, dtype=dtypes.uint8, device="WASM").contiguous().realize()
    assert Tensor.full((5,), 1, device="WASM").contiguous().tolist() == [1] * 5


@needs_wasmtime
def test_a_kernel_that_traps_is_named() -> None:
    device = Device["WASM"]
    [item] = (Tensor([1.0, 2.0], device="WASM") + 1).schedule()
    [program] = device.programs([item.ast])
    with pytest.raises(DeviceError) as caught:
        device.launch(program, [0xfffffff0] * 2)
    assert str(caught.value).startswith(
        "a kernel was stopped by the WebAssembly engine\n"
        f"  given:    {program.name}: out of bounds memory access\n"
        "  expected: a kernel that runs to its end\n"
        "  fix:      run it on another device; if it is right there, this is a fault of the device WASM: please report "
        f"it\n  at:       {__file__}:")


def test_without_an_engine_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad.runtime.wasm.wasm_device import WasmDevice
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(DeviceError, match=r"(?s)WASM needs the package wasmtime.*fix: +pip install wasmtime"):
        WasmDevice()


PROGRAM = """
import sys
for absent in ("numpy", "llvmlite"):
    sys.modules[absent] = None                  # importing it raises ImportError
from glassgrad import Tensor, nn
x = Tensor([[1.0, 2.0], [3.0, 4.0]])
w = Tensor([[0.5, -1.0], [0.25, 2.0]], requires_grad=True)
loss = (x @ w).relu().sum()
loss.backward()
print(x, loss, w.grad.tolist(), loss.item())
print(x[x > 1.5].tolist(), Tensor.arange(2000).reshape(50, 40))
optimizer = nn.optim.SGD([w], lr=0.1)
optimizer.step()
print(w, Tensor([True, False]), Tensor([1e-5, 2.0, float("inf")]), Tensor([], dtype="float32"))
try:
    x[Tensor([5])].realize()
except IndexError as error:
    print(error.given)
"""
PRINTED = """\
Tensor([[1., 2.],
        [3., 4.]], dtype=float32, device=WASM) Tensor(11.5, dtype=float32, device=WASM) [[4.0, 4.0], [6.0, 6.0]] 11.5
[2.0, 3.0, 4.0] Tensor([[   0,    1,    2, ...,   37,   38,   39],
        [  40,   41,   42, ...,   77,   78,   79],
        [  80,   81,   82, ...,  117,  118,  119],
        ...,
        [1880, 1881, 1882, ..., 1917, 1918, 1919],
        [1920, 1921, 1922, ..., 1957, 1958, 1959],
        [1960, 1961, 1962, ..., 1997, 1998, 1999]], dtype=int32, device=WASM)
Tensor([[ 0.09999999, -1.4       ],
        [-0.35000002,  1.4       ]], dtype=float32, device=WASM) Tensor([ True, False], dtype=bool, device=WASM) \
Tensor([1.e-05, 2.e+00,    inf], dtype=float32, device=WASM) Tensor([], dtype=float32, device=WASM)
index 5 on axis 0 of (2, 2), at [0] of the index tensor
"""


@needs_wasmtime
def test_a_program_runs_without_numpy_and_llvmlite() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "WASM": "1"})
    assert done.stdout == PRINTED, done.stderr
