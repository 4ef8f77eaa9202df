"""Random programs of a jitted function, checked against the same program without the jit. In: a seed. Out: nothing, or
the program.

The function assigns, replaces, takes views, resets gradients, keeps and returns tensors; between its calls the program
takes views, writes and drops tensors too. After each call all tensors that it holds, their gradients where they are
wanted, and which of them are one tensor must be the same as without the jit, unless it refuses the function. Left out
is what docs/guide/jit.md names: a view that is returned or kept is a value.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from glassgrad import JitError, Tensor, TinyJit

CALLS = 6
VIEWS = ("{0}[1:]", "{0}[:2]", "{0}.reshape(-1)", "{0}.detach()", "{0}.T", "{0}[0]", "{0}[:, 1]")
VALUES = ("{0} * 0.5 + 1", "{0} * 0.5 + {1}.sum() * 0.25", "{0}.clone()", "{0}.relu() - {1}.mean()",
          "{0}.contiguous()")
WRITES = ("{0}.assign({0} * 0.5 + {1}.sum())", "{0}.assign({1} * 1)", "{0} += 1", "{0}[0] = {1}.mean()",
          "{0}.mul_(0.5)", "{0}.replace({0} * 0.5 + 1)", "{0}.replace({1})", "{0}.replace({1}.detach())",
          "{0}.fill_(3)", "{0}[1:] = {0}[:-1] * 0.5", "{0}.replace({1} * 0.5)", "{0}.detach().assign({1} * 1)")
KEPT = ("w", "u", "s.a", "s.b", "s.c[0]")
GRADIENTS = ("({0} * {0}).sum().backward()", "({0} * {1}.sum()).mean().backward()", "{0}.grad = None", "w.grad = None")
BETWEEN = ("h0 = w[1:]", "h1 = u.detach()", "h0 = s.a[:1]", "h1 = s.b.reshape(-1)", "h0 = None", "h1 = None",
           "h0 = h0[:1]", "h0.realize()", "h1.realize()", "h0.assign(h0 * 0.5)", "h1.assign(h1 + 1)", "w.assign(w + 1)",
           "w.replace(w * 0.5)", "s.a = Tensor.ones(3, 2)", "s.b = w", "s.a = u", "w.grad = None", "g = w.grad",
           "g = None", "h1 = s.c[0]", "s.c[0] = s.c[0] + 1", "u.replace(w)", "h0 = u", "s.b = s.b[:]",
           "s.c[:] = [u + 1]", "s.a = w.reshape(3, 2)", "s.b = u.detach()", "s.c[0] = s.a.detach()", "s.a = s.b.T.T",
           "h0 = s.b", "u = u + 1", "s.a.realize()", "s.b.realize()", "u.assign(s.a)", "s.b.assign(u)", "h1 = h1[:2]",
           "s.a = s.a[:] * 1", "h1 = w.T", "h0[0] = 1", "h1[0] = 1")
ARGUMENTS = ("Tensor.ones(3, 2) * {n}", "x", "w.detach()", "u", "s.a", "(u + {n}).realize()", "u + {n}", "h0 * 1",
             "s.b[:]", "Tensor.ones(3, 2) * {n}", "Tensor.ones(3, 2) * {n}")


class JitProgram:
    """The lines of a function, those between its calls, and its arguments."""

    def __init__(self, seed: int):
        choose = random.Random(seed)
        pick = choose.choice
        self.body: list[str] = []
        self.wanted = choose.random() < 0.7
        names = ["x", *KEPT]
        own = list(names)                                  # those that are no views
        for number in range(choose.randint(1, 6)):
            kind = choose.random()
            first, second, name = pick(names), pick(names), f"v{number}"
            if kind < 0.2:
                self.body.append(f"{name} = {pick(VIEWS).format(first)}")
                names.append(name)
            elif kind < 0.35:
                self.body.append(f"{name} = {pick(VALUES).format(first, second)}")
                names.append(name)
                own.append(name)
            elif kind < 0.7:
                # a write to a view of an argument that was replaced since is not seen
                views = any(line.startswith("v") and " x" in line for line in self.body)
                writes = [write for write in WRITES if not (first == "x" and views and "replace" in write)]
                self.body.append(pick(writes).format(first, second))
            elif kind < 0.85:
                self.body.append(pick(GRADIENTS).format(first, second))
            else:
                self.body.append(f"{pick(('s.a', 's.b', 's.c[0]'))} = {pick((*own, f'{first} * 0.5'))}")
        returned = [pick((*own, f"{pick(names)} * 2", "w.grad" if self.wanted else "w"))
                    for _ in range(choose.randint(1, 3))]
        self.body.append(f"return {', '.join(returned)}")
        often = choose.random() * 0.7
        between = [line for line in BETWEEN if self.wanted or line != "g = w.grad"]
        self.between = [[pick(between) for _ in range(choose.randint(0, 2)) if choose.random() < often]
                        for _ in range(CALLS)]
        argument = pick(ARGUMENTS)
        self.arguments = [(argument if choose.random() < 0.9 else pick(ARGUMENTS)).format(n=n) for n in range(CALLS)]
        self.hold = choose.random() < 0.5                  # whether all results are kept

    def __str__(self) -> str:
        calls = [line for lines, argument in zip(self.between, self.arguments)
                 for line in (*lines, f"x = {argument}", "f(x)" if not self.hold else "results.append(f(x))")]
        return "\n".join([self.function(), f"w.requires_grad = {self.wanted or None}", *calls])

    def function(self) -> str:
        """The text of the function."""
        return "\n    ".join(["def f(x):", *self.body])

    def outcome(self, wrap: Callable[[Any], Any]) -> list[Any]:
        """What is seen after each call; the last entry may be an error."""
        def tensor(first: int) -> Tensor:
            return Tensor((np.arange(6, dtype=np.float32) + first).reshape(3, 2))

        scope: dict[str, Any] = {
            "__name__": "program", "Tensor": Tensor, "w": tensor(1), "u": tensor(2).realize(), "h0": None, "h1": None,
            "s": SimpleNamespace(a=tensor(3), b=tensor(4).realize(), c=[tensor(5)]), "x": tensor(0), "g": None}
        if self.wanted:
            scope["w"].requires_grad = True
        exec(self.function(), scope)
        call, kept, found = wrap(scope["f"]), list[Any](), list[Any]()
        for lines, argument in zip(self.between, self.arguments):
            for line in (*lines, f"x = {argument}"):
                try:
                    exec(line, scope)
                except Exception as error:               # a view that is not there, shapes that do not fit
                    found.append(f"{line}: {type(error).__name__}")
            try:
                result = call(scope["x"])
            except JitError:
                raise
            except Exception as error:
                found.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
                return found
            result = result if isinstance(result, tuple) else (result,)
            kept = [*kept, result] if self.hold else [result]
            found.append(_seen(scope, kept, self.wanted))
        return found

    def fails(self) -> str:
        """What differs under the jit, or nothing."""
        plain = self.outcome(lambda function: function)
        try:
            jitted = self.outcome(TinyJit)
        except JitError:
            return ""
        for number, (want, got) in enumerate(zip(plain, jitted)):
            # where the call itself fails without the jit, an argument that is computed may be a leaf under it
            if number == len(plain) - 1 and isinstance(want, str) or "through a jitted call" in got:
                return ""
            difference = _difference(want, got)
            if difference:
                return f"step {number}: {difference}"
        return "" if len(plain) == len(jitted) else f"{len(plain)} outcomes, jitted {len(jitted)}: {jitted[-1]}"


def _seen(scope: dict[str, Any], kept: list[Any], is_trained: bool) -> Any:
    """For each name, the first name of the same tensor, its requires_grad and its values; or None."""
    s = scope["s"]
    tensors = {**{name: scope[name] for name in ("w", "u", "x", "h0", "h1", "g")}, "s.a": s.a, "s.b": s.b,
               "s.c[0]": s.c[0], "w.grad": scope["w"].grad if is_trained else None}
    tensors |= {f"result {i}.{k}": t for i, result in enumerate(kept) for k, t in enumerate(result)}
    for tensor in (scope["w"], scope["u"], s.a, s.b, s.c[0]):
        tensor.realize()                     # no gradient passes from one call to the next
    first: dict[int, str] = {}
    return {name: None if t is None else (first.setdefault(id(t), name), t.requires_grad, t.numpy().copy())
            for name, t in tensors.items()}


def _difference(want: Any, got: Any) -> str:
    errors = [outcome if isinstance(outcome, str) else "no error" for outcome in (want, got)]
    if errors[0] != errors[1]:
        return f"{errors[1]}, plain: {errors[0]}"
    if isinstance(want, str):
        return ""
    for name, expected in want.items():
        found = got[name]
        if (expected is None) is not (found is None):
            return f"{name} is {found}, plain: {expected}"
        if expected is not None:
            if expected[:2] != found[:2]:
                return f"{name} is {found[:2]}, plain: {expected[:2]}"
            if expected[2].shape != found[2].shape or not np.allclose(expected[2], found[2], 1e-4, 1e-4, True):
                return f"{name} has {found[2].tolist()}, plain: {expected[2].tolist()}"
    return ""


def check(seed: int) -> str:
    """Nothing when the program of this seed is the same with and without the jit; else the smallest one found that
    is not."""
    program = JitProgram(seed)
    wrong = program.fails()
    if not wrong:
        return ""
    rows = [program.body, *program.between]
    for lines in rows:
        position = 0
        while position < len(lines) - (lines is program.body):
            line = lines.pop(position)
            smaller = program.fails()
            if smaller and "NameError" not in smaller and "UnboundLocal" not in smaller:
                wrong = smaller
            else:
                lines.insert(position, line)
                position += 1
    return f"seed {seed}: {wrong}\n{program}"
