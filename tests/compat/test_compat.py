"""Scripts that say `import tinygrad` run on glassgrad. Each script here is written as a tinygrad user writes it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

TRAIN = '''
from tinygrad import Tensor, TinyJit, nn, GlobalCounters, Device, dtypes
from tinygrad.helpers import getenv, colored, trange
import sys

class Model:
    def __init__(self):
        self.layers = [
            nn.Conv2d(1, 4, 3), Tensor.relu,
            nn.BatchNorm(4), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(4 * 3 * 3, 10)]
    def __call__(self, x): return x.sequential(self.layers)

Tensor.manual_seed(1)
X = Tensor.rand(64, 1, 8, 8)
Y = (X.reshape(64, 64)[:, :10] * 100).argmax(1)
model = Model()
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.02)

@TinyJit
@Tensor.train()
def train_step():
    opt.zero_grad()
    samples = Tensor.randint(getenv("BS", 32), high=X.shape[0])
    loss = model(X[samples]).sparse_categorical_crossentropy(Y[samples]).backward()
    opt.step()
    return loss

losses = []
for i in (t := trange(getenv("STEPS", 40))):
    GlobalCounters.reset()
    losses.append(train_step().item())
    t.set_description(f"loss: {losses[-1]:6.2f}")
assert losses[-1] < losses[0], losses
print("args", sys.argv[1:], colored("fine", None))
'''

LINEAR = '''
from tinygrad.tensor import Tensor
from tinygrad.nn.optim import SGD, Adam
from tinygrad.nn.state import get_parameters, get_state_dict
from tinygrad.helpers import Timing, prod, Context
import numpy as np

class TinyNet:
    def __init__(self):
        self.l1 = Tensor.scaled_uniform(4, 8)
        self.l2 = Tensor.scaled_uniform(8, 1)
    def forward(self, x): return x.dot(self.l1).relu().dot(self.l2)

net = TinyNet()
opt = SGD([net.l1, net.l2], lr=0.1)
Tensor.training = True
rng = np.random.default_rng(0)
with Timing("steps "):
    for i in range(150):
        x = rng.normal(size=(16, 4)).astype(np.float32)
        y = np.maximum(x[:, :1], 0) - 0.5 * x[:, 1:2]
        loss = (net.forward(Tensor(x)) - Tensor(y.astype(np.float32))).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
assert loss.numpy() < 0.3, loss.numpy()
assert sorted(get_state_dict(net)) == ["l1", "l2"] and len(get_parameters(net)) == 2
with Context(DEBUG=0, TRACK_MATCH_STATS=0):
    assert prod((2, 3)) == 6
print("done")
'''

INSIDE = '''
import tinygrad
from tinygrad import Tensor, dtypes, Device
from tinygrad.ops import UnaryOps, BinaryOps, ReduceOps, MovementOps
from tinygrad.lazy import LazyBuffer
from tinygrad.shape.shapetracker import ShapeTracker
from tinygrad.uop.ops import UOp, Ops
from tinygrad.dtype import DType
from tinygrad.device import Compiled, Allocator, Compiler
from tinygrad.renderer.cstyle import CStyleLanguage
from tinygrad.runtime.lib import RawBuffer
from tinygrad.engine.jit import TinyJit
from tinygrad.jit import TinyJit as Older
from tinygrad.nn.datasets import mnist
from tinygrad.nn import Linear
import tinygrad.nn.optim as optim

y = (Tensor([1.0, 2.0]) + 3).exp2().sum()
assert isinstance(y.lazydata, LazyBuffer) and isinstance(y.uop, UOp)
ops = [u.op for u in y.lazydata.toposort()]
assert BinaryOps.ADD in ops and UnaryOps.EXP2 in ops and ReduceOps.SUM in ops and Ops.ADD in ops
assert MovementOps.RESHAPE is Ops.RESHAPE and ReduceOps.MAX is Ops.AMAX
assert isinstance(Tensor([[1, 2]]).lazydata.st, ShapeTracker) and isinstance(dtypes.float32, DType)
assert y.lazydata.srcs == y.uop.src and y.lazydata.realized is None and y.realize().lazydata.realized is not None
assert TinyJit is Older and Device.DEFAULT == Device.canonicalize(None)
assert hasattr(optim, "AdamW") and tinygrad.Tensor is Tensor and tinygrad.nn.Linear is Linear
try:
    from tinygrad.nn import NoSuchLayer
except ImportError as e:
    assert "cannot import name" in str(e)
try:
    import tinygrad.no_such_module
except ModuleNotFoundError as e:
    assert "glassgrad.compat" in str(e)
print("inside")
'''


def run(tmp_path, text, *arguments, through_import=False):
    script = tmp_path / "script.py"
    script.write_text(("import glassgrad.compat\n" if through_import else "") + text)
    command = (
        [sys.executable, str(script)] if through_import else [sys.executable, "-m", "glassgrad.compat", str(script)]
    )
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow_on("PYTHON")
def test_training_with_jit(tmp_path):
    assert "args ['--fast', '3'] fine" in run(tmp_path, TRAIN, "--fast", "3")


def test_older_style_through_an_import(tmp_path):
    out = run(tmp_path, LINEAR, through_import=True)
    assert "done" in out and "steps " in out and " ms" in out


def test_names_inside(tmp_path):
    assert "inside" in run(tmp_path, INSIDE)


def test_module_form_and_usage(tmp_path):
    (tmp_path / "mine.py").write_text("from tinygrad import Tensor\nprint(Tensor([1]).tolist())\n")
    for arguments, status, text in (
        (["-m", "mine"], 0, "[1]"),
        ([], 2, "usage"),
        (["absent.py"], 2, "no script 'absent.py'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "glassgrad.compat", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == status and text in done.stdout + done.stderr


def test_hook_comes_and_goes():
    from glassgrad import Tensor
    from glassgrad.compat import install, uninstall
    try:
        install()
        import tinygrad
        assert issubclass(tinygrad.Tensor, Tensor) and "Tensor" in dir(tinygrad)
        with pytest.raises(AttributeError, match="has no counterpart"):
            tinygrad.no_such_thing  # noqa: B018
    finally:
        uninstall()
    assert "tinygrad" not in sys.modules


def test_the_context_of_old_texts_says_what_to_write_instead():
    from glassgrad import InputError, Tensor
    from glassgrad.compat import install, uninstall
    try:
        install()
        from tinygrad.tensor import Context
        with pytest.raises(InputError, match="does not record operations for backward"):
            Context([Tensor([1.0])], lambda g: g)
    finally:
        uninstall()


def test_every_name_of_the_table_leads_somewhere():
    from importlib import import_module

    from glassgrad.compat.import_hook import MODULES
    for sources, names in MODULES.values():
        for source in sources:
            import_module(source)
        for place in names.values():
            module, _, attribute = place.partition(":")
            assert not attribute or hasattr(import_module(module), attribute), place


def test_a_schedule_runs_as_a_whole_or_by_its_kernels():
    from glassgrad import GlobalCounters, Tensor
    from glassgrad.compat.tinygrad.older_names import ExecItem, create_schedule, lower_schedule, run_schedule
    from glassgrad.compiler.schedule.kernels import Item

    def lazy():
        return Tensor.rand(4, 4).softmax(0) @ Tensor.rand(4, 4)
    for run in (run_schedule, lambda s: [item.run() for item in s], lambda s: [e.run() for _, e in lower_schedule(s)],
                lambda s: [ExecItem(item, []).run(wait=True) for item in s]):
        for y in (lazy(), lazy().T, lazy().reshape(16)):
            plan = y.schedule()
            assert len(plan) > 1 and all(isinstance(item, Item) for item in plan) and not y.uop.is_realized
            GlobalCounters.reset()
            run(plan)
            assert y.uop.is_realized and y.schedule() == [] and GlobalCounters.kernel_count == len(plan)
            assert y.numpy().shape == y.shape and GlobalCounters.kernel_count == len(plan), "computed once"
    x = Tensor([1.0, 2.0]).realize()
    assert [item.bufs for item in (x + 1).schedule()] == [(x.uop.realized,)]
    y = lazy()
    run_schedule(create_schedule([y.lazydata]))
    assert y.lazydata.realized is not None


def test_a_web_server_answers_and_streams(capsys):
    import json
    import threading
    from urllib.request import urlopen

    from glassgrad.compat.tinygrad.web_server import HTTPRequestHandler, TCPServerWithReuse

    class Handler(HTTPRequestHandler):
        def do_GET(self):
            if self.path == "/stream":
                self.stream_json({"n": n} for n in range(2))
            else:
                self.send_data(json.dumps({"path": self.path}).encode(), status_code=201)

        def log_message(self, *words):
            pass

    with TCPServerWithReuse(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(2)])
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with urlopen(address + "/a", timeout=20) as answer:
            assert (answer.status, json.loads(answer.read())) == (201, {"path": "/a"})
        with urlopen(address + "/stream", timeout=20) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.read() == b'data: {"n": 0}\n\ndata: {"n": 1}\n\ndata: [DONE]\n\n'
        thread.join()
    assert capsys.readouterr().out == f"listening on {address}\n"


def test_numbers_words_and_memory(capsys):
    from glassgrad.compat.tinygrad import more_helpers as s
    assert s.data64(1 << 33) == (2, 0) == s.data64_le(1 << 33)[::-1] and s.i2u(16, -2) == 65534
    assert s.floordiv(-7, 2) == -4 and s.floormod(-7, 2) == 1 and s.getbits(0xF0, 4, 7) == 15
    assert s.size_to_str(3_500_000) == "3.34 MB" and s.time_to_str(2.5) == " 2500.00ms"
    kept = bytearray(b"abcdefgh")
    assert bytes(s.from_mv(memoryview(kept))) == bytes(kept) == bytes(s.to_mv(s.mv_address(memoryview(kept)), 8))
    assert s.flat_mv(memoryview(kept).cast("B", (2, 4))).shape == (8,) and next(s.count(3)) == 3
    assert s.perf_counter_us() <= s.perf_counter_us()
    assert s.is_numpy_ndarray(__import__("numpy").zeros(1)) and not s.is_numpy_ndarray([1])
    assert "\x1b[32m" in s.colorize_float(0.5) and "\x1b[31m" in s.colorize_float(2)
    s.stderr_log("so ")
    s.profile_marker("here")
    assert capsys.readouterr().err == "so "
    with s.disable_gc():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError):
        s.panic(KeyError())


def test_settings_and_small_functions(capsys):
    from glassgrad.compat.tinygrad import helpers as h
    with h.Context(DEBUG=3, JIT=2):
        assert h.DEBUG >= 3 and int(h.JIT) == 2 and h.DEBUG == 3 and not h.DEBUG < 2
    assert h.DEBUG == 0 and int(h.JIT) == 1
    assert (
        h.argfix((1, 2)) == (1, 2)
        and h.round_up(5, 4) == 8
        and h.ceildiv(5, 4) == 2
        and h.flatten([[1], [2]]) == [1, 2]
    )
    assert h.fully_flatten([[1, [2]]]) == [1, 2] and h.partition([1, 2, 3], lambda x: x > 1) == ([2, 3], [1])
    assert (
        h.strides_for_shape((2, 3)) == (3, 1)
        and h.colored("a", "red") == "\x1b[31ma\x1b[0m"
        and h.ansilen(h.colored("a", "RED")) == 1
    )
    assert list(h.tqdm([1, 2], disable=True)) == [1, 2]
    with h.Timing("x "):
        pass
    assert capsys.readouterr().out.startswith("x ")


def test_types_of_memory_in_numpy_and_torch():
    torch = pytest.importorskip("torch")
    from glassgrad import Tensor, dtypes
    from glassgrad.compat.tinygrad.dtype_functions import _to_torch_dtype
    from glassgrad.compat.tinygrad.older_names import _to_np_dtype
    for kind in (dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.float16, dtypes.uint64):
        assert Tensor([1, 2]).cast(kind).numpy().dtype == _to_np_dtype(kind)
    found = [_to_torch_dtype(kind) for kind in (*dtypes.fp8s, dtypes.bfloat16)]
    assert found == [torch.uint8, torch.uint8, torch.bfloat16]


def test_nodes_that_are_written_to():
    """`uop.after(uop.store(...))`, as the language models of tinygrad 0.13 and 0.14 keep their keys and values."""
    from glassgrad import Tensor, TinyJit, Variable
    from glassgrad.base.errors import ShapeError
    from glassgrad.compat import install, uninstall
    from glassgrad.compiler.graph.uop import UOp

    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    cache, state = Tensor.zeros(6, 4).contiguous().realize(), Tensor.zeros(4).contiguous().realize()
    place = Variable("start_pos", 0, 6)                 # one too many, as scripts write it
    install()
    try:
        @TinyJit
        def step(row, start):
            written = state.uop.store((state + row).uop)
            sums = Tensor(cache.uop.after(cache[start:start + 1].uop.store(row.reshape(1, 4).uop), written))
            return sums[:start + 1].sum(0).realize()

        for i, row in enumerate(rows):
            np.testing.assert_array_equal(step(Tensor(row), place.bind(i)).numpy(), rows[:i + 1].sum(0))
            np.testing.assert_array_equal(cache.numpy()[:i + 1], rows[:i + 1])
            np.testing.assert_array_equal(state.numpy(), rows[:i + 1].sum(0))
        assert step.captured
        loose = Tensor.zeros(2, 3).uop                  # nobody's: only what `after` gives has the value
        assert Tensor(loose.after(loose[:, 1:].store(Tensor.ones(2, 2).uop))).tolist() == [[0, 1, 1], [0, 1, 1]]
        with pytest.raises(ShapeError, match="cannot assign a value of another shape"):
            loose.after(loose[:, 1:].store(Tensor.ones(3, 2).uop))
    finally:
        uninstall()
    assert not hasattr(UOp, "after")


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
    memory = Tensor([1, 2, 3]).realize().uop.base.realized
    assert memory.size == 3 and memory.as_buffer().cast("i").tolist() == [1, 2, 3]
    copy, lent = memory.as_buffer(), memory.as_buffer(allow_zero_copy=True)
    lent[0] = 9
    assert copy[0] == 1 and memory.as_buffer()[0] == 9
