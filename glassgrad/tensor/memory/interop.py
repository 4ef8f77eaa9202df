"""Exchange tensors with other libraries: NumPy, DLPack in both directions, PyTorch, foreign memory, notebooks. In, out:
tensors.

Devices that share the host's memory share it with other libraries too; values of other devices are first copied to the
host. PyTorch is used only if the program has imported it.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

from glassgrad.base.errors import DeviceError, InputError
from glassgrad.compiler.graph import DType, dtype_by_name, dtypes
from glassgrad.runtime.devices import Device
from glassgrad.tensor import checks, realize_and_read as running
from glassgrad.tensor.memory import dlpack
from glassgrad.tensor.memory.python_values import TORCH_TYPES, HostValue
from glassgrad.tensor.tensor_base import Self, TensorBase

# {NumPy's binary function: (method of the left operand, method of the right operand)}
_OPERATORS = {name: (f"__{sign}__", f"__r{sign}__") for name, sign in {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "floor_divide": "floordiv",
    "remainder": "mod", "power": "pow", "matmul": "matmul", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "left_shift": "lshift", "right_shift": "rshift"}.items()}
_OPERATORS |= {"equal": ("__eq__", "__eq__"), "not_equal": ("__ne__", "__ne__"), "less": ("__lt__", "__gt__"),
               "less_equal": ("__le__", "__ge__"), "greater": ("__gt__", "__lt__"),
               "greater_equal": ("__ge__", "__le__"), "maximum": ("maximum", "maximum"),
               "minimum": ("minimum", "minimum")}


def _as_arrays(value: Any) -> Any:
    """Replace tensors by arrays in the arguments of a NumPy function, also inside lists and dicts."""
    if isinstance(value, TensorBase):
        return value.__array__()  # type: ignore[attr-defined]
    if type(value) in (list, tuple):
        return type(value)(_as_arrays(item) for item in value)
    return {key: _as_arrays(item) for key, item in value.items()} if type(value) is dict else value


class InteropMixin(TensorBase):
    """Methods that exchange values with other libraries."""
    __slots__ = ()

    # -- NumPy -----------------------------------------------------------------------------------------------
    def numpy(self) -> Any:
        """The values as a NumPy array of your own: writing to it changes no tensor. bfloat16 and fp8, which NumPy does
        not have, become float32.

        >>> Tensor([[1, 2], [3, 4]]).numpy()
        array([[1, 2],
               [3, 4]], dtype=int32)
        """
        x = self if self._in_numpy else self.cast(dtypes.float32)
        return running.array_of(x.uop, x.device)

    @property
    def _in_numpy(self) -> bool:
        """Return whether NumPy has this type."""
        return self.dtype.format == "e" or self.dtype.kind != "f" or self.dtype.bits >= 32

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the values for NumPy: `numpy.asarray(x)` shows the memory of the computed values, read-only;
        `numpy.array(x)` copies them."""
        shown = None if copy else running.array_in_memory(self.uop)
        shared, array = shown is not None, self.numpy() if shown is None else shown
        if dtype is not None and array.dtype != dtype:
            array, shared = array.astype(dtype), False
        if copy is False and not shared:
            raise ValueError("the values of this tensor cannot be an array without a copy")
        return array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:  # type: ignore[override]
        """Apply one of NumPy's elementwise functions: by the tensor's method, lazily, if there is one, else by NumPy on
        the values. The result is written into `out` if that is given, as in `array += x`."""
        name = ufunc.__name__
        if method == "__call__" and not options:
            of_one = getattr(self, "round" if name == "rint" else name, None) if len(inputs) == 1 else None
            if of_one is not None:
                return of_one()
            if len(inputs) == 2 and name in _OPERATORS:
                first, second = inputs
                straight, reflected = _OPERATORS[name]
                return getattr(first, straight)(second) if isinstance(first, TensorBase) else \
                    getattr(second, reflected)(first)
        if any(isinstance(target, TensorBase) for target in options.get("out", ())):
            raise InputError(f"numpy.{name} cannot write into a tensor", given="out=a Tensor",
                             expected="a NumPy array", fix="assign what it returns: x.assign(...)")
        return getattr(ufunc, method)(*_as_arrays(inputs), **_as_arrays(options))

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        """Apply one of NumPy's other functions to arrays of the values; it returns arrays."""
        return function(*_as_arrays(inputs), **_as_arrays(options))

    # -- DLPack ----------------------------------------------------------------------------------------------
    def __dlpack_device__(self) -> tuple[int, int]:
        """Tell DLPack where the values are: in the host's memory."""
        return (dlpack.CPU, 0)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: bool | None = None) -> Any:
        """The values as a DLPack capsule: `torch.from_dlpack(x)`, `numpy.from_dlpack(x)`. They are shared, not copied,
        unless `copy=True`.

        >>> import numpy
        >>> numpy.from_dlpack(Tensor([1, 2])).tolist()
        [1, 2]
        """
        if dl_device is not None and tuple(dl_device)[0] != dlpack.CPU:
            raise DeviceError("DLPack here goes through the host's memory", given=f"dl_device={dl_device}",
                              expected="the CPU, (1, 0)", fix="move it on the other side")
        data = running.bytes_of(self.uop, self.device)
        copied = bool(copy or data.readonly)
        memory = (ctypes.c_char * max(1, data.nbytes)).from_buffer(bytearray(data) if copied else data) \
            if data.nbytes else (ctypes.c_char * 1)()
        versioned = max_version is not None and tuple(max_version)[0] >= 1
        return dlpack.give(memory, self.shape, self.dtype, versioned, copied, (data, self.uop))

    @classmethod
    def from_dlpack(cls, source: Any, device: str | None = None) -> Self:
        """Another library's array as a tensor, with its memory shared if possible: an object with `__dlpack__`, or a
        capsule.

        >>> import numpy
        >>> Tensor.from_dlpack(numpy.array([1.0, 2.0])).tolist()
        [1.0, 2.0]
        """
        found = dlpack.take(source)
        return cls._foreign(found.owner, found.address, found.shape, found.steps, found.dtype, device,
                            found.read_only)

    @classmethod
    def _foreign(cls, owner: Any, address: int, shape: tuple[int, ...], steps: tuple[int, ...], dtype: DType,
                 device: str | None, read_only: bool = False) -> Self:
        """Make a leaf over memory of another owner. It is copied if it is not row-major, not aligned or read-only, or
        if the device has separate memory."""
        place = running.canonical_device(device) or running.default_device()
        dense = all(n == 1 or s == plain for n, s, plain in zip(shape, steps, dlpack.row_major(shape)))
        if dense and not read_only and address % dtype.itemsize == 0 and 0 not in shape \
                and Device[place].memory.on_host:
            return cls._leaf(running.as_foreign(running.over_memory(owner, address, shape, dtype, place)), device, None)
        import numpy  # a library with strided arrays has most likely loaded it already
        size = dtype.itemsize
        low = sum((n - 1) * s for n, s in zip(shape, steps) if s < 0) if 0 not in shape else 0
        high = sum((n - 1) * s for n, s in zip(shape, steps) if s > 0) if 0 not in shape else -1
        raw = numpy.frombuffer(ctypes.string_at(address + low * size, (high - low + 1) * size), f"V{size}")
        rows: Any = numpy.ndarray(shape, f"V{size}", raw, -low * size, [s * size for s in steps])
        return cls._leaf(running.store(HostValue(rows.tobytes(), shape, dtype), place), device, None)

    @classmethod
    def from_blob(cls, ptr: int, shape: tuple[int, ...], dtype: DType | str | None = None, device: str | None = None,
                  owner: Any = None) -> Self:
        """The memory at an address, row by row, shared and not copied. It must outlive the tensor, unless `owner`,
        which the tensor keeps alive, holds it.

        >>> import ctypes
        >>> numbers = (ctypes.c_float * 3)(1, 2, 3)
        >>> Tensor.from_blob(ctypes.addressof(numbers), (3,), dtypes.float32, owner=numbers).tolist()
        [1.0, 2.0, 3.0]
        """
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
        sizes = checks.sizes(tuple(shape) if isinstance(shape, (tuple, list)) else (shape,), "from_blob")
        if not isinstance(ptr, int) or ptr <= 0:
            raise InputError("from_blob needs an address", given=repr(ptr),
                             expected="an int, such as ctypes.addressof(array)",
                             fix="pass the address of the first element")
        return cls._foreign(owner, ptr, sizes, dlpack.row_major(sizes), kind, device)

    # -- PyTorch ---------------------------------------------------------------------------------------------
    @classmethod
    def from_torch(cls, tensor: Any, device: str | None = None) -> Self:
        """A torch.Tensor's values, shared if they are stored row by row in the host's memory.

        >>> import torch
        >>> Tensor.from_torch(torch.tensor([1, 2])).tolist()
        [1, 2]
        """
        if isinstance(tensor, type) or not hasattr(tensor, "detach") or not hasattr(tensor, "__dlpack__"):
            raise InputError("from_torch takes PyTorch's tensors", given=f"{type(tensor).__name__}",
                             expected="a torch.Tensor", fix="for other values write Tensor(value)")
        plain = tensor.detach().cpu()
        return cls.from_dlpack(plain.contiguous(), device)

    def torch(self) -> Any:
        """The values as a torch.Tensor with separate memory.

        >>> Tensor([1.0, 2.0]).torch().tolist()
        [1.0, 2.0]
        """
        torch = import_module("torch")
        if self.dtype.kind == "f" and self.dtype.bits == 8:             # types that DLPack does not have
            name = next(name for name, dtype in TORCH_TYPES.items() if dtype is self.dtype)
            return self.bitcast(dtypes.uint8).torch().view(getattr(torch, name))
        return torch.from_dlpack(self).clone()

    # -- notebooks -------------------------------------------------------------------------------------------
    def _repr_html_(self) -> str:
        """Return a table for a notebook: matrices of up to 12 rows and columns, others as text.

        >>> Tensor([[1, 2]])._repr_html_()[:7]
        '<table>'
        """
        facts = f"shape {tuple(self.shape)}, {self.dtype.name}, {self.device}"
        if self.ndim not in (1, 2) or max(self.shape) > 12 or 0 in self.shape:
            from html import escape  # imported here: it loads a table of all character names, for notebooks only
            return f"<pre>{escape(repr(self))}</pre><small>{facts}</small>"
        rows = self.numpy().reshape(-1, self.shape[-1]).tolist()
        spell = "{:.6g}".format if self.dtype.kind == "f" else str
        body = "".join("<tr>" + "".join(f"<td>{spell(v)}</td>" for v in row) + "</tr>" for row in rows)
        return f"<table>{body}</table><small>{facts}</small>"
