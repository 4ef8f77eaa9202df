"""Resolve the globals in PyTorch's pickles. In: names of globals and their arguments. Out: tensors that are views of
storages.

Both of PyTorch's formats pickle a tensor as a call: _rebuild_tensor_v2(storage, offset, size, stride, ...), where the
storage is a reference (a "persistent id") to bytes elsewhere in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.compiler.graph import DType, dtypes
from glassgrad.nn.state.formats.byte_source import MOST_AXES, Source, is_size
from glassgrad.nn.state.formats.numpy_objects import MAKERS as NUMPY_MAKERS
from glassgrad.nn.state.formats.pickle_reader import Maker, PickleReader, Table
from glassgrad.tensor.memory.python_values import TORCH_TYPES
from glassgrad.tensor.tensor import Tensor

PRICE_OF_A_TENSOR = 50      # cost of making its nodes, in instructions of a pickle


class StorageKind:
    """A storage class, by the type of its elements; None if it is untyped, and the tensor has the type."""
    __slots__ = ("dtype",)

    def __init__(self, dtype: DType | None):
        self.dtype = dtype

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize if self.dtype is not None else 1


class Storage:
    """Bytes of the file that tensors are views of: one buffer for each type, however many tensors share it."""
    __slots__ = ("source", "offset", "nbytes", "device", "_flat")

    def __init__(self, source: Source, offset: int, nbytes: int, device: str | None):
        self.source, self.offset, self.nbytes, self.device = source, offset, nbytes, device
        self._flat: dict[DType, Tensor] = {}

    def flat(self, dtype: DType) -> Tensor:
        """Return all elements as a vector of this type."""
        if dtype not in self._flat:
            self._flat[dtype] = self.source.tensor(self.offset, (self.nbytes // dtype.itemsize,), dtype, self.device)
        return self._flat[dtype]


class StorageReference:
    """A persistent id: a storage of `count` elements by its key, or `used` of them from `start` on. `storage` is None
    until it is found."""
    __slots__ = ("kind", "key", "count", "storage", "start", "used")

    def __init__(self, kind: StorageKind, key: str, count: int):
        self.kind, self.key, self.count, self.start, self.used = kind, key, count, 0, count
        self.storage: Storage | None = None

    @property
    def nbytes(self) -> int:
        return self.count * self.kind.itemsize


def reference(find: Callable[[StorageReference], Storage | None]) -> Callable[[PickleReader, Any], Any]:
    """Return the function that resolves persistent ids: ("storage", kind, key, location, count[, view]).

    `find` returns a storage, or None while only the references and the pickle's end are needed. Files of PyTorch 0.3
    name parts of storages by a view: (key, offset, count)."""
    def answer(reader: PickleReader, name: Any) -> StorageReference:
        if not (isinstance(name, tuple) and len(name) in (5, 6) and isinstance(name[0], str) and name[0] == "storage"
                and isinstance(name[1], StorageKind) and isinstance(name[2], (str, int)) and is_size(name[4])):
            raise reader.damaged("it refers to something that is not a storage")
        found = StorageReference(name[1], str(reader.key(name[2])), name[4])
        found.storage = find(found)
        if len(name) == 6 and (view := name[5]) is not None:
            reader.expect(isinstance(view, tuple) and len(view) == 3 and is_size(view[1]) and is_size(view[2])
                          and view[1] + view[2] <= found.count, "it refers to a part that the storage does not have")
            _, found.start, found.used = view
        return found
    return answer


# -- tensors ---------------------------------------------------------------------------------------------------------
def _rebuild_tensor(reader: PickleReader, arguments: tuple[Any, ...]) -> Any:
    """(storage, offset, size, stride, requires_grad, hooks, [dtype,] metadata)"""
    reader.expect(4 <= len(arguments) <= 8 and isinstance(arguments[0], StorageReference),
                  "a tensor's description is wrong")
    kinds = [part for part in arguments[6:7] if isinstance(part, DType)]
    return _view(reader, arguments[0], kinds[0] if kinds else arguments[0].kind.dtype, *arguments[1:4])


def _rebuild_parameter(reader: PickleReader, arguments: tuple[Any, ...]) -> Any:
    """(tensor, requires_grad, hooks[, state]): the tensor"""
    reader.expect(3 <= len(arguments) <= 4, "a parameter's description is wrong")
    return arguments[0]


def _view(reader: PickleReader, elements: StorageReference, dtype: DType | None, offset: Any, size: Any,
          stride: Any) -> Any:
    """Return a strided view of a storage."""
    if not (isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride) <= MOST_AXES
            and all(is_size(n) for n in (offset, *size, *stride))):
        raise reader.damaged("a tensor's offset, size and stride make no sense")
    reader.pay(PRICE_OF_A_TENSOR)
    if elements.storage is None:
        return None
    if dtype is None:
        raise reader.damaged("a tensor has no type")
    count = elements.used * elements.kind.itemsize // dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else offset - 1
    if last >= count:
        raise reader.damaged(f"a tensor of shape {size} and strides {stride} from element {offset} on does not fit "
                             f"into its storage of {count} elements")
    flat = elements.storage.flat(dtype)
    offset += elements.start
    if 0 in size:
        return flat.shrink(((0, 0),)).reshape(size)
    # dense: each stride is the product of the sizes of smaller strides; axes of size 1 do not matter
    order = sorted((axis for axis, n in enumerate(size) if n > 1 and stride[axis] > 0), key=lambda axis: -stride[axis])
    length = 1
    for axis in reversed(order):
        if stride[axis] != length:
            return flat[_flat_indices(flat, offset, size, stride)]
        length *= size[axis]
    dense = flat.shrink(((offset, offset + length),)).reshape([size[axis] for axis in order])
    back = dense.permute([order.index(axis) for axis in sorted(order)])
    return back.reshape([n if axis in order else 1 for axis, n in enumerate(size)]).expand(size)


def _flat_indices(flat: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return the flat index of each element of a strided view that is not dense."""
    places = Tensor.full((1,) * len(size), offset, device=flat.device, dtype=dtypes.int64)
    for axis, (n, step) in enumerate(zip(size, stride)):
        row = Tensor.arange(n, device=flat.device, dtype=dtypes.int64) * step
        places = places + row.reshape([n if i == axis else 1 for i in range(len(size))])
    return places


# -- plain Python objects --------------------------------------------------------------------------------------------
def _container(what: str, kind: type | tuple[type, ...], make: Callable[[PickleReader, Any], Any]) \
        -> Callable[[PickleReader, tuple[Any, ...]], Any]:
    """Return a Maker of a container from (items[, its maximum length]); each item costs budget."""
    def maker(reader: PickleReader, arguments: tuple[Any, ...]) -> Any:
        items = arguments[0] if arguments else ()
        reader.expect(not arguments or isinstance(items, kind), f"a {what} is described wrongly")
        reader.pay(len(items))
        return make(reader, items)
    return maker


def _from_rows(reader: PickleReader, rows: Any) -> dict[Any, Any]:
    reader.expect(all(isinstance(row, (list, tuple)) and len(row) == 2 for row in rows),
                  "an OrderedDict is described wrongly")
    return {reader.key(key): value for key, value in rows}


def _complex(reader: PickleReader, arguments: tuple[Any, ...]) -> complex:
    sound = len(arguments) == 2 and all(isinstance(part, float) for part in arguments)
    reader.expect(sound, "a complex number is described wrongly")
    return complex(*arguments)


def _byte_array(reader: PickleReader, arguments: tuple[Any, ...]) -> bytearray:
    """Return a bytearray from bytes; or, before protocol 5, from a string and "latin-1"."""
    data = arguments[0] if arguments else b""
    reader.pay(len(data) if isinstance(data, (str, bytes)) else 0)
    return bytearray(data if isinstance(data, bytes) else _encode(reader, arguments))


def _device(reader: PickleReader, arguments: tuple[Any, ...]) -> str:
    """Return torch.device("cuda", 0) as the text "cuda:0"."""
    reader.expect(1 <= len(arguments) <= 2 and isinstance(arguments[0], str), "a torch.device is described wrongly")
    reader.pay(len(arguments[0]))
    return ":".join(str(reader.key(part)) for part in arguments)


def _encode(reader: PickleReader, arguments: tuple[Any, ...]) -> bytes:
    """Return bytes that protocol 2 writes as a latin-1 string."""
    if len(arguments) != 2 or arguments[1] not in ("latin1", "latin-1") or not isinstance(arguments[0], str):
        raise reader.damaged("bytes are described wrongly")
    reader.pay(len(arguments[0]))
    return arguments[0].encode("latin-1")


_MAKERS: dict[str, Callable[[PickleReader, tuple[Any, ...]], Any]] = {
    **dict.fromkeys((f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3")), _rebuild_tensor),
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch.Size": _container("torch.Size", tuple, lambda _, sizes: sizes), "torch.device": _device,
    "collections.OrderedDict": _container("OrderedDict", list, _from_rows),
    "collections.defaultdict": lambda reader, arguments: {},        # without its factory, which is code
    "collections.Counter": _container("Counter", dict, lambda _, counts: dict(counts)),
    "collections.deque": _container("deque", (list, tuple), lambda _, items: list(items)),      # as a list
    "_codecs.encode": _encode,
}
_BUILTINS: dict[str, Callable[[PickleReader, tuple[Any, ...]], Any]] = {
    "set": _container("set", list, lambda reader, items: set(map(reader.key, items))),
    "frozenset": _container("frozenset", list, lambda reader, items: frozenset(map(reader.key, items))),
    "complex": _complex, "bytearray": _byte_array,
    "bytes": lambda reader, arguments: _encode(reader, arguments) if arguments else b"",
    # only named as the factory of a defaultdict, never called
    **dict.fromkeys(("list", "dict", "int", "float"), lambda reader, arguments: None)}
STORAGES = {"Double": dtypes.float64, "Float": dtypes.float32, "Half": dtypes.float16, "BFloat16": dtypes.bfloat16,
            "Long": dtypes.int64, "Int": dtypes.int32, "Short": dtypes.int16, "Char": dtypes.int8,
            "Byte": dtypes.uint8, "Bool": dtypes.bool, "Untyped": None}

TABLE: Table = {
    **NUMPY_MAKERS,
    **{(module, name): Maker(f"{module}.{name}", make)
       for full, make in _MAKERS.items() for module, _, name in [full.rpartition(".")]},
    **{(module, name): Maker(f"{module}.{name}", make)
       for name, make in _BUILTINS.items() for module in ("builtins", "__builtin__")},      # Python 3's and 2's
    **{(module, f"{name}Storage"): StorageKind(dtype) for name, dtype in STORAGES.items()
       for module in ("torch", "torch.cuda", "torch.storage")},
    **{("torch", name): dtype for name, dtype in TORCH_TYPES.items()},
}
