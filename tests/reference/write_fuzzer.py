"""Random programs of views and writes in place, checked against PyTorch. In: a seed. Out: nothing, or the program.

Each program is a list of statements that both libraries run as they stand: values computed before a write must keep
what they read, views must see every write to what they show, and writes through a view must reach the others. Some
programs read in between, so that a part is computed early. What another tensor is written from is read whole before
the write: there PyTorch is given a copy (`before`), because it may read what it has just written. Left out is what we
refuse at the line: writes to expanded views.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

import glassgrad.torch as ours_torch

VIEWS = ("[1:]", "[::2]", "[:, 1]", "[0]", ".T", ".reshape(-1)", ".view(-1)", ".unsqueeze(0)", ".diagonal()",
         ".detach()", "[..., :2]", ".transpose(0, 1)", ".narrow(0, 0, 1)", ".select(0, 0)", ".squeeze()",
         ".chunk(2)[0]", ".unbind(0)[0]", ".permute(1, 0)", ".flatten()", ".split(1)[-1]", ".movedim(0, 1)",
         ".view(torch.int32)", ".view(torch.uint8)")
WRITES = ("{0}.add_({number})", "{0}.mul_(2)", "{0}.fill_({number})", "{0}.zero_()", "{0} += 1", "{0}[0] = {number}",
          "{0}[..., -1] = {number}", "{0}[1:] = {0}[:-1].clone()", "{0}.copy_({0} * 2)", "{0}.clamp_(min=0)",
          "{0}[{0} > 3] = 0", "{0}.neg_()", "{0}.sub_({0})", "{0}.masked_fill_({0} < 0, 7)",
          "{0}[::2] *= 3", "{0}[i] = {number}",
          "{0}.copy_(before({1}))", "{0}[...] = before({1})", "{0}.add_(before({1}))",
          "{0}.index_add_(0, i, before({0}[:2]))",
          "{0} -= {0}.sum()")
READS = ("{0} + {1}", "{0} * 2", "{0}.sum()", "{0}.clone()", "{0}.cumsum(0)", "{0} @ {0}.T", "{0}.flip(0)",
         "{0}.sort(0).values", "torch.cat([{0}, {0}])", "torch.where({0} > 1, {0}, -{0})")


class WriteProgram:
    """Statements over named tensors; every one runs in PyTorch."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        pick = self.random.choice
        self.shapes = {name: (pick((1, 2, 3, 5)), pick((1, 2, 3, 4))) for name in ("a", "b")}
        self.start = {name: np.round(np.random.default_rng([seed, i]).normal(size=shape) * 4).astype(np.float32)
                      for i, (name, shape) in enumerate(self.shapes.items())}
        self.lines: list[str] = []
        scope = self.scope(torch)
        for number in range(self.random.randint(3, 14)):
            line = self.statement(f"v{number}", scope)
            try:
                exec(line, scope)
            except (RuntimeError, IndexError, ValueError, TypeError):       # what PyTorch refuses is left out
                continue
            self.lines.append(line)
        self.expected = scope

    def scope(self, library: Any) -> dict[str, Any]:
        tensors = {name: library.tensor(values) for name, values in self.start.items()}
        before = torch.clone if library is torch else lambda tensor: tensor
        return {"torch": library, "before": before, "i": library.tensor([0, 0]), **tensors}

    def statement(self, name: str, scope: dict[str, Any]) -> str:
        names = [n for n, v in scope.items() if isinstance(v, torch.Tensor) and n != "i"]
        first, second = self.random.choice(names), self.random.choice(names)
        # of an unsigned type a negative number is refused here; PyTorch wraps it
        number = self.random.choice((-2, 0.5, 3) if scope[first].dtype.is_signed else (0.5, 3))
        kind = self.random.random()
        if kind < 0.35:
            whole = scope[first].is_contiguous()            # of other tensors, PyTorch reshapes a copy
            views = [view for view in VIEWS if whole or view not in (".reshape(-1)", ".flatten()")]
            return f"{name} = {first}" + self.random.choice(views)
        whole = not scope[first].dtype.is_floating_point
        if kind < 0.75:
            # integers are not written as floats here without a cast
            writes = [write for write in WRITES if not (whole and write == "{0}[...] = before({1})")]
            return self.random.choice(writes).format(first, second, number=number)
        if kind < 0.9:
            reads = [read for read in READS if not (whole and "@" in read)]    # products of uint8 are int32 here
            return f"{name} = " + self.random.choice(reads).format(first, second)
        return f"{first}.sum().item()"

    def fails(self) -> str:
        """What differs after the last line, or nothing."""
        scope = self.scope(ours_torch)
        for line in self.lines:
            try:
                exec(line, scope)
            except Exception as error:
                return f"{line}: {type(error).__name__}: {str(error).splitlines()[0]}"
        for name, want in self.expected.items():
            if isinstance(want, torch.Tensor):
                got, near = scope[name].numpy(), {"rtol": 1e-4, "atol": 1e-4, "equal_nan": True}
                if got.shape != tuple(want.shape) or not np.allclose(got, want.numpy(), **near):
                    return f"{name} is {got.tolist()}, PyTorch {want.tolist()}"
        return ""

    def __str__(self) -> str:
        tensors = [f"{name} = torch.tensor({values.tolist()})" for name, values in self.start.items()]
        before = "before = torch.clone     # here: lambda tensor: tensor"
        return "\n".join([*tensors, "i = torch.tensor([0, 0])", before, *self.lines])


def check(seed: int) -> str:
    """Nothing when the program of this seed gives what PyTorch gives; else the smallest program found that does not."""
    program = WriteProgram(seed)
    wrong = program.fails()
    if not wrong:
        return ""
    position = 0
    while position < len(program.lines):                    # drop every line without which it still fails
        lines = program.lines
        program.lines = lines[:position] + lines[position + 1:]
        smaller = program.scope(torch)
        try:
            for line in program.lines:
                exec(line, smaller)
            expected, program.expected = program.expected, smaller
            if found := program.fails():
                wrong = found
                continue
            program.expected = expected
        except Exception:
            pass
        program.lines = lines
        position += 1
    return f"seed {seed}: {wrong}\n{program}"
