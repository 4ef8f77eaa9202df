"""Random training loops as people write them, with the jit, against PyTorch. In: a seed. Out: nothing, or the program.

A program has a small model, one or two optimizers, and functions of its own under the jit: a step (or the forward pass
and the update apart, with gradients that are added up over calls), perhaps an evaluation, perhaps an average of the
weights by hand. It calls them with batches of changing sizes and, between the calls, does what loops do: reads results,
evaluates, steps a schedule, writes into weights, loads a state, freezes a weight, changes a rate. PyTorch runs the same
lines in float64 from the same weights; all that was kept and the last weights are compared. A program that the jit
refuses is none that fails: its message is checked elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from needed_calls import failure_with_needed_calls

import glassgrad.torch as ours_torch
from glassgrad import JitError, TinyJit

# text of the layers, and of the forward pass
MODELS = {
    "mlp": ("s.a = nn.Linear(5, 7); s.c = nn.Linear(7, 3)", "s.c(torch.tanh(s.a(x)))"),
    "tied": ("s.a = nn.Linear(5, 5); s.b = nn.Linear(5, 5); s.b.weight = s.a.weight; s.c = nn.Linear(5, 3)",
             "s.c(torch.tanh(s.b(torch.tanh(s.a(x)))))"),
    "attention": ("s.a = nn.Linear(1, 6); s.q = nn.Linear(6, 6); s.k = nn.Linear(6, 6); s.c = nn.Linear(6, 3)",
                  "s.c(F.scaled_dot_product_attention(s.q(s.a(x.unsqueeze(-1))), s.k(s.a(x.unsqueeze(-1))), "
                  "s.a(x.unsqueeze(-1)), is_causal=True).mean(1))"),
    "batch norm": ("s.a = nn.Linear(5, 6); s.n = nn.BatchNorm1d(6); s.c = nn.Linear(6, 3)",
                   "s.c(torch.sigmoid(s.n(s.a(x))))"),
    "layer norm": ("s.a = nn.Linear(5, 6); s.n = nn.LayerNorm(6); s.c = nn.Linear(6, 3)",
                   "s.c(s.a(x) + F.gelu(s.n(s.a(x))))"),
    "convolution": ("s.a = nn.Conv1d(1, 4, 3, padding=1, bias=False); s.c = nn.Linear(20, 3)",
                    "s.c(torch.tanh(s.a(x.unsqueeze(1))).reshape(x.shape[0], -1))"),
    "embedding": ("s.a = nn.Embedding(6, 5); s.c = nn.Linear(5, 3)",
                  "s.c(s.a((x * 2).round().long() % 6).mean(1))"),
}
OPTIMIZERS = ("SGD(p, lr=0.05)", "SGD(p, lr=0.05, momentum=0.9)", "SGD(p, lr=0.03, momentum=0.8, nesterov=True)",
              "Adam(p, lr=0.01, eps=1e-3)", "AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-3)",
              "RMSprop(p, lr=0.01, eps=1e-2)", "Adagrad(p, lr=0.05, eps=1e-2)", "NAdam(p, lr=0.01, eps=1e-3)",
              "Adamax(p, lr=0.01, eps=1e-3)", "Adam(p, lr=0.01, amsgrad=True, eps=1e-3)")
SCHEDULES = ("", "", "StepLR(o, 3, gamma=0.5)", "CosineAnnealingLR(o, T_max=5)", "LambdaLR(o, lambda e: 1 / (e + 1))")
LOSSES = ("F.cross_entropy(y, t)", "F.mse_loss(y, F.one_hot(t, 3).to(y.dtype))",
          "F.cross_entropy(y, t, reduction='sum')", "F.cross_entropy(y, t) + 0.01 * sum((q * q).sum() for q in p)")
RESULTS = ("loss", "loss.detach()", "None", "(loss, y)", "loss * 1", "y.detach()",
           "{'l': loss, 'y': y.detach(), 'l2': loss}")
CLIPS = ("", "", "nn.utils.clip_grad_norm_(p, 0.5)", "nn.utils.clip_grad_value_(p, 0.05)",
         "scale = torch.clamp(1.0 / (sum((q.grad * q.grad).sum() for q in p if q.grad is not None) ** 0.5 + 1e-6), "
         "max=1.0)\nfor q in p:\n  if q.grad is not None: q.grad.mul_(scale)")
NO_GRAD = "with torch.no_grad():\n  "
WRITES = (NO_GRAD + "p[0].mul_(0.9)", NO_GRAD + "p[0][0] = 0.1", NO_GRAD + "p[-1].view(-1)[:1].add_(0.05)",
          "p[0].data = p[0].data * 0.9", "p[0].data.mul_(1.1)", NO_GRAD + "p[-1].copy_(p[-1] * 0.5)",
          "log.append(p[0].detach().clone())", "m.load_state_dict({k: v * 1 for k, v in m.state_dict().items()})",
          "held = p[0].detach()\nlog.append(held.clone())", "o.load_state_dict(o.state_dict())",
          "o.zero_grad()", "p[0].grad = None")
CLOSE = {"rtol": 2e-3, "atol": 2e-4}


class LoopProgram:
    """The text of a program: its definitions, and its calls one by one."""

    def __init__(self, seed: int):
        self.seed, self.random = seed, random.Random(seed)
        pick, chance = self.random.choice, self.random.random
        self.kind = pick(list(MODELS))
        layers, forward = MODELS[self.kind]
        self.micro = pick((1, 1, 1, 2, 3))
        self.together = self.micro == 1 and chance() < 0.6
        self.schedule, average = pick(SCHEDULES), chance() < 0.3
        several = chance() < 0.25
        lines = ["class M(nn.Module):", f"  def __init__(s): super().__init__(); {layers}",
                 f"  def forward(s, x): return {forward}", "m = M(); load(m)", "p = list(m.parameters())"]
        if chance() < 0.2:
            lines += ["m.a.weight.requires_grad = False", "p = [q for q in p if q.requires_grad]"]
        if several:
            lines += ["al = p", "p = al[:len(al) // 2]", f"o = torch.optim.{pick(OPTIMIZERS)}", "p = al[len(al) // 2:]",
                      f"o2 = torch.optim.{pick(OPTIMIZERS)}", "p = al"]
        else:
            lines.append(f"o = torch.optim.{pick(OPTIMIZERS)}")
        if self.schedule:
            lines.append(f"schedule = torch.optim.lr_scheduler.{self.schedule}")
        if average:
            lines.append("ema = [q.detach().clone() for q in m.parameters()]")
        self.definitions = lines + self._functions(["o", "o2"] if several else ["o"], average)
        self.calls = [self._call(number) for number in range(self.random.randint(8, 14))]

    def _functions(self, optimizers: list[str], average: bool) -> list[str]:
        pick, chance = self.random.choice, self.random.random
        none = pick(("", "set_to_none=True", "set_to_none=False"))
        zero = [f"{o}.zero_grad({none})" for o in optimizers]
        if chance() < 0.15:
            zero = ["for q in p: q.grad = None"]
        update = [*pick(CLIPS).splitlines(), *[f"{o}.step()" for o in optimizers]]
        if average:
            update += ["with torch.no_grad():", "  for e, q in zip(ema, m.parameters()): " + pick(
                ("e.mul_(0.9).add_(q, alpha=0.1)", "e.copy_(e * 0.9 + q * 0.1)", "e += 0.1 * (q.detach() - e)"))]
        loss, result = pick(LOSSES), f"return {pick(RESULTS)}"
        if self.together:
            before = chance() < 0.7
            step = [*zero[:len(zero) * before], "y = m(x)", f"loss = {loss}", "loss.backward()", *update,
                    *zero[len(zero) * before:], result]
            functions = [("step(x, t)", step, True)]
        else:
            forward = ["y = m(x)", f"loss = ({loss}) / {self.micro}", "loss.backward()", result]
            functions = [("step(x, t)", forward, True), ("update()", [*update, *zero], chance() < 0.5)]
        functions.append(("evaluate(x)", ["with torch.no_grad():", "  return m(x)"], chance() < 0.5))
        return [line for head, body, jitted in functions
                for line in (*["@jit"][:jitted], f"def {head}:", *[f"  {row}" for row in body])]

    def _call(self, number: int) -> str:
        pick, chance = self.random.choice, self.random.random
        rows = pick((4, 4, 4, 4, 4, 3, 2 if self.kind == "batch norm" else 1))
        lines = []
        if chance() < 0.2:
            lines += ["m.eval()", f"log.append(evaluate(X({pick((4, 4, 2))}, {number + 500})))", "m.train()"]
        lines.append(f"result = step(X({rows}, {number}), K({rows}, {number}))")
        if chance() < 0.5:
            lines += ["log.append(result)", "read(result)"][:self.random.randint(1, 2)]
        if not self.together and (number + 1) % self.micro == 0:
            if chance() < 0.2:
                lines.append("log += [q.grad.clone() for q in p[:1] if q.grad is not None]")
            lines.append("update()")
        if chance() < 0.15:
            lines.append(pick(WRITES) if self.schedule or chance() < 0.8 else "o.param_groups[0]['lr'] *= 0.5")
        if self.schedule and chance() < 0.5:
            lines.append("schedule.step()")
        return "\n".join(lines)

    @property
    def text(self) -> str:
        return "\n".join([*self.definitions, *self.calls, "log += [q.detach() for q in m.parameters()]",
                          "log += [e for e in globals().get('ema', [])]"])

    # -- running -----------------------------------------------------------------------------------------------------
    def run(self, library: Any, jit: Callable[..., Any]) -> list[np.ndarray]:
        """All that a library's run of the program keeps."""
        def tensor(array: np.ndarray) -> Any:
            return library.tensor(array.astype(np.float64) if library is torch else array)

        def numbers(shape: tuple[int, ...], number: int) -> Any:
            rng = np.random.default_rng([self.seed, number, *shape])
            return tensor(rng.standard_normal(shape).astype(np.float32))

        def load(model: Any) -> None:
            model.load_state_dict({name: value if "running" in name or "num_batches" in name else
                                   numbers(tuple(value.shape), i) * 0.5
                                   for i, (name, value) in enumerate(model.state_dict().items())})

        def classes(rows: int, number: int) -> Any:
            return library.tensor(np.random.default_rng([self.seed, number, rows]).integers(0, 3, rows))

        log: list[Any] = []
        names = {"torch": library, "nn": library.nn, "F": library.nn.functional, "load": load, "log": log, "jit": jit,
                 "X": lambda rows, number: numbers((rows, 5), 1000 + number), "K": classes,
                 "read": lambda value: [part.detach().numpy() for part in _tensors(value)]}
        exec(compile(self.text, f"<program {self.seed}>", "exec"), names)
        return [np.array(part.detach().numpy()) for part in _tensors(log)]

    def fails(self) -> str:
        """What is wrong, or nothing."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            wanted = self.run(torch, lambda function: function)
        finally:
            torch.set_default_dtype(before)
        try:
            found = self.run(ours_torch, TinyJit)
        except JitError:
            return ""
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{type(error).__name__}: {str(error)[:600]}"
        if len(found) != len(wanted):
            return f"{len(found)} values were kept, expected {len(wanted)}"
        for number, (x, y) in enumerate(zip(found, wanted)):
            if x.shape != y.shape or not np.allclose(x, y, **CLOSE, equal_nan=True):
                return f"value {number} of {len(wanted)}: {x.ravel()[:4]}, PyTorch {y.ravel()[:4]}"
        return ""


def _tensors(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    return [part for each in value for part in _tensors(each)] if isinstance(value, (list, tuple)) else [value]


def check(seed: int) -> str:
    """Nothing when the program of this seed does as PyTorch; else the program, with the calls that it needs."""
    program = LoopProgram(seed)
    wrong = failure_with_needed_calls(program)
    return f"seed {seed}: {wrong}\n{program.text}" if wrong else ""
