"""The graph fuzzer, bounded: fixed seeds on every device. Endless by command: python tests/reference/graph_fuzzer.py
[seed]"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from graph_fuzzer import Maker, check_seed, listing

from glassgrad.base.settings import Context
from glassgrad.compiler import pipeline
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import substitute, toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine import realize as engine

COUNTS = {"CPU": 150, "CLANG": 15, "PYTHON": 25}       # seeds on each device
GROUP = 10                                             # seeds in one test: the failing one is in the message


def groups(count: int) -> list[range]:
    return [range(first, min(first + GROUP, count)) for first in range(0, count, GROUP)]


@pytest.mark.parametrize("device, seeds", [(name, seeds) for name, count in COUNTS.items() for seeds in groups(count)],
                         ids=str)
def test_random_graphs_agree_with_the_interpreter(device: str, seeds: range) -> None:
    for seed in seeds:
        print(f"seed {seed}")
        check_seed(seed, (device,))


def test_narrower_vectors_agree_too() -> None:
    with Context(CPU_FEATURES="-avx512f"):
        for seed in range(1000, 1012):
            check_seed(seed, ("CPU",))


def test_the_fuzzer_is_the_same_for_the_same_seed_and_varied() -> None:
    again = [listing(Maker(7).graph(10)) for _ in range(2)]
    assert again[0] == again[1]
    seen = {n.op.name for seed in range(40) for n in toposort(Maker(seed).graph(12))}
    for name in ("ADD", "MUL", "EXP2", "SUM", "AMAX", "PERMUTE", "RESHAPE", "PAD", "SHRINK", "FLIP", "EXPAND", "WINDOW",
                 "UNWINDOW", "GATHER", "SCATTER", "SCAN", "CAST", "WHERE"):
        assert name in seen, name


def test_the_fuzzer_finds_and_shrinks_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where x + y is computed as x - y, the report names the seed, the device, both values and a small graph."""
    right = pipeline.rewrite

    def wrong(sinks: Sequence[UOp], *rules: Any) -> list[UOp]:
        sinks = right(sinks, *rules)
        return substitute(sinks, {n: UOp(o.SUB, n.dtype, n.src) for n in toposort(sinks)
                                  if n.op is o.ADD and n.dtype.is_float})

    monkeypatch.setattr(pipeline, "rewrite", wrong)
    monkeypatch.setattr(engine._known, "schedules", {})               # nobody else shall find these schedules
    with Context(CACHE=0), pytest.raises(AssertionError) as caught:
        for seed in range(1, 30):
            check_seed(seed, ("PYTHON",))
    first, *graph = str(caught.value).splitlines()
    assert re.fullmatch(r"seed \d+ on PYTHON \(NOOPT=0\): UOp.*: at \(.*\) got .*, expected .*", first)
    ops = [line.split()[1] for line in graph if re.match(r" +\d+ [A-Z]", line)]
    assert "ADD" in ops, "the smallest graph that still fails"
