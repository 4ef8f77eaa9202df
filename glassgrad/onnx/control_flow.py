"""Compute If, Loop, Scan and sequences, which are decided in Python. In: values as they come. Out: values of the graphs
they run.

A condition or a number of iterations must be known on the host. It is known if it comes from shapes, constants and
integers that the caller gave as arrays or numbers. Otherwise it is read from the device, which a jit refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor
from glassgrad.onnx.graph import Graph, NodeCall, Results, Value, on_host
from glassgrad.onnx.operators import ELEMENT_TYPES, operator

RAW = (-1,)                     # marks operators whose inputs are not made into tensors


def stacked(node: NodeCall, values: Sequence[Value], axis: int = 0) -> Tensor:
    """Stack the values of each iteration as one tensor."""
    return Tensor.stack(*[node.tensor(value) for value in values], dim=axis)


@operator("If", host=RAW)
def if_(condition: Value, *, then_branch: Graph, else_branch: Graph, node: NodeCall) -> Any:
    return Results(node.run(then_branch if bool(np.asarray(on_host(condition)).all()) else else_branch))


@operator("Loop", host=RAW)
def loop(most: Value, condition: Value, *carried: Value, body: Graph, node: NodeCall) -> Any:
    iterations = int(on_host(most).item()) if most is not None else None
    going = condition is None or bool(on_host(condition).item())
    state = list(carried)
    scanned: list[list[Value]] = [[] for _ in body.outputs[1 + len(carried):]]
    number = 0
    while going and (iterations is None or number < iterations):
        going_on, *results = node.run(body, [np.asarray(number), np.asarray(True), *state])
        state = results[:len(carried)]
        for collected, value in zip(scanned, results[len(carried):]):
            collected.append(value)
        going = bool(np.asarray(on_host(going_on)).all())
        number += 1
    return Results([*state, *[stacked(node, values) if values else Tensor.zeros(0) for values in scanned]])


@operator("Scan", host=RAW, since=9)
def scan(*inputs: Value, body: Graph, num_scan_inputs: int, scan_input_axes: Sequence[int] = (),
         scan_input_directions: Sequence[int] = (), scan_output_axes: Sequence[int] = (),
         scan_output_directions: Sequence[int] = (), node: NodeCall) -> Any:
    count = len(inputs) - num_scan_inputs
    state, scans = list(inputs[:count]), [node.tensor(value) for value in inputs[count:]]
    axes = scan_input_axes or [0] * len(scans)
    backward = scan_input_directions or [0] * len(scans)
    parts = [scan.unbind(axis)[::-1 if back else 1] for scan, axis, back in zip(scans, axes, backward)]
    collected: list[list[Value]] = [[] for _ in body.outputs[count:]]
    for items in zip(*parts):
        results = node.run(body, [*state, *items])
        state = results[:count]
        for values, value in zip(collected, results[count:]):
            values.append(value)
    out_axes = scan_output_axes or [0] * len(collected)
    out_backward = scan_output_directions or [0] * len(collected)
    outputs = [stacked(node, values[::-1 if back else 1], axis)
               for values, axis, back in zip(collected, out_axes, out_backward)]
    return Results([*state, *outputs])


@operator("Scan", host=RAW, since=8)
def scan_of_batches(lengths: Value, *inputs: Value, body: Graph, num_scan_inputs: int, directions: Sequence[int] = (),
                    node: NodeCall) -> Any:
    """Scan in opset 8: there is a batch axis before the scanned one, and lengths, which must all be that of the input
    here."""
    count = len(inputs) - num_scan_inputs
    rows = [scan(*[node.tensor(value)[batch] for value in inputs], body=body, num_scan_inputs=num_scan_inputs,
                 scan_input_directions=directions, node=node) for batch in range(node.tensor(inputs[count]).shape[0])]
    return Results([stacked(node, values) for values in zip(*rows)])


# -- sequences are lists -----------------------------------------------------------------------------------------------
@operator("SequenceEmpty", host=RAW)
def sequence_empty(*, dtype: int = 1) -> Any:
    return Results([[]])


@operator("SequenceConstruct", host=RAW)
def sequence_construct(*values: Value) -> Any:
    return Results([list(values)])


@operator("SequenceInsert", host=RAW)
def sequence_insert(sequence: Any, value: Value, position: Value = None) -> Any:
    where = len(sequence) if position is None else int(on_host(position))
    where += len(sequence) * (where < 0)
    return Results([[*sequence[:where], value, *sequence[where:]]])


@operator("SequenceErase", host=RAW)
def sequence_erase(sequence: Any, position: Value = None) -> Any:
    where = len(sequence) - 1 if position is None else int(on_host(position)) % len(sequence)
    return Results([[*sequence[:where], *sequence[where + 1:]]])


@operator("SequenceAt", host=RAW)
def sequence_at(sequence: Any, position: Value) -> Any:
    return sequence[int(on_host(position))]


@operator("SequenceLength", host=RAW)
def sequence_length(sequence: Any) -> Any:
    return np.asarray(len(sequence))


@operator("ConcatFromSequence", host=RAW)
def concat_from_sequence(sequence: Any, *, axis: int, new_axis: int = 0, node: NodeCall) -> Any:
    if new_axis:
        return stacked(node, sequence, axis)
    return Tensor.cat(*[node.tensor(value) for value in sequence], dim=axis)


@operator("SplitToSequence", host=RAW)
def split_to_sequence(value: Value, sizes: Value = None, *, axis: int = 0, keepdims: int = 1, node: NodeCall) -> Any:
    tensor = node.tensor(value)
    if sizes is None:
        parts = tensor.split(1, dim=axis)
        return Results([[part if keepdims else part.squeeze(axis) for part in parts]])
    wanted = on_host(sizes)
    return Results([list(tensor.split(int(wanted) if wanted.ndim == 0 else wanted.tolist(), dim=axis))])


@operator("Optional", host=RAW)
def optional(value: Value = None, *, type: Any = None) -> Any:              # noqa: A002  (the attribute's name)
    return Results([value])


@operator("OptionalGetElement", host=RAW)
def optional_get_element(value: Value) -> Any:
    return Results([value])


@operator("OptionalHasElement", host=RAW)
def optional_has_element(value: Value = None) -> Any:
    return np.asarray(value is not None)


@operator("Constant", host=RAW)
def constant(*, value: Any = None, value_float: float | None = None, value_floats: Sequence[float] | None = None,
             value_int: int | None = None, value_ints: Sequence[int] | None = None) -> Any:
    for given in (value_float, value_floats):
        if given is not None:
            return np.asarray(given, np.float32)
    for numbers in (value_int, value_ints):
        if numbers is not None:
            return np.asarray(numbers, np.int64)
    return value


@operator("Shape", host=RAW)
def shape(value: Any, *, start: int = 0, end: int | None = None, node: NodeCall) -> Any:
    return np.asarray(node.tensor(value).shape, np.int64)[start:end]


@operator("Size", host=RAW)
def size(value: Any, *, node: NodeCall) -> Any:
    return np.asarray(node.tensor(value).shape, np.int64).prod(dtype=np.int64).reshape(())


@operator("ConstantOfShape", host=(0,))
def constant_of_shape(sizes: Any, *, value: Any = None, node: NodeCall) -> Tensor:
    fill = np.zeros(1, np.float32) if value is None else value
    return node.tensor(fill).reshape([1] * len(sizes)).expand(*sizes.tolist()) if len(sizes) else \
        node.tensor(fill).reshape(())


@operator("Range", host=(0, 1, 2))
def range_(start: Any, limit: Any, delta: Any, *, node: NodeCall) -> Tensor:
    return Tensor.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype.name, device=node.device)


@operator("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0, node: NodeCall) -> Tensor:
    rows, columns = x.shape
    ones = Tensor.ones(rows, columns, dtype="int32", device=node.device)
    return (ones.tril(k) * ones.triu(k)).cast(x.dtype if dtype is None else ELEMENT_TYPES[dtype])
