"""The node: interning, shapes, devices, walking, pickling, threads, and chains of 100,000."""

from __future__ import annotations

import gc
import math
import pickle
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from graph_leaves import Values, buffer

from glassgrad.base.errors import Bug, DeviceError, ShapeError
from glassgrad.base.source_lines import one_place, user_place
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import node as node_module, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.node import substitute, toposort
from glassgrad.compiler.graph.op_arguments import Cell, Param
from glassgrad.compiler.graph.uop import UOp, const, full, identity


def param(shape, dtype=dtypes.float32):
    return UOp(o.PARAM, dtype, (), Param(0, shape))


# -- interning --------------------------------------------------------------------------------------------------------
def test_equal_nodes_are_one():
    x = buffer((2, 3))
    assert x + 1.0 is x + 1.0 and (x * x).sum((0,)) is (x * x).sum((0,))
    assert x + 1.0 is not x + 2.0 and x + 1.0 is not x * 1.0
    assert buffer((2,)) is not buffer((2,)), "buffers are themselves, not their description"
    assert UOp(o.SCALAR, dtypes.float32, (), Cell(1.0)) is not UOp(o.SCALAR, dtypes.float32, (), Cell(1.0))


def test_constants_are_told_apart_by_their_bits():
    direct = [UOp(o.CONST, dtypes.float32, (), v) for v in (1, 1.0, True)]
    assert len(set(map(id, direct))) == 3
    assert const(0.0) is not const(-0.0) and const(0.0) is const(0.0)
    assert const(math.nan) is const(math.nan) and const(float("nan")) is const(math.nan)
    assert const(1, dtypes.int32) is not const(1, dtypes.int64)
    assert const(1, dtypes.float32) is const(1.0, dtypes.float32) is const(True, dtypes.float32)
    assert const(1) is not const(True) and const(1) is not const(1.0)
    assert math.copysign(1, const(-0.0).arg) == -1


def test_constants_are_rounded_to_their_type():
    assert const(0.1, dtypes.float32) is const(float(np.float32(0.1)), dtypes.float32)
    assert const(2**24 + 1, dtypes.int32).cast(dtypes.float32).cast(dtypes.int32) is const(2**24, dtypes.int32)
    assert const(0.1, dtypes.float64).cast(dtypes.float16).cast(dtypes.float64).arg == float(np.float16(0.1))
    assert const(np.float32(0.5), dtypes.float32) is const(0.5) and const(np.int64(3), dtypes.int32) is const(3)


def test_nodes_die_with_their_last_user():
    x = buffer((7, 11))
    watch = weakref.ref(x + 123.5)
    gc.collect()
    assert watch() is None
    constants = [const(float(i)) for i in range(100)]      # the latest constants are kept for the next line
    before = len(node_module._table)
    kept = [x * c for c in constants]
    assert len(node_module._table) >= before + 100
    del kept
    gc.collect()
    assert len(node_module._table) <= before + 1


def test_threads_make_the_same_nodes():
    x = buffer((3,))
    made: list[list[UOp]] = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def work(mine: list[UOp]) -> None:
        barrier.wait()
        for i in range(2000):
            mine.append((x + float(i % 50)) * float(i % 7))
            if i % 50 == 49:
                del mine[:]                            # nodes die in one thread while another makes them

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(m,)) for m in made]
        for t in threads: t.start()
        for t in threads: t.join()
    finally:
        sys.setswitchinterval(switch)
    nodes = [(x + float(i % 50)) * float(i % 7) for i in range(50)]
    again = [(x + float(i % 50)) * float(i % 7) for i in range(50)]
    assert all(a is b for a, b in zip(nodes, again))
    del nodes, again, made
    gc.collect()
    assert not [e for e in node_module._table.values() if e() is None], "dead entries stay in the table"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that interrupt")
def test_no_interrupt_is_lost_while_nodes_die(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, seen, stop = [], 0, time.monotonic() + 20
    monkeypatch.setattr(sys, "unraisablehook", lambda about: lost.append(about.object))
    x = buffer((5,))

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while seen < 100 and not lost and time.monotonic() < stop:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                for i in range(100_000):
                    _ = x * float(i)
            except KeyboardInterrupt:
                seen += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not lost
    assert seen > 0


# -- order ------------------------------------------------------------------------------------------------------------
def ordered(roots, sources):
    """The nodes in the order of a depth-first walk: a second way to say what `toposort` gives."""
    done, waiting = {}, list(reversed(roots))
    while waiting:
        below = [source for source in sources(waiting[-1]) if source not in done]
        if below:
            waiting.append(below[0])
        else:
            done.setdefault(waiting.pop())
    return list(done)


@pytest.mark.parametrize("depth", [3, 30, 63, 64, 65, 66, 300])
def test_sources_come_before_users_at_any_depth(depth):
    random = np.random.default_rng(depth)
    nodes = [param((2,)), const(2.0)]
    for _ in range(depth):
        near, far = nodes[-1], nodes[random.integers(len(nodes))]
        nodes.append(near + far if random.integers(2) else far * near)
    roots = [nodes[-1], nodes[depth // 2], nodes[-2] - nodes[-1]]
    assert toposort(roots) == ordered(roots, lambda node: node.src)
    assert toposort(roots, lambda node: node.src[:1]) == ordered(roots, lambda node: node.src[:1])


def test_a_sort_keeps_no_node_alive():
    gc.disable()
    try:
        node = param((2,)) * 3.5 + 1.25
        gone = weakref.ref(node)
        toposort([node])
        toposort([node], lambda n: n.src)
        del node
        assert gone() is None, "without a collection of garbage"
    finally:
        gc.enable()


# -- long chains ------------------------------------------------------------------------------------------------------
@pytest.fixture
def chain():
    x = node = param((2,))
    for i in range(100_000):
        node = node + float(i % 3)
    return x, node


def test_a_long_chain_walks_pickles_and_substitutes(chain):
    x, node = chain
    assert len(toposort([node])) == 100_000 + 4
    text = pickle.dumps(node)
    assert pickle.loads(text) is node
    y = param((2,), dtypes.float32).detach()
    assert substitute([node], {x: y})[0] is not node


def test_a_long_chain_is_freed_without_recursion():
    node = buffer((2,))
    start = len(node_module._table)
    for _ in range(100_000):
        node = node * 1.5
    del node
    gc.collect()
    assert len(node_module._table) <= start + 1


def test_pickled_graphs_come_back_as_the_same_nodes():
    x = param((2, 3))
    node = (x.reshape((3, 2)).permute((1, 0)).pad(((1, 1), (0, 0))) * const(math.inf)).sum((0,)).cast(dtypes.float16)
    assert pickle.loads(pickle.dumps(node)) is node
    one, two = pickle.loads(pickle.dumps([node, node + 1.0]))
    assert one is node and two is node + 1.0


# -- shapes -----------------------------------------------------------------------------------------------------------
def test_shapes():
    x = buffer((2, 3, 4))
    assert (x + x).shape == (2, 3, 4) and (x + 1.0).shape == (2, 3, 4) and (const(1.0) + 2.0).shape == ()
    assert x.sum((0, 2)).shape == (1, 3, 1) and x.sum(()) is x
    assert x.reshape((4, 6)).shape == (4, 6) and x.permute((2, 0, 1)).shape == (4, 2, 3)
    assert x.pad(((1, 0), (0, 2), (0, 0))).shape == (3, 5, 4) and x.shrink(((0, 1), (1, 1), (0, 4))).shape == (1, 0, 4)
    assert x.window(1, 2).shape == (2, 2, 4, 2) and x.window(2, 2, 2, 2).shape == (2, 3, 1, 2)
    assert x.window(1, 2).unwindow(1, 1, 1, 3).shape == (2, 3, 4, 2)
    assert x.window(0, 5).shape == (0, 3, 4, 5)
    assert const(1.0).broadcast((2, 3)).shape == (2, 3) and full((0, 2), 1).shape == (0, 2)
    assert UOp(o.GATHER, x.dtype, (x, buffer((5, 6), dtypes.int32))).shape == (5, 6, 3, 4)


def test_what_changes_nothing_is_left_out():
    x = buffer((2, 3))
    assert x.reshape((2, 3)) is x and x.permute((0, 1)) is x and x.expand((2, 3)) is x and x.flip(()) is x
    assert x.pad(((0, 0), (0, 0))) is x and x.shrink(((0, 2), (0, 3))) is x and x.cast(dtypes.float32) is x
    assert x.reshape((6,)).reshaped((2, 3)) is x and x.contiguous() is x
    assert x.reshape((6,)).reshaped((3, 2)) is x.reshape((3, 2))


def test_shape_mistakes_are_told():
    x = buffer((2, 3))
    with pytest.raises(ShapeError) as error:
        x.reshape((4, 2))
    assert str(error.value).startswith(
        "cannot reshape: the number of elements changes\n  given:    (2, 3) (6 elements) to (4, 2) (8 elements)\n"
        "  expected: a shape with 6 elements\n  fix:      use -1 for the size that should follow from the others\n")
    with pytest.raises(ShapeError) as error:
        x.expand((2, 4))
    assert str(error.value).startswith("cannot expand to this shape\n  given:    (2, 3) to (2, 4)\n")
    with pytest.raises(ShapeError, match="cannot expand to this shape"):
        x + buffer((3, 2))
    with pytest.raises(Bug, match="different shapes"):
        x.alu(o.ADD, buffer((3, 2)))


def test_devices_meet():
    x, y = buffer((2,), device="A"), buffer((2,), device="B")
    assert (x + 1.0).device == "A" and const(1.0).device is None and (x.copy_to("B") + y).device == "B"
    with pytest.raises(DeviceError) as error:
        x + y
    assert str(error.value).startswith('operands live on different devices\n  given:    A and B\n'
                                       '  expected: one device\n  fix:      move one: x.to("A")\n')


def test_a_node_knows_the_line_that_made_it():
    x = buffer((3,))
    node = x * 77.0
    assert node.line is not None and node.line.short.startswith("test_graph_uop.py:")
    here = sys._getframe().f_lineno
    assert here - 4 <= node.line.number < here


def test_a_place_is_held_for_one_thread_and_until_the_outermost_block_ends():
    outer, inner = ((compile("", name, "exec"), 0) for name in ("outer.py", "inner.py"))
    with one_place(outer):
        with one_place(inner):
            assert user_place() is inner
        assert user_place() is outer
        found = []
        thread = threading.Thread(target=lambda: found.append(user_place()))
        thread.start()
        thread.join()
    assert found[0] is not outer and user_place() is not outer


# -- small builders ---------------------------------------------------------------------------------------------------
def test_comparisons_at_nan_are_false():
    values = Values()
    x = values.leaf(np.array([1.0, 2.0, 3.0, np.nan]))
    assert values.of(x.ge(2.0)).tolist() == [False, True, True, False]
    assert values.of(x < 2.0).tolist() == [True, False, False, False]
    assert values.of(x > 2.0).tolist() == [False, False, True, False]
    assert values.of(x.eq(x)).tolist() == [True] * 3 + [False] and values.of(x.ne(x)).tolist() == [False] * 3 + [True]


@pytest.mark.parametrize("op, dtype, value", [
    (o.ADD, dtypes.int8, 0), (o.MUL, dtypes.float32, 1.0), (o.MAX, dtypes.float32, -math.inf),
    (o.MAX, dtypes.int8, -128), (o.MIN, dtypes.uint8, 255), (o.MAX, dtypes.bool, False), (o.MIN, dtypes.bool, True)])
def test_identities(op, dtype, value):
    assert identity(op, dtype) is const(value, dtype)


def test_base_is_below_all_movement():
    x = buffer((2, 3))
    assert x.reshape((3, 2)).permute((1, 0)).detach().flip((0,)).base is x and (x + 1.0).base is x + 1.0


def test_substitute_rebuilds_what_is_above():
    x, y = buffer((2,)), buffer((2,))
    out, same = substitute([x * 2.0 + 1.0, y], {x: y})
    assert out is y * 2.0 + 1.0 and same is y


def test_where_takes_plain_numbers():
    x = buffer((2,))
    got = interpret([(x < 0.0).where(1, x), (x < 0.0).where(x, 2.0)], {x: np.array([-1.0, 5.0], np.float32)})
    assert [g.tolist() for g in got] == [[1, 5], [-1, 2]]
