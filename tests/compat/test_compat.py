"""Scripts that say `import tinygrad` run on glassgrad. Each script here is written as a tinygrad user writes it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compat_script import run

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
    assert "glassgrad.compat has no 'tinygrad.nn.NoSuchLayer': docs/from_tinygrad.md says" in str(e)
try:
    import tinygrad.no_such_module
except ModuleNotFoundError as e:
    assert "glassgrad.compat" in str(e)
print("inside")
'''


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
    from glassgrad.compat.tinygrad.compiler_functions import ExecItem, create_schedule, lower_schedule, run_schedule
    from glassgrad.compiler.schedule.kernels import Item

    def lazy():
        return Tensor.rand(4, 4).softmax(0) @ Tensor.rand(4, 4)
    for compute in (run_schedule, lambda s: [item.run() for item in s],
                    lambda s: [e.run() for _, e in lower_schedule(s)],
                    lambda s: [ExecItem(item, []).run(wait=True) for item in s]):
        for y in (lazy(), lazy().T, lazy().reshape(16)):
            plan = y.schedule()
            assert len(plan) > 1 and all(isinstance(item, Item) for item in plan) and not y.uop.is_realized
            GlobalCounters.reset()
            compute(plan)
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
    from glassgrad.compat.tinygrad.compiler_functions import _to_np_dtype
    from glassgrad.compat.tinygrad.dtype_functions import _to_torch_dtype
    for kind in (dtypes.bfloat16, *dtypes.fp8s, dtypes.float16, dtypes.uint64):
        assert Tensor([1, 2]).cast(kind).numpy().dtype == _to_np_dtype(kind)
    found = [_to_torch_dtype(kind) for kind in (*dtypes.fp8s, dtypes.bfloat16)]
    assert found == [torch.uint8] * 4 + [torch.bfloat16]


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


def test_what_scripts_read_of_devices_types_and_optimizers():
    from glassgrad import Device, ShapeError, dtypes
    from glassgrad.compat.tinygrad.nn.optim import SGD
    from glassgrad.compat.tinygrad.tinygrad_tensor import TinygradTensor
    assert Device["CPU"].renderer.supported_dtypes() == set(dtypes.all)
    assert SGD([TinygradTensor([1.0])]).device == Device.DEFAULT
    x = TinygradTensor.arange(12).reshape(3, 4)
    assert x[[0, 2], [1]].tolist() == [1, 9]                   # one index broadcasts, as in NumPy
    with pytest.raises(ShapeError, match=r"lists of different lengths\n  given: +value\[0\] has 2 values"):
        _ = x[[[0, 1], [0]]]
    for name in ("fp8e4m3fnuz", "fp8e5m2fnuz"):
        assert getattr(dtypes, name) in dtypes.fp8s and dtypes.fields()[name] is getattr(dtypes, name)
        assert TinygradTensor([1.0, -0.0, 3.0]).cast(name).tolist() == [1.0, 0.0, 3.0]
    with pytest.raises(AttributeError, match="dtypes.* has no attribute 'float31'"):
        _ = dtypes.float31


def test_bits_of_eight_bit_floats():
    """Finite numbers saturate and infinity is the next code, which is NaN where there is no infinity."""
    from glassgrad import dtypes
    from glassgrad.compat.tinygrad.dtype_functions import (float_to_fp8, fp8_to_float, from_storage_scalar,
                                                           to_storage_scalar)
    numbers = (1.0, -1e9, float("inf"), -float("inf"), float("nan"), -0.0)
    for kind, codes in ((dtypes.fp8e4m3, (0x38, 0xFE, 0x7F, 0xFF, 0x7F, 0x80)),
                        (dtypes.fp8e5m2, (0x3C, 0xFB, 0x7C, 0xFC, 0x7E, 0x80)),
                        (dtypes.fp8e4m3fnuz, (0x40, 0xFF, 0x80, 0x80, 0x80, 0)),
                        (dtypes.fp8e5m2fnuz, (0x40, 0xFF, 0x80, 0x80, 0x80, 0))):
        assert tuple(float_to_fp8(x, kind) for x in numbers) == codes
        assert tuple(to_storage_scalar(x, kind) for x in numbers) == codes
        assert fp8_to_float(codes[0], kind) == from_storage_scalar(codes[0], kind) == 1.0
