"""`glassgrad onnx FILE`: say what an ONNX model contains, and whether it runs here. In: arguments. Out: text, a status.

Status 1: operators are missing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor
from glassgrad.base.errors import InputError
from glassgrad.base.packages import find_spec
from glassgrad.cli import parser_of
from glassgrad.onnx.graph import Graph, Library, opset_table, summary
from glassgrad.onnx.model import OnnxModel, described, functions_of, operators_of, parameters_of, read, shown

EXAMPLES = """examples:
  glassgrad onnx model.onnx                       inputs, outputs, operators, and which of them are missing here
  glassgrad onnx model.onnx --run                 run it with random inputs; beside onnxruntime, if that is installed
  glassgrad onnx model.onnx --run --size batch=8  with a size for a name among the inputs' shapes (otherwise 1)
"""


def main(arguments: Sequence[str]) -> int:
    """Print what a model has and what it lacks; with --run, how its results compare."""
    parser = parser_of("onnx", "Show what is in an ONNX model, and whether it runs here.", EXAMPLES)
    parser.add_argument("file", help="a path to an .onnx file")
    parser.add_argument("--run", action="store_true", help="run it with random inputs, and compare with onnxruntime")
    parser.add_argument("--size", metavar="NAME=NUMBER", action="append", default=[],
                        help="the size that a name among the inputs' shapes stands for")
    options = parser.parse_args(arguments)
    proto = read(options.file)
    missing = describe(proto)
    if missing:
        return 1
    return compare(options.file, dict(map(_size, options.size))) if options.run else 0


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdigit():
        raise InputError("--size wants a name and a number", given=text, expected="NAME=NUMBER", fix="--size batch=8")
    return name, int(number)


def describe(proto: Any) -> list[str]:
    """Print what a model contains; return a line for each operator that is missing."""
    weights = {initializer.name for initializer in proto.graph.initializer}
    opsets = opset_table(proto.opset_import)
    missing = summary(Graph(proto.graph, opsets, Library(functions_of(proto), None), {}).missing())
    tensors, count, size = parameters_of(proto)
    rows = {
        "inputs": [shown(described(value)) for value in proto.graph.input if value.name not in weights],
        "outputs": [shown(described(value)) for value in proto.graph.output],
        "opset": [f"{domain or 'ai.onnx'} {version}" for domain, version in opsets.items()],
        "parameters": [f"{count:,} in {tensors} initializers and constants, {size:,} bytes"],
        "operators": [f"{name} {count}" if domain == "ai.onnx" else f"{domain}.{name} {count}"
                      for (domain, name), count in sorted(operators_of(proto).items())],
        "missing": missing or ["none"]}
    for title, texts in rows.items():
        if title == "operators":
            texts = wrapped(texts)
        for number, text in enumerate(texts or ["none"]):
            print(f"{title if number == 0 else '':<11}{text}")
    return missing


def wrapped(words: Sequence[str], width: int = 100) -> list[str]:
    """Join words with commas, in lines of a width.

    >>> wrapped(["Add 1", "Conv 2", "Relu 3"], width=15)
    ['Add 1, Conv 2,', 'Relu 3']
    """
    lines = [""]
    for number, word in enumerate(words):
        text = word + "," * (number + 1 < len(words))
        if lines[-1] and len(lines[-1]) + len(text) + 1 > width:
            lines.append(text)
        else:
            lines[-1] = f"{lines[-1]} {text}".strip()
    return lines


def compare(path: str, sizes: dict[str, int]) -> int:
    """Run a model with random inputs; print its outputs, and how far onnxruntime's are from them."""
    model = OnnxModel(path)
    rng = np.random.default_rng(0)
    inputs = {value.name: random_input(rng, value, sizes) for value in model.inputs}
    results = {name: tensor.numpy() for name, tensor in model(inputs).items()}
    given = {name: Tensor(array) if array.dtype.kind == "f" else array for name, array in inputs.items()}
    milliseconds = timed(lambda: [tensor.realize() for tensor in model(given).values()])
    print(f"{'run':<11}{milliseconds:.1f} ms, without a jit")
    references: list[Any] = [None] * len(results)
    if find_spec("onnxruntime") is None:
        print(f"{'':<11}onnxruntime is not installed: nothing to compare with (pip install onnxruntime)")
    else:
        import onnxruntime
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        references = session.run(list(results), inputs)
        print(f"{'':<11}{timed(lambda: session.run(None, inputs)):.1f} ms by onnxruntime")
    for (name, result), reference in zip(results.items(), references):
        beside = ""
        if reference is not None and result.size:
            difference = np.abs(result.astype(np.float64) - np.asarray(reference).astype(np.float64)).max()
            beside = f", at most {difference:.2g} from onnxruntime's, whose largest is {np.abs(reference).max():.3g}"
        print(f"{'':<11}{name} {result.shape} {result.dtype}{beside}")
    return 0


def random_input(rng: np.random.Generator, value: Any, sizes: dict[str, int]) -> Any:
    """Return normally distributed numbers, or 0 and 1 for an input of integers."""
    shape = [size if isinstance(size, int) else sizes.get(str(size), 1) for size in value.shape or ()]
    if value.dtype.name.startswith("float"):
        return rng.standard_normal(shape).astype(value.dtype.name)
    return rng.integers(0, 2, shape).astype(value.dtype.name)


def timed(call: Any, times: int = 5) -> float:
    """Return the median time of a few calls, in milliseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - started))
    return float(np.median(taken))
