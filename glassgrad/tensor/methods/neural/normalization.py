"""Define norms along axes. In, out: tensors.

Statistics of float16 and bfloat16 are computed in float32 and rounded at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.tensor.formulas import add, divide, mean, mul, pad_axis, power, square, sub
from glassgrad.tensor.formulas.neural import normalization
from glassgrad.tensor.methods import Axis, Self, TensorBase, arguments, computed, resolve_axes


class NormalizationMixin(TensorBase):
    """Norms along axes."""
    __slots__ = ()

    def layernorm(self, axis: Axis = -1, eps: float = 1e-5, **spelling: Any) -> Self:
        """(x - mean) / sqrt(variance + eps) along an axis; the variance is over n.

        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        return computed(self, normalization.layer_norm, "layernorm", spelling, axis=axis, eps=eps)

    def rms_norm(self, axis: Axis = -1, eps: float = 1e-6, **spelling: Any) -> Self:
        """x / sqrt(mean(x^2) + eps) along an axis.

        >>> Tensor([2.0, -2.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        return computed(self, lambda x, axis, eps: normalization.layer_norm(x, axis, eps, False), "rms_norm", spelling,
                        axis=axis, eps=eps)

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
                  axis: int | Sequence[int] = 1, **spelling: Any) -> Self:
        """(x - mean) invstd weight + bias, where all of these have one value per index of `axis`.

        >>> Tensor([[1.0, 2.0]]).batchnorm(None, None, Tensor([1.0, 1.0]), Tensor([1.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        weight, bias, mean, invstd, axis = arguments("batchnorm", spelling, weight=weight, bias=bias, mean=mean,
                                                     invstd=invstd, axis=axis)
        axes = resolve_axes(axis, self.ndim, "batchnorm")
        shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
        scale = invstd.uop if invstd.ndim == self.ndim else invstd.uop.reshape(shape)
        x = mul(sub(self.uop, mean.uop.reshape(shape)), scale)
        x = x if weight is None else mul(x, weight.uop.reshape(shape))
        return self._with(x if bias is None else add(x, bias.uop.reshape(shape)), mean, invstd, weight, bias)

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **spelling: Any) -> Self:
        """x divided by its length along an axis, which counts as at least eps. An infinite length (see `norm`) gives
        0, as in PyTorch.

        >>> Tensor([3.0, 4.0]).normalize(dim=0).numpy()
        array([0.6, 0.8], dtype=float32)
        """
        return computed(self, normalization.normalize, "normalize", spelling, p=p, dim=dim, eps=eps)

    def local_response_norm(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """x / (k + alpha times the mean square of `size` neighbouring channels)^beta (Krizhevsky et al., 2012).

        >>> Tensor([[[0.0], [2.0]]]).local_response_norm(1, alpha=1, beta=1, k=0).flatten().tolist()[1]
        0.5
        """
        size, alpha, beta, k = arguments("local_response_norm", size=size, alpha=alpha, beta=beta, k=k)
        if self.ndim < 3 or size < 1:
            raise ShapeError("local_response_norm is over channels", given=f"shape {self.shape}, size={size}",
                             expected="(batch, channels, ...space) and a size of 1 or more",
                             fix="add the missing axes with unsqueeze")
        padded = pad_axis(square(self.uop), 1, size // 2, (size - 1) // 2)
        near = mean(padded.window(1, size, 1), -1)
        return self._with(divide(self.uop, power(add(mul(near, alpha), k), beta)))
