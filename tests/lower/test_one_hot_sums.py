"""A sum over positions of which one counts (lower/one_hot_sums.py) needs no loop: a loss of classes, its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from loop_kernels import Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, For, Kernel, walk
from glassgrad.compiler.lower.lower import lower


def loops(kernel: Kernel) -> list[int]:
    return [s.range.arg.size for phase in kernel.phases for s in walk(phase.body)
            if isinstance(s, For) and s.kind == LOOP]


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_the_term_is_read_where_it_lies(first: bool, negated: bool) -> None:
    rng, values, kernels = np.random.default_rng(0), Inputs(), []
    x = Tensor(values.leaf(rng.standard_normal((6, 11)).astype(np.float32)))
    numbers = Tensor(values.leaf(np.array([0, 10, 3, -1, 11, 1 << 30], np.int32))).reshape(6, 1)
    places = Tensor.arange(11).reshape(1, 11)
    chosen = ((places == numbers) if first else (numbers == places)).where(x * 2 + 1, 0)
    [sink] = rewrite([(-chosen if negated else chosen).sum(1).uop], ALGEBRA)

    def kept(ast: UOp) -> Kernel:
        kernels.append(lower(ast))
        return kernels[-1]
    check([sink], values, kept)                           # positions that are not there count 0
    assert [loops(k) for k in kernels] == [[]]


def test_one_position_for_all_rows() -> None:
    """The comparison has fewer axes than what it chooses from: a column of a matrix."""
    rng, values, kernels = np.random.default_rng(0), Inputs(), []
    x = Tensor(values.leaf(rng.standard_normal((2, 6, 11)).astype(np.float32)))
    number = Tensor(values.leaf(np.array([[[7]]], np.int32)))
    [sink] = rewrite([(Tensor.arange(11).reshape(1, 1, 11) == number).where(x, 0).sum(2).uop], ALGEBRA)

    def kept(ast: UOp) -> Kernel:
        kernels.append(lower(ast))
        return kernels[-1]
    check([sink], values, kept)
    assert [loops(k) for k in kernels] == [[]]


def test_other_sums_keep_their_loops() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 11)).astype(np.float32)
    places = Tensor.arange(11)
    for make in (lambda x, n: (places.reshape(1, 11) == n).where(x, 1).sum(1),         # the others count too
                 lambda x, n: (places.reshape(1, 11) != n).where(x, 0).sum(1),
                 lambda x, n: (places.reshape(1, 11) == n).where(x, 0).sum(0),         # not along the positions
                 lambda x, n: (places.reshape(1, 11) == n).where(x, 0).max(1)):
        values, kernels = Inputs(), []
        numbers = Tensor(values.leaf(np.array([0, 10, 3, 4, 5, 7], np.int32))).reshape(6, 1)
        [sink] = rewrite([make(Tensor(values.leaf(x)), numbers).uop], ALGEBRA)

        def kept(ast: UOp, kernels: list[Kernel] = kernels) -> Kernel:
            kernels.append(lower(ast))
            return kernels[-1]
        check([sink], values, kept)
        assert loops(kernels[-1])
