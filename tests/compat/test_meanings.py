"""What tinygrad means by a name where glassgrad means something else: scripts that import tinygrad get its meaning, and
the page of meanings has a row for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compat_script import run

ROOT = Path(__file__).resolve().parents[2]

MEANINGS = """
import numpy as np
from tinygrad import Tensor, dtypes, nn
x = Tensor([1.0, -0.5])
tanh = 0.5 * x.numpy() * (1 + np.tanh(np.sqrt(2 / np.pi) * (x.numpy() + 0.044715 * x.numpy() ** 3)))
np.testing.assert_allclose(x.gelu().numpy(), tanh, rtol=1e-6)
assert not np.allclose(x.gelu("none").numpy(), tanh, rtol=1e-6)
np.testing.assert_array_equal(nn.GELU()(x).numpy(), x.gelu("none").numpy())      # a layer that only PyTorch has
optimizer = nn.optim.LAMB([x])
x.sum().backward()
with Tensor.train():
    optimizer.step()
np.testing.assert_allclose([*optimizer.b1_t.tolist(), *optimizer.b2_t.tolist()], [0.9, 0.999], rtol=1e-6)
layer = nn.Linear(2, 2)
state = {"weight": Tensor.ones(2, 2, dtype=dtypes.float16), "bias": Tensor.zeros(2), "more": Tensor.ones(1)}
nn.state.load_state_dict(layer, state, verbose=False)
assert layer.weight.dtype == dtypes.float16 and layer.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
assert (-Tensor([True, False])).tolist() == [False, True]
small = Tensor([100, 3], dtype=dtypes.uint8)
assert (small + 300).tolist() == [144, 47] and Tensor([300, -1], dtype=dtypes.uint8).tolist() == [44, 255]
assert (Tensor([-5]) & 0xffffffff).tolist() == [-5]
assert (small @ small).dtype == dtypes.uint8 and (small @ small).item() == 10009 % 256
vector, slope = Tensor([3.0, 4.0]), np.array([0.6, 0.8])
with Tensor.train():
    muon = nn.optim.Muon([vector], lr=1.0, weight_decay=0.0)
    (vector * Tensor(slope.astype(np.float32))).sum().backward()
    muon.step()
size = 1.0
for _ in range(5):
    size = 3.4445 * size - 4.775 * size ** 3 + 2.0315 * size ** 5
np.testing.assert_allclose(vector.numpy(), [3.0, 4.0] - size * slope, rtol=1e-5)
print("as tinygrad means it")
"""


def test_a_script_that_imports_tinygrad_gets_what_tinygrad_means(tmp_path):
    assert "as tinygrad means it" in run(tmp_path, MEANINGS)


BOTH = """
import glassgrad, glassgrad.nn as ours
import glassgrad.compat
import tinygrad, tinygrad.nn as theirs
from tinygrad import dtypes
mine, other = glassgrad.Tensor, tinygrad.Tensor
assert mine is not other and issubclass(other, mine)
assert mine([1.0]).gelu().item() == other([1.0]).gelu("none").item() != other([1.0]).gelu().item()
small, little = mine([100, 3], dtype=dtypes.uint8), other([100, 3], dtype=dtypes.uint8)
assert (small @ small).item() == 10009 and (little @ little).item() == 10009 % 256
assert (little + 300).tolist() == [144, 47] and (300 + little).tolist() == [144, 47]
for mistake in (lambda: -mine([True]), lambda: small + 300, lambda: mine([300], dtype=dtypes.uint8)):
    try:
        mistake()
    except RuntimeError as problem:
        assert "no negative" in str(problem) or "does not fit into uint8" in str(problem)
    else:
        raise AssertionError("it passed")
# operations on either give its own class; on both, tinygrad's
x, y = mine([[1.0, 2.0]]), other([[3.0, 4.0]])
for result in (x + x, x @ x.T, x.cat(x), (x > 0).where(x, 0), ours.Linear(2, 3)(x), ours.Linear(2, 3).weight):
    assert type(result) is mine, result
for result in (y + 1, 1 + y, y @ y.T, y.sum(), y[0], y.clone(), y.exp().softmax(), theirs.Linear(2, 3)(y),
               x + y, y + x, x @ y.T, y @ x.T, x.cat(y), x.stack(y), (x > 0).where(x, y), x.maximum(y), x % y, x ** y,
               theirs.Linear(2, 3).weight, theirs.Linear(2, 3)(x), ours.Linear(2, 3)(y), y.grad or y):
    assert type(result) is other, result
for layer in (theirs.LSTMCell(2, 3), theirs.BatchNorm(2), theirs.Embedding(4, 2), theirs.LayerNorm(2)):
    assert all(type(t) is other for t in theirs.state.get_parameters(layer)), layer
both = ours.Linear(2, 2)
theirs.Sequential(both)                             # what it is given stays what it is
assert type(both.weight) is mine
assert type(theirs.TransformerEncoderLayer(4, 2).linear1) is theirs.Linear
# a state with another name, in another type
for nn, kind in ((ours, mine), (theirs, other)):
    model = {"a": kind([1.0])}
    try:
        nn.state.load_state_dict(model, {"a": kind([2.0], dtype=dtypes.float16), "b": kind([1.0])})
        assert nn is theirs and model["a"].dtype == dtypes.float16 and model["a"].item() == 2
    except ValueError as problem:
        assert nn is ours and "1 not in the model" in str(problem)
# a jit keeps the classes
for kind in (mine, other):
    @glassgrad.TinyJit
    def step(x): return (x.gelu() * 2).realize()
    results = [step(kind([1.0]).realize()) for _ in range(4)]
    assert all(type(r) is kind for r in results) and len({r.item() for r in results}) == 1, kind
    assert results[0].item() == (kind([1.0]).gelu() * 2).item()
print("each its own")
"""


def test_a_program_that_imports_both_gets_each_library_meanings_for_its_tensors(tmp_path):
    assert "each its own" in run(tmp_path, BOTH)


@pytest.mark.parametrize("kept", ["pickle.loads(pickle.dumps(x))", "copy.deepcopy(x)", "copy.copy(x)"])
def test_copies_keep_the_class(kept):
    import copy
    import pickle

    from glassgrad.compat.tinygrad.tinygrad_tensor import TinygradTensor
    made = eval(kept, {"copy": copy, "pickle": pickle, "x": TinygradTensor([1.0, 2.0])})
    assert type(made) is TinygradTensor and made.tolist() == [1.0, 2.0]


def test_the_core_does_not_import_the_adapters():
    for folder in ("base", "compiler", "engine", "runtime", "tensor", "nn", "jit"):
        for file in (ROOT / "glassgrad" / folder).rglob("*.py"):
            text = file.read_text()
            assert "glassgrad.compat" not in text and "glassgrad.torch" not in text, file


STEPS = """
from tinygrad import Tensor, nn
layer = nn.Linear(2, 1)
optim = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)
losses = []
for _ in range(3):
    optim.zero_grad()
    loss = layer(Tensor([[1.0, 2.0]])).square().mean()
    loss.backward()
    optim.step()
    losses.append(loss.item())
assert losses[0] > losses[1] > losses[2], losses
"""


def test_a_training_loop_without_a_mode_steps_and_says_once_what_is_not_trained(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STEPS)
    done = subprocess.run([sys.executable, "-m", "glassgrad.compat", str(script)], capture_output=True, text=True,
                          timeout=120, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "glassgrad: optimizer.step() outside training: dropout and batch norm are in evaluation mode; "
        "`with Tensor.train():` around the step, or `Tensor.training = True` before it, trains them"]


def _muon(Tensor, nn):
    vector = Tensor([3.0, 4.0])
    with Tensor.train():
        return nn.optim.Muon([vector]).param_groups[0]["adjust_lr_fn"]


def _loaded(Tensor, nn, **more):
    model = {"a": Tensor([1.0])}
    nn.state.load_state_dict(model, {"a": Tensor([2.0], dtype="float16"), **{k: Tensor([v]) for k, v in more.items()}})
    return model["a"].dtype.name


def _on_the_way(Tensor, nn):
    x = Tensor([1.0])
    y = x * 3
    (y * 2).sum().backward()
    return (y.grad, x.clone().grad) if y.grad is None else (y.grad.tolist(), x.clone().grad.tolist())


def _stepped(Tensor, nn):
    x = Tensor([1.0])
    optimizer = nn.optim.SGD([x], lr=0.5)
    x.sum().backward()
    optimizer.step()
    return x.tolist()


# each row of the page: what it does, with tinygrad's tensors and with glassgrad's; an error by its words
ROWS = {
    "`x.gelu()`": (lambda T, nn: round(T([1.0]).gelu().item(), 5), 0.84119, 0.84134),
    "`-x` of truth values": (lambda T, nn: (-T([True])).tolist(), [False], "truth values have no negative"),
    "`x + 300` of uint8, and `Tensor([300], dtype=dtypes.uint8)`": (
        lambda T, nn: ((T([1], dtype="uint8") + 300).tolist(), T([300], dtype="uint8").tolist()), ([45], [44]),
        "does not fit into uint8"),
    "`sum`, `prod`, `cumsum`, `cumprod` of integers and bools": (
        lambda T, nn: [T([1], dtype=k).sum().dtype.name for k in ("bool", "int32", "uint8")] + [
            getattr(T([1]), name)(0).dtype.name for name in ("prod", "cumsum", "cumprod")],
        ["int32", "int32", "uint32", "int32", "int32", "int32"], ["int64"] * 6),
    "`x @ y` of int8, uint8, int16 or uint16": (
        lambda T, nn: [(T([1], dtype=k) @ T([1], dtype=k)).dtype.name for k in ("int8", "uint8", "int16", "uint16")],
        ["int8", "uint8", "int16", "uint16"], ["int32", "uint32", "int32", "uint32"]),
    "`optimizer.step()` while `Tensor.training` is False": (_stepped, [0.5], [0.5]),
    "`nn.optim.Muon(parameters)`": (_muon, "unscaled", "Muon optimizes matrices"),
    "`load_state_dict(model, state)` of a state with more names": (
        lambda T, nn: _loaded(T, nn, b=1.0), "float16", "1 not in the model"),
    "`load_state_dict(model, state)` of a state of other types": (_loaded, "float16", "float32"),
    "`y.grad` of a tensor on the way to a loss, or of a clone": (_on_the_way, ([2.0], [6.0]), (None, None)),
}


@pytest.mark.parametrize("call", ROWS)
def test_a_row_of_the_page_means_what_it_says(call):
    import glassgrad
    import glassgrad.compat.tinygrad.nn as their_nn
    from glassgrad.compat.tinygrad.tinygrad_tensor import TinygradTensor
    does, theirs, ours = ROWS[call]
    assert does(TinygradTensor, their_nn) == theirs
    try:
        assert does(glassgrad.Tensor, glassgrad.nn) == ours
    except glassgrad.GlassgradError as refusal:
        assert str(ours) in str(refusal)


def test_the_page_has_a_row_for_every_meaning_and_no_other():
    section = (ROOT / "docs" / "from_tinygrad.md").read_text().partition("## What is meant differently")[2]
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(ROWS)


def test_where_both_libraries_agree_so_do_we(torch, rng):
    """What tinygrad's own tests expect, checked against PyTorch."""
    from glassgrad import Tensor, dtypes
    functional = torch.nn.functional
    pixels = rng.integers(0, 256, (1, 2, 13, 17), dtype=np.uint8)
    for size, aligned in (((5, 7), False), ((20, 9), False), ((13, 30), True)):
        there = functional.interpolate(torch.tensor(pixels), size=size, mode="bilinear", align_corners=aligned)
        np.testing.assert_array_equal(Tensor(pixels).interpolate(size, align_corners=aligned).numpy(), there.numpy())
    bright = np.where(pixels > 127, 255, 0).astype(np.uint8)             # bicubic overshoots, and stays a byte
    there = functional.interpolate(torch.tensor(bright), size=(20, 20), mode="bicubic").numpy().astype(int)
    assert np.abs(Tensor(bright).interpolate((20, 20), mode="bicubic").numpy() - there).max() <= 1
    square = rng.standard_normal((1, 1, 5, 5)).astype(np.float32)
    for mode in ("reflect", "replicate"):
        for amounts in ((-1, 2, 2, -1), (3, -3, 0, -3), (3, -5, 1, -5)):
            there = functional.pad(torch.tensor(square), amounts, mode=mode).numpy()
            np.testing.assert_array_equal(Tensor(square).pad(amounts, mode=mode).numpy(), there)
    x = Tensor([-1.0, 0.0, 1.0])
    assert x.maximum(0).sum().gradient(x)[0].tolist() == [0.0, 0.5, 1.0]
    assert x.minimum(0).sum().gradient(x)[0].tolist() == [1.0, 0.5, 0.0]
    assert x.relu().sum().gradient(x)[0].tolist() == [0.0, 0.0, 1.0]
    empty, full = Tensor.zeros(2, 0), Tensor.ones(2, 1)
    assert [g.shape for g in empty.cat(full, dim=1).sum().gradient(empty, full)] == [(2, 0), (2, 1)]
    ones = Tensor.ones(1, 1, 1, 1, dtype=dtypes.int32)
    assert Tensor.arange(16).reshape(1, 1, 4, 4).conv2d(ones, padding=-1).tolist() == [[[[5, 6], [9, 10]]]]
    for kind, mistake in ((NotImplementedError, lambda: x.pad((1, 1), mode="typo")), (IndexError, lambda: x[1.5]),
                          (IndexError, lambda: x[x]), (IndexError, lambda: x[[True, False]]),
                          (IndexError, lambda: x[..., ...]),
                          (AttributeError, lambda: x.sum(dtype="typo"))):
        with pytest.raises(kind):
            mistake()


def test_tensors_on_the_way_have_gradients_as_there():
    from glassgrad import Tensor
    from glassgrad.compat.tinygrad.tinygrad_tensor import TinygradTensor

    def gradients(Tensor):
        x, m = Tensor([[1.0, 2.0]], requires_grad=False), Tensor([[3.0, 4.0]], requires_grad=False)
        w = Tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True)
        untrained = x * m
        product = untrained @ w
        out = product.relu().sum()
        for _ in range(2):
            out.backward()
        copy = w.clone()
        return [None if t.grad is None else t.grad.tolist() for t in (x, untrained, product, w, copy)]

    assert gradients(Tensor) == [None, None, None, [[6.0, 6.0], [16.0, 16.0]], None]         # as in PyTorch
    assert gradients(TinygradTensor) == [None, None, [[2.0, 2.0]], [[6.0, 6.0], [16.0, 16.0]],
                                         [[6.0, 6.0], [16.0, 16.0]]]


def test_errors_are_of_the_types_that_tinygrad_has_too():
    from glassgrad import Tensor
    with pytest.raises(TypeError, match="a tensor without axes has no length"):
        len(Tensor(3))
    for use in (lambda: Tensor([3], dtype="typo"), lambda: Tensor([3]).cast("typo")):
        with pytest.raises(AttributeError, match="there is no such element type"):
            use()


def test_memory_of_a_tensor_as_bytes():
    from glassgrad import Tensor
    memory = Tensor([1, 2, 3], device="CPU").realize().uop.base.realized
    assert memory.size == 3 and memory.as_buffer().cast("i").tolist() == [1, 2, 3]
    copy, lent = memory.as_buffer(), memory.as_buffer(allow_zero_copy=True)
    lent[0] = 9
    assert copy[0] == 1 and memory.as_buffer()[0] == 9
