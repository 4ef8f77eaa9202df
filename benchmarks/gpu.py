"""Measure kernels on an NVIDIA GPU beside PyTorch, in one process. Needs only numpy and torch.

    python -m benchmarks.gpu                   all cases; a table, and JSON to the file that --json names
    python -m benchmarks.gpu --only product    cases whose name contains a text
    python -m benchmarks.gpu --quick           fewer rounds

Inputs are fresh Gaussian numbers (with constant inputs the GPU's clock is higher, and times look better than they are).
Results are compared with float64 on the device: the relative Frobenius error, beside PyTorch's own. Both libraries are
timed in turn, in another order each round. Launches are queued behind a kernel that sleeps, so that Python's time does
not count, and several sets of inputs are used in turn, so that they are not in the cache. `ratio` is the median of
(PyTorch's time / ours) within a round. Cases that end in "compiled" are compared with torch.compile.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

CACHE_BYTES = 120e6          # inputs beyond which nothing of the last launch is left in the cache
SLEEP_CYCLES = 4_000_000     # two milliseconds: launches are queued meanwhile


@dataclass(frozen=True)
class Case:
    """One expression: `ours` and `theirs` take tensors of these shapes. Where `ours` gives a tuple, its first result is
    compared."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    work: float = 0.0        # floating-point operations
    scales: tuple[float, ...] = ()
    compiled: bool = False   # whether PyTorch's side is compiled: torch.compile


def product(name: str, dtype: str, m: int, n: int, k: int, batch: int = 0, transposed: str = "") -> Case:
    """A product; `transposed` names the factors whose last two axes are exchanged: a, b, ab."""
    a, b = ((k, m) if "a" in transposed else (m, k)), ((n, k) if "b" in transposed else (k, n))
    if batch:
        a, b = (batch, *a), (batch, *b)

    def compute(x: Any, y: Any) -> Any:
        return (x.transpose(-1, -2) if "a" in transposed else x) @ (y.transpose(-1, -2) if "b" in transposed else y)
    return Case(name, (a, b), dtype, compute, compute, 2.0 * max(1, batch) * m * n * k)


def cases() -> list[Case]:
    import torch
    functional = torch.nn.functional
    out = [product(f"product {n} bfloat16", "bfloat16", n, n, n) for n in (512, 1024, 2048, 4096, 8192)]
    out += [product(f"product {n} float16", "float16", n, n, n) for n in (1024, 4096)]
    out += [product("product 3072 bfloat16", "bfloat16", 3072, 3072, 3072),
            product("product 4096 A transposed", "bfloat16", 4096, 4096, 4096, transposed="a"),
            product("product 4096 B transposed", "bfloat16", 4096, 4096, 4096, transposed="b"),
            product("product 4096 both transposed", "bfloat16", 4096, 4096, 4096, transposed="ab"),
            product("product 5000x3000x1111 ragged", "bfloat16", 5000, 3000, 1111),
            product("product 5000x3000x1112", "bfloat16", 5000, 3000, 1112),
            product("product 4097 ragged", "bfloat16", 4097, 4097, 4097),
            product("product 64 x 256", "bfloat16", 256, 256, 256, 64),
            product("product 16 x 1024", "bfloat16", 1024, 1024, 1024, 16),
            product("product 128 x 512x512x64", "bfloat16", 512, 512, 64, 128),
            product("product 128x4096x4096", "bfloat16", 128, 4096, 4096)]
    m, n, k = (random.randrange(300, 3000) for _ in range(3))
    out.append(product(f"product {m}x{n}x{k} by chance", "bfloat16", m, n, k))
    out.append(Case("linear, bias, gelu 4096", ((4096, 4096), (4096, 4096), (4096,)), "bfloat16",
                    lambda x, w, b: (x @ w + b).gelu(),
                    lambda x, w, b: functional.gelu(x @ w + b, approximate="tanh"), 2 * 4096.0 ** 3, (1, 1 / 64, 1)))
    out.append(Case("linear, bias, relu 8192x1024x4096", ((8192, 4096), (4096, 1024), (1024,)), "bfloat16",
                    lambda x, w, b: (x @ w + b).relu(), lambda x, w, b: (x @ w + b).relu(), 2.0 * 8192 * 1024 * 4096))
    out.append(Case("linear, residual 4096", ((4096, 4096), (4096, 4096), (4096, 4096)), "bfloat16",
                    lambda x, w, r: x @ w + r, lambda x, w, r: torch.addmm(r, x, w), 2 * 4096.0 ** 3))
    out.append(product("product 4096 float32", "float32", 4096, 4096, 4096))
    out += [rounded_product(4096), bytes_product(4096)]
    out.append(product("vector 1x14336x4096", "bfloat16", 1, 14336, 4096))
    big = ((8192, 8192),)
    out.append(Case("chain float32", big, "float32", lambda x: (x * 2 + 1).relu() * 0.5,
                    lambda x: (x * 2 + 1).relu() * 0.5))
    out.append(Case("gelu bfloat16", big, "bfloat16", lambda x: x.gelu(),
                    lambda x: functional.gelu(x, approximate="tanh")))
    out.append(Case("add bfloat16", (*big, *big), "bfloat16", lambda x, y: x + y, lambda x, y: x + y))
    out.append(Case("softmax float32", big, "float32", lambda x: x.softmax(-1), lambda x: x.softmax(-1)))
    out.append(Case("layernorm float32", big, "float32", lambda x: x.layernorm(),
                    lambda x: functional.layer_norm(x, (x.shape[-1],))))
    for dtype in ("float32", "bfloat16"):
        out.append(Case(f"rmsnorm {dtype}", big, dtype, rmsnorm, rmsnorm))
    out.append(Case("softmax 2048x32768 float32", ((2048, 32768),), "float32", lambda x: x.softmax(-1),
                    lambda x: x.softmax(-1)))
    out.append(Case("layernorm 65536x768 bfloat16", ((65536, 768),), "bfloat16", lambda x: x.layernorm(),
                    lambda x: functional.layer_norm(x, (768,))))
    out.append(Case("sum of rows float32", big, "float32", lambda x: x.sum(-1), lambda x: x.sum(-1)))
    out.append(Case("transposed copy float32", big, "float32", lambda x: x.transpose(0, 1).contiguous(),
                    lambda x: x.transpose(0, 1).contiguous()))
    out.append(Case("cumsum float32", big, "float32", lambda x: x.cumsum(-1), lambda x: x.cumsum(-1)))
    out.append(Case("cumsum of columns float32", big, "float32", lambda x: x.cumsum(0), lambda x: x.cumsum(0)))
    out.append(Case("cumsum of one row float32", ((8192 * 8192,),), "float32", lambda x: x.cumsum(0),
                    lambda x: x.cumsum(0)))
    named = {case.name: case for case in out}
    for name in ("chain float32", "gelu bfloat16", "softmax float32", "layernorm float32", "rmsnorm float32",
                 "rmsnorm bfloat16", "layernorm 65536x768 bfloat16"):
        theirs = functional.gelu if name.startswith("gelu") else named[name].theirs
        out.append(replace(named[name], name=f"{name}, compiled", theirs=theirs, compiled=True))
    out.append(Case("sum of all float32", big, "float32", lambda x: x.sum(), lambda x: x.sum()))
    out.append(Case("sum over columns float32", big, "float32", lambda x: x.sum(0), lambda x: x.sum(0)))
    return out


def rmsnorm(x: Any) -> Any:
    """x / sqrt(mean(x^2) + 1e-6), by both libraries' own words."""
    return x * ((x * x).mean(-1, keepdim=True) + 1e-6).rsqrt()


def rounded_product(n: int) -> Case:
    """A product of float32 on matrix units, which round the factors (tf32)."""
    import torch

    from glassgrad import Context

    def ours(x: Any, y: Any) -> Any:
        with Context(TF32=1):
            return (x @ y).realize()

    def theirs(x: Any, y: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        result = x @ y
        torch.backends.cuda.matmul.allow_tf32 = False
        return result
    return Case(f"product {n} tf32", ((n, n), (n, n)), "float32", ours, theirs, 2.0 * n ** 3)


def bytes_product(n: int) -> Case:
    """A product of int8 into int32; the right factor lies along k, as PyTorch wants it."""
    import torch
    return Case(f"product {n} int8", ((n, n), (n, n)), "int8", lambda x, y: x.cast("int32") @ y.T.cast("int32"),
                lambda x, y: torch._int_mm(x, y.T) if x.dtype is torch.int8 else x @ y.T, 2.0 * n ** 3)


def random_input(shape: tuple[int, ...], dtype: Any, scale: float) -> Any:
    """Gaussian numbers, or bytes of all values."""
    import torch
    if dtype is torch.int8:
        return torch.randint(-128, 128, shape, device="cuda", dtype=dtype)
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def run(case: Case, rounds: int, rest: float) -> dict[str, Any]:
    """Check and time one case; without rounds its kernels are made, and that is all."""
    import torch

    from glassgrad import Tensor, TinyJit
    kind = getattr(torch, case.dtype)
    elements = sum(math.prod(s) for s in case.shapes)
    sets = max(1, min(8, math.ceil(CACHE_BYTES / (elements * kind.itemsize))))
    scales = case.scales or (1.0,) * len(case.shapes)
    ours_in, theirs_in = [], []
    for _ in range(sets):
        theirs = [random_input(s, kind, scale) for s, scale in zip(case.shapes, scales)]
        theirs_in.append(theirs)
        ours_in.append([Tensor(t.float().cpu().numpy(), device="CUDA").cast(case.dtype).realize() for t in theirs])

    @TinyJit
    def ours(*x: Any) -> tuple[Any, ...]:
        made = case.ours(*x)
        results = made if isinstance(made, tuple) else (made,)
        results[0].realize(*results[1:])
        return results                       # what a replay does not return it need not compute
    began = time.perf_counter()
    made = ours(*ours_in[0])[0]
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    compute = torch.compile(case.theirs, dynamic=False) if case.compiled else case.theirs
    if not rounds:
        compute(*theirs_in[0])
        return {}
    moved = sum(t.nbytes for t in theirs_in[0]) + made.nbytes()
    got = torch.from_numpy(np.asarray(made.cast("float32").numpy())).cuda().double()
    want = case.theirs(*[t.double() for t in theirs_in[0]])
    error = ((got - want).norm() / want.norm()).item() if not got.isnan().any() else math.inf
    their_error = ((compute(*theirs_in[0]).double() - want).norm() / want.norm()).item()
    del got, want
    for values in ours_in * 2:
        ours(*values)
    queue = {"ours": [lambda v=v: ours(*v) for v in ours_in],
             "theirs": [lambda v=v: compute(*v) for v in theirs_in]}
    launches = max(3, min(24, int(2e-3 / (case.work / 600e12 + 5e-6))))
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for name in random.sample(list(queue), 2):
            torch.cuda.synchronize()
            time.sleep(rest)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SLEEP_CYCLES)
            queue[name][0]()
            start.record()
            for i in range(launches):
                queue[name][i % sets]()
            end.record()
            end.synchronize()
            taken[name].append(start.elapsed_time(end) * 1000 / launches)
    ratio = statistics.median(t / o for o, t in zip(taken["ours"], taken["theirs"]))
    mine = statistics.median(taken["ours"])
    return {"case": case.name, "ours_us": mine, "theirs_us": statistics.median(taken["theirs"]), "ratio": ratio,
            "error": error, "their_error": their_error, "first_s": first,
            "tflops": case.work / mine / 1e6 if case.work else None, "bytes": moved}


def tried(case: Case, rounds: int) -> dict[str, Any]:
    """A case's row, or why it failed."""
    try:
        return run(case, rounds, 0.01)
    except Exception as problem:
        return {"case": case.name, "failed": f"{type(problem).__name__}: {problem}"}


def shown(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    if "failed" in row:
        return f"{row['case']:36} {row['failed'][:300]}"
    rate = f"{row['tflops']:8.0f}" if row["tflops"] else " " * 8
    return (f"{row['case']:36} {row['ours_us']:9.1f} {row['theirs_us']:9.1f} {row['ratio']:6.2f} {rate} "
            f"{row['error']:8.1e} {row['their_error']:8.1e} {row['first_s']:7.2f}")


def main(arguments: Sequence[str] | None = None, made: Callable[[], list[Case]] = cases) -> None:
    """Run the cases that are made, and print the table; the file is written after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains one of these texts, split by commas")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default="")
    parser.add_argument("--limit", type=float, default=400, help="seconds after which no case is begun")
    parser.add_argument("--warm", default="", metavar="I/N", help="make the kernels of every N-th case, and time none")
    chosen = parser.parse_args(arguments)
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    part, parts = map(int, (chosen.warm or "0/1").split("/"))
    wanted = [case for case in made() if any(text in case.name for text in chosen.only.split(","))][part::parts]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'case':36} {'ours us':>9} {'torch us':>9} {'ratio':>6} {'TFLOP/s':>8} {'error':>8} {'torch':>8} "
          f"{'first s':>7}")
    rows, began = [], time.perf_counter()
    for case in wanted:
        if time.perf_counter() - began > chosen.limit:
            break
        row = tried(case, 0 if chosen.warm else 7 if chosen.quick else 15)
        torch.cuda.empty_cache()
        if row:
            rows.append(row)
            print(shown(row), flush=True)
        if chosen.json:
            Path(chosen.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
