"""Softmax of few rows on a GPU: one kernel where a group holds a row, else parts of rows, each read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check, run_graph

from glassgrad import Tensor
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import GRAPH, GraphWork, make_schedule, run_passes
from glassgrad.compiler.schedule import long_softmax
from glassgrad.compiler.schedule.inlined_values import FusionLimits
from glassgrad.compiler.schedule.long_softmax import cut, with_long_rows_in_parts
from glassgrad.engine.schedule_key import normalize, with_params

LIMITS = GPU.fusion
SHORT = LIMITS._replace(held_row=100)            # rows of a hundred numbers are long
MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1), "gradient": lambda x: x.log_softmax(-1).square().sum().gradient(x)[0]}


def folded(out: Tensor) -> list[UOp]:
    """A result as the passes over the graph leave it."""
    work = GraphWork([out.uop], [], "CPU")
    run_passes(work, GRAPH)
    return work.sinks


def kernels(out: Tensor, limits: FusionLimits = LIMITS) -> list[Kernel]:
    """The kernels of a result on a GPU."""
    sinks, leaves = with_params(normalize(folded(out)), ())
    return [optimize(lower(item.ast), GPU) for item in make_schedule(sinks, leaves, "CPU", limits=limits).items]


def zeros(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.zeros(*shape, dtype=dtype).contiguous().realize()


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_softmax, "LEAST_PART", 16)


@pytest.mark.parametrize("shape", [(3, 128), (1, 101), (2, 3, 211), (7, 130)])
@pytest.mark.parametrize("name", MADE)
def test_parts_give_what_whole_rows_give(name: str, shape: tuple[int, ...], rng: np.random.Generator,
                                         short_parts: None) -> None:
    values = Inputs()
    x = Tensor(values.leaf(rng.standard_normal(shape).astype("float32") * 30))
    sinks = folded(MADE[name](x))
    parts = with_long_rows_in_parts(sinks, SHORT)
    assert parts != sinks
    np.testing.assert_allclose(interpret(parts, values)[0], interpret(sinks, values)[0], rtol=1e-5, atol=1e-5)
    check(sinks, values, lambda ast: optimize(lower(ast), GPU), name, limits=SHORT)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_infinite_scores_and_nan(name: str, short_parts: None) -> None:
    rows = np.random.default_rng(0).standard_normal((7, 211)).astype("float32")
    rows[1, :150] = -np.inf                      # whole parts
    rows[2] = -np.inf
    rows[3, 200], rows[4, 0], rows[5, 7] = np.inf, np.nan, -np.inf
    rows[6] = -2000.0
    rows[6, :150] = -np.inf
    values = Inputs()
    sinks = folded(MADE[name](Tensor(values.leaf(rows))))
    with np.errstate(all="ignore"):
        want = interpret(sinks, values)[0]
        found = run_graph(sinks, values, lambda ast: optimize(lower(ast), GPU), limits=SHORT)[0]
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [33001, 50257, 50304, 50263, 128256, 280002, 1300001])
@pytest.mark.parametrize("rows", [1, 8, 64, 263])
def test_parts_are_whole_where_they_can_be(rows: int, size: int) -> None:
    count, length = cut(size, rows, LIMITS)
    assert (count - 1) * length < size <= count * length < size + 8 * count
    assert length <= long_softmax.LONGEST_PART + 8 and length >= long_softmax.LEAST_PART // 2
    if size in (50304, 128256):
        assert count * length == size and length % 8 == 0


@pytest.mark.parametrize(("name", "most"), [("softmax", 3), ("log_softmax", 3), ("logsumexp", 2)])
@pytest.mark.parametrize("rows", [1, 64])
def test_a_row_is_read_once_for_its_maximum_and_its_sum(name: str, most: int, rows: int) -> None:
    for size in (50257, 50263, 50304):
        made = kernels(MADE[name](zeros(rows, size)))
        assert len(made) == sum(len(k.phases) for k in made) == most
        assert "held=yes" in made[0].moves[0]


@pytest.mark.parametrize("name", ["softmax", "layernorm", "var"])
@pytest.mark.parametrize(("rows", "size"), [(1, 5000), (64, 768), (200, 8192), (32, 4001)])
def test_rows_that_a_group_holds_are_one_kernel(name: str, rows: int, size: int) -> None:
    x = zeros(rows, size)
    [kernel] = kernels({"softmax": x.softmax, "layernorm": x.layernorm, "var": lambda: x.var(-1)}[name]())
    assert len(kernel.phases) == 1 and "held=yes" in kernel.moves[0]


def test_other_rows_are_left_as_they_were() -> None:
    many = folded(zeros(264, 50257).softmax(-1))
    assert with_long_rows_in_parts(many, LIMITS) == many, "rows are many"
    held = folded(zeros(2, 8192).softmax(-1))
    assert with_long_rows_in_parts(held, LIMITS) == held, "a group holds a row"
    columns = folded(zeros(50257, 2).softmax(0))
    assert with_long_rows_in_parts(columns, LIMITS) == columns, "no rows"
    across = kernels(zeros(768, 64).T.softmax(-1))
    assert len(across) == 3, "threads go along the memory of each of them as they can"
    two = kernels((zeros(32, 6000) + zeros(32, 6000)).softmax(-1))
    assert all("held=yes" not in move for k in two for move in k.moves), "two rows are too long"
    sums = [n for n in toposort(with_long_rows_in_parts(folded(zeros(2, 50257).softmax(-1)), LIMITS)) if n.op is o.SUM]
    assert [n.src[0].shape[-1] for n in sums] == [1733, 29]


@pytest.mark.parametrize("queries", [1, 128])
def test_attention_to_many_keys_stores_no_scores(queries: int) -> None:
    """It is one pass over blocks of keys, and its softmax is not in parts."""
    q, k, v = (zeros(1, n, 64, dtype="bfloat16") for n in (queries, 40000, 40000))
    sinks, leaves = with_params(normalize(folded(q.scaled_dot_product_attention(k, v))), ())
    made = make_schedule(sinks, leaves, "CUDA", lambda device, dtype, width: HOPPER.why_scores_are_stored(dtype, width),
                         LIMITS)
    assert len(made.items) == 1
    assert not any(slot.shape == (1, queries, 40, 1) for slot in made.slots)


def test_a_larger_group_holds_longer_rows() -> None:
    sinks, leaves = with_params(normalize(folded(zeros(64, 32768).softmax(-1))), ())
    [item] = make_schedule(sinks, leaves, "CPU", limits=LIMITS._replace(held_row=32 << 10)).items
    assert "lanes=1024, held=yes" in optimize(lower(item.ast), replace(GPU, most_threads=1024)).moves[0]
