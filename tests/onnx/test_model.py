"""OnnxModel: inputs, outputs, the jit, gradients, functions, subgraphs, files; and refusals, in whole messages."""

from __future__ import annotations

import builtins
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgrad import (DTypeError, FormatError, GlobalCounters, InputError, JitError, ShapeError, Tensor, TinyJit,
                       dtypes, nn)
from glassgrad.onnx import MissingOperatorError, NodeError, OnnxModel, operator
from glassgrad.onnx.operators import TABLE, MissingPackageError, to_tensor
from glassgrad.onnx.recurrent import activation
from glassgrad.onnx.sampling import roi_align

onnx = pytest.importorskip("onnx.reference", reason="the package onnx is not installed") and __import__("onnx")
HEAD = '<ir_version: 8, opset_import: ["": {opset}{more}]>\n'
LINEAR = """
net (float[batch, 3] x) => (float[batch, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {10, 20}>
{ product = MatMul (x, w)
  y = Add (product, b) }"""


def parsed(text: str, opset: int = 18, more: str = "") -> Any:
    return onnx.parser.parse_model(HEAD.format(opset=opset, more=more) + textwrap.dedent(text))


def saved_with_external_data(path: Path) -> Path:
    proto = parsed(LINEAR)
    for tensor in proto.graph.initializer:                      # only raw bytes can lie in another file
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def advice(problem: pytest.ExceptionInfo[Any]) -> str:
    return problem.value.advice


# -- calls -------------------------------------------------------------------------------------------------------------
def test_inputs_and_outputs_have_names_shapes_and_types() -> None:
    model = OnnxModel(parsed(LINEAR))
    assert model.inputs == [("x", ("batch", 3), dtypes.float32)]
    assert model.outputs == [("y", ("batch", 2), dtypes.float32)]
    assert repr(model) == "OnnxModel(x -> y)"
    assert {name: t.shape for name, t in model.weights.items()} == {"w": (3, 2), "b": (2,)}


@pytest.mark.parametrize("make", [Tensor, np.asarray, np.ndarray.tolist], ids=["tensor", "array", "list"])
def test_a_model_takes_tensors_arrays_and_lists_by_dictionary_or_keyword(make: Any) -> None:
    model, x = OnnxModel(parsed(LINEAR)), np.ones((2, 3), np.float32)
    for result in (model({"x": make(x)}), model(x=make(x))):
        assert list(result) == ["y"] and result["y"].tolist() == [[19.0, 32.0]] * 2


def test_the_result_is_lazy() -> None:
    model, x = OnnxModel(parsed(LINEAR)), Tensor.ones(1, 3).realize()
    before = GlobalCounters.kernel_count
    result = model(x=x)["y"]
    assert GlobalCounters.kernel_count == before
    result.realize()
    assert GlobalCounters.kernel_count > before


def test_batches_of_changing_size_give_what_numpy_gives(rng: np.random.Generator) -> None:
    model = OnnxModel(parsed(LINEAR))
    for size in (1, 2, 5, 7, 1):
        x = rng.standard_normal((size, 3)).astype(np.float32)
        wanted = x @ np.array([[1, 2], [3, 4], [5, 6]], np.float32) + np.array([10, 20], np.float32)
        np.testing.assert_allclose(model(x=x)["y"].numpy(), wanted, rtol=1e-5)


def test_a_model_runs_on_the_device_it_is_given() -> None:
    model = OnnxModel(parsed(LINEAR), device="PYTHON")
    result = model(x=np.ones((1, 3), np.float32))["y"]
    assert result.device == "PYTHON" and result.tolist() == [[19.0, 32.0]]


# -- the jit and shape arithmetic --------------------------------------------------------------------------------------
FLATTEN = """
net (float[n, a, b] x) => (float[n, c] y)
{ shape = Shape (x)
  zero = Constant <value_int: int = 0> ()
  first = Gather (shape, zero)
  axes = Constant <value_ints: ints = [0]> ()
  row = Unsqueeze (first, axes)
  rest = Constant <value_ints: ints = [-1]> ()
  target = Concat <axis = 0> (row, rest)
  flat = Reshape (x, target)
  width = Size (x)
  wide = Cast <to = 1> (width)
  root = Sqrt (wide)
  y = Div (flat, root) }"""


def test_shape_arithmetic_takes_no_kernel() -> None:
    model, x = OnnxModel(parsed(FLATTEN)), Tensor.ones(2, 3, 6).realize()
    before = GlobalCounters.kernel_count
    assert model(x=x)["y"].realize().shape == (2, 18)
    assert GlobalCounters.kernel_count == before + 1
    np.testing.assert_allclose(model(x=x)["y"].numpy(), np.full((2, 18), 1 / 6), rtol=1e-6)


def test_a_jitted_model_gives_the_same_and_is_replayed(rng: np.random.Generator) -> None:
    model = OnnxModel(parsed(FLATTEN))
    jitted = TinyJit(lambda x: model(x=x)["y"])
    for _ in range(5):
        x = rng.standard_normal((2, 3, 4)).astype(np.float32)
        np.testing.assert_allclose(jitted(Tensor(x)).numpy(), x.reshape(2, 12) / np.sqrt(np.float32(24)), rtol=1e-5)
    assert jitted.captured


def test_weights_that_are_assigned_or_replaced_are_read_by_a_replay() -> None:
    model = OnnxModel(parsed(LINEAR))
    jitted, x = TinyJit(lambda x: model(x=x)["y"]), Tensor.ones(1, 3)
    assert [jitted(x).tolist() for _ in range(3)][-1] == [[19.0, 32.0]]
    model.weights["b"].assign(Tensor([0.0, 0.0]))
    assert jitted(x).tolist() == [[9.0, 12.0]]
    model.weights["b"] = Tensor([1.0, 1.0])
    assert jitted(x).tolist() == model(x=x)["y"].tolist() == [[10.0, 13.0]]


# -- gradients ---------------------------------------------------------------------------------------------------------
def test_gradients_flow_into_trainable_weights_and_the_optimizer_trains_them() -> None:
    model = OnnxModel(parsed(LINEAR), trainable=True)
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    model(x=x)["y"].sum().backward()
    assert model.weights["w"].grad.tolist() == [[5.0, 5.0], [7.0, 7.0], [9.0, 9.0]]
    assert model.weights["b"].grad.tolist() == [2.0, 2.0]
    parameters = nn.state.get_parameters(model)
    optimizer = nn.optim.SGD(parameters, lr=0.1)
    assert {id(p) for p in optimizer.params} == {id(model.weights["w"]), id(model.weights["b"])}
    optimizer.step()
    assert model.weights["b"].tolist() == pytest.approx([9.8, 19.8])


def test_without_trainable_no_weight_has_a_gradient() -> None:
    model = OnnxModel(parsed(LINEAR))
    model(x=Tensor.ones(1, 3, requires_grad=True))["y"].sum().backward()
    assert model.weights["w"].grad is None or not model.weights["w"].requires_grad


def test_what_trainable_weights_decide_is_not_computed_once() -> None:
    text = """
    net (float[2] x) => (float[2] y) <float[2] w = {1, 2}>
    { twice = Add (w, w)
      y = Mul (x, twice) }"""
    model = OnnxModel(parsed(text), trainable=True)
    model(x=Tensor([3.0, 4.0]))["y"].sum().backward()
    assert model.weights["w"].grad.tolist() == [6.0, 8.0]
    assert len(OnnxModel(parsed(text)).graph.nodes) == 1 and len(model.graph.nodes) == 2


# -- functions and subgraphs -------------------------------------------------------------------------------------------
def test_a_function_of_the_model_is_expanded_with_its_attributes() -> None:
    text = """
    net (float[n] x) => (float[n] y) { y = local.scaled <by = 3.0> (x) }
    <domain: "local", opset_import: ["": 18]>
    scaled <by> (x) => (y)
    { factor = Constant <value_float: float = @by> ()
      y = Mul (x, factor) }"""
    assert OnnxModel(parsed(text, more=', "local": 1'))(x=Tensor([1.0, 2.0]))["y"].tolist() == [3.0, 6.0]


BRANCHES = """
net (float[2] x, bool flag) => (float[2] y)
{ y = If (flag) <then_branch = yes () => (float[2] up) { up = Add (x, x) },
                 else_branch = no () => (float[2] down) { down = Neg (x) }> }"""


def test_a_branch_sees_the_values_around_it_and_a_flag_given_as_a_number_works_under_a_jit() -> None:
    model, x = OnnxModel(parsed(BRANCHES)), Tensor([1.0, 2.0])
    assert model(x=x, flag=True)["y"].tolist() == [2.0, 4.0]
    assert model(x=x, flag=Tensor(False))["y"].tolist() == [-1.0, -2.0]
    jitted = TinyJit(lambda x, flag: model(x=x, flag=flag)["y"])
    assert [jitted(x, flag).tolist() for flag in (True, True, False, False, True)] == [
        [2.0, 4.0], [2.0, 4.0], [-1.0, -2.0], [-1.0, -2.0], [2.0, 4.0]]


def test_a_flag_that_is_computed_is_refused_under_a_jit() -> None:
    model = OnnxModel(parsed(BRANCHES))
    jitted = TinyJit(lambda x, flag: model(x=x, flag=flag)["y"])
    with pytest.raises(JitError):
        for _ in range(2):
            jitted(Tensor([1.0, 2.0]), Tensor(True))


def test_a_loop_of_a_given_number_of_iterations_runs_under_a_jit() -> None:
    text = """
    net (float[2] x, int64 count) => (float[2] y)
    { yes = Constant <value = bool {1}> ()
      y = Loop (count, yes, x) <body = step (int64 i, bool going, float[2] state) => (bool on, float[2] next)
          { on = Identity (going)
            next = Add (state, x) }> }"""
    model = OnnxModel(parsed(text))
    jitted = TinyJit(lambda x, count: model(x=x, count=count)["y"])
    assert [jitted(Tensor([1.0, 2.0]), count).tolist() for count in (3, 3, 3, 1)] == [[4.0, 8.0]] * 3 + [[2.0, 4.0]]


def test_opsets_differ_in_meaning() -> None:
    text = "net (float[1, 2, 2] x) => (float[1, 2, 2] y) {{ y = Softmax {axis} (x) }}"
    x = Tensor([[[0.0, 0.0], [0.0, 0.0]]])
    assert OnnxModel(parsed(text.format(axis=""), opset=11))(x=x)["y"].tolist() == [[[0.25, 0.25], [0.25, 0.25]]]
    assert OnnxModel(parsed(text.format(axis=""), opset=13))(x=x)["y"].tolist() == [[[0.5, 0.5], [0.5, 0.5]]]


# -- files -------------------------------------------------------------------------------------------------------------
def test_a_path_and_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parsed(LINEAR), path)
    for given in (path, str(path), path.read_bytes()):
        assert OnnxModel(given)(x=Tensor.ones(1, 3))["y"].tolist() == [[19.0, 32.0]]


def test_external_data_are_read_beside_the_model_and_missing_ones_are_named(tmp_path: Path) -> None:
    path = saved_with_external_data(tmp_path / "model.onnx")
    assert OnnxModel(path)(x=Tensor.ones(1, 3))["y"].tolist() == [[19.0, 32.0]]
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FormatError) as problem:
        OnnxModel(path)
    assert advice(problem) == f"""\
the model's weights lie in files that are not here
  given:    no weights.bin in {tmp_path}
  expected: the files of external data in the model's folder
  fix:      copy them there"""


def test_a_truncated_file_of_external_data_is_refused(tmp_path: Path) -> None:
    path = saved_with_external_data(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").write_bytes(b"abc")
    with pytest.raises(FormatError, match="external data cannot be read|is damaged"):
        OnnxModel(path)


def test_external_data_outside_of_the_models_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = saved_with_external_data(folder / "model.onnx")
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "../weights.bin"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(FormatError, match="the model's external data cannot be read\n  given: "):
        OnnxModel(path)


def test_a_damaged_initializer_is_refused() -> None:
    proto = parsed(LINEAR)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((3, 2), np.float32), "w"))
    proto.graph.initializer[0].raw_data = b"abc"
    with pytest.raises(FormatError, match=r"an initializer of the model is damaged\n  given:    'w' of shape \(3, 2\)"):
        OnnxModel(proto)


@pytest.mark.parametrize("damage, message", [
    (lambda b: b[:len(b) // 2], "this is not a whole ONNX model"), (lambda b: b"GIF89a" + b, "this is not "),
    (lambda b: b"", "this is not an ONNX model")], ids=["truncated", "another format", "empty"])
def test_a_file_that_is_no_model_is_refused(damage: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(damage(parsed(LINEAR).SerializeToString()))
    with pytest.raises(FormatError, match=message + r".*\n  given: .*model.onnx, \d+ bytes"):
        OnnxModel(path)


def test_what_tensors_and_operators_lack_is_refused() -> None:
    proto = parsed(LINEAR)
    proto.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    with pytest.raises(DTypeError, match="'x' of the model is no tensor\n  given:    sequence_type"):
        OnnxModel(proto)
    with pytest.raises(DTypeError, match="an array has an element type that tensors do not have"):
        to_tensor(np.array(["text"]))
    with pytest.raises(InputError, match="a recurrent operator has an unknown activation\n  given:    Odd"):
        activation("Odd", None, None)
    with pytest.raises(InputError, match="RoiAlign computes means only\n  given:    mode='max'"):
        roi_align(Tensor.zeros(1, 1, 4, 4), np.zeros((1, 4)), np.zeros(1), mode="max", node=None)


def test_a_path_to_nothing_is_refused() -> None:
    with pytest.raises(FormatError) as problem:
        OnnxModel("nowhere.onnx")
    assert advice(problem) == """\
the model file cannot be read
  given:    nowhere.onnx: No such file or directory
  expected: a path to an .onnx file
  fix:      check the path"""


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("onnx"):
            raise ImportError("No module named 'onnx'")
        return ordinary(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingPackageError) as problem:
        OnnxModel("model.onnx")
    assert isinstance(problem.value, ImportError) and advice(problem) == """\
ONNX files are read with the package onnx, which is not installed
  given:    No module named 'onnx'
  fix:      pip install 'glassgrad[onnx]'"""


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_all_missing_operators_are_reported_at_once() -> None:
    text = """
    net (float[2] x, bool flag) => (float[2] y)
    { a = Warp (x)
      b = Warp (a)
      c = other.Bend (b)
      y = If (flag) <then_branch = yes () => (float[2] up) { up = Fold (c) },
                     else_branch = no () => (float[2] down) { down = Relu <speed = 2.0> (c) }> }"""
    with pytest.raises(MissingOperatorError) as problem:
        OnnxModel(parsed(text, more=', "other": 3'))
    assert isinstance(problem.value, NotImplementedError) and advice(problem) == """\
the model needs 4 operators that are not here
  given:    Fold of ai.onnx 18: 1 node, the first is ''
            Relu with speed of ai.onnx 18: 1 node, the first is ''
            Warp of ai.onnx 18: 2 nodes, the first is ''
            Bend of other 3: 1 node, the first is ''
  expected: operators of the table (docs/guide/onnx.md)
  fix:      enter them with @glassgrad.onnx.operator, or export the model for another opset"""


def test_an_operator_of_ones_own_is_used_from_its_opset_on() -> None:
    @operator("Bend", domain="test", since=2)
    def bend(x: Tensor, *, by: float = 1.0) -> Tensor:
        return x * by

    text = "net (float[2] x) => (float[2] y) { y = test.Bend <by = 4.0> (x) }"
    try:
        assert OnnxModel(parsed(text, more=', "test": 2'))(x=Tensor([1.0, 2.0]))["y"].tolist() == [4.0, 8.0]
        with pytest.raises(MissingOperatorError, match="Bend of test 1: 1 node"):
            OnnxModel(parsed(text, more=', "test": 1'))
    finally:
        del TABLE["test", "Bend"]


def test_names_of_inputs_are_compared() -> None:
    model = OnnxModel(parsed(LINEAR))
    with pytest.raises(InputError) as problem:
        model()
    assert advice(problem) == """\
an input of the model is missing
  given:    no inputs
  expected: x (batch, 3) float32
  fix:      give x"""
    with pytest.raises(InputError) as problem:
        model(x=Tensor.ones(1, 3), z=1.0)
    assert advice(problem) == """\
the model has no such input
  given:    z
  expected: x (batch, 3) float32
  fix:      model.inputs has the names"""


def test_types_of_inputs_are_compared() -> None:
    model = OnnxModel(parsed(LINEAR))
    with pytest.raises(DTypeError) as problem:
        model(x=np.ones((1, 3)))
    assert advice(problem) == """\
the input 'x' has another type
  given:    float64
  expected: x (batch, 3) float32
  fix:      x.astype('float32')"""
    with pytest.raises(DTypeError, match=r"fix:      x.cast\(dtypes.float32\)"):
        model(x=Tensor.ones(1, 3, dtype="int32"))
    with pytest.raises(DTypeError, match="given:    'text'"):
        model(x="text")


def test_shapes_of_inputs_are_compared_and_equal_names_mean_equal_sizes() -> None:
    text = "net (float[n, 2] a, float[n] b) => (float[n, 2] y) { y = Add (a, a) }"
    model = OnnxModel(parsed(text))
    with pytest.raises(ShapeError) as problem:
        model(a=Tensor.ones(3, 2), b=Tensor.ones(4))
    assert advice(problem) == """\
the input 'b' has another shape
  given:    (4,)
  expected: b (n) float32 with n = 3
  fix:      reshape or pad the input"""
    with pytest.raises(ShapeError, match=r"given:    \(2,\)\n"):
        model(a=Tensor.ones(2), b=Tensor.ones(2))


def test_an_element_type_that_tensors_lack_is_refused_when_the_file_is_opened() -> None:
    with pytest.raises(DTypeError, match="'x' of the model has an element type that tensors do not have\n.*STRING"):
        OnnxModel(parsed("net (string[2] x) => (string[2] y) { y = Identity (x) }"))


def test_a_value_that_nothing_makes_is_refused_when_the_file_is_opened() -> None:
    with pytest.raises(FormatError) as problem:
        OnnxModel(parsed("net (float[n] x) => (float[n] y, float[n] z) { y = Add (x, absent) }"))
    assert advice(problem) == """\
the model reads values that no node makes
  given:    absent, z
  expected: inputs, initializers and outputs of earlier nodes
  fix:      export the model again; onnx.checker.check_model says more"""


def test_what_is_no_model_or_no_dictionary_is_refused() -> None:
    with pytest.raises(InputError) as problem:
        OnnxModel(None)
    assert advice(problem) == """\
this is no ONNX model
  given:    NoneType
  expected: a path, bytes or a ModelProto
  fix:      OnnxModel("model.onnx")"""
    with pytest.raises(InputError) as problem:
        OnnxModel(parsed(LINEAR))(Tensor.ones(1, 3))
    assert advice(problem) == """\
inputs of a model have names
  given:    Tensor
  expected: a dictionary or keywords
  fix:      model(x=...)"""


@pytest.mark.parametrize("kind, given", [("uint8", [300]), ("bool", [0.5]), ("int64", [1.5]), ("float", [[1], [2, 3]]),
                                         ("float", "text")])
def test_numbers_that_an_input_s_type_does_not_hold_are_refused(kind: str, given: Any) -> None:
    model = OnnxModel(parsed(f"net ({kind}[n] x) => ({kind}[n] y) {{ y = Identity (x) }}"))
    with pytest.raises(DTypeError, match="the input 'x' has another type\n  given:    "):
        model(x=given)


def test_numbers_become_what_an_input_is_also_in_types_that_numpy_lacks() -> None:
    model = OnnxModel(parsed("net (bfloat16[n] x) => (bfloat16[n] y) { y = Add (x, x) }"))
    result = model(x=[1, 2.5])["y"]
    assert result.dtype is dtypes.bfloat16 and result.tolist() == [2.0, 5.0]


def test_a_weight_that_was_folded_cannot_be_replaced_unnoticed() -> None:
    text = """
    net (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}>
    { twice = Add (w, w)
      sum = Add (x, v)
      y = Mul (sum, twice) }"""
    model = OnnxModel(parsed(text))
    assert list(model.weights) == ["v"] and model(x=Tensor([0.0, 0.0]))["y"].tolist() == [6.0, 16.0]
    with pytest.raises(InputError, match="the model has no such input"):
        model(x=Tensor([0.0, 0.0]), w=Tensor([1.0, 1.0]))
    assert list(OnnxModel(parsed(text), trainable=True).weights) == ["w", "v"]


def test_a_node_that_cannot_be_computed_is_named_with_its_inputs() -> None:
    text = "net (float[a, b] x, float[c, d] w) => (float[e, f] y) { y = MatMul (x, w) }"
    with pytest.raises(NodeError) as problem:
        OnnxModel(parsed(text))(x=Tensor.ones(2, 3), w=Tensor.ones(4, 5))
    assert advice(problem).startswith("""\
the node ai.onnx.MatMul cannot be computed
  given:    x (2, 3) float32, w (4, 5) float32
  expected: inputs that the operator takes; it says:
""")


def test_tinygrad_s_name_leads_here_and_gives_its_tensors() -> None:
    code = f"""
import glassgrad.compat, onnx
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner
model = OnnxRunner(onnx.parser.parse_model({(HEAD.format(opset=18, more="") + LINEAR)!r}))
result = model({{"x": Tensor.ones(1, 3)}})["y"]
print(type(result) is Tensor, result.tolist())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr[-500:]) == ("True [[19.0, 32.0]]\n", "")


def test_the_package_glassgrad_does_not_import_it() -> None:
    done = subprocess.run([sys.executable, "-c", "import glassgrad, sys; print('glassgrad.onnx' in sys.modules)"],
                          capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_graph_of_a_long_recurrence_is_as_small_as_that_of_a_short_one(rng: np.random.Generator) -> None:
    hidden, size = 4, 3
    w, r = (rng.standard_normal((1, 4 * hidden, n)).astype(np.float32) for n in (size, hidden))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=hidden)], "net",
        [onnx.helper.make_tensor_value_info("x", 1, ["time", "batch", size])],
        [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("y", "h")],
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(r, "r")])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    model, counts = OnnxModel(proto), []
    for time in (20, 60):
        x = rng.standard_normal((time, 2, size)).astype(np.float32)
        results = list(model(x=x).values())
        counts.append(len(results[0].uop.toposort()))
        found = [tensor.numpy() for tensor in results]
        for result, wanted in zip(found, onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    assert counts[0] == counts[1]
