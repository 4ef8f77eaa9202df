"""Graphs as functions, schedules, and the rest of tinygrad's names; writing through views; types by groups."""

from __future__ import annotations

import gc
import gzip
import http.server
import threading

import numpy as np
import pytest

from glassgrad import Device, DeviceError, GlobalCounters, InputError, ShapeError, Tensor, TinyJit, Variable, dtypes
from glassgrad.compiler.graph.ops import Ops
from glassgrad.compiler.graph.uop import UOp


# -- functions -------------------------------------------------------------------------------------------------
def test_a_graph_with_placeholders_is_a_function():
    a, b = Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])
    product = a.as_param(0).matmul(b.as_param(1)).exp()
    np.testing.assert_allclose(a.call(b, fxn=product).numpy(), np.exp([[11.0]]), rtol=1e-6)
    np.testing.assert_allclose((a * 0).call(b, fxn=product).numpy(), [[1.0]])
    assert a.callify(b) is a and a.kernelize() is a and a.fuse() is a


def test_a_call_has_the_functions_gradient_or_its_own():
    a, b = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    body = a.as_param(0) * b.as_param(1)
    a.call(b, fxn=body).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([3.0, 4.0], [1.0, 2.0])
    a.grad = b.grad = None
    seen = []

    def backward(gradient, call):
        seen.append(len(call.src))
        return gradient * call.src[2] * 10.0, gradient * call.src[1]
    a.call(b, fxn=body, grad_fxn=backward).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist(), seen) == ([30.0, 40.0], [1.0, 2.0], [3])


def test_a_call_that_does_not_fit_says_so():
    a, b = Tensor([1.0, 2.0]), Tensor([[3.0]])
    with pytest.raises(ShapeError, match=r"as_param\(0\)"):
        b.call(fxn=a.as_param(0) + 1)
    with pytest.raises(InputError, match=r"as_param\(1\)"):
        a.call(fxn=a.as_param(0) + a.as_param(1))


# -- schedules -------------------------------------------------------------------------------------------------
def test_schedules_by_all_their_names():
    x = Tensor([1.0, 2.0]).realize()
    y = (x + 1).exp().sum()
    assert len(y.schedule()) == len(y.schedule_linear()) == len(y.schedule_linear().src) == 1
    n = Variable("n", 1, 10).bind(3)
    kernels, values = Tensor.ones(10).contiguous().realize()[:n].sum().linear_with_vars()
    assert (len(kernels), values) == (1, {"n": 3})
    assert (x + 1).schedule_with_vars()[1] == {}
    planned = y.schedule()
    planned.run()
    assert y.schedule() == [] and abs(y.item() - float(np.exp([2.0, 3.0]).sum())) < 1e-4


# -- making ----------------------------------------------------------------------------------------------------
def test_small_makers():
    assert Tensor.from_uop(Tensor([1, 2]).uop).tolist() == [1, 2]
    assert Tensor.invalids(2, 3, dtype=dtypes.int8).dtype is dtypes.int8
    assert Tensor.unique_const(2.5).item() == 2.5
    assert Tensor([-2.0]).leakyrelu(0.25).tolist() == [-0.5]
    assert Tensor([1.5]).llvm_bf16_cast("bfloat16").dtype is dtypes.bfloat16
    x, w = Tensor.rand(2, 4, 5, 5), Tensor.rand(3, 4, 3, 3)
    np.testing.assert_array_equal(x.image_conv2d(w, padding=1).numpy(), x.conv2d(w, padding=1).numpy())
    np.testing.assert_array_equal(x.image_dot(x.transpose(2, 3)).numpy(), x.dot(x.transpose(2, 3)).numpy())
    assert Tensor.no_grad is False


def threefry(x0, x1, k0, k1):
    """Salmon et al., 2011, in plain Python."""
    mask, keys = 0xFFFFFFFF, (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x0, x1 = (x0 + k0) & mask, (x1 + k1) & mask
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x0 = (x0 + x1) & mask
            x1 = (((x1 << turn) | (x1 >> (32 - turn))) & mask) ^ x0
        x0, x1 = (x0 + keys[(block + 1) % 3]) & mask, (x1 + keys[(block + 2) % 3] + block + 1) & mask
    return x0, x1


@pytest.mark.parametrize("num", [1, 2, 7, 20])
def test_random_bits(num):
    key, counter = (1337, 42), (5, 1)
    k = threefry(*counter, *key)
    half = (num + 1) // 2
    pairs = [threefry(i, i + half, *k) for i in range(half)]
    wanted = [p[0] for p in pairs] + [p[1] for p in pairs]
    found = Tensor.random_bits(Tensor(list(key), dtype=dtypes.uint32), Tensor(list(counter), dtype=dtypes.uint32), num)
    assert found.tolist() == wanted[:num] and found.dtype is dtypes.uint32
    assert Tensor.random_bits(found[:2], found[:2], 0).shape == (0,) if num > 1 else True


# -- elsewhere -------------------------------------------------------------------------------------------------
@pytest.fixture
def server():
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = {"/plain": b"abc", "/packed": gzip.compress(b"abcd")}.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *words):
            pass
    running = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_address[1]}"
    running.shutdown()
    running.server_close()


def test_from_url(server):
    assert Tensor.from_url(server + "/plain").tolist() == list(b"abc")
    assert bytes(Tensor.from_url(server + "/packed", gunzip=True).tolist()) == b"abcd"
    for url, options, words in ((server + "/none", {}, "answered 404"), ("abc", {}, "no scheme"),
                                (server + "/plain", {"gunzip": True}, "gzip"), ("http://127.0.0.1:9/", {}, "refused")):
        with pytest.raises(InputError, match=words) as caught:
            Tensor.from_url(url, **options)
        assert url in caught.value.given


def test_what_is_not_here_says_so():
    x = Tensor([0])
    for call, words in ((lambda: x.decode_hevc_frame(None, (2, 3), x), "video"), (lambda: x.fs_load(3), "TINYFS"),
                        (lambda: x.fs_store(), "TINYFS")):
        with pytest.raises(DeviceError, match=words) as caught:
            call()
        assert caught.value.given and caught.value.expected and caught.value.fix


# -- writing through views -------------------------------------------------------------------------------------
def test_a_part_writes_into_the_whole():
    torch = pytest.importorskip("torch")
    for view in (lambda x: x[1:3], lambda x: x[:, 2], lambda x: x[::2, ::-1], lambda x: x.permute(1, 0)[1:4, 2:],
                 lambda x: x.reshape(6, 4)[1:5], lambda x: x.reshape(-1), lambda x: x[1][2:5]):
        x = Tensor(np.arange(24.0, dtype=np.float32).reshape(4, 6)).realize()
        before = x * 1
        wanted = np.arange(24.0, dtype=np.float32).reshape(4, 6)
        part = view(x)
        places = view(Tensor(np.arange(24, dtype=np.int32).reshape(4, 6))).numpy()
        values = np.random.default_rng(1).normal(size=part.shape).astype(np.float32)
        wanted.reshape(-1)[places.reshape(-1)] = values.reshape(-1)
        part.assign(Tensor(values))
        np.testing.assert_array_equal(x.numpy(), wanted)
        np.testing.assert_array_equal(part.numpy(), values)
        np.testing.assert_array_equal(before.numpy(), np.arange(24.0).reshape(4, 6))
    t, x = torch.zeros(3, 4), Tensor.zeros(3, 4).contiguous().realize()
    t[1].add_(2)[2:].mul_(5), x[1].add_(2)
    x[1][2:].mul_(5)
    np.testing.assert_array_equal(x.numpy(), t.numpy())


def test_realizing_the_part_realizes_the_whole():
    cache = Tensor.zeros(8, 4).contiguous().realize()
    for i in range(3):
        cache[i].assign(Tensor.full((4,), float(i + 1))).realize()
        assert cache.uop.is_realized and cache.schedule() == []
    assert cache.sum(1).tolist() == [4.0, 8.0, 12.0, 0, 0, 0, 0, 0]


def test_a_cache_written_by_a_jitted_function():
    cache = Tensor.zeros(2, 300, 64).contiguous().realize()

    @TinyJit
    def step(row):
        cache[:, 5:6].assign(row).realize()
        return cache.sum().realize()
    assert [step((Tensor.ones(2, 1, 64) * k).contiguous().realize()).item() for k in range(5)] == \
        [0.0, 128.0, 256.0, 384.0, 512.0]


def test_assigning_broadcasts_but_does_not_shrink():
    x = Tensor.zeros(3, 5)
    assert x.assign(Tensor([1.0, 2.0, 3.0, 4.0, 5.0])).sum().item() == 45.0
    for wrong in ((4,), (2, 3, 5), (5, 3)):
        with pytest.raises(ShapeError, match="broadcasts"):
            x.assign(Tensor.zeros(*wrong))


# -- nodes, devices, counters, types ---------------------------------------------------------------------------
def test_nodes_by_their_older_names():
    x = Tensor([1.0, 2.0])
    y = x + 1
    assert y.uop.srcs is y.uop.src and y.uop.realized is None and not y.uop.is_realized
    assert x.uop.realized is x.uop.base.arg and x.uop.buffer is x.uop.realized
    with pytest.raises(InputError, match="no memory yet"):
        print(y.uop.buffer)
    assert y.tolist() == [2.0, 3.0] and y.uop.op is Ops.ADD and y.uop.is_realized, "read: it keeps its history"
    assert y.reshape(2, 1).uop.realized is y.uop.realized
    assert isinstance(y.lazydata, UOp)


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a group of threads is told otherwise")
def test_a_device_tells_what_it_can():
    facts = Device[Device.DEFAULT].renderer
    assert facts.device == Device.DEFAULT and not facts.has_local and facts.name in ("llvm", "c", "python")
    assert Device["PYTHON"].renderer.language == "python"


def test_memory_in_use_is_counted():
    gc.collect()                # what earlier tests left behind is not freed in between
    before = GlobalCounters.mem_used
    kept = Tensor.ones(1000, 1000).contiguous().realize()
    assert GlobalCounters.mem_used - before >= 4_000_000
    del kept
    assert GlobalCounters.mem_used - before < 4_000_000


def test_types_in_groups():
    assert all(dtypes.is_float(d) for d in dtypes.floats) and len(dtypes.all) == len(set(dtypes.all)) == 17
    assert set(dtypes.ints) == {*dtypes.sints, *dtypes.uints} and dtypes.int32s == (dtypes.uint32, dtypes.int32)
    assert (dtypes.min(dtypes.int8), dtypes.max(dtypes.uint8), dtypes.is_bool(dtypes.bool)) == (-128, 255, True)
    assert dtypes.finfo(dtypes.bfloat16) == (8, 7) and dtypes.as_const(1, dtypes.bool) is True
    assert dtypes.fields()["half"] is dtypes.float16 and dtypes.float16.bitsize == 16
    with pytest.raises(Exception, match="exponent"):
        dtypes.finfo(dtypes.int32)


# -- the jit by tinygrad's names -------------------------------------------------------------------------------
def test_jit_options_and_cache():
    @TinyJit(prune=True)
    def f(x): return (x + 1).realize()
    assert f.jit_cache == [] and f.fxn.__name__ == "f"
    for i in range(4):
        assert f(Tensor([float(i)]).realize()).item() == i + 1
    assert len(f.jit_cache) == 1 and f.captured


# -- parameters by tinygrad's names ----------------------------------------------------------------------------
def test_calls_of_older_versions():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.sum(acc_dtype=dtypes.float64).dtype is dtypes.float64
    assert Tensor.full((2,), 3, buffer=False).tolist() == [3, 3]
    assert x.full_like(3, dtypes.int32, "CPU").dtype is dtypes.int32
    assert x.empty_like(dtypes.int8).dtype is dtypes.int8 and x.randn_like(dtypes.float64).dtype is dtypes.float64
    assert Tensor.const(dtypes.int32, 7).tolist() == 7 and Tensor.const(7, dtypes.int8).dtype is dtypes.int8
    assert Tensor.rand(2, contiguous=False).shape == (2,) and x.contiguous(1).shape == (2, 2)
    assert Tensor([7]).idiv(2, True).tolist() == [0] and Tensor([6]).xor(3, True).tolist() == [5]
    y = Tensor.uniform(1000, low=-3, high=3, dtype=dtypes.int32)
    assert y.dtype is dtypes.int32 and set(y.tolist()) == {-3, -2, -1, 0, 1, 2}
    (x * x).sum().backward(retain_graph=True, create_graph=True)
    assert x.grad.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    n = Variable("n", 1, 5).bind(4)
    np.testing.assert_allclose(Tensor([1.0, 2.0, 3.0, 4.0, 5.0])[:n].var().item(), np.var([1, 2, 3, 4], ddof=1))


# -- memory that others write to -------------------------------------------------------------------------------
@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_what_is_computed_from_shared_memory_is_not_remembered():
    array = np.ones(4, np.float32)
    x = Tensor.from_numpy(array)
    y, kept = x + 1, x.clone()
    part = x[1:3].clone()
    assert y.tolist() == [2.0] * 4
    array[:] = 9
    assert (x + 1).tolist() == [10.0] * 4 and kept.tolist() == [1.0] * 4 and part.tolist() == [1.0, 1.0]
    assert Tensor([1.0]).clone().tolist() == [1.0]


# -- small things that tinygrad's own tests ask for ------------------------------------------------------------
def test_a_value_that_does_not_change_with_its_input_has_a_gradient_of_zeros():
    x = Tensor([1.0, -2.0])
    assert x.sign().sum().gradient(x)[0].tolist() == x.floor().sum().gradient(x)[0].tolist() == [0.0, 0.0]
    with pytest.raises(RuntimeError, match="does not depend"):
        x.sum().gradient(Tensor([1.0]))


def test_tuples_inside_an_index_are_rows_of_places():
    array = np.arange(12).reshape(3, 4)
    x = Tensor(array)
    for key in (((0, 2), (1, 3)), ((0, 1),), (slice(None), (1, 1, 0)), ((2, 0), slice(1, 3))):
        np.testing.assert_array_equal(x[key].numpy(), array[key])
