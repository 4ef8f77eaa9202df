"""`glassgrad onnx FILE`: what it prints, and its exit status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from glassgrad.cli import main

onnx = pytest.importorskip("onnx.reference", reason="the package onnx is not installed") and __import__("onnx")
MODEL = """
<ir_version: 8, opset_import: ["": 18, "my": 2]>
net (float[batch, 2] x, int64[batch] i) => (float[batch, 2] y)
<float[2, 2] w = {1, 2, 3, 4}>
{ a = MatMul (x, w)
  b = Relu (a)
  y = Relu (b) }"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def save(text: str) -> str:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return str(path)
    return save


def test_it_shows_what_a_model_has(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", file(MODEL)]) == 0
    assert capsys.readouterr().out == """\
inputs     x (batch, 2) float32
           i (batch) int64
outputs    y (batch, 2) float32
opset      ai.onnx 18
           my 2
parameters 4 in 1 initializers and constants, 16 bytes
operators  MatMul 1, Relu 2
missing    none
"""


def test_missing_operators_are_listed_and_the_status_is_1(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", file(MODEL.replace("Relu (a)", "Warp (a)").replace("Relu (b)", "my.Bend (b)"))]) == 1
    assert capsys.readouterr().out.endswith("""\
operators  MatMul 1, Warp 1, my.Bend 1
missing    Warp of ai.onnx 18: 1 node, the first is ''
           Bend of my 2: 1 node, the first is ''
""")


def test_run_computes_the_outputs_of_random_inputs(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", file(MODEL), "--run", "--size", "batch=3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nrun +[\d.]+ ms, without a jit\n", out)
    assert re.search(r"\n +y \(3, 2\) float32(, at most 0 from onnxruntime's|\n$|, at most [\d.e-]+ from)", out)


def test_a_wrong_size_is_explained(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", file(MODEL), "--run", "--size", "batch"]) == 1
    assert capsys.readouterr().err == """\
--size wants a name and a number
  given:    batch
  expected: NAME=NUMBER
  fix:      --size batch=8
"""
