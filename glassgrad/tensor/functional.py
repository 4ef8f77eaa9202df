"""What layers are made of: softmax, norms, dropout, attention, losses. In, out: tensors.

Statistics of float16 and bfloat16 are taken in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.tensor import index_check
from glassgrad.tensor.activations import Activations
from glassgrad.tensor.meeting import Axis, resolve_axes, resolve_axis
from glassgrad.tensor.precision import exact
from glassgrad.tensor.sequence import counting

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Functional"]


class Functional(Activations):
    """Softmax, norms, dropout, attention, losses."""
    __slots__ = ()

    # -- softmax ---------------------------------------------------------------------------------------------
    def _shifted(self, axis: Axis, dtype: DType | str | None) -> tuple[Self, DType]:
        """Each value less the largest of its row, in a type wide enough to sum, and the type to come back to."""
        x = self._with(self._float_node())
        out = dtype_by_name(dtype) if dtype is not None else exact(x.dtype)
        x = x.cast(out.accumulator)
        return (x - x.max(axis, keepdim=True).detach() if x.numel() else x), out

    def softmax(self, axis: Axis = -1, dtype: DType | str | None = None) -> Self:
        """e^x over its sum along an axis: positive numbers that add up to 1.

        >>> Tensor([1.0, 1.0]).softmax().tolist()
        [0.5, 0.5]
        """
        x, out = self._shifted(axis, dtype)
        e = x.exp()
        return (e * e.sum(axis, keepdim=True).reciprocal()).cast(out)

    def log_softmax(self, axis: Axis = -1, dtype: DType | str | None = None) -> Self:
        """The logarithm of `softmax`.

        >>> Tensor([1000.0, 0.0]).log_softmax().tolist()
        [0.0, -1000.0]
        """
        x, out = self._shifted(axis, dtype)
        return (x - x.exp().sum(axis, keepdim=True).log()).cast(out)

    # -- norms -----------------------------------------------------------------------------------------------
    def layernorm(self, axis: Axis = -1, eps: float = 1e-5) -> Self:
        """(x - mean) / sqrt(variance + eps) along an axis; the variance is over n.

        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        x = self._with(self._float_node())
        wide = x.cast(x.dtype.accumulator)
        centred = wide - wide.mean(axis, keepdim=True)
        return (centred * (centred.square().mean(axis, keepdim=True) + eps).rsqrt()).cast(exact(x.dtype))

    def rms_norm(self, axis: Axis = -1, eps: float = 1e-6) -> Self:
        """x / sqrt(mean(x^2) + eps) along an axis.

        >>> Tensor([2.0, -2.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        x = self._with(self._float_node())
        wide = x.cast(x.dtype.accumulator)
        return (wide * (wide.square().mean(axis, keepdim=True) + eps).rsqrt()).cast(exact(x.dtype))

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
                  axis: int | Sequence[int] = 1) -> Self:
        """(x - mean) invstd weight + bias, where all of these have one value per place along `axis`.

        >>> Tensor([[1.0, 2.0]]).batchnorm(None, None, Tensor([1.0, 1.0]), Tensor([1.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        axes = resolve_axes(axis, self.ndim, "batchnorm")
        shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
        x = (self - mean.reshape(shape)) * invstd.reshape(invstd.shape if invstd.ndim == self.ndim else shape)
        x = x if weight is None else x * weight.reshape(shape)
        return x if bias is None else x + bias.reshape(shape)

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """x over its length along an axis (but at least eps).

        >>> Tensor([3.0, 4.0]).normalize(dim=0).numpy()
        array([0.6, 0.8], dtype=float32)
        """
        return self / self.norm(p, dim, keepdim=True).maximum(eps)

    # -- dropout and attention -------------------------------------------------------------------------------
    def dropout(self, p: float = 0.5) -> Self:
        """In training: each value 0 with probability p, the others over 1 - p. Else unchanged. See `Tensor.train`.

        >>> Tensor([1.0, 2.0]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        if not 0 <= p <= 1:
            raise InputError("dropout needs a probability", given=f"p={p}", expected="a number from 0 to 1",
                             mend="write x.dropout(0.5), for example")
        if not settings.TRAINING or p == 0:
            return self
        if p == 1:
            return self * 0.0
        keep = self.rand_like(dtype=dtypes.default_float) >= p
        return keep.where(self, 0) * (1.0 / (1.0 - p))

    def scaled_dot_product_attention(self, key: Self, value: Self, attn_mask: Self | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False,
                                     *, scale: float | None = None) -> Self:
        """softmax(query key^T scale + mask) value, over (.., time, size); scale is 1 / sqrt(size) unless given. A query
        that may look at nothing finds zeros, as in PyTorch.

        >>> q = Tensor([[1.0, 0.0]])
        >>> q.scaled_dot_product_attention(q, Tensor([[5.0, 6.0]])).tolist()
        [[5.0, 6.0]]
        """
        if is_causal and attn_mask is not None:
            raise InputError("attention takes one mask", given="attn_mask and is_causal=True", expected="one of them",
                             mend="put the causal mask into attn_mask: Tensor.ones(t, t).tril().bool()")
        if min(self.ndim, key.ndim, value.ndim) < (3 if enable_gqa else 2):
            raise ShapeError("attention needs time and size" + " and heads" * enable_gqa,
                             given=f"query {self.shape}, key {key.shape}, value {value.shape}",
                             expected="(.., heads, time, size)" if enable_gqa else "(.., time, size)",
                             mend="add the missing axes with unsqueeze")
        if enable_gqa:
            heads = self.shape[-3]
            key = key.repeat_interleave(heads // key.shape[-3], dim=-3)
            value = value.repeat_interleave(heads // value.shape[-3], dim=-3)
        scores = self @ key.transpose(-2, -1) * (scale if scale is not None else 1.0 / math.sqrt(self.shape[-1]))
        if is_causal:
            attn_mask = self._with(scores._diagonal_mask(1, "attention")).logical_not()
            return attn_mask.where(scores, -math.inf).softmax(-1).dropout(dropout_p) @ value
        if attn_mask is None:
            return scores.softmax(-1).dropout(dropout_p) @ value
        allowed = attn_mask if attn_mask.dtype is dtypes.bool else attn_mask > -math.inf
        scores = attn_mask.where(scores, -math.inf) if allowed is attn_mask else scores + attn_mask
        some = allowed.any(-1, keepdim=True)
        return some.where(some.where(scores, 0).softmax(-1), 0).dropout(dropout_p) @ value

    # -- losses ----------------------------------------------------------------------------------------------
    def _reduced(self, reduction: str) -> Self:
        if reduction not in ("mean", "sum", "none"):
            raise InputError("there is no such reduction", given=f"reduction={reduction!r}",
                             expected='"mean", "sum" or "none"', mend='write reduction="mean"')
        return self.mean() if reduction == "mean" else self.sum() if reduction == "sum" else self

    def _chosen(self, target: Self, axis: int, ignored: int | None = None) -> Self:
        """Along an axis, the value whose place the target names; 0 where it names none."""
        classes = self.shape[axis]
        at = counting(classes, dtypes.int32).reshape((classes,) + (1,) * (self.ndim - axis - 1)).broadcast(self.shape)
        named = self._with(at) == target.cast(dtypes.int32).unsqueeze(axis)
        index_check.watch_classes(named.uop, target.uop, classes, axis, self.shape, ignored)
        return named.where(self, 0).sum(axis)

    def _weighed(self, losses: Self, target: Self, axis: int, weight: Self | None, ignore_index: int | None,
                 reduction: str) -> Self:
        """Losses with those that do not count left out, and each class counting as much as it should."""
        counted = target.ne(ignore_index) if ignore_index is not None else target.eq(target)
        share = counted.cast(losses.dtype)
        if weight is not None:
            share = share * self._by_class(weight, axis)._chosen(target, axis, ignore_index)
            losses = losses * share
        losses = counted.where(losses, 0)
        return losses.sum() / share.sum() if reduction == "mean" else losses._reduced(reduction)

    def _by_class(self, weight: Self, axis: int) -> Self:
        """One weight per class, in the shape of the predictions."""
        if weight.shape != (self.shape[axis],):
            raise ShapeError("there is one weight per class", given=f"weight {weight.shape}, predictions {self.shape}",
                             expected=f"shape ({self.shape[axis]},)", mend="check the number of classes")
        return weight.reshape((-1,) + (1,) * (self.ndim - axis - 1)).expand(self.shape)

    def nll_loss(self, target: Self, weight: Self | None = None, ignore_index: int | None = -100,
                 reduction: str = "mean") -> Self:
        """Minus the log-probability of each target class; classes are axis 1 (or the only one). `weight` says how much
        each class counts.

        >>> Tensor([[0.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        axis = self._class_axis(target, "nll_loss")
        chosen = self._chosen(target, axis, ignore_index)
        return self._weighed(-chosen, target, axis, weight, ignore_index, reduction)

    def _class_axis(self, target: Self, what: str) -> int:
        axis = 0 if self.ndim == 1 else 1
        if target.shape != self.shape[:axis] + self.shape[axis + 1:]:
            raise ShapeError(f"the targets of {what} do not fit the predictions",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected=f"targets of shape {self.shape[:axis] + self.shape[axis + 1:]}, one class each",
                             mend="check the batch sizes; classes are axis 1 of the predictions")
        return axis

    def cross_entropy(self, target: Self, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int = -100, weight: Self | None = None) -> Self:
        """Minus the log-probability of the targets: classes (whole numbers) or probabilities (the predictions' shape).
        `weight` says how much each class counts.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        axis = 0 if self.ndim == 1 else 1
        logs = self.log_softmax(axis)
        smooth = label_smoothing
        if not 0 <= smooth <= 1:
            raise InputError("label_smoothing is a share", given=f"label_smoothing={smooth}",
                             expected="a number from 0 to 1", mend="write label_smoothing=0.1, for example")
        if target.dtype.kind == "f":
            if target.shape != self.shape:
                raise ShapeError("the target probabilities do not fit the predictions",
                                 given=f"predictions {self.shape}, targets {target.shape}", expected="one shape",
                                 mend="for classes, hand in whole numbers: target.int()")
            target = target * (1 - smooth) + smooth / self.shape[axis] if smooth else target
            if weight is not None:
                logs = logs * self._by_class(weight, axis)
            losses = -(logs * target).sum(axis)
            if reduction == "mean":
                return losses.sum() / max(1, losses.numel())
            return losses._reduced(reduction)
        self._class_axis(target, "cross_entropy")
        chosen = logs._chosen(target, axis, ignore_index)
        if not smooth:
            return self._weighed(-chosen, target, axis, weight, ignore_index, reduction)
        spread = logs if weight is None else logs * self._by_class(weight, axis)
        counted = target.ne(ignore_index)
        named = self._weighed(-chosen, target, axis, weight, ignore_index, "none")
        losses = named * (1 - smooth) - counted.where(spread.mean(axis), 0) * smooth
        if reduction != "mean":
            return losses._reduced(reduction)
        share = counted.cast(losses.dtype)
        share = share if weight is None else share * self._by_class(weight, axis)._chosen(target, axis, ignore_index)
        return losses.sum() / share.sum()

    def sparse_categorical_crossentropy(self, target: Self, ignore_index: int = -1, label_smoothing: float = 0.0,
                                        reduction: str = "mean") -> Self:
        """Minus the log-probability of the target classes, which are the last axis here.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        axis = resolve_axis(-1, self.ndim, "sparse_categorical_crossentropy")
        if target.shape != self.shape[:-1]:
            raise ShapeError("the targets do not fit the predictions",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected=f"targets of shape {self.shape[:-1]}, one class each",
                             mend="check the batch sizes")
        logs = self.log_softmax(-1)
        losses = -logs._chosen(target, axis, ignore_index)
        if label_smoothing:
            losses = losses * (1 - label_smoothing) - logs.mean(-1) * label_smoothing
        return self._weighed(losses, target, axis, None, ignore_index, reduction)

    def binary_crossentropy(self, target: Self, reduction: str = "mean") -> Self:
        """-(y ln p + (1 - y) ln(1 - p)) for probabilities p; each logarithm is at least -100.

        >>> Tensor([1.0, 0.0]).binary_crossentropy(Tensor([1.0, 0.0])).item()
        0.0
        """
        losses = -(target * self.log().maximum(-100) + (1 - target) * (1 - self).log().maximum(-100))
        return losses._reduced(reduction)

    def binary_crossentropy_logits(self, target: Self, reduction: str = "mean", pos_weight: Self | None = None) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow.

        >>> Tensor([1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
        0.0
        """
        weighted = target * self.logsigmoid() if pos_weight is None else target * pos_weight * self.logsigmoid()
        return (-(weighted + (1 - target) * (-self).logsigmoid()))._reduced(reduction)

    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The squared difference.

        >>> Tensor([1.0, 5.0]).mse_loss(Tensor([1.0, 3.0])).item()
        2.0
        """
        return (self - target).square()._reduced(reduction)

    def l1_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The size of the difference.

        >>> Tensor([1.0, 5.0]).l1_loss(Tensor([1.0, 3.0])).item()
        1.0
        """
        return (self - target).abs()._reduced(reduction)
