"""Ctrl-C during a long schedule: it is taken after the running kernel, and what was computed before stays right."""

from __future__ import annotations

import pytest
from scripts import run_script

from glassgrad import Device

pytestmark = pytest.mark.skipif(Device.DEFAULT != "CPU", reason="about the CPU's command list")

# A chain of products in one schedule, cut where Python looks for a Ctrl-C after few of them. `interrupted` sends one
# after a sixth of the time that the whole takes, and returns whether it was taken well before the end: by
# the processor's time, which other programs do not change.
SCRIPT = """
    import os, signal, threading, time
    import numpy as np
    from glassgrad import Tensor, TinyJit
    from glassgrad.runtime import backend
    backend.LONG_WORK = 10_000_000
    matrix = Tensor(np.random.default_rng(0).uniform(0.0, 0.0078, (256, 256)).astype(np.float32)).realize()

    def chain(x, products=400):
        for _ in range(products): x = (x @ matrix).contiguous()
        return x

    def timed(work):
        begin, used = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - begin, time.process_time() - used

    def interrupted(work, whole):
        for _ in range(3):                        # a signal comes late where the machine is busy
            timer = threading.Timer(whole[0] / 6, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            begin = time.process_time()
            try:
                work()
                return "it was not interrupted"
            except KeyboardInterrupt:
                if time.process_time() - begin < 0.7 * whole[1]:
                    return True
        return False
"""


def test_an_interrupt_is_taken_between_kernels_and_the_value_can_be_computed_afterwards() -> None:
    script = SCRIPT + """
    expected = chain(matrix).numpy()
    whole = timed(chain(matrix).realize)
    result = chain(matrix)
    print(interrupted(result.realize, whole), np.array_equal(result.numpy(), expected))
    """
    assert run_script(script) == ("True True\n", "")


def test_a_part_that_was_being_written_in_place_is_right_afterwards() -> None:
    script = SCRIPT + """
    value = chain(matrix).numpy()
    def rows():
        cache = Tensor.ones(4, 256, 256).contiguous().realize()
        cache[2] = chain(matrix)
        return cache
    rows().realize()
    whole = timed(rows().realize)
    cache = rows()
    print(interrupted(cache.realize, whole))
    expected = np.ones((4, 256, 256), np.float32)
    expected[2] = value
    print(np.array_equal(cache.numpy(), expected))
    """
    assert run_script(script) == ("True\nTrue\n", "")


def test_a_replay_is_interrupted_before_it_writes_in_place_or_not_at_all() -> None:
    script = SCRIPT + """
    first, second = Tensor([1.0]).realize(), Tensor([10.0]).realize()

    @TinyJit
    def step(x):
        y = chain(x)
        first.assign(first + y.mean() * 0 + 1)
        second.assign(second + y.mean() * 0 + 1)
        return chain(y, 20).mean()

    for _ in range(3): step(matrix)
    whole = timed(lambda: step(matrix))
    expected = step(matrix).item()
    values = (first.item(), second.item())
    print(step.captured, values, interrupted(lambda: step(matrix), whole), (first.item(), second.item()) == values)
    print(step(matrix).item() == expected, (first.item(), second.item()))
    """
    assert run_script(script) == ("True (6.0, 15.0) True True\nTrue (7.0, 16.0)\n", "")


def test_an_interrupt_while_weights_are_written_waits_until_all_of_them_are() -> None:
    """One weight is written in place and the other, of which the kernel reads another element, is not: an interrupted
    call gives both their new values, or none of them."""
    script = SCRIPT + """
    first, second = Tensor([0.0]).realize(), Tensor([0.0] * 4).realize()

    @TinyJit
    def step(x):
        first.assign(first + 1)
        second.assign(second.flip(0) + 1 + chain(x).mean() * 0)
        return first.sum()

    for _ in range(4): step(matrix)
    whole = timed(lambda: step(matrix))
    interrupted(lambda: step(matrix), whole)
    print(first.item() in (5.0, 6.0), second.tolist() == [first.item()] * 4)
    step(matrix)
    print(second.tolist() == [first.item()] * 4)
    """
    assert run_script(script) == ("True True\nTrue\n", "")


# A jitted function, and a Ctrl-C in the next call of one method of its replay.
INTERRUPTED = """
    import numpy as np
    from glassgrad import Context, Tensor, TinyJit
    from glassgrad.engine.replay import Replay
    weight = Tensor([1.0, 2.0, 3.0]).realize()

    @TinyJit
    def step(x):
        weight.assign(weight.flip(0) + x)
        return weight * 2

    def interrupted(name, x):
        method = getattr(Replay, name)
        def stops(*arguments):
            setattr(Replay, name, method)
            raise KeyboardInterrupt
        setattr(Replay, name, stops)
        try:
            step(x)
            print("it was not interrupted")
        except KeyboardInterrupt:
            pass

    first, second = (Tensor([n] * 3).realize() for n in (0.0, 10.0))
    for _ in range(4): step(first)
    print(step.captured, weight.tolist())
"""


def test_a_jitted_function_works_after_a_ctrl_c_at_the_beginning_of_its_first_replay() -> None:
    script = INTERRUPTED + """
    with Context(DEBUG=0, CHECK_INDEX=0):
        for _ in range(2): step(first)
        interrupted("prepare", first)
        print(step(first).tolist())
    """
    assert run_script(script) == ("True [1.0, 2.0, 3.0]\n[6.0, 4.0, 2.0]\n", "")


def test_an_argument_is_read_after_a_ctrl_c_while_it_was_bound() -> None:
    script = INTERRUPTED + """
    interrupted("bind", second)
    print(step(second).tolist())
    """
    assert run_script(script) == ("True [1.0, 2.0, 3.0]\n[26.0, 24.0, 22.0]\n", "")


def test_a_weight_is_read_after_a_ctrl_c_while_its_new_value_was_bound() -> None:
    script = INTERRUPTED + """
    interrupted("bind", first)                    # its value is new, and what reads it is still to be told
    print(weight.tolist())
    print(step(first).tolist(), step(first).tolist())
    """
    assert run_script(script) == ("True [1.0, 2.0, 3.0]\n[3.0, 2.0, 1.0]\n[2.0, 4.0, 6.0] [6.0, 4.0, 2.0]\n", "")


@pytest.mark.parametrize("nested", [False, True])
def test_a_block_comes_to_its_end_though_the_handler_sets_another_one(nested: bool) -> None:
    """The first Ctrl-C of many programs only makes the second one interrupt."""
    script = """
    import os, signal
    from contextlib import nullcontext
    from glassgrad.base.interrupts import interrupts_deferred, take_interrupt

    def first(number, frame):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("once more")

    signal.signal(signal.SIGINT, first)
    try:
        with interrupts_deferred():
            with interrupts_deferred() if NESTED else nullcontext():
                os.kill(os.getpid(), signal.SIGINT)
            take_interrupt()
            os.kill(os.getpid(), signal.SIGINT)
            print("to the end")
    except KeyboardInterrupt:
        print("interrupted")
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """.replace("NESTED", str(nested))
    assert run_script(script) == ("once more\nto the end\ninterrupted\nTrue\n", "")


def test_an_inner_block_does_not_interrupt_the_outer_one() -> None:
    script = """
    import os, signal
    from glassgrad.base.interrupts import interrupts_deferred

    try:
        with interrupts_deferred():
            with interrupts_deferred():
                os.kill(os.getpid(), signal.SIGINT)
            print("to the end")
    except KeyboardInterrupt:
        print("interrupted")
    """
    assert run_script(script) == ("to the end\ninterrupted\n", "")
