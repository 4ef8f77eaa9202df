"""PyTorch's torch.nn.functional: its names, its parameters, its order. In: tensors. Out: tensors.

    import glassgrad.nn.functional as F
    F.cross_entropy(F.linear(x, weight, bias), target)

Every function calls a tensor's method, whose parameters may be named and ordered otherwise: `F.linear` takes a weight
of (out, in), as PyTorch's does; `x.linear` one of (in, out).
"""

from glassgrad.nn.functional.activations import *  # noqa: F403
from glassgrad.nn.functional.activations import __all__ as _activations
from glassgrad.nn.functional.layers import *  # noqa: F403
from glassgrad.nn.functional.layers import __all__ as _layers
from glassgrad.nn.functional.losses import *  # noqa: F403
from glassgrad.nn.functional.losses import __all__ as _losses
from glassgrad.nn.functional.pools import *  # noqa: F403
from glassgrad.nn.functional.pools import __all__ as _pools
from glassgrad.nn.functional.tables import *  # noqa: F403
from glassgrad.nn.functional.tables import __all__ as _tables

__all__ = [*_activations, *_layers, *_losses, *_pools, *_tables]
