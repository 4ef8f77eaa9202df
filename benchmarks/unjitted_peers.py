"""Run the programs of `benchmarks.unjitted` in PyTorch, and both in turns: `python -m benchmarks.unjitted_peers
[ROUNDS]`.

Out: a table with the median seconds of each and their ratio, which depends less on the machine than seconds do. Each
round starts processes: ours twice, with an empty cache on disk and with the one that the first has filled, and
PyTorch's. Both use one thread, as the programs are small. For the tokens, the start of the process and the weights are
not counted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

from benchmarks.peers import ROOT
from benchmarks.unjitted import TOKENS, best_seconds

__all__ = ["measure_torch", "main"]


def measure_torch() -> dict[str, float]:
    """Seconds of the sum, of the training step and of the tokens."""
    import torch

    from benchmarks.torch_networks import GPT
    torch.set_num_threads(1)
    a, b = torch.ones(100), torch.ones(100)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    x, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layers(x), labels).backward()
        optimizer.step()

    found = {"sum": best_seconds(lambda: a + b), "mlp-step": best_seconds(step)}
    model = GPT(65, 64, 4, 4, 128)
    text = torch.tensor([[1]])
    began = time.perf_counter()
    with torch.no_grad():
        for _ in range(TOKENS):
            text = torch.cat([text, model(text)[:, -1].softmax(-1).multinomial(1)], 1)
    return {**found, "tokens": time.perf_counter() - began}


def _run(*arguments: str, **settings: str) -> Any:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=True,
                          env={**os.environ, "THREADS": "1", **settings})
    return json.loads(done.stdout)


def main(rounds: int) -> None:
    """Measure in turns and print the table."""
    ours, theirs = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for name in ("tokens, nothing on disk", "tokens, kernels on disk"):
                ours[name].append(_run("benchmarks.unjitted", "generate", CACHE_DIR=cache)["tokens"]["seconds"])
        for name, found in _run("benchmarks.unjitted").items():
            ours[name].append(found["seconds"])
        for name, seconds in _run("benchmarks.unjitted_peers", "torch").items():
            theirs[name].append(seconds)
    print("| program | glassgrad, ms | PyTorch, ms | times as long |\n|---|---|---|---|")
    for name, seconds in ours.items():
        other = theirs[name.split(",")[0]]
        ratio = statistics.median([mine / its for mine, its in zip(seconds, other)])
        mine, its = (statistics.median(all_seconds) * 1e3 for all_seconds in (seconds, other))
        print(f"| {name} | {mine:.4g} | {its:.4g} | {ratio:.1f} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["torch"]:
        print(json.dumps(measure_torch()))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 5)
