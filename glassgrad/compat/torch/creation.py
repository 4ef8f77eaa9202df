"""Provide PyTorch's functions that create tensors, with its parameters, order and types. In: numbers. Out: tensors.

Integers become int64, as in PyTorch, and requires_grad is False unless set.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compiler.graph.dtype import DType, dtypes, promote
from glassgrad.tensor.memory.python_values import numpy_dtype
from glassgrad.tensor.tensor import Tensor

__all__ = ["arange", "as_tensor", "asarray", "bernoulli", "default_generator", "empty", "empty_like", "eye",
           "from_dlpack", "from_numpy", "full", "full_like", "get_default_dtype", "linspace", "logspace", "manual_seed",
           "multinomial", "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn",
           "randn_like", "randperm", "range", "scalar_tensor", "seed", "set_default_dtype", "tensor", "tril_indices",
           "triu_indices", "zeros", "zeros_like", "Generator"]

_IGNORED = ("layout", "pin_memory", "memory_format", "names")      # about PyTorch's storage: no effect here


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Return those of PyTorch's keywords that the tensor's own methods take."""
    if options.get("out") is not None:
        raise InputError("a new tensor cannot be made in another one's place", given="out=...",
                         expected="a call that returns the tensor", fix="write into it: x.copy_(torch.zeros(3))")
    if options.get("generator") is not None:
        options["generator"].take()
    kept = {k: v for k, v in options.items() if k not in (*_IGNORED, "generator", "out")}
    if "device" in kept:
        kept["device"] = None if kept["device"] is None else str(kept["device"])
    return {"requires_grad": False, **kept}


def _like(like: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": like.dtype, "device": like.device, **{k: v for k, v in _options(options).items() if v is not None}}


def _types_in(data: Any) -> set[type]:
    """The types of the numbers in nested lists."""
    if not isinstance(data, (list, tuple)):
        return {type(data)}
    found = set(map(type, data))
    if found & {list, tuple}:
        return {kind for item in data for kind in _types_in(item)}
    return found


def _type_of_numbers(kinds: set[type]) -> DType | None:
    """The dtype of numbers of these types where some are NumPy's, whose own types count in PyTorch; else None."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not any(issubclass(kind, numpy.generic) for kind in kinds):
        return None
    plain: dict[type, DType | None] = {bool: dtypes.bool, int: dtypes.int64, float: dtypes.default_float}
    found = [plain.get(kind) or (numpy_dtype(numpy.dtype(kind)) if issubclass(kind, numpy.generic) else None)
             for kind in kinds]
    return functools.reduce(promote, found) if all(found) else None  # type: ignore[arg-type]


# -- from values -------------------------------------------------------------------------------------------------------
def tensor(data: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
           pin_memory: bool = False) -> Tensor:
    """A tensor with a copy of these values.

    >>> tensor([1, 2]).dtype, tensor([1.0, 2.0]).dtype, tensor(True).dtype
    (dtypes.int64, dtypes.float32, dtypes.bool)
    """
    if isinstance(data, Tensor):
        made = data.detach() + 0 if dtype is None else data.detach().cast(dtype) + 0
        return (made if device is None else made.to(str(device))).requires_grad_(requires_grad)
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = Tensor.stack(*[as_tensor(x) for x in data]).detach()
        return tensor(data, dtype, device, requires_grad)
    place, dtype = None if device is None else str(device), dtype or _type_of_numbers(_types_in(data))
    made = TorchTensor._made_of(data, dtype=dtype, device=place)
    if dtype is None and made.dtype is dtypes.int32 and not hasattr(data, "dtype"):
        made = TorchTensor._made_of(data, dtype=dtypes.int64, device=place)
    return made.requires_grad_(requires_grad)


def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Tensor:
    """The tensor itself, or a tensor of these values.

    >>> as_tensor([1, 2]).tolist()
    [1, 2]
    """
    if not isinstance(data, Tensor):
        return tensor(data, dtype, device)
    made = data if dtype is None else data.cast(dtype)
    return made if device is None else made.to(str(device))


asarray = as_tensor


def scalar_tensor(s: float, **options: Any) -> Tensor: return tensor(float(s), **options)


def from_numpy(ndarray: Any) -> Tensor:
    """A tensor of an array's values, in its type: a copy, whereas PyTorch shares the memory."""
    return TorchTensor._made_of(ndarray, requires_grad=False)


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor over another library's memory, which is shared where it can be; a write here goes to new memory.

    >>> import numpy
    >>> from_dlpack(numpy.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return TorchTensor.from_dlpack(ext_tensor).requires_grad_(False)


def _sizes(size: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    return size if "size" not in options else (options.pop("size"),)


def zeros(*size: Any, **options: Any) -> Tensor: return TorchTensor.zeros(*_sizes(size, options), **_options(options))
def ones(*size: Any, **options: Any) -> Tensor: return TorchTensor.ones(*_sizes(size, options), **_options(options))
def empty(*size: Any, **options: Any) -> Tensor: return TorchTensor.empty(*_sizes(size, options), **_options(options))


def full(size: Any, fill_value: Any, **options: Any) -> Tensor:
    """A tensor filled with one value.

    >>> full((2,), 3).dtype
    dtypes.int64
    """
    if options.get("dtype") is None and isinstance(fill_value, int) and not isinstance(fill_value, bool):
        options["dtype"] = dtypes.int64
    return TorchTensor.full(size, fill_value, **_options(options))


def zeros_like(input: Tensor, **options: Any) -> Tensor: return TorchTensor.zeros(input.shape, **_like(input, options))
def ones_like(input: Tensor, **options: Any) -> Tensor: return TorchTensor.ones(input.shape, **_like(input, options))
def empty_like(input: Tensor, **options: Any) -> Tensor: return TorchTensor.empty(input.shape, **_like(input, options))


def full_like(input: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """A tensor filled with one value, in another tensor's shape and type."""
    return TorchTensor.full(input.shape, fill_value, **_like(input, options))


def arange(start: Any, end: Any = None, step: Any = 1, **options: Any) -> Tensor:
    """Numbers from start to end, excluding end.

    >>> arange(3).dtype, arange(0, 1, 0.5).tolist()
    (dtypes.int64, [0.0, 0.5])
    """
    if end is None:
        start, end = 0, start
    start, end, step = (x.item() if isinstance(x, Tensor) else x for x in (start, end, step))
    if options.get("dtype") is None and all(isinstance(x, int) for x in (start, end, step)):
        options["dtype"] = dtypes.int64
    return TorchTensor.arange(start, end, step, **_options(options))


def range(start: Any, end: Any, step: Any = 1, **options: Any) -> Tensor:
    """Numbers from start to end, including end."""
    return arange(float(start), end + step * 0.5, step, **options)


def linspace(start: Any, end: Any, steps: int, **options: Any) -> Tensor:
    """`steps` evenly spaced numbers from start to end, both included."""
    return TorchTensor.linspace(start, end, steps, **_options(options))


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Tensor:
    """`base` to powers from start to end."""
    return base ** linspace(start, end, steps, **options)


def eye(n: int, m: int | None = None, **options: Any) -> Tensor:
    """Ones on the diagonal."""
    return TorchTensor.eye(n, m, **_options(options))


def tril_indices(row: int, col: int, offset: int = 0, **options: Any) -> Tensor:
    """The indices of the lower triangle: rows, then columns.

    >>> tril_indices(2, 2).tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    return tensor(TorchTensor.tril_indices(row, col, offset), **{"dtype": dtypes.int64, **options})


def triu_indices(row: int, col: int, offset: int = 0, **options: Any) -> Tensor:
    """The indices of the upper triangle: rows, then columns."""
    return tensor(TorchTensor.triu_indices(row, col, offset), **{"dtype": dtypes.int64, **options})


# -- random ------------------------------------------------------------------------------------------------------------
class Generator:
    """PyTorch's separate stream of random numbers. Here there is only one stream: the first use of a generator after
    seeding reseeds it."""

    def __init__(self, device: Any = None):
        self._seed: int | None = None

    def manual_seed(self, seed: int) -> Generator:
        """Reseed the stream at the next use."""
        self._seed = seed
        return self

    def initial_seed(self) -> int:
        """The seed that was given."""
        return self._seed or 0

    def take(self) -> None:
        """Reseed the stream, once for each seed."""
        if self._seed is not None:
            Tensor.manual_seed(self._seed)
            self._seed = None


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the random numbers."""
    Tensor.manual_seed(seed)
    return default_generator


def seed() -> int:
    """Seed the random numbers from the system, and return the seed."""
    import secrets
    chosen = secrets.randbits(32)
    Tensor.manual_seed(chosen)
    return chosen


def rand(*size: Any, **options: Any) -> Tensor: return TorchTensor.rand(*_sizes(size, options), **_options(options))
def randn(*size: Any, **options: Any) -> Tensor: return TorchTensor.randn(*_sizes(size, options), **_options(options))
def rand_like(input: Tensor, **options: Any) -> Tensor: return TorchTensor.rand(input.shape, **_like(input, options))
def randn_like(input: Tensor, **options: Any) -> Tensor: return TorchTensor.randn(input.shape, **_like(input, options))


def randint(low: int, high: Any = None, size: Any = None, **options: Any) -> Tensor:
    """Random integers from low (0 if only one limit is given) to high, excluding high.

    >>> randint(5, (3,)).shape, randint(2, 5, (3,)).dtype
    ((3,), dtypes.int64)
    """
    if size is None:
        low, high, size = (0, low, high) if not isinstance(high, int) else (low, high, size)
    if size is None:
        raise InputError("randint needs a shape", given=f"randint({low}, {high})", expected="a size, such as (3,)",
                         fix="write torch.randint(0, 10, (3,))")
    if high is None:
        low, high = 0, low
    return TorchTensor.randint(*size, low=low, high=high, **{"dtype": dtypes.int64, **_options(options)})


def randint_like(input: Tensor, low: int, high: int | None = None, **options: Any) -> Tensor:
    """Integers, in another tensor's shape and type."""
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, input.shape).cast(options.get("dtype") or input.dtype)


def randperm(n: int, **options: Any) -> Tensor:
    """A random permutation of the integers below n."""
    return TorchTensor.randperm(n, **{"dtype": dtypes.int64, **_options(options)})


def normal(mean: Any = 0.0, std: Any = 1.0, size: Sequence[int] | None = None, **options: Any) -> Tensor:
    """Normally distributed numbers: of one mean and deviation and a given size, or one for each mean and deviation.

    >>> normal(0.0, 1.0, (2, 3)).shape, normal(tensor([0.0, 9.0]), 0.1).shape
    ((2, 3), (2,))
    """
    options = _options(options)
    if size is not None:
        return TorchTensor.normal(*size, mean=mean, std=std, **options)
    mean, std = as_tensor(mean), as_tensor(std)
    spread = mean + std * 0
    return (spread + std * TorchTensor.randn(*spread.shape, **options)).detach().requires_grad_(False)


def bernoulli(input: Tensor, p: float | None = None, **options: Any) -> Tensor:
    """Ones with these probabilities, else zeros."""
    _options(options)
    return (TorchTensor.rand(*input.shape, device=input.device) < (input if p is None else p)).cast(input.dtype)


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, **options: Any) -> Tensor:
    """Indices drawn in proportion to their weights.

    >>> multinomial(tensor([0.0, 1.0, 0.0]), 1).tolist()
    [1]
    """
    _options(options)
    return input.multinomial(num_samples, replacement).cast(dtypes.int64)


# -- defaults ----------------------------------------------------------------------------------------------------------
def get_default_dtype() -> DType: return dtypes.default_float


def set_default_dtype(d: DType) -> None:
    """Set the type of floats created without a dtype."""
    dtypes.default_float = d
