"""CHECK=1 names the pass and the rule or move that is wrong, and writes a script that shows it again."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgrad import Bug, Context, Device, Tensor
from glassgrad.compiler import pipeline
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.rules import algebra
from glassgrad.compiler.graph.rules.rewrite import Rule, RuleSet, holes, node
from glassgrad.compiler.lower.loops import Accumulate, Store, walk
from glassgrad.compiler.optimize.moves import loop_moves, reduction_moves
from glassgrad.compiler.optimize.moves.move_decorator import logged_moves, move
from glassgrad.compiler.render.llvm import llvm_ir
from glassgrad.engine import realize as engine
from glassgrad.engine.check.one_kernel import check_alone
from glassgrad.engine.check.reproduce import kernel_script


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep what is wrong out of later tests, and scripts in a folder of this one."""
    monkeypatch.setenv("CACHE", "0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(engine._known, "schedules", {})
    monkeypatch.setattr(Device["CPU"], "_programs", {})
    yield
    monkeypatch.setattr("tempfile.tempdir", None)


def message_of(tensor: Tensor) -> str:
    with Context(CHECK=1), pytest.raises(Bug) as caught:
        tensor.realize()
    return str(caught.value)


def run_again(message: str) -> str:
    """What the script of a message says: a `Bug`, or nothing where the fault is gone."""
    found = re.search(r"to see it again: python (\S+)", message)
    assert found is not None, message
    try:
        runpy.run_path(found[1])
    except Bug as problem:
        return str(problem)
    return ""


def test_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = holes("x y", "f")
    try:
        wrong = Rule("planted", node(o.SUB, x, y), node(o.ADD, x, y), why="a rule that is wrong")
        monkeypatch.setattr(pipeline, "ALGEBRA", RuleSet([wrong, *algebra.ALGEBRA]))
        a, b = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize(), Tensor([5.0, 7.5]).realize()
        message = message_of((a - b).relu().sum(1))
        assert "CHECK: the pass fold is wrong, by its rule planted (a rule that is wrong)\n" in message
        assert f"{__file__}:" in message and "SUB" in message
        again = run_again(message)
        assert "CHECK: planted changes what a graph means" in again
    finally:
        del Rule.known["planted"]


@pytest.mark.only_on("CPU", "CLANG", reason="these moves make a CPU's loops")
@pytest.mark.parametrize("fault", ["wide_reduce", "merge", "tasks"])
def test_a_wrong_move(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = reduction_moves if fault == "wide_reduce" else loop_moves
    right = getattr(module, fault)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right.__wrapped__(*args, **kwargs)
        found = result if isinstance(result, list) else [] if result is None else [result]
        for s in walk(found):
            if isinstance(s, Accumulate):
                s.value = s.value + 1.0
            elif isinstance(s, Store) and fault == "merge":
                s.value = s.value * 2.0
        return result

    wrong.__name__, wrong.__doc__, wrong.__module__ = fault, right.__doc__, module.__name__
    leave_out = {"wide_reduce": lambda *_, **__: None, "merge": lambda *_: None, "tasks": lambda loop, *_: loop}[fault]
    monkeypatch.setattr(module, fault, move(leave_out)(wrong))
    x = Tensor(np.random.default_rng(0).random((300, 400)).astype("float32")).realize()
    tensor = x * 3 + 1 if fault == "merge" else x.sum(1) if fault == "wide_reduce" else x.sum()
    message = message_of(tensor)
    assert f"CHECK: the pass optimize is wrong, by its move {fault} (move " in message
    assert "->" in message.splitlines()[0]
    assert f"by its move {fault} (move " in run_again(message)


@pytest.mark.only_on("CPU", reason="the line is one of LLVM IR")
def test_a_wrong_line_of_a_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    right = llvm_ir.render_llvm
    monkeypatch.setattr(llvm_ir, "render_llvm", lambda *args: right(*args).replace("fadd", "fsub"))
    message = message_of(Tensor([1.0, 2.0]).realize() + Tensor([3.0, 5.0]).realize())
    assert "CHECK: the loop tree is right, so render, the compiler or the launch is wrong" in message
    assert "the loop tree is right" in run_again(message)
    monkeypatch.undo()
    with Context(CACHE=0):
        assert run_again(message) == "", "the script ends well once the fault is gone"


def test_the_script_keeps_what_a_kernel_depends_on() -> None:
    """Types, constants that are not finite, integers, gathers and settings come back from the text."""
    rng = np.random.default_rng(1)
    cases = [Tensor(rng.random((5, 7)).astype("float32")).softmax(), Tensor([1, 2, 3]) * 5 // 2,
             Tensor([1.0, 2.0, 3.0])[Tensor([2, 0])], Tensor([True, False]).where(Tensor([1.0, 2.0]), float("-inf")),
             Tensor([1.0, 2.0]).half() * 3, Tensor(rng.random((4, 6, 6)).astype("float32")).cumsum(1)]
    for case in cases:
        for item in case.schedule():
            data = {}
            for n in item.ast.toposort():
                if n.op is o.PARAM:
                    values = rng.integers(0, 2, n.size) if not n.dtype.is_float else rng.random(n.size)
                    data[n.arg.slot] = values.astype(n.dtype.format).tobytes()
            path = kernel_script(item.ast, data, "CPU", "a test")
            built = runpy.run_path(path)
            assert built["nodes"][-1] is item.ast and built["inputs"] == data


def test_the_first_moves_alone_give_a_whole_tree() -> None:
    [item] = Tensor.rand(30, 23).realize().softmax().schedule()
    device = Device["CPU"]
    with logged_moves() as log:
        device.loop_tree(item.ast)
    assert [m.name for m in log.applied] == ["wide_reduce", "wide_reduce", "wide"]
    assert all("->" in m.does and m.file.startswith("optimize/moves/") for m in log.applied)
    for count in range(4):
        with logged_moves(count) as part:
            device.loop_tree(item.ast)
        assert part.applied == log.applied[:count]


def test_a_right_kernel_alone() -> None:
    [item] = (Tensor([1.0, 2.0]).realize() * 2 + 1).schedule()
    check_alone(item.ast, {0: bytes(8), 1: np.array([1.0, 2.0], "float32").tobytes()}, "CPU")
