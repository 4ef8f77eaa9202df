"""Real models, against what their authors or onnxruntime say: digits, speech, and a quantized network for images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import data_folder

from glassgrad import Context, Tensor, TinyJit
from glassgrad.cli import main
from glassgrad.nn.datasets.files import mnist_arrays
from glassgrad.onnx import OnnxModel

onnx = pytest.importorskip("onnx.reference", reason="the package onnx is not installed") and __import__("onnx")


def path_of(name: str) -> Path:
    return data_folder("models/onnx") / name


def tensor_of(path: Path) -> Any:
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def check_digits(capsys: Any) -> None:
    """98.91% of the test set, one image at a time, which is what its input says; from 0 to 255."""
    data_folder("mnist")
    _, _, images, labels = mnist_arrays(allow_download=False)
    model = OnnxModel(path_of("mnist-8-cntk.onnx"))
    jitted = TinyJit(lambda x: model(Input3=x)["Plus214_Output_0"])
    found = [int(jitted(Tensor(image.reshape(1, 1, 28, 28).astype(np.float32))).numpy().argmax()) for image in images]
    assert jitted.captured
    assert int((np.array(found) == labels).sum()) == 9891


def check_speech(capsys: Any) -> None:
    """If and LSTM; the sampling rate is a number that decides a branch, also under a jit."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime, the reference of this model, is not installed")
    path = path_of("silero_vad.onnx")
    model, session = OnnxModel(path), runtime.InferenceSession(str(path))
    rng = np.random.default_rng(0)
    jitted = TinyJit(lambda x, state, rate: model(input=x, state=state, sr=rate))
    for rate, samples in ((16000, 512), (8000, 256)):
        state = np.zeros((2, 1, 128), np.float32)
        ours = Tensor(state)
        for _ in range(4):
            x = (rng.standard_normal((1, samples)) * 0.1).astype(np.float32)
            wanted, state = session.run(None, {"input": x, "state": state, "sr": np.array(rate)})
            result = jitted(Tensor(x), ours, rate)
            ours = result["stateN"]
            np.testing.assert_allclose(result["output"].numpy(), wanted, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(ours.numpy(), state, rtol=1e-3, atol=1e-4)


def check_quantized_images(capsys: Any) -> None:
    """The given output is of integer kernels; computed in float, as the nodes say, onnxruntime differs by 0.31 from it:
    two steps of the last quantization."""
    path = path_of("mobilenetv2-qdq-int8.onnx")
    given, wanted = [tensor_of(path.with_suffix(".testdata") / f"{name}_0.pb") for name in ("input", "output")]
    with Context(NOOPT=1):
        scores = OnnxModel(path)(image=given)["scores"].numpy()
    assert scores.argmax() == wanted.argmax() and np.abs(scores - wanted).max() < 0.31
    assert main(["onnx", str(path)]) == 0
    assert "Identity 300, QuantizeLinear 66, Relu 35\nmissing    none\n" in capsys.readouterr().out


@pytest.mark.parametrize("check", [check_digits, check_speech, check_quantized_images], ids=lambda f: f.__name__[6:])
def test_a_real_model(check: Any, capsys: Any) -> None:
    check(capsys)
