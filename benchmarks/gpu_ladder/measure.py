"""Check and time every variant. `measure.py FOLDER` runs jobs in a child process and starts another if one hangs;
results go to FOLDER/results.jsonl, and a table to the output.
"""

from __future__ import annotations

import json
import math
import os
import random as chance
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from variants import (ATTENTION, FULL, JOBS, KINDS, LADDER, LAYOUTS, MMA, MORE, OTHERS, PLAIN, RAGGED, SIMPLE, SMALL,
                      STEP1, STEP6, SWITCHES, THREADS, TWICE, VECTOR)
from wgmma import Wgmma

TOLERANCE = {"bf16": 4e-3, "f16": 1e-3, "tf32": 2e-3, "s8": 0.0}


# -- supervisor ------------------------------------------------------------------------------------------------------
def supervise(folder: str, jobs: list[str], limit: float) -> None:
    path = os.path.join(folder, "results.jsonl")
    open(path, "w").close()
    began, restarts = time.time(), 0
    todo = list(jobs)
    while todo and restarts < 6:
        child = subprocess.Popen([sys.executable, __file__, "work", path, *todo])
        at, size, seen = time.time(), 0, time.time()
        while child.poll() is None:
            time.sleep(0.2)
            if os.path.getsize(path) != size:
                size, seen = os.path.getsize(path), time.time()
            if time.time() - seen > (60 if size == 0 or time.time() - at < 60 else 20) or time.time() - began > limit:
                child.kill()
                break
        child.wait()
        rows = [json.loads(line) for line in open(path)]
        over = {r["job"] for r in rows if r.get("state") in ("done", "failed")}
        if time.time() - began > limit:
            print("stopped: out of time", [j for j in todo if j not in over])
            break
        left = [j for j in todo if j not in over]
        if left and child.returncode != 0:
            started = [r["job"] for r in rows if r.get("state") == "start" and r["job"] in left]
            bad = started[-1] if started else left[0]
            print(f"job {bad}: child ended with {child.returncode}", flush=True)
            with open(path, "a") as out:
                out.write(json.dumps({"job": bad, "state": "failed", "why": f"ended with {child.returncode}"}) + "\n")
            left.remove(bad)
            restarts += 1
        elif left:
            break
        todo = left
    print(f"all jobs: {time.time() - began:.0f} s, {restarts} restarts")
    table(path)


def table(path: str) -> None:
    rows = [json.loads(line) for line in open(path)]
    for r in rows:
        if r.get("state") == "failed" or r.get("ok") is False:
            print("FAILED", r["job"], str(r.get("why") or r.get("errors"))[:300])
    for r in rows:
        if "worst" in r:
            print(f"{r['job']}: {len(r['errors'])} shapes, the worst error {r['worst']:.2f} of what is allowed")
        if "counts" in r:
            print("clusters at once:", r["counts"])
        if "times" in r:
            print(f"-- {r['job']}  ({r.get('note', '')})")
            best = r["times"].get("torch", {}).get("median")
            for name, t in sorted(r["times"].items(), key=lambda item: item[1]["median"]):
                rate = r["work"] / t["median"] / 1e6
                share = f"{100 * (t.get('share') or best / t['median']):6.1f}%" if best else ""
                print(f"   {name:34} {t['median']:9.2f} us  {rate:8.1f} {r.get('unit', 'TFLOP/s')}  {share}  "
                      f"[{t['low']:.2f}..{t['high']:.2f}]  error {t.get('error', float('nan')):.1e}")


# -- worker ----------------------------------------------------------------------------------------------------------
def work(path: str, jobs: list[str]) -> None:
    import driver as d
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    out_file = open(path, "a")

    def say(**row):
        out_file.write(json.dumps(row) + "\n")
        out_file.flush()

    failed = {r["job"] for r in map(json.loads, open(path)) if r.get("ok") is False or r.get("state") == "failed"}
    KIND = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "s8": torch.int8}
    generator = torch.Generator(device="cuda").manual_seed(int(time.time()))

    def random(*shape, dtype):
        if dtype is torch.int8:
            return torch.randint(-100, 100, shape, dtype=dtype, device="cuda", generator=generator)
        return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

    def result_type(c):
        return torch.int32 if c.dtype == "s8" else torch.float32 if c.dtype == "tf32" or getattr(c, "out", "") else KIND[c.dtype]

    def poisoned(*shape, dtype):
        return torch.full(shape, float("nan") if dtype.is_floating_point else -123456789, device="cuda", dtype=dtype)

    def error(out, reference):
        if torch.isnan(out.double()).any():
            return float("inf")
        return ((out.double() - reference).norm() / reference.norm()).item()

    def laid(c, a, b):
        """Both factors as a variant wants them, from [z, M, K] and [z, K, N]."""
        a = a.transpose(1, 2).contiguous() if getattr(c, "a", "mk") == "km" else a
        return a, b.transpose(1, 2).contiguous() if c.b == "nk" else b

    def prepare(c, a, b, out):
        a, b = laid(c, a, b)
        return d.wgmma(c, a, b, out) if isinstance(c, Wgmma) else d.mma_sync(c, a, b, out)

    def verify(c, z, m, n, k):
        dtype = KIND[c.dtype]
        a, b = random(z, m, k, dtype=dtype), random(z, k, n, dtype=dtype)
        out = poisoned(z, m, n, dtype=result_type(c))
        prepare(c, a, b, out)()
        torch.cuda.synchronize()
        return error(out, a.double() @ b.double())

    def usable(c):
        return f"check {c.name}" not in failed

    def timed(cases, count, reps=25, rest=0.0):
        """Median microseconds of each case, and of its share of torch's speed in the same round; each is a list of
        launches that are taken in turn. The order is another in each round: what ran before leaves the chip hotter. With
        rest, so many seconds pass before each measurement, and the chip need not slow down."""
        graphs = {}
        for name, launches in cases.items():
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(count):
                    launches[i % len(launches)]()
            graphs[name] = graph
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        taken = {name: [] for name in graphs}
        for _ in range(reps):
            events = []
            for name, graph in chance.sample(list(graphs.items()), len(graphs)):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                if rest:
                    torch.cuda.synchronize()
                    time.sleep(rest)
                    graph.replay()                   # clocks and caches as in the middle of work
                start.record()
                graph.replay()
                end.record()
                events.append((name, start, end))
            torch.cuda.synchronize()
            for name, start, end in events:
                taken[name].append(start.elapsed_time(end) * 1000 / count)
        own = taken.get("torch")
        return {name: {"median": statistics.median(t), "low": min(t), "high": max(t),
                       "share": statistics.median(x / y for x, y in zip(own, t)) if own else None} for name, t in taken.items()}

    def products(job, cases, z, m, n, k, dtype=torch.bfloat16, note="", with_torch=True, **how):
        """Times variants on one shape, in turn with torch; `cases` maps names to variants or to functions of (a, b, out)."""
        size = z * (m * k + k * n + m * n) * 2
        sets = max(2, min(16, math.ceil(150e6 / size)))
        data = [(random(z, m, k, dtype=dtype), random(z, k, n, dtype=dtype)) for _ in range(sets)]
        reference = data[0][0].double() @ data[0][1].double()
        launches, errors = {}, {}
        first = None
        for name, c in cases.items():
            if not callable(c) and not usable(c):
                continue
            kind = dtype if callable(c) else result_type(c)
            if dtype is torch.int8:
                kind = torch.int32
            made = []
            for a, b in data:
                out = poisoned(z, m, n, dtype=kind)
                made.append(c(a, b, out) if callable(c) else prepare(c, a, b, out))
                if len(made) == 1:
                    first = out
            made[0]()
            torch.cuda.synchronize()
            errors[name] = error(first, reference)
            launches[name] = made
        if with_torch:
            outs = [torch.empty(z, m, n, dtype=dtype, device="cuda") for _ in data]
            turned = [(a[0], b[0], o[0]) if z == 1 else (a, b, o) for (a, b), o in zip(data, outs)]
            launches["torch"] = [lambda t=t: torch.matmul(t[0], t[1], out=t[2]) for t in turned]
            launches["torch"][0]()
            errors["torch"] = error(outs[0], reference)
        flops = 2 * z * m * n * k
        count = max(2, min(200, int(3e-3 / (flops / 500e12 + 3e-6))))
        times = timed(launches, count, **how)
        for name in times:
            times[name]["error"] = errors[name]
        say(job=job, times=times, work=flops, note=note or f"{z} x {m} x {n} x {k}, {sets} sets, {count} a graph")

    def promoted(c, promotion):
        def make(a, b, out):
            d.PROMOTION = promotion
            launch = prepare(c, a, b, out)
            d.PROMOTION = 2
            return launch
        return make

    def split(parts):
        def make(a, b, out):
            return d.split_wgmma(TWICE[parts], parts, a, b, out, torch.empty(parts, *out.shape[1:], device="cuda"))
        return make

    def padded(c, to=8):
        """Rows that are no multiple of 16 bytes: copied first."""
        def make(a, b, out):
            before, whole = [], []
            for t in (a, b):
                if t.shape[2] % to:
                    room = torch.empty(1, t.shape[1], -(-t.shape[2] // to) * to, dtype=t.dtype, device="cuda")
                    before.append(d.padded(t, room))
                    t = room
                whole.append(t)
            mine = RAGGED[c] if not out.shape[2] % 8 or c != "box" else RAGGED["lines"]
            run = d.wgmma(mine, whole[0], whole[1], out)
            return lambda: [f() for f in (*before, run)]
        return make

    def attend(job, causal):
        heads, length = 4 * 32, 2048
        scale = 128 ** -0.5
        q, k, v = (random(heads, length, 128, dtype=torch.bfloat16) for _ in range(3))
        want = torch.softmax((q[:8].double() @ k[:8].double().transpose(1, 2) * scale).masked_fill(
            torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1) if causal else
            torch.zeros(length, length, dtype=torch.bool, device="cuda"), float("-inf")), -1) @ v[:8].double()
        launches, errors = {}, {}
        for name, c in ATTENTION.items():
            if c.causal != causal:
                continue
            o = poisoned(heads, length, 128, dtype=torch.bfloat16)
            launch = d.attention(c, q, k, v, o, scale)
            launch()
            torch.cuda.synchronize()
            errors[name] = error(o[:8], want) if not torch.isnan(o).any() else float("inf")
            launches[name] = [launch]
            say(job=job, state="seen", name=name, error=errors[name])
        from torch.nn.attention import SDPBackend, sdpa_kernel
        shape = (4, 32, length, 128)
        for name, backend in (("torch flash", SDPBackend.FLASH_ATTENTION), ("torch", SDPBackend.CUDNN_ATTENTION)):
            def run(backend=backend):
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(q.view(shape), k.view(shape), v.view(shape), is_causal=causal)
            try:
                errors[name] = error(run().view(heads, length, 128)[:8], want)
                launches[name] = [run]
            except RuntimeError as e:
                say(job=job, state="note", why=str(e)[:200])
        times = timed(launches, 4)
        for name in times:
            times[name]["error"] = errors[name]
        flops = 4 * heads * length * length * 128 // (2 if causal else 1)
        say(job=job, times=times, work=flops, note=f"4 x 32 x 2048 x 128{', causal' * causal}")

    def vectors(job):
        k, n, sets = 4096, 14336, 3
        data = [(random(1, k, dtype=torch.bfloat16), random(k, n, dtype=torch.bfloat16)) for _ in range(sets)]
        want = data[0][0].double() @ data[0][1].double()
        launches, errors = {}, {}
        for c in VECTOR:
            made, first = [], None
            for x, b in data:
                y = poisoned(1, n, dtype=torch.bfloat16)
                first = y if first is None else first
                made.append(d.vector_matrix(c, x, b, y, torch.empty(c.parts * n, device="cuda"),
                                            torch.zeros(n // 256 + 1, dtype=torch.int32, device="cuda")))
            made[0]()
            torch.cuda.synchronize()
            errors[c.name] = error(first, want)
            launches[c.name] = made
        outs = [torch.empty(1, n, dtype=torch.bfloat16, device="cuda") for _ in data]
        launches["torch"] = [lambda x=x, b=b, o=o: torch.matmul(x, b, out=o) for (x, b), o in zip(data, outs)]
        launches["torch"][0]()
        errors["torch"] = error(outs[0], want)
        big = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
        times = timed(launches, 24)
        copy = timed({"copy": [lambda: big[:1 << 29].copy_(big[1 << 29:])]}, 4)["copy"]["median"]
        for name in times:
            times[name]["error"] = errors[name]
        say(job=job, times=times, work=k * n * 2 * 1e6 / 1e6, unit="TB/s", note=f"copy: {(1 << 30) / copy / 1e6:.2f} TB/s")

    for job in jobs:
        say(job=job, state="start")
        kind, _, rest = job.partition(" ")
        if kind == "check":
            from variants import everything
            c = next(c for c in everything() if c.name == rest)
            shapes = [(1, 512, 512, 512), (1, 1000, 1016, 1032), (3, 200, 264, 136), (1, 2048, 1024, 776), (100, 256, 128, 128),
                      (1, 4096, 4096, 64), (1, 2304, 4096, 1024)]
            shapes = [s for s in shapes if s[3] >= 64 * getattr(c, "split", 1)]
            if getattr(c, "known", 0):
                shapes = [(1, c.known, c.known, c.known)]
            if c.load == 2:
                shapes += [(1, 333, 257, 111)]
            if c.dtype == "s8":
                shapes = [(1, 512, 512, 512), (1, 1000, 1016, 1040), (3, 200, 264, 144)]
            errors = {str(s): verify(c, *s) for s in shapes}
            ok = all(e <= TOLERANCE[c.dtype] for e in errors.values())
            if not ok:
                failed.add(job)
            say(job=job, state="done", ok=ok, errors=errors)
            continue
        if job == "rested small":
            for n in (512, 768, 1024, 1536):
                products(f"{job} {n}", {**SMALL, "128x128": OTHERS["128x128"], "pingpong": OTHERS["pingpong 128x128"], "mma": STEP1,
                                        "mma 128x128 x2": MMA["mma 128x128 x2"]}, 1, n, n, n, rest=0.01, reps=9)
        elif kind in ("ladder", "rested"):
            n = int(rest)
            products(job, {**LADDER, **MORE}, 1, n, n, n, **({"rest": 0.02, "reps": 15} if kind == "rested" else {"reps": 31}))
        elif kind == "switches":
            n = int(rest)
            products(job, {**SWITCHES, "64x128 s8": SMALL["64x128 s8"]}, 1, n, n, n, rest=0.02, reps=11)
        elif kind == "simple":
            n = int(rest)
            products(job, {**SIMPLE, "6": FULL, "6, 128x192": OTHERS["128x192"], "6, 64x128 s8": SMALL["64x128 s8"]}, 1, n, n, n, rest=0.015, reps=9)
        elif kind == "threads":
            n = int(rest)
            products(job, {name: c for name, c in THREADS.items() if c.known in (0, n)}, 1, n, n, n, rest=0.015, reps=11)
        elif kind == "plain":
            n = int(rest)
            products(job, {"6 box store": STEP6, "no cluster, lines": RAGGED["lines"], "mma by registers": RAGGED["mma"],
                           "mma by registers, 8 bytes": MMA["mma by registers, 8 bytes"], **PLAIN}, 1, n, n, n, rest=0.02, reps=11)
        elif kind == "random":
            errors = {}
            for name, c in {"6": STEP6, "no cluster": FULL, **{n: OTHERS[n] for n in ("lines", "pingpong 128x128", "128x192")},
                            **{n: SMALL[n] for n in ("64x128 s8", "64x64 x2", "64x128 cluster", "128x128 split 2")},
                            "1": STEP1, "registers": RAGGED["mma"], "tf32": KINDS["wgmma tf32"], "s8": KINDS["wgmma s8"]}.items():
                step = 1 if name == "registers" else 16
                for _ in range(6):
                    m, n, k = (step * -(-chance.randint(1, 2500) // step) for _ in range(3))
                    m = chance.randint(1, 2500)
                    shape = (chance.randint(1, 3), m, n, max(k, 64 * getattr(c, "split", 1)))
                    errors[f"{name} {shape}"] = verify(c, *shape) / max(TOLERANCE[c.dtype], 1e-9)
            say(job=job, ok=all(e <= 1 for e in errors.values()), errors=errors, worst=max(errors.values()))
        elif kind == "clusters":
            counts = {name: d.clusters_at_once(c) for name, c in {**OTHERS, **SMALL, **LADDER}.items()
                      if isinstance(c, Wgmma) and c.cluster * c.split > 1}
            say(job=job, counts=counts)
        elif kind == "promotion":
            z, m, n, k = map(int, rest.split("x"))
            cases = {f"{name} {promotion}": promoted(c, promotion) for promotion in range(4)
                     for name, c in (("no cluster", FULL), ("cluster", STEP6), ("64x128 cluster", SMALL["64x128 cluster"]))}
            products(job, cases, z, m, n, k)
        elif kind == "square":
            n = int(rest)
            cases = {**LADDER, **MMA, **OTHERS, **LAYOUTS} if n > 1024 else {**LADDER, **MMA, **OTHERS, **SMALL}
            cases.pop("f16", None)
            if n <= 2048:
                cases |= {**SMALL, "two kernels, 2 parts": split(2), "two kernels, 4 parts": split(4)}
            products(job, cases, 1, n, n, n)
        elif kind == "shape":
            z, m, n, k = map(int, rest.split("x"))
            good = {"cluster": STEP6, "128x256": FULL, "128x128": OTHERS["128x128"], "pingpong": OTHERS["pingpong 128x128"],
                    "mma": STEP1, "lines": RAGGED["lines"],
                    **{name: v for name, v in SMALL.items() if k >= 64 * v.split}}
            if m % 8 or n % 8 or k % 8:
                good = {f"pad to {to}, {name}": padded(name, to) for to in (8, 64)
                        for name in ("box", "lines", "lines 128x128", "direct", "cluster")}
                good["mma by registers"] = RAGGED["mma"]
                good |= {name: c for name, c in PLAIN.items() if c.load == 2}
            elif k == 64 or z > 1:
                good["mma 128x128 x2"] = MMA["mma 128x128 x2"]
            products(job, good, z, m, n, k)
        elif kind == "f16":
            products(job, {"6 box store": LAYOUTS["f16"], "1 mma.sync": KINDS["f16"]}, 1, 4096, 4096, 4096, torch.float16)
        elif kind == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
            products(job, {name: c for name, c in KINDS.items() if c.dtype == "tf32"}, 1, 4096, 4096, 4096, torch.float32)
            torch.backends.cuda.matmul.allow_tf32 = False
        elif kind == "s8":
            products(job, {name: c for name, c in KINDS.items() if c.dtype == "s8"}, 1, 4096, 4096, 4096, torch.int8, with_torch=False)
        elif kind == "attention":
            attend(job, rest == "causal")
        elif kind == "vector":
            vectors(job)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        say(job=job, state="done")


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], sys.argv[3:])
    elif sys.argv[1] == "table":
        table(sys.argv[2])
    else:
        supervise(sys.argv[1], JOBS(*sys.argv[2:]), float(os.environ.get("LIMIT", "240")))
