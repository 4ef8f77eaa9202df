"""Call an ONNX file like a function: `OnnxModel`. In: a path, bytes or a ModelProto. Out: tensors by name.

Does not know any operator. When the file is opened, its types are checked, and that every operator is supported.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassgrad import DType, Tensor
from glassgrad.base.errors import DTypeError, FormatError, InputError, ShapeError
from glassgrad.onnx.graph import HOST_ELEMENTS, Graph, Library, SmallWeight, Value, opset_table
from glassgrad.onnx.operators import element_type, onnx_package, to_tensor

Size = int | str | None


class OnnxValue(NamedTuple):
    """An input or output of a model. A size is a number, a name (sizes of the same name are equal), or None for any
    size."""
    name: str
    shape: tuple[Size, ...] | None
    dtype: DType


class OnnxModel:
    """An ONNX model whose nodes are tensor operations.

    `weights` are its initializers by name, as tensors. With `trainable=True` gradients flow into the floating point
    ones. Inputs are given as one dictionary or by keywords; the result is a dictionary of lazy tensors."""
    __jit_unwatched__ = ("graph", "library")          # never changed after the file was opened

    def __init__(self, model: Any, *, trainable: bool = False, device: str | None = None):
        proto = read(model)
        graph = proto.graph
        self.opsets = opset_table(proto.opset_import)
        self.device = device
        initial = initial_values(graph, device, trainable)
        self.inputs = [described(value) for value in graph.input if value.name not in initial]
        self.outputs = [described(value) for value in graph.output]
        self.library = Library(functions_of(proto), device)
        self.graph = Graph(graph_without_weights(proto), self.opsets, self.library, {})
        self.graph.refuse_missing()
        self.graph.constants.update(initial)
        check_names(self.graph)
        self.folded = self.graph.fold({}, device)         # an attribute, so that a jit finds the tensors
        if self.folded:
            self.folded[0].realize(*self.folded[1:])
        self.weights: dict[str, Tensor] = {           # that calls read; the others are in what was computed once
            name: value.tensor if isinstance(value, SmallWeight) else value
            for name, value in initial.items() if name in self.graph.constants}

    def __repr__(self) -> str:
        return f"OnnxModel({', '.join(v.name for v in self.inputs)} -> {', '.join(v.name for v in self.outputs)})"

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Tensor]:
        """The outputs for these inputs: tensors, arrays, or Python numbers and lists."""
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError("inputs of a model have names", given=type(inputs).__name__,
                             expected="a dictionary or keywords",
                             fix=f"model({self.inputs[0].name}=...)" if self.inputs else "model()")
        given = {**(inputs or {}), **named}
        values = self._checked(given)
        for name, weight in self.weights.items():                   # the user may have replaced a weight
            constant = self.graph.constants.get(name)
            values.setdefault(name, constant._replace(tensor=weight) if isinstance(constant, SmallWeight) else weight)
        results = self.graph.run(values)
        return {name: self.library.tensor(value) for name, value in zip(self.graph.outputs, results)}

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Value]:
        """Return the inputs as values, after comparing their names, types and shapes with the model's."""
        wanted = {value.name: value for value in self.inputs}
        if missing := [name for name in wanted if name not in given]:
            raise InputError("an input of the model is missing", given=", ".join(given) or "no inputs",
                             expected=", ".join(map(shown, self.inputs)), fix=f"give {', '.join(missing)}")
        if unknown := [name for name in given if name not in wanted and name not in self.weights]:
            raise InputError("the model has no such input", given=", ".join(unknown),
                             expected=", ".join(map(shown, self.inputs)), fix="model.inputs has the names")
        sizes: dict[str, int] = {}
        values: dict[str, Value] = {}
        for name, value in given.items():
            weight = self.weights.get(name)
            info = wanted[name] if weight is None else OnnxValue(name, weight.shape, weight.dtype)
            values[name] = as_input(value, info, self.device)
            check_shape(values[name], info, sizes)
        return values


def read(model: Any) -> Any:
    """Return the ModelProto of a path, bytes or a ModelProto; read external data too."""
    onnx = onnx_package()
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, Tensor):                   # of a file's bytes
        model = model.numpy().tobytes()
    if not isinstance(model, (bytes, bytearray, memoryview, str, os.PathLike)):
        raise InputError("this is no ONNX model", given=type(model).__name__, expected="a path, bytes or a ModelProto",
                         fix='OnnxModel("model.onnx")')
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    try:
        data = path.read_bytes() if path is not None else memoryview(model).tobytes()        # type: ignore[arg-type]
    except OSError as problem:
        raise FormatError("the model file cannot be read", given=f"{path}: {problem.strerror}",
                          expected="a path to an .onnx file", fix="check the path") from None
    shown_path = str(path) if path is not None else "the bytes"
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as problem:                    # protobuf's own type, which its versions name differently
        raise FormatError("this is not a whole ONNX model", given=f"{shown_path}, {len(data)} bytes: {problem}",
                          expected="a file that onnx.save wrote", fix="get the file again; it may be cut off") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise FormatError("this is not an ONNX model", given=f"{shown_path}, {len(data)} bytes, without "
                          + ("opset imports" if proto.HasField("graph") else "a graph"),
                          expected="a file that onnx.save wrote", fix="check that it is the right file, and whole")
    if path is not None:
        read_external(proto, path.parent)
    return proto


def check_names(graph: Graph) -> None:
    """Raise if a graph reads a value that nothing makes."""
    names = sorted(set(graph.undefined(set())))
    if names:
        raise FormatError("the model reads values that no node makes", given=", ".join(names),
                          expected="inputs, initializers and outputs of earlier nodes",
                          fix="export the model again; onnx.checker.check_model says more")


def read_external(proto: Any, folder: Path) -> None:
    """Read the weights that are in files beside the model."""
    onnx = onnx_package()
    absent = {entry.value for tensor in proto.graph.initializer for entry in tensor.external_data
              if entry.key == "location" and not (folder / entry.value).is_file()}
    if absent:
        raise FormatError("the model's weights lie in files that are not here",
                          given=f"no {', '.join(sorted(absent))} in {folder}",
                          expected="the files of external data in the model's folder", fix="copy them there")
    try:
        onnx.load_external_data_for_model(proto, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as problem:
        raise FormatError("the model's external data cannot be read", given=str(problem),
                          expected="files as the model describes them",
                          fix="get them again; they may be cut off") from None


def initial_values(graph: Any, device: str | None, trainable: bool) -> dict[str, Tensor | SmallWeight]:
    """Return the initializers of a graph as values."""
    onnx = onnx_package()
    values: dict[str, Tensor | SmallWeight] = {}
    sparse = [(entry.values.name, dense(entry)) for entry in graph.sparse_initializer]
    plain = []
    for proto in graph.initializer:
        element_type(proto.data_type, f"the initializer {proto.name!r}")
        try:
            plain.append((proto.name, onnx.numpy_helper.to_array(proto)))
        except (ValueError, TypeError) as problem:
            raise FormatError("an initializer of the model is damaged",
                              given=f"{proto.name!r} of shape {tuple(proto.dims)}: {problem}",
                              expected="as many bytes as its shape and type need",
                              fix="get the file again; bytes with external data are opened by their path") from None
    for name, array in plain + sparse:
        tensor = to_tensor(array, device, stored=True)
        if trainable and tensor.dtype.name.startswith(("float", "bfloat")):
            tensor = tensor.realize().requires_grad_()
        values[name] = SmallWeight(array, tensor) if array.size <= HOST_ELEMENTS else tensor
    return values


def dense(sparse: Any) -> np.ndarray[Any, Any]:
    """Return the array of a SparseTensorProto, whose indices are flat or have one row per value."""
    onnx = onnx_package()
    values, indices = onnx.numpy_helper.to_array(sparse.values), onnx.numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), array.shape)
    array.reshape(-1)[flat] = values
    return array


def graph_without_weights(proto: Any) -> Any:
    """Return the model's graph without its initializers: they are tensors by now, so their bytes need not be kept."""
    graph = onnx_package().GraphProto()
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    return graph


def described(value: Any) -> OnnxValue:
    """Describe an input or output from its ValueInfoProto."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise DTypeError(f"{value.name!r} of the model is no tensor", given=str(kind), expected="tensor_type",
                         fix="export the model with tensors as inputs and outputs")
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)
    return OnnxValue(value.name, shape if tensor.HasField("shape") else None,
                     element_type(tensor.elem_type, f"{value.name!r} of the model"))


def shown(value: OnnxValue) -> str:
    """An input for messages: `x (batch, 3) float32`."""
    shape = "of any shape" if value.shape is None else f"({', '.join(str(s or '?') for s in value.shape)})"
    return f"{value.name} {shape} {value.dtype.name}"


def as_input(given: Any, info: OnnxValue, device: str | None) -> Tensor | np.ndarray[Any, Any]:
    """Return an input as a tensor; or, if it has few integers, as an array, which is then known on the host."""
    if not isinstance(given, (Tensor, np.ndarray, np.generic)):
        given = converted(given, info)
    is_tensor = isinstance(given, Tensor)
    found = given.dtype if is_tensor else to_tensor(np.zeros((0,), given.dtype)).dtype
    if found is not info.dtype:
        fix = f"x.cast({info.dtype})" if is_tensor else f"x.astype({info.dtype.name!r})"
        raise DTypeError(f"the input {info.name!r} has another type", given=found.name, expected=shown(info), fix=fix)
    if is_tensor:
        return given
    array = np.asarray(given)
    small = array.dtype.kind in "biu" and array.size <= HOST_ELEMENTS
    return array if small else Tensor(array, device=device)


def converted(given: Any, info: OnnxValue) -> Tensor | np.ndarray[Any, Any]:
    """Convert Python numbers to an input's type, if it can hold them."""
    name = info.dtype.name
    by_tensor = name.startswith(("bfloat", "fp8"))                  # types that NumPy lacks
    try:
        numbers = np.asarray(given)
        array = numbers.astype("float32" if by_tensor else name)
        fits = numbers.dtype.kind in "biuf" and (array.dtype.kind == "f" or bool((array == numbers).all()))
    except (ValueError, TypeError):                                  # text; lists of different lengths
        fits = False
    if not fits:
        raise DTypeError(f"the input {info.name!r} has another type", given=repr(given)[:60], expected=shown(info),
                         fix="give a Tensor, an array, or numbers of that type")
    return Tensor(array).cast(info.dtype) if by_tensor else array


def check_shape(value: Any, info: OnnxValue, sizes: dict[str, int]) -> None:
    """Compare an input's shape with the model's; `sizes` are those that names stand for so far."""
    if info.shape is None:
        return
    shape = tuple(value.shape)
    fits = len(shape) == len(info.shape)
    for size, wanted in zip(shape, info.shape) if fits else ():
        fits &= size == wanted if isinstance(wanted, int) else wanted is None or sizes.setdefault(wanted, size) == size
    if not fits:
        meaning = ", ".join(f"{name} = {size}" for name, size in sizes.items() if name in info.shape)
        raise ShapeError(f"the input {info.name!r} has another shape", given=str(shape),
                         expected=shown(info) + f" with {meaning}" * bool(meaning), fix="reshape or pad the input")


def functions_of(proto: Any) -> dict[tuple[str, str], Any]:
    """The functions of a model by domain and name."""
    return {(function.domain, function.name): function for function in proto.functions}


def nodes_of(proto: Any) -> Iterator[Any]:
    """All nodes of a model, in its subgraphs and functions too."""
    waiting = [proto.graph.node, *[function.node for function in proto.functions]]
    while waiting:
        for node in waiting.pop():
            yield node
            for attribute in node.attribute:
                waiting += [attribute.g.node, *[graph.node for graph in attribute.graphs]]


def operators_of(proto: Any) -> Counter[tuple[str, str]]:
    """Return how often a model uses each operator: (domain, name) -> count."""
    return Counter((node.domain or "ai.onnx", node.op_type) for node in nodes_of(proto))


def parameters_of(proto: Any) -> tuple[int, int, int]:
    """Return how many initializers and constants a model has, with how many elements, in how many bytes."""
    constants = [attribute.t for node in nodes_of(proto) if node.op_type == "Constant"
                 for attribute in node.attribute if attribute.name == "value"]
    tensors = [*proto.graph.initializer, *constants]
    sizes = [(math.prod(t.dims), element_type(t.data_type, t.name).itemsize) for t in tensors]
    return len(sizes), sum(n for n, _ in sizes), sum(n * size for n, size in sizes)
