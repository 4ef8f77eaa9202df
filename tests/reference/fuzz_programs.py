"""A random program over the Tensor API, and its reference, PyTorch. In: lines of text. Out: nothing, or what is wrong.

A program is lines over earlier lines, each written for us and for PyTorch. It runs on both; values and gradients are
compared; and one that fails is made smaller: a step is dropped by putting its value, as PyTorch computed it, in its
place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from glassgrad import GradientError, Tensor, dtypes

FLOATS = ["float64"] * 5 + ["float32"] * 4 + ["float16", "bfloat16"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int32", "int64"]
TORCH = {name: getattr(torch, name) for name in ("bool", *FLOATS, *INTEGERS)}
TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "float16": 3e-2, "bfloat16": 2e-1}
FUNCTIONAL = torch.nn.functional
NAMES = {"torch": torch, "F": FUNCTIONAL, "Tensor": Tensor, "dtypes": dtypes}


@dataclass
class Step:
    """One line of a program: a leaf with its values, or an expression over earlier lines in both libraries."""
    inputs: tuple[int, ...] = ()
    ours: str = ""
    theirs: str = ""
    leaf: torch.Tensor | None = None
    value: torch.Tensor | None = field(default=None, repr=False)


class Program:
    """Lines, and which of them are looked at."""

    def __init__(self, steps: list[Step], sinks: list[int]):
        self.steps, self.sinks = steps, sinks

    def used(self) -> list[int]:
        reached = set(self.sinks)
        for i in reversed(range(len(self.steps))):
            if i in reached:
                reached |= set(self.steps[i].inputs)
        return sorted(reached)

    def __str__(self) -> str:
        rows = []
        for i in self.used():
            s = self.steps[i]
            if s.leaf is not None:
                values = s.leaf.float().numpy() if s.leaf.dtype is torch.bfloat16 else s.leaf.numpy()
                text = repr(values.tolist()) if values.size <= 12 else f"... of shape {values.shape}"
                rows.append(f"v{i} = Tensor({text}, dtype='{dtype_name(s.leaf)}')  # shape {tuple(values.shape)}")
            else:
                rows.append(f"v{i} = {s.ours}" + ("" if s.ours == s.theirs else f"    # torch: {s.theirs}"))
        return "\n".join([*rows, f"look at: {', '.join(f'v{i}' for i in self.sinks)}"])

    # -- running ---------------------------------------------------------------------------------------------------
    def fails(self) -> str:
        """What is wrong, or nothing."""
        leaves: list[tuple[int, Tensor, torch.Tensor]] = []
        ours: dict[str, Any] = dict(NAMES)
        theirs: dict[str, Any] = dict(NAMES)
        for i in self.used():
            s = self.steps[i]
            if s.leaf is not None:
                is_float = s.leaf.dtype.is_floating_point
                theirs[f"v{i}"] = s.leaf.clone().requires_grad_(is_float)
                array = s.leaf.float().numpy() if s.leaf.dtype is torch.bfloat16 else s.leaf.numpy()
                ours[f"v{i}"] = Tensor(array, dtype=dtype_name(s.leaf), requires_grad=True if is_float else None)
                leaves.append((i, ours[f"v{i}"], theirs[f"v{i}"]))
            else:
                try:
                    ours[f"v{i}"] = evaluate(s.ours, ours)
                except Exception as wrong:
                    return f"v{i}: {type(wrong).__name__}: {wrong}"
                theirs[f"v{i}"] = evaluate(s.theirs, theirs).to(TORCH[ours[f"v{i}"].dtype.name])
        try:
            for i in self.sinks:
                wrong = differs(ours[f"v{i}"], theirs[f"v{i}"], self.loosest())
                if wrong:
                    return f"value of v{i}: {wrong}"
            return self._gradients(leaves, ours, theirs)
        except Exception as wrong:
            return f"{type(wrong).__name__}: {wrong}"

    def loosest(self) -> float:
        """The widest tolerance of any type on the way."""
        return max((TOLERANCE.get(dtype_name(self.steps[i].value), 0.0) for i in self.used()), default=0.0)

    def _gradients(self, leaves: list[tuple[int, Tensor, torch.Tensor]], ours: dict[str, Any],
                   theirs: dict[str, Any]) -> str:
        numbers = np.random.default_rng(1)
        mine: Any = 0
        reference: Any = 0
        for i in self.sinks:
            x, y = ours[f"v{i}"], theirs[f"v{i}"]
            if y.dtype.is_floating_point and y.requires_grad:
                weights = numbers.uniform(-1, 1, tuple(y.shape))
                mine = mine + (x.double() * Tensor(weights, dtype="float64", requires_grad=False)).sum()
                reference = reference + (y.double() * torch.tensor(weights)).sum()
        if not isinstance(reference, torch.Tensor):
            return ""
        reference.backward()
        try:
            mine.backward()
        except GradientError:                # every leaf was overwritten: PyTorch has zeros
            pass
        for i, x, y in leaves:
            if y.grad is None:
                continue
            if x.grad is None:
                if y.grad.abs().sum().item() != 0:
                    return f"gradient of v{i} is missing"
                continue
            if x.grad.dtype is not x.dtype:
                return f"gradient of v{i} is {x.grad.dtype.name}"
            wrong = differs(x.grad, y.grad, self.loosest() * 4)
            if wrong:
                return f"gradient of v{i}: {wrong}"
        return ""


def dtype_name(value: torch.Tensor | None) -> str:
    return "" if value is None else str(value.dtype).removeprefix("torch.")


def evaluate(text: str, names: dict[str, Any]) -> Any:
    return eval(text, names)        # the text is ours, and it is the reproduction that a failure prints


def differs(ours: Tensor, theirs: torch.Tensor, tolerance: float) -> str:
    """Where two values differ, or nothing."""
    if ours.shape != tuple(theirs.shape):
        return f"shape {ours.shape}, PyTorch {tuple(theirs.shape)}"
    got = np.asarray(ours.numpy())
    want = (theirs.detach().double() if theirs.dtype.is_floating_point else theirs.detach()).numpy()
    if ours.dtype.kind != "f":
        same = got == want
    else:
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= tolerance * scale)
    if np.all(same):
        return ""
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    return f"at {at} got {np.atleast_1d(got)[at]}, PyTorch {np.atleast_1d(want)[at]}, shape {ours.shape}"



def written(value: Any, change: Callable[[Any], None]) -> Any:
    """A copy of a value after an assignment to a part of it."""
    copy = value.clone()
    change(copy)
    return copy


class _Keys:
    """The key that a text between brackets stands for."""

    def __getitem__(self, text: str) -> Any:
        class Show:
            def __getitem__(self, key: Any) -> Any:
                return key
        return eval(f"show[{text}]", {"show": Show()})


NAMES.update(written=written, slice_of=_Keys())


def shrink(program: Program) -> Program:
    """A smaller program that still fails."""
    changed = True
    while changed:
        changed = False
        for sink in list(program.sinks):
            fewer = Program(program.steps, [s for s in program.sinks if s != sink])
            if len(program.sinks) > 1 and fewer.fails():
                program, changed = fewer, True
        for i in program.used():
            step = program.steps[i]
            if step.leaf is None and i not in program.sinks and step.value is not None:
                steps = list(program.steps)
                steps[i] = Step(leaf=step.value.clone().contiguous(), value=step.value)
                smaller = Program(steps, program.sinks)
                if smaller.fails():
                    program, changed = smaller, True
        for i in program.used():                         # look at an earlier line instead
            if i not in program.sinks and program.steps[i].leaf is None:
                earlier = Program(program.steps, [i])
                if earlier.fails():
                    program, changed = earlier, True
                    break
    return program
