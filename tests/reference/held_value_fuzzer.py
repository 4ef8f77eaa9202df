"""Random loops that hold lazy values from step to step, checked against PyTorch. In: a seed. Out: nothing, or the
program.

A program is a list of statements that both libraries run as they stand, once for each step: states that follow from
the step before, views of them, writes in place, gradients, `detach`, `no_grad`, earlier states in a list; and reads of
something that is computed from them. Which values are stored must change nothing.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

import glassgrad.torch as ours_torch

STEPS, LARGE = 7, 1e4            # larger values are not compared
SHAPES = {"w": (4, 4), "u": (4, 4), "b": (4,), "s": (3, 4), "c": (3, 4), "p": (3, 4), "m": (4,)}
TRAINED = ("w", "b")
STATES = (
    "s = (x + s @ w).tanh()", "s = (x @ u + s @ w + b).relu()", "s = 0.9 * s + 0.1 * x", "s = (s @ u).sin()",
    "s = s + p", "s = torch.cat([s[1:], x[:1]])", "s = s.flip(0)", "s = s - s.mean()",
    "s = torch.where(x > 0, s, p)", "c = 0.5 * c + s", "c = c.tanh() * s", "c = (c + x).softmax(-1)",
    "p, c = c, (c + p) * 0.5", "p = s", "p = s * c", "m = 0.9 * m + 0.1 * x.mean(0)",
    "m = 0.5 * m + s.sum(0) * 0.1", "m = (c @ u).max(0).values", "m = m.cumsum(0) * 0.2",
    "s = s.reshape(2, 6).reshape(3, 4)", "s = (s.T @ x).T[:3]", "k = torch.cat([k, s[:1]])", "k = k[-4:]")
WRITES = (
    "c += x", "c.mul_(0.5).add_(x)", "c[0] = x[0]", "c[t % 3] = 1.0", "m.mul_(0.9)", "m[1:] += x[0, 1:]",
    "c.copy_(s)", "p.zero_()", "v = c[1]; v += 1", "s.clamp_(-1, 1)", "u.mul_(0.99)", "u[0] = x[0]",
    "k[0] = 0.5", "with torch.no_grad(): w.mul_(0.9)", "with torch.no_grad(): b.add_(m, alpha=0.1)")
GRADIENTS = (
    "s = s.detach()", "c = c.detach()", "with torch.no_grad(): s = s * 0.5 + x", "loss = (s * x).sum()",
    "loss = ((x @ w + m) ** 2).mean()", "loss = (c * s).mean() + (s ** 2).mean()",
    "loss.backward(retain_graph=True)", "loss.backward(retain_graph=True); loss.backward(retain_graph=True)",
    "g = torch.autograd.grad((s * s).sum(), w, retain_graph=True)[0]", "m = 0.9 * m + g.sum(0) * 0.1",
    "w.grad = None; b.grad = None", "m = 0.9 * m + (0 if w.grad is None else w.grad.mean(0).detach())",
    "with torch.no_grad(): w -= 0.05 * (0 if w.grad is None else w.grad)",
    "with torch.no_grad(): b -= 0.05 * m", "c = c.clone().requires_grad_() if not c.requires_grad else c")
READS = (
    "out(s.mean())", "out((s * s).sum())", "out(c.sum())", "out(((x - m) ** 2).sum())", "out((p * c).mean())",
    "out(loss)", "out(s.max())", "out(k.sum())", "out((k @ x.T).softmax(0).std())", "out(w.sum())", "out(m)",
    "out(held[0].sum())", "out(held[-1].mean())", "out(held[len(held) // 2].mean())", "out(s)",
    "out(w.grad.sum() if w.grad is not None else m)", "out((s * u[0]).sum()); out((c + s).std())")


class HeldValueProgram:
    """Statements of a step; every one runs in PyTorch."""

    def __init__(self, seed: int):
        self.random, self.seed = random.Random(seed), seed
        pick = self.random
        self.lines = ["x = data[t]", *pick.sample(STATES, pick.randint(1, 4)), *pick.sample(WRITES, pick.randint(0, 2)),
                      *pick.sample(GRADIENTS, pick.randint(0, 4)), *pick.sample(READS, pick.randint(1, 2))]
        if pick.random() < 0.3:
            self.lines.append("held.append(s)")
        first, self.lines = self.lines[0], self.lines[1:]
        pick.shuffle(self.lines)
        self.lines.insert(0, first)
        if pick.random() < 0.15:
            self.lines.append("if t == 4: u = u * 0.5")
        for _ in list(self.lines[1:]):
            wrong = self.run(torch)[1]
            if not wrong:
                break
            self.lines.remove(wrong)                     # what PyTorch refuses is left out

    def run(self, library: Any) -> tuple[list[np.ndarray[Any, Any]], str, str]:
        """What was read, the line that failed, and how."""
        values = np.random.default_rng([self.seed, 1])
        found: list[np.ndarray[Any, Any]] = []
        scope: dict[str, Any] = {"torch": library, "held": [], "out": lambda x: found.append(
            np.array(x.item()) if x.numel() == 1 else x.detach().numpy().copy())}
        for name, shape in SHAPES.items():
            scope[name] = library.tensor((values.normal(size=shape) * 0.5).astype(np.float32))
            if name in TRAINED:
                scope[name].requires_grad_()
        scope["k"] = library.tensor(np.ones((1, 4), np.float32))
        scope["loss"] = (scope["w"] * scope["b"]).sum()
        scope["g"] = scope["u"] * 1
        scope["data"] = [library.tensor(values.normal(size=(3, 4)).astype(np.float32)) for _ in range(STEPS)]
        scope["held"].append(scope["s"])
        for scope["t"] in range(STEPS):
            for line in self.lines:
                try:
                    exec(line, scope)
                except Exception as error:
                    return found, line, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        for name in ("s", "c", "p", "m", "k", "w", "b", "u"):
            scope["out"](scope[name])
        return found, "", ""

    def fails(self) -> str:
        """What differs, or nothing."""
        expected, refused, _ = self.run(torch)
        if refused:
            return ""
        found, line, error = self.run(ours_torch)
        if error.startswith("GradientError"):            # refused in words: a leaf was assigned to, or is gone
            return ""
        if line:
            return f"{line}: {error}"
        for number, (got, want) in enumerate(zip(found, expected)):
            if not np.all(np.abs(want) < LARGE):
                return ""
            if got.shape != want.shape or not np.allclose(got, want, rtol=2e-3, atol=2e-3):
                return f"value {number} is {got.tolist()}, PyTorch {want.tolist()}"
        return ""

    def __str__(self) -> str:
        return "\n".join(f"    {line}" for line in self.lines)


def check(seed: int) -> str:
    """Nothing when the program of this seed gives what PyTorch gives; else the smallest program found that does not."""
    program = HeldValueProgram(seed)
    wrong = program.fails()
    if not wrong:
        return ""
    for line in program.lines[1:]:                           # drop every line without which it still fails
        lines = program.lines
        program.lines = [each for each in lines if each is not line]
        found = program.fails()
        if found:
            wrong = found
        else:
            program.lines = lines
    return f"seed {seed}: {wrong}\n{program}"
