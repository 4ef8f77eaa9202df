"""Every operator against the package onnx's own cases, which have a model, inputs and outputs each.

A test is a file of `onnx.backend.test.case.node`, most of which are about one operator. Importing it makes its cases.
Inputs are given as tensors, so that operators compute with tensors wherever they can. What is refused is listed, with
its reason.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import warnings
from typing import Any

import numpy as np
import pytest

from glassgrad import DTypeError
from glassgrad.onnx import MissingOperatorError, NodeError, OnnxModel
from glassgrad.onnx.operators import TABLE, to_tensor

pytest.importorskip("onnx.reference", reason="the package onnx is not installed")
onnx = importlib.import_module("onnx")
case_folder = importlib.import_module("onnx.backend.test.case.node")
PREFIX = f"{case_folder.__name__}."
FILES = sorted(info.name.removeprefix(PREFIX) for info in pkgutil.walk_packages(case_folder.__path__, PREFIX)
               if not info.ispkg and "._" not in info.name)

LATEST = 28                 # opset; a later package may have cases of later ones
TYPES = "element types that tensors do not have: 2- and 4-bit numbers, 8-bit exponents, strings"
SEQUENCES = "inputs and outputs that are sequences or optional values"
ABSENT = "operators of training, of images' files, of texts and of decision trees"
REFUSED: dict[str, tuple[Any, str]] = {          # reason -> (error, names of cases)
    TYPES: (DTypeError, r"u?int[24]($|_)|U?INT[24]|FLOAT4|float4|E8M0|e8m0|string|STRING|equal_.*string|strnormalizer|"
                        r"label_encoder|regex"),
    SEQUENCES: (DTypeError, r"test_sequence|identity_sequence|to_sequence|if_seq|loop\d+_seq|identity_opt|if_opt|"
                            r"optional_get_element_(optional|sequence)|optional_has_element_(tensor|optional|empty_optional)"),
    ABSENT: (MissingOperatorError, r"adagrad|adam|momentum|image_decoder|tfidfvectorizer|tree_ensemble"),
    "RoiAlign of the largest sample": (NodeError, r"roialign_mode_max"),
}
DRAWN = r"bernoulli|training_dropout"             # random numbers, which are others: types and shapes are compared


def is_refused(name: str) -> Any:
    """The error that a case is refused with, or None."""
    return next((error for error, names in REFUSED.values() if re.search(names, name)), None)


def array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def difference(case: Any) -> str:
    """What a case's outputs differ by, or ""."""
    model = OnnxModel(case.model)
    for inputs, outputs in case.data_sets:
        given = {value.name: to_tensor(array(x), stored=True) for value, x in zip(model.inputs, inputs)}
        for (name, tensor), wanted in zip(model(given).items(), map(array, outputs)):
            found = tensor.numpy()
            rough = re.search(r"bfloat|float8", wanted.dtype.name)           # NumPy's own types have none of these
            if not rough and found.dtype != wanted.dtype or found.shape != wanted.shape:
                return f"{name} is {found.dtype} {found.shape}, not {wanted.dtype} {wanted.shape}"
            close = 2e-2 if wanted.dtype.name == "bfloat16" else 3e-3 if wanted.dtype == np.float16 else case.rtol
            expected = wanted.astype(np.float32) if rough else wanted
            if not re.search(DRAWN, case.name) and not np.allclose(found, expected, close, 1e-6, equal_nan=True):
                return f"{name} differs: {found.ravel()[:6]}, not {expected.ravel()[:6]}"
    return ""


@functools.cache
def cases_of(file: str) -> list[Any]:
    """The cases that a file of the package makes when it is imported."""
    made = case_folder._NodeTestCases
    before = len(made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(PREFIX + file)
    return [case for case in made[before:] if all(entry.version <= LATEST for entry in case.model.opset_import)]


@pytest.mark.parametrize("file", FILES)
def test_cases_of_the_standard(file: str) -> None:
    problems = {}
    cases = cases_of(file)
    for case in cases:
        refused = is_refused(case.name)
        try:
            problem = difference(case)
            if refused:
                problem = problem or "it passes: take it off the list"
        except Exception as error:
            problem = "" if refused and isinstance(error, refused) else f"{type(error).__name__}: {error}"
        if problem:
            problems[case.name] = problem[:400]
    assert not problems, f"{len(problems)} of {len(cases)}:\n" + "\n".join(f"{k}: {v}" for k, v in problems.items())


def test_operators_of_the_standard_that_are_not_here() -> None:
    schemas = [schema for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated
               and schema.since_version <= LATEST]
    by_others = {schema.name for schema in schemas if schema.has_function or schema.has_context_dependent_function}
    here = {name for domain, name in TABLE if not domain} | by_others
    assert sorted({schema.name for schema in schemas} - here) == [
        "ImageDecoder", "MaxRoiPool", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
        "TfIdfVectorizer"]
