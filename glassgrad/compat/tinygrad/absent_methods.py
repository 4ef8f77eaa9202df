"""Say what to write instead of methods that tinygrad's tensors and nodes had. In: a name. Out: text for an error."""

from __future__ import annotations

from typing import Any, NoReturn

INSTEAD = {
    "e": "operators and methods make nodes: x + y, x.exp2(), (x < y).where(x, y)",
    "r": "write x.sum(axis), x.max(axis) or x.prod(axis)",
    "slice": "write x[1:3], x.shrink(((1, 3), None)) or x.pad(((1, 1), None))",
    "pad2d": "write x.pad((left, right, top, bottom))",
    "npy": "write x.numpy()",
    "gpu": 'write x.to("GPU")',
    "cuda": 'write x.to("CUDA")',
    "eval": "write Tensor.training = False; x.realize() computes a value",
    "schedule": "write Tensor(node).schedule()",
    "const": "write Tensor(value), or node * 0 + value",
}


def instead_of(name: str) -> str:
    """Say what to write in place of a method of tinygrad's.

    >>> instead_of("npy")
    'write x.numpy()'
    """
    return INSTEAD.get(name, "docs/from_tinygrad.md says where things are, docs/api.md lists every name")


def _absent(name: str) -> property:
    def missing(node: Any) -> NoReturn:
        raise AttributeError(f"a node has no {name!r}: {instead_of(name)}")
    return property(missing)


NODE_METHODS = {name: _absent(name) for name in ("e", "r", "schedule", "const")}
