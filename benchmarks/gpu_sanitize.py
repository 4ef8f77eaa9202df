"""Run a small kernel of each recipe under NVIDIA's compute-sanitizer: stray addresses and races. Needs numpy.

    python -m benchmarks.gpu_sanitize                          all cases, memcheck and racecheck; a line for each
    python -m benchmarks.gpu_sanitize --only product --tools memcheck
    python -m benchmarks.gpu_sanitize --device CPU              without the tool: are the results right?

Each case is a process of its own under each tool, with a limit of time. Its result is compared with float64 of NumPy.
The exit status is the number of cases that failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

__all__ = ["CASES", "main"]

FAILED = 9                   # exit status of the tool where it found something
LIMIT = 100.0                # seconds for a case under a tool

Arrays = tuple[np.ndarray, ...]
Case = tuple[str, Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]     # type, ours, NumPy's, shapes


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return softmax(scores) @ v


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """3x3, of the same size."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))         # (batch, in, h, w, 3, 3)
    return np.einsum("bihwyx,oiyx->bohw", windows, w)


def depthwise(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """3x3, each channel by itself, of the same size."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.einsum("bchwyx,cyx->bchw", np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)), w[:, 0])


def scattered(x: np.ndarray) -> np.ndarray:
    out = np.zeros((50, x.shape[1]))
    np.add.at(out, np.arange(len(x)) * 7 % 50, x)
    return out


def rows_of(x: Any) -> Any:
    """Rows 0, 7, 14, .. of 50, as a tensor."""
    from glassgrad import Tensor
    return Tensor(np.arange(300, dtype=np.int32) * 7 % 50, device=x.device)


def added_rows(x: Any) -> Any:
    """Rows added where an index says, by the gradient of a gather."""
    from glassgrad import Tensor
    table = Tensor.zeros(50, x.shape[1], device=x.device).contiguous().realize()
    return (table[rows_of(x)] * x).sum().gradient(table)[0]


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def attention_gradients(q: Any, k: Any, v: Any) -> Any:
    """The gradients of causal attention's squares, one below the other."""
    gradients = causal_attention(q, k, v).cast("float32").square().sum().gradient(q, k, v)
    return gradients[0].cat(*gradients[1:])


def numpy_attention_gradients(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    weights = softmax(np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf))
    g = 2 * (weights @ v)
    inner = weights * (g @ v.swapaxes(-1, -2) - (g * g).sum(-1, keepdims=True) / 2) / q.shape[-1] ** 0.5
    return np.concatenate([inner @ k, inner.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g])


def masked_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return q.scaled_dot_product_attention(k, v, attn_mask=mask)


def image_gradient(x: Any, w: Any) -> Any:
    return x.conv2d(w, padding=1).sum().gradient(x)[0]


def weight_gradient(x: Any, w: Any) -> Any:
    return x.conv2d(w, padding=1).sum().gradient(w)[0]


def numpy_image_gradient(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    ones = np.ones((x.shape[0], w.shape[0], *x.shape[2:]))
    return convolved(ones, w.swapaxes(0, 1)[:, :, ::-1, ::-1])


def numpy_weight_gradient(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, x.shape[2:], (2, 3))    # (batch, in, 3, 3, h, w)
    return np.broadcast_to(windows.sum((0, 4, 5)), w.shape)


def product_of(x: Any, y: Any) -> Any:
    return x @ y


def product_across(x: Any, y: Any) -> Any:
    return x.T @ y.T


def transposed_convolution(stride: int, padding: int) -> Case:
    """A transposed convolution of a stride, whose remainders are columns of one product where that pays."""
    def summed_by_taps(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        height, width = ((n - 1) * stride + taps for n, taps in zip(x.shape[2:], w.shape[2:]))
        out = np.zeros((len(x), w.shape[1], height, width))
        for row, column in np.ndindex(*w.shape[2:]):
            taps = out[:, :, row::stride, column::stride][:, :, :x.shape[2], :x.shape[3]]
            taps += np.einsum("bihw,io->bohw", x, w[:, :, row, column])
        return out[:, :, padding:height - padding, padding:width - padding]
    return ("bfloat16", lambda x, w: x.conv_transpose2d(w, stride=stride, padding=padding), summed_by_taps,
            ((8, 64, 28, 28), (64, 64, 3, 3)))


LENGTH = 333


def first_rows(x: Any, axis: int = 0) -> Any:
    """The first 333 along an axis, in kernels that serve every length from 1 to 1024."""
    from glassgrad import Variable
    return x[(slice(None),) * axis + (slice(Variable("n", 1, 1024).bind(LENGTH)),)]


def attention_of_any_length(x: Any) -> Any:
    heads = first_rows(x, axis=1)
    return heads.scaled_dot_product_attention(heads, heads, is_causal=True)


def sum_over_length(x: Any, y: Any) -> Any:
    return first_rows(x).T @ first_rows(y)


HEADS = ((1, 2, 192, 64),) * 3
IMAGE, WEIGHTS = (2, 64, 16, 16), (64, 64, 3, 3)
LARGE = (2, 128, 62, 62), (128, 128, 3, 3)           # enough for Winograd's tiles, of which the last are not full
CASES: dict[str, Case] = {
    "elements": ("float32", lambda x, y: (x * 2 + y).relu(), lambda x, y: np.maximum(x * 2 + y, 0), ((60, 1001),) * 2),
    "elements bfloat16": ("bfloat16", lambda x: x.gelu(), lambda x: x * 0.5 * (1 + erf(x / 2 ** 0.5)), ((64, 1024),)),
    "transposed": ("float32", lambda x: (x.T + 1).contiguous(), lambda x: x.T + 1, ((300, 500),)),
    "sum of rows": ("float32", lambda x: x.sum(1), lambda x: x.sum(1), ((300, 1000),)),
    "sum of columns": ("float32", lambda x: x.sum(0), lambda x: x.sum(0), ((1000, 300),)),
    "sum of all": ("float32", lambda x: x.sum(), lambda x: x.sum(), ((1000, 1000),)),
    "sum of channels": ("float32", lambda x: x.sum((0, 2)), lambda x: x.sum((0, 2)), ((64, 32, 49),)),
    "maximum": ("float32", lambda x: x.max(1), lambda x: x.max(1), ((100, 3000),)),
    "softmax": ("float32", lambda x: x.softmax(1), softmax, ((100, 1000),)),
    "layernorm": ("float32", lambda x: x.layernorm(eps=0.0), lambda x: (x - x.mean(1, keepdims=True))
                  / x.std(1, keepdims=True), ((100, 768),)),
    "cumsum": ("float32", lambda x: x.cumsum(0), lambda x: x.cumsum(0), ((100_000,),)),
    "product float32": ("float32", lambda x, y: x @ y, lambda x, y: x @ y, ((200, 300), (300, 250))),
    "product float32, parts of K": ("float32", product_of, product_of, ((64, 784), (784, 128))),
    "product float32, 64 threads": ("float32", product_of, product_of, ((1500, 70), (70, 1500))),
    "product float32, 128 threads": ("float32", product_of, product_of, ((2050, 40), (40, 2050))),
    "product float32, 256 threads": ("float32", product_of, product_of, ((300, 500), (500, 3000))),
    "product tf32": ("tf32", product_of, product_of, ((300, 200), (200, 260))),
    "product tf32, both transposed": ("tf32", product_across, product_across, ((200, 300), (260, 200))),
    "product bfloat16": ("bfloat16", lambda x, y: x @ y, lambda x, y: x @ y, ((256, 256), (256, 256))),
    "product ragged": ("bfloat16", lambda x, y: x @ y, lambda x, y: x @ y, ((201, 301), (301, 251))),
    "product batched": ("bfloat16", lambda x, y: x @ y, lambda x, y: x @ y, ((4, 128, 64), (4, 64, 128))),
    "vector times matrix": ("bfloat16", lambda x, y: x @ y, lambda x, y: x @ y, ((1, 1024), (1024, 2048))),
    "product of few rows": ("bfloat16", product_of, product_of, ((3, 512), (512, 1000))),
    "product of few columns": ("bfloat16", product_of, product_of, ((512, 1024), (1024, 10))),
    "attention": ("bfloat16", lambda q, k, v: q.scaled_dot_product_attention(k, v), attention, HEADS),
    "attention of few rows": ("bfloat16", lambda q, k, v: q.scaled_dot_product_attention(k, v), attention,
                              ((1, 2, 3, 64), *((1, 2, 2000, 64),) * 2)),
    "attention causal": ("bfloat16", causal_attention, lambda q, k, v: attention(q, k, v, causal=True), HEADS),
    "attention, gradients": ("bfloat16", attention_gradients, numpy_attention_gradients, ((1, 2, 200, 64),) * 3),
    "attention masked": ("bfloat16", masked_attention, lambda q, k, v, m: softmax(
        q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + m) @ v, (*HEADS, (192, 192))),
    "convolution in tiles": ("float32", lambda x, w: x.conv2d(w, padding=1), convolved, LARGE),
    "convolution in tiles, image's gradient": ("float32", image_gradient, numpy_image_gradient, LARGE),
    "convolution in tiles, weights' gradient": ("float32", weight_gradient, numpy_weight_gradient, LARGE),
    "convolution": ("float16", lambda x, w: x.conv2d(w, padding=1), convolved, (IMAGE, WEIGHTS)),
    "convolution, image's gradient": ("float16", image_gradient, numpy_image_gradient, (IMAGE, WEIGHTS)),
    "convolution, weights' gradient": ("float16", weight_gradient, numpy_weight_gradient, (IMAGE, WEIGHTS)),
    "convolution float32": ("float32", lambda x, w: x.conv2d(w, padding=1), convolved, (IMAGE, WEIGHTS)),
    "convolution float32, image's gradient": ("float32", image_gradient, numpy_image_gradient, (IMAGE, WEIGHTS)),
    "convolution float32, weights' gradient": ("float32", weight_gradient, numpy_weight_gradient, (IMAGE, WEIGHTS)),
    "convolution of stride 2, image's gradient": transposed_convolution(stride=2, padding=1),
    "convolution of stride 3, image's gradient": transposed_convolution(stride=3, padding=0),
    "softmax of short rows": ("float32", lambda x: x.softmax(1), softmax, ((3001, 37),)),
    "softmax of short rows, bfloat16": ("bfloat16", lambda x: x.softmax(1), softmax, ((3001, 200),)),
    "sum of short rows": ("float32", lambda x: x.sum(1), lambda x: x.sum(1), ((5003, 20),)),
    "variance of short rows": ("float32", lambda x: x.var(1), lambda x: x.var(1, ddof=1), ((5003, 9),)),
    "softmax of few long rows": ("float32", lambda x: x.softmax(1), softmax, ((5, 50_257),)),
    "variance of few long rows": ("bfloat16", lambda x: x.var(1), lambda x: x.var(1, ddof=1), ((3, 30_003),)),
    "sum of all, ragged": ("float32", lambda x: x.sum(), lambda x: x.sum(), ((301, 7001),)),
    "cumsum of columns": ("float32", lambda x: x.cumsum(0), lambda x: x.cumsum(0), ((937, 163),)),
    "sort": ("float32", lambda x: x.sort(1)[0], lambda x: np.sort(x, 1), ((30, 1001),)),
    "product of any length": ("bfloat16", lambda x, y: first_rows(x) @ y, lambda x, y: x[:LENGTH] @ y,
                              ((1024, 320), (320, 256))),
    "product float32 of any length": ("float32", lambda x, y: first_rows(x) @ y, lambda x, y: x[:LENGTH] @ y,
                                      ((1024, 320), (320, 256))),
    "product summed over any length": ("bfloat16", sum_over_length, lambda x, y: x[:LENGTH].T @ y[:LENGTH],
                                       ((1024, 192), (1024, 256))),
    "attention of any length": ("bfloat16", attention_of_any_length,
                                lambda x: attention(*[x[:, :LENGTH]] * 3, causal=True), ((2, 1024, 64),)),
    "layernorm of any length": ("float32", lambda x: first_rows(x).layernorm(eps=0.0), lambda x: (
        (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True))[:LENGTH], ((1024, 96),)),
    "depthwise convolution": ("float16", lambda x, w: x.conv2d(w, padding=1, groups=64), depthwise,
                              ((8, 64, 56, 56), (64, 1, 3, 3))),
    "gather": ("float32", lambda x: x[rows_of(x)], lambda x: x[np.arange(300) * 7 % 50], ((50, 129),)),
    "scatter": ("float32", added_rows, scattered, ((300, 129),)),
    "random": ("float32", lambda x: x + 0 * type(x).rand(*x.shape, device=x.device), lambda x: x, ((100, 100),))}

TOLERANCES = {"float32": 1e-5, "tf32": 2e-3, "float16": 3e-3, "bfloat16": 2e-2}


def erf(x: np.ndarray) -> np.ndarray:
    from math import erf as of_one
    return np.vectorize(of_one)(x)


def run_case(name: str, device: str) -> float:
    """The case's largest error, relative to its largest result."""
    from glassgrad import Context, Tensor
    dtype, ours, numpys, shapes = CASES[name]
    random = np.random.default_rng(0)
    tensors = [Tensor(random.standard_normal(shape).astype(np.float32), device=device)
               .cast("float32" if dtype == "tf32" else dtype).realize() for shape in shapes]
    arrays = [t.cast("float32").numpy().astype(np.float64) for t in tensors]
    with Context(TF32=int(dtype == "tf32")):
        found = ours(*tensors).cast("float32").numpy()
    wanted = numpys(*arrays)
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    if not error < TOLERANCES[dtype]:
        raise AssertionError(f"{name}: error {error:.1e}, expected less than {TOLERANCES[dtype]:.0e}")
    return error


def under_tool(name: str, tool: str, device: str, folder: str) -> tuple[bool, str]:
    """Run a case in a process of its own; whether it passed, and what was said."""
    command = [sys.executable, "-m", "benchmarks.gpu_sanitize", "--case", name, "--device", device]
    if tool:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FAILED), "--print-limit", "3", *command]
    try:
        done = subprocess.run(command, timeout=LIMIT, capture_output=True, text=True,
                              env={**os.environ, "CACHE_DIR": folder})
    except subprocess.TimeoutExpired:
        return False, f"no end after {LIMIT:.0f} s"
    said = (done.stdout + done.stderr).splitlines()
    return done.returncode == 0, "" if done.returncode == 0 else "\n".join(said[-14:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; the number that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains one of these texts, split by commas")
    parser.add_argument("--tools", default="memcheck,racecheck", help="split by commas")
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--jobs", type=int, default=8, help="cases that run at once")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no case is begun")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.case:
        print(f"error {run_case(chosen.case, chosen.device):.1e}")
        return 0
    tools = chosen.tools.split(",") if chosen.device == "CUDA" else [""]
    if chosen.device == "CUDA" and shutil.which("compute-sanitizer") is None:
        parser.error("compute-sanitizer is not on the PATH: it comes with CUDA's toolkit")
    names = [name for name in CASES if any(part in name for part in chosen.only.split(","))]
    began = time.perf_counter()

    def one(pair: tuple[str, str]) -> bool:
        (name, tool), start = pair, time.perf_counter()
        passed, said = (False, "not begun") if start - began > chosen.limit else \
            under_tool(name, tool, chosen.device, folder)
        print(f"{name}, {tool or 'alone'}: {'clean' if passed else 'FAILED'}, {time.perf_counter() - start:.1f} s"
              + f"\n{said}" * bool(said), flush=True)
        return passed
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        failed = sum(not passed for passed in pool.map(one, [(name, tool) for name in names for tool in tools]))
    print(f"{failed} failed", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
