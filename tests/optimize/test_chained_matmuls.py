"""softmax(q k^T) v by a matrix unit whose factors are in registers of a group's threads: layouts, loop trees, sources.

The unit's hardware is not here. Trees run in the interpreter against float64; sources run on the CPU, where the unit's
instructions are C++ (shims/ptx_shim.h), with a detector of races; NVRTC compiles them for the chips that have it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc, spilled_bytes
from shim_device import KernelFault, needs_cxx, registered, run_kernel as run_source, runtime

from glassgrad import Context, Device, GlobalCounters, Tensor, Variable, dtypes
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import Refused, optimize
from glassgrad.compiler.optimize.targets.matrix_units import MMA_SYNC, MatrixUnit, units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_schedule, make_source
from glassgrad.compiler.render.gpu.fragment_layout import FragmentLayout
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.engine.schedule_key import normalize, with_params

BF16, F16 = dtypes.bfloat16, dtypes.float16
CLOSE = {BF16: 9e-3, F16: 1.2e-3}                  # relative to the norm: scores are rounded twice, weights once
CPU_UNIT = replace(GPU, units=units_of({"sm_80"}))    # casts are arithmetic, so that a CPU compiles the source
CHIPS = {name: replace(GPU, features=frozenset({name}), units=units_of({name})) for name in ("sm_80", "sm_90a")}


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    with Context(ONLINE_SOFTMAX=2, MATRIX_UNIT=0):
        yield


@pytest.fixture
def shim() -> Iterator[str]:
    with registered():
        yield "CUDA_SHIM"


def numbers(*shapes: tuple[int, ...], dtype: DType = BF16) -> list[np.ndarray]:
    """Numbers that the type holds exactly, in float32."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    drawn = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    return [Tensor(x).cast(dtype).cast("float32").numpy() for x in drawn]


def exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | float = 0.0) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]) + mask
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1, total) @ v)


def causal(rows: int, keys: int) -> np.ndarray:
    return np.where(np.tril(np.ones((rows, keys), bool)), 0.0, -np.inf)


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def tree(shapes: tuple[tuple[int, ...], ...], dtype: DType, target: Target, is_causal: bool = False,
         given: list[str] | None = None) -> Kernel:
    q, k, v = (Tensor.zeros(*shape, dtype=dtype).contiguous().realize() for shape in shapes)
    [item] = q.scaled_dot_product_attention(k, v, is_causal=is_causal).schedule()
    return optimize(lower(item.ast, blocks=target.score_blocks), target, given=given)


# -- the unit --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("unit", MMA_SYNC, ids=lambda unit: unit.name)
def test_sums_of_a_step_lie_as_the_next_left_factor_does(unit: MatrixUnit) -> None:
    """The left factor of m16n8k16, as PTX defines it: four words of two elements."""
    layout = FragmentLayout(unit, unit.rows)
    assert unit.sums is not None and layout.sharing == 4 and [layout.slot(n) for n in range(8)] == [0, 0, 1, 1] * 2
    for lane in range(32):
        for element in range(8):
            piece, inside = divmod(element, unit.sums.registers)
            mine = unit.sums.row(lane, inside), piece * unit.columns + unit.sums.column(lane, inside)
            word, half = divmod(element, 2)
            assert mine == (lane // 4 + word % 2 * 8, lane % 4 * 2 + half + word // 2 * 8)
    places = {(unit.sums.row(lane, n), unit.sums.column(lane, n)) for lane in range(32) for n in range(4)}
    assert len(places) == unit.rows * unit.columns


def test_later_chips_have_the_unit_and_earlier_ones_do_not() -> None:
    for features, has in (({"sm_75"}, False), ({"sm_80"}, True), ({"sm_89"}, True), ({"sm_90a"}, True)):
        assert (MMA_SYNC[0] in units_of(features)) == has


# -- trees -----------------------------------------------------------------------------------------------------------
SHAPES = {"even": (2, 128, 64, 64, 64), "wide": (1, 130, 70, 128, 128), "odd": (1, 40, 70, 40, 24),
          "short rows": (1, 5, 200, 24, 20), "narrow": (1, 300, 130, 16, 8), "two of each": (1, 2, 2, 2, 2)}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_trees_are_right(name: str, dtype: DType, is_causal: bool) -> None:
    batch, rows, keys, size, width = SHAPES[name]
    shapes = (batch, rows, size), (batch, keys, size), (batch, keys, width)
    kernel = tree(shapes, dtype, CPU_UNIT, is_causal)
    assert [move.split("(")[0] for move in kernel.moves] == ["held"]
    values = numbers(*shapes, dtype=dtype)
    out = np.zeros(batch * rows * width, np.dtype(dtype.format))
    run_kernel(kernel, [out, *[_stored(x, dtype) for x in values]])
    got = _widened(out, dtype).reshape(batch, rows, width)
    assert distance(got, exactly(*values, causal(rows, keys) if is_causal else 0.0)) < CLOSE[dtype]


ENDS = {"rows and keys": (None, None, 70), "one of each": (None, None, 1), "whole blocks": (None, None, 128),
        "as many as there may be": (None, None, 150), "keys": (90, None, 70), "few keys": (90, None, 3),
        "rows": (None, 90, 70)}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ENDS)
def test_rows_and_keys_may_end_at_a_value(name: str, chip: str, is_causal: bool) -> None:
    """Nothing is read or stored past the value: what lies there is no number."""
    fixed_rows, fixed_keys, n = ENDS[name]
    most, length = 150, Variable("n", 1, 150).bind(n)
    shapes = ((2, fixed_rows or most, 32), (2, fixed_keys or most, 32), (2, fixed_keys or most, 24))
    q, k, v = (Tensor.zeros(*shape, dtype=BF16).contiguous().realize() for shape in shapes)
    q = q if fixed_rows else q[:, :length]
    k, v = (k, v) if fixed_keys else (k[:, :length], v[:, :length])
    [item] = q.scaled_dot_product_attention(k, v, is_causal=is_causal).schedule()
    target = replace(CPU_UNIT, units=CHIPS[chip].units)
    kernel = optimize(lower(item.ast, blocks=target.score_blocks), target)
    assert [move.split("(")[0] for move in kernel.moves] == ["held"]
    assert ("stages=4" in kernel.moves[0]) == (chip == "sm_90a"), "where copies run ahead they do so here too"
    rows, keys, values = fixed_rows or n, fixed_keys or n, numbers(*shapes)
    mask = causal(rows, keys) if is_causal else 0.0
    wanted = exactly(values[0][:, :rows], values[1][:, :keys], values[2][:, :keys], mask)
    for x, size in zip(values, (rows, keys, keys)):
        x[:, size:] = np.nan
    out = np.zeros(2 * shapes[0][1] * 24, np.uint16)
    run_kernel(kernel, [out, *[_stored(x, BF16) for x in values], np.array(n, np.int64)])
    got = _widened(out, BF16).reshape(2, -1, 24)
    assert distance(got[:, :rows], wanted) < CLOSE[BF16] and not got[:, rows:].any()


FEW_ROWS = {"one row": (2, 1, 700, 32, 24), "few rows": (1, 5, 1100, 32, 32), "one head": (1, 1, 1000, 40, 16)}


@pytest.mark.parametrize("ends", ["all", "causal", "mask", "value", "value and causal"])
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", FEW_ROWS)
def test_keys_of_few_rows_are_cut_into_parts(name: str, chip: str, ends: str) -> None:
    """Parts of keys are tasks of their own, and are joined in order. A part may have nothing to look at."""
    batch, rows, keys, size, width = FEW_ROWS[name]
    shapes = (batch, rows, size), (batch, keys, size), (batch, keys, width)
    values, is_causal = numbers(*shapes), "causal" in ends
    q, k, v = (Tensor(x).cast(BF16).contiguous().realize() for x in values)
    if "value" in ends:
        keys = 300
        length = Variable("n", 1, shapes[1][1]).bind(keys)
        k, v = k[:, :length], v[:, :length]
    seen = np.random.default_rng(1).random((rows, keys)) < 0.1
    mask = np.where(seen, 0.0, -np.inf) if ends == "mask" else causal(rows, keys) if is_causal else 0.0
    wanted = exactly(values[0], values[1][:, :keys], values[2][:, :keys], mask)
    made = q.scaled_dot_product_attention(k, v, Tensor(seen).realize() if ends == "mask" else None, is_causal=is_causal)
    item = make_schedule(*with_params(normalize([made.uop]), ()), "CPU", limits=GPU.fusion).items[-1]
    target = replace(CPU_UNIT, units=CHIPS[chip].units)
    kernel = optimize(lower(item.ast, blocks=target.score_blocks), target)
    assert len(kernel.phases) >= 2 and kernel.moves[0].startswith("held(")
    assert ("stages=4" in kernel.moves[0]) == (chip == "sm_90a"), "where copies run ahead they do so here too"
    given = [_stored(np.where(np.arange(x.shape[1])[:, None] < keys, x, np.nan).astype("float32"), BF16)
             for x in values[1:]]
    inputs = [_stored(values[0], BF16), *given, *([np.array(keys, np.int64)] if "value" in ends else [])]
    if ends == "mask":                      # whether a row sees anything comes first
        inputs = [seen.any(-1), seen.ravel(), *inputs]
    out = [np.zeros(batch * rows * width, np.uint16) for _ in range(2)]
    for result in out:
        run_kernel(kernel, [result, *inputs])
    assert distance(_widened(out[0], BF16).reshape(wanted.shape), wanted) < CLOSE[BF16]
    np.testing.assert_array_equal(*out)


def _stored(x: np.ndarray, dtype: DType) -> np.ndarray:
    return x.astype(np.float16).ravel() if dtype is F16 else (x.view(np.uint32) >> 16).astype(np.uint16).ravel()


def _widened(x: np.ndarray, dtype: DType) -> np.ndarray:
    return x.astype(np.float32) if dtype is F16 else (x.astype(np.uint32) << 16).view(np.float32)


def test_tiles_may_be_read_when_they_are_needed() -> None:
    """Without reading ahead, which a search may choose: fewer registers, and the same numbers."""
    shapes = ((1, 70, 32), (1, 150, 32), (1, 150, 32))
    kernel = tree(shapes, BF16, CPU_UNIT)
    [move] = kernel.moves
    other = tree(shapes, BF16, CPU_UNIT, given=[move.replace(")", ", ahead=no)")])
    values, out = numbers(*shapes), [np.zeros(70 * 32, np.uint16) for _ in range(2)]
    for made, result in zip((kernel, other), out):
        run_kernel(made, [result, *[_stored(x, BF16) for x in values]])
    np.testing.assert_array_equal(*out)
    with pytest.raises(Refused, match="unit is fixed"):
        tree(shapes, BF16, CPU_UNIT, given=[move.replace("bf16", "f16")])


def test_where_no_unit_fits_the_scores_are_stored() -> None:
    chip = CHIPS["sm_90a"]
    assert chip.why_scores_are_stored(BF16, 128) is None
    assert chip.why_scores_are_stored(dtypes.float32, 64) == "groups of threads have no tiles for it"
    assert chip.why_scores_are_stored(F16, 256) == "256 numbers of a row are too many for the registers of threads"


# -- sources, on the CPU ---------------------------------------------------------------------------------------------
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def lying_across(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().realize().transpose(-1, -2)


def sharing_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x[:2].reshape(2, 1, 66, 24) for x in (lying_across(k), v))
    return q.reshape(2, 2, 35, 24).scaled_dot_product_attention(k, v, enable_gqa=True).reshape(4, 35, 24)


SEEN = np.random.default_rng(3).random((4, 35, 66)) < 0.3
SEEN[0, 3], SEEN[1, 5, :64] = False, False               # a row that sees nothing, and one that begins with nothing
FORMS: dict[str, tuple[Attention, Callable[..., np.ndarray]]] = {
    "causal, values lie across": (
        lambda q, k, v: q.scaled_dot_product_attention(k, lying_across(v), is_causal=True),
        lambda q, k, v: exactly(q, k, v, causal(35, 66))),
    "masked": (lambda q, k, v: q.scaled_dot_product_attention(k, v, attn_mask=Tensor(SEEN, device=q.device)),
               lambda q, k, v: exactly(q, k, v, np.where(SEEN, 0, -np.inf))),
    "heads that share keys, which lie across": (
        sharing_keys,
        lambda q, k, v: exactly(q.reshape(2, 2, 35, 24), k[:2, None], v[:2, None]).reshape(q.shape)),
}


@needs_cxx
@pytest.mark.parametrize("form", FORMS)
def test_sources_are_right_and_free_of_races(form: str, shim: str) -> None:
    made, reference = FORMS[form]
    values = numbers((4, 35, 24), (4, 66, 24), (4, 66, 24))
    q, k, v = (Tensor(x).cast(BF16).to(shim).contiguous().realize() for x in values)
    out = made(q, k, v)
    names = [lower(item.ast).name.split("_")[0] for item in out.schedule()]
    assert names.count("online") == 1, names
    assert distance(out.cast("float32").numpy(), reference(*values)) < CLOSE[BF16]


@needs_cxx
@pytest.mark.parametrize("n", [700, 5])
def test_sources_of_parts_are_right_and_free_of_races(n: int, shim: str) -> None:
    """A cache of keys as long as a value says, and heads that share it: they are rows of one head."""
    q, k, v = numbers((1, 6, 2, 24), (1, 2, 800, 24), (1, 2, 800, 24))
    length = Variable("n", 1, 800).bind(n)
    query, keys, values = (Tensor(x).cast(BF16).to(shim).contiguous().realize() for x in (q, k, v))
    out = query.scaled_dot_product_attention(keys[:, :, :length], values[:, :, :length], enable_gqa=True)
    [item] = out.schedule()
    assert len(lower(item.ast, blocks=CPU_UNIT.score_blocks).phases) == 2
    wanted = exactly(q.reshape(1, 2, 6, 24), k[:, :, :n], v[:, :, :n]).reshape(q.shape)
    assert distance(out.cast("float32").numpy(), wanted) < CLOSE[BF16]


@needs_cxx
def test_one_source_serves_lengths_that_change(shim: str) -> None:
    """Memory is as long as the value: strides are numbers that a kernel is given."""
    made = 0
    for n in (5, 6, 7, 64, 65, 150):
        [x] = numbers((1, n, 3 * 32))
        before = GlobalCounters.schedules
        y = Tensor(x, device=shim).cast(BF16).realize()
        q, k, v = (part.reshape(1, n, 2, 16).permute(0, 2, 1, 3) for part in y.chunk(3, dim=-1))
        out = q.scaled_dot_product_attention(k, v, is_causal=True).permute(0, 2, 1, 3).reshape(1, n, 32).realize()
        made = GlobalCounters.schedules - before
        a, b, c = (part.reshape(1, n, 2, 16).transpose(0, 2, 1, 3) for part in np.split(x, 3, -1))
        wanted = exactly(a, b, c, causal(n, n)).transpose(0, 2, 1, 3).reshape(1, n, 32)
        assert distance(out.cast("float32").numpy(), wanted) < CLOSE[BF16], n
    assert made == 0


@needs_cxx
def test_none_of_the_barriers_can_be_left_out(shim: str) -> None:
    kernel = tree(((1, 64, 16), (1, 130, 16), (1, 130, 16)), F16, CPU_UNIT)
    source = make_source(kernel, CPU_UNIT, "cuda")
    waits = [m.start() for m in re.finditer(re.escape("__syncthreads();"), source)]
    values = numbers((1, 64, 16), (1, 130, 16), (1, 130, 16), dtype=F16)
    out = np.zeros((1, 64, 16), np.float16)

    def run(text: str) -> None:
        out[:] = np.nan
        _run_on_cpu(text, kernel, [out, *[_stored(x, F16) for x in values]], shim)

    run(source)
    assert distance(out.astype(np.float32), exactly(*values)) < CLOSE[F16]
    inside = [at for at in waits if at > source.index("for (i32 kb")]
    for at in inside:
        with pytest.raises(KernelFault, match="a race in the group's memory"):
            run(source[:at] + source[at + len("__syncthreads();"):])
    assert len(inside) == 2


def _run_on_cpu(source: str, kernel: Kernel, arrays: list[np.ndarray], shim: str) -> None:
    device: Any = Device[shim]
    [(name, groups, threads, near)] = gpu_launch(kernel, CPU_UNIT.group_bytes).phases
    [function] = device.load(device.compile_source(source), [name])
    values = np.array([*[a.ctypes.data for a in arrays], runtime().gpu_scratch()], np.uint64)
    places = [values.ctypes.data + 8 * i for i in range(len(values))]
    run_source(function, places, [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays], groups, threads, near)


# -- sources, for the chips ------------------------------------------------------------------------------------------
@needs_nvrtc
@pytest.mark.parametrize("chip", CHIPS)
def test_sources_of_parts_compile(chip: str) -> None:
    """Batches of heads have more indices than a copy has axes: of two that follow upon each other one is made."""
    kernel = tree(((2, 4, 3, 128), *((2, 4, 4096, 128),) * 2), BF16, CHIPS[chip])
    source = make_source(kernel, CHIPS[chip], "cuda")
    assert len(kernel.phases) == 2 and "packed" not in kernel.moves[0] and sum(spilled_bytes(source, chip)) == 0


@needs_nvrtc
@pytest.mark.parametrize("size, is_causal, spilled", [(64, False, 40), (64, True, 64), (128, False, 0), (128, True, 0)])
def test_sources_compile_and_spill_next_to_nothing(size: int, is_causal: bool, spilled: int) -> None:
    """Of 64 numbers, two groups share a processor: a thread has 128 registers, and a few words of it are spilled."""
    shapes, chip = ((4, 2048, size),) * 3, CHIPS["sm_80"]
    kernel = tree(shapes, BF16, chip, is_causal)
    source = make_source(kernel, chip, "cuda")
    assert source.count("mma.sync.aligned.m16n8k16") == 1 and "ldmatrix" in source
    assert sum(spilled_bytes(source, "sm_80")) <= spilled
    [(_, groups, threads, near)] = gpu_launch(kernel, chip.group_bytes).phases
    assert (groups, threads) == (4 * 16, 256) and near <= 99 << 10       # what a group of any such chip may have
