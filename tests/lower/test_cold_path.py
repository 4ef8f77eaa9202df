"""Branching around what is rarely needed: the same values, and the expensive side in an If of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import Assign, If, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.moves.loop_moves import nodes_off_cold_paths
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import Target


def kernel_of(build, shape):
    result = build(UOp(o.PARAM, dtypes.float32, (), Param(1, shape)))
    out = UOp(o.PARAM, dtypes.float32, (), Param(0, result.shape))
    return lower(UOp(o.SINK, dtypes.float32, (UOp(o.STORE, dtypes.float32, (out, result)),)))


def run(kernel, x, size):
    out = np.zeros(size, np.float32)
    run_kernel(kernel, [out, x.ravel()])
    return out


@pytest.mark.parametrize("vector_bytes", [4, 16])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30, math.inf])
@pytest.mark.parametrize("name,build,reference", [
    ("sin", lambda x: x.sin(), np.sin),
    ("sum of sin", lambda x: x.sin().sum((1,)), lambda x: np.sin(x).sum(1)),
    ("sin of sin", lambda x: ((x.sin() * const(1e4)).sin() * const(1e4)).sin(), None),
    ("sin + cos", lambda x: x.sin() + (x + math.pi / 2).sin(), lambda x: np.sin(x) + np.cos(x))])
def test_the_same_values_with_and_without_the_branch(rng, vector_bytes, scale, name, build, reference):
    x = rng.normal(size=(5, 37)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        x[2, 30] *= np.float32(scale)              # one lane among many
        plain = kernel_of(build, x.shape)
        branched = optimize(plain, Target("x86_64", vector_bytes, 16))
        size = 5 if "sum" in name else x.size
        got = run(branched, x, size)
        np.testing.assert_allclose(got, run(plain, x, size), rtol=1e-5, atol=1e-6)
        if reference is not None:
            np.testing.assert_allclose(got, reference(x.astype(np.float64)).ravel(), rtol=1e-5, atol=1e-5)
    assert any(isinstance(s, If) for s in walk(branched.phases[0].body))


def test_the_usual_path_holds_no_64_bit_arithmetic():
    """It decides how many lanes fit a vector; the long reduction's products would halve them."""
    kernel = optimize(kernel_of(lambda x: x.sin(), (64,)), Target("x86_64", 64, 32))
    usual = [s.value for s in walk(kernel.phases[0].body) if isinstance(s, Assign)][0]
    nodes = nodes_off_cold_paths(usual)
    assert not any(n.dtype is dtypes.uint64 for n in nodes)
    assert sum(n.op not in (o.CONST, o.BITCAST, o.RANGE, o.LOAD) for n in nodes if n.dtype is not dtypes.index) < 25
