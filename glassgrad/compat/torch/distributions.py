"""Provide torch.distributions: probability distributions. In: parameters. Out: samples, log-probabilities, entropies.

`rsample` passes gradients to the parameters, `sample` does not. The formulas are those of textbooks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compat.torch.creation import as_tensor
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor.tensor import Tensor

__all__ = ["Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace",
           "LogNormal", "MultivariateNormal", "Normal", "Uniform", "kl_divergence"]


def _broadcast(*values: Any) -> list[Tensor]:
    """Parameters as float tensors, broadcast to one shape."""
    return list(Tensor.broadcast_tensors(*[as_tensor(v if isinstance(v, Tensor) else float(v)) for v in values]))


class Distribution:
    """The base class: `batch_shape` is the shape of independent distributions, `event_shape` that of one value."""
    batch_shape: tuple[int, ...] = ()
    event_shape: tuple[int, ...] = ()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """A sample through which gradients reach the parameters."""
        raise InputError(f"{type(self).__name__} cannot pass gradients through a sample", given="rsample()",
                         expected="a distribution of floats", fix="use sample() and log_prob")

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """A sample, without gradients."""
        return self.rsample(sample_shape).detach()

    def _extended(self, sample_shape: Any) -> tuple[int, ...]:
        return (*tuple(sample_shape), *self.batch_shape, *self.event_shape)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of a value's probability or density."""
        raise InputError(f"{type(self).__name__} has no log_prob", given="log_prob()", expected="a density",
                         fix="write it in your subclass")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    variance: Any
    mean: Any


class _LocationAndScale(Distribution):
    """A location-scale family: `loc` shifts one curve, `scale` stretches it."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None):
        self.loc, self.scale = _broadcast(loc, scale)
        self.batch_shape = self.loc.shape


class Normal(_LocationAndScale):
    """The normal distribution.

    >>> round(Normal(0.0, 1.0).log_prob(Tensor(0.0)).item(), 4)
    -0.9189
    """

    @property
    def mean(self) -> Tensor: return self.loc  # type: ignore[override]
    @property
    def variance(self) -> Tensor: return self.scale ** 2  # type: ignore[override]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + self.scale * TorchTensor.randn(*self._extended(sample_shape), dtype=self.loc.dtype)

    def log_prob(self, value: Any) -> Tensor:
        return -((value - self.loc) ** 2) / (2 * self.scale ** 2) - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def entropy(self) -> Tensor: return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
    def cdf(self, value: Any) -> Tensor: return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())
    def icdf(self, value: Any) -> Tensor: return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)


class LogNormal(Normal):
    """exp of a normal distribution; `loc` and `scale` are those of the logarithm."""

    @property
    def mean(self) -> Tensor: return (self.loc + self.scale ** 2 / 2).exp()  # type: ignore[override]
    @property
    def variance(self) -> Tensor: return (self.scale ** 2).expm1() * self.mean ** 2  # type: ignore[override]

    def entropy(self) -> Tensor: return super().entropy() + self.loc
    def cdf(self, value: Any) -> Tensor: return super().cdf(value.log())
    def icdf(self, value: Any) -> Tensor: return super().icdf(value).exp()
    def rsample(self, sample_shape: Any = ()) -> Tensor: return super().rsample(sample_shape).exp()
    def log_prob(self, value: Any) -> Tensor: return super().log_prob(value.log()) - value.log()


class Laplace(_LocationAndScale):
    """The Laplace distribution: two exponentials back to back."""

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = TorchTensor.rand(*self._extended(sample_shape)) - 0.5
        return self.loc - self.scale * u.sign() * (-2 * u.abs()).log1p()

    def log_prob(self, value: Any) -> Tensor: return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale
    def entropy(self) -> Tensor: return 1 + (2 * self.scale).log()


class Uniform(Distribution):
    """The uniform distribution from low to high."""

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None):
        self.low, self.high = _broadcast(low, high)
        self.batch_shape = self.low.shape

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.low + (self.high - self.low) * TorchTensor.rand(*self._extended(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        inside = (value >= self.low) * (value < self.high)
        return inside.where(-(self.high - self.low).log(), -math.inf)

    def entropy(self) -> Tensor: return (self.high - self.low).log()


class Exponential(Distribution):
    """The exponential distribution: waiting times."""

    def __init__(self, rate: Any, validate_args: bool | None = None):
        [self.rate] = _broadcast(rate)
        self.batch_shape = self.rate.shape

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return -(-TorchTensor.rand(*self._extended(sample_shape))).log1p() / self.rate

    def log_prob(self, value: Any) -> Tensor: return self.rate.log() - self.rate * value
    def entropy(self) -> Tensor: return 1 - self.rate.log()


class Bernoulli(Distribution):
    """The Bernoulli distribution: 1 with probability `probs`, else 0.

    >>> round(Bernoulli(0.25).log_prob(Tensor(1.0)).exp().item(), 4)
    0.25
    """

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None):
        _one_of(probs, logits)
        if logits is not None:
            [self.logits] = _broadcast(logits)
            self.probs = self.logits.sigmoid()
        else:
            [self.probs] = _broadcast(probs)
            self.logits = self.probs.log() - (-self.probs).log1p()
        self.batch_shape = self.probs.shape

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return (TorchTensor.rand(*self._extended(sample_shape)) < self.probs).cast(self.probs.dtype).detach()

    def log_prob(self, value: Any) -> Tensor:
        return value * self.logits.logsigmoid() + (1 - value) * (-self.logits).logsigmoid()

    def entropy(self) -> Tensor: return -self.log_prob(self.probs)

    @property
    def mean(self) -> Tensor: return self.probs  # type: ignore[override]
    @property
    def variance(self) -> Tensor: return self.probs * (1 - self.probs)  # type: ignore[override]


def _one_of(probs: Any, logits: Any) -> None:
    if (probs is None) == (logits is None):
        raise InputError("chances are given once", given="both probs and logits" if probs is not None else "neither",
                         expected="probs or logits", fix="name it: Categorical(logits=x)")


class Categorical(Distribution):
    """The categorical distribution: one of several classes, by its index.

    >>> round(Categorical(logits=Tensor([0.0, 0.0])).entropy().item(), 4)
    0.6931
    """

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None):
        _one_of(probs, logits)
        given = as_tensor(probs if logits is None else logits)
        self.probs = given / given.sum(-1, keepdim=True) if logits is None else given.softmax(-1)
        self.logits = self.probs.log() if logits is None else given.log_softmax(-1)
        self.batch_shape = given.shape[:-1]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended(sample_shape)
        count = math.prod(tuple(sample_shape))
        rows = self.probs.reshape(-1, self.probs.shape[-1]).detach()
        drawn = rows.multinomial(count, True).cast(dtypes.int64)            # (rows, count)
        return drawn.transpose(0, 1).reshape(*shape)

    def log_prob(self, value: Any) -> Tensor:
        places = as_tensor(value).cast(dtypes.int64)
        shape = (places + TorchTensor.zeros(*self.batch_shape, dtype=dtypes.int64)).shape
        chances = self.logits.expand(*shape, self.logits.shape[-1])
        return chances.gather(-1, places.expand(shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        least = float(2.0 ** -126)                       # 0 log 0 is 0
        return -(self.probs * self.logits.maximum(math.log(least))).sum(-1)


class MultivariateNormal(Distribution):
    """The normal distribution of vectors, with a covariance matrix."""

    def __init__(self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
                 scale_tril: Tensor | None = None, validate_args: bool | None = None):
        if sum(x is not None for x in (covariance_matrix, precision_matrix, scale_tril)) != 1:
            raise InputError("how the numbers vary together is given once", given="none, or several, of the matrices",
                             expected="covariance_matrix, precision_matrix or scale_tril",
                             fix="write MultivariateNormal(mean, covariance_matrix=c)")
        covariance = precision_matrix.inv() if precision_matrix is not None else covariance_matrix
        self.loc = loc
        self.scale_tril = scale_tril if scale_tril is not None else covariance.cholesky()  # type: ignore[union-attr]
        self.batch_shape, self.event_shape = loc.shape[:-1], loc.shape[-1:]

    @property
    def mean(self) -> Tensor: return self.loc  # type: ignore[override]
    @property
    def covariance_matrix(self) -> Tensor: return self.scale_tril @ self.scale_tril.transpose(-2, -1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = TorchTensor.randn(*self._extended(sample_shape), 1)
        return self.loc + (self.scale_tril @ noise).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        apart = (value - self.loc).unsqueeze(-1)
        lower = self.scale_tril.expand(*apart.shape[:-2], *self.scale_tril.shape[-2:])
        distance = (lower.solve(apart) ** 2).sum((-2, -1))
        size = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (self.loc.shape[-1] * math.log(2 * math.pi) + distance) - size

    def entropy(self) -> Tensor:
        size = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * self.loc.shape[-1] * (1 + math.log(2 * math.pi)) + size


class Independent(Distribution):
    """Another distribution whose last batch axes count as one value: their log-probabilities are summed."""

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
                 validate_args: bool | None = None):
        self.base_dist, self.axes = base_distribution, reinterpreted_batch_ndims
        cut = len(base_distribution.batch_shape) - reinterpreted_batch_ndims
        self.batch_shape = base_distribution.batch_shape[:cut]
        self.event_shape = base_distribution.batch_shape[cut:] + base_distribution.event_shape

    def rsample(self, sample_shape: Any = ()) -> Tensor: return self.base_dist.rsample(sample_shape)
    def sample(self, sample_shape: Any = ()) -> Tensor: return self.base_dist.sample(sample_shape)
    def log_prob(self, value: Any) -> Tensor: return self._summed(self.base_dist.log_prob(value))
    def entropy(self) -> Tensor: return self._summed(self.base_dist.entropy())  # type: ignore[attr-defined]
    def _summed(self, x: Tensor) -> Tensor: return x.sum(tuple(range(-self.axes, 0))) if self.axes else x


# -- divergences -------------------------------------------------------------------------------------------------------
def _normals(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


_APART: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {
    (Normal, Normal): _normals,
    (Categorical, Categorical): lambda p, q: (p.probs * (p.logits - q.logits)).sum(-1),
    (Bernoulli, Bernoulli): lambda p, q: p.probs * (p.logits.logsigmoid() - q.logits.logsigmoid())
        + (1 - p.probs) * ((-p.logits).logsigmoid() - (-q.logits).logsigmoid()),
    (Independent, Independent): lambda p, q: p._summed(kl_divergence(p.base_dist, q.base_dist)),
}


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence KL(p || q).

    >>> round(kl_divergence(Normal(1.0, 1.0), Normal(0.0, 1.0)).item(), 4)
    0.5
    """
    formula = _APART.get((type(p), type(q)))
    if formula is None:
        raise InputError("no formula for these two", given=f"{type(p).__name__} and {type(q).__name__}",
                         expected=", ".join(f"{a.__name__} and {b.__name__}" for a, b in _APART),
                         fix="estimate it: (p.log_prob(x) - q.log_prob(x)).mean() over samples x of p")
    return formula(p, q)
