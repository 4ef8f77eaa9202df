"""Formulas that are one node until they are compiled: the same values, gradients and messages as written out."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, ShapeError, Tensor, Variable, dtypes, nn
from glassgrad.base.errors import AxisError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.uop import full
from glassgrad.engine.capture import record
from glassgrad.nn.optim import autocast
from glassgrad.tensor.formulas.elementary import gelu
from glassgrad.tensor.formulas.neural.normalization import weighted

FORMULAS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w, b: x.linear(w, b),
    "layernorm": lambda x, w, b: x.layernorm(),
    "rms_norm": lambda x, w, b: x.rms_norm(),
    "softmax": lambda x, w, b: x.softmax(-1),
    "log_softmax": lambda x, w, b: x.log_softmax(0),
    "gelu": lambda x, w, b: x.gelu(),
    "gelu by tanh": lambda x, w, b: x.gelu("tanh"),
    "attention": lambda x, w, b: x.scaled_dot_product_attention(x, x * 2, is_causal=True),
    "masked attention": lambda x, w, b: x.scaled_dot_product_attention(x, x, attn_mask=(x @ x.T) > 0),
}


def _operands() -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(3)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (5, 4), (4,)))
    return Tensor(x).realize(), Tensor(w).realize(), Tensor(b).realize()


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_one_node_with_the_values_and_gradients_of_its_nodes(name: str) -> None:
    x, w, b = _operands()
    deferred = FORMULAS[name](x, w, b)
    assert deferred.uop.op is o.FORMULA
    assert FORMULAS[name](x, w, b).uop is deferred.uop, "equal formulas are one node"
    [written] = written_out([deferred.uop])
    assert all(node.op is not o.FORMULA for node in written.toposort())
    plain = Tensor(written)
    assert (deferred.shape, deferred.dtype, deferred.device) == (plain.shape, plain.dtype, plain.device)
    weights = Tensor(np.random.default_rng(4).standard_normal(deferred.shape).astype(np.float32)).realize()
    expected = [t.numpy() for t in (plain * weights).sum().gradient(x, w, b, materialize_grads=True)]
    found = [t.numpy() for t in (deferred * weights).sum().gradient(x, w, b, materialize_grads=True)]
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deferred.numpy(), plain.numpy(), rtol=1e-6, atol=1e-6)


def test_the_shape_that_a_formula_says_is_that_of_its_nodes() -> None:
    ones = lambda *shape: Tensor.ones(*shape).contiguous().realize()
    attention = [((3, 5), (4, 5), (4, 2)), ((2, 1, 5), (2, 4, 5), (2, 4, 5)),
                 ((2, 3, 1, 8), (2, 3, 9, 8), (2, 3, 9, 8)), ((0, 5), (3, 5), (3, 5)), ((2, 3, 4), (3, 4), (3, 4)),
                 ((3, 4), (2, 3, 4), (2, 3, 4)), ((3, 4), (1, 4), (1, 4))]
    linear = [((5,), (5, 4), (4,)), ((3, 5), (5, 4), (1,)), ((2, 3, 5), (5, 4), (4,)), ((3, 5), (5, 1), (1,)),
              ((3, 5), (5, 4), (3, 4)), ((0, 5), (5, 4), (4,)), ((3, 5), (5,), (5,)), ((3, 1), (1, 1), ())]
    norms = [((3, 5), (5,)), ((5,), (5,)), ((2, 1, 5), (1, 5)), ((2, 3, 5), (3, 5)), ((3, 1), (5,)), ((5,), (2, 5))]
    made = [ones(*q).scaled_dot_product_attention(ones(*k), ones(*v), is_causal=causal)
            for q, k, v in attention for causal in (False, True)]
    made += [ones(*x).linear(ones(*w), bias) for x, w, b in linear for bias in (None, ones(*b))]
    made += [Tensor(weighted(ones(*x).uop, ones(*w).uop, b)) for x, w in norms for b in (None, ones(*w).uop)]
    made += [f(ones(*x)) for f in (Tensor.gelu, Tensor.softmax, Tensor.log_softmax, Tensor.layernorm) for x, _ in norms]
    said = 0
    for node in [tensor.uop for tensor in made]:
        assert node.op is o.FORMULA
        assert node.shape == node.arg.written_out(node.src).shape
        said += node.arg.function.shape(*node.arg.given(node.src)) is not None
    assert said > len(made) // 2, "the rest needs its nodes"


def test_a_second_gradient_passes_through_a_formula() -> None:
    x = Tensor([0.5, -1.0, 2.0])
    [first] = (x.softmax(-1) * Tensor([1.0, 2.0, 3.0])).sum().gradient(x)
    [second] = (first * first).sum().gradient(x)
    step, at = 1e-3, x.numpy().astype(np.float64)

    def squares(v: np.ndarray) -> float:
        s = np.exp(v) / np.exp(v).sum()
        c = np.array([1.0, 2.0, 3.0])
        return float(((s * (c - (s * c).sum())) ** 2).sum())
    numeric = [(squares(at + step * e) - squares(at - step * e)) / (2 * step) for e in np.eye(3)]
    np.testing.assert_allclose(second.numpy(), numeric, rtol=1e-3, atol=1e-5)


def test_a_gradient_for_a_formula_in_the_middle() -> None:
    x, w, b = _operands()
    h = x.linear(w, b)
    [found] = (h.gelu() * 2).sum().gradient(h)
    held = Tensor(h.numpy())
    [expected] = (held.gelu() * 2).sum().gradient(held)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_value_that_was_read_is_not_computed_again() -> None:
    x, w, b = _operands()
    h = x.linear(w, b).realize()
    y = h.softmax(-1)
    read = y.numpy()
    before = GlobalCounters.kernel_count
    np.testing.assert_allclose((y + 1).numpy(), read + 1, rtol=1e-6)
    assert GlobalCounters.kernel_count - before == 1
    assert len((y + 1).schedule()) == 1 and "reduce" not in str((y + 1).schedule()[0].ast)


def test_a_result_and_what_is_computed_from_it_share_the_work() -> None:
    x, w, _ = _operands()
    h = x.linear(w)
    assert len(h.schedule((h * 2).sum())) == 2


def test_numbers_that_change_are_no_part_of_the_structure() -> None:
    x, _, _ = _operands()
    for scale in (0.5, 0.25):
        x.scaled_dot_product_attention(x, x, scale=scale).realize()
    before = GlobalCounters.schedules
    for scale in (0.125, 2.0, 3.0):
        found = x.scaled_dot_product_attention(x, x, scale=scale).numpy()
        scores = np.exp(scale * (x.numpy() @ x.numpy().T))
        np.testing.assert_allclose(found, scores @ x.numpy() / scores.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)
    assert GlobalCounters.schedules == before


def test_wrong_shapes_are_refused_each_time() -> None:
    x, w, _ = _operands()
    for _ in range(2):
        with pytest.raises(ShapeError, match="cannot multiply these matrices"):
            w.linear(w)
        assert x.linear(w).shape == (3, 4)


def test_types_inside_are_those_of_the_line_that_was_written() -> None:
    x, w, b = _operands()
    plain = x.linear(w, b)
    with autocast(dtypes.bfloat16):
        rounded = x.linear(w, b)
        plain.realize()
    assert (plain.dtype, rounded.dtype) == (dtypes.float32, dtypes.bfloat16)
    expected = x.numpy() @ w.numpy() + b.numpy()
    np.testing.assert_allclose(plain.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(rounded.float().numpy() - expected).max() > 1e-4


def test_variables_have_whole_graphs_and_traces_do_not() -> None:
    x, w, b = _operands()
    rows = Variable("rows", 1, 3).bind(2)
    assert x.shrink(((0, rows), (0, 5))).softmax(-1).uop.op is not o.FORMULA
    with record():
        assert x.softmax(-1).uop.op is o.FORMULA


def test_a_formula_can_be_pickled_and_checked() -> None:
    x, w, b = _operands()
    node = gelu(full((2, 3), 1.5))
    assert node.op is o.FORMULA and pickle.loads(pickle.dumps(node)) is node
    with Context(CHECK=1):
        found = x.linear(w, b).layernorm().gelu().numpy()
    h = x.numpy().astype(np.float64) @ w.numpy() + b.numpy()
    n = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, n * 0.5 * (1 + np.vectorize(math.erf)(n / math.sqrt(2))), rtol=1e-4, atol=1e-5)


def test_a_block_of_a_transformer_makes_few_nodes() -> None:
    layer = nn.Linear(8, 8)
    layer.weight.realize(layer.bias)
    x = Tensor.randn(1, 4, 8).realize()
    y = layer(x.layernorm()).gelu()
    assert [n.op for n in y.uop.toposort() if n.op is not o.BUFFER and n.op is not o.DETACH] == [o.FORMULA] * 3


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_an_axis_that_is_not_there_is_refused_by_the_name_of_the_method(name: str) -> None:
    with pytest.raises(AxisError, match=rf"^{name} was given an axis that the tensor does not have"):
        getattr(Tensor([[1.0, 2.0]]), name)(5)
