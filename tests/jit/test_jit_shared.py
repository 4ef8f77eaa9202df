"""A jitted function that is handed a tensor which it also reaches by another way: one tensor, as unjitted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, Tensor, jit as jit_module, nn
from glassgrad.base.errors import JitError
from glassgrad.jit import TinyJit

CALLS = 9
Function = Callable[..., Any]


def _world() -> SimpleNamespace:
    return SimpleNamespace(w=Tensor([1.0, 2.0, 3.0, 4.0]).realize(), v=Tensor([5.0, 6.0, 7.0, 8.0]).realize())


def _other() -> Tensor:
    return Tensor([10.0, 20.0, 30.0, 40.0]).realize()


def _doubled(s: SimpleNamespace, x: Tensor) -> Tensor:
    x.assign(x * 2)
    return s.w + x


def _gradient(s: SimpleNamespace, x: Tensor) -> Tensor:
    s.w.grad = None
    (x * s.w).sum().backward()
    s.w.assign(s.w - s.w.grad * 0.25)
    return x * 1


BODIES: dict[str, Callable[[SimpleNamespace, Tensor], Tensor]] = {
    "assigned, then read": lambda s, x: (s.w.assign(s.w + 1), (x * 1).realize())[1],
    "assigned and computed, then read": lambda s, x: (s.w.assign(s.w + 1).realize(), (x * 1).realize())[1],
    "read before and after": lambda s, x: ((x + 0).realize(), s.w.assign(x + s.w).realize(), x + 1)[2],
    "a part assigned": lambda s, x: (s.w.__setitem__(slice(0, 2), x[2:] * 2), (x * 1).realize())[1],
    "itself returned": lambda s, x: (s.w.assign(s.w + 1), x)[1],
    "asked for its identity": lambda s, x: x * 3 if x is s.w else x + s.w,
    "the argument assigned": _doubled,
}
ARGUMENTS: dict[str, Callable[[SimpleNamespace], Tensor]] = {
    "the tensor": lambda s: s.w, "detached": lambda s: s.w.detach(), "its node": lambda s: Tensor(s.w.uop),
    "its array": lambda s: Tensor(s.w.numpy()), "an expression": lambda s: s.w * 1,
    "another it sees": lambda s: s.v,
    "a view": lambda s: s.w.reshape(2, 2).reshape(4), "turned": lambda s: s.w.flip(0),
    "a part": lambda s: s.w.reshape(2, 2)[:1].expand(2, 2).reshape(4),
}


VIEWS = ("detached", "a view", "a part")                 # of w: a write to either is seen by both
CHANGING = [name for name in BODIES if name not in ("asked for its identity", "the argument assigned")]


def _follow(build: Callable[[SimpleNamespace], Function], arguments: Callable[[SimpleNamespace, int], Any],
            calls: int = CALLS) -> TinyJit:
    """Two worlds, one jitted: results, state and arguments must be equal after every call."""
    ours, plain = _world(), _world()
    jitted, function = TinyJit(build(ours)), build(plain)
    for call in range(calls):
        given, twin = arguments(ours, call), arguments(plain, call)
        got, want = jitted(*given), function(*twin)
        pairs = [(got, want), (ours.w, plain.w), (ours.v, plain.v)]
        pairs += [(a, b) for a, b in zip(given, twin) if isinstance(a, Tensor)]
        for number, (a, b) in enumerate(pairs):
            np.testing.assert_array_equal(a.numpy(), b.numpy(), f"call {call}, value {number}")
    return jitted


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("body", BODIES)
def test_an_argument_that_is_or_shares_what_the_function_sees(body: str, argument: str, first: int) -> None:
    def build(s: SimpleNamespace) -> Function:
        return lambda x: BODIES[body](s, x).realize()

    def arguments(s: SimpleNamespace, call: int) -> Any:
        return (ARGUMENTS[argument](s) if call >= first else _other(),)
    if body == "the argument assigned" and argument in VIEWS:
        with pytest.raises(JitError, match="which is a view of another tensor"):     # w would have to change
            _follow(build, arguments)
    elif body in CHANGING and argument in VIEWS:
        with pytest.raises(JitError, match="also changes by another way"):           # x would have to change
            _follow(build, arguments)
    else:
        assert _follow(build, arguments)._replayed >= 3


@pytest.mark.parametrize("argument", ["the tensor", "its array", "another it sees"])
def test_an_argument_in_a_gradient(argument: str) -> None:
    def build(s: SimpleNamespace) -> Function:
        return lambda x: _gradient(s, x).realize()
    assert _follow(build, lambda s, call: (ARGUMENTS[argument](s) if call >= 4 else _other(),))._replayed >= 3


def test_turn_by_turn() -> None:
    def build(s: SimpleNamespace) -> Function:
        return lambda x: (s.w.assign(s.w + 1), s.v.assign(s.v - 1), (x * 1).realize())[2]
    jitted = _follow(build, lambda s, call: ((s.w, s.v, _other(), s.w.clone())[call % 4],), 24)
    assert jitted._replayed >= 12


def test_many_that_it_sees_in_turn_have_a_capture_each(capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def build(s: SimpleNamespace) -> Function:
        s.rows = [Tensor([float(i), 1.0]).realize() for i in range(12)]
        return lambda x: (x.assign(x + s.w[:2]), (s.rows[0] + x).realize())[1]
    jitted = _follow(build, lambda s, call: (s.rows[call % 12],), 40)
    assert jitted._replayed == 16 and "drops" not in capsys.readouterr().out          # all but two for each
    monkeypatch.setattr(jit_module, "_MOST_COMBINATIONS", 5)
    with Context(DEBUG=1):
        jitted = _follow(build, lambda s, call: (s.rows[call // 4],), 4 * 6)
    assert jitted._replayed == 12 and len(next(iter(jitted._known.values())).replays) == 5
    assert capsys.readouterr().out.count("jit: <lambda> drops a capture that was not used for longest") == 1


WRAPPED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "a list": (lambda t: [t], lambda x: x[0]), "a dict": (lambda t: {"a": [t]}, lambda x: x["a"][0]),
    "a tuple": (lambda t: (1, (t,)), lambda x: x[1][0]),
}


@pytest.mark.parametrize("how", WRAPPED)
@pytest.mark.parametrize("first", [0, 4])
def test_inside_other_things(how: str, first: int) -> None:
    wrap, unwrap = WRAPPED[how]

    def build(s: SimpleNamespace) -> Function:
        return lambda x: (s.w.assign(s.w + 1), (unwrap(x) * 1).realize())[1]
    assert _follow(build, lambda s, call: (wrap(s.w if call >= first else _other()),))._replayed >= 3


def test_by_keyword_and_in_an_object_that_is_handed_in() -> None:
    def build(s: SimpleNamespace) -> Function:
        def function(holder: SimpleNamespace, x: Tensor) -> Tensor:
            holder.w.assign(holder.w * 2)
            return x + 1
        return lambda holder, x: function(holder, x=x).realize()
    assert _follow(build, lambda s, call: (s, s.w if call % 2 else s.v))._replayed >= 3


@pytest.mark.parametrize("first", [0, 4])
def test_one_tensor_handed_in_twice(first: int) -> None:
    def build(s: SimpleNamespace) -> Function:
        return lambda x, y: (x.assign(x + 1), (y * 1).realize())[1]
    held: dict[int, Tensor] = {}

    def arguments(s: SimpleNamespace, call: int) -> Any:
        one = held.setdefault(id(s), _other())
        return (one, one) if call >= first else (one, _other())
    assert _follow(build, arguments)._replayed >= 3


def test_two_arguments_that_share_memory() -> None:
    def build(s: SimpleNamespace) -> Function:
        return lambda x, y: (x.assign(x + 1), s.w.assign(s.w + y), (y * 1).realize())[2]
    assert _follow(build, lambda s, call: ((x := _other()), (x.clone(), s.w.clone(), s.w)[call % 3]),
                   15)._replayed >= 5
    for first in (0, 4):
        with pytest.raises(JitError, match="that it assigns to, and a view of it"):
            _follow(build, lambda s, call, first=first: ((x := _other()), x.detach() if call >= first else _other()))


def test_views_of_an_argument_that_is_assigned_to_show_the_new_value() -> None:
    function = TinyJit(lambda x, y: (x.assign(x + y), (y * 1).realize())[1])
    x = _other()
    view, start = x.reshape(2, 2)[1], x.numpy()
    for call in range(6):
        function(x, Tensor([1.0, 2.0, 3.0, 4.0]).realize())
        assert view.tolist() == (start + (call + 1) * np.arange(1, 5))[2:].tolist()


def test_a_tensor_that_was_written_through_a_reshaped_view_keeps_its_shape() -> None:
    """Its value is computed in the shape of the view, and the function reads it in its own."""
    seen = Tensor(np.arange(6, dtype=np.float32).reshape(3, 2)).realize()
    function = TinyJit(lambda x: seen * 2 + x)
    flat, zero = seen.reshape(-1), Tensor.zeros(3, 2).contiguous().realize()
    for call in range(6):
        flat.assign(flat + 1)
        assert function(zero).tolist() == (2 * (np.arange(6).reshape(3, 2) + call + 1)).tolist()


def test_a_view_of_one_argument_as_another_that_is_assigned_to_is_refused() -> None:
    function = TinyJit(lambda x, y: (y.assign(y + 1), (x * 1).realize())[1])
    for _ in range(4):
        function(_other(), Tensor([1.0, 2.0]).realize())
    x = _other()
    with pytest.raises(JitError, match="which is a view of another tensor"):
        function(x, x[1:3])


def test_a_tensor_out_of_sight_that_is_returned_is_that_tensor() -> None:
    hidden: Any = logging.Filter()           # objects of the standard library are not looked into
    hidden.w = Tensor([1.0, 2.0])

    @TinyJit
    def step(x: Tensor) -> Any:
        return x + hidden.w, hidden.w
    for call in range(5):
        total, itself = step(Tensor([1.0 * call, 0.0]))
        assert total.tolist() == [1.0 + call, 2.0] and itself is hidden.w
    assert step._replayed == 3


@pytest.mark.parametrize("first", [0, 4])
def test_out_of_sight_it_is_refused(first: int) -> None:
    hidden = logging.Filter()                # objects of the standard library are not looked into
    hidden.w = Tensor([1.0, 2.0]).realize()

    def changed(x: Tensor) -> Tensor:
        hidden.w.assign(hidden.w + 1)
        return (x * 1).realize()

    def read(x: Tensor) -> Tensor:
        x.assign(x * 2)
        return (x + hidden.w).realize()
    for function, words in ((changed, "also changes by another way"), (read, "also reads by another way")):
        jitted = TinyJit(function)
        for _ in range(first):
            jitted(Tensor([3.0, 4.0]).realize())
        with pytest.raises(JitError, match=words):
            jitted(hidden.w)


def test_the_whole_message() -> None:
    hidden = logging.Filter()                # objects of the standard library are not looked into
    hidden.w = Tensor([1.0, 2.0]).realize()
    with pytest.raises(JitError) as raised:
        TinyJit(lambda x: (hidden.w.assign(x + 1), x * 1)[1])(hidden.w)
    text = str(raised.value)
    for part in ("a jitted function changes an argument that it also uses in another way",
                 "an argument of shape (2,) that it also changes by another way", "pass a copy (x.clone())"):
        assert part in text


def test_a_state_that_is_replaced_inside_and_handed_in_is_still_replayed() -> None:
    def build(s: SimpleNamespace) -> Function:
        def function(x: Tensor) -> Tensor:
            s.v = (x + 1).realize()
            return (x * s.w).realize()
        return function
    assert _follow(build, lambda s, call: (s.v,))._replayed >= 4


def test_a_weight_handed_to_the_step_that_trains_it() -> None:
    def build(s: SimpleNamespace) -> Function:
        optimizer = nn.optim.SGD([s.w], lr=0.125)

        def step(x: Tensor) -> Tensor:
            with Context(TRAINING=1):
                optimizer.zero_grad()
                (s.w * x).sum().backward()
                optimizer.step()
                return (x + s.w).realize()
        return step
    assert _follow(build, lambda s, call: ((s.w, s.v)[call // 4 % 2],), 16)._replayed >= 8


# -- results that show weights ---------------------------------------------------------------------------------------
SHOWN: dict[str, Callable[[SimpleNamespace], Any]] = {
    "a view": lambda s: s.w.reshape(2, 2).T, "detached": lambda s: s.w.detach(), "a part": lambda s: s.w[1:3],
    "two": lambda s: [s.w.flip(0), {"v": s.v.detach()}], "itself and a view": lambda s: (s.w, s.w.reshape(2, 2)),
    "twice": lambda s: [s.w.detach()] * 2,
}


@pytest.mark.parametrize("change", ["no", "outside", "inside before", "inside after"])
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("how", SHOWN)
def test_a_result_that_is_a_view_of_a_weight(how: str, read: bool, change: str) -> None:
    ours, plain = _world(), _world()

    def build(s: SimpleNamespace) -> Function:
        def function(x: Tensor) -> Any:
            if change == "inside before":
                s.w.assign(s.w + x).realize()
            shown = SHOWN[how](s)
            out = (x * s.w if read else x * 2).realize()
            if change == "inside after":
                s.w.assign(s.w * 0.5).realize()
            return [out, shown]
        return function
    jitted, function = TinyJit(build(ours)), build(plain)
    kept: list[tuple[Tensor, Any]] = []
    for call in range(6):
        if change == "outside":
            ours.w.assign(ours.w + 1).realize(), plain.w.assign(plain.w + 1).realize()
        x = _other()
        got, want = _flat(jitted(x)), _flat(function(x))
        assert [a is ours.w for a in got] == [b is plain.w for b in want]
        assert [a is b for a in got for b in got] == [a is b for a in want for b in want]
        for a, b in zip([*got, ours.w, ours.v], [*want, plain.w, plain.v]):
            np.testing.assert_array_equal(a.numpy(), b.numpy(), f"call {call}")
        if call >= 2:      # not while it is traced: who holds a weight's value then might be seen by the function
            kept += [(a, np.array(b.numpy())) for a, b in zip(got, want) if b is not plain.w]
        del got, a
        for a, value in kept:
            np.testing.assert_array_equal(a.numpy(), value, f"kept until call {call}")
    assert jitted._replayed >= 3


@pytest.mark.parametrize("shown", [lambda u: u.contiguous(), lambda u: u[1:], lambda u: u[1:].realize(), Tensor,
                                   lambda u: Tensor(u, requires_grad=True)])
def test_a_result_that_shows_a_weight_is_a_leaf_only_where_it_is_one_without_the_jit(shown: Function) -> None:
    def gradients(wrap: Function) -> list[Any]:
        u = Tensor([1.0, 2.0]).realize()
        function = wrap(lambda: shown(u))
        results = [function() for _ in range(CALLS)]
        (results[-1] * 3).sum().backward()
        return [None if t.grad is None else t.grad.tolist() for t in (u, *results)]
    assert gradients(TinyJit) == gradients(lambda function: function)


def test_a_result_that_shows_a_weight_does_not_change_where_its_gradient_goes() -> None:
    def gradient(wrap: Function) -> Any:
        u, w = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0], requires_grad=True)
        u.replace(w)                       # from here on w gets the gradients of u too

        @wrap
        def function() -> Tensor:
            (u * u).sum().backward()
            return u.contiguous()
        for _ in range(CALLS):
            _result = function()           # kept until the next call
            w.realize(), u.realize()
        assert w.grad is not None
        return w.grad.tolist()
    assert gradient(TinyJit) == gradient(lambda function: function) == [6.0 * CALLS, 8.0 * CALLS]


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in (value.values() if isinstance(value, dict) else value) for t in _flat(v)]


def test_a_result_that_is_also_put_somewhere_is_one_tensor() -> None:
    s = _world()

    def function(x: Tensor) -> Any:
        s.v = (x + 1).realize()
        return s.v, (x * 2).realize()
    jitted = TinyJit(function)
    for _ in range(5):
        got, _ = jitted(_other())
        assert got is s.v
    got.assign(got * 0).realize()
    assert s.v.tolist() == [0.0] * 4


def test_a_tensor_that_becomes_another() -> None:
    def build(s: SimpleNamespace) -> Function:
        return lambda x: (s.w.replace(s.v), s.v.assign(s.v + x), (x * 2).realize())[2]
    assert _follow(build, lambda s, call: (_other(),))._replayed >= 3


def test_what_a_call_that_fails_did_to_its_arguments_stays_done() -> None:
    def function(x: Tensor, fail: bool) -> Tensor:
        x.assign(x + 1)
        return x * (1 // (not fail))
    jitted = TinyJit(function)
    for fail in (False, True, False, False, True):
        x = _other()
        if fail:
            with pytest.raises(ZeroDivisionError):
                jitted(x, fail)
        else:
            jitted(x, fail)
        assert x.tolist() == [11.0, 21.0, 31.0, 41.0]
