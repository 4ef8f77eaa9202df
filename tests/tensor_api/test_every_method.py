"""Every public method against PyTorch: values, types, gradients and their gradients, on every kind of memory and shape.

The calls are method_cases.py's. Wherever PyTorch has an answer, ours must be the same: for plain arrays, for views
(some turned, some every second element backwards), for empty arrays and 0-d ones. A method without a call fails.
"""

from __future__ import annotations

import gc
import pathlib
import re
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from method_cases import CASES, ELSEWHERE, SHAPES, array, names_in
from torch_reference import seeded, torch

from glassgrad import Tensor

ARRAYS = "xypqrbcklni"                  # the letters whose shape and memory vary
VARIANTS: dict[str, tuple[int, ...]] = {"plain": (3, 4), "views": (3, 4), "no rows": (0, 4), "0-d": ()}
WHOLE = {"int8", "int16", "int32", "int64", "uint8"}


def leaves(values: np.ndarray, variant: str, turned: bool) -> tuple[Tensor, Tensor, Any, Any]:
    """What the values lie in, and the values, ours and PyTorch's: a leaf each, and a view of it."""
    if variant == "views" and turned and values.ndim > 1:
        ours, theirs = Tensor(values.T.copy()), torch.tensor(values.T.copy())
        views = lambda x: x.permute(*range(values.ndim)[::-1])
    elif variant == "views" and values.ndim:
        spread = np.repeat(values[..., ::-1], 2, -1)
        ours, theirs = Tensor(spread), torch.tensor(spread)
        views = lambda x: x.flip(-1)[..., ::2]
    else:
        ours, theirs, views = Tensor(values), torch.tensor(values), lambda x: x
    ours, theirs = ours.realize(), theirs.requires_grad_(theirs.dtype.is_floating_point)
    return ours, views(ours), theirs, views(theirs)


def parts(result: Any) -> Iterator[Any]:
    """The single results of a call."""
    if isinstance(result, (tuple, list)) and not all(isinstance(part, (int, float)) for part in result):
        for part in result:
            yield from parts(part)
    else:
        yield result


def weighted(results: list[Any], of: Any) -> Any:
    """One number in which every element of the float results counts differently."""
    total = 0.0
    for place, result in enumerate(results):
        weights = seeded("weights", place, tuple(result.shape)).uniform(0.5, 1.5, tuple(result.shape))
        total = total + (result * of(weights).to(result.device)).sum()
    return total


def same(ours: Any, theirs: Any, what: str, tolerance: float) -> None:
    if not isinstance(theirs, torch.Tensor):
        assert np.array_equal(np.array(ours), np.array(theirs)) or np.allclose(ours, theirs, rtol=1e-12), what
        return
    if isinstance(ours, bool):
        assert ours == theirs.item(), what
        return
    assert ours.shape == tuple(theirs.shape), f"{what}: shape {ours.shape}, PyTorch {tuple(theirs.shape)}"
    mine, expected = ours.dtype.name, str(theirs.dtype).removeprefix("torch.")
    # integers that we count ourselves (indices, counts) stay 32 bits: docs/from_pytorch.md
    assert mine == expected or {mine, expected} <= WHOLE, f"{what}: {mine}, PyTorch {expected}"
    tolerance = max(tolerance, {"bfloat16": 1e-2, "float16": 1e-3, "float32": 1e-6}.get(mine, 0.0))
    right = theirs.to(torch.float32) if expected == "bfloat16" else theirs
    np.testing.assert_allclose(ours.numpy(), right.numpy(force=True), rtol=tolerance, atol=tolerance, err_msg=what)


def compare(ours: str, theirs: str, variant: str) -> None:
    shape = VARIANTS[variant]
    used = [letter for letter in ARRAYS + "".join(SHAPES) if letter in set(ours.replace("Tensor", " ")) | set(theirs)]
    values = {letter: array(letter, SHAPES.get(letter, shape)) for letter in used}
    made = {letter: leaves(value, variant, place % 2 == 0) for place, (letter, value) in enumerate(values.items())}
    names = {"torch": torch, "F": torch.nn.functional, "L": torch.linalg, "Tensor": Tensor}
    try:
        right = list(parts(eval(theirs, {**names, **{letter: m[3] for letter, m in made.items()}})))
    except (RuntimeError, IndexError, ValueError, TypeError):
        if variant == "plain":
            raise
        return                              # PyTorch has no answer for this shape, or wants other strides
    mine = list(parts(eval(ours, {**names, **{letter: m[1] for letter, m in made.items()}})))
    assert len(mine) == len(right), f"{variant}: {len(mine)} results, PyTorch {len(right)}"
    for given, expected in zip(mine, right):
        same(given, expected, f"{variant}: value", 1e-9)
    smooth = [place for place, r in enumerate(right) if isinstance(r, torch.Tensor) and r.requires_grad]
    if not smooth:
        return
    leaf = [letter for letter in made if made[letter][2].requires_grad]
    as_theirs = lambda weights: torch.tensor(weights)
    total = weighted([right[place].double() for place in smooth], as_theirs)
    try:
        expected = torch.autograd.grad(total, [made[letter][2] for letter in leaf], create_graph=True,
                                       allow_unused=True)
    except RuntimeError:
        return                              # PyTorch has no derivative of it
    reached = [(letter, slope) for letter, slope in zip(leaf, expected) if slope is not None]
    found = weighted([mine[place] for place in smooth], Tensor).gradient(
        *[made[letter][0] for letter, _ in reached], materialize_grads=True)
    for (letter, slope), given in zip(reached, found):
        same(given, slope, f"{variant}: gradient of {letter}", 1e-7)
    if variant == "plain":
        compare_second(made, reached, found)


def compare_second(made: dict[str, Any], reached: list[tuple[str, Any]], found: list[Tensor]) -> None:
    """The gradients of the gradients, where PyTorch has them."""
    again = [(place, slope) for place, (_, slope) in enumerate(reached) if slope.requires_grad]
    try:
        expected = torch.autograd.grad(weighted([slope for _, slope in again], torch.tensor),
                                       [made[letter][2] for letter, _ in reached], allow_unused=True) if again else ()
    except RuntimeError:
        return                              # PyTorch cannot
    wanted = [(letter, slope) for (letter, _), slope in zip(reached, expected) if slope is not None]
    if wanted:
        total = weighted([found[place] for place, _ in again], Tensor)
        for (letter, slope), given in zip(wanted, total.gradient(
                *[made[letter][0] for letter, _ in wanted], materialize_grads=True)):
            same(given, slope, f"second gradient of {letter}", 1e-6)


MARKS = {"x.is_cpu": pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="PyTorch's tensor is on the processor")}


@pytest.mark.filterwarnings("ignore::UserWarning")     # PyTorch's, about deviations of a single number and the like
@pytest.mark.parametrize("ours, theirs", [pytest.param(*pair, id=pair[0], marks=MARKS.get(pair[0], ()))
                                          for kind, pairs in CASES.items() if kind != "in place" for pair in pairs])
def test_every_method(ours: str, theirs: str) -> None:
    varied = set(ours.replace("Tensor", " ")) & set(ARRAYS)
    for variant in VARIANTS:
        if varied or VARIANTS[variant] == (3, 4):
            compare(ours, theirs, variant)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("ours", [ours for kind, pairs in CASES.items() if kind != "in place" for ours, _ in pairs])
def test_a_result_that_nobody_reads_keeps_nothing(ours: str) -> None:
    """Memory is freed with the tensors: no table of the framework holds a graph that was dropped before it ran."""
    made = {letter: Tensor(array(letter, SHAPES.get(letter, (3, 4)))).realize() for letter in ARRAYS + "".join(SHAPES)
            if letter in set(ours)}
    memory = {letter: weakref.ref(tensor.uop.base.arg) for letter, tensor in made.items()}
    eval(ours, {"Tensor": Tensor}, made)
    made.clear()
    if any(buffer() is not None for buffer in memory.values()):
        gc.collect()                        # of reference cycles
    assert [letter for letter, buffer in memory.items() if buffer() is not None] == []


@pytest.mark.parametrize("call", [ours for ours, _ in CASES["in place"]])
def test_every_method_in_place(call: str) -> None:
    """It changes its tensor, and gives it back."""
    used = [letter for letter in ARRAYS + "".join(SHAPES) if letter in set(call)]
    values = {letter: array(letter, SHAPES.get(letter, (3, 4))) for letter in used}
    ours = {letter: Tensor(value).realize() for letter, value in values.items()}
    theirs = {letter: torch.tensor(value) for letter, value in values.items()}
    assert eval(call, ours) is ours[call[0]], "the tensor itself comes back"
    eval(call, theirs)
    same(ours[call[0]], theirs[call[0]], "value", 1e-9)


def test_what_changes_a_tensor_gives_it_back() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    assert x.is_param_() is x and x.requires_grad and x.is_param_(False) is x and not x.requires_grad
    assert x.shard_((x.device, x.device), axis=0) is x and x.tolist() == [1.0, 2.0]
    assert x.replace(y) is x and x.tolist() == [3.0, 4.0]


def test_no_method_is_left_out() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    used = set().union(*(names_in(ours) for pairs in CASES.values() for ours, _ in pairs))
    assert public - used - set(ELSEWHERE) == set(), "give these a line in method_cases.py"
    assert set(ELSEWHERE) & used == set() and set(ELSEWHERE) <= public, "these need no other place"
    folder = pathlib.Path(__file__).parents[1]
    for name, file in ELSEWHERE.items():
        found = re.search(rf"\.{name}\b", next(folder.rglob(file)).read_text(encoding="utf-8"))
        assert found, f"{file} does not test {name}"
