"""Write files that PyTorch reads: `torch.save`. In: tensors and plain values. Out: the bytes of a zip archive.

The archive holds the objects as a pickle of protocol 2 (`data.pkl`), in which a tensor is a call
`torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)` and a storage a reference to the
record `data/0`, `data/1`, ... with its bytes. The pickle is written opcode by opcode, because Python's own pickler
refuses to name functions of a library that is not loaded.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph.dtype import DType
from glassgrad.nn.state.formats.torch_objects import STORAGES
from glassgrad.tensor.memory.python_values import TORCH_TYPES
from glassgrad.tensor.realize_and_read import bytes_of
from glassgrad.tensor.tensor import Tensor

# storage classes by element type; other types are untyped bytes, and the tensor's record holds the type
_STORAGES = {dtype: name for name, dtype in STORAGES.items() if dtype is not None}
_TYPE_NAMES = {dtype: name for name, dtype in TORCH_TYPES.items()}


def torch_file(value: Any) -> bytes:
    """Return the bytes of a file that holds a value.

    >>> from glassgrad import nn
    >>> content = torch_file({"weight": Tensor([1.0, 2.0]), "epoch": 3})
    >>> nn.state.torch_load(content)["weight"].tolist()
    [1.0, 2.0]
    """
    writer = PickleWriter()
    writer.value(value)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"".join(writer.parts) + pickle.STOP)
        archive.writestr("archive/byteorder", b"little")
        for number, data in enumerate(writer.storages):
            archive.writestr(f"archive/data/{number}", data)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


def _number_of(value: Any) -> Any:
    """Return one of NumPy's numbers as a plain number; None for anything else."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else None


def _fix(value: Any) -> str:
    """Return what to save in place of a value that a file cannot hold."""
    if getattr(value, "shape", ()):
        return "write Tensor(array) in its place"
    if callable(getattr(value, "state_dict", None)):
        return "save model.state_dict(), not the model itself"
    return "save the numbers, strings and tensors that it consists of"


class PickleWriter:
    """The opcodes of a pickle, and the bytes of the storages that it refers to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.storages: list[bytes] = []
        self.keys: dict[int, int] = {}                   # id of a tensor: the number of its storage
        self.inside: set[int] = set()                    # ids of the containers that are being written

    def value(self, value: Any) -> None:
        """Write any value that a file of weights may hold."""
        if isinstance(value, Tensor):
            self._tensor(value)
        elif value is None or value is True or value is False:
            self.parts.append({None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}[value])
        elif isinstance(value, int):
            self._integer(int(value))
        elif isinstance(value, float):
            self.parts.append(pickle.BINFLOAT + struct.pack(">d", value))
        elif isinstance(value, str):
            data = str(value).encode("utf-8", "surrogatepass")
            self.parts.append(pickle.BINUNICODE + struct.pack("<I", len(data)) + data)
        elif isinstance(value, DType):
            self._name("torch", _TYPE_NAMES[value])
        elif isinstance(value, (dict, list, tuple)):
            if id(value) in self.inside:
                raise InputError("a file cannot hold a value that holds itself", given=type(value).__name__,
                                 expected="tensors and plain values", fix="save its parts")
            self.inside.add(id(value))
            self._container(value)
            self.inside.discard(id(value))
        elif isinstance(value, (set, frozenset)):
            self._call("__builtin__", type(value).__name__, list(value))
        elif isinstance(value, bytes):           # protocol 2 has only text
            self._call("_codecs", "encode", value.decode("latin-1"), "latin1")
        elif isinstance(value, bytearray):
            self._call("__builtin__", "bytearray", bytes(value))
        elif isinstance(value, complex):
            self._call("__builtin__", "complex", value.real, value.imag)
        elif type(number := _number_of(value)) in (bool, int, float, complex):
            self.value(number)
        else:
            raise InputError("a file of tensors does not hold this", given=f"{repr(value)[:60]} of type "
                             f"{type(value).__module__}.{type(value).__name__}",
                             expected="tensors, numbers, strings, bytes, element types, lists, tuples, sets and "
                             "dictionaries", fix=_fix(value))

    def _call(self, module: str, name: str, *arguments: Any) -> None:
        """Write a value as a call of what makes it, by its name in Python 2, as Python's own pickler does."""
        self._name(module, name)
        self.value(arguments)
        self.parts.append(pickle.REDUCE)

    def _integer(self, value: int) -> None:
        if -1 << 31 <= value < 1 << 31:
            self.parts.append(pickle.BININT + struct.pack("<i", value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            short = len(data) < 256                      # weights_only=True does not read longer ones
            self.parts.append((pickle.LONG1 + bytes([len(data)]) if short else
                               pickle.LONG4 + struct.pack("<i", len(data))) + data)

    def _name(self, module: str, name: str) -> None:
        self.parts.append(pickle.GLOBAL + f"{module}\n{name}\n".encode())

    def _container(self, value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value, OrderedDict):
                self._name("collections", "OrderedDict")
                self.parts.append(pickle.EMPTY_TUPLE + pickle.REDUCE)
            else:
                self.parts.append(pickle.EMPTY_DICT)
            self.parts.append(pickle.MARK)
            for key, item in value.items():
                self.value(key)
                self.value(item)
            self.parts.append(pickle.SETITEMS)
        else:
            grows = isinstance(value, list)
            self.parts.append(pickle.EMPTY_LIST + pickle.MARK if grows else pickle.MARK)
            for item in value:
                self.value(item)
            self.parts.append(pickle.APPENDS if grows else pickle.TUPLE)

    def _tensor(self, tensor: Tensor) -> None:
        """Write a call that rebuilds the tensor from its row-major storage."""
        kind, shape = tensor.dtype, tuple(tensor.shape)
        named = kind in _STORAGES
        self._name("torch._utils", "_rebuild_tensor_v2" if named else "_rebuild_tensor_v3")
        self.parts.append(pickle.MARK)
        self._storage(tensor)
        self.value(0)
        self.value(shape)
        self.value(tuple(math.prod(shape[i + 1:]) for i in range(len(shape))))
        self.value(tensor.requires_grad is True)
        self._name("collections", "OrderedDict")
        self.parts.append(pickle.EMPTY_TUPLE + pickle.REDUCE)
        if not named:
            self.value(kind)
        self.parts.append(pickle.TUPLE + pickle.REDUCE)

    def _storage(self, tensor: Tensor) -> None:
        kind = tensor.dtype
        if id(tensor) not in self.keys:
            self.keys[id(tensor)] = len(self.storages)
            self.storages.append(bytes(bytes_of(tensor.uop, tensor.device)))
        number = self.keys[id(tensor)]
        name = f"{_STORAGES[kind]}Storage" if kind in _STORAGES else "UntypedStorage"
        count = tensor.numel() if kind in _STORAGES else len(self.storages[number])
        self.parts.append(pickle.MARK)
        self.value("storage")
        self._name("torch" if kind in _STORAGES else "torch.storage", name)
        self.value(str(number))
        self.value("cpu")
        self.value(int(count))
        self.parts.append(pickle.TUPLE + pickle.BINPERSID)
