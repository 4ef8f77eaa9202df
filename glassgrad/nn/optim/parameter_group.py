"""Keep parameters and their settings in groups. In: numbers. Out: numbers, and tensors that hold them.

A number that changes between steps must not be a constant of the graph: each new value would be recompiled, and a
captured step would keep the old one. So the learning rate is a tensor of one element, and so is every setting that was
changed after the optimizer was made; the other settings are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import DType
from glassgrad.tensor.jit_access import computed_from
from glassgrad.tensor.tensor import Tensor

Of = Callable[[Any], float]


def itself(value: Any) -> float:
    """Return a number as it is.

    >>> itself(0.5)
    0.5
    """
    return float(value)


class _SharedSetting:
    """A tensor of one number, and that number, which is valid while the tensor's node is `node`."""
    __slots__ = ("tensor", "node", "value")

    def __init__(self, tensor: Tensor, value: float):
        self.tensor, self.node, self.value = tensor, tensor.uop, value

    def __reduce__(self) -> Any:
        """Pickle and copy it without the number, because the tensor has another node then."""
        return _SharedSetting, (self.tensor, self.value if self.tensor.uop is self.node else self.tensor.item())


class Group(MutableMapping[str, Any]):
    """Parameters and their settings, as a dictionary: group["lr"] = 0.1.

    >>> group = Group({"params": [], "lr": 0.5, "eps": 1e-8}, [], None, "float32")
    >>> group["lr"] = 0.25
    >>> group.number("lr").item(), group.number("eps"), group["lr"]
    (0.25, 1e-08, 0.25)
    >>> _ = group.tensor("lr").assign(Tensor([0.125]))
    >>> group["lr"]
    0.125
    """
    # a captured step reads the tensors of `_moving` and depends on `_switches` (no numbers); the rest is constant
    __jit_unwatched__ = ("_values", "_held", "indices", "_device", "_dtype")
    __slots__ = ("indices", "_values", "_moving", "_switches", "_held", "_device", "_dtype")

    def __init__(self, values: dict[str, Any], indices: list[int], device: str | None, dtype: DType | str):
        self.indices = indices                        # indices of its parameters in the optimizer's list
        self._values, self._device, self._dtype = dict(values), device, dtype
        self._moving = {"lr"}
        self._switches = {key: value for key, value in values.items() if key != "params" and not _is_number(value)}
        self._held: dict[tuple[str, Of], _SharedSetting] = {}
        rate = self._values["lr"]
        if isinstance(rate, Tensor):
            if rate.numel() != 1:
                raise InputError("a learning rate is one number", given=f"a tensor of shape {rate.shape}",
                                 expected="a tensor with 1 element",
                                 fix="use one group of parameters per learning rate")
            held = self._held["lr", itself] = _SharedSetting(rate, 0.0)
            held.node = None  # type: ignore[assignment]

    # -- as a dictionary -------------------------------------------------------------------------------------------
    def __getitem__(self, key: str) -> Any:
        held = self._held.get((key, itself)) if key in self._moving else None
        if held is not None and held.tensor.uop is not held.node:       # the tensor was reassigned
            held.value, held.node = held.tensor.item(), held.tensor.uop
            self._values[key] = held.value
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self._values and key not in ("params", "initial_lr") and _is_number(value):
            self._moving.add(key)
        if key in self._switches:
            self._switches[key] = value
        self._values[key] = value.item() if isinstance(value, Tensor) else value
        for (name, of), held in self._held.items():
            if name == key:
                held.value = of(self._values[key])
                held.tensor.replace(self._stored(held.value).reshape(held.tensor.shape).cast(held.tensor.dtype))
                held.node = held.tensor.uop

    def take(self, other: Mapping[str, Any]) -> None:
        """Copy the settings that this group has too; unchanged ones stay constants."""
        for key, value in other.items():
            if key != "params" and key in self and self[key] != value:
                self[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.items() if k != "params"}
        return f"Group({len(self._values['params'])} parameters, {', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    # -- in a graph ------------------------------------------------------------------------------------------------
    def number(self, key: str, of: Of = itself) -> Any:
        """Return a setting, or a function of one, to compute with: a tensor if it may change, else a plain number."""
        if key not in self._moving:
            return of(self._values[key])
        tensor = self.tensor(key, of)
        return computed_from(tensor, tensor.uop.reshape(()))

    def tensor(self, key: str, of: Of = itself) -> Tensor:
        """Return the tensor of one element that holds a setting; assigning to it changes the setting."""
        self._moving.add(key)
        held = self._held.get((key, of))
        if held is None:
            value = of(self._values[key])
            held = self._held[key, of] = _SharedSetting(self._stored(value), value)
        return held.tensor

    def _stored(self, value: float) -> Tensor:
        return Tensor([value], device=self._device, dtype=self._dtype, requires_grad=False)


def _is_number(value: Any) -> bool:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(v, (int, float, Tensor)) and not isinstance(v, bool) for v in parts)
