"""Run the nodes of a graph in their order. In: a GraphProto or FunctionProto, values by name. Out: the outputs' values.

A value is a Tensor, a NumPy array that is known on the host, a `SmallWeight` that is both, or a list (a sequence).
**One rule keeps shape arithmetic out of kernels: a node all of whose inputs are known on the host is computed there**,
by the package onnx's own reference in NumPy, unless its result has more than `HOST_ELEMENTS` elements. `Shape` and
`Size` are always known; so are few integers that the caller gives as numbers or arrays. All other nodes are tensor
operations.

Functions of the model are graphs that a node runs. So are operators that the standard itself defines by others, where
the table has none.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from glassgrad import Tensor
from glassgrad.base.errors import GlassgradError, JitError
from glassgrad.onnx.operators import ONNX_NUMBERS, MissingOperatorError, Operator, find, onnx_package, to_tensor

HOST_ELEMENTS = 64
Array = np.ndarray[Any, Any]
STANDARD = ("", "ai.onnx")


class NodeError(GlassgradError, ValueError):
    """A node of a model that cannot be computed from its input values."""


class SmallWeight(NamedTuple):
    """An initializer with few elements: its values as in the file, and the tensor."""
    array: Array
    tensor: Tensor


Value = Tensor | Array | SmallWeight | list[Any] | None
Values = MutableMapping[str, Value]


def known(value: Value) -> Array | None:
    """Return a value's elements if they are known on the host and are not being trained."""
    if isinstance(value, SmallWeight):
        return None if value.tensor.requires_grad else value.array
    return value if isinstance(value, np.ndarray) else None


def on_host(value: Any) -> Any:
    """Return a value as an array; a tensor that has to be computed is read."""
    return value.array if isinstance(value, SmallWeight) else value.numpy() if isinstance(value, Tensor) else value


class Library(NamedTuple):
    """What the graphs of a model share."""
    functions: Mapping[tuple[str, str], Any]        # FunctionProtos of the model, by domain and name
    device: str | None

    def tensor(self, value: Any) -> Any:
        """A value as a tensor."""
        if isinstance(value, SmallWeight):
            return value.tensor
        return to_tensor(value, self.device) if isinstance(value, np.ndarray) else value


class OnnxNode:
    """A node and how it is computed: an operator of the table, a function's graph, or neither (it is missing)."""

    def __init__(self, proto: Any, opsets: Mapping[str, int], library: Library, bound: Mapping[str, Any]):
        self.proto, self.library, self.opsets = with_bound(proto, bound), library, opsets
        self.domain = "" if proto.domain in STANDARD else proto.domain
        self.name, self.kind = proto.name, proto.op_type
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.opset = opsets.get(self.domain) or (onnx_package().defs.onnx_opset_version() if not self.domain else 1)
        self.given = {attribute.name: attribute for attribute in self.proto.attribute}
        self.attributes = {name: decoded(onnx_package().helper.get_attribute_value(attribute), opsets, library, bound)
                           for name, attribute in self.given.items()}
        self.function = self._function()
        self.operator: Operator | None = find(self.domain, self.kind, self.opset) if self.function is None else None
        self.schema: Any = self._schema() if self.function is None and self.operator is None else None
        if self.schema is not None and self.schema.has_function:
            self.function = Graph(self.schema.function_body, opsets, library, self._with_defaults())
        self._by_types: dict[tuple[Any, ...], Graph] = {}          # bodies that depend on the types of the inputs
        self._reference: Any = None

    def __str__(self) -> str:
        return f"{self.domain or 'ai.onnx'}.{self.kind}" + f" '{self.name}'" * bool(self.name)

    def _function(self) -> Graph | None:
        """Return the graph of the model's own function that this node calls, if it calls one."""
        proto = self.library.functions.get((self.domain, self.kind))
        if proto is None:
            return None
        defaults = {attribute.name: attribute for attribute in proto.attribute_proto}
        return Graph(proto, self.opsets, self.library, {**defaults, **self.given})

    def _schema(self) -> Any:
        onnx = onnx_package()
        try:
            schema = onnx.defs.get_schema(self.kind, self.opset, self.domain)
        except onnx.defs.SchemaError:
            return None
        return schema if schema.has_function or schema.has_context_dependent_function else None

    def _with_defaults(self) -> dict[str, Any]:
        """Return the attributes, with the standard's defaults for those that are left out."""
        defaults = {name: attribute.default_value for name, attribute in self.schema.attributes.items()
                    if attribute.default_value.name}
        return {**defaults, **self.given}

    # -- missing operators ---------------------------------------------------------------------------------------------
    def missing(self) -> Iterator[tuple[str, str, int, str]]:
        """Yield (domain, operator, opset, name) of each operator or attribute that is not supported, of the node and
        inside it."""
        row = self.domain or "ai.onnx", self.kind, self.opset, self.name
        if self.function is not None:
            yield from self.function.missing()
        elif self.operator is None:
            if self.schema is None:
                yield row
            return
        else:
            for unknown in sorted(set(self.attributes) - self.operator.attributes - {"consumed_inputs"}):
                yield row[0], f"{self.kind} with {unknown}", *row[2:]
        for value in self.attributes.values():
            if isinstance(value, Graph):
                yield from value.missing()

    # -- computing -----------------------------------------------------------------------------------------------------
    def run(self, values: Values) -> None:
        """Compute the node, and put its outputs among the values."""
        inputs = [values[name] if name else None for name in self.inputs]
        try:
            results = self._on_host(inputs) or self._compute(inputs, values)
        except (NodeError, JitError):
            raise
        except (GlassgradError, ArithmeticError, IndexError, KeyError, TypeError, ValueError) as problem:
            what = problem.advice if isinstance(problem, GlassgradError) else f"{type(problem).__name__}: {problem}"
            shapes = ", ".join(f"{name} {shown(value)}" for name, value in zip(self.inputs, inputs) if name)
            raise NodeError(f"the node {self} cannot be computed", given=shapes or "no inputs",
                            expected=f"inputs that the operator takes; it says:\n{what}",
                            fix="check the model's inputs; onnx.checker.check_model checks the file") from problem
        for name, result in zip(self.outputs, results):
            if name:
                values[name] = np.asarray(result) if isinstance(result, np.generic) else result

    @property
    def graphs(self) -> list[Graph]:
        """The graphs among its attributes, which can read the values around the node."""
        return [value for value in self.attributes.values() if isinstance(value, Graph)]

    @property
    def repeatable(self) -> bool:
        """Whether equal inputs give equal results."""
        if self.function is not None:
            return all(node.repeatable for node in self.function.nodes)
        return self.operator is not None and self.operator.repeatable and not self.graphs

    def is_constant(self, values: Values) -> bool:
        """Return whether its results depend only on these values, so that they may be computed once."""
        if not self.repeatable or any(name and name not in values for name in self.inputs):
            return False
        given = [values[name] for name in self.inputs if name]
        tensors = [value.tensor if isinstance(value, SmallWeight) else value for value in given]
        return not any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)

    def reads(self) -> set[str]:
        """The names that it and its graphs read."""
        return {*self.inputs, *[name for graph in self.graphs for name in graph.reads()]}

    def _on_host(self, inputs: Sequence[Value]) -> list[Value] | None:
        """Return the results of the reference in NumPy, if all inputs are known and the results are small."""
        if self.operator is None or not self.operator.repeatable or -1 in self.operator.host or not self.inputs:
            return None
        arrays = [known(value) for value in inputs]
        if any(array is None and value is not None for array, value in zip(arrays, inputs)):
            return None
        if self._reference is None:
            onnx = onnx_package()
            names = dict.fromkeys(name for name in self.inputs if name)
            graph = onnx.helper.make_graph(
                [self.proto], "node", [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names],
                [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in self.outputs if name])
            opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
            try:
                self._reference = onnx.reference.ReferenceEvaluator(
                    onnx.helper.make_model(graph, opset_imports=opsets))
            except (NotImplementedError, RuntimeError):      # the reference lacks the operator: compute with tensors
                self._reference = False
        if not self._reference:
            return None
        results = self._reference.run(None, {name: a for name, a in zip(self.inputs, arrays) if name})
        if any(not isinstance(result, (np.ndarray, np.generic)) or result.size > HOST_ELEMENTS for result in results):
            return None
        found = iter(results)
        return [np.asarray(next(found)) if name else None for name in self.outputs]

    def _compute(self, inputs: Sequence[Value], values: Values) -> Sequence[Value]:
        if self.function is not None or self.operator is None:
            graph = self.function or self._expanded(inputs)
            return graph.run(dict(zip(graph.inputs, [*inputs, *[None] * (len(graph.inputs) - len(inputs))])))
        operator = self.operator
        if -1 not in operator.host:
            inputs = [on_host(value) if number in operator.host else self.library.tensor(value)
                      for number, value in enumerate(inputs)]
        attributes = {name: value for name, value in self.attributes.items() if name in operator.attributes}
        if operator.takes_node:
            attributes["node"] = NodeCall(self, values)
        results = operator.function(*inputs, **attributes)
        return results if isinstance(results, (tuple, Results)) else (results,)

    def _expanded(self, inputs: Sequence[Value]) -> Graph:
        """Return the standard's definition of the operator for inputs of these types."""
        onnx = onnx_package()
        types = tuple(type_of(value) for value in inputs)
        if types not in self._by_types:
            protos = [onnx.helper.make_tensor_type_proto(*kind).SerializeToString() if kind else b"" for kind in types]
            text = self.schema.get_context_dependent_function(self.proto.SerializeToString(), protos)
            body = onnx.FunctionProto.FromString(text)
            graph = Graph(body, self.opsets, self.library, self._with_defaults())
            graph.refuse_missing()
            self._by_types[types] = graph
        return self._by_types[types]


class NodeCall(NamedTuple):
    """A node that is being computed, for operators that need more of it than its inputs and attributes."""
    node: OnnxNode
    values: Values

    @property
    def opset(self) -> int:
        return self.node.opset

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs; "" for one that is not wanted."""
        return self.node.outputs

    @property
    def device(self) -> str | None:
        return self.node.library.device

    def tensor(self, value: Any) -> Any:
        """A value as a tensor."""
        return self.node.library.tensor(value)

    def run(self, graph: Graph, inputs: Sequence[Value] = ()) -> list[Value]:
        """Run a graph among the attributes, which can read the values around the node."""
        return graph.run(ChainMap(dict(zip(graph.inputs, inputs)), self.values))


class Results(list):
    """Outputs of an operator whose single result may be a list."""


class Graph:
    """The nodes of a graph, a subgraph or a function, in their order."""

    def __init__(self, proto: Any, opsets: Mapping[str, int], library: Library, bound: Mapping[str, Any]):
        if hasattr(proto, "opset_import") and proto.opset_import:                   # a function has its own
            opsets = {**opsets, **opset_table(proto.opset_import)}
        names = [[getattr(value, "name", value) for value in values] for values in (proto.input, proto.output)]
        self.inputs, self.outputs = names
        self.constants: dict[str, Value] = {}
        for initializer in getattr(proto, "initializer", ()):
            self.constants[initializer.name] = onnx_package().numpy_helper.to_array(initializer)
        self.nodes = [OnnxNode(node, opsets, library, bound) for node in proto.node]

    def missing(self) -> Iterator[tuple[str, str, int, str]]:
        """Yield (domain, operator, opset, node) of everything that is not supported."""
        for node in self.nodes:
            yield from node.missing()

    def refuse_missing(self) -> None:
        """Raise an error that names every operator that is not supported."""
        rows = summary(self.missing())
        if rows:
            raise MissingOperatorError(
                f"the model needs {len(rows)} operators that are not here", given="\n".join(rows),
                expected="operators of the table (docs/guide/onnx.md)",
                fix="enter them with @glassgrad.onnx.operator, or export the model for another opset")

    def reads(self) -> set[str]:
        """The names that its nodes and outputs read."""
        return {*self.outputs, *[name for node in self.nodes for name in node.reads()]}

    def undefined(self, around: set[str]) -> Iterator[str]:
        """Return the names that are read before anything has made them."""
        made = {"", *around, *self.inputs, *self.constants}
        for node in self.nodes:
            yield from [name for name in node.inputs if name not in made]
            for graph in node.graphs:
                yield from graph.undefined(made)
            made.update(node.outputs)
        yield from [name for name in self.outputs if name not in made]

    def fold(self, around: Values, device: str | None) -> list[Tensor]:
        """Compute the nodes that depend on constants alone, once; return the resulting tensors, which are not computed
        yet."""
        values = ChainMap(self.constants, around)
        later, tensors = [], []
        for node in self.nodes:
            if node.is_constant(values):
                node.run(values)
            else:
                later.append(node)
        self.nodes = later
        used = self.reads()
        for name, value in list(self.constants.items()):
            if name not in used:
                del self.constants[name]
            elif isinstance(value, np.ndarray) and value.size > HOST_ELEMENTS:
                self.constants[name] = to_tensor(value, device)
        for node in later:
            for graph in node.graphs:
                tensors += graph.fold(values, device)
            if node.function is not None:
                tensors += node.function.fold({}, device)
        return [*tensors, *[value for value in self.constants.values() if isinstance(value, Tensor)]]

    def run(self, values: Values) -> list[Value]:
        """Compute the outputs; `values` holds the inputs, and receives everything that is computed."""
        for name, value in self.constants.items():
            values.setdefault(name, value)
        for node in self.nodes:
            node.run(values)
        return [values.get(name) for name in self.outputs]


def summary(missing: Iterable[tuple[str, str, int, str]]) -> list[str]:
    """Return a line for each operator that is missing.

    >>> summary([("ai.onnx", "Warp", 9, "a"), ("ai.onnx", "Warp", 9, "b")])
    ["Warp of ai.onnx 9: 2 nodes, the first is 'a'"]
    """
    found: dict[tuple[str, str, int], list[str]] = {}
    for domain, kind, opset, name in missing:
        found.setdefault((domain, kind, opset), []).append(name)
    return [f"{kind} of {domain} {opset}: {len(names)} node{'s' * (len(names) > 1)}, the first is {names[0]!r}"
            for (domain, kind, opset), names in sorted(found.items())]


def opset_table(imports: Iterable[Any]) -> dict[str, int]:
    """Return the version of each domain of operators."""
    return {"" if entry.domain in STANDARD else entry.domain: entry.version for entry in imports}


def decoded(value: Any, opsets: Mapping[str, int], library: Library, bound: Mapping[str, Any]) -> Any:
    """Decode an attribute's value: text, numbers, arrays, and graphs that can be run."""
    onnx = onnx_package()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, onnx.GraphProto):
        return Graph(value, opsets, library, bound)
    if isinstance(value, (list, tuple)) or type(value).__name__.startswith("Repeated"):
        return [decoded(item, opsets, library, bound) for item in value]
    return value


def with_bound(node: Any, bound: Mapping[str, Any]) -> Any:
    """Return a node of a function with its attributes resolved: they may refer to those of the node that calls the
    function, `bound`."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    onnx = onnx_package()
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in bound:
            copy.attribute.append(bound[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    return copy


def type_of(value: Value) -> tuple[int, tuple[int, ...]] | None:
    """Return ONNX's number of a value's element type, and its shape."""
    if value is None or isinstance(value, list):
        return None
    if isinstance(value, SmallWeight):
        value = value.tensor
    if isinstance(value, np.ndarray):
        return onnx_package().helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    return ONNX_NUMBERS[value.dtype], tuple(value.shape)


def shown(value: Value) -> str:
    """Describe a value's shape and type, for messages."""
    if value is None or isinstance(value, list):
        return f"a sequence of {len(value)}" if value is not None else "left out"
    value = value.tensor if isinstance(value, SmallWeight) else value
    dtype = value.dtype.name if hasattr(value.dtype, "name") else value.dtype
    return f"{tuple(value.shape)} {dtype}"
