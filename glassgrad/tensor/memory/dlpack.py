"""Share memory with other array libraries through DLPack, a C structure. In: memory, or a capsule. Out: the other.

A capsule holds a managed tensor. The library that takes the capsule renames it, and calls its deleter when done. There
are two layouts: version 1 has flags that say whether the memory may be written and whether it is a copy, the older one
has not. Does not know tensors.

NumPy makes the capsules that are exported, because its functions that free them are in C. A library that refuses an
array frees the capsule while its exception is being raised, and a function in Python would replace that exception.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, NamedTuple

from glassgrad.base.errors import DeviceError, DTypeError, InputError
from glassgrad.compiler.graph.dtype import ALL, DType, dtypes


# -- the C structures (dlpack.h) -----------------------------------------------------------------------------
class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DLDataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("array", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", _Deleter), ("flags", ctypes.c_uint64), ("array", _DLTensor)]


CPU = 1
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
# the code and the number of bits of each type that DLPack has
_TYPES = {dtype: (4 if dtype is dtypes.bfloat16 else _CODES[dtype.kind], 8 * dtype.itemsize) for dtype in ALL
          if dtype.kind != "f" or dtype.bits > 8}
_READ_ONLY, _COPIED = 1, 2                       # bits of `flags`
_MAJOR = 1                                       # layouts of a later major version cannot be read
# functions that take the address of a capsule
_is_capsule, _set_name = (ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)((name, ctypes.pythonapi))
                          for name in ("PyCapsule_IsValid", "PyCapsule_SetName"))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
# the names of capsules, which hold pointers to them, so they must live as long as the module
_NAME, _USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")
_NAME_1, _USED_1 = ctypes.c_char_p(b"dltensor_versioned"), ctypes.c_char_p(b"used_dltensor_versioned")


# -- exporting -----------------------------------------------------------------------------------------------
def give(memory: Any, shape: tuple[int, ...], dtype: DType, versioned: bool, copied: bool, keep: Any) -> Any:
    """Make a capsule over writable row-major memory (a ctypes array); `keep` lives until its taker is done."""
    if dtype not in _TYPES:
        raise DTypeError("DLPack has no such type", given=dtype.name, expected="a wider float",
                         fix="cast it: x.half()")
    import numpy  # whoever shares arrays has loaded it already
    memory.keep = keep
    bits = numpy.ndarray(shape, f"u{dtype.itemsize}", memory)
    version = {"max_version": (_MAJOR, 0)} if versioned and _has_versions(numpy) else {}
    capsule: Any = bits.__dlpack__(**version)  # type: ignore[arg-type]
    managed: Any = (_Versioned if version else _Managed).from_address(
        _pointer(id(capsule), _NAME_1 if version else _NAME))
    managed.array.dtype = _DLDataType(*_TYPES[dtype], 1)       # NumPy lacks some types, such as bfloat16
    if version and copied:
        managed.flags |= _COPIED
    return capsule


def _has_versions(numpy: Any) -> bool:
    return tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 1)


# -- importing -----------------------------------------------------------------------------------------------
class Foreign(NamedTuple):
    """Memory of another library: `owner` keeps it alive, `steps` are its strides in elements."""
    owner: Any
    address: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: DType
    read_only: bool


def take(source: Any) -> Foreign:
    """Return the memory that an object with `__dlpack__`, or a capsule, offers."""
    capsule = _asked(source) if hasattr(source, "__dlpack__") and not isinstance(source, type) else source
    versioned = bool(_is_capsule(id(capsule), _NAME_1))
    if not versioned and not _is_capsule(id(capsule), _NAME):
        raise InputError("this is no DLPack capsule, or it was used already", given=f"{type(source).__name__}",
                         expected="an object with __dlpack__, or a fresh capsule", fix="pass the array itself")
    address = _pointer(id(capsule), _NAME_1 if versioned else _NAME)
    managed: Any = (_Versioned if versioned else _Managed).from_address(address)
    _set_name(id(capsule), _USED_1 if versioned else _USED)
    deleter = ctypes.cast(managed.deleter, ctypes.c_void_p).value        # `managed.deleter` itself would hold `managed`
    if deleter:                                      # called when the last buffer over the memory is gone
        weakref.finalize(managed, _Deleter(deleter), address).atexit = False
    if versioned and managed.major > _MAJOR:
        raise InputError("this DLPack capsule is of a later version", given=f"version {managed.major}.{managed.minor}",
                         expected=f"version {_MAJOR}", fix="go through NumPy: Tensor(numpy.asarray(array))")
    array = managed.array
    if array.device.kind != CPU:
        raise DeviceError("the array is not in the host's memory", given=f"DLPack device {array.device.kind}",
                          expected="the CPU, 1", fix="move it to the CPU first")
    shape = tuple(array.shape[i] for i in range(array.ndim))
    steps = tuple(array.strides[i] for i in range(array.ndim)) if array.strides else row_major(shape)
    return Foreign(managed, (array.data or 0) + array.byte_offset, shape, steps, _dtype_of(array.dtype),
                   versioned and bool(managed.flags & _READ_ONLY))


def _asked(source: Any) -> Any:
    """Ask a library for a capsule of version 1, or of the older layout if it has only that."""
    try:
        try:
            return source.__dlpack__(max_version=(_MAJOR, 0))
        except TypeError:
            return source.__dlpack__()
    except (BufferError, ValueError, RuntimeError) as problem:
        raise InputError("the other library does not share this array", given=f"{type(source).__name__}: {problem}",
                         expected="an array whose memory can be shared",
                         fix="copy its values: Tensor(array)") from None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a value that is stored row by row."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def _dtype_of(kind: Any) -> DType:
    for dtype, known in _TYPES.items():
        if (kind.code, kind.bits, kind.lanes) == (*known, 1):
            return dtype
    raise DTypeError("this DLPack type has no counterpart",
                     given=f"code {kind.code}, {kind.bits} bits, {kind.lanes} lanes",
                     expected="numbers or truth values of one lane", fix="convert it on the other side")
