"""Tensors meet other libraries: DLPack both ways, PyTorch, foreign memory, notebooks. In, out: tensors.

DLPack is the C structure through which array libraries share memory: a capsule holds a DLManagedTensor, whoever takes
it renames the capsule and calls the deleter when done. Devices that share the host's memory share it here too; others
copy to the host first. PyTorch is used where it is there already, never imported for its own sake.
"""

from __future__ import annotations

import ctypes
import html
import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DeviceError, DTypeError, InputError
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.device import Device
from glassgrad.graph import ops as o
from glassgrad.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.graph.uop import UOp
from glassgrad.runtime.memory import HostMemory
from glassgrad.tensor import running
from glassgrad.tensor.drawing import Drawing
from glassgrad.tensor.host import HostValue

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Interop"]


# -- the C structures (dlpack.h, version 0.8) ----------------------------------------------------------------
class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("array", _Array), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT, _CPU = 4, 1
_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME, _USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")

_given: dict[int, Any] = {}      # what we handed out, by the address of its structure, until it is given back


@_Deleter
def _taken_back(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


_CapsuleEnd = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@_CapsuleEnd
def _capsule_dropped(capsule: int) -> None:
    """A capsule that nobody took goes, and what it holds with it."""
    plain = ctypes.PyDLL(None)
    plain.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    plain.PyCapsule_GetPointer.restype = ctypes.c_void_p
    plain.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    if plain.PyCapsule_IsValid(capsule, _NAME):
        _given.pop(plain.PyCapsule_GetPointer(capsule, _NAME), None)


class _Owner:
    """Memory that another library lends; given back when the last buffer over it goes."""

    def __init__(self, managed: Any):
        self.managed = managed

    def __del__(self) -> None:
        if self.managed.contents.deleter:
            self.managed.contents.deleter(self.managed)


class Interop(Drawing):
    """Other libraries."""
    __slots__ = ()

    # -- DLPack ----------------------------------------------------------------------------------------------
    def __dlpack_device__(self) -> tuple[int, int]:
        """Where DLPack will find the values: the host's memory."""
        return (_CPU, 0)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The values as a DLPack capsule: `torch.from_dlpack(x)`, `numpy.from_dlpack(x)`. They are shared, not copied,
        unless `copy=True`.

        >>> import numpy
        >>> numpy.from_dlpack(Tensor([1, 2])).tolist()
        [1, 2]
        """
        if dl_device is not None and tuple(dl_device)[0] != _CPU:
            raise DeviceError("DLPack here goes through the host's memory", given=f"dl_device={dl_device}",
                              expected="the CPU, (1, 0)", mend="move it on the other side")
        if self.dtype.kind == "f" and self.dtype.bits == 8:
            raise DTypeError(
                "DLPack has no such type", given=self.dtype.name, expected="a wider float", mend="cast it: x.half()"
            )
        data = running.bytes_of(self.uop, self.device)
        kept = (ctypes.c_char * max(1, data.nbytes)).from_buffer(bytearray(data) if copy or data.readonly else data) \
            if data.nbytes else (ctypes.c_char * 1)()
        managed = _Managed()
        shape = (ctypes.c_int64 * max(1, self.ndim))(*self.shape)
        steps = [math.prod(self.shape[i + 1:]) for i in range(self.ndim)]
        strides = (ctypes.c_int64 * max(1, self.ndim))(*steps)
        code = _BFLOAT if self.dtype is dtypes.bfloat16 else _CODES[self.dtype.kind]
        managed.array = _Array(
            ctypes.addressof(kept),
            _Device(_CPU, 0),
            self.ndim,
            _Type(code, self.dtype.bits if code != 6 else 8, 1),
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
            0,
        )
        managed.deleter = _taken_back
        _given[ctypes.addressof(managed)] = (managed, shape, strides, kept, data, self.uop)
        return _python.PyCapsule_New(ctypes.addressof(managed), _NAME, ctypes.cast(_capsule_dropped, ctypes.c_void_p))

    @classmethod
    def from_dlpack(cls, source: Any, device: str | None = None) -> Self:
        """Another library's array, its memory shared where it can be: an object with `__dlpack__`, or a capsule.

        >>> import numpy
        >>> Tensor.from_dlpack(numpy.array([1.0, 2.0])).tolist()
        [1.0, 2.0]
        """
        capsule = source.__dlpack__() if hasattr(source, "__dlpack__") and not isinstance(source, type) else source
        if not _python.PyCapsule_IsValid(ctypes.py_object(capsule), _NAME):
            raise InputError("this is no DLPack capsule, or it was used already", given=f"{type(source).__name__}",
                             expected="an object with __dlpack__, or a fresh capsule", mend="pass the array itself")
        managed = ctypes.cast(_python.PyCapsule_GetPointer(ctypes.py_object(capsule), _NAME), ctypes.POINTER(_Managed))
        _python.PyCapsule_SetName(ctypes.py_object(capsule), _USED)
        owner, array = _Owner(managed), managed.contents.array
        if array.device.kind != _CPU:
            raise DeviceError("the array is not in the host's memory", given=f"DLPack device {array.device.kind}",
                              expected="the CPU, 1", mend="move it to the CPU first")
        shape = tuple(array.shape[i] for i in range(array.ndim))
        steps = tuple(array.strides[i] for i in range(array.ndim)) if array.strides else \
            tuple(math.prod(shape[i + 1:]) for i in range(array.ndim))
        return cls._foreign(owner, (array.data or 0) + array.byte_offset, shape, steps, _dtype_of(array.dtype), device)

    @classmethod
    def _foreign(cls, owner: Any, address: int, shape: tuple[int, ...], steps: tuple[int, ...], dtype: DType,
                 device: str | None) -> Self:
        """Memory that somebody else owns, as a leaf; copied where it is not row-major or the device has its own."""
        place = running.canonical_device(device) or running.default_device()
        dense = all(n == 1 or s == math.prod(shape[i + 1:]) for i, (n, s) in enumerate(zip(shape, steps))) or 0 in shape
        if dense and isinstance(Device[place].memory, HostMemory) and 0 not in shape:
            buffer = Buffer.from_host(owner, address, shape, dtype, place)
            return cls._leaf(UOp(o.BUFFER, dtype, (), buffer), device, None)
        if 0 in shape:
            return cls._leaf(running.store(HostValue(b"", shape, dtype), place), device, None)
        low = sum((n - 1) * s for n, s in zip(shape, steps) if s < 0)
        high = sum((n - 1) * s for n, s in zip(shape, steps) if s > 0)
        size = dtype.itemsize
        raw = ctypes.string_at(address + low * size, (high - low + 1) * size)
        data = b"".join(raw[(p - low) * size:(p - low + 1) * size] for p in _places(shape, steps))
        return cls._leaf(running.store(HostValue(data, shape, dtype), place), device, None)

    @classmethod
    def from_blob(cls, ptr: int, shape: tuple[int, ...], dtype: DType | str | None = None, device: str | None = None,
                  owner: Any = None) -> Self:
        """Memory at an address, row by row, shared and not copied: it must outlive the tensor, unless `owner` is what
        holds it, which is then kept.

        >>> import ctypes
        >>> numbers = (ctypes.c_float * 3)(1, 2, 3)
        >>> Tensor.from_blob(ctypes.addressof(numbers), (3,), dtypes.float32, owner=numbers).tolist()
        [1.0, 2.0, 3.0]
        """
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
        sizes = cls._sizes(tuple(shape) if isinstance(shape, (tuple, list)) else (shape,), "from_blob")
        if not isinstance(ptr, int) or ptr <= 0:
            raise InputError(
                "from_blob needs an address",
                given=repr(ptr),
                expected="an int, such as ctypes.addressof(array)",
                mend="pass the address of the first element",
            )
        steps = tuple(math.prod(sizes[i + 1:]) for i in range(len(sizes)))
        return cls._foreign(owner, ptr, sizes, steps, kind, device)

    # -- PyTorch ---------------------------------------------------------------------------------------------
    @classmethod
    def from_torch(cls, tensor: Any, device: str | None = None) -> Self:
        """A torch.Tensor's values, shared where they lie row by row in the host's memory.

        >>> import torch
        >>> Tensor.from_torch(torch.tensor([1, 2])).tolist()
        [1, 2]
        """
        if not hasattr(tensor, "detach") or not hasattr(tensor, "__dlpack__"):
            raise InputError("from_torch takes PyTorch's tensors", given=f"{type(tensor).__name__}",
                             expected="a torch.Tensor", mend="for other values write Tensor(value)")
        plain = tensor.detach().cpu()
        return cls.from_dlpack(plain.contiguous(), device)

    def torch(self) -> Any:
        """The values as a torch.Tensor of its own memory.

        >>> Tensor([1.0, 2.0]).torch().tolist()
        [1.0, 2.0]
        """
        return import_module("torch").from_dlpack(self).clone()

    # -- notebooks -------------------------------------------------------------------------------------------
    def _repr_html_(self) -> str:
        """A table for a notebook: matrices of up to 12 rows and columns, others as text.

        >>> Tensor([[1, 2]])._repr_html_()[:7]
        '<table>'
        """
        facts = f"shape {tuple(self.shape)}, {self.dtype.name}, {self.device}"
        if self.ndim not in (1, 2) or max(self.shape) > 12 or 0 in self.shape:
            return f"<pre>{html.escape(repr(self))}</pre><small>{facts}</small>"
        rows = running.array_of(self.uop, self.device).reshape(-1, self.shape[-1]).tolist()
        spell = "{:.6g}".format if self.dtype.kind == "f" else str
        body = "".join("<tr>" + "".join(f"<td>{spell(v)}</td>" for v in row) + "</tr>" for row in rows)
        return f"<table>{body}</table><small>{facts}</small>"


def _places(shape: tuple[int, ...], steps: tuple[int, ...]) -> list[int]:
    """Where each element lies, in row-major order."""
    found = [0]
    for n, s in zip(shape, steps):
        found = [p + i * s for p in found for i in range(n)]
    return found


def _dtype_of(kind: Any) -> DType:
    for dtype in (dtypes.bool, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint16,
                  dtypes.uint32, dtypes.uint64, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64):
        code = _BFLOAT if dtype is dtypes.bfloat16 else _CODES[dtype.kind]
        if kind.code == code and kind.bits == (8 if dtype is dtypes.bool else dtype.bits) and kind.lanes == 1:
            return dtype
    raise DTypeError(
        "this DLPack type has no counterpart",
        given=f"code {kind.code}, {kind.bits} bits, {kind.lanes} lanes",
        expected="numbers or truth values of one lane",
        mend="convert it on the other side",
    )
