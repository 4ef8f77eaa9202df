"""Define the base of all optimizers: parameter groups, state, a step as one graph. In: gradients. Out: new parameters.

A subclass is its formula: it defines `update`, which takes a value and its gradient and returns the new value, and
names the state tensors that it keeps for each parameter. Gradients, parameters, state and pending statistics are
computed together, so a whole training step is one schedule, and no gradient keeps an old graph alive. PyTorch's
`foreach` and `fused` have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from glassgrad.base.errors import DeviceError, GradientError, InputError
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import DType, dtypes, ops as o
from glassgrad.nn.modules import pending_statistics as pending
from glassgrad.nn.modules.argument_checks import check_call, signature_of
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.autograd.gradient_leaves import distinct, take_losses
from glassgrad.tensor.jit_access import computed_from, wants_gradient
from glassgrad.tensor.tensor import Tensor

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]] | Tensor
# constructor arguments that are not settings of a group
_NO_SETTINGS = ("self", "__class__", "params", "foreach", "fused", "master_weights")


class Optimizer:
    """The base of all optimizers; a subclass has an `update`.

    >>> class Plain(Optimizer):
    ...     def __init__(self, params, lr=0.1): super().__init__(params, {"lr": lr})
    ...     def update(self, i, value, gradient, group): return value - group.number("lr") * gradient
    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = Plain([x], lr=0.5)
    >>> _ = (x * x).sum().backward()
    >>> optimizer.step(); x.tolist()
    [0.0, 0.0]
    """
    __jit_unwatched__ = ("defaults", "shared")      # only read when a group is added; empty between steps
    keeps: Mapping[str, str] = {}                   # {attribute with one tensor per parameter: its name in PyTorch}
    decoupled = False                               # whether weight decay acts on parameters, not on gradients

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:                          # copy and pickle call this without arguments first
            model = args[0] if args else kwargs.get("params")
            if hasattr(model, "parameters"):
                raise InputError("an optimizer takes tensors, not a model", given=f"a {type(model).__name__}",
                                 expected="its parameters, or dictionaries with params",
                                 fix=f"write {cls.__name__}(model.parameters(), ...)")
            check_call(cls, signature_of(cls.__init__), "nn.optim", args, kwargs)
        return super().__new__(cls)

    def __init__(self, params: Parameters, defaults: dict[str, Any], master_weights: bool = True):
        """`defaults` are the settings that a group does not set itself; a subclass whose settings are its arguments
        passes `locals()`."""
        self.defaults = {"maximize": False, **{name: tuple(value) if isinstance(value, list) else value
                                               for name, value in defaults.items() if name not in _NO_SETTINGS}}
        self.master_weights = bool(defaults.get("master_weights", master_weights))
        self.params: list[Tensor] = []              # the parameters that are trained
        self.buffers: list[Tensor] = []             # those with requires_grad=False: realized in a step, never changed
        self.param_groups: list[Group] = []
        self.rates: list[Tensor] = []               # the learning rate of each group
        # These lists, and those of `keeps`, are indexed by parameter and end with the last that has such a tensor.
        self.master: list[Tensor | None] = []       # float32 values of narrower parameters
        self.shared: dict[Any, Any] = {}            # values shared by the updates of one step; empty between steps
        for attribute in self.keeps:
            setattr(self, attribute, [])
        for group in _groups(params):
            self.add_param_group(group)
        if not self.params:
            raise InputError("an optimizer needs something to optimize", given="no trainable tensor",
                             expected="float tensors whose requires_grad is not False",
                             fix="pass nn.state.get_parameters(model)")

    # -- parameters ------------------------------------------------------------------------------------------------
    def add_param_group(self, settings: dict[str, Any]) -> None:
        """Add parameters with separate settings.

        >>> from glassgrad.nn.optim import SGD
        >>> optimizer = SGD([Tensor([1.0])], lr=0.1)
        >>> optimizer.add_param_group({"params": [Tensor([2.0])], "lr": 0.01})
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.1, 0.01]
        """
        given = settings["params"]
        given = [given] if isinstance(given, Tensor) else [_unnamed(each) for each in given]
        unknown = set(settings) - set(self.defaults) - {"params", "initial_lr"}
        if unknown:
            raise InputError(f"{type(self).__name__} has no such setting", given=", ".join(sorted(unknown)),
                             expected=f"one of {', '.join(self.defaults)}", fix="check the spelling")
        known, first = {id(t) for t in (*self.params, *self.buffers)}, len(self.params)
        for position, tensor in enumerate(given):
            if not isinstance(tensor, Tensor):
                raise InputError("an optimizer takes tensors",
                                 given=f"{tensor!r} of type {type(tensor).__name__} at {position}",
                                 expected="a list of tensors, or of dictionaries with params",
                                 fix="pass nn.state.get_parameters(model)")
            if id(tensor) in known:
                if any(tensor is t for group in self.param_groups for t in group["params"]):
                    raise InputError("a parameter is in two groups",
                                     given=f"the tensor of shape {tensor.shape} at {position}",
                                     expected="each parameter once", fix="leave it out of one of the groups")
                continue
            known.add(id(tensor))
            if wants_gradient(tensor) is False or tensor.dtype.kind != "f":
                self.buffers.append(tensor if pending.is_computed(tensor) else _kept(tensor))
            else:
                self.params.append(tensor)
        members = self.params[first:]
        devices = sorted({p.device for p in members})
        if len(devices) > 1:
            raise DeviceError("the parameters of a group live on different devices", given=" and ".join(devices),
                              expected="one device per group",
                              fix='make one group per device: [{"params": ...}, ...]')
        _separate_buffers(members, self.params[:first])
        values = {**self.defaults, **settings, "params": members}
        wide = [p.dtype.accumulator for p in members]
        group = Group(values, list(range(first, len(self.params))), devices[0] if devices else None,
                      dtypes.float64 if dtypes.float64 in wide else dtypes.float32)
        self.check(group)
        self.param_groups.append(group)
        self.rates.append(group.tensor("lr"))
        self._start(group)

    def _start(self, group: Group) -> None:
        """Make the state of the parameters of a new group."""
        counter: dict[DType, Tensor] = {}
        for i in group.indices:
            p = self.params[i]
            wide = p.dtype.accumulator
            if self.master_weights and p.dtype.bits < 32:
                _put(self.master, i, _kept(p.detach().cast(wide).contiguous()))
            for attribute in self.keeps:
                if self.wants(attribute, group, p):
                    made = self._filled(attribute, p, group)
                    if attribute == "t":             # one shared value while all counts are equal
                        made = Tensor(counter.setdefault(wide, made), requires_grad=False)
                    _put(getattr(self, attribute), i, made)

    def _filled(self, attribute: str, p: Tensor, group: Group) -> Tensor:
        if attribute == "t":
            return Tensor(0.0, dtype=p.dtype.accumulator, device=p.device, requires_grad=False)
        wide = p.dtype.accumulator if self.master_weights else p.dtype
        shape = self.shape(attribute, p)
        return _kept(Tensor.full(shape, self.initial(attribute, group), dtype=wide, device=p.device).contiguous())

    def kept(self, attribute: str, i: int, group: Group) -> Tensor:
        """Return the state tensor of this name for parameter i; it is made now if a setting was switched on later."""
        tensors = getattr(self, attribute)
        found = _at(tensors, i)
        return _put(tensors, i, self._filled(attribute, self.params[i], group)) if found is None else found

    def counted(self, i: int, group: Group) -> Tensor:
        """Increment and return the number of steps of parameter i."""
        t = self.kept("t", i, group)
        return t.replace(t + 1)                     # unlike with `assign`, equal counts stay one value

    def decayed(self, value: Tensor, gradient: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        """Apply weight decay: g += weight_decay p, or p -= lr weight_decay p if it is decoupled from the gradient."""
        if not group["weight_decay"]:
            return value, gradient
        decay = group.number("weight_decay")
        if group.get("decoupled_weight_decay", self.decoupled):
            return value * (1.0 - group.number("lr") * decay), gradient
        return value, gradient + value * decay

    # -- what a subclass overrides ---------------------------------------------------------------------------------
    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        """Return the new value of parameter i."""
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def wants(self, attribute: str, group: Group, p: Tensor) -> bool:
        """Return whether a parameter needs this state tensor from the start, by its group's settings and its shape."""
        return True

    def shape(self, attribute: str, p: Tensor) -> tuple[int, ...]:
        """Return the shape of a state tensor."""
        return p.shape

    def initial(self, attribute: str, group: Group) -> float:
        """Return the initial value of a state tensor."""
        return 0.0

    def check(self, group: Group) -> None:
        """Raise for settings that make no sense."""
        for key, value in group.items():
            if key in ("lr", "eps", "weight_decay", "momentum", "dampening", "alpha") \
                    and not isinstance(value, tuple) and not value >= 0:
                raise InputError(f"{key} cannot be negative", given=f"{key}={value}", expected="0 or more",
                                 fix="to climb write maximize=True" if key == "lr" else "check the setting")

    # -- a step ----------------------------------------------------------------------------------------------------
    @property
    def lr(self) -> Tensor:
        """The learning rate of the first group, as a tensor of one element; assign a number or a tensor to it.

        >>> from glassgrad.nn.optim import SGD
        >>> optimizer = SGD([Tensor([1.0])], lr=0.5)
        >>> optimizer.lr = 0.25
        >>> optimizer.lr.item()
        0.25
        """
        return self.rates[0]

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        self.param_groups[0]["lr"] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, so that the next `backward` does not add to them."""
        for p in self.params:
            p.grad = None if set_to_none or p.grad is None else p.grad.zeros_like()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute the gradients and update the parameters in one schedule. Return what `closure` returned."""
        loss = closure() if closure is not None else None
        changed = self.schedule_step()
        changed[0].realize(*changed[1:])
        return loss

    def schedule_step(self, only_if: Tensor | None = None) -> list[Tensor]:
        """Return the step as lazy tensors, to be realized together. With `only_if`, a bool tensor of one element,
        nothing changes if it is false."""
        if all(p.grad is None for p in self.params):
            raise GradientError("there are no gradients to step along", given="parameters whose grad is None",
                                expected="at least one parameter with a gradient", fix="call loss.backward() first")
        old = {id(t): t.uop for t in self._state()} if only_if is not None else {}
        is_ours = type(self).__module__.startswith("glassgrad.")         # nodes of the user's formula get its lines
        with one_place() if is_ours else nullcontext():
            self._update_all()
        self.shared.clear()
        if only_if is not None:
            for t in self._state():
                before = old.get(id(t))
                if before is not None and before is not t.uop:
                    t.assign(only_if.reshape(()).where(t, Tensor(before)))
        gradients = [grad for p in self.params if (grad := p.grad) is not None]
        losses = [t for t in take_losses() if not pending.is_computed(t) and t.device == self.params[0].device]
        return [*gradients, *self._state(), *self.rates, *self.buffers, *pending.take(), *losses]

    def _update_all(self) -> None:
        """Assign every parameter that has a gradient its new value."""
        for group in self.param_groups:
            for i in group.indices:
                p = self.params[i]
                grad = p.grad
                if grad is None:
                    continue
                _in_parameter_layout(grad)
                gradient = computed_from(grad, grad.uop.cast(p.dtype.accumulator))
                new = self.update(i, self._value(i), -gradient if group["maximize"] else gradient, group)
                master = _at(self.master, i)
                if master is not None:
                    master.assign(new.cast(master.dtype))
                p.assign(computed_from(new, distinct(new.uop).cast(p.dtype)))

    def _value(self, i: int) -> Tensor:
        """Return parameter i in the type to compute in: its float32 master value if that rounds to the parameter, else
        the parameter itself, which was changed from outside."""
        p, master = self.params[i], _at(self.master, i)
        wide = computed_from(p, p.uop.cast(p.dtype.accumulator))
        return wide if master is None else (master.cast(p.dtype) == p.detach()).where(master, wide)

    def _state(self) -> Iterator[Tensor]:
        yield from self.params
        for tensors in (self.master, *[getattr(self, attribute) for attribute in self.keeps]):
            yield from (t for t in tensors if t is not None)

    # -- saving ----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return state and settings in PyTorch's layout.

        >>> from glassgrad.nn.optim import Adam
        >>> saved = Adam([Tensor([1.0])]).state_dict()
        >>> sorted(saved["state"][0]), saved["param_groups"][0]["params"]
        (['exp_avg', 'exp_avg_sq', 'step'], [0])
        """
        names = {**self.keeps, "master": "master"}
        state = {i: {name: Tensor(kept, requires_grad=False) for attribute, name in names.items()
                     if (kept := _at(getattr(self, attribute), i)) is not None} for i in range(len(self.params))}
        groups = [{**dict(g), "params": list(g.indices)} for g in self.param_groups]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned (or PyTorch's, whose tensors become ours)."""
        groups = saved["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g.indices) for g in self.param_groups]:
            raise InputError("the saved state belongs to other parameters",
                             given=f"groups of {[len(g['params']) for g in groups]} parameters",
                             expected=f"groups of {[len(g.indices) for g in self.param_groups]}",
                             fix="make the optimizer with the same groups, in the same order")
        attributes = {name: attribute for attribute, name in {**self.keeps, "master": "master"}.items()}
        for own, other in zip(self.param_groups, groups):
            own.take(other)
            for i, j in zip(own.indices, other["params"]):
                for name, value in saved["state"].get(j, {}).items():
                    if name in attributes and value is not None:
                        kept = self.kept(attributes[name], i, own)
                        new = value if isinstance(value, Tensor) else Tensor(value, device=kept.device)
                        kept.assign(new.detach().cast(kept.dtype).reshape(kept.shape).contiguous())


def _of_all(attribute: str) -> Any:
    """Return a property that concatenates the optimizers' lists of this name."""
    return property(lambda self: [item for each in self.optimizers for item in getattr(each, attribute)])


class OptimizerGroup(Optimizer):
    """Several optimizers as one: each updates its own parameters.

    >>> from glassgrad.nn.optim import SGD
    >>> a, b = Tensor([1.0]), Tensor([1.0])
    >>> both = OptimizerGroup(SGD([a], lr=0.5), SGD([b], lr=0.25))
    >>> _ = (a + b).sum().backward()
    >>> both.step(); a.item(), b.item()
    (0.5, 0.75)
    """

    def __init__(self, *optimizers: Optimizer):
        if not optimizers:
            raise InputError("OptimizerGroup needs optimizers", given="none", expected="one or more",
                             fix="write OptimizerGroup(SGD(matrices), Adam(rest))")
        self.optimizers = list(optimizers)

    def __getitem__(self, at: int) -> Optimizer:
        return self.optimizers[at]

    params, param_groups, rates = (_of_all(name) for name in ("params", "param_groups", "rates"))

    def zero_grad(self, set_to_none: bool = True) -> None:
        for each in self.optimizers:
            each.zero_grad(set_to_none)

    def schedule_step(self, only_if: Tensor | None = None) -> list[Tensor]:
        ready = [each for each in self.optimizers if any(p.grad is not None for p in each.params)]
        return [t for each in ready or self.optimizers for t in each.schedule_step(only_if)]

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [each.state_dict() for each in self.optimizers]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        for each, state in zip(self.optimizers, saved["optimizers"]):
            each.load_state_dict(state)


def _groups(params: Parameters) -> list[dict[str, Any]]:
    """Return the user's parameters or groups as a list of groups."""
    given: list[Any] = [params] if isinstance(params, (Tensor, dict)) else list(params)
    if given and all(isinstance(g, dict) for g in given):
        missing = next((g for g in given if "params" not in g), None)
        if missing is not None:
            raise InputError("a group of parameters needs its parameters",
                             given=f"a dictionary with {', '.join(missing) or 'nothing'}",
                             expected='{"params": [...], "lr": ...}', fix='add "params"')
        return given
    return [{"params": given}]


def _unnamed(given: Any) -> Any:
    """Return the parameter of a (name, parameter) pair, as from `get_state_dict(model).items()`; else the argument."""
    return given[1] if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) else given


def _at(tensors: list[Tensor | None], i: int) -> Tensor | None:
    """Return the tensor for parameter i, or None."""
    return tensors[i] if i < len(tensors) else None


def _put(tensors: list[Tensor | None], i: int, tensor: Tensor) -> Tensor:
    """Set the tensor for parameter i; return it."""
    tensors += [None] * (i + 1 - len(tensors))
    tensors[i] = tensor
    return tensor


def _separate_buffers(members: list[Tensor], others: list[Tensor]) -> None:
    """Give each parameter a separate buffer, so that all steps have one graph structure, and each parameter its own
    gradient."""
    taken = {t.uop for t in others}
    for p in members:
        if p.uop.op is not o.BUFFER or p.uop in taken:
            _kept(p.replace(p.detach().contiguous()))
        taken.add(p.uop)
        p.requires_grad = True


def _in_parameter_layout(gradient: Tensor) -> None:
    """Make a gradient be computed in its parameter's order of axes, not in that of its reduction (w.T, for x @ w), so
    that one kernel computes it and the new value."""
    node = gradient.uop
    while node.op in (o.RESHAPE, o.PERMUTE, o.DETACH):
        if node.op is o.PERMUTE and node.base.op is not o.BUFFER:
            gradient.replace(gradient.contiguous())
            return
        node = node.src[0]


def _kept(tensor: Tensor) -> Tensor:
    """Realize a tensor and exclude it from gradients; return it."""
    tensor.requires_grad = False
    return tensor.realize()
