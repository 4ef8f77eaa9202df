"""The gradient table against PyTorch's autograd: values, first and second gradients, ties, zeros and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from graph_fuzzer import Maker
from graph_leaves import Values, buffer

from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.gradient import FLAT, GRADIENTS, at_once, deferred, gradients, without_detach, written_out
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Axes, OwnGradient, Scan, Scatter
from glassgrad.compiler.graph.uop import UOp, const, full

torch = pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")

INDEX = np.array([[0, 2], [2, 1]], np.int64)
ONCE = np.array([3, 0], np.int64)


def index(array):
    """A constant integer array as a graph: its values are put in by `CONSTANTS`."""
    node = buffer(array.shape, dtypes.int64)
    CONSTANTS[node] = array
    return node


CONSTANTS: dict[UOp, np.ndarray] = {}
INDEX_NODE, ONCE_NODE = index(INDEX), index(ONCE)


def reduce(op, *axes):
    return lambda x: UOp(op, x.dtype, (x,), Axes(axes))


def scan(combine, axis):
    return lambda x: UOp(o.SCAN, x.dtype, (x,), Scan(axis, combine))


def scatter(node, mode):
    return lambda base, value: UOp(o.SCATTER, base.dtype, (base, node, value), Scatter(mode))


def torch_window(axis, size, stride, dilation):
    def window(x):
        count = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        places = torch.arange(count)[:, None] * stride + torch.arange(size) * dilation
        out = x.index_select(axis, places.reshape(-1))
        out = out.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1:])
        return out.movedim(axis + 1, -1)
    return window


def torch_unwindow(axis, stride, dilation, length):
    def unwindow(x):
        parts = []
        for k in range(x.shape[-1]):
            out = torch.zeros(*x.shape[:axis], length, *x.shape[axis + 1:-1], dtype=x.dtype)
            for i in range(x.shape[axis]):
                place = i * stride + k * dilation
                if place < length:
                    out = out.index_add(axis, torch.tensor([place]), x[..., k].narrow(axis, i, 1))
            parts.append(out)
        return torch.stack(parts, -1)
    return unwindow


def torch_prod(*axes):
    def prod(x):
        for axis in axes:
            x = x.prod(axis, keepdim=True)
        return x
    return prod


T = torch
CASES = {
    "add": (lambda x, y: x + y, lambda x, y: x + y, [(2, 3), (2, 3)]),
    "sub": (lambda x, y: x - y, lambda x, y: x - y, [(2, 3), (2, 3)]),
    "mul": (lambda x, y: x * y, lambda x, y: x * y, [(2, 3), (2, 3)]),
    "mul of itself": (lambda x: x * x * x, lambda x: x * x * x, [(2, 3)]),
    "mul by a value of shape ()": (lambda x, y: x * y * y, lambda x, y: x * y * y, [(2, 3), ()]),
    "mul of shapes ()": (lambda x, y: x * y * y, lambda x, y: x * y * y, [(), ()]),
    "mulacc": (lambda x, y, z: x.mulacc(y, z) * x, lambda x, y, z: (x * y + z) * x, [(2, 3), (), (2, 3)]),
    "div": (lambda x, y: x / y, lambda x, y: x / y, [(2, 3), (2, 3)]),
    "neg": (lambda x: -x * x, lambda x: -x * x, [(4,)]),
    "abs": (lambda x: x.abs() * x, lambda x: x.abs() * x, [(2, 3)]),
    "recip": (lambda x: x.recip(), lambda x: x.reciprocal(), [(2, 3)]),
    "sqrt": (lambda x: (x * x + 0.1).sqrt(), lambda x: (x * x + 0.1).sqrt(), [(2, 3)]),
    "exp2": (lambda x: x.exp2(), lambda x: x.exp2(), [(2, 3)]),
    "log2": (lambda x: (x * x + 0.1).log2(), lambda x: (x * x + 0.1).log2(), [(2, 3)]),
    "sin": (lambda x: x.sin(), lambda x: x.sin(), [(2, 3)]),
    "sin of large": (lambda x: (x * 1e6).sin(), lambda x: (x * 1e6).sin(), [(2, 3)]),
    "max": (lambda x, y: x.maximum(y) * x, lambda x, y: T.maximum(x, y) * x, [(5,), (5,)]),
    "min": (lambda x, y: x.minimum(y) * x, lambda x, y: T.minimum(x, y) * x, [(5,), (5,)]),
    "relu": (lambda x: x.maximum(0) * x, lambda x: x.relu() * x, [(5,)]),
    "relu, constant first": (lambda x: const(0, x.dtype).maximum(x), lambda x: x.relu(), [(5,)]),
    "where": (lambda x, y: (x < y).where(x * x, y), lambda x, y: T.where(x < y, x * x, y), [(5,), (5,)]),
    "where of a value of shape ()": (lambda x, y: (x < 0).where(x, y * y),
                                     lambda x, y: T.where(x < 0, x, y * y), [(5,), ()]),
    "trunc": (lambda x: x.trunc() * x, lambda x: x.trunc() * x, [(5,)]),
    "detach": (lambda x: x.detach() * x, lambda x: x.detach() * x, [(5,)]),
    "cast": (lambda x: x.cast(dtypes.float32).cast(dtypes.float64) * x, lambda x: x.float().double() * x, [(5,)]),
    "cast to int": (lambda x: x.cast(dtypes.int32).cast(dtypes.float64) * x, lambda x: x.int().double() * x, [(5,)]),
    "contiguous": (lambda x: (x * x).contiguous(), lambda x: x * x, [(5,)]),
    "copy": (lambda x: (x * x).copy_to("OTHER"), lambda x: x * x, [(5,)]),
    "sum": (lambda x: x.sum((0, 2)) * x.sum((0, 2)), lambda x: x.sum((0, 2), keepdim=True) ** 2, [(2, 3, 4)]),
    "amax": (lambda x: reduce(o.AMAX, 1)(x * x), lambda x: (x * x).amax(1, keepdim=True), [(2, 3, 4)]),
    "amin": (lambda x: reduce(o.AMIN, 0, 2)(x * x), lambda x: (x * x).amin((0, 2), keepdim=True), [(2, 3, 4)]),
    "prod": (reduce(o.PROD, 1), torch_prod(1), [(2, 3, 4)]),
    "prod of axes": (reduce(o.PROD, 0, 2), torch_prod(0, 2), [(2, 3, 4)]),
    "prod of all": (reduce(o.PROD, 0, 1), torch_prod(0, 1), [(2, 3)]),
    "reshape": (lambda x: x.reshape((6, 2)) * x.reshape((6, 2)), lambda x: x.reshape(6, 2) ** 2, [(3, 4)]),
    "permute": (lambda x: x.permute((1, 2, 0)) * 2.0, lambda x: x.permute(1, 2, 0) * 2, [(2, 3, 4)]),
    "expand": (lambda x: (x * x).expand((5, 3, 2)), lambda x: (x * x).expand(5, 3, 2), [(1, 3, 1)]),
    "pad": (lambda x: x.pad(((1, 2), (0, 3))), lambda x: T.nn.functional.pad(x, (0, 3, 1, 2)), [(2, 3)]),
    "shrink": (lambda x: x.shrink(((1, 2), (0, 2))), lambda x: x[1:2, 0:2], [(2, 3)]),
    "flip": (lambda x: x.flip((1,)) * x, lambda x: x.flip(1) * x, [(2, 3)]),
    "gather": (lambda x: UOp(o.GATHER, x.dtype, (x * x, INDEX_NODE)), lambda x: (x * x)[T.tensor(INDEX)], [(4, 3)]),
    "scatter add": (lambda x, y: scatter(INDEX_NODE, "add")(x * x, y * y),
                    lambda x, y: (x * x).index_add(0, T.tensor(INDEX).reshape(-1), (y * y).reshape(4, 3)),
                    [(4, 3), (2, 2, 3)]),
    "scatter set": (lambda x, y: scatter(ONCE_NODE, "set")(x * x, y * y),
                    lambda x, y: (x * x).index_copy(0, T.tensor(ONCE), y * y), [(4, 3), (2, 3)]),
    "scatter max": (lambda x, y: scatter(INDEX_NODE, "max")(x, y), lambda x, y: x.scatter_reduce(
        0, T.tensor(INDEX).reshape(4, 1).expand(4, 3), y.reshape(4, 3), "amax"), [(4, 3), (2, 2, 3)]),
    "scatter add of ()": (lambda x, y: scatter(INDEX_NODE, "add")(x, y * y),
                          lambda x, y: x.index_add(0, T.tensor(INDEX).reshape(-1), (y * y).expand(4, 3)), [(4, 3), ()]),
    "scan add": (scan(o.ADD, 1), lambda x: x.cumsum(1), [(2, 5, 3)]),
    "scan mul": (scan(o.MUL, 1), lambda x: x.cumprod(1), [(2, 5, 3)]),
    "scan max": (lambda x: scan(o.MAX, 1)(x * x), lambda x: (x * x).cummax(1).values, [(2, 5, 3)]),
    "scan min": (lambda x: scan(o.MIN, 0)(x * x), lambda x: (x * x).cummin(0).values, [(5, 3)]),
}
for window in [(0, 3, 1, 1), (1, 2, 2, 1), (2, 2, 3, 2), (1, 3, 1, 2), (0, 4, 4, 1)]:
    CASES[f"window {window}"] = (lambda x, w=window: (x * x).window(*w),
                                lambda x, w=window: torch_window(*w)(x * x), [(7, 6, 5)])
for axis, stride, dilation, length in [(0, 1, 1, 6), (0, 2, 1, 9), (1, 3, 2, 4), (0, 1, 1, 3), (1, 2, 5, 20)]:
    arguments = (axis, stride, dilation, length)
    CASES[f"unwindow {arguments}"] = (lambda x, a=arguments: (x * x).unwindow(*a),
                                      lambda x, a=arguments: torch_unwindow(*a)(x * x), [(4, 3, 3)])


def weights(arrays):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(a.shape) for a in arrays]


def first(build, arrays):
    """The value, and the gradients of sum(value * weights)."""
    values = Values(CONSTANTS)
    leaves = [values.leaf(a) for a in arrays]
    out = build(*leaves)
    value = values.of(out)
    parts = gradients(out, values.leaf(*weights([value])), leaves)
    return [value, *(np.zeros(a.shape) if g is None else values.of(g) for a, g in zip(arrays, parts))]


def first_of_torch(function, arrays):
    leaves = [T.tensor(a, requires_grad=True) for a in arrays]
    out = function(*leaves)
    value = out.detach().numpy()
    parts = T.autograd.grad(out, leaves, T.tensor(*weights([value])))
    return [value, *(g.numpy() for g in parts)]


def second(build, arrays):
    """The gradient of sum(weights * gradient of sum(out ** 2)): nothing in it is constant."""
    values = Values(CONSTANTS)
    leaves = [values.leaf(a) for a in arrays]
    out = build(*leaves)
    total = const(0.0, dtypes.float64)
    for g, w in zip(gradients(out * out, const(1.0, dtypes.float64), leaves), weights(arrays)):
        if g is not None:
            total = total + (g * values.leaf(w)).sum(range(len(g.shape))).reshape(())
    return [np.zeros(a.shape) if g is None else values.of(g)
            for a, g in zip(arrays, gradients(total, const(1.0, dtypes.float64), leaves))]


def second_of_torch(function, arrays):
    leaves = [T.tensor(a, requires_grad=True) for a in arrays]
    parts = T.autograd.grad((function(*leaves) ** 2).sum(), leaves, create_graph=True)
    total = sum((g * T.tensor(w)).sum() for g, w in zip(parts, weights(arrays)))
    return [np.zeros(a.shape) if g is None else g.numpy()
            for a, g in zip(arrays, T.autograd.grad(total, leaves, allow_unused=True))]


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_gradients_are_pytorchs(name, rng):
    build, function, shapes = CASES[name]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    for g, e in zip(first(build, arrays), first_of_torch(function, arrays)):
        np.testing.assert_allclose(g, e, rtol=1e-6 if "large" in name or name == "cast" else 1e-9, atol=1e-9)
    if not ("scatter max" in name or "scan m" in name and "mul" not in name):     # PyTorch has no second gradient there
        for g, e in zip(second(build, arrays), second_of_torch(function, arrays)):
            np.testing.assert_allclose(g, e, rtol=1e-6, atol=1e-3 if "large" in name else 1e-7)


AWKWARD = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, 0.0, 1.0])


@pytest.mark.parametrize("name", ["mul", "div", "abs", "recip", "exp2", "sin", "max", "min", "relu", "where", "neg",
                                  "relu, constant first", "sqrt", "log2"])
def test_at_awkward_values(name):
    """inf, nan, zeros and ties: the first gradient is PyTorch's, NaN for NaN."""
    build, function, shapes = CASES[name]
    if name in ("sqrt", "log2"):
        build, function = (lambda x: getattr(x, name)()), (lambda x: getattr(x, name)())
    arrays = [AWKWARD] if len(shapes) == 1 else [a.ravel() for a in np.meshgrid(AWKWARD, AWKWARD)]
    values = Values()
    leaves = [values.leaf(a) for a in arrays]
    got = [values.of(g) for g in gradients(build(*leaves), const(1.0, dtypes.float64), leaves)]
    references = [T.tensor(a, requires_grad=True) for a in arrays]
    expected = T.autograd.grad(function(*references).sum(), references)
    for g, e in zip(got, expected):
        np.testing.assert_allclose(g, e.numpy(), atol=1e-12)


@pytest.mark.parametrize("row", [[2., 3., 4.], [2., 0., 4.], [0., 3., 0.], [0., 0., 0.], [0., 5., 7.], [3.]])
def test_products_with_zeros(row):
    """Products are polynomials: zero is no special place. Second gradients of PROD too."""
    x = np.array([row])
    for name, build, function in (("prod", reduce(o.PROD, 1), torch_prod(1)),
                                  ("scan mul", scan(o.MUL, 1), lambda x: x.cumprod(1))):
        for g, e in zip(first(build, [x]), first_of_torch(function, [x])):
            np.testing.assert_allclose(g, e, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(second(reduce(o.PROD, 1), [x])[0], second_of_torch(torch_prod(1), [x])[0], atol=1e-12)


def test_ties_share():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    values = Values()
    leaf = values.leaf(x)
    for op in (o.AMAX, o.AMIN):
        g, = gradients(reduce(op, 1)(leaf), const(6.0, dtypes.float64), [leaf])
        assert values.of(g).tolist() == [[0, 3, 3] if op is o.AMAX else [6, 0, 0], [2, 2, 2]]
    other = values.leaf(x[:, ::-1].copy())
    a, b = gradients(leaf.maximum(other), const(1.0, dtypes.float64), [leaf, other])
    assert values.of(a).tolist() == [[0, 0.5, 1], [0.5] * 3] and values.of(b).tolist() == [[1, 0.5, 0], [0.5] * 3]


def test_duplicates_in_a_scatter_do_not_crash():
    values = Values(CONSTANTS)
    base, value = values.leaf(np.ones((4, 3))), values.leaf(np.ones((2, 2, 3)))
    for mode in ("set", "add", "max"):
        parts = gradients(scatter(INDEX_NODE, mode)(base, value), const(1.0, dtypes.float64), [base, value])
        assert [values.of(p).shape for p in parts] == [(4, 3), (2, 2, 3)]


@pytest.mark.parametrize("shape", [(0,), (2, 0), (1,), (1, 1)])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "scan add", "scan mul", "scan max", "pad", "window"])
def test_sizes_nothing_and_one(name, shape):
    values = Values()
    x = values.leaf(np.ones(shape))
    last = len(shape) - 1
    build = {"sum": lambda: x.sum((last,)), "prod": lambda: reduce(o.PROD, last)(x),
             "max": lambda: reduce(o.AMAX, last)(x),
             "scan add": lambda: scan(o.ADD, last)(x), "scan mul": lambda: scan(o.MUL, last)(x),
             "scan max": lambda: scan(o.MAX, last)(x), "pad": lambda: x.pad([(1, 2)] * len(shape)),
             "window": lambda: x.window(last, 2)}[name]
    g, = gradients(build(), const(1.0, dtypes.float64), [x])
    assert values.of(g).shape == shape


# -- the walk ---------------------------------------------------------------------------------------------------------
def test_what_does_not_depend_has_no_gradient():
    x, y, z = buffer((2,)), buffer((2,)), buffer((2,), dtypes.int32)
    root = x * 2.0 + z.cast(dtypes.float32) + (y < 0).cast(dtypes.float32) + y.detach()
    assert [g is None for g in gradients(root, const(1.0), [x, y, z])] == [False, True, True]
    assert gradients(z + z, const(1, dtypes.int32), [z]) == [None]


def test_a_target_inside_the_graph_and_the_root_itself():
    x = buffer((2,))
    middle = x * 3.0
    root = middle * middle
    to_root, to_middle, to_x, to_other = gradients(root, const(1.0), [root, middle, x, buffer((2,))])
    array = {x: np.array([1.0, 2.0], np.float32)}
    got = interpret([to_root, to_middle, to_x], array)
    assert [a.tolist() for a in got] == [[1, 1], [6, 12], [18, 36]] and to_other is None


def test_only_nodes_between_root_and_targets_are_differentiated():
    x, w = buffer((4,)), buffer((4,))
    side = w
    for _ in range(1000):
        side = side.sin()
    g, = gradients(x * side, const(1.0), [x])
    assert len(set(toposort([g])) - set(toposort([x * side]))) <= 4


def test_a_chain_of_100_000_ops():
    x = node = buffer((1,))
    for _ in range(50_000):
        node = (node + 1.0) * 1.0
    g, = gradients(node, const(1.0), [x])
    assert interpret([g], {x: np.zeros(1, np.float32)})[0].tolist() == [1.0]


def test_use_by_many():
    x = buffer((1,))
    total = x
    for i in range(300):
        total = total + x * float(i)
    g, = gradients(total, const(1.0), [x])
    assert interpret([g], {x: np.zeros(1, np.float32)})[0].tolist() == [1 + 299 * 300 / 2]


def test_every_op_has_an_entry_or_is_flat():
    outside = {op for op in o.Ops if op.kind in ("leaf", "kernel") or op.name in ("GRADIENT", "STORE", "SINK")}
    assert set(o.Ops) - outside == set(GRADIENTS) | FLAT
    assert not set(GRADIENTS) & FLAT


def test_a_copy_sends_its_gradient_back():
    x = buffer((2,), device="HERE")
    g, = gradients(x.copy_to("THERE") * 2.0, const(1.0), [x])
    assert g.device == "HERE"


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
def test_gradients_have_their_nodes_type(dtype):
    x = buffer((3, 2), dtype)
    out = reduce(o.AMAX, 0)(x.sin() * 2.0).cast(dtypes.float32).sum((1,))
    g, = gradients(out, const(1.0), [x])
    assert g.dtype is dtype and g.shape == (3, 2)


# -- worked out once for all graphs of one structure -----------------------------------------------------------------
def rebuilt(root: UOp) -> tuple[UOp, dict[UOp, UOp]]:
    """The same structure over other leaves, and where each node went."""
    new: dict[UOp, UOp] = {}
    for node in toposort([root]):
        new[node] = buffer(node.shape, node.dtype, node.device) if node.op is o.BUFFER else \
            UOp(node.op, node.dtype, tuple(new[s] for s in node.src), node.arg)
    return new[root], new


@pytest.mark.parametrize("seed", range(12))
def test_a_gradient_that_is_deferred_is_written_out_as_the_very_nodes(seed: int) -> None:
    maker = Maker(seed)
    for root in maker.graph(8):
        order = toposort([root])
        leaves = [n for n in order if n.op is o.BUFFER and n.dtype.kind == "f"]
        if root.dtype.kind != "f" or not leaves or root in leaves:
            continue
        ones = full(root.shape, 1.0, root.dtype)
        offered, worked_out = deferred(root, ones, leaves, order), gradients(root, ones, leaves)
        assert [node is None for node in offered] == [node is None for node in worked_out]
        found = [node for node in offered if node is not None]
        assert {node.op for node in found} <= {o.GRADIENT}
        assert [(node.shape, node.dtype) for node in found] == [(n.shape, n.dtype) for n in worked_out if n is not None]
        assert written_out(found) == [n.contiguous() if n.op in o.MOVEMENT else n for n in worked_out if n is not None]


def test_a_gradient_that_is_deferred_has_a_gradient() -> None:
    x, y, one = buffer((3,)), buffer((3,)), const(1.0)
    root = x * x * y
    first, = deferred(root, one, [x], toposort([root]))
    assert first.op is o.GRADIENT
    assert at_once(first, one, [y]) == gradients(gradients(root, one, [x])[0], one, [y])
    both = first * x
    assert deferred(both, one, [x], toposort([both])) == at_once(both, one, [x]), "it is written out first"


def test_without_detach_only_values_are_left() -> None:
    x = buffer((3,))
    assert without_detach([x.detach() * x, x.detach()]) == [x * x, x]


def test_structures_that_differ_in_what_is_shared_are_told_apart() -> None:
    x, y, z = (buffer((3,)) for _ in range(3))
    one = const(1.0)
    assert gradients(x * y, one, [x]) == [one.broadcast((3,)) * y]
    assert gradients(z * z, one, [z]) == [one.broadcast((3,)) * z + one.broadcast((3,)) * z]
    assert gradients(y * x, one, [x]) == [one.broadcast((3,)) * y], "which factor is asked for"
    assert gradients(y * x, one, [z]) == [None]
    assert gradients(x * x.detach(), one, [x]) == [one.broadcast((3,)) * x.detach()]
    assert gradients(x * const(2.0), one, [x]) != gradients(x * const(3.0), one, [x])


def test_a_gradient_of_the_users_own_is_asked_every_time() -> None:
    calls = []
    for _ in range(3):
        x = buffer((2,))
        own = UOp(o.DETACH, x.dtype, (x * 2.0, x), OwnGradient(lambda g, out, *inputs: calls.append(1) or (g * 7.0,)))
        assert gradients(own, full((2,), 1.0, x.dtype), [x]) == [full((2,), 1.0, x.dtype) * 7.0]
    assert len(calls) == 3
