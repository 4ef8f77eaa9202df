"""Provide the functions of torch.nn.functional, with PyTorch's names, parameters and order. In: tensors. Out: tensors.

    import glassgrad.nn.functional as F
    F.cross_entropy(F.linear(x, weight, bias), target)

Every function calls a tensor's method, whose parameters may have other names or another order: `F.linear` takes a
weight of (out, in), as PyTorch's does; `x.linear` one of (in, out).
"""

from glassgrad.nn.functional import activations, embeddings, layers, losses, pooling
from glassgrad.nn.functional.activations import *  # noqa: F403
from glassgrad.nn.functional.embeddings import *  # noqa: F403
from glassgrad.nn.functional.layers import *  # noqa: F403
from glassgrad.nn.functional.losses import *  # noqa: F403
from glassgrad.nn.functional.pooling import *  # noqa: F403

__all__ = [*activations.__all__, *embeddings.__all__, *layers.__all__, *losses.__all__, *pooling.__all__]
