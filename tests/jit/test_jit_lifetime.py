"""Each promise of the jit about who lives how long: objects with jitted methods, copies of jits, the collector."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jit_reference import rand, same

from glassgrad import JitError, Tensor, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.state import get_parameters, get_state_dict


class _Lonely:
    def __init__(self) -> None:
        self.w = rand(3).realize()

    @TinyJit
    def step(self, x: Tensor) -> Tensor:
        self.w.assign(self.w + x)
        return (self.w * 2).realize()


class _Knot(_Lonely):
    def __init__(self, way: str) -> None:
        super().__init__()
        if way == "itself":
            self.itself = self
        elif way == "a child's parent":
            self.child = types.SimpleNamespace(parent=[self])
        elif way == "a bound method":
            self.forward = self.step
        elif way == "where the jit does not look":
            self.thread = threading.Thread(target=self.work)
        elif way == "a jit of its own":
            self.other = TinyJit(self.work)
            self.other()

    def work(self) -> Tensor:
        return (self.w + 1).realize()


@pytest.mark.parametrize("way", ["none", "itself", "a child's parent", "a bound method", "where the jit does not look",
                                 "a jit of its own"])
def test_an_object_with_a_jitted_method_dies_like_any_other(way: str) -> None:
    knot, plain = _Knot(way), _Lonely()
    plain.w = Tensor(knot.w.numpy()).realize()
    for _ in range(5):
        x = rand(3)
        same(knot.step(x), _Lonely.step.function(plain, x))
    assert knot.step.captured and {name.split(".")[-1] for name in get_state_dict(knot)} == {"w"}
    twin = copy.copy(knot)
    assert twin.step is not knot.step and copy.deepcopy(plain).step is not plain.step
    gone = weakref.ref(knot)
    del knot, twin
    gc.collect()
    assert gone() is None


def test_objects_that_are_equal_or_have_no_hash_have_jits_of_their_own() -> None:
    @dataclasses.dataclass
    class Scale:
        by: float

        @TinyJit
        def apply(self, x: Tensor) -> Tensor:
            return x * self.by
    one, two = Scale(2.0), Scale(2.0)
    assert one == two and one.apply is not two.apply and one.apply is one.apply
    for _ in range(4):
        assert one.apply(Tensor([3.0])).tolist() == [6.0] == two.apply(Tensor([3.0])).tolist()
    two.by = 5.0
    assert two.apply(Tensor([3.0])).tolist() == [15.0] and one.apply(Tensor([3.0])).tolist() == [6.0]


def test_an_object_that_cannot_be_referred_to_weakly() -> None:
    class Bare:
        __slots__ = ()

        @TinyJit
        def f(self, x: Tensor) -> Tensor:
            return x + 1
    with pytest.raises(JitError) as error:
        Bare().f(Tensor([1.0]))
    assert str(error.value).partition("\n  at: ")[0] == """\
a jitted method needs an object that can be referred to weakly
  given:    a Bare
  expected: an object with __weakref__
  fix:      add "__weakref__" to its __slots__, or jit a function instead"""


def twice(x: Tensor) -> Tensor:
    return (x + x).realize()


@TinyJit
def doubled(x: Tensor) -> Tensor:
    return (x * 2).realize()


class Stepping:
    def __init__(self) -> None:
        self.weight = Tensor([3.0]).realize()
        self.step = TinyJit(self.forward)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).realize()

    @TinyJit
    def method(self, x: Tensor) -> Tensor:
        return (x * self.weight).realize()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda jit: pickle.loads(pickle.dumps(jit))])
def test_a_copy_of_a_jit_has_captures_of_its_own(copied: Callable[[Any], Any]) -> None:
    anonymous = TinyJit(twice)           # no module knows it by the function's name
    for jit in (doubled, anonymous):
        for i in range(3):
            assert jit(Tensor([float(i)]).realize()).item() == 2 * i
        other = copied(jit)
        assert other is jit if jit is doubled else other.captured is False
        for i in range(4):
            assert other(Tensor([float(i)]).realize()).item() == jit(Tensor([float(i)]).realize()).item() == 2 * i


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copied_object_has_jits_of_its_own(copied: Callable[[Any], Any]) -> None:
    one = Stepping()
    for i in range(4):
        assert one.step(Tensor([float(i)]).realize()).item() == one.method(Tensor([float(i)]).realize()).item() == 3 * i
    two = copied(one)
    two.weight.assign(Tensor([5.0])).realize()
    for i in range(4):
        x = Tensor([float(i)]).realize()
        assert [two.step(x).item(), two.method(x).item(), one.step(x).item(), one.method(x).item()] == \
            [5 * i, 5 * i, 3 * i, 3 * i]


def test_a_jit_in_a_model_is_no_part_of_its_state() -> None:
    model = types.SimpleNamespace(layer=nn.Linear(2, 2))
    model.forward = TinyJit(lambda x: model.layer(x).realize())
    for _ in range(4):
        model.forward(rand(1, 2))
    assert list(get_state_dict(model)) == ["layer.weight", "layer.bias"] and len(get_parameters(model)) == 2


@pytest.mark.parametrize("inside", [gc.collect, lambda: gc.collect(0), lambda: None], ids=["all", "young", "none"])
def test_the_collector_of_garbage_is_left_as_it_was(inside: Callable[[], Any]) -> None:
    state = types.SimpleNamespace(w=rand(2))

    def function(x: Tensor) -> Tensor:
        assert gc.isenabled()
        inside()
        state.w.assign(state.w * 0.5 + x)
        inside()
        return (state.w * 1).realize()
    jitted, twin = TinyJit(function), np.array(state.w.numpy())
    for _ in range(5):
        x = rand(2)
        twin = twin * np.float32(0.5) + x.numpy()
        same(jitted(x), twin)
    with pytest.raises(ZeroDivisionError):
        TinyJit(lambda x: x / (1 // 0))(rand(2))
    assert gc.isenabled() and jitted.captured
