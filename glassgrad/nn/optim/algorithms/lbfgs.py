"""Define L-BFGS: quasi-Newton steps, with the inverse Hessian estimated from the last gradients. In: a closure. Out:
see `optimizer`.

All parameters are treated as one vector. The history is realized. A step reads scalars back to decide how to continue,
so it runs many graphs and cannot be captured by a jit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules import pending_statistics as pending
from glassgrad.nn.optim.algorithms.line_search import Point, strong_wolfe
from glassgrad.nn.optim.optimizer import Group, Optimizer, Parameters
from glassgrad.tensor.autograd.gradient_leaves import take_losses
from glassgrad.tensor.tensor import Tensor

LEAST_CURVATURE = 1e-10         # pairs with less are skipped, because the estimated Hessian must be positive definite


class LBFGS(Optimizer):
    """p += t d with d = -H g, where H is estimated from the last `history_size` changes of p and g (Liu and Nocedal,
    1989). `step(closure)` does up to `max_iter` such steps; the closure clears the gradients, computes the loss, calls
    `backward` and returns the loss. t is lr, or what `line_search_fn="strong_wolfe"` finds.

    >>> x = Tensor([3.0, -2.0])
    >>> optimizer = LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((x - 1) ** 2 * Tensor([1.0, 10.0])).sum()
    ...     return loss.backward()
    >>> round(optimizer.step(closure).item(), 2), x.numpy().round(3)
    (94.0, array([1., 1.], dtype=float32))
    """
    numbers = ("n_iter", "func_evals", "t", "prev_loss")

    def __init__(self, params: Parameters, lr: float | Tensor = 1.0, max_iter: int = 20, max_eval: int | None = None,
                 tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
                 line_search_fn: str | None = None):
        super().__init__(params, {"lr": lr, "max_iter": max_iter,
                                  "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                                  "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
                                  "history_size": history_size, "line_search_fn": line_search_fn}, False)
        self.n_iter = self.func_evals = 0
        self.t = self.prev_loss = 0.0
        self.stored = 0                                                     # number of used entries in the next lists
        self.old_dirs: list[Tensor | None] = [None] * history_size          # changes of the gradient
        self.old_stps: list[Tensor | None] = [None] * history_size          # changes of the parameters
        self.ro: list[Tensor | None] = [None] * history_size                # 1 / their dot product
        self.d: Tensor | None = None
        self.H_diag: Tensor | None = None
        self.prev_flat_grad: Tensor | None = None

    def check(self, group: Group) -> None:
        super().check(group)
        if self.param_groups or group["line_search_fn"] not in (None, "strong_wolfe") or group["history_size"] < 1:
            raise InputError("LBFGS takes one group, a history, and a line search that it knows",
                             given=f"{len(self.param_groups) + 1} groups, history_size={group['history_size']}, "
                                   f"line_search_fn={group['line_search_fn']!r}",
                             expected='1 group, history_size from 1, None or "strong_wolfe"',
                             fix="pass all parameters as one list")

    # -- a step ----------------------------------------------------------------------------------------------------
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the closure and move the parameters, up to `max_iter` times. Return the first loss."""
        if closure is None:
            raise InputError("LBFGS evaluates the loss several times a step", given="step()",
                             expected="a function that clears the gradients, calls backward and returns the loss",
                             fix="write optimizer.step(closure)")
        group = self.param_groups[0]
        first = closure()
        loss, gradient = self._evaluated(first)
        done, evaluations = 0, 1
        self.func_evals += 1
        flat = _largest(gradient) <= group["tolerance_grad"]
        while not flat and done < group["max_iter"]:
            done += 1
            self.n_iter += 1
            d = self._direction(gradient)
            t = group["lr"] if self.n_iter > 1 else min(1.0, 1.0 / gradient.abs().sum().item()) * group["lr"]
            self.prev_flat_grad, self.prev_loss, self.t, before = gradient, loss, t, loss
            slope = (gradient * d).sum().item()
            if slope > -group["tolerance_change"]:
                break
            looked = 0
            if group["line_search_fn"]:
                origin = [p.detach().clone() for p in self.params]
                found, looked = strong_wolfe(partial(self._evaluated_at, closure, origin, d),
                                             Point(0.0, loss, slope, gradient), t, group["max_eval"] - evaluations,
                                             _largest(d))
                self.t, loss, gradient = found.at, found.loss, found.gradient
                self._move(origin, found.at, d)
            else:
                self._move(self.params, t, d)
                if done < group["max_iter"]:
                    loss, gradient = self._evaluated(closure())
                    looked = 1
            evaluations += looked
            self.func_evals += looked
            flat = _largest(gradient) <= group["tolerance_grad"]
            if evaluations >= group["max_eval"] or _largest(d) * abs(self.t) <= group["tolerance_change"] \
                    or abs(loss - before) < group["tolerance_change"]:
                break
        return first

    def schedule_step(self, only_if: Tensor | None = None) -> list[Tensor]:
        raise InputError("LBFGS has no step that is one graph", given="schedule_step()",
                         expected="step(closure), which looks at values between its graphs",
                         fix="write optimizer.step(closure), outside of a jit")

    def _direction(self, gradient: Tensor) -> Tensor:
        """Return -H g by the two-loop recursion, which needs only dot products. Each iteration is a graph of the same
        structure, however long the history is."""
        if self.d is None or self.prev_flat_grad is None:
            self.d, self.H_diag = (-gradient).realize(), self._scalar(1.0).reshape(())
            return self.d
        change, way = (gradient - self.prev_flat_grad).realize(), (self.d * self._scalar(self.t)).realize()
        product = (change * way).sum()
        if product.item() > LEAST_CURVATURE:
            if self.stored == len(self.ro):
                for kept in (self.old_dirs, self.old_stps, self.ro):
                    kept.append(kept.pop(0))
                self.stored -= 1
            at, self.stored = self.stored, self.stored + 1
            self.old_dirs[at], self.old_stps[at], self.ro[at] = change, way, product.reciprocal().realize()
            self.H_diag = (product / change.square().sum()).realize()
        q, shares = (-gradient).realize(), []
        pairs = list(zip(self.old_dirs, self.old_stps, self.ro))[:self.stored]
        for changed, moved, ro in reversed(pairs):
            share = (moved * q).sum() * ro
            q = (q - changed * share).realize(share)
            shares.append(share)
        r = (q * self.H_diag).realize()
        for (changed, moved, ro), share in zip(pairs, reversed(shares)):
            r = (r + moved * (share - (changed * r).sum() * ro)).realize()
        self.d = r
        return r

    # -- all parameters as one vector ------------------------------------------------------------------------------
    def _scalar(self, number: float) -> Tensor:
        """Return a number as a tensor, not as a constant, so that all values share kernels."""
        p = self.params[0]
        return Tensor([number], dtype=p.dtype.accumulator, device=p.device, requires_grad=False)

    def _evaluated(self, loss: Any) -> tuple[float, Tensor]:
        parts = [(p.zeros_like() if p.grad is None else p.grad).detach().cast(p.dtype.accumulator).flatten()
                 for p in self.params]
        gradient = parts[0].cat(*parts[1:])
        take_losses()
        gradient.requires_grad = False
        gradient.realize(*([loss] if isinstance(loss, Tensor) else []), *pending.take())
        return float(loss.item() if isinstance(loss, Tensor) else loss), gradient

    def _evaluated_at(self, closure: Callable[[], Any], origin: list[Tensor], d: Tensor, at: float) -> Point:
        self._move(origin, at, d)
        loss, gradient = self._evaluated(closure())
        return Point(at, loss, (gradient * d).sum().item(), gradient)

    def _move(self, origin: list[Tensor], at: float, d: Tensor) -> None:
        """Set each parameter to its origin + at d."""
        way = (d * self._scalar(at)).split([p.numel() for p in self.params])
        for p, old, part in zip(self.params, origin, way):
            p.assign((old.detach() + part.reshape(p.shape)).cast(p.dtype))
        self.params[0].realize(*self.params[1:])

    # -- saving ----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return history and settings in PyTorch's layout: all under the first parameter."""
        held: dict[str, Any] = {name: getattr(self, name) for name in self.numbers}
        if self.d is not None:
            held |= {"d": self.d, "H_diag": self.H_diag, "prev_flat_grad": self.prev_flat_grad}
            held |= {name: getattr(self, name)[:self.stored] for name in ("old_dirs", "old_stps", "ro")}
        return {**super().state_dict(), "state": {0: held}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict({**saved, "state": {}})
        held = saved["state"].get(0, {})
        own = lambda value: value.detach() if isinstance(value, Tensor) else \
            Tensor(value, device=self.params[0].device, dtype=self.params[0].dtype.accumulator, requires_grad=False)
        for name in self.numbers:
            setattr(self, name, type(getattr(self, name))(held.get(name, 0)))
        for name in ("d", "H_diag", "prev_flat_grad"):
            setattr(self, name, own(held[name]) if held.get(name) is not None else None)
        self.stored = len(held.get("ro") or ())
        for name in ("old_dirs", "old_stps", "ro"):
            given = [own(value) for value in held.get(name) or ()]
            setattr(self, name, [*given, *[None] * (self.param_groups[0]["history_size"] - len(given))])


def _largest(x: Tensor) -> float:
    return x.abs().max().item()  # type: ignore[no-any-return]
