"""Sizes that change become a variable by themselves: results, how often is compiled, and the guard."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, TinyJit, Variable, nn
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import memory_size, replaced
from glassgrad.compiler.lower.lower import lower
from glassgrad.engine import realize as engine
from glassgrad.engine.changing_sizes import size_families as families
from glassgrad.engine.changing_sizes.general_graph import fit
from glassgrad.engine.changing_sizes.size_families import SEEN, SEEN_GROWING, GeneralGraph, fast_up_to
from glassgrad.engine.observer import Observer, observed_by
from glassgrad.runtime.devices import Device

RANDOM = np.random.default_rng(5)
WEIGHT = RANDOM.standard_normal((8, 12)).astype(np.float32)
IMAGE = RANDOM.standard_normal((3, 2, 3, 3)).astype(np.float32)
LENGTHS = (3, 4, 6, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 131)

Program = tuple[Callable[[Tensor], Tensor], Callable[[int], tuple[int, ...]]]


def attention(x: Tensor) -> Tensor:
    places = Tensor.arange(x.shape[1])
    scores = (places.reshape(1, -1) <= places.reshape(-1, 1)).where(x @ x.transpose(1, 2) / 8 ** 0.5, -float("inf"))
    return scores.softmax(-1) @ x


QUERIES, KEYS = (RANDOM.standard_normal((2, n, 8)).astype(np.float32) for n in (40, 130))


def heads(x: Tensor) -> Tensor:
    batch, length, width = x.shape
    q, k, v = (part.reshape(batch, length, 2, width // 6).permute(0, 2, 1, 3) for part in x.chunk(3, dim=-1))
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
    return mixed.permute(0, 2, 1, 3).reshape(batch, length, width // 3)


def among(keys: Tensor) -> Tensor:
    return Tensor(QUERIES).scaled_dot_product_attention(keys, keys)


PROGRAMS: dict[str, Program] = {
    "elementwise": (lambda x: (x * 2 + 1).relu(), lambda n: (n, 6)),
    "elementwise along rows": (lambda x: (x * 2 + 1).relu(), lambda n: (6, n)),
    "product": (lambda x: (x @ Tensor(WEIGHT)).relu(), lambda n: (n, 8)),
    "product of a batch": (lambda x: x @ Tensor(WEIGHT), lambda n: (3, n, 8)),
    "sum that ends at the size": (lambda x: Tensor(WEIGHT).T[:, :1].expand(12, x.shape[0]) @ x, lambda n: (n, 6)),
    "square": (lambda x: x @ x, lambda n: (n, n)),
    "attention with a mask": (attention, lambda n: (2, n, 8)),
    "attention of heads": (heads, lambda n: (1, n, 48)),
    "keys that change": (among, lambda n: (2, n, 8)),
    "queries that change": (lambda x: x.scaled_dot_product_attention(Tensor(KEYS), Tensor(KEYS)), lambda n: (2, n, 8)),
    "a batch of attention": (lambda x: x.scaled_dot_product_attention(x, x), lambda n: (n, 34, 8)),
    "softmax": (lambda x: x.softmax(-1), lambda n: (5, n)),
    "mean": (lambda x: x.mean(0), lambda n: (n, 6)),
    "std": (lambda x: x.std(1), lambda n: (4, n)),
    "masked mean": (lambda x: ((x > 0) * x).sum(1) / (x > 0).sum(1).maximum(1), lambda n: (4, n)),
    "layer norm": (lambda x: x.layernorm(), lambda n: (n, 8)),
    "cat": (lambda x: x.cat(x[:, :1] * 2, dim=1), lambda n: (3, n)),
    "last row": (lambda x: x[-1] * 2, lambda n: (n, 3)),
    "running sum": (lambda x: x.cumsum(1), lambda n: (3, n)),
    "argmax": (lambda x: x.argmax(1), lambda n: (3, n)),
    "lower triangle": (lambda x: x.tril(), lambda n: (n, n)),
    "one axis of all": (lambda x: x.permute(1, 0).reshape(-1) * 2, lambda n: (n, 3)),
    "all axes of n by n": (lambda x: x.reshape(-1) * 2, lambda n: (n, n)),
    "flip and pad": (lambda x: x.flip(1).pad(((0, 0), (2, 1))), lambda n: (4, n)),
    "convolution": (lambda x: x.conv2d(Tensor(IMAGE), padding=1), lambda n: (1, 2, n, 8)),
    "gradient": (lambda x: _gradient(x), lambda n: (n, 8)),
}


def _gradient(x: Tensor) -> Tensor:
    x = x.detach()
    x.requires_grad = True
    (x @ Tensor(WEIGHT)).tanh().sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    """Each test begins without schedules."""
    with engine.forgotten_schedules():
        yield


def data(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def general_graphs() -> list[GeneralGraph]:
    return [general for found in engine._sizes._general.values() for general in found]


def compiled_by(work: Callable[[], Any]) -> tuple[int, Any]:
    before = GlobalCounters.schedules
    result = work()
    return GlobalCounters.schedules - before, result


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


ATTENTION = ("attention with a mask", "attention of heads", "keys that change", "queries that change",
             "a batch of attention")


@pytest.mark.parametrize("name", ["product of a batch", "square", *ATTENTION, "softmax", "convolution", "cat",
                                  "gradient"])
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
    assert len(names) == 1 and names[0].startswith("online_")


@pytest.mark.only_on("CPU", "CLANG", reason="groups of threads have no tiles for a number that is not known")
def test_attention_in_one_pass_serves_long_texts_too() -> None:
    for n in (1200, 1201):
        x = Tensor(data((1, n, 64))).realize()
        x.scaled_dot_product_attention(x, x, is_causal=True).realize()
    [general] = general_graphs()
    assert general.fast_to == general.symbol.high > 4000


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


def test_dynamic_0_compiles_every_size() -> None:
    with Context(DYNAMIC=0):
        count, _ = compiled_by(lambda: [(Tensor(data((n, 3))) + 1).numpy() for n in range(2, 9)])
    assert count == 7 and not general_graphs()


def test_two_sizes_stay_as_they_are() -> None:
    """A batch and its rest are no reason for a variable."""
    count, _ = compiled_by(lambda: [(Tensor(data((n, 3))) + 1).numpy() for n in (64, 10, 64, 10)])
    assert count == 2 and not general_graphs()


def test_sizes_that_follow_no_formula_are_compiled_for_themselves() -> None:
    def halves(n: int) -> None:
        x = data((n, 3))
        got = (Tensor(x)[:n // 2] * 2).sum(0).cat(Tensor(x).sum(0)).numpy()
        np.testing.assert_allclose(got, np.concatenate([x[:n // 2].sum(0) * 2, x.sum(0)]), rtol=1e-4, atol=1e-4)

    for n in (4, 5, 6, 7, 9, 12, 13):
        halves(n)


def test_the_guard_takes_only_sizes_that_the_formulas_give() -> None:
    def joined(n: int, m: int) -> None:
        x, y = data((n, 4)), data((m, 4))
        np.testing.assert_array_equal(Tensor(x).cat(Tensor(y)).numpy(), np.concatenate([x, y]))

    for n in (3, 5, 8):
        joined(n, 2 * n)
    [general] = general_graphs()
    assert general.runs
    runs = dict(general.runs)
    joined(10, 19)                     # not twice as long
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


def test_longer_than_the_bound_is_compiled_once_more() -> None:
    sizes = (3, 4, 5, families.LEAST_HIGH + 1, families.LEAST_HIGH + 2)
    count, _ = compiled_by(lambda: [(Tensor(data((n, 2))) + 1).numpy() for n in sizes])
    assert count == 3, "one size, all up to the bound, all up to a higher one"


def test_a_size_that_comes_often_gets_its_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FIXED_AFTER", 3)
    for n in (3, 4, 5):
        (Tensor(data((n, 2))) + 1).numpy()
    x = data((7, 2))
    counts = [compiled_by(lambda: (Tensor(x) + 1).numpy())[0] for _ in range(6)]
    assert counts == [0, 0, 0, 1, 0, 0]


def test_large_products_that_are_slower_with_a_variable_get_their_own_kernels() -> None:
    for n in (40, 48, 56):
        (Tensor(data((n, n))) @ Tensor(data((n, n)))).numpy()
    [general] = general_graphs()
    assert 256 <= general.fast_to < 512
    x = data((512, 512))
    count, got = compiled_by(lambda: (Tensor(x) @ Tensor(x)).numpy())
    assert count == 1
    np.testing.assert_allclose(got, x @ x, rtol=1e-3, atol=1e-3)


def random_steps(random: Random) -> list[Callable[[Tensor], Tensor]]:
    """A program over tensors of two or three axes of any sizes from 2 on; it keeps the number of axes."""
    def mixed(x: Tensor) -> Tensor:
        return x @ (Tensor.arange(x.shape[-1] * 3).reshape(-1, 3) % 5 * 0.1)

    def masked(x: Tensor) -> Tensor:
        return (Tensor.arange(x.shape[-1]) * 2 < x.shape[-1]).where(x, -1.0)

    steps: list[Callable[[Tensor, int], Tensor]] = [
        lambda x, axis: (x * 0.75 - 0.5).tanh(), lambda x, axis: x.relu() + 1 / x.shape[axis],
        lambda x, axis: x - x.mean(axis, keepdim=True), lambda x, axis: x.softmax(axis),
        lambda x, axis: x / (1 + x.abs().sum(axis, keepdim=True)), lambda x, axis: x.cumsum(axis) * 0.1,
        lambda x, axis: x.flip(axis), lambda x, axis: x.transpose(-1, -2), lambda x, axis: x.cat(x * 2, dim=axis),
        lambda x, axis: x[..., 1:] + x[..., :-1], lambda x, axis: x.pad((1, 2)), lambda x, axis: mixed(x),
        lambda x, axis: masked(x), lambda x, axis: (x @ x.transpose(-1, -2)) * 0.1,
        lambda x, axis: x.maximum(x.max(axis, keepdim=True) * 0.5),
        lambda x, axis: x[..., -2:] * x.sum(-1, keepdim=True)]
    return [partial(random.choice(steps), axis=random.choice((-1, -2))) for _ in range(random.randint(2, 5))]


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_are_right_at_every_length(seed: int) -> None:
    random = Random(seed)
    steps = random_steps(random)
    shape = random.choice([lambda n: (n, 6), lambda n: (4, n), lambda n: (2, n, 5), lambda n: (n, n)])
    first = random.randint(4, 9)
    lengths = [first, first + 1] if seed % 2 else [first, first + 3, first + 4]
    for n in [*lengths, *[random.randint(4, 80) for _ in range(4)]]:
        x = data(shape(n))

        def result() -> np.ndarray[Any, Any]:
            y = Tensor(x)  # noqa: B023 - called at once
            for step in steps:
                y = step(y)
            return y.numpy()

        got = result()
        with Context(DYNAMIC=0):
            want = result()
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * abs(want).max(), err_msg=f"{n}, seed {seed}")
    assert general_graphs()


@pytest.mark.only_on("CPU", "CLANG", reason="it reads the commands of native code")
def test_a_launch_runs_only_the_tasks_that_the_size_gives_work_to() -> None:
    weight = Tensor(data((64, 96))).realize()

    def tasks(n: int) -> int:
        (Tensor(data((n, 64))).realize() @ weight).realize()
        return sum(command.tasks for general in general_graphs() for segment in general.compiled.segments
                   for command in segment.plan._commands)

    tasks(4)
    few, some, many, again = tasks(5), tasks(40), tasks(800), tasks(40)
    whole = sum(count for general in general_graphs() for p in general.compiled.programs for _, count in p.phases)
    assert max(few, some) < 16 and some < many < whole and again == some


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


def test_the_jit_and_variables_of_the_user_are_as_before() -> None:
    @TinyJit
    def twice(x: Tensor) -> Tensor:
        return (x * 2).realize()

    for _ in range(3):
        for n in (3, 4, 5, 6):
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


def test_debug_says_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=1):
        for n in (3, 4, 5):
            (Tensor(data((n, 2))) + 1).numpy()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DYNAMIC")]
    assert len(lines) == 1 and "kernels for all sizes from 2 to 1024, made at" in lines[0] and __file__ in lines[0]


def test_memory_is_as_large_as_the_size() -> None:
    for n in (3, 4, 5):
        (Tensor(data((n, n))) + 1).numpy()
    [general] = general_graphs()
    assert general.compiled.memory_for((10,)).results == 400
    assert general.compiled.memory.results == 4 * general.symbol.high ** 2, "without a value, as much as it can be"
    assert (Tensor(data((10, 10))) + 1).realize().uop.base.arg.nbytes == 400


@pytest.mark.parametrize("seen, found", [
    ([(4, 8, 3), (5, 10, 3), (9, 18, 3)], [(0, 1, 0), (0, 2, 0), (3, 0, 0)]),
    ([(4, 16), (5, 25), (9, 81)], [(0, 1, 0), (0, 0, 1)]),
    ([(4, 20), (5, 27), (9, 71)], None),
    ([(3, 1), (4, 2), (5, 2)], None),
    ([(4, 9, 16, 3, 60), (5, 10, 25, 3, 70)], [(0, 1, 0), (5, 1, 0), (0, 0, 1), (3, 0, 0), (20, 10, 0)]),
    ([(4, 9), (6, 12)], None),
    ([(4, 4), (4, 4)], None),
])
def test_sizes_as_polynomials(seen: list[tuple[int, ...]], found: Any) -> None:
    result = fit(seen)
    assert (None if result is None else [tuple(p) for p in result[1]]) == found


def test_observers_are_told_of_these_schedules() -> None:
    """The profiler and the visualizer read a schedule's memory and its kernels, which have no value of their own."""
    seen: list[Any] = []

    class Notes(Observer):
        def prepared(self, normal: Any, ready: Any, times: tuple[int, int, int]) -> None:
            seen.append((ready.memory.peak, len(ready.arenas), [item.lines for item in ready.items]))

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
                                         ("staged(rows=2)", 1 << 26), ("held(rows=4)", 1 << 28),
                                         ("contract(rows=6)", None)])
def test_how_large_a_product_may_be_depends_on_its_tiles(move: str, limit: int | None) -> None:
    n = Variable("n", 1, 1 << 16).bind(5)
    x, w = (Tensor.zeros(*shape).contiguous().realize() for shape in ((1 << 16, 64), (64, 64)))
    items = (x[:n] @ w).schedule()
    [symbol] = {s for node in items[0].ast.toposort() for s in node.symbols}
    found = fast_up_to(items, [SimpleNamespace(moves=[move])], symbol)
    assert found == (symbol.high if limit is None else limit // 64 ** 2)
