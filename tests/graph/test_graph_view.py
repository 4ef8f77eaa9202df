"""Views and stacks of views against the interpreter's elements and NumPy's strides."""

from __future__ import annotations

import random

import numpy as np
import pytest
from graph_leaves import buffer

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.graph.view import ShapeTracker, View, merge, row_major


def factors(rng: random.Random, size: int) -> list[int]:
    """A random shape of `size` elements."""
    if size == 0:
        return rng.choice([[0], [2, 0], [0, 3], [1, 0]])
    shape = [1] * rng.randint(1, 4)
    while size > 1:
        prime = next(p for p in range(2, size + 1) if size % p == 0)
        shape[rng.randrange(len(shape))] *= prime
        size //= prime
    return shape


def random_move(rng: random.Random, x: UOp, kinds: list[str]) -> UOp:
    kind, rank = rng.choice(kinds), len(x.shape)
    if kind == "reshape" or rank == 0:
        return x.reshape(factors(rng, x.size))
    axis = rng.randrange(rank)
    if kind == "permute":
        return x.permute(rng.sample(range(rank), rank))
    if kind == "expand":
        return x.expand([rng.choice([1, 2, 3]) if n == 1 else n for n in x.shape])
    if kind == "pad":
        return x.pad([rng.choice([(0, 0), (0, 0), (1, 0), (0, 2), (1, 1)]) for _ in x.shape])
    if kind == "shrink":
        ends = [sorted((rng.randint(0, n), rng.randint(0, n))) for n in x.shape]
        return x.shrink([(a, b) if b > a or rng.random() < 0.03 else (0, n) for (a, b), n in zip(ends, x.shape)])
    if kind == "flip":
        return x.flip(a for a in range(rank) if rng.random() < 0.5)
    if kind == "window":
        return x.window(axis, rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([1, 2]))
    axis = rng.randrange(max(rank - 1, 1))
    if rank < 2:
        return x
    return x.unwindow(axis, rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.randint(0, 6))


ALL_MOVES = ["reshape", "reshape", "permute", "expand", "pad", "shrink", "flip", "window", "unwindow"]


@pytest.mark.parametrize("start", range(10))
def test_offsets_are_where_the_elements_come_from(start):
    for trial in range(40):
        seed = start * 1000 + trial
        rng = random.Random(seed)
        x = base = buffer(tuple(factors(rng, rng.choice([1, 2, 6, 8, 12, 24, 30]))), dtypes.int64)
        for _ in range(rng.randint(1, 6)):
            moved = random_move(rng, x, ALL_MOVES)
            x = moved if moved.size <= 400 else x
        numbered = np.arange(1, base.size + 1).reshape(base.shape)
        expected = interpret([x], {base: numbered})[0].ravel().tolist()
        tracker = ShapeTracker.of(x)
        assert tracker.shape == x.shape and tracker.size == x.size
        for form in (tracker, tracker.simplify()):
            assert [0 if p is None else p + 1 for p in form.offsets()] == expected, f"seed {seed}: {form}"
        if tracker.contiguous:
            assert expected == list(range(1, base.size + 1))[:x.size]
        affine = tracker.real_strides()
        check_strides(tracker, affine, f"seed {seed}")


def check_strides(tracker: ShapeTracker, strides, message: str) -> None:
    """Neighbours along an axis with a stride lie that far apart."""
    places = np.array([-1 if p is None else p for p in tracker.offsets()]).reshape(tracker.shape)
    for axis, stride in enumerate(strides):
        if stride is None or tracker.size == 0:
            continue
        here, there = np.moveaxis(places, axis, 0)[:-1], np.moveaxis(places, axis, 0)[1:]
        both = (here >= 0) & (there >= 0)
        assert (there - here == stride)[both].all(), message


@pytest.mark.parametrize("start", range(6))
def test_one_view_wherever_numpy_needs_no_copy(start):
    """Permutes, slices, flips, expands and reshapes: NumPy's strides are ours, and NumPy's views are one view."""
    for trial in range(60):
        seed = start * 1000 + trial
        rng = random.Random(seed)
        x = base = buffer(tuple(factors(rng, rng.choice([6, 8, 12, 24, 60]))), dtypes.int64)
        numbered = np.arange(base.size).reshape(base.shape)
        for _ in range(5):
            moved = random_move(rng, x, ["reshape", "permute", "shrink", "flip", "expand"])
            array = interpret([moved], {base: numbered})[0]
            if moved.size == 0 or moved.size > 400 or array.base is None and array is not numbered:
                continue
            if not np.shares_memory(array, numbered):
                continue                                    # NumPy had to copy
            x = moved
        array = interpret([x], {base: numbered})[0]
        tracker = ShapeTracker.of(x)
        assert len(tracker.views) == 1, f"seed {seed}: {tracker}"
        expected = tuple(0 if n == 1 else s // 8 for n, s in zip(array.shape, array.strides))
        assert tracker.strides() == expected, f"seed {seed}"
        start_of = array.__array_interface__["data"][0] - numbered.__array_interface__["data"][0]
        assert tracker.offset == start_of // 8, f"seed {seed}"
        assert tracker.contiguous == (expected == row_major(x.shape) and start_of == 0)


# -- what readers of tinygrad's texts try ------------------------------------------------------------------------------
def test_the_usual_tour():
    x = ShapeTracker.from_shape((4, 4))
    assert x.contiguous and x.is_contiguous() and x.views[-1].strides == (4, 1) and x.views[-1].offset == 0
    assert str(x.views[0]) == "View(shape=(4, 4), strides=(4, 1), offset=0, mask=None, contiguous=True)"
    turned = x.permute((1, 0))
    assert turned.views[-1].strides == (1, 4) and not turned.contiguous and len(turned.views) == 1
    flat = turned.reshape((16,))
    assert len(flat.views) == 2 and flat.views[-1].strides == (1,) and flat.real_strides() == (None,)
    assert flat.reshape((4, 4)).views == turned.views, "reshaping back merges again"
    assert flat.reshape((4, 4)).permute((1, 0)).contiguous
    padded = x.pad(((1, 1), (2, 0)))
    assert padded.shape == (6, 6) and padded.views[-1].mask == ((1, 5), (2, 6)) and padded.views[-1].offset == -6
    assert padded.shrink(((1, 5), (2, 6))).contiguous
    assert x.flip((0,)).views[-1].strides == (-4, 1) and x.flip((0,)).offset == 12
    assert x.flip((0,)).flip((0,)).contiguous
    assert x.reshape((4, 1, 4)).expand((4, 3, 4)).strides() == (4, 0, 1)
    assert x.window(1, 3).strides() == (4, 1, 1) and x.window(0, 2, 2).shape == (2, 4, 2)
    assert x.shrink(((1, 3), (0, 4))).offset == 4


@pytest.mark.parametrize("shape, mask, new, merged", [
    ((6,), (2, 5), (6, 1), ((2, 5), (0, 1))), ((6,), (2, 4), (3, 2), ((1, 2), (0, 2))),
    ((6,), (2, 3), (3, 2), None), ((6,), (1, 5), (3, 2), None), ((8,), (4, 8), (2, 4), ((1, 2), (0, 4)))])
def test_masks_through_reshapes(shape, mask, new, merged):
    (n,), (first, last) = shape, mask
    x = ShapeTracker.from_shape((last - first,)).pad(((first, n - last),)).reshape(new)
    assert x.views[-1].mask == merged if merged else len(x.views) == 2
    assert x.offsets() == [p - first if first <= p < last else None for p in range(n)]


def test_a_padded_outer_axis_flattens_in_one_view():
    x = ShapeTracker.from_shape((2, 3)).pad(((1, 1), (0, 0))).reshape((12,))
    assert x.views == (View((12,), (1,), -3, ((3, 9),)),)
    assert len(ShapeTracker.from_shape((2, 3)).pad(((0, 0), (1, 0))).reshape((8,)).views) == 2


def test_nothing_left_under_the_mask():
    x = ShapeTracker.from_shape((2, 3)).pad(((0, 2), (0, 0))).shrink(((2, 4), (0, 3)))
    assert x.offsets() == [None] * 6 and x.views[-1].mask == ((0, 0), (0, 0))
    assert x.reshape((6,)).offsets() == [None] * 6 and x.expand((2, 3)).offsets() == [None] * 6


def test_no_elements_and_no_axes():
    assert ShapeTracker.from_shape(()).offsets() == [0] and ShapeTracker.from_shape(()).reshape((1, 1)).offsets() == [0]
    assert ShapeTracker.from_shape((0, 3)).offsets() == []
    assert ShapeTracker.from_shape((0,)).pad(((1, 1),)).offsets() == [None] * 2
    assert ShapeTracker.of(const(1.0).broadcast((2, 3))).strides() == (0, 0)


def test_merge_refuses_what_one_view_cannot_say():
    assert merge(View.of((2, 3)).permute((1, 0)), View.of((6,))) is None
    assert merge(View.of((2, 3)), View.of((6,)).flip((0,))) == View((6,), (-1,), 5)


def test_a_wrong_reshape_is_told():
    with pytest.raises(ShapeError, match=r"cannot reshape: the number of elements changes\n  given:    \(2, 3\) \(6"):
        ShapeTracker.from_shape((2, 3)).reshape((4,))
