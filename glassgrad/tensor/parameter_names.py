"""What other libraries call a parameter. In: a signature and a call it refuses. Out: the same call in our words.

PyTorch says `dim` where tinygrad says `axis`, NumPy `keepdims` where both say `keepdim`. Each method has one name for
each parameter; a keyword that it does not have is looked up here, after the call was refused, so that it costs nothing
where it is not needed.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["translated"]

# names that mean the same thing
_SAME: tuple[frozenset[str], ...] = tuple(frozenset(names.split()) for names in (
    "axis dim dims axes order",
    "keepdim keepdims",
    "other x y w b exponent value others",
    "others args tensors lst uops",
    "target Y targets",
    "dtype acc_dtype",
    "op arg",
    "num_features sz",
    "num_embeddings vocab_size",
    "dim normalized_shape",
    "min_val min_value",
    "max_val max_value",
    "modules values parameters",
    "embedding_dim embed_size",
    "path fn t",
    "shape size sizes args",
    "repeats reps args",
    "yes x input",
    "no y other",
    "min_ min a_min",
    "max_ max a_max",
    "layers ll",
    "bounds arg",
    "split_size_or_sections sizes split_size",
    "start_dim start_axis",
    "p ord",
    "stop end",
    "fill_value value",
    "num_samples n",
    "in_axes in_dims",
    "out_axes out_dims",
    "sorted_ sorted",
    "dim dimension",
    "src value",
    "axis0 dim0",
    "axis1 dim1",
    "repeats dims",
))
# PyTorch's words for how to do a thing that give the same values: copies wait for nobody, every order is stable
_WITHOUT_EFFECT = frozenset(("non_blocking", "stable", "sparse_grad", "memory_format", "force"))


def translated(signature: inspect.Signature, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The call with every keyword that the signature lacks renamed to one it has; None when that does not help.

    >>> translated(inspect.signature(lambda x, axis=None: 0), (1,), {"dim": 0})
    ((1,), {'axis': 0})
    """
    parameters = signature.parameters
    known = {name: value for name, value in kwargs.items()
             if name in parameters and parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL}
    unknown = [name for name in kwargs if name not in known]
    for name in unknown:
        if name in _WITHOUT_EFFECT:
            continue
        ours = next((p for p in parameters.values() if p.name not in known
                     and (name == p.name or any(name in same and p.name in same for same in _SAME))), None)
        if ours is None:
            return None
        if ours.kind is ours.VAR_POSITIONAL:       # flip(dims=(0, 1)) is flip(0, 1)
            value = kwargs[name]
            args = (*args, *(value if isinstance(value, (tuple, list)) else (value,)))
        else:
            known[ours.name] = kwargs[name]
    try:
        signature.bind(*args, **known)
    except TypeError:
        return None
    return (args, known) if unknown else None
