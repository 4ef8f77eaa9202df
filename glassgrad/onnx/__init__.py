"""Run ONNX models as tensor operations. In: .onnx files. Out: `OnnxModel`, which is called with inputs and returns
tensors.

Nothing else of glassgrad imports this package; it is built on the public `Tensor` alone. The guide: docs/guide/onnx.md.
"""

from glassgrad.onnx import (control_flow, elementwise, neural, quantization, recurrent, reductions_and_products,
                            sampling, shaping)
from glassgrad.onnx.graph import NodeError
from glassgrad.onnx.model import OnnxModel, OnnxValue
from glassgrad.onnx.operators import MissingOperatorError, operator

__all__ = ["OnnxModel", "OnnxValue", "operator", "MissingOperatorError", "NodeError"]
