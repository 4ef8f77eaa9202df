"""The drawings of the pipeline and of a run's memory, from a real run of the compiler. diagrams.py writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from draw_steps import Rung, Span, arena, ladder

from glassgrad import Tensor
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import KERNEL, TEXT, KernelWork, Pass, run_passes, watched
from glassgrad.engine.memory_plan import Lifetime, assign_offsets

AVX2 = Target("x86_64", vector_bytes=32, vector_registers=16, features=frozenset({"avx2", "fma"}))
COLORS = {"tensor": "#f4ecd8", "graph": "#d3e1f3", "schedule": "#f6d6c9", "lower": "#f9e4b7", "optimize": "#d8efe0",
          "render": "#bfe3cf", "engine": "#eeeeee"}


def ones(*shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().realize()


def book_kernel(language: str) -> KernelWork:
    """The first kernel of docs/architecture.md: `(a @ b).relu()`, for a processor with AVX2."""
    work = KernelWork((ones(12, 32) @ ones(32, 16)).relu().sum().schedule()[0].ast, AVX2, language)
    run_passes(work, KERNEL, TEXT, say=False)
    return work


def pipeline() -> str:
    """`(a @ b).relu().sum().backward()` to the machine: the passes that ran, and what each stage left."""
    a, b = ones(12, 32), ones(32, 16)
    loss = (a @ b).relu().sum()
    loss.backward()
    assert a.grad is not None and b.grad is not None
    results = [loss, a.grad, b.grad]
    forward = loss.uop.toposort()
    nodes = list(dict.fromkeys(n for result in results for n in result.uop.toposort()))
    ran: dict[str, list[str]] = {}
    trees: dict[str, list[str]] = {}

    def note(each: Pass, work: Any) -> None:
        ran.setdefault(each.stage, []).append(each.name)
        if each.stage == KERNEL:
            trees[each.name] = show(work.kernel).splitlines()

    with watched(note):
        items = loss.schedule(*results[1:])
        work = KernelWork(items[0].ast, AVX2, "llvm")
        run_passes(work, KERNEL, TEXT, say=False)
    multiplied = [line.strip() for line in work.source.splitlines() if "@llvm.fma" in line and "call" in line]
    loss.realize(*results[1:])
    return ladder([
        Rung("tensor", ["nothing runs yet"], ["loss = (a @ b).relu().sum()", "loss.backward()"], COLORS["tensor"]),
        Rung("graph", ["gradients add nodes", *ran["graph"]],
             [f"{len(forward)} nodes for the loss, {len(nodes) - len(forward)} more for both gradients:",
              *_wrapped(forward), "  ...", *_wrapped(n for n in nodes if n not in forward)], COLORS["graph"]),
        Rung("schedule", ran["schedule"],
             [f"kernel {number}  {list(item.ast.src[0].shape)}  {', '.join(item.reasons)}"
              for number, item in enumerate(items)], COLORS["schedule"]),
        Rung("lower", ["of kernel 0:", "lower"], trees["lower"], COLORS["lower"]),
        Rung("optimize", ["optimize"], [*work.kernel.moves, *trees["optimize"][1:]], COLORS["optimize"]),
        Rung("render", ran["text"],
             ["LLVM IR, the first of the multiply-adds of the inner loop:", multiplied[0], multiplied[1],
              f"... {len(multiplied)} in all"],
             COLORS["render"]),
        Rung("runtime and engine", ["compile, cache, launch"],
             [f"loss {loss.item()}",
              f"a.grad[0, :4] {a.grad[0, :4].tolist()}",
              f"b.grad[0, :4] {b.grad[0, :4].tolist()}"], COLORS["engine"])])


def _wrapped(nodes: Iterable[UOp], width: int = 100) -> list[str]:
    """Nodes as `OP[shape]`, several to a line."""
    lines = [""]
    for word in (f"{n.op.name}{list(n.shape)}" for n in nodes):
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}"
    return [f" {line}" for line in lines]


RESULTS = ("an output",)


def training_arena() -> str:
    """The arena of a training step of a small network: values between kernels, placed by lifetimes."""
    x, weights = ones(64, 32), [ones(32, 64), ones(64, 64), ones(64, 64), ones(64, 8)]
    value = x
    for w in weights:
        value = (value @ w).relu()
    loss = value.square().mean()
    items = loss.schedule(*loss.gradient(*weights))
    first, last, size, label = {}, {}, {}, {}
    for number, item in enumerate(items):
        params = {n.arg.slot: n for n in item.ast.toposort() if n.op.name == "PARAM"}
        for position, slot in enumerate(item.slots):
            last[slot] = number
            if position < item.results and item.reasons[position] not in RESULTS:
                first[slot], label[slot] = number, str(list(params[position].shape))
                size[slot] = params[position].size * params[position].dtype.itemsize
    lives = [Lifetime(first[slot], last[slot], size[slot]) for slot in first]
    offsets, total = assign_offsets(lives)
    colors = [COLORS[kind] for kind in ("graph", "schedule", "lower", "optimize")]
    spans = [Span(label[slot], life.first, life.last, offset // 1024, life.nbytes // 1024, colors[i % len(colors)])
             for i, (slot, life, offset) in enumerate(zip(first, lives, offsets))]
    return arena(spans, [f"kernel {number}" for number in range(len(items))], total // 1024, "KiB")


DRAWINGS: dict[str, Callable[[], str]] = {"pipeline.svg": pipeline, "arena.svg": training_arena}
