"""Measure what un-jitted calls cost beside their kernels: `python -m benchmarks.unjitted`. Out: JSON.

There are three programs: a sum of two vectors of 100 floats, realized; a training step of an MLP with every size at 2;
and the GPT of examples/, untrained, that generates 40 tokens, each from a longer text than the one before, in a new
process (`python -m benchmarks.unjitted generate`; with an empty CACHE_DIR that is the cold case).

Of the first two, the bytecodes that Python executes for one call are counted: unlike the seconds, that number does not
depend on the load of the machine. `python -m benchmarks.unjitted where` counts them for each file. They do not show the
time of functions written in C: a key made with few calls of `map`, `chain` and `dict.fromkeys` had a third of the
bytecodes and took longer.

Of the third, the start of the process, the model's weights and the tokens are timed one by one. If Python stores no
bytecode (PYTHONDONTWRITEBYTECODE), half a second of the start is compiling this package.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from benchmarks.peers import ROOT

__all__ = ["best_seconds", "bytecodes", "bytecodes_by_file", "measure_generate", "measure_unjitted"]

BURSTS, CALLS = 200, 10
TOKENS = 40


def bytecodes(function: Callable[[], Any]) -> int:
    """How many instructions of Python a call executes."""
    return sum(bytecodes_by_file(function).values())


def bytecodes_by_file(function: Callable[[], Any]) -> Counter[str]:
    """How many instructions of Python a call executes in each file, the most first."""
    count: Counter[str] = Counter()

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        count[frame.f_code.co_filename] += event == "opcode"
        return step

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True           # Python 3.12 asks, when a trace begins, whether a frame wants them
    sys.settrace(step)
    try:
        function()
    finally:
        sys.settrace(before)
    return Counter(dict(count.most_common()))


def best_seconds(function: Callable[[], Any], bursts: int = BURSTS) -> float:
    """The seconds of this thread that a call takes at best."""
    for _ in range(5):
        function()
    best = float("inf")
    for _ in range(bursts):
        began = time.thread_time_ns()
        for _ in range(CALLS):
            function()
        best = min(best, (time.thread_time_ns() - began) / CALLS / 1e9)
    return best


def _measured(function: Callable[[], Any], bursts: int) -> dict[str, Any]:
    """Bytecodes of a call, in all and by file, and its seconds."""
    best = best_seconds(function, bursts)
    files = bytecodes_by_file(function)
    short = {name.rpartition("glassgrad/")[2]: count for name, count in files.items()}
    return {"bytecodes": sum(files.values()), "seconds": best, "files": short}


def measure_unjitted(bursts: int = BURSTS) -> dict[str, dict[str, Any]]:
    """The sum and the training step."""
    from glassgrad import Tensor, nn
    a, b = Tensor.ones(100).contiguous().realize(), Tensor.ones(100).contiguous().realize()
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(layers), lr=0.01)
    x, labels = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([0, 1])

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = layers[1](layers[0](x).relu()).sparse_categorical_crossentropy(labels).backward()
        optimizer.step()
        return loss.realize()

    found = {"sum": _measured(lambda: (a + b).realize(), bursts)}
    with Tensor.train():
        found["mlp-step"] = _measured(step, bursts)
    return found


def measure_generate(tokens: int = TOKENS) -> dict[str, Any]:
    """Seconds, of the clock and of all threads, until a GPT has written so many tokens; and those of each part."""
    sys.path.insert(0, str(ROOT / "examples"))
    from gpt import GPT, Config

    from glassgrad import GlobalCounters, Tensor, dtypes, nn
    at = [(_BEGAN, 0.0), _now()]
    Tensor.manual_seed(1)
    model = GPT(Config(words=65))
    weights = nn.state.get_parameters(model)
    weights[0].realize(*weights[1:])
    at.append(_now())
    text = Tensor([[1]], dtype=dtypes.int32).realize()
    for _ in range(tokens):
        following = model(text)[:, -1].softmax(-1).multinomial(1).cast(dtypes.int32)
        text = text.cat(following, dim=1).realize()
    at.append(_now())
    parts = {name: {"seconds": round(after[0] - before[0], 4), "cpu_seconds": round(after[1] - before[1], 4)}
             for name, before, after in zip(("start", "weights", "tokens"), at, at[1:])}
    return {"seconds": at[-1][0] - _BEGAN, "cpu_seconds": at[-1][1], **parts, "schedules": GlobalCounters.schedules,
            "last": text[0, -1].item()}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


_BEGAN = time.perf_counter()

if __name__ == "__main__":
    if sys.argv[1:] == ["generate"]:
        print(json.dumps(measure_generate()))
    else:
        programs = measure_unjitted()
        where = [] if sys.argv[1:] == ["where"] else [program.pop("files") for program in programs.values()]
        print(json.dumps(programs, indent=None if where else 1))
