"""Large results go past the caches: where that is possible, where it pays, and to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from render_kernels import HOST, run

from glassgrad import Tensor
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import STREAM_FROM, optimize
from glassgrad.compiler.pipeline import make_source

SMALL = replace(HOST, l2_bytes=64)        # a processor for which all that is larger than 512 bytes is large
X = np.random.default_rng(7).standard_normal((48, 64)).astype(np.float32)
RAGGED = np.random.default_rng(8).standard_normal((13, 67)).astype(np.float32)


def kernel_of(made: Tensor, target=SMALL, given: list[str] | None = None) -> Kernel:
    [item] = made.schedule()
    return optimize(lower(item.ast), target, given=given)


def aligned(size: int) -> np.ndarray:
    """A result as the runtime would give it: at a multiple of 64 bytes."""
    room = np.full(size + 16, np.nan, np.float32)
    skip = -room.ctypes.data % 64 // 4
    return room[skip:skip + size]


@pytest.mark.parametrize("x", [X, RAGGED], ids=["whole", "ragged"])
@pytest.mark.parametrize("compute", [
    lambda t: t * 2 + 1, lambda t: t.softmax(1), lambda t: t.transpose(0, 1).contiguous(), lambda t: t.flip(1) * 3,
    lambda t: t[1:, 3:] * 2, lambda t: t.pad(((1, 2), (3, 0))) + 1, lambda t: t.relu().expand(3, *t.shape).contiguous(),
], ids=["map", "softmax", "transposed", "backwards", "sliced", "padded", "repeated"])
def test_the_answer_is_the_same_bit_by_bit(compute: Callable[[Tensor], Tensor], x: np.ndarray) -> None:
    made = compute(Tensor(x).realize())
    far = kernel_of(made)
    assert far.streamed == (0,) and "stream(results=yes)" in far.moves
    near = kernel_of(made, given=[m.replace("stream(results=yes)", "stream(results=no)") for m in far.moves])
    assert near.streamed == () and "!nontemporal" not in make_source(near, SMALL, "llvm")
    results = []
    for kernel in (far, near):
        result = aligned(made.numel())
        run(kernel, [result, x.ravel().copy()], "llvm", SMALL)
        results.append(result)
    assert not np.isnan(results[0]).any() and (results[0] == results[1]).all()
    np.testing.assert_allclose(results[0].reshape(made.shape), made.numpy(), rtol=1e-6)


def test_whole_vectors_go_past_and_are_seen_when_the_task_is_done() -> None:
    text = make_source(kernel_of(Tensor(X).realize().softmax(1)), SMALL, "llvm")
    width = SMALL.vector_bytes // 2 if SMALL.narrow_steps else SMALL.vector_bytes
    assert f"align {width}, !nontemporal !0" in text and "!0 = !{i32 1}" in text
    assert ("@llvm.x86.sse.sfence()\n  ret void" in text) == (SMALL.arch == "x86_64")


def test_rows_that_begin_anywhere_are_stored_as_ever() -> None:
    text = make_source(kernel_of(Tensor(RAGGED).realize().softmax(1)), SMALL, "llvm")
    assert "!nontemporal" not in text and "sfence" not in text and "!0" not in text


@pytest.mark.skipif(HOST.vector_bytes < 32, reason="vectors as short as the rest of a row")
def test_the_rest_of_a_row_is_stored_like_its_vectors() -> None:
    """Rows of 36 floats: four of them are a vector of 16 bytes at a multiple of 16, but the others are not streamed."""
    x = Tensor(np.ones((64, 24, 36), np.float32)).realize()
    text = make_source(kernel_of(x.cat(x + 1, dim=1)), SMALL, "llvm")
    assert "store <4 x float>" in text and "!nontemporal" not in text


def test_what_is_small_read_again_or_a_product_stays_near() -> None:
    x = Tensor(X).realize()
    assert kernel_of(x * 2, replace(HOST, l2_bytes=X.nbytes // STREAM_FROM + 1)).streamed == ()
    assert kernel_of(x * 2, replace(HOST, l2_bytes=X.nbytes // STREAM_FROM)).streamed == (0,)
    assert kernel_of(x @ x.T).streamed == ()
    places = Tensor(np.arange(64, dtype=np.int32)).realize()
    assert kernel_of(x.flatten().index_add(0, places, x[0])).streamed == ()
