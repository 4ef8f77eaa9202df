"""Which tensors there are. In: nothing. Out: `Living`, asked before, during and after a call that is traced.

Nobody keeps a list of all tensors: it would cost every one of them something, for traces alone. Python's collector of
garbage knows them, among everything else there is. So the first look is long (it grows with the program: milliseconds
where large libraries are loaded), and the later ones are short: while the collector rests, whatever was made since is
in its youngest generation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from glassgrad.tensor.tensor import Tensor

__all__ = ["Living"]


class Living:
    """All live tensors, as often as one asks inside the block.

    >>> with Living() as living:
    ...     before = {id(t) for t in living.before}
    ...     made = Tensor([1.0])
    ...     id(made) in before, any(t is made for t in living.now())
    (False, True)
    """

    def __enter__(self) -> Living:
        self._resting = not gc.isenabled()
        gc.disable()
        self._collections = _collections()
        self.before = _tensors(gc.get_referrers(*_kinds(Tensor)))      # an object refers to its class
        return self

    def __exit__(self, *_: object) -> None:
        if not self._resting:
            gc.enable()

    def now(self) -> list[Tensor]:
        """Those of before, and those that were made since."""
        if _collections() != self._collections:              # somebody asked for one: they are anywhere by now
            return _tensors(gc.get_referrers(*_kinds(Tensor)))
        known = set(map(id, self.before))
        return self.before + [t for t in _tensors(gc.get_objects(generation=0)) if id(t) not in known]


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _kinds(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [kind, *[k for b in below for k in _kinds(b)]]


def _tensors(objects: Iterable[Any]) -> list[Tensor]:
    # type(t), not isinstance: other libraries' objects run code when asked for their class
    return [t for t in objects if issubclass(type(t), Tensor) and hasattr(t, "uop")]
