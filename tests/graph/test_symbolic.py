"""Symbolic lengths: every value against NumPy, on every device; one kernel, one capture, for all of them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from symbolic_reference import DATA, DEVICES, MOST, NUMBERS, VALUES, near, soft

from glassgrad import (Context, Device, GlassgradError, GlobalCounters, IndexRangeError, InputError, ShapeError, Tensor,
                       TinyJit, Variable, dtypes, nn)
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph.symbolic import Length


# -- lengths by themselves ----------------------------------------------------------------------------------------
def test_a_variable_has_bounds_and_takes_values_within_them() -> None:
    v = Variable("v", 2, 9)
    assert (v.min, v.max, v.vmin, v.vmax, v.name, v.expr) == (2, 9, 2, 9, "v", "v")
    bound = v.bind(5)
    assert isinstance(bound, Variable) and (bound.val, int(bound), bound.unbind()) == (5, 5, (v, 5))
    assert bound.unbind_all() == (v, {v: 5})
    assert repr(v) == "v" and repr(bound) == "v = 5" and bound == v.bind(5) != v.bind(6)
    for value in (2, 9):
        assert v.bind(value).val == value


@pytest.mark.parametrize("value", [1, 10, -1])
def test_a_value_outside_the_bounds_is_refused(value: int) -> None:
    with pytest.raises(InputError, match=f"given:    v bound to {value}\n  expected: a value from 2 to 9"):
        Variable("v", 2, 9).bind(value)


def test_bounds_must_be_in_order() -> None:
    with pytest.raises(InputError, match="no bounds of a length"):
        Variable("v", 5, 4)
    with pytest.raises(InputError, match="0 <= min <= max"):
        Variable("v", -1, 4)


def test_a_variable_without_a_value_is_no_size_yet() -> None:
    v = Variable("v", 1, 9)
    for use in (lambda: Tensor(DATA)[:v], lambda: Tensor.zeros(v, 2), lambda: Tensor(DATA) * v, lambda: int(v),
                lambda: Tensor(DATA).shrink(((0, v), None))):
        with pytest.raises(InputError, match=r"bind it: v\.bind\(1\)"):
            use()


def test_a_bound_variable_is_not_bound_again() -> None:
    with pytest.raises(InputError, match="has a value already"):
        Variable("v", 1, 9).bind(3).bind(4)


def test_arithmetic_has_one_form_and_cancels() -> None:
    v, w = Variable("v", 1, 10).bind(3), Variable("w", 2, 5).bind(4)
    assert 2 * v + 1 == v + v + 1 and hash(2 * v + 1) == hash(v + 1 + v)
    assert type(1024 - v + v) is int and 1024 - v + v == 1024
    assert (v + 1) * 4 // 4 == v + 1 and (v + 1) * w // (v + 1) == w and v * w * 6 // (2 * w) == 3 * v
    assert (v * 6) % 3 == 0 and ((v + 1) // 2).val == 2 and (2 * v + 1) // 2 == v
    assert (v != 3) and (v != w) and 0 - (0 - v) == v
    with pytest.raises(ShapeError, match="cannot be divided"):
        w // v


@given(st.integers(0, 9), st.integers(0, 9), st.lists(st.tuples(st.sampled_from("+-*/"), st.integers(1, 7),
                                                                 st.sampled_from("vwc")), max_size=6))
def test_lengths_compute_as_numbers_do(a: int, b: int, steps: list[tuple[str, int, str]]) -> None:
    v, w = Variable("v", 0, 9).bind(a), Variable("w", 0, 9).bind(b)
    length, plain = v, a
    for sign, k, other in steps:
        x, y = {"v": (v, a), "w": (w, b), "c": (k, k)}[other]
        if sign == "+":
            length, plain = length + k * x, plain + k * y
        elif sign == "-":
            length, plain = length - x, plain - y
        elif sign == "*":
            length, plain = length * x, plain * y
        else:
            length, plain = length // k, plain // k
    if isinstance(length, Length):
        assert length.val == plain and length.min <= plain <= length.max
    else:
        assert length == plain


@given(st.integers(2, 9), st.integers(-9, 9), st.integers(1, 5), st.integers(2, 5))
def test_equal_quotients_are_one_length(divisor: int, more: int, times: int, other: int) -> None:
    v = Variable("v", 20, 90).bind(30)
    up = -(-(times * v + more) // divisor)
    assert up == (times * v + more + divisor - 1) // divisor
    assert -(-up // other) == -(-(times * v + more) // (divisor * other))
    assert (other * times * v + more) // (other * divisor) == (times * v + more // other) // divisor
    assert v // 2 + (v + 1) // 2 == v


@given(st.integers(2, 9), st.integers(-9, 9), st.integers(0, 9))
def test_bounds_know_what_a_quotient_times_its_divisor_leaves(divisor: int, more: int, wider: int) -> None:
    v = Variable("v", 20, 9000)
    left = v + more - (v + more) // divisor * divisor
    assert (left.min, left.max) == (0, divisor - 1)
    assert (-(-(v + wider) // divisor) - v // divisor) >= 0 and v // divisor * divisor <= v


def test_comparisons_follow_from_the_bounds_or_the_value() -> None:
    v = Variable("v", 2, 9).bind(5)
    assert v > 1 and v >= 2 and v < 10 and v <= 9 and not v > 9 and 1 < v and v < v + 1 and bool(v)
    assert v > 4 and not v > 5 and v <= 5.5 and v < 5.5 and not v < 4.5


# -- tensors, against NumPy ---------------------------------------------------------------------------------------
PROMISES: dict[str, tuple[Callable[[Tensor, Any], Any], Callable[[np.ndarray, int], Any]]] = {
    "slice": (lambda t, v: t[:v], lambda x, n: x[:n]),
    "shrink": (lambda t, v: t.shrink(((0, v), (2, 7))), lambda x, n: x[:n, 2:7]),
    "tail": (lambda t, v: t[v - 1:] + 1, lambda x, n: x[n - 1:] + 1),
    "one row": (lambda t, v: t[v - 1], lambda x, n: x[n - 1]),
    "map": (lambda t, v: (t[:v] * 2 + 1).exp(), lambda x, n: np.exp(x[:n] * 2 + 1)),
    "number": (lambda t, v: t[:v] * v + (v * 2 + 1), lambda x, n: x[:n] * n + (n * 2 + 1)),
    "sum of all": (lambda t, v: t[:v].sum(), lambda x, n: x[:n].sum()),
    "sum along it": (lambda t, v: t[:v].sum(0), lambda x, n: x[:n].sum(0)),
    "sum beside it": (lambda t, v: t[:v].sum(1), lambda x, n: x[:n].sum(1)),
    "max": (lambda t, v: t[:v].max(0), lambda x, n: x[:n].max(0)),
    "min": (lambda t, v: t[:v].min(), lambda x, n: x[:n].min()),
    "argmax": (lambda t, v: t[:v].argmax(0), lambda x, n: x[:n].argmax(0)),
    "mean": (lambda t, v: t[:v].mean(0), lambda x, n: x[:n].mean(0)),
    "variance": (lambda t, v: t[:v].var(0, correction=0), lambda x, n: x[:n].var(0)),
    "sum of a constant": (lambda t, v: Tensor.ones(v, 3).sum(), lambda x, n: np.float32(3 * n)),
    "softmax along it": (lambda t, v: t[:v].softmax(0), lambda x, n: soft(x[:n], 0)),
    "softmax of columns": (lambda t, v: t[:v].T.softmax(-1), lambda x, n: soft(x[:n].T, -1)),
    "layer norm": (lambda t, v: t[:v].layernorm(), lambda x, n: (x[:n] - x[:n].mean(1, keepdims=True)) / np.sqrt(
        x[:n].var(1, keepdims=True) + 1e-5)),
    "matmul": (lambda t, v: t[:v] @ t[:v].T, lambda x, n: x[:n] @ x[:n].T),
    "matmul over it": (lambda t, v: t[:v].T @ t[:v], lambda x, n: x[:n].T @ x[:n]),
    "vector times matrix": (lambda t, v: t[:v, 0] @ t[:v], lambda x, n: x[:n, 0] @ x[:n]),
    "flatten": (lambda t, v: t[:v].reshape(-1) + 1, lambda x, n: x[:n].reshape(-1) + 1),
    "split": (lambda t, v: t[:v].reshape(v, 3, 4).permute(2, 0, 1),
              lambda x, n: x[:n].reshape(n, 3, 4).transpose(2, 0, 1)),
    "unsplit": (lambda t, v: t[:v].reshape(v * 12).reshape(v, 12), lambda x, n: x[:n]),
    "transpose": (lambda t, v: t[:v].T.contiguous(), lambda x, n: x[:n].T),
    "joined behind": (lambda t, v: t[:v].T.reshape(-1) * 2, lambda x, n: x[:n].T.reshape(-1) * 2),
    "split behind": (lambda t, v: t[:v].T.reshape(v, 12), lambda x, n: x[:n].T.reshape(n, 12)),
    "cumsum": (lambda t, v: t[:v].cumsum(0), lambda x, n: x[:n].cumsum(0)),
    "flip": (lambda t, v: t[:v].flip(0), lambda x, n: x[:n][::-1]),
    "pad": (lambda t, v: t[:v].pad(((1, 2), (0, 0))), lambda x, n: np.pad(x[:n], ((1, 2), (0, 0)))),
    "pad to a number": (lambda t, v: t[:v].pad(((0, MOST - v), (0, 0))),
                        lambda x, n: np.pad(x[:n], ((0, MOST - n), (0, 0)))),
    "cat": (lambda t, v: Tensor.cat(t[:v], t[:3]), lambda x, n: np.concatenate([x[:n], x[:3]])),
    "expand": (lambda t, v: t[0].expand(v, 12) + t[:v], lambda x, n: x[0] + x[:n]),
    "arange": (lambda t, v: Tensor.arange(v), lambda x, n: np.arange(n)),
    "arange from": (lambda t, v: Tensor.arange(v, v + 3), lambda x, n: np.arange(n, n + 3)),
    "causal mask": (lambda t, v: (Tensor.arange(v).reshape(1, v) <= Tensor.arange(v).reshape(v, 1)).sum(0),
                    lambda x, n: np.tri(n).sum(0)),
    "full": (lambda t, v: Tensor.full((v, 2), v), lambda x, n: np.full((n, 2), n)),
    "tensor of it": (lambda t, v: Tensor(v), lambda x, n: np.array(n)),
    "gather": (lambda t, v: t[:v][Tensor([0, 0])], lambda x, n: x[:n][[0, 0]]),
    "where": (lambda t, v: (t[:v] > 0).where(t[:v], v), lambda x, n: np.where(x[:n] > 0, x[:n], n)),
    "twice": (lambda t, v: t[:v].exp().contiguous().sum(0) + t[:v].sum(0),
              lambda x, n: np.exp(x[:n]).sum(0) + x[:n].sum(0)),
    "realized": (lambda t, v: t[:v].exp().realize().log().realize() + 1, lambda x, n: x[:n] + 1),
    "roll": (lambda t, v: t.pad(((0, 1), (0, 0)))[:v + 1].roll(1, 0),
             lambda x, n: np.roll(np.pad(x, ((0, 1), (0, 0)))[:n + 1], 1, 0)),
    "sort": (lambda t, v: t[:v].sort(0)[0], lambda x, n: np.sort(x[:n], 0)),
    "cross entropy": (lambda t, v: t[:v].cross_entropy(Tensor.zeros(v, dtype="int32")),
                      lambda x, n: -np.log(soft(x[:n], 1)[:, 0]).mean()),
    "scatter": (lambda t, v: Tensor.zeros(5).scatter(0, Tensor.arange(v) % 5, t[:v, 0], reduce="add"),
                lambda x, n: np.bincount(np.arange(n) % 5, x[:n, 0], 5)),
    "look up": (lambda t, v: t[Tensor.arange(v)], lambda x, n: x[:n]),
    "upper triangle": (lambda t, v: Tensor.ones(v, v).triu(), lambda x, n: np.triu(np.ones((n, n)))),
    "einsum": (lambda t, v: Tensor.einsum("ij,ik->jk", t[:v], t[:v]), lambda x, n: x[:n].T @ x[:n]),
    "another device": (lambda t, v: t[:v].to("PYTHON" if t.device == "CPU" else "CPU").sum(0),
                       lambda x, n: x[:n].sum(0)),
    "window": (lambda t, v: t[:v].T.unsqueeze(0).pad(((0, 0), (0, 0), (2, 0))).conv2d(Tensor.ones(1, 12, 3)),
               lambda x, n: np.stack([np.pad(x[:n], ((2, 0), (0, 0)))[i:i + 3].sum() for i in range(n)])[None, None]),
}


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize("device", DEVICES)
def test_one_kernel_is_right_for_every_value(name: str, device: str) -> None:
    ours, theirs = PROMISES[name]
    v = Variable("v", 1, MOST)
    with Context(DEV=device):
        t = Tensor(DATA, device=device).realize()
        near(ours(t, v.bind(5)), theirs(DATA, 5))
        before = GlobalCounters.schedules
        for n in (VALUES if device == "CPU" else (1, 17, MOST)):
            near(ours(t, v.bind(n)), theirs(DATA, n))
        assert GlobalCounters.schedules == before         # nothing was scheduled, so nothing was compiled


@pytest.mark.parametrize("name", ["softmax along it", "matmul over it", "cat", "joined behind", "cumsum", "mean"])
def test_check_checks_symbolic_kernels(name: str) -> None:
    ours, theirs = PROMISES[name]
    with Context(CHECK=1):
        for n in (1, 17, MOST):
            near(ours(Tensor(DATA).realize(), Variable("v", 1, MOST).bind(n)), theirs(DATA, n))


@pytest.mark.parametrize("name", ["softmax along it", "matmul over it", "cat", "split behind"])
def test_without_optimization(name: str) -> None:
    ours, theirs = PROMISES[name]
    with Context(NOOPT=1):
        for n in (1, 17, MOST):
            near(ours(Tensor(DATA).realize(), Variable("v", 1, MOST).bind(n)), theirs(DATA, n))


def test_the_interpreter_knows_the_value() -> None:
    t = Tensor(DATA).realize()
    y = t[:Variable("v", 1, MOST).bind(7)].softmax(0)
    near(interpret([y.uop], {t.uop: DATA})[0], soft(DATA[:7], 0))


def test_reading_gives_the_size_of_the_value() -> None:
    v = Variable("v", 0, 9)
    t = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).realize()
    assert t[:v.bind(3)].tolist() == [1, 2, 3] and t[:v.bind(0)].tolist() == [] and t[:v.bind(1)].item() == 1
    assert len(t[:v.bind(4)]) == 4 and [x.item() for x in t[:v.bind(2)]] == [1, 2]
    assert repr(t[:v.bind(2)]) == f"Tensor([1., 2.], dtype=float32, device={t.device})"
    assert t[:v.bind(3)].shape == (v.bind(3),) and str((t[:v.bind(3)] + 1).shape) == "(v = 3,)"
    assert t[:v.bind(0)].sum().item() == 0 and t[:v.bind(0)].pad(((1, 1),)).tolist() == [0, 0]
    with pytest.raises(ShapeError, match=r"given:    shape \(v = 2,\)"):
        t[:v.bind(2)].item()


def test_two_variables() -> None:
    v, w = Variable("v", 1, MOST), Variable("w", 1, 12)
    t = Tensor(DATA).realize()
    for n, m in ((1, 1), (5, 12), (MOST, 3), (33, 7)):
        a, b = v.bind(n), w.bind(m)
        near(t[:a, :b].sum(0), DATA[:n, :m].sum(0))
        near(t[:a, :b] @ t[:b, :3], DATA[:n, :m] @ DATA[:m, :3])
        near(t[:a, :b].reshape(-1).exp(), np.exp(DATA[:n, :m].reshape(-1)))


@pytest.mark.parametrize("device", DEVICES)
def test_products_are_packed_in_blocks(device: str) -> None:
    x, y = (NUMBERS.standard_normal(shape).astype(np.float32) for shape in ((3, 200, 24), (3, 24, 150)))
    t, u = Tensor(x, device=device).realize(), Tensor(y, device=device).realize()
    v, w = Variable("v", 1, 200), Variable("w", 0, 150)
    [item] = (t[:, :v.bind(5)] @ u).schedule()
    moves = Device[device].loop_tree(item.ast).moves
    assert any("contract" in move for move in moves) or device == "PYTHON"        # which interprets plain loops
    for n, m in ((1, 0), (63, 64), (64, 149), (65, 1), (128, 150), (200, 70)) if device != "PYTHON" else ((65, 70),):
        near((t[:, :v.bind(n)] @ u).relu() + 1, np.maximum(x[:, :n] @ y, 0) + 1)
        near(t @ u[:, :, :w.bind(m)], x @ y[:, :, :m])
        near(t[:, :v.bind(n)] @ u[:, :, :w.bind(m)], x[:, :n] @ y[:, :, :m])


@pytest.mark.parametrize("most", [150, 2100])
@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_products_end_at_the_value(device: str, most: int) -> None:
    """Also those that are added up in blocks because they may be long; and with rows that end at it too."""
    x, y = NUMBERS.standard_normal((2, 30, most)), NUMBERS.standard_normal((2, most, 20))
    x, y = x.astype(np.float32), y.astype(np.float32)
    t, u, v = Tensor(x, device=device).realize(), Tensor(y, device=device).realize(), Variable("v", 1, most)
    [item] = (t[:, :, :v.bind(5)] @ u[:, :v.bind(5)]).schedule()
    moves = [m for m in Device[device].loop_tree(item.ast).moves if m.startswith("contract")]
    assert all("left=in_place, right=in_place" in m for m in moves)         # of an unknown length: so no copies
    versions = 2 if most > 1024 else 1                                      # few terms without blocks of K
    assert len(moves) == (versions if device != "PYTHON" else 0)            # which interprets plain loops
    with Context(CHECK=int(device == "CPU" and most < 1000)):
        for n in (1, 15, 16, 64, 149, most) if device != "PYTHON" else (17, most):
            near(t[:, :, :v.bind(n)] @ u[:, :v.bind(n)] * 2, x[:, :, :n] @ y[:, :n] * 2, 1e-3)
    rows, w = Tensor(y[0], device=device).realize(), Variable("w", 1, 150)
    for n in (1, 65, 150):
        gram = rows[:w.bind(n)] @ rows[:w.bind(n)].T
        near(gram @ rows[:w.bind(n)], y[0, :n] @ y[0, :n].T @ y[0, :n], 1e-3)


def test_two_values_of_one_variable_in_one_graph() -> None:
    v = Variable("v", 1, MOST)
    t = Tensor(DATA).realize()
    for n, m in ((3, 5), (9, 2)):
        near(t[:v.bind(n)].sum(0) + t[:v.bind(m)].sum(0), DATA[:n].sum(0) + DATA[:m].sum(0))


def test_lengths_that_differ_do_not_meet() -> None:
    v, w = Variable("v", 1, MOST), Variable("w", 1, MOST)
    t = Tensor(DATA).realize()
    for other in (t[:w.bind(3)], t[:v.bind(4)], t[:3], t):
        with pytest.raises(ShapeError, match=r"given:    \(v = 3, 12\) \+ "):
            t[:v.bind(3)] + other
    with pytest.raises(ShapeError, match="number of elements changes"):
        t[:v.bind(3)].reshape(3, 12)


def test_slices_past_the_end() -> None:
    v = Variable("v", 1, 100)
    t = Tensor(DATA).realize()
    near(t[:v.bind(MOST)], DATA)
    with pytest.raises(IndexRangeError, match=r"given:    \[0:v = 71\] of an axis of 70"):
        t[:v.bind(71)]
    with pytest.raises(IndexRangeError, match="steps of 1"):
        t[:v.bind(8):2]
    with pytest.raises(IndexRangeError, match="out of bounds"):
        t[v.bind(70)]
    with pytest.raises(ShapeError, match="cannot shrink"):
        t.shrink(((0, v.bind(71)), None))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=0, max_size=2), st.lists(st.integers(1, 5), min_size=0, max_size=2),
       st.integers(1, 40), st.data())
def test_any_shape_around_a_symbolic_axis(front: list[int], back: list[int], most: int, data: Any) -> None:
    v = Variable("v", 1, most)
    x = np.random.default_rng(most).standard_normal((*front, most, *back)).astype(np.float32)
    axis, cut = len(front), (slice(None),) * len(front)
    t = Tensor(x).realize()
    reduced = data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))
    for n in {1, most, data.draw(st.integers(1, most))}:
        b, part = v.bind(n), x[(*cut, slice(n))]
        y = t[(*cut, slice(b))]
        near(y.sum(tuple(reduced)), part.sum(tuple(reduced)))
        near(y.reshape(-1) * 2, part.reshape(-1) * 2)
        near(y.transpose(0, axis).exp(), np.exp(part.swapaxes(0, axis)))
        near(y.softmax(axis), soft(part, axis))


# -- gradients ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 3, 17, MOST])
def test_gradients_go_through_symbolic_shapes(n: int) -> None:
    torch = pytest.importorskip("torch")
    v = Variable("v", 1, MOST).bind(n)
    t, w = Tensor(DATA).realize(), Tensor(DATA[:12] / 4).realize()
    loss = ((t[:v] @ w).softmax(0) * t[:v].mean(0)).square().sum() + t[:v].max(0).sum() + \
        t[:v].T.reshape(-1).exp().sum()
    ours = loss.gradient(t, w)
    x, u = (torch.tensor(a, requires_grad=True) for a in (DATA, DATA[:12] / 4))
    reference = ((x[:n] @ u).softmax(0) * x[:n].mean(0)).square().sum() + x[:n].max(0).values.sum() + \
        x[:n].T.reshape(-1).exp().sum()
    near(loss, reference.detach().numpy(), 1e-3)
    for mine, theirs in zip(ours, torch.autograd.grad(reference, (x, u))):
        near(mine, theirs.numpy(), 1e-3)


def test_a_training_step_on_a_symbolic_batch_compiles_once() -> None:
    layer, v = nn.Linear(12, 4), Variable("v", 1, MOST)
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)
    t = Tensor(DATA).realize()
    counts = []
    with Tensor.train():
        for n in (8, 8, 9, 20, 3, MOST):
            weight, bias = layer.weight.numpy().copy(), layer.bias.numpy().copy()
            before = GlobalCounters.schedules
            loss = layer(t[:v.bind(n)]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counts.append(GlobalCounters.schedules - before)
            out = DATA[:n] @ weight.T + bias
            near(loss, np.square(out).mean())
            near(layer.weight, weight - 0.1 * (2 * out.T @ DATA[:n] / out.size), 1e-3)
    assert counts[2:] == [0] * 4


# -- writing at a symbolic place ----------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
def test_writing_into_a_cache(device: str) -> None:
    v = Variable("v", 0, 7)
    cache, reference = Tensor.zeros(2, 8, 3, device=device).contiguous().realize(), np.zeros((2, 8, 3), np.float32)
    counts = []
    for n in (0, 3, 7, 3, 1):
        new = NUMBERS.standard_normal((2, 1, 3)).astype(np.float32)
        before = GlobalCounters.schedules
        cache[:, v.bind(n):v.bind(n) + 1] = Tensor(new, device=device)
        cache.realize()
        counts.append(GlobalCounters.schedules - before)
        reference[:, n:n + 1] = new
        near(cache, reference)
        near(cache[:, :v.bind(n) + 1], reference[:, :n + 1])
    assert counts[1:] == [0] * 4


def test_writing_a_symbolic_part() -> None:
    v = Variable("v", 1, 8)
    for n in (1, 5, 8):
        cache, reference = Tensor.zeros(8, 3).contiguous().realize(), np.zeros((8, 3), np.float32)
        cache[:v.bind(n)] = Tensor(DATA[:8, :3])[:v.bind(n)] * 2
        reference[:n] = DATA[:n, :3] * 2
        near(cache, reference)
        cache[:v.bind(n), 1] = 5
        reference[:n, 1] = 5
        near(cache, reference)


# -- what takes no symbolic sizes says so -------------------------------------------------------------------------
@pytest.mark.parametrize("use", [lambda x: x.reshape(-1, 5), lambda x: x.repeat(2).reshape(3, -1)])
def test_sizes_that_do_not_divide(use: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(GlassgradError):
        use(Tensor(DATA).realize()[:Variable("v", 1, MOST).bind(7), 0])


def test_random_numbers_do_not_depend_on_the_value() -> None:
    v = Variable("v", 1, 9)
    drawn = []
    for n in (9, 4, 1):
        Tensor.manual_seed(3)
        drawn.append(Tensor.rand(v.bind(n), 2).numpy())
    for rows in drawn[1:]:
        assert (rows == drawn[0][:len(rows)]).all()


def test_types_of_a_length() -> None:
    n = Variable("v", 1, 9).bind(4)
    assert Tensor(n).dtype is dtypes.int32 and (Tensor([1.0]) * n).dtype is dtypes.float32
    assert (Tensor([1], dtype="int64") + n).dtype is dtypes.int64 and (Tensor([True]) + n).dtype is dtypes.int32


# -- messages, each read whole ------------------------------------------------------------------------------------
def _bound_again() -> None:
    v, t = Variable("v", 1, MOST), Tensor(DATA).realize()
    TinyJit(lambda t, n: t[:n].sum(0) + t[:v.bind(5)].sum(0))(t, v.bind(4))


@pytest.mark.parametrize("mistake, message", [
    (lambda: Variable("v", 5, 4), """\
these are no bounds of a length
  given:    Variable('v', 5, 4)
  expected: integers with 0 <= min <= max
  fix:      exchange or correct them"""),
    (lambda: Variable("v", 2, 9).bind(12), """\
the value is outside the variable's bounds
  given:    v bound to 12
  expected: a value from 2 to 9
  fix:      bind another value, or widen it: Variable("v", 2, 12)"""),
    (lambda: Variable("v", 2, 9).bind(2.5), """\
a length is an integer
  given:    v bound to 2.5
  expected: an integer
  fix:      write v.bind(int(value)), if it is one"""),
    (lambda: Variable("v", 2, 9).bind(3).bind(4), """\
this variable has a value already
  given:    v = 3 bound to 4
  expected: a variable without a value
  fix:      bind the Variable itself, not what bind() gave"""),
    (lambda: int(Variable("v", 2, 9) + 1), """\
a variable has no value yet
  given:    Variable("v", 2, 9)
  expected: a value when a size is read
  fix:      bind it: v.bind(2)"""),
    (lambda: Tensor.zeros(Variable("v", 2, 9)), """\
a variable has no value yet
  given:    a size of v
  expected: a variable with a value
  fix:      bind it: v.bind(2)"""),
    (lambda: 4 * Variable("v", 2, 9).bind(3) // Variable("w", 2, 9).bind(3), """\
a length cannot be divided by this
  given:    4*v = 12 // w = 3
  expected: a positive integer, or a length that divides it for every value
  fix:      divide the plain number: v.val, outside of jitted functions"""),
    (lambda: Tensor(DATA)[:Variable("v", 1, 99).bind(80)], """\
a symbolic slice does not fit its axis
  given:    [0:v = 80] of an axis of 70
  expected: 0 <= start <= stop <= size, and steps of 1
  fix:      check the bounds; flip(), or reshape and index, for other steps"""),
    (lambda: Tensor.arange(0, Variable("v", 1, 99).bind(80), 2), """\
a symbolic range goes up in steps of 1
  given:    arange(0, v = 80, 2)
  expected: integers with start <= stop, and step 1
  fix:      multiply the range afterwards"""),
    (lambda: Tensor(DATA)[:Variable("v", 1, 9).bind(5)].uop.window(0, 3), """\
the window is longer than the axis may be
  given:    a window of 3 over (v = 5, 12)
  expected: an axis of at least 3 for every value of its variables
  fix:      raise the variable's lower bound"""),
    (_bound_again, """\
a variable is bound again inside a jitted function
  given:    v = 5
  expected: the value of v that the call was given
  fix:      use the bound variable that was passed in, or a Variable of another name"""),
])
def test_messages(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(GlassgradError) as error:
        mistake()
    assert str(error.value).partition("\n  at: ")[0] == message


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_length_from_another_process_is_found_among_those_of_this_one(seed: str) -> None:
    """Names hash differently there, and a schedule on disk comes from such a process."""
    made = "import pickle, sys; from glassgrad import Variable; n = Variable('n', 1, 10).bind(3); " \
        "sys.stdout.buffer.write(pickle.dumps((n, 2 * n + 1)))"
    there = subprocess.run([sys.executable, "-c", made], capture_output=True, check=True,
                           env={**os.environ, "PYTHONHASHSEED": seed}).stdout
    n = Variable("n", 1, 10).bind(3)
    variable, length = pickle.loads(there)
    assert variable == n and variable in {n} and isinstance(variable, Variable)
    assert length == 2 * n + 1 and length in {2 * n + 1}


def test_an_axis_of_no_elements_is_sorted() -> None:
    """Its rows were counted by a division by its length."""
    x, n = Tensor.arange(12.0).reshape(3, 4).realize(), Variable("n", 0, 4)
    for k in (3, 0, 1):
        rows = x.numpy()[:, :k]
        assert np.array_equal(x[:, :n.bind(k)].sort(-1, descending=True)[0].numpy(), rows[:, ::-1])
        assert x[:, :n.bind(k)].argsort(0).shape == (3, n.bind(k)) and int(x[:, :n.bind(k)].unique().numel()) == 3 * k
