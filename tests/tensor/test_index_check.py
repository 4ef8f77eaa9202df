"""Tensor indices out of range are named, with the user's line; those that cannot be cost nothing."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from benchmarks.unjitted import bytecodes
from glassgrad import Context, GlobalCounters, IndexRangeError, Tensor, Variable, checkpoint, nn, vmap
from glassgrad.compiler.graph import toposort
from glassgrad.jit import TinyJit
from glassgrad.tensor import index_range_check, index_value_range
from glassgrad.tensor.index_value_range import limits

UNKNOWN = Tensor([7, 7])           # x ^ UNKNOWN ^ 7 is x, but nobody sees that from the formula


def unknown(rows):
    return (Tensor(rows) ^ UNKNOWN[0]) ^ 7


MATRIX = [[0, 1], [3, 1], [4, 0]]          # as an index of several axes


@pytest.mark.parametrize("use", [
    lambda x, i: x.gather(1, i), lambda x, i: x.scatter(1, i, 1.0), lambda x, i: x.scatter(1, i, 2.0, "multiply"),
    lambda x, i: x.scatter_add(1, i, Tensor.ones(3, 2)), lambda x, i: x.take_along_dim(i, 1),
    *[lambda x, i, how=how: x.scatter_reduce(1, i, Tensor.ones(3, 2), how)
      for how in ("sum", "prod", "mean", "amax", "amin")],
    lambda x, i: x.scatter_reduce(1, i, Tensor.ones(3, 2), "amax", include_self=False),
    lambda x, i: x[0].put(i, Tensor.ones(3, 2)).reshape(1, 4), lambda x, i: x[0].take(i),
    lambda x, i: x[0].index_put((i,), Tensor(1.0)), lambda x, i: x[0][i],
    lambda x, i: Tensor.ones(3, 1, 2).max_unpool2d(i.reshape(3, 1, 2), kernel_size=(2,)),
])
@pytest.mark.parametrize("jitted", [False, True])
def test_indices_of_several_axes_are_looked_at(use, jitted):
    x = Tensor(np.arange(12, dtype="float32").reshape(3, 4)).realize()
    call = TinyJit(lambda x, i: use(x, i ^ 0).realize()) if jitted else lambda x, i: use(x, (i ^ UNKNOWN[0]) ^ 7)
    for good in ([[0, 1], [3, 1], [2, 0]], [[0, 1], [3, 1], [1, 0]], [[0, 1], [3, 1], [0, 0]]):
        call(x, Tensor(good).realize()).numpy()
    with pytest.raises(IndexRangeError, match=r"index 4 on axis [01] of .*, at \[2, (0, )?0\] of the index") as error:
        call(x, Tensor(MATRIX).realize()).numpy()
    assert "test_index_check.py" in str(error.value)


MINUS = {           # as in PyTorch: who takes -1 for the last place, and who takes it for a mistake
    "getitem": lambda T, x, i: x[i], "take": lambda T, x, i: x.take(i), "put": lambda T, x, i: x.put(i, T.ones(2)),
    "take_along_dim": lambda T, x, i: x.take_along_dim(i.reshape(1, 2), 1),
    "take_along_dim, flat": lambda T, x, i: x.take_along_dim(i),
    "index_put": lambda T, x, i: x.index_put((i,), T.ones(())), "index_fill": lambda T, x, i: x.index_fill(0, i, 9.0),
    "gather": lambda T, x, i: x.gather(1, i.reshape(1, 2)),
    "scatter": lambda T, x, i: x.scatter(1, i.reshape(1, 2), 9.0),
    "multiply": lambda T, x, i: x.scatter(1, i.reshape(1, 2), 9.0, reduce="multiply"),
    "scatter_add": lambda T, x, i: x.scatter_add(1, i.reshape(1, 2), T.ones(1, 2)),
    "scatter_reduce": lambda T, x, i: x.scatter_reduce(1, i.reshape(1, 2), T.ones(1, 2), "amin"),
    "index_select": lambda T, x, i: x.index_select(1, i), "index_add": lambda T, x, i: x.index_add(0, i, T.ones(2, 4)),
    "index_copy": lambda T, x, i: x.index_copy(0, i, T.ones(2, 4)),
}


@pytest.mark.parametrize("name", MINUS)
def test_minus_one_is_what_it_is_in_pytorch(name):
    torch = pytest.importorskip("torch")
    x = np.arange(12, dtype="float32").reshape(3, 4)
    for index in ([0, 1], [0, -1], [-4, 0], [-3, 2]):
        try:
            expected = MINUS[name](torch, torch.tensor(x), torch.tensor(index)).tolist()
        except (IndexError, RuntimeError):
            expected = None
        for i in (Tensor(index), unknown(index)):
            if expected is None:
                with pytest.raises(IndexRangeError):
                    MINUS[name](Tensor, Tensor(x), i).tolist()
            else:
                assert MINUS[name](Tensor, Tensor(x), i).tolist() == expected


@pytest.mark.parametrize("index", [lambda: Tensor([0, -1]), lambda: unknown([0, -1])], ids=["stored", "computed"])
def test_a_table_has_no_row_minus_one(index):
    with pytest.raises(IndexRangeError) as error:
        nn.Embedding(5, 2)(index()).numpy()
    assert str(error.value).partition("\n  at: ")[0] == """\
the index is out of bounds
  given:    index -1 on axis 0 of (5, 2), at [1] of the index tensor
  expected: an index from 0 to 4; only x[index], take and put count from the end
  fix:      check how the index is computed; CHECK_INDEX=0 clamps it silently"""
    with pytest.raises(IndexRangeError, match="an index from 0 to 4\n"):
        nn.Embedding(5, 2)(Tensor([7])).numpy()
    assert nn.Embedding(5, 2)(Tensor([0, 4]).cast("uint8")).shape == (2, 2)


def test_one_index_into_two_tensors_is_looked_at_for_both():
    i = Tensor([5, 1]).cast("uint64") * 1
    long, short = Tensor.arange(10)[i], Tensor.arange(3)[i]
    assert long.tolist() == [5, 1]
    with pytest.raises(IndexRangeError, match=r"index 5 on axis 0 of \(3,\), at \[0\]"):
        short.tolist()
    target = unknown([0, 2])
    wide, narrow = Tensor.zeros(2, 3).cross_entropy(target), Tensor.zeros(2, 2).cross_entropy(target)
    assert abs(wide.item() - np.log(3)) < 1e-6
    with pytest.raises(IndexRangeError, match="class 2, at .1. of the targets"):
        narrow.item()


@pytest.mark.parametrize("use, what", [
    (lambda x, i: vmap(lambda row: row[i])(x), "index 4 on axis 0 of (4,), at [0, 1]"),
    (lambda x, i: vmap(lambda one: x[0][one])(i), "index 4 on axis 0 of (4,), at [1]"),
    (lambda x, i: vmap(lambda row, one: row[one])(x, i), "index 4 on axis 0 of (4,), at [1]"),
    (lambda x, i: vmap(lambda row, one: row.reshape(1, 4)[one * 0, one])(x, i), "index 4 on axis 1 of (1, 4), at [1]"),
    (lambda x, i: vmap(lambda row: row.scatter(0, i, 1.0))(x), "index 4 on axis 0 of (4,), at [0, 1]"),
    (lambda x, i: vmap(lambda row, one: row.scatter(0, one.reshape(1), 1.0))(x, i),
     "index 4 on axis 0 of (4,), at [1, 0]"),
    (lambda x, i: vmap(lambda row, one: row.scatter(0, one.reshape(1), 1.0, "multiply"))(x, i),
     "index 4 on axis 0 of (4,), at [1, 0]"),
    (lambda x, i: vmap(lambda row, one: row.cross_entropy(one))(x, i), "class 4, at [1] of the targets"),
    (lambda x, i: vmap(lambda row, one: row[one])(x, i).sum().gradient(x)[0], "index 4 on axis 0 of (4,), at [1]"),
    (lambda x, i: checkpoint(lambda x: x[0][i].exp(), x).sum().gradient(x)[0], "index 4 on axis 0 of (4,), at [1]"),
])
def test_indices_under_vmap_and_checkpoint(use, what):
    x = Tensor(np.arange(8, dtype="float32").reshape(2, 4)).realize()
    assert use(x, unknown([0, 3])).numpy().size
    with pytest.raises(IndexRangeError) as error:
        use(x, unknown([0, 4])).numpy()
    assert what in str(error.value) and "test_index_check.py" in str(error.value)


def test_vmap_writes_and_reads_what_each_example_would():
    x, i = Tensor(np.arange(8, dtype="float32").reshape(2, 4)).realize(), unknown([1, 4])
    with Context(CHECK_INDEX=0):
        for one in (lambda row, i: row.scatter(0, i.reshape(1), 9.0), lambda row, i: row.index_add(
                0, i.reshape(1), Tensor([5.0])), lambda row, i: row[i]):
            assert vmap(one)(x, i).tolist() == [one(x[k], i[k]).tolist() for k in range(2)]


def test_where_nobody_looks_a_place_outside_is_the_nearest():
    x = Tensor(np.arange(12, dtype="float32").reshape(3, 4))
    i, j = unknown([0, 5, 1]), unknown([1, 1, -9])
    with Context(CHECK_INDEX=0):
        assert x[i, j].tolist() == [1.0, 9.0, 4.0] and x[:, j].tolist() == x[:, Tensor([1, 1, 0])].tolist()
        assert x.gather(1, unknown([[9], [0], [-9]])).tolist() == [[3.0], [4.0], [8.0]]
        rows = x.scatter(1, unknown([[9], [0], [-9]]), -1.0).tolist()
        assert rows == [[0, 1, 2, -1], [-1, 5, 6, 7], [-1, 9, 10, 11]]


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_memory_that_others_write_to_is_looked_at_each_time():
    memory = np.zeros(5000, "int64")
    index, x = Tensor.from_numpy(memory), Tensor.arange(3)
    assert x[index].sum().item() == 0
    memory[7] = 3
    with pytest.raises(IndexRangeError, match=r"index 3 on axis 0 of \(3,\), at \[7\]"):
        x[index].sum().item()
    memory[7] = 2
    assert x[index].sum().item() == 2


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_a_longer_index_in_memory_costs_no_more_each_time():
    x = Tensor.arange(4096).reshape(64, 64)
    short, long = Tensor([1, 2, 3]).realize(), Tensor(list(range(64)) * 16).realize()
    for use in (lambda index: x[index], lambda index: x.index_select(0, index)):
        few, many = [(use(index), bytecodes(lambda use=use, index=index: use(index)))[1] for index in (short, long)]
        assert many < few + 100
    long.assign(long + 1)
    long.realize()
    with pytest.raises(IndexRangeError, match=r"index 64 on axis 0 of \(64, 64\), at \[63\]"):
        x[long]
    with pytest.raises(IndexRangeError, match=r"index -1 on axis 1 of \(64, 64\), at \[0\]"):
        x.index_select(1, Tensor([-1, 2]).realize())


def test_plain_index_tensor():
    with pytest.raises(IndexRangeError, match=r"index 7 on axis 0 of \(3,\)") as error:
        Tensor([1, 2, 3])[Tensor([7])].tolist()
    assert "test_index_check.py" in str(error.value)
    assert Tensor([1, 2, 3])[Tensor([-1, 0])].tolist() == [3, 1]


def test_computed_index_is_named_when_a_result_is_read():
    index = Tensor([0, 1, 2, 5, 9]) + 1
    picked = Tensor(np.arange(40).reshape(10, 4))[:, Tensor([0])][index]     # nothing runs yet
    with pytest.raises(IndexRangeError) as error:
        (picked * 2).numpy()
    text = str(error.value)
    assert "index 10 on axis 0 of (10, 1), at [4] of the index tensor" in text
    assert "an index from -10 to 9" in text and "test_index_check.py" in text and "CHECK_INDEX=0" in text


def test_large_index_in_memory():
    index = np.zeros(5000, "int64")
    index[4321] = -11
    with pytest.raises(IndexRangeError, match=r"index -11 on axis 0 of \(10,\), at \[4321\]"):
        Tensor.arange(10)[Tensor(index)].sum().item()


def test_of_several_indices_the_wrong_one_is_named():
    x, i, j = Tensor.zeros(3, 4), Tensor([0, 1]) * 1, Tensor([3, 3]) + 1
    with pytest.raises(IndexRangeError, match=r"index 4 on axis 1 of \(3, 4\), at \[0\]"):
        x[i, j].numpy()


def test_gradient_alone_is_checked():
    x = Tensor.zeros(3)
    gradient = x[Tensor([1, 2]) + 1].sum().gradient(x)[0]
    with pytest.raises(IndexRangeError, match="index 3 on axis 0"):
        gradient.numpy()


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x.scatter(0, i, 1.0),
        lambda x, i: x.index_add(0, i, Tensor([1.0, 1.0])),
        lambda x, i: x.put(i, Tensor([1.0, 1.0])),
        lambda x, i: x.gather(0, i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.take(i),
        lambda x, i: x.scatter_reduce(0, i, Tensor([1.0, 1.0]), "sum"),
        lambda x, i: x.index_put((i,), Tensor([1.0, 1.0])),
    ],
)
def test_everything_that_takes_an_index(write):
    x = Tensor([1.0, 2.0, 3.0])
    with pytest.raises(IndexRangeError, match="index 3 on axis 0"):
        write(x, Tensor([0, 2]) + 1).numpy()
    assert write(x, Tensor([0, 1]) + 1).numpy().size


def test_an_assignment_checks_its_index():
    x = Tensor([1, 2, 3])
    x[Tensor([1, 2]) + 1] = 9
    with pytest.raises(IndexRangeError, match="index 3 on axis 0"):
        x.tolist()


def test_switched_off_it_clamps():
    with Context(CHECK_INDEX=0):
        assert Tensor([1, 2, 3])[Tensor([0, 6]) + 1].tolist() == [2, 3]


def test_a_good_index_is_checked_once():
    index = Tensor([0.0, 1.0]).int() + 1
    x = Tensor([1, 2, 3]).realize()
    assert x[index].tolist() == [2, 3]
    GlobalCounters.reset()
    assert (x[index] * 2).tolist() == [4, 6]
    assert GlobalCounters.kernel_count == 1


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_what_cannot_be_wrong_costs_nothing():
    x = Tensor([1, 2, 3]).realize()
    for index in (
        Tensor.randint(5, high=3),
        Tensor.arange(3),
        Tensor.arange(9) % 3,
        Tensor([0, 1, 2]),
        Tensor([5.0, 9.0]).int().minimum(2).maximum(0),
    ):
        GlobalCounters.reset()
        x[index].realize()
        assert GlobalCounters.kernel_count == 1
    GlobalCounters.reset()
    before = len(index_range_check.watched_nodes)
    Tensor([3.0, 1.0, 2.0]).sort()[0].realize()
    assert len(index_range_check.watched_nodes) <= before        # fewer, where a node of before has died


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_limits_bound_the_values_of_a_node():
    assert limits(Tensor.arange(10).uop) == (0, 9)
    assert limits((Tensor.arange(10) * 2 - 3).uop) == (-3, 15)
    assert limits(Tensor.randint(4, low=-2, high=7).uop) == (-2, 6)
    assert limits((Tensor([1.0]).int() % 5).uop) == (0, 4)
    assert limits(Tensor([1, 2]).uop) == (1, 2)
    assert limits(Tensor([1.0]).int().uop) == (-1 << 31, (1 << 31) - 1)               # those of its type
    assert limits((Tensor([1, 2]) > 0).int().uop) == (0, 1)
    assert limits((Tensor.arange(10, dtype="int8") * 100).uop) == (-128, 127)      # wraps
    assert limits((Tensor.arange(10) // 3).uop) == (0, 3)


def test_traced_calls_are_checked():
    @TinyJit
    def pick(x, i):
        return x[i].realize()

    with pytest.raises(IndexRangeError):
        pick(Tensor([1, 2, 3]).realize(), Tensor([5]).realize())


def test_an_empty_index_is_in_range():
    assert Tensor([1, 2, 3])[Tensor([], dtype="int32") + 1].tolist() == []


# -- inside a jit --------------------------------------------------------------------------------------------
def _told(call, *arguments):
    with pytest.raises(IndexRangeError) as error:
        result = call(*arguments)
        result.numpy()
    return str(error.value)


@pytest.mark.parametrize("function", [
    lambda x, i: x[i + 1],
    lambda x, i: x[(i + 1).realize()] * 2,                            # an index computed on the way
    lambda x, i: x.reshape(2, 3)[i // 3, i + 1],
    lambda x, i: x.scatter(0, i + 1, 1.0),
    lambda x, i: x[i + 1].sum().gradient(x)[0],
    lambda x, i: x[i * Tensor([1, 2, 1]) + 1],                        # plain data inside
], ids=["gather", "realized", "two axes", "scatter", "gradient", "data"])
def test_a_replay_says_what_the_function_itself_says(function):
    jitted = TinyJit(function)
    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).realize()
    good, bad = [Tensor([0, 1, 0]).realize(), Tensor([1, 0, 1]).realize()], Tensor([1, 7, 11]).realize()
    for call in range(6):
        assert (jitted(x, good[call % 2]).numpy() == function(x, good[call % 2]).numpy()).all()
    assert jitted.captured
    expected = _told(function, x, bad)
    assert "on axis" in expected and "test_index_check.py" in expected
    assert _told(jitted, x, bad) == expected
    assert (jitted(x, good[0]).numpy() == function(x, good[0]).numpy()).all()
    with Context(CHECK_INDEX=0):
        for _ in range(4):
            assert (jitted(x, bad).numpy() == function(x, bad).numpy()).all()
    assert _told(jitted, x, bad) == expected


def test_a_replay_looks_at_indices_it_finds_in_its_surroundings():
    index = Tensor([0, 1])
    pick = TinyJit(lambda x: x[index] * 2)
    for call in range(8):
        if call == 5:
            index.assign(Tensor([1, 4]))
            assert "index 4 on axis 0 of (3,), at [1] of the index tensor" in _told(pick, Tensor([1, 2, 3]))
            index.assign(Tensor([2, 0]))
        assert pick(Tensor([1, 2, 3])).tolist() == ([6, 2] if call >= 5 else [2, 4])


def test_a_replay_that_fails_changes_nothing():
    total = Tensor([0.0])

    @TinyJit
    def collect(x, i):
        total.assign(total + x[i].sum())
        return total.realize()

    x = Tensor([1.0, 2.0, 3.0]).realize()
    for _ in range(5):
        collect(x, Tensor([0, 1]))
    before = total.tolist()
    assert "index 3 on axis 0" in _told(collect, x, Tensor([0, 3]))
    assert total.tolist() == before == [15.0]
    collect(x, Tensor([2, 2]))
    assert total.tolist() == [21.0]


# -- indices computed with a variable ------------------------------------------------------------------------------
def test_an_index_computed_with_a_variable_is_checked() -> None:
    n = Variable("n", 1, 10)
    x = Tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    places = Tensor([0, 1])
    assert x[places + n.bind(6)].tolist() == [6.0, 7.0]
    for read in (lambda: x[places + n.bind(7)], lambda: x.gather(0, places + n.bind(7)),
                 lambda: _written(x, places + n.bind(7))):
        with pytest.raises(IndexRangeError, match=r"index 8 on axis 0 of \(8,\), at \[1\] of the index tensor"):
            read().tolist()
    with pytest.raises(IndexRangeError, match=r"index n = 9 on axis 0 of \(8,\)"):
        x[n.bind(9)]


def _written(x: Tensor, places: Tensor) -> Tensor:
    copy = x.clone()
    copy[places] = 5.0
    return copy


def test_a_replay_checks_an_index_computed_with_a_variable() -> None:
    n = Variable("n", 1, 10)
    x = Tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])

    @TinyJit
    def pick(x: Tensor, n: Variable) -> Tensor:
        return x[Tensor([0, 1]) + n] * 2

    assert [pick(x, n.bind(i)).tolist() for i in (1, 2, 3, 6)] == [[2.0 * i, 2.0 * i + 2] for i in (1, 2, 3, 6)]
    with pytest.raises(IndexRangeError, match=r"index 9 on axis 0 of \(8,\), at \[0\] of the index tensor"):
        pick(x, n.bind(9))
    assert pick(x, n.bind(2)).tolist() == [4.0, 6.0], "and goes on"


# -- classes that a loss is asked for ------------------------------------------------------------------------------
LOSSES = {"cross_entropy": lambda x, y: x.cross_entropy(y), "nll_loss": lambda x, y: x.log_softmax().nll_loss(y),
          "smoothed": lambda x, y: x.cross_entropy(y, label_smoothing=0.1),
          "sparse": lambda x, y: x.sparse_categorical_crossentropy(y, ignore_index=-100)}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [3, -1])
def test_a_target_that_is_no_class(loss: str, bad: int) -> None:
    """As in PyTorch; left alone it would count as a loss of 0, and training would only seem to go well."""
    x = Tensor(np.arange(12.0, dtype=np.float32).reshape(4, 3))
    with pytest.raises(IndexRangeError) as error:
        LOSSES[loss](x, Tensor([0, 1, bad, 0])).item()
    text, _, place = str(error.value).partition("\n  at: ")
    assert "test_index_check.py" in place and text == f"""\
a target names a class that the predictions do not have
  given:    class {bad}, at [2] of the targets; predictions (4, 3) with classes on axis 1
  expected: a class from 0 to 2, or ignore_index
  fix:      count classes from 0, and check the size of the last layer; CHECK_INDEX=0 gives such targets a loss of 0"""
    with pytest.raises(IndexRangeError, match="class 3, at"):
        LOSSES[loss](x, Tensor([0, 1, 2, 0]) + 1).item()
    assert LOSSES[loss](x, Tensor([0, 1, -100, 2])).item() > 0, "nothing is asked of what is ignored"
    with Context(CHECK_INDEX=0):
        assert LOSSES[loss](x, Tensor([0, 1, bad, 0])).item() > 0


def test_the_gradient_alone_finds_a_target_that_is_no_class() -> None:
    x = Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    x.cross_entropy(Tensor([0, 7])).backward()
    with pytest.raises(IndexRangeError, match="class 7, at"):
        x.grad.numpy()


def test_a_replay_finds_a_target_that_is_no_class() -> None:
    @TinyJit
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return x.cross_entropy(y)

    x = Tensor(np.ones((2, 3), np.float32))
    for targets in ([0, 1], [1, 2], [2, 2], [0, -100]):
        assert loss(x, Tensor(targets)).item() > 0
    with pytest.raises(IndexRangeError, match="class 3, at"):
        loss(x, Tensor([3, 0]))
    assert loss(x, Tensor([1, 0])).item() > 0, "and goes on"


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_classes_in_memory_cost_nothing() -> None:
    x, y = Tensor(np.ones((2, 3), np.float32)).realize(), Tensor([0, 2]).realize()
    GlobalCounters.reset()
    x.cross_entropy(y).item()
    assert GlobalCounters.kernel_count == 1


@pytest.mark.parametrize("use", [lambda x, i: x[x.argmax(1)], lambda x, i: x.masked_scatter(x > 0, x * 2),
                                 lambda x, i: x.cross_entropy(i ^ UNKNOWN[0] ^ 7), lambda x, i: x[i ^ UNKNOWN[0] ^ 7]])
def test_an_index_that_nobody_used_is_forgotten(use) -> None:
    """The table of what to check held its own key: the index stayed for ever, and with it the memory it reads."""
    x, i = Tensor(np.eye(3, dtype=np.float32)).realize(), Tensor([0, 1, 2]).realize()
    memory = weakref.ref(x.uop.base.arg), weakref.ref(i.uop.base.arg)
    use(x, i)
    del x, i
    gc.collect()
    assert [buffer() for buffer in memory] == [None, None]


def test_an_index_that_was_checked_costs_nothing_later() -> None:
    x, i = Tensor(np.eye(3, dtype=np.float32)).realize(), Tensor([0, 1, 2]).realize() ^ UNKNOWN[0] ^ 7
    x[i].numpy()
    assert i.uop not in index_range_check.watched_nodes


def test_what_an_index_is_computed_from_is_not_walked_for_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pivots of an elimination are indices: each of the steps of a long loop walked all steps before it."""
    x = Tensor.rand(4, 4).realize()
    for _ in range(300):
        x = (x * 1.5).tanh()
    chosen = x.argmax(1).contiguous().uop
    walked: list[int] = []

    def counted(*given):
        found = toposort(*given)
        walked.append(len(found))
        return found

    for module in (index_range_check, index_value_range):
        monkeypatch.setattr(module, "toposort", counted)
    index_range_check.nearest(chosen, 4)
    assert walked and max(walked) < 50
