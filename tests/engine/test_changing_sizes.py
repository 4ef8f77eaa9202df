"""Sizes that change become a variable by themselves: results, memory and kernels, at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import length_fuzzer
import loop_device
import numpy as np
import pytest
import size_fuzzer
from changing_programs import ATTENTION, LENGTHS, PROGRAMS, QUERIES, attention, compiled_by, data, general_graphs

from glassgrad import Context, Tensor, TinyJit, Variable, nn
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import memory_size, replaced
from glassgrad.compiler.lower.lower import lower
from glassgrad.engine.changing_sizes.general_graph import GeneralGraph
from glassgrad.engine.changing_sizes.key_without_sizes import split
from glassgrad.engine.changing_sizes.size_families import SEEN, SizeFamily
from glassgrad.engine.observer import Observer, observed_by
from glassgrad.engine.schedule_key import NormalizedGraph, normalize
from glassgrad.runtime.devices import Device

pytestmark = pytest.mark.usefixtures("fresh_schedules")


@pytest.mark.parametrize("name", PROGRAMS)
def test_many_lengths_are_right_and_compile_as_often_as_three(name: str) -> None:
    program, shape = PROGRAMS[name]
    total = 0
    for n in LENGTHS:
        x = data(shape(n))
        count, got = compiled_by(lambda: program(Tensor(x)).numpy())  # noqa: B023 - called at once
        total += count
        with Context(DEV="PYTHON", DYNAMIC=0):
            want = program(Tensor(x, device="PYTHON")).numpy() if n < 40 else None
        if want is not None:
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{name} of {n}")
    assert total <= 2 * SEEN, "a forward and a backward pass, each for two sizes and a variable"
    assert general_graphs()


def test_two_matrices_of_other_shapes_are_no_size_that_grows() -> None:
    """4 x 5 and 5 x 3 fit n x (13 - 2 n), whose greatest n is 5: kernels for all such sizes would serve nothing new."""
    count, _ = compiled_by(lambda: [Tensor.rand(4, 5).realize(), Tensor.rand(5, 3).realize()])
    assert count == 2 and not general_graphs()


@pytest.mark.parametrize("name", ["product of a batch", "square", *ATTENTION, "softmax", "convolution", "cat",
                                  "gradient", "gradient of a weight", "transposed", "transposed rows of a batch",
                                  "convolution of squares"])
def test_the_loop_trees_touch_only_their_memory(name: str) -> None:
    """The loop interpreter raises where an address is outside memory of the value's size, or two tasks write there."""
    program, shape = PROGRAMS[name]
    for n in (3, 5, 4):
        program(Tensor(data(shape(n)))).realize()
    for general in general_graphs():
        for item in general.compiled.items:
            kernel = Device["CPU"].loop_tree(item.ast)
            for value in (2, 8, 17, 66):
                arguments: list[Any] = [None] * len(kernel.params)
                for p in kernel.params:
                    size = replaced(tuple(map(memory_size, p.shape)), lambda _: value)  # noqa: B023 - called at once
                    arguments[p.arg.slot] = value if isinstance(p.arg, Measure) else 0.5 if p.arg.scalar else \
                        np.ones(int(np.prod(size)), p.dtype.format)
                run_kernel(kernel, arguments)


@pytest.mark.only_on("CPU", "CLANG", reason="groups of threads have no tiles for a number that is not known")
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_any_length_is_one_kernel_with_the_same_bits_on_any_number_of_threads(name: str) -> None:
    program, shape = PROGRAMS[name]
    lengths = (3, 4, 2, 33, 65, 200)
    inputs = [data(shape(n)) for n in lengths]

    def results(**settings: int) -> list[Any]:
        with Context(**settings):
            return [program(Tensor(x)).numpy() for x in inputs]

    one, three = (results(THREADS=threads, ONLINE_SOFTMAX=2) for threads in (1, 3))
    for n, x, y, want in zip(lengths, one, three, results(DYNAMIC=0, ONLINE_SOFTMAX=0)):
        np.testing.assert_array_equal(x, y, err_msg=f"{n}")
        np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-5, err_msg=f"{n}")
    names = [lower(item.ast).name for general in general_graphs() for item in general.compiled.items]
    assert len(names) == 2 and len(set(names)) == 1 and names[0].startswith("online_")      # for each number of threads


@pytest.mark.only_on("CPU", "CLANG", reason="groups of threads have no tiles for a number that is not known")
def test_attention_in_one_pass_serves_long_texts_too() -> None:
    for n in (1200, 1201):
        x = Tensor(data((1, n, 64))).realize()
        x.scaled_dot_product_attention(x, x, is_causal=True).realize()
    [general] = general_graphs()
    [symbol] = general.symbols
    assert symbol.high > 4000 and general.is_fast((symbol.high,))


def test_attention_over_lengths_that_the_user_names_is_one_kernel() -> None:
    rows, n = data((2, 256, 8)), Variable("n", 1, 256)
    x = Tensor(rows).realize()
    for value in (1, 2, 31, 64, 200):
        part = x[:, :n.bind(value)]
        got = part.scaled_dot_product_attention(part, part, is_causal=True)
        with Context(DYNAMIC=0, ONLINE_SOFTMAX=0):
            fixed = Tensor(rows[:, :value])
            want = fixed.scaled_dot_product_attention(fixed, fixed, is_causal=True).numpy()
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_attention_over_a_length_that_may_be_0_stores_its_scores() -> None:
    x, n = Tensor(data((2, 256, 8))).realize(), Variable("n", 0, 256)
    for value in (0, 5):
        part = x[:, :n.bind(value)]
        got = Tensor(QUERIES).scaled_dot_product_attention(part, part)
        assert len(got.schedule()) > 1 and np.isfinite(got.numpy()).all()


def test_a_product_of_rows_that_may_be_none() -> None:
    """No factor is packed where there are no rows, and none by a version for another number of them."""
    rows, weight, n = data((200, 21)), data((800, 21)), Variable("n", 0, 200)
    x, w = Tensor(rows).realize(), Tensor(weight).realize()
    for value in (0, 1, 5, 6, 64, 65, 200):
        got = ((x[:n.bind(value)] * 0.5) @ w.T).relu().numpy()
        np.testing.assert_allclose(got, np.maximum(rows[:value] * 0.5 @ weight.T, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", range(0, 25, 5))
def test_random_programs_are_right_at_every_size(first: int) -> None:
    """`./dev fuzz sizes` goes on with others."""
    reports = [size_fuzzer.check(seed) for seed in range(first, first + 5)]
    assert not any(reports), "\n\n".join(filter(None, reports))


@pytest.mark.only_on("CPU", reason="it names its devices")
@pytest.mark.parametrize("name, first, count", [("CPU", 5, 6), ("HOPPER_LOOPS", 2022, 6), ("AMPERE_LOOPS", 2022, 6),
                                                ("GPU_LOOPS", 50041, 1)])
def test_random_layers_are_right_at_every_length(name: str, first: int, count: int) -> None:
    """`./dev fuzz lengths` goes on with others."""
    with loop_device.registered():
        reports = [length_fuzzer.check(seed, name) for seed in range(first, first + count)]
    assert not any(reports), "\n\n".join(filter(None, reports))


@pytest.mark.parametrize("columns", [1, 3])
def test_rows_added_by_index_keep_their_order_on_groups_of_threads_for_any_number_of_them(columns: int) -> None:
    """Rows of one element leave no loop for the threads: the loop over the indices was cut into tasks, a race."""
    with loop_device.registered():
        for n in (4, 5, 6, 9, 300):
            values, gradient = data((n, columns)), data((n, 49))
            x = Tensor(values, device="HOPPER_LOOPS", requires_grad=True)
            weight = Tensor(data((columns, 49)), device="HOPPER_LOOPS")
            rows = Tensor.arange(n, device="HOPPER_LOOPS") // 2
            ((x[rows] @ weight) * Tensor(gradient, device="HOPPER_LOOPS")).sum().backward()
            wanted = np.zeros((n, columns))
            np.add.at(wanted, np.arange(n) // 2, gradient.astype(np.float64) @ weight.numpy().T)
            assert x.grad is not None
            np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-3, atol=1e-3, err_msg=f"{n}")


def test_a_guard_that_lets_wrong_numbers_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(general: GeneralGraph, normal: NormalizedGraph) -> tuple[int, ...] | None:
        sizes = [split(normal.key[row]).sizes for row, _ in general._bases]
        return tuple([found[place] for found, (_, place) in zip(sizes, general._bases)]) \
            if len(normal.key) == len(general._parts) and all(sizes) else None

    monkeypatch.setattr(GeneralGraph, "values_for", careless)
    assert any(size_fuzzer.check(seed) for seed in range(37, 77))


@pytest.mark.only_on("CPU", "CLANG", reason="it reads the commands of native code")
def test_a_launch_runs_only_the_tasks_that_the_size_gives_work_to() -> None:
    weight = Tensor(data((64, 96))).realize()

    def tasks(n: int) -> int:
        for general in general_graphs():
            general.compiled._calls.clear()                # else a launch that is kept for this size is not bound anew
        (Tensor(data((n, 64))).realize() @ weight).realize()
        return sum(command.tasks for general in general_graphs() for segment in general.compiled.segments
                   for command in segment.plan._commands)

    tasks(4)
    few, some, many, again = tasks(5), tasks(40), tasks(800), tasks(40)
    whole = sum(count for general in general_graphs() for p in general.compiled.programs for _, count in p.phases)
    assert max(few, some) < 16 and some < many < whole and again == some


@pytest.mark.only_on("CPU", "CLANG", reason="it reads the commands of native code")
def test_neighbouring_rows_stay_in_one_task() -> None:
    """Dealt out one by one, the rows of a task are far from each other: that took 3 times as long."""
    def tasks(n: int) -> int:
        (Tensor(data((n, 768))).realize() * 2 + 1).realize()
        return sum(command.tasks for general in general_graphs() for segment in general.compiled.segments
                   for command in segment.plan._commands[:segment.plan._count])

    tasks(4)
    few, many = tasks(5), tasks(1000)
    assert few <= 2 and 16 < many < 200


@pytest.mark.only_on("CPU", "CLANG", reason="it reads the commands of native code")
@pytest.mark.parametrize("columns", [1, 7])
def test_a_long_sum_of_any_length_is_cut_into_parts(columns: int) -> None:
    for n in (60_000, 120_001, 200_000, 1, 4096, 90_007):
        x = data((n, columns))
        np.testing.assert_allclose(Tensor(x).sum().numpy(), x.sum(dtype=np.float64), rtol=1e-4, atol=1e-2)
    [general] = [g for g in general_graphs() if any(p.name.startswith("reduce") for p in g.compiled.programs)]
    *_, (_, parts), (_, joins) = general.compiled.programs[-1].phases
    assert parts > 1 == joins, "before them, sums with fewer parts"


@pytest.mark.only_on("CPU", "CLANG", reason="it reads the commands of native code")
def test_few_rows_and_many_are_cut_in_two_ways() -> None:
    weight = data((1024, 2048))                              # no cache near a core holds it
    right = Tensor(weight).realize()
    for n in (4, 5, 8, 17, 63, 64, 65, 130):
        x = data((n, 1024))
        np.testing.assert_allclose((Tensor(x) @ right).numpy(), x @ weight, rtol=1e-3, atol=1e-3, err_msg=f"{n}")
    [general] = general_graphs()
    info = general.compiled.programs[0].info
    by_phase = {cut.phase: (cut.at(5), cut.at(64), cut.at(65)) for cut in info.by_value}
    assert len(by_phase) == len(info.phases), "each phase has as many tasks as the value gives it"
    tasks = [by_phase[phase] for phase in sorted(by_phase)]
    assert tasks[0][0] > 0 == tasks[0][1] == tasks[0][2], "few rows have tiles of their own"
    assert tasks[1][1] > 0 == tasks[1][2] and tasks[-1][1] == 0 < tasks[-1][2], "one packs the weight, and one does not"


PRODUCTS_OF_ROWS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (lambda x, w: x @ w, (70, 50)),
    "one column more than a vector": (lambda x, w: (x @ w).relu(), (33, 17)),
    "transposed weight": (lambda x, w: x @ w.T, (50, 70)),
    "computed rows": (lambda x, w: (x * 2 + 1) @ w, (70, 50)),
    "long epilogue": (lambda x, w: (x @ w).gelu(), (70, 50)),
    "long sum": (lambda x, w: x @ w, (2500, 40)),
    "a weight larger than a cache": (lambda x, w: x @ w, (600, 1100)),
    "batch": (lambda x, w: Tensor.stack(x, x + 1, x * 2).realize() @ w, (70, 50)),
}


def check_product(program: Any, x: np.ndarray, other: np.ndarray, rtol: float) -> None:
    """The result is that of plain loops for this size, and has the same bits on one thread and on three."""
    found = []
    for threads in (1, 3):
        with Context(THREADS=threads):
            found.append(program(Tensor(x), Tensor(other)).numpy())
    with Context(NOOPT=1, DYNAMIC=0):
        wanted = program(Tensor(x), Tensor(other)).numpy()
    np.testing.assert_allclose(found[0], wanted, rtol=rtol, atol=1e-3, err_msg=f"{x.shape}")
    np.testing.assert_array_equal(*found, err_msg=f"{x.shape}")


@pytest.mark.parametrize("name", PRODUCTS_OF_ROWS)
def test_products_of_any_number_of_rows(name: str) -> None:
    """Tiles of every height, and both ways to cut; the same bits on one thread and on three."""
    program, shape = PRODUCTS_OF_ROWS[name]
    weight = data(shape)
    depth = shape[1] if name == "transposed weight" else shape[0]
    for n in (3, 4, 5, *range(2, 20), 33, 63, 64, 65, 70, 79, 130, 257):
        x = data((n, depth))
        check_product(program, x, weight, rtol=1e-4)
    assert general_graphs()


SUMS: dict[str, tuple[Any, tuple[int, int]]] = {
    "gradient of a weight": (lambda x, g: x.T @ g, (70, 50)),
    "of a weight that leaves the caches": (lambda x, g: x.T @ g, (300, 520)),
    "along both factors": (lambda x, g: x.T.contiguous().realize() @ g.T.contiguous().realize().T, (33, 40)),
    "of computed factors": (lambda x, g: (x * 2 + 1).T @ g.relu(), (70, 50)),
    "and an epilogue": (lambda x, g: (x.T @ g).gelu() + 1, (17, 33)),
}


@pytest.mark.parametrize("name", SUMS)
def test_products_that_sum_to_any_length(name: str) -> None:
    """Factors are packed as far as the sum goes; the same bits on one thread and on three."""
    program, (rows, columns) = SUMS[name]
    for n in (30, 40, 50, 2, 3, 8, 15, 16, 17, 64, 101, 300, 1500):
        x, g = data((n, rows)), data((n, columns))
        check_product(program, x, g, rtol=1e-3)
    assert general_graphs()


@pytest.mark.parametrize("threads", [1, 2])
def test_timed_runs_of_other_sizes_are_right(threads: int) -> None:
    """A stopwatch is made once, for all sizes."""
    weight = data((64, 96))
    with Context(THREADS=threads), observed_by(Observer()):
        for n in (3, 4, 5, 90, 6, 40, 200):
            x = data((n, 64))
            np.testing.assert_allclose((Tensor(x) @ Tensor(weight)).numpy(), x @ weight, rtol=1e-4, atol=1e-4)
    assert general_graphs()


def test_random_numbers_are_those_of_the_fixed_size() -> None:
    def drawn(dynamic: int) -> list[Any]:
        Tensor.manual_seed(3)
        with Context(DYNAMIC=dynamic):
            return [Tensor.rand(3, n).numpy() for n in (4, 5, 6, 7, 30)]

    for x, y in zip(drawn(1), drawn(0)):
        np.testing.assert_array_equal(x, y)


def test_a_cache_that_is_written_at_a_moving_place() -> None:
    cache, copy = Tensor.zeros(1, 64, 4).contiguous().realize(), np.zeros((1, 64, 4), np.float32)
    total = 0
    for n in range(40):
        row = data((1, 1, 4))
        cache[:, n:n + 1] = Tensor(row)
        copy[:, n:n + 1] = row
        count, got = compiled_by(lambda: cache[:, :n + 1].softmax(1).sum(1).numpy())  # noqa: B023 - called at once
        total += count
        exps = np.exp(copy[:, :n + 1] - copy[:, :n + 1].max(1, keepdims=True))
        np.testing.assert_allclose(got, (exps / exps.sum(1, keepdims=True)).sum(1), rtol=1e-4)
    assert total <= 12


def test_a_model_writes_tokens_as_without() -> None:
    class Model:
        def __init__(self) -> None:
            self.words, self.places = nn.Embedding(17, 8), nn.Embedding(64, 8)
            self.inner, self.out = nn.Linear(8, 24), nn.Linear(8, 17)

        def __call__(self, tokens: Tensor) -> Tensor:
            n = tokens.shape[1]
            x = self.words(tokens) + self.places(Tensor.arange(n))
            q, k, v = self.inner(x.layernorm()).chunk(3, dim=-1)
            mask = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
            x = x + mask.where(q @ k.transpose(1, 2), -float("inf")).softmax(-1) @ v
            return self.out(x[:, -1])

    Tensor.manual_seed(1)
    model = Model()

    def generate() -> list[int]:
        tokens = Tensor([[3, 5]], dtype="int32")
        for _ in range(10):
            following = (model(tokens) * 5).argmax(-1, keepdim=True).cast("int32")
            tokens = tokens.cat(following, dim=1).realize()
        return tokens.tolist()[0]

    count, dynamic = compiled_by(generate)
    with Context(DYNAMIC=0):
        fixed = generate()
    assert dynamic == fixed and len(set(fixed)) > 2
    assert count <= 4


def test_few_sizes_under_the_jit_and_variables_of_the_user_need_no_other_kernels() -> None:
    @TinyJit
    def twice(x: Tensor) -> Tensor:
        return (x * 2).realize()

    for _ in range(3):
        for n in (3, 30, 12):
            x = Tensor(data((n, 2))).realize()
            np.testing.assert_array_equal(twice(x).numpy(), x.numpy() * 2)
    assert not general_graphs()
    rows, v = Tensor(data((64, 3))).realize(), Variable("v", 1, 64)
    count, _ = compiled_by(lambda: [(rows[:v.bind(n)] * 2).sum(0).numpy() for n in (3, 4, 5, 6)])
    assert count == 1 and not general_graphs()


def test_check_compares_these_kernels_too() -> None:
    with Context(CHECK=1):
        for n in (3, 4, 5, 18):
            attention(Tensor(data((2, n, 8)))).numpy()
    assert general_graphs()


def test_check_compares_the_kernels_of_recurrences_of_any_length() -> None:
    program, shape = PROGRAMS["gradients of an LSTM"]
    with Context(CHECK=1):
        for n in (3, 4, 5, 7):
            program(Tensor(data(shape(n)))).numpy()
    assert general_graphs()


def test_a_jitted_recurrent_layer_is_right_at_every_length() -> None:
    layer = nn.LSTM(8, 12)
    jitted = TinyJit(lambda x: layer(x)[0].realize())
    for n in (3, 9, 4, 3, 9, 7, 3, 9, 6, 2, 5, 3):
        x = data((n, 2, 8))
        np.testing.assert_allclose(jitted(Tensor(x)).numpy(), layer(Tensor(x))[0].numpy(), rtol=1e-4, atol=1e-6)


def test_memory_is_as_large_as_the_size() -> None:
    for n in (3, 4, 5):
        (Tensor(data((n, n))) + 1).numpy()
    [general] = general_graphs()
    assert general.compiled.memory_for((10,)).results == 400
    assert general.compiled.memory.results == 4 * general.symbols[0].high ** 2, "without a value, as much as it can be"
    assert (Tensor(data((10, 10))) + 1).realize().uop.base.arg.nbytes == 400


def test_a_scatter_whose_rows_are_looked_up_with_a_changing_number_of_columns() -> None:
    """The gradient of `repeat_interleave` by a vector: past the last column no lane stores, all read the same row."""
    for rows in (2, 3, 4, 5, 6, 20, 7):
        columns = rows + 1
        values, times = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns), np.arange(columns) * 7 % 4
        x = Tensor(values, requires_grad=True)
        x.repeat_interleave(Tensor(times), 1).square().sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), 2 * values * times)


def test_formulas_fit_the_graph_that_they_are_for_when_its_sizes_were_seen_before():
    """Its schedule may have been dropped from the cache meanwhile: other sizes were seen since."""
    def graph(rows, first):
        x = Tensor(np.zeros((rows, 3), np.float32)).realize()
        return normalize([(x + 1)[first:first + 1].uop])

    family, graphs = SizeFamily(), [graph(*sizes) for sizes in ((2, 1), (5, 0), (2, 0), (3, 0), (2, 1))]
    for normal in graphs:
        family.see(normal, [split(row) for row in normal.key])
    sizes = [n for row in graphs[-1].key for n in split(row).sizes]
    for found in family.formulas(graphs[-1]):
        assert [f.at([sizes[base] for base in found.bases]) for f in found.formulas] == sizes
    assert len(family.seen) == 4


TWO_SIZES: dict[str, tuple[Callable[[int, int], list[tuple[int, ...]]], Callable[..., Tensor]]] = {
    "a layer": (lambda b, n: [(b, n, 128), (128, 256)], lambda x, w: x @ w),
    "a layer of many columns": (lambda b, n: [(b, n, 24), (24, 3000)], lambda x, w: x.relu() @ w),
    "scores": (lambda b, n: [(b, 4, n, 32), (b, 4, n, 32)], lambda q, k: q @ k.transpose(-2, -1)),
    "attention": (lambda b, n: [(b, 4, n, 32)] * 3, lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v)}


@pytest.mark.only_on("CPU", "CLANG", reason="it counts the memory of these")
@pytest.mark.parametrize("name", TWO_SIZES)
def test_kernels_for_two_sizes_take_no_memory_for_all_that_these_may_be(name: str) -> None:
    """A factor was packed for the greatest number of matrices of the greatest length: 512 MiB for a layer, 36 TiB for
    attention, which was an error."""
    shapes, program = TWO_SIZES[name]
    used = Device[Device.DEFAULT].memory.stats().live // (1 << 20)
    with Context(MEMORY_MB=used + 24):
        for b, n in ((3, 20), (5, 41), (2, 63), (7, 34), (4, 85), (6, 19), (1, 70)):
            given = [data(shape) for shape in shapes(b, n)]
            got = program(*map(Tensor, given)).numpy()
            with Context(DYNAMIC=0):
                np.testing.assert_allclose(got, program(*map(Tensor, given)).numpy(), rtol=1e-3, atol=1e-3)
    assert general_graphs()
