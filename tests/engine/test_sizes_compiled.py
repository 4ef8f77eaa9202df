"""Sizes that change become a variable by themselves: when, how often is compiled, and which sizes the guard takes."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from changing_programs import PROGRAMS, WEIGHT, attention, compiled_by, data, general_graphs

from glassgrad import Context, Tensor, Variable, nn
from glassgrad.base.errors import Bug
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.engine.changing_sizes import general_graph
from glassgrad.engine.changing_sizes.general_graph import LEAST_HIGH, GeneralGraph
from glassgrad.engine.changing_sizes.size_families import MOST_SEEN, SEEN_GROWING
from glassgrad.engine.changing_sizes.size_formulas import fit
from glassgrad.engine.changing_sizes.slow_sizes import slow_above
from glassgrad.engine.observer import Observer, observed_by
from glassgrad.engine.schedule_key import NormalizedGraph

pytestmark = pytest.mark.usefixtures("fresh_schedules")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_length_that_grows_by_one_is_compiled_twice(name: str) -> None:
    program, shape = PROGRAMS[name]
    counts = []
    for n in (3, 4, 5, 9):
        x = data(shape(n))
        counts.append(compiled_by(lambda: program(Tensor(x)).numpy())[0])  # noqa: B023 - called at once
    assert counts == [1, 1, 0, 0]


@pytest.mark.parametrize("name, counts", [
    ("attention with a mask", [1, 1, 1, 0, 0]), ("product of a batch", [1, 1, 0, 0, 0]), ("softmax", [1, 1, 0, 0, 0]),
    ("layer norm", [1, 1, 0, 0, 0]), ("flip and pad", [1, 1, 1, 0, 0]), ("mean", [1, 1, 1, 0, 0])])
def test_a_size_of_one_that_becomes_two_is_taken_for_a_text_that_grows(name: str, counts: list[int]) -> None:
    """A batch of 2 and a padding of 2 look like the size, and a mean's 1 / 2 like a number: the third size decides."""
    program, shape = PROGRAMS[name]
    found = []
    for n in (1, 2, 3, 4, 70):
        x = data(shape(n))
        count, got = compiled_by(lambda: program(Tensor(x)).numpy())  # noqa: B023 - called at once
        found.append(count)
        with Context(DYNAMIC=0):
            np.testing.assert_allclose(got, program(Tensor(x)).numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{n}")
    assert found == counts


def test_formulas_that_two_sizes_suggest_and_the_third_refutes_are_made_again() -> None:
    """6, 12 and 20 are n * (n + 1); through the first two goes 6 * n - 6 as well."""
    def pairs(n: int) -> None:
        x = data((n * (n + 1), 4))
        np.testing.assert_allclose(Tensor(x).reshape(n, n + 1, 4).sum(1).numpy(), x.reshape(n, n + 1, 4).sum(1),
                                   rtol=1e-4, atol=1e-5)

    counts = [compiled_by(lambda: pairs(n))[0] for n in (2, 3, 4, 5, 9)]  # noqa: B023 - called at once
    assert sum(counts) <= 4 and counts[-2:] == [0, 0]


def test_a_thousand_lengths_compile_four_times() -> None:
    weight = Tensor(WEIGHT).realize()

    def step(n: int) -> None:
        x = np.full((n, 8), 0.5, np.float32)
        got = ((Tensor(x) @ weight).softmax(-1).mean(0)).numpy()
        wanted = x[:1] @ WEIGHT
        wanted = np.exp(wanted - wanted.max())
        np.testing.assert_allclose(got, (wanted / wanted.sum())[0], rtol=1e-4)

    count, _ = compiled_by(lambda: [step(n) for n in range(1, 1001)])
    assert count <= 4


@pytest.mark.only_on("CPU", "CLANG", reason="groups of threads have tiles for a size of their own")
def test_training_on_texts_of_any_length_compiles_four_times() -> None:
    """The gradients of weights are sums over the length; before, each length above 256 was compiled for itself."""
    layers = [nn.Linear(64, 512), nn.Linear(512, 64)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(layers), lr=0.01)

    def step(n: int) -> None:
        x = Tensor(data((n, 64)))
        optimizer.zero_grad()
        (layers[1](layers[0](x).relu()) - x).square().mean().backward()
        optimizer.step()

    with Tensor.train():
        count, _ = compiled_by(lambda: [step(n) for n in (810, 682, 606, 461, 484, 324, 900, 345, 309, 777, 512, 689)])
    assert count <= 4


def test_dynamic_0_compiles_every_size() -> None:
    with Context(DYNAMIC=0):
        count, _ = compiled_by(lambda: [(Tensor(data((n, 3))) + 1).numpy() for n in range(2, 9)])
    assert count == 7 and not general_graphs()


def test_two_sizes_stay_as_they_are() -> None:
    """A batch and its rest are no reason for a variable."""
    count, _ = compiled_by(lambda: [(Tensor(data((n, 3))) + 1).numpy() for n in (64, 10, 64, 10)])
    assert count == 2 and not general_graphs()


KERNEL, SECOND = data((6, 4, 5)), data((3, 6, 3))
ROUNDED = {
    "half": lambda x: x[:, :x.shape[1] // 2].sum(1),
    "rows of a half": lambda x: x.T[:x.shape[1] // 2] * 2,
    "second half": lambda x: x[:, x.shape[1] // 2:].softmax(-1),
    "both halves": lambda x: sum([part.sum(1) for part in x.chunk(2, 1)]),
    "two thirds": lambda x: x[:, x.shape[1] // 3:] + 1,
    "strided convolution": lambda x: x.reshape(1, 4, -1).conv2d(Tensor(KERNEL), stride=2, padding=2),
    "stride of 3": lambda x: x.reshape(1, 4, -1).conv2d(Tensor(KERNEL), stride=3),
    "two strided convolutions": lambda x: x.reshape(1, 4, -1).conv2d(Tensor(KERNEL), stride=2, padding=2).relu()
                                           .conv2d(Tensor(SECOND), stride=2, padding=1),
    "overlapping pool": lambda x: x.reshape(1, 4, -1).max_pool2d((3,), stride=2, padding=1),
    "pool": lambda x: x.reshape(1, 4, -1).max_pool2d((2,)),
    "mean of windows": lambda x: x.reshape(1, 4, -1).avg_pool2d((3,)),
    "pool of a partial window": lambda x: x.reshape(1, 4, -1).max_pool2d((2,), ceil_mode=True),
    "pool of a pool": lambda x: x.reshape(1, 4, -1).max_pool2d((2,)).avg_pool2d((2,)),
    "strided convolution and a pool": lambda x: x.reshape(1, 4, -1).conv2d(Tensor(KERNEL), stride=2, padding=2)
                                                .relu().max_pool2d((2,)),
    "every second": lambda x: x[:, 1::2] * 2,
    "every third backward": lambda x: x[:, ::-3] * 2,
    "two of three": lambda x: x[:, :2 * x.shape[1] // 3] * 2,
    "halves exchanged": lambda x: x[:, x.shape[1] // 2:].cat(x[:, :x.shape[1] // 2], dim=1) * 2,
}
MANY_LENGTHS = (40, 71, 57, 90, 33, 64, 65, 130, 131, 20, 301, 302, 303)


def _compiled_for(program: Any, lengths: Iterable[int]) -> int:
    """How many schedules a program of (4, n) needs for these lengths; its results are compared with DYNAMIC=0."""
    total = 0
    for n in lengths:
        x = data((4, n))
        count, got = compiled_by(lambda: program(Tensor(x)).numpy())  # noqa: B023 - called at once
        total += count
        with Context(DYNAMIC=0):
            np.testing.assert_allclose(got, program(Tensor(x)).numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{n}")
    return total


@pytest.mark.parametrize("name", ROUNDED)
def test_sizes_that_are_quotients_are_compiled_four_times(name: str) -> None:
    """Before, each remainder was a program of its own, if any formula fitted."""
    assert _compiled_for(ROUNDED[name], MANY_LENGTHS) <= 4


@pytest.mark.parametrize("name", ["strided convolution", "stride of 3", "pool", "mean of windows", "pool of a pool",
                                  "strided convolution and a pool", "every second", "halves exchanged"])
def test_gradients_by_what_has_a_quotient_as_size_are_compiled_four_times(name: str) -> None:
    """The gradient of a strided convolution by its input was compiled for each length."""
    def gradient(x: Tensor) -> Tensor:
        x.requires_grad = True
        ROUNDED[name](x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    assert _compiled_for(gradient, MANY_LENGTHS[:7]) <= 4


def test_rows_padded_to_a_multiple_are_one_program_where_they_are_padded_and_one_where_not() -> None:
    def patches(x: Tensor) -> Tensor:
        return x.pad(((0, 0), (0, -x.shape[1] % 8))).reshape(4, -1, 8).sum(1)

    assert _compiled_for(patches, (41, 103, 62, 94, 35, 66, 68, 130, 133, 21, 303, 302, 301)) <= 4
    assert _compiled_for(patches, (40, 72, 96, 160, 88, 304, 48, 16)) <= 4


@pytest.mark.parametrize("lengths", [(9, 40, 21, 63, 12, 33), (70, 101, 83, 124, 65, 90),
                                     (131, 250, 201, 178, 229, 140)])
def test_a_sort_is_compiled_four_times_for_all_lengths_between_two_powers_of_two(lengths: tuple[int, ...]) -> None:
    assert _compiled_for(lambda x: x.argsort(1), lengths) <= 4


def test_sizes_that_follow_no_formula_are_compiled_for_themselves() -> None:
    def roots(n: int) -> None:
        x = data((n, 3))
        got = (Tensor(x)[:int(n ** 0.5)] * 2).sum(0).cat(Tensor(x).sum(0)).numpy()
        np.testing.assert_allclose(got, np.concatenate([x[:int(n ** 0.5)].sum(0) * 2, x.sum(0)]), rtol=1e-4, atol=1e-4)

    for n in (9, 17, 26, 40, 51, 66, 83):
        roots(n)


def test_the_guard_takes_only_sizes_that_the_formulas_give() -> None:
    def joined(n: int, m: int) -> None:
        x, y = data((n, 4)), data((m, 4))
        np.testing.assert_array_equal(Tensor(x).cat(Tensor(y)).numpy(), np.concatenate([x, y]))

    for n in (3, 5, 8):
        joined(n, 2 * n)
    [general] = general_graphs()
    assert general.runs
    runs = dict(general.runs)
    joined(10, 4)                      # not twice as long
    assert general.runs == runs
    joined(10, 20)
    assert general.runs != runs


def test_a_length_at_which_two_nodes_become_one_compiles_nothing() -> None:
    """Where n is 7, both counters are one node, and so is what is computed of them."""
    def program(n: int, other: int = 7) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x = np.arange(n, dtype=np.float32)
        first, second = Tensor.arange(n) * 2.0, Tensor.arange(other) * 2.0
        got = (Tensor(x) * first).sum() + second.sum()
        return got.numpy(), (x * x * 2).sum() + 2.0 * np.arange(other).sum()

    counts = []
    for n in (3, 4, 5, 7, 8, 7):
        count, (got, wanted) = compiled_by(lambda: program(n))  # noqa: B023 - called at once
        counts.append(count)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert counts == [1, 1, 0, 0, 0, 0]
    [general] = general_graphs()
    runs = dict(general.runs)
    got, wanted = program(6, other=6)                        # one node as well, but none of these graphs
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert general.runs == runs


def test_a_float_that_follows_the_size_is_an_argument() -> None:
    for n in (3, 5, 8, 9, 30):
        x = data((n, 4))
        np.testing.assert_allclose((Tensor(x) * (1 / n)).sum(0).numpy(), x.mean(0), rtol=1e-4, atol=1e-6)
    assert len(general_graphs()) == 1


def test_heads_of_an_attention_joined_and_projected_at_changing_sizes() -> None:
    weight = data((4, 4))
    for n in (6, 4, 8, 70, 100, 3):
        heads = data((n, 2, 7, 2))
        got = Tensor(heads).realize().permute(0, 2, 1, 3).reshape(n, 7, 4) @ Tensor(weight).realize().T
        wanted = heads.transpose(0, 2, 1, 3).reshape(n, 7, 4) @ weight.T
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_longer_than_the_bound_is_compiled_once_more() -> None:
    sizes = (3, 4, 5, LEAST_HIGH + 1, LEAST_HIGH + 2)
    count, _ = compiled_by(lambda: [(Tensor(data((n, 2))) + 1).numpy() for n in sizes])
    assert count == 3, "one size, all up to the bound, all up to a higher one"


def test_a_size_that_comes_often_gets_its_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general_graph, "FIXED_AFTER", 3)
    for n in (3, 4, 5):
        (Tensor(data((n, 2))) + 1).numpy()
    x = data((7, 2))
    counts = [compiled_by(lambda: (Tensor(x) + 1).numpy())[0] for _ in range(6)]
    assert counts == [0, 0, 0, 1, 0, 0]


def test_runs_are_counted_of_the_sizes_that_came_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One size that comes again and again between others gets its own kernels all the same."""
    monkeypatch.setattr(general_graph, "FIXED_AFTER", 3)
    monkeypatch.setattr(general_graph, "MOST_COUNTED", 4)
    rows, columns = np.ones((90, 8), np.float32), np.ones((8, 90), np.float32)

    def product(n: int, m: int) -> int:
        count, got = compiled_by(lambda: (Tensor(rows[:n]).realize() @ Tensor(columns[:, :m].copy()).realize()).numpy())
        assert got.shape == (n, m) and (got == 8).all()
        return count

    others = [(7, 30), (12, 9), (5, 41), (33, 17), (20, 21)]
    for n, m in others:
        product(n, m)
    [general] = [general for general in general_graphs() if len(general.symbols) == 2]
    counts = []
    for i in range(4):
        product(40 + 2 * i, 50 - 3 * i)
        product(70 + i, 24 + 5 * i)
        counts.append(product(8, 70))
        assert len(general.runs) <= 4
    assert list(general.runs)[-1] == (8, 70) and general.runs[8, 70] == 4
    assert (counts[:-1], counts[-1]) == ([0, 0, 0], 1)


def test_a_size_that_was_served_before_is_not_compared_row_by_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (3, 4, 5):
        (Tensor(data((n, 2))) * 3.0 + 1).numpy()
    compared: list[int] = []
    compare = GeneralGraph.values_for

    def counted(general: GeneralGraph, normal: NormalizedGraph) -> tuple[int, ...] | None:
        compared.append(len(normal.key))
        return compare(general, normal)

    monkeypatch.setattr(GeneralGraph, "values_for", counted)
    for n, is_new in [(7, True), (9, True), (7, False), (9, False), (7, False)]:
        x = data((n, 2))
        before = len(compared)
        np.testing.assert_allclose((Tensor(x) * 3.0 + 1).numpy(), x * 3 + 1, rtol=1e-6)
        assert (len(compared) > before) is is_new, n
    x = data((7, 2))
    np.testing.assert_allclose((Tensor(x) * 5.0 + 1).numpy(), x * 5 + 1, rtol=1e-6, err_msg="another float")


def test_only_few_of_many_sizes_that_come_often_get_their_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over the steps of sentences of many lengths: 3 runs are enough for one length, 6 and 12 for others."""
    monkeypatch.setattr(general_graph, "FIXED_AFTER", 3)

    def steps(n: int) -> None:
        x = data((n, 2))
        rows = Tensor(x).realize()
        for t in range(n):
            np.testing.assert_array_equal((rows[t] + 1).numpy(), x[t] + 1)

    count, _ = compiled_by(lambda: [steps(n) for n in range(2, 22)])
    assert count <= 6                  # the buffers, two lengths, all lengths, and lengths of 4, 7 and 13 steps


@pytest.mark.parametrize("widths", [(7, 19), (3, 5, 9), (8, 33, 12, 100)])
@pytest.mark.parametrize("lengths", [(30, 7, 12, 5, 64, 33, 90), range(2, 12)], ids=["any", "growing"])
def test_a_line_that_computes_several_widths_is_compiled_a_few_times_for_each(widths: tuple[int, ...],
                                                                            lengths: Iterable[int]) -> None:
    def program(n: int) -> None:
        for width in widths:
            x = data((n, width))
            np.testing.assert_allclose(Tensor(x).sin().sum(0).numpy(), np.sin(x).sum(0), rtol=1e-4, atol=1e-4)

    count, _ = compiled_by(lambda: [program(n) for n in lengths])
    assert count <= 3 * len(widths)
    assert compiled_by(lambda: program(77))[0] == 0


def test_layers_of_several_widths_that_are_computed_one_by_one() -> None:
    weights = [data(shape) for shape in ((8, 16), (16, 4), (4, 32), (32, 32), (32, 10))]
    tensors = [Tensor(w).realize() for w in weights]

    def network(n: int) -> None:
        expected, x = (value := data((n, 8))), Tensor(value)
        for w, tensor in zip(weights, tensors):
            expected, x = np.tanh(expected @ w), (x @ tensor).tanh().realize()
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-3, atol=1e-4)

    count, _ = compiled_by(lambda: [network(n) for n in range(2, 20)])
    assert count <= 3 * len(weights)


def test_a_square_product_of_any_size_needs_no_kernels_of_its_own() -> None:
    for n in (40, 48, 56):
        (Tensor(data((n, n))) @ Tensor(data((n, n)))).numpy()
    [general] = general_graphs()
    [symbol] = general.symbols
    assert symbol.high >= 1024 and general.is_fast((symbol.high,))


def test_products_that_are_slower_with_a_variable_get_their_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general_graph, "slow_above", lambda items, programs, variables: [
        (Length({(symbol,): 1}), 300) for symbol in variables.values()])
    for n in (40, 48, 56):
        (Tensor(data((n, n))) @ Tensor(data((n, n)))).numpy()
    x = data((512, 512))
    count, got = compiled_by(lambda: (Tensor(x) @ Tensor(x)).numpy())
    assert count == 1
    np.testing.assert_allclose(got, x @ x, rtol=1e-3, atol=1e-3)


def test_debug_says_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=1):
        for n in (3, 4, 5):
            (Tensor(data((n, 2))) + 1).numpy()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DYNAMIC")]
    assert len(lines) == 1 and "kernels for all sizes from 2 to 1024, made at" in lines[0] and __file__ in lines[0]


def test_debug_says_once_that_no_variable_fits(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=1):
        for n in range(4, 9 + MOST_SEEN):
            Tensor(data((n, 2 + n ** 3 % 101, 2 + n ** 2 % 53, 2 + n ** 5 % 31))).sum(0).numpy()
    lines = [line for line in capsys.readouterr().out.splitlines() if "compiled for itself" in line]
    assert len(lines) == 1 and lines[0].startswith("DYNAMIC: a size changes, and each is compiled for itself: ")


@pytest.mark.parametrize("seen, found", [
    ([(4, 8, 3), (5, 10, 3), (9, 18, 3)], ["n", "2n", "3"]),
    ([(4, 16), (5, 25), (9, 81)], ["n", "nn"]),
    ([(4, 20), (5, 27), (9, 71)], None),
    ([(3, 1), (4, 2), (5, 2)], None),
    ([(4, 9, 16, 3, 60), (5, 10, 25, 3, 70)], ["n", "5 + n", "nn", "3", "20 + 10n"]),
    ([(4, 9), (6, 12)], None),
    ([(4, 4), (4, 4)], None),
])
def test_sizes_as_polynomials(seen: list[tuple[int, ...]], found: Any) -> None:
    result = fit(seen)
    assert (None if result is None else [" + ".join([f"{k}" * (k != 1 or not variables) + "n" * len(variables)
                                                     for k, variables in p.terms]) for p in result[1]]) == found


def test_observers_are_told_of_these_schedules() -> None:
    """The profiler and the visualizer read a schedule's memory and its kernels, which have no value of their own."""
    seen: list[Any] = []

    class Notes(Observer):
        def prepared(self, normal: Any, ready: Any, times: tuple[int, int, int]) -> None:
            seen.append((ready.memory.peak, len(ready.layout.arenas), [item.lines for item in ready.items]))

    with observed_by(Notes()):
        for n in (3, 4, 5, 9):
            attention(Tensor(data((2, n, 8)))).numpy()
    assert len(seen) == SEEN_GROWING and seen[-1][0] > seen[0][0] and all(lines for _, _, lines in seen)


def test_graphs_of_fewer_rows_with_named_gradients_are_compared_too() -> None:
    for n in range(10, 15):
        Tensor.arange(n).cast("float32").realize().tanh().sum().relu().abs().sqrt().realize()
    found = Tensor.arange(17).cast("float32").realize().tanh().sum().item()
    assert abs(found - np.tanh(np.arange(17)).sum()) < 1e-4


@pytest.mark.parametrize("move, limit", [("lanes(loop=i0)", 1 << 24), ("warps(rows=4)", 1 << 26),
                                         ("staged(rows=2)", None), ("held(rows=4)", 1 << 28),
                                         ("held(rows=1, stages=4)", 1 << 33),
                                         ("contract(rows=6)", None)])
def test_how_large_a_product_may_be_depends_on_its_tiles(move: str, limit: int | None) -> None:
    n = Variable("n", 1, 1 << 16).bind(5)
    x, w = (Tensor.zeros(*shape).contiguous().realize() for shape in ((1 << 16, 64), (64, 64)))
    items = (x[:n] @ w).schedule()
    [symbol] = {s for node in items[0].ast.toposort() for s in node.symbols}
    found = slow_above(items, [SimpleNamespace(moves=[move])], dict.fromkeys(items[0].slots, symbol))
    assert found == ([] if limit is None else [(64 ** 2 * Length({(symbol,): 1}), limit)])


@pytest.mark.parametrize("columns, limit", [(64, 1 << 17), (512, 1 << 19)])
def test_how_long_a_sum_in_blocks_may_be_depends_on_its_columns(columns: int, limit: int) -> None:
    """Up to 1,024 terms there are no blocks."""
    n, move = Variable("n", 1, 1 << 14).bind(5), "contract(rows=13, right=in_place, k_blocks=2, k_block=1024)"
    x, g = (Tensor.zeros(1 << 14, size).contiguous().realize() for size in (128, columns))
    items = (x[:n].T @ g[:n]).schedule()
    [symbol] = {s for node in items[0].ast.toposort() for s in node.symbols}
    found = slow_above(items, [SimpleNamespace(moves=[move])], dict.fromkeys(items[0].slots, symbol))
    assert found == [(columns * Length({(symbol,): 1}), limit)]


def test_convolutions_of_other_sizes_and_taps_with_their_gradients() -> None:
    """A window's size is a variable in a general graph too: it was not renamed with the others."""
    for image, weight, padding in (((2, 8, 17, 15), (6, 8, 3, 3), 0), ((1, 4, 13, 13), (4, 4, 5, 5), 2),
                                   ((2, 4, 9, 30), (5, 4, 2, 3), 0)):
        found, given = [], [data(shape) for shape in (image, weight)]
        for dynamic in (1, 0):
            with Context(DYNAMIC=dynamic):
                x, w = (Tensor(values, requires_grad=True) for values in given)
                y = x.conv2d(w, padding=padding)
                (y * y).sum().backward()
                assert x.grad is not None and w.grad is not None
                found.append([y.numpy(), x.grad.numpy(), w.grad.numpy()])
        for mine, wanted in zip(*found):
            np.testing.assert_allclose(mine, wanted, rtol=1e-3, atol=1e-3)


def test_sizes_that_do_not_fit_each_other_are_compiled_for_themselves(monkeypatch: pytest.MonkeyPatch,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    def misfit(*_: Any) -> Any:
        raise Bug("WHERE was built from different shapes: [(2, 3), (v0, 3)]")
    monkeypatch.setattr(general_graph, "with_variables", misfit)
    with Context(DEBUG=1):
        for n in range(2, 7):
            x = data((n, 5))
            np.testing.assert_allclose((Tensor(x) * 2 + 1).sum(0).numpy(), (x * 2 + 1).sum(0), rtol=1e-5)
    assert not general_graphs()
    assert "its sizes do not follow from one of them" in "".join(capsys.readouterr())
