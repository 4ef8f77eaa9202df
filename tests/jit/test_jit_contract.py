"""The jit's contract (docs/guide/jit.md): programs that must run, state outside that is guarded, what is refused."""

from __future__ import annotations

import contextvars
import gc
import os
import subprocess
import sys
import textwrap
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jit_reference import rand, same

from glassgrad import GlobalCounters, JitError, Tensor, nn
from glassgrad.jit import TinyJit

ROOT = Path(__file__).resolve().parents[2]
STEP = """
    import numpy as np
    from LIBRARY import Context, Tensor, TinyJit
    from LIBRARY.nn import optim
    Tensor.manual_seed(3)
    class Net:
      def __init__(self):
        self.c1, self.c2 = Tensor.scaled_uniform(8,1,3,3), Tensor.scaled_uniform(16,8,3,3)
        self.l1 = Tensor.scaled_uniform(400,10)
      def forward(self, x):
        x = x.reshape(-1,1,28,28).conv2d(self.c1).relu().max_pool2d().conv2d(self.c2).relu().max_pool2d()
        return x.reshape(x.shape[0], -1).dot(self.l1)
    m = Net(); opt = optim.Adam([m.c1, m.c2, m.l1], lr=0.001)
    def step(x, y):
      out = m.forward(x); loss = out.sparse_categorical_crossentropy(y)
      opt.zero_grad(); loss.backward(); opt.step()
      return loss.realize(), (out.argmax(axis=-1) == y).mean().realize()
    run, numbers = WRAP(step), np.random.default_rng(0)
    with Context(TRAINING=1):
      for i in range(6):
        x, y = numbers.random((16,784)).astype(np.float32), numbers.integers(0,10,16).astype(np.int32)
        results = run(Tensor(x), Tensor(y))
        print(*[round(r.item(), 3) for r in results])
"""


@pytest.mark.parametrize("library", ["glassgrad", "tinygrad"])
def test_a_training_step_as_texts_write_it(library: str, tmp_path: Path) -> None:
    def lines(wrap: str) -> list[str]:
        (tmp_path / "stepping.py").write_text(textwrap.dedent(STEP).replace("LIBRARY", library).replace("WRAP", wrap))
        runner = ["-m", "glassgrad.compat"] if library == "tinygrad" else []
        done = subprocess.run([sys.executable, *runner, str(tmp_path / "stepping.py")], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()
    jitted = lines("TinyJit")
    assert len(jitted) == 6 and jitted == lines("(lambda f: f)")


def test_a_tensor_that_is_garbage_in_a_circle_does_not_refuse_the_function() -> None:
    def step(x: Tensor) -> Tensor:
        circle: list[Any] = [x * 3]
        circle.append(circle)                # only the collector frees it
        return (x * 2).realize()
    jitted = TinyJit(step)
    gc.disable()
    try:
        for _ in range(5):
            x = rand(3)
            same(jitted(x), x * 2)
    finally:
        gc.enable()
    assert jitted._replayed == 3


def test_the_collector_does_not_run_on_replay() -> None:
    jitted = TinyJit(lambda x: (x * 2).realize())
    for _ in range(3):
        jitted(rand(3))
    seen: list[str] = []
    gc.callbacks.append(lambda phase, info: seen.append(phase))
    gc.disable()
    try:
        for _ in range(50):
            jitted(rand(3))
    finally:
        gc.enable()
        gc.callbacks.pop()
    assert not seen


# -- large objects -------------------------------------------------------------------------------------------------
def test_a_function_that_sees_a_whole_test_case() -> None:
    replays: list[int] = []

    class Case(unittest.TestCase):
        scale = 2.0

        def setUp(self) -> None:
            self.weight = rand(3).realize()

        @TinyJit
        def method(self, x: Tensor) -> Tensor:
            return (x * self.weight * self.scale).realize()

        def test_closure_and_method(self) -> None:
            jitted = TinyJit(lambda x: (x * self.weight * self.scale).realize())
            for call in range(8):
                if call == 5:
                    self.scale = 3.0
                x = rand(3)
                same(jitted(x), x * self.weight * self.scale)
                same(self.method(x), x * self.weight * self.scale)
            replays.extend([jitted._replayed, self.method._replayed])

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert all(count >= 4 for count in replays) and len(replays) == 2


class _Part:
    def __init__(self, number: int) -> None:
        self.number, self.more = number, [number]


@pytest.mark.parametrize("data", [
    lambda: [_Part(i) for i in range(10_000)], lambda: {i: _Part(i) for i in range(10_000)},
    lambda: [{"row": [i]} for i in range(30_000)], lambda: list(range(200_000)),
    lambda: {str(i): i for i in range(50_000)}, lambda: [[_Part(i) for i in range(40)] for _ in range(1000)]],
    ids=["objects", "a dict of objects", "rows", "numbers", "a dict of numbers", "many lists"])
def test_a_large_object(data: Callable[[], Any]) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.data, self.layer, self.settings = data(), nn.Linear(3, 3), SimpleNamespace(scale=2.0)

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            return (self.layer(x) * self.settings.scale).realize()

    trainer = Trainer()
    for call in range(7):
        if call == 4:
            trainer.settings.scale = 3.0
        x = rand(2, 3)
        same(trainer.step(x), trainer.layer(x) * trainer.settings.scale)
    assert trainer.step._replayed >= 3


# -- counters ------------------------------------------------------------------------------------------------------
CALLS = 0


class _Slots:
    __slots__ = ("count", "__weakref__")


def test_a_counter_that_each_call_raises_by_the_same_number() -> None:
    global CALLS
    CALLS, closure, slots = 0, 0, _Slots()
    slots.count = 10

    class Trainer:
        def __init__(self) -> None:
            self.weight, self.steps, self.seen = rand(3), 0, 0.5

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.seen = self.seen + 0.25
            self._note(2)
            return (x * self.weight).realize()

        def _note(self, by: int) -> None:
            slots.count -= by

        def report(self) -> str:             # not called by the step
            return f"{self.steps} steps"

    @TinyJit
    def count(x: Tensor) -> Tensor:
        nonlocal closure
        global CALLS
        closure += 3
        CALLS += 1
        return (x + 1).realize()

    trainer = Trainer()
    for call in range(1, 9):
        x = rand(3)
        same(trainer.step(x), x * trainer.weight)
        same(count(x), x + 1)
        assert (trainer.steps, trainer.seen, slots.count) == (call, 0.5 + 0.25 * call, 10 - 2 * call)
        assert (closure, CALLS) == (3 * call, call)
    assert trainer.step._replayed == count._replayed == 6
    trainer.steps = 100                      # a replay goes on from what is there
    trainer.step(rand(3))
    assert trainer.steps == 101 and trainer.step._replayed == 7


def test_a_counter_beside_an_object_that_is_looked_into_after_it() -> None:
    s = SimpleNamespace(part=SimpleNamespace(scale=2.0), steps=0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        s.steps += 1
        return (x * s.part.scale).realize()
    for call in range(1, 7):
        if call == 5:
            s.part.scale = 3.0
        x = rand(3)
        same(step(x), x * s.part.scale)
        assert s.steps == call
    assert step._replayed == 2


@pytest.mark.parametrize("body", [
    lambda s: s.step % 2, lambda s: (setattr(s, "double", s.step * 2)), lambda s: None if s.step > 3 else s.step])
def test_a_counter_that_is_also_read_is_refused(body: Callable[[Any], Any]) -> None:
    s = SimpleNamespace(step=0, double=0)

    def function(x: Tensor) -> Tensor:
        s.step += 1
        body(s)
        return (x * 2).realize()
    jitted = TinyJit(function)
    with pytest.raises(JitError, match="the function itself changes s.step, from"):
        for _ in range(4):
            jitted(rand(3))


def test_a_number_that_is_raised_by_other_amounts_is_refused() -> None:
    s, amounts = SimpleNamespace(total=0), iter(range(1, 100))

    def function(x: Tensor) -> Tensor:
        s.total += next(amounts)
        return (x * 2).realize()
    with pytest.raises(JitError):
        jitted = TinyJit(function)
        for _ in range(5):
            jitted(rand(3))


def test_a_number_that_alternates_is_no_counter() -> None:
    s = SimpleNamespace(side=0, sign=1)

    def side(x: Tensor) -> Tensor:
        s.side ^= 1
        return (x * 2).realize()

    def sign(x: Tensor) -> Tensor:
        s.sign *= -1
        return (x * 2).realize()

    def other_side(x: Tensor) -> Tensor:
        s.side = 1 - s.side
        return (x * 2).realize()

    def negated(x: Tensor) -> Tensor:
        s.side = -s.side + 1
        return (x * 2).realize()

    def chosen(x: Tensor) -> Tensor:
        s.side += -1 if s.side else 1
        return (x * 2).realize()
    for function in (side, sign, other_side, negated, chosen):
        jitted = TinyJit(function)
        with pytest.raises(JitError, match="the function itself changes s.si"):
            for _ in range(4):
                jitted(rand(3))


# -- state outside -------------------------------------------------------------------------------------------------
def _follow(function: Callable[[Tensor], Tensor], change: Callable[[int], Any]) -> TinyJit:
    jitted = TinyJit(function)
    for call in range(9):
        change(call)
        x = rand(3)
        same(jitted(x), function(x))
    assert jitted._replayed >= 3
    return jitted


def test_environment_variables_that_the_function_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SCALE", "2")
    for read in (lambda: os.environ["MY_SCALE"], lambda: os.getenv("MY_SCALE"), lambda: os.environ.get("MY_SCALE")):
        monkeypatch.setenv("MY_SCALE", "2")
        _follow(lambda x, read=read: x * float(read() or 0),
                lambda call: call == 5 and monkeypatch.setenv("MY_SCALE", "7"))


SCALE: contextvars.ContextVar[float] = contextvars.ContextVar("SCALE", default=2.0)


def test_context_variables_are_guarded() -> None:
    _follow(lambda x: x * SCALE.get(), lambda call: call == 5 and SCALE.set(5.0))
    with pytest.raises(JitError, match="the function itself changes SCALE"):
        jitted = TinyJit(lambda x: (SCALE.set(SCALE.get() * 2), x * 2)[1])
        for _ in range(4):
            jitted(rand(3))


def test_thread_local_values_are_guarded_in_each_thread() -> None:
    local = threading.local()
    local.scale = 2.0

    def function(x: Tensor) -> Tensor:
        return x * local.scale
    jitted = _follow(function, lambda call: call == 5 and setattr(local, "scale", 5.0))
    seen: list[Any] = []

    def other() -> None:
        local.scale = 11.0
        seen.extend(jitted(Tensor([1.0])).item() for _ in range(3))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [11.0] * 3 and jitted(Tensor([1.0])).item() == 5.0


def test_modules_imported_inside_are_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jit_settings.py").write_text("scale = 2.0\nother = 3.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def whole(x: Tensor) -> Tensor:
        import jit_settings
        return x * jit_settings.scale

    def part(x: Tensor) -> Tensor:
        from jit_settings import other
        return x * other

    def change(call: int) -> None:
        import jit_settings
        if call == 5:
            jit_settings.scale, jit_settings.other = 7.0, 8.0
    for function in (whole, part):
        _follow(function, change)
        import jit_settings
        jit_settings.scale, jit_settings.other = 2.0, 3.0


# -- launches ------------------------------------------------------------------------------------------------------
def test_launches_whose_results_cannot_be_read_are_dropped() -> None:
    weight = rand(4, 4).realize()

    def function(x: Tensor) -> Tensor:
        unread = (x @ weight).realize()
        (unread + 1).realize()                   # read by nothing either
        used = (x * 3).realize()
        return (used + 1).realize()
    jitted, counts = TinyJit(function), []
    for _ in range(4):
        x = rand(4, 4).realize()
        GlobalCounters.reset()
        result = jitted(x)
        counts.append(GlobalCounters.kernel_count)
        same(result, x * 3 + 1)
    assert counts == [4, 4, 2, 2] and len(jitted.jit_cache) == 2


def test_results_are_tensors_of_the_class_that_the_function_returns() -> None:
    class Mine(Tensor):
        pass
    jitted = TinyJit(lambda x: x * 2)
    for _ in range(4):
        assert type(jitted(Mine(np.ones(3, np.float32)))) is Mine
        assert type(jitted(Tensor(np.ones(3, np.float32)))) is Tensor
