"""Random programs whose sizes change from call to call, against the NumPy interpreter. In: a seed. Out: nothing, or a
small failing program.

A program is statements over leaves whose axes are as long as the program's sizes `n` and `m` say, or as long as a
number; a number `k` stands in its expressions. It is called again and again with others: growing by one, shrinking,
back and forth, sizes that are the program's numbers too, 0 and 1. So kernels for all sizes are made on the way
(glassgrad/engine/changing_sizes), and where a guard is wrong, they serve calls that they should not. Each call's values
and gradients are compared.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from glassgrad import GlassgradError, Tensor
from glassgrad.compiler.check.graph_interpreter import from_storage, interpret
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.node import toposort
from glassgrad.engine.realize import forgotten_schedules

AXES = ("n", "n", "n", "m", "n + 1", "2 * n", "1", "3", "5", "8")
STEPS = (
    "({x} * 0.75 - 0.5).tanh()", "{x}.relu() + 1 / max(1, {x}.shape[{axis}])", "{x}.sigmoid() * n", "{x} * (k - 2)",
    "{x} - {x}.mean({axis}, keepdim=True)", "{x}.softmax({axis})", "{x}.log_softmax({axis})", "{x}.sum({axis})",
    "{x}.max({axis})", "{x}.layernorm()", "{x}.cumsum({axis}) * 0.1", "{x}.flip({axis})", "{x}.std({axis})",
    "{x}.transpose(0, -1)", "{x}.contiguous()", "{x}.reshape(-1)", "{x}.unsqueeze({axis})", "{x}.flatten(0, 1)",
    "{x}[k:]", "{x}[..., :-1]", "{x}[-1]", "{x}[..., 1:k + 2]", "{x}[: {x}.shape[0] // 2]", "{x}[..., ::2]",
    "{x}[::-1]", "{x}.pad((1, k))", "{x}.roll(k, {axis})", "{x}.repeat(*[k] * {x}.ndim)",
    "{x}.unsqueeze(0).expand(n, *{x}.shape)",
    "{x}.expand(m, *{x}.shape[1:])", "{x}.chunk(2, {axis})[0]", "{x}.tril()", "{x}.triu(k)", "{x}.diagonal()",
    "{x}.cat({y}, dim={axis})", "{x}.cat({x}[..., :1], dim=-1)", "{x}.stack({y}, dim={axis})", "{x}.square().mean()",
    "{x} + {y}", "{x} * {y}", "{x} / (1 + {y}.abs())", "{x}.maximum({y})", "{x} - {y}.sum()", "{x}.matmul({y}) * 0.2",
    "{x} @ {y}.transpose(-1, -2) * 0.2", "{x}.transpose(-1, -2) @ {y} * 0.2", "{x}.outer({y})",
    "{x} @ (Tensor.arange({x}.shape[-1] * 3).reshape(-1, 3) % 5 * 0.1)",
    "(Tensor.arange({x}.shape[-1]) * 2 < {x}.shape[-1]).where({x}, -1.0)", "Tensor.arange(n).float() * 0.1",
    "(Tensor.arange({x}.shape[-1]) < k + 3).where({x}, 0.5)", "{x} * (n if n > 6 else -1)", "Tensor.eye(n) + {x}",
    "{x}.scaled_dot_product_attention({y}, {y})", "{x}.scaled_dot_product_attention({x}, {x}, is_causal=True)",
    "{x}.unsqueeze(0).avg_pool2d(max(1, k))",
    "{x}.unsqueeze(0).conv2d(Tensor.ones(2, {x}.shape[-3], 3, 3) * 0.1, padding=1)",
    "{x}[Tensor.arange({x}.shape[0]) // 2]", "{x}.gather({axis}, Tensor.zeros(*{x}.shape, dtype='int32'))",
    "Tensor.zeros(n + 3, m).contiguous() + 0.5", "{x}.sort({axis})[0]", "{x}.unfold({axis}, k, 1)",
    "(Tensor.arange(n) % (k + 1)).one_hot(5).float()", "{x}[:, :m] * 2", "{x}.reshape({x}.shape[0], -1)",
)
LARGEST = 40_000                     # elements of a value


class Call(NamedTuple):
    """The sizes of one call, and its number."""
    n: int
    m: int
    k: int


class SizeProgram:
    """Leaves, statements, and the sizes that it is called with."""

    def __init__(self, seed: int):
        self.seed, self.random = seed, random.Random(seed)
        choose = self.random.choice
        shapes = [[choose(AXES) for _ in range(choose((1, 2, 2, 3)))] for _ in range(2)]
        if choose((True, False)):
            shapes[1] = shapes[0][:]                                      # so that the two fit each other
        self.leaves = [f"leaf({', '.join(shape)})" for shape in shapes]
        self.lines: list[str] = []
        self.gradients = choose((True, True, False))
        self.calls = list(self._calls())
        scopes = [self.scope(Call(7, 4, 1)), self.scope(Call(12, 10, 2))]   # shapes show what fits
        wanted = self.random.randint(2, 8)
        for _ in range(5 * wanted):
            line = self._statement(scopes[0])
            try:
                for scope in scopes:
                    exec(line, scope)
            except Exception:                                             # no such program
                for scope in scopes:
                    scope.pop(line.partition(" ")[0], None)
                continue
            self.lines.append(line)
            if len(self.lines) == wanted or any(scope[line.partition(" ")[0]].numel() > LARGEST for scope in scopes):
                break

    def _calls(self) -> Iterator[Call]:
        """Sizes that change as those of texts, batches and images do."""
        if self.random.random() < 0.4:
            yield from self._pairs()
            return
        both, low = self.random.random() < 0.5, self.random.choice((0, 1, 2, 3, 6))
        n, m, k = self.random.randint(low, low + 5), self.random.randint(1, 9), self.random.randint(1, 3)
        for _ in range(self.random.randint(4, 9)):
            yield Call(n, m, k)
            move = self.random.random()
            n = n + 1 if move < 0.4 else max(low, n - 1) if move < 0.5 else self.random.randint(low, 20)
            n = self.random.choice((33, 40, 65)) if self.random.random() < 0.1 else n
            m = self.random.randint(0, 12) if both and self.random.random() < 0.5 else m
            k = self.random.randint(0, 4) if self.random.random() < 0.2 else k

    def _pairs(self) -> Iterator[Call]:
        """Two sizes that change independently, as those of images do; some are equal, and some come again."""
        high, k = self.random.choice((9, 20, 60)), self.random.randint(1, 3)
        calls: list[Call] = []
        for _ in range(self.random.randint(6, 14)):
            again = self.random.choice(calls) if calls and self.random.random() < 0.3 else None
            n = again.n if again is not None else self.random.randint(0 if self.random.random() < 0.1 else 2, high)
            m = n if self.random.random() < 0.1 else self.random.randint(1 if self.random.random() < 0.1 else 2, high)
            calls.append(Call(n, m, self.random.randint(0, 4) if self.random.random() < 0.05 else k))
            yield calls[-1]

    def scope(self, call: Call) -> dict[str, Any]:
        """The names that a call's statements begin with."""
        numbers = np.random.default_rng([self.seed, *call])

        def leaf(*shape: int) -> Tensor:
            made = Tensor(numbers.uniform(-2, 2, shape).astype(np.float32)).realize()
            made.requires_grad = self.gradients
            return made

        scope: dict[str, Any] = {"Tensor": Tensor, "leaf": leaf, **call._asdict()}
        for i, text in enumerate(self.leaves):
            exec(f"v{i} = {text}", scope)
        return scope

    def _statement(self, scope: dict[str, Any]) -> str:
        values = {name: value for name, value in scope.items() if isinstance(value, Tensor)}
        x = self.random.choice([*list(values)[-3:], list(values)[-1]])
        fits = [name for name, value in values.items() if value.shape == values[x].shape]
        y = self.random.choice(fits if self.random.random() < 0.7 else list(values))
        axis = self.random.choice((0, -1, self.random.randrange(max(1, values[x].ndim))))
        return f"v{len(self.leaves) + len(self.lines)} = " + self.random.choice(STEPS).format(x=x, y=y, axis=axis)

    # -- running ---------------------------------------------------------------------------------------------------
    def fails(self) -> str:
        """What is wrong in the first call that is, or nothing."""
        with forgotten_schedules():
            for number, call in enumerate(self.calls):
                wrong = self._fails_in(call)
                if wrong:
                    return f"call {number}, {call}: {wrong}"
        return ""

    def _fails_in(self, call: Call) -> str:
        scope = self.scope(call)
        for line in self.lines:
            try:
                exec(line, scope)
            except (GlassgradError, ZeroDivisionError):      # this program does not exist at this size
                break
            if list(scope.values())[-1].numel() > 10 * LARGEST:            # repeated at each size: too much to compute
                scope.popitem()
                break
        made = {name: value for name, value in scope.items() if isinstance(value, Tensor)}
        last = list(made.values())[-1]
        sinks = {name: value for name, value in list(made.items())[-2:]}
        if last.requires_grad:
            (last.float() * 0.3).square().sum().backward()
            sinks.update({f"the gradient of v{i}": made[f"v{i}"].grad for i in range(len(self.leaves))
                          if made[f"v{i}"].grad is not None})
        try:
            wanted = interpreted([value.uop for value in sinks.values()])
        except MemoryError:                                  # the reference makes every array, however large
            return ""
        try:
            Tensor.realize(*sinks.values())
            got = [value.numpy() for value in sinks.values()]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{type(error).__name__}: {error}"
        return next((f"{name} {where}" for name, x, y in zip(sinks, got, wanted) if (where := difference(x, y))), "")

    def __str__(self) -> str:
        rows = [f"v{i} = {text}" for i, text in enumerate(self.leaves)]
        calls = "".join(f"{tuple(call)}, " for call in self.calls)
        return "\n    ".join([f"for n, m, k in ({calls}):", *rows, *self.lines, f"# gradients: {self.gradients}"])


def interpreted(roots: Sequence[UOp]) -> list[Any]:
    """What a graph means, by the interpreter."""
    values = {n: from_storage(bytes(n.arg.copy_out()), n.dtype).reshape(n.shape)
              for n in toposort(roots) if n.op is o.BUFFER}
    return [np.broadcast_to(x, root.shape) for x, root in zip(interpret(roots, values), roots)]


def difference(got: Any, want: Any) -> str:
    """Where two arrays differ, or nothing."""
    if got.shape != want.shape:
        return f"has shape {got.shape}, expected {want.shape}"
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
        same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= 2e-4 * scale)
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    return f"at {at}: got {np.atleast_1d(got)[at]}, expected {np.atleast_1d(want)[at]}"


def check(seed: int) -> str:
    """Nothing when the program of this seed is right in all its calls; else the smallest program found that is not."""
    program = SizeProgram(seed)
    wrong = program.fails()
    if not wrong:
        return ""
    for part in ("calls", "lines", "calls"):                # drop everything without which it still fails
        position = 0
        while position < len(getattr(program, part)):
            before = getattr(program, part)
            setattr(program, part, before[:position] + before[position + 1:])
            try:
                found = program.fails() if program.calls else ""
            except Exception:  # noqa: BLE001 - a line that others need
                found = ""
            wrong = found or wrong
            if not found:
                setattr(program, part, before)
                position += 1
    return f"seed {seed}: {wrong}\n{program}"
