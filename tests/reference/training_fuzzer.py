"""Random small training programs, run by PyTorch and by glassgrad's adapter for it. In: a seed. Out: nothing, or text.

A program is a model of random layers, a loss, an optimizer with random arguments, perhaps a schedule, clipping of
gradients, frozen weights, gradients that are added up, and in the middle a new model and optimizer that load the state
of the first. Both libraries run the same lines, from PyTorch's first weights; losses, weights and the optimizer's
rates are compared after each step. PyTorch computes in float64, so that only our rounding counts.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

import glassgrad.torch as ours_torch

STEPS = 5
ACTIVATIONS = ("ReLU()", "Tanh()", "GELU()", "SiLU()", "Softplus()", "ELU()", "LeakyReLU(0.1)", "Sigmoid()", "Mish()",
               "Hardswish()", "SELU()", "PReLU()", "Softsign()", "LogSigmoid()", "GELU('tanh')", "CELU(0.5)")
OPTIMIZERS = (
    "SGD(p, lr=0.05)", "SGD(p, lr=0.05, momentum=0.9)",
    "SGD(p, lr=0.03, momentum=0.8, nesterov=True, weight_decay=0.1)",
    "SGD(p, lr=0.05, momentum=0.5, dampening=0.3)", "SGD(p, lr=0.05, maximize=True)", "Adam(p, lr=0.01, eps=1e-3)",
    "Adam(p, lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)", "Adam(p, lr=0.01, amsgrad=True, eps=1e-4)",
    "AdamW(p, lr=0.01, weight_decay=0.2, eps=1e-3)", "AdamW(p, lr=0.02, amsgrad=True, eps=1e-3)",
    "RMSprop(p, lr=0.01, alpha=0.9, eps=1e-3)",
    "RMSprop(p, lr=0.01, momentum=0.5, centered=True, eps=1e-2)", "Adagrad(p, lr=0.05, lr_decay=0.1, eps=1e-2)",
    "Adadelta(p, lr=0.5, rho=0.8, eps=1e-3)", "Adamax(p, lr=0.01, eps=1e-3)", "NAdam(p, lr=0.01, eps=1e-3)",
    "RAdam(p, lr=0.01, eps=1e-3)", "ASGD(p, lr=0.01)")
SCHEDULES = (
    "StepLR(o, 2, gamma=0.5)", "ExponentialLR(o, 0.8)", "CosineAnnealingLR(o, T_max=4)", "MultiStepLR(o, [1, 3])",
    "LinearLR(o, 0.3, 1.0, total_iters=3)", "ConstantLR(o, 0.5, total_iters=2)", "LambdaLR(o, lambda e: 1 / (e + 1))",
    "PolynomialLR(o, total_iters=4, power=2.0)", "CosineAnnealingWarmRestarts(o, T_0=2)",
    "OneCycleLR(o, max_lr=0.05, total_steps=9)", "CyclicLR(o, 0.01, 0.05, step_size_up=2, cycle_momentum=False)",
    "MultiplicativeLR(o, lambda e: 0.9)")
CLIPS = ("", "", "nn.utils.clip_grad_norm_(m.parameters(), 0.5)", "nn.utils.clip_grad_value_(m.parameters(), 0.05)",
         "nn.utils.clip_grad_norm_(m.parameters(), 0.3, norm_type=1.0)",
         "nn.utils.clip_grad_norm_(m.parameters(), 0.2, norm_type=float('inf'))")


class TrainingProgram:
    """The texts of a model, loss, optimizer and steps; each runs in both libraries."""

    def __init__(self, seed: int):
        self.random = rng = random.Random(seed)
        self.batch = rng.choice((1, 2, 3, 5, 8))
        self.images = rng.random() < 0.4
        self.layers: list[str] = []
        self.shape = (self.batch, rng.choice((1, 2, 3, 4)), rng.choice((5, 6, 8)), rng.choice((5, 7, 8))) \
            if self.images else (self.batch, rng.choice((1, 3, 5, 8)))
        shape = self._convolutions(self.shape) if self.images else self.shape
        self._dense(shape[1])
        self.loss = rng.choice(("F.mse_loss(y, t)", "F.cross_entropy(y, k)", "F.smooth_l1_loss(y, t, beta=0.5)",
                                "F.nll_loss(F.log_softmax(y, -1), k)", "F.l1_loss(y, t, reduction='sum')",
                                "F.binary_cross_entropy_with_logits(y, t.sigmoid())", "F.huber_loss(y, t, delta=0.3)",
                                "F.cross_entropy(y, k, label_smoothing=0.1)", "F.kl_div(F.log_softmax(y, 1), "
                                "F.softmax(t, 1), reduction='batchmean')", "((y - t) ** 2).mean().sqrt()"))
        self.optimizer = rng.choice(OPTIMIZERS)
        self.schedule = rng.choice(SCHEDULES) if rng.random() < 0.5 else ""
        self.clip = rng.choice(CLIPS)
        self.frozen = rng.random() < 0.2 and len(self.layers) > 2
        self.micro = rng.choice((1, 1, 1, 2))
        self.reload = rng.choice((None, None, 1, 3))
        self.groups = rng.random() < 0.25
        self.seed = seed

    def _convolutions(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        rng, channels = self.random, shape[1]
        for _ in range(rng.randint(1, 2)):
            out = rng.choice((2, 4, 6))
            groups = rng.choice([g for g in (1, 2) if channels % g == 0 and out % g == 0])
            norm = rng.choice((f"BatchNorm2d({out})", f"GroupNorm(2, {out})", f"InstanceNorm2d({out}, affine=True)",
                               "Identity()", f"BatchNorm2d({out}, momentum=0.3, eps=1e-3)"))
            bias, padding = norm == "Identity()", rng.choice((1, 2, "'same'"))    # before a norm its gradient is noise
            self.layers += [f"Conv2d({channels}, {out}, 3, padding={padding}, groups={groups}, bias={bias})", norm]
            self.layers.append(rng.choice(ACTIVATIONS))
            channels = out
        pool = rng.choice(("AdaptiveAvgPool2d(1)", "AdaptiveMaxPool2d((2, 2))", "AvgPool2d(3, 2)", "MaxPool2d(2)",
                           "AdaptiveAvgPool2d((3, 2))", "LPPool2d(2, 2)"))
        self.layers += [pool, "Flatten()"]
        with torch.no_grad():
            y = eval(f"nn.Sequential({', '.join('nn.' + layer for layer in self.layers)})",
                     {"nn": torch.nn})(torch.zeros((2, *shape[1:])))
        return tuple(y.shape)

    def _dense(self, width: int) -> None:
        rng = self.random
        for _ in range(rng.randint(1, 3)):
            out = rng.choice((2, 4, 6, 9))
            norm = rng.choice((f"LayerNorm({out})", "Identity()", "Identity()", f"RMSNorm({out}, eps=1e-5)",
                               f"BatchNorm1d({out})" if self.batch > 1 else "Identity()"))
            bias = not norm.startswith("Batch") and rng.random() < 0.8
            self.layers += [f"Linear({width}, {out}, bias={bias})", norm]
            self.layers.append(rng.choice(ACTIVATIONS))
            width = out
        self.layers.append(f"Linear({width}, 3)")

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}: x {self.shape}, {self.micro} backward per step, reload at {self.reload}, "
                          f"frozen {self.frozen}, groups {self.groups}", *[f"    nn.{layer}" for layer in self.layers],
                          f"    {self.loss}", f"    {self.optimizer}", f"    {self.schedule}", f"    {self.clip}"])

    def run(self, library: Any, first: dict[str, np.ndarray], values: dict[str, np.ndarray],
            is_wide: bool = False) -> list[Any]:
        """After each step: the loss, the rates and all that the model holds."""
        nn, F, optim = library.nn, library.nn.functional, library.optim
        kind = library.float64 if is_wide else library.float32
        scope: dict[str, Any] = {"nn": nn, "F": F, "optim": optim}

        def make() -> None:
            m = scope["m"] = eval(f"nn.Sequential({', '.join('nn.' + layer for layer in self.layers)})", scope)
            if is_wide:
                m.double()
            if self.frozen:
                for parameter in m[0].parameters():
                    parameter.requires_grad_(False)
            kept = [p for p in m.parameters() if p.requires_grad]
            half = len(kept) // 2
            groups = [{"params": kept[:half], "lr": 0.02}, {"params": kept[half:]}]
            scope["p"] = groups if self.groups and half else kept
            scope["o"] = eval("optim." + self.optimizer, scope)
            scope["s"] = eval("optim.lr_scheduler." + self.schedule, scope) if self.schedule else None
        make()
        scope["m"].load_state_dict({name: library.tensor(value) for name, value in first.items()})
        seen = []
        for step in range(STEPS):
            if step == self.reload:
                states = [scope[n].state_dict() for n in "mos" if scope[n] is not None]
                make()
                for name, state in zip([n for n in "mos" if scope[n] is not None], states):
                    scope[name].load_state_dict(state)
            scope["o"].zero_grad()
            for part in range(self.micro):
                x, k, t = (values[f"{name}{step}{part}"] for name in "xkt")
                scope.update(x=library.tensor(x, dtype=kind), k=library.tensor(k), t=library.tensor(t, dtype=kind))
                scope["y"] = scope["m"](scope["x"])
                loss = eval(self.loss, scope)
                loss.backward()
            if self.clip:
                eval(self.clip, scope)
            scope["o"].step()
            if scope["s"] is not None:
                scope["s"].step()
            rates = [float(group["lr"]) for group in scope["o"].param_groups]
            seen.append({"loss": float(loss.item()), "rates": rates, **{name: np.array(value.detach().tolist())
                         for name, value in scope["m"].state_dict().items()}})
        scope["m"].eval()
        seen.append({"evaluated": np.array(scope["m"](scope["x"]).detach().tolist())})
        return seen


def check(seed: int) -> str:
    """Nothing when both libraries train alike; else the program and the first value that differs."""
    program = TrainingProgram(seed)
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for step in range(STEPS):
        for part in range(program.micro):
            values[f"x{step}{part}"] = rng.standard_normal(program.shape).astype(np.float32)
            values[f"k{step}{part}"] = rng.integers(0, 3, program.batch)
            values[f"t{step}{part}"] = rng.standard_normal((program.batch, 3)).astype(np.float32)
    torch.manual_seed(seed)
    model = eval(f"nn.Sequential({', '.join('nn.' + layer for layer in program.layers)})", {"nn": torch.nn})
    first = {name: value.numpy() for name, value in model.state_dict().items()}
    try:
        expected = program.run(torch, first, values, is_wide=True)
    except (RuntimeError, ValueError):               # PyTorch refuses it, as one pixel for each channel of a norm
        return ""
    try:
        found = program.run(ours_torch, first, values)
    except Exception as error:
        return f"{program}\n{type(error).__name__}: {error}"
    for step, (got, want) in enumerate(zip(found, expected)):
        if set(got) != set(want):
            return f"{program}\nstep {step}: names {set(got) ^ set(want)}"
        for name, value in want.items():
            same = np.shape(got[name]) == np.shape(value)
            if not same or not np.allclose(got[name], value, rtol=2e-3, atol=5e-4, equal_nan=True):
                in_float32 = program.run(torch, first, values)[step][name]       # some programs magnify every rounding
                if same and np.max(np.abs(got[name] - value)) < 10 * np.max(np.abs(in_float32 - value)):
                    return ""
                return f"{program}\nstep {step}: {name} is {np.ravel(got[name])[:6]}, PyTorch {np.ravel(value)[:6]}"
    return ""
