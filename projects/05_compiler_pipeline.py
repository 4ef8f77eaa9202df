"""Project 5: from an expression to machine code, pass by pass. Run it: python projects/05_compiler_pipeline.py

Its page is docs/guide/05_compiler_pipeline.md.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np
from telling import SHORT, best_ms, chapter, kernels, kernels_of, tell

from glassgrad import Context, Device, Tensor
from glassgrad.compiler.lower.printing import text
from glassgrad.compiler.schedule.kernels import describe

LARGE = 256 if Device.DEFAULT == "PYTHON" else 1024      # an interpreter would take minutes


def random(*shape: int) -> Tensor:
    return Tensor.rand(*shape).realize()


def show_schedule() -> None:
    chapter("The schedule: which values get memory, and why")
    tell("Attention is softmax(q k^T / sqrt(d)) v. Its schedule is a list of kernels; each has an ast (what it "
         "computes), and "
         "says why its result was given memory instead of being computed where it is used.")
    q, k, v = (random(2, 4, 64, 32) for _ in range(3))
    items = q.scaled_dot_product_attention(k, v).schedule()
    for number, item in enumerate(items):
        print(f"  kernel {number}: result {item.ast.src[0].shape!s:<20} {'; '.join(item.reasons)}")
    assert len(items) == 3
    print("\nkernel 0, the scaled products:")
    print(describe(items[0]))
    tell("PARAM 0 is the result, the others are inputs; a kernel knows shapes and types, not tensors, so that "
         "two layers of one "
         "size share one kernel. Permute and expand are still there: they disappear in the next pass.")


def passes_of(tensor: Tensor) -> dict[str, str]:
    """What DEBUG=4 prints while a tensor is computed, by the label of each pass."""
    with Context(DEBUG=4), contextlib.redirect_stdout(io.StringIO()) as printed:
        tensor.realize()
    found: dict[str, str] = {}
    for part in printed.getvalue().split("*** ")[0].split("--- ")[1:]:
        label, _, listing = part.partition("\n")
        lines = [line[:110] + " ..." * (len(line) > 110) for line in listing.rstrip().splitlines()]
        found[label.partition(":")[0]] = "\n".join(lines)
    return found


def show_passes() -> None:
    chapter("A small matrix product at each pass (DEBUG=4)")
    why = {
        "initial": "the graph as Tensor built it, with memory lifted out as PARAMs",
        "folded": "after algebra; here there was nothing to simplify",
        "after loop analysis": "views have become index arithmetic, reductions have become loops with an "
        "accumulator",
        "optimized": "loops split, reordered, made lanes (one vector instruction) and tasks (cores)",
        "linearized": "every operation once, in the order of execution: what the renderers print as LLVM IR or C",
    }
    found = passes_of(random(4, 3) @ random(3, 5))
    assert list(found) == list(why)
    for label, listing in found.items():
        print(f"\n--- {label}: {why[label]}\n{listing}")
    chapter("Softmax at each pass")
    tell("Three walks over each row: its maximum, the sum of exponentials, the division. One kernel, because "
         "all three belong to "
         "the same row; the exponentials are kept in scratch memory (kept0) instead of being computed twice.")
    found = passes_of(random(2, 8).softmax(1))
    for label in ("initial", "after loop analysis"):
        print(f"\n--- {label}\n{found[label]}")
    assert "kept0" in found["after loop analysis"] and found["after loop analysis"].count("loop k") == 2
    tell("exp is no instruction: it is a polynomial and a shift of the exponent's bits, written out in the same "
         "language as "
         "everything else (glassgrad/compiler/lower/transcendental.py).")


def show_algebra() -> None:
    chapter("Algebra, on and off")
    tell("Rules are data: a pattern, what it becomes, and why that is right "
         "(glassgrad/compiler/graph/rules/algebra.py). NOOPT=1 leaves them out.")
    x, n = random(4), Tensor([1, 2, 3, 4])
    examples: list[tuple[str, Callable[[], Tensor], int, int]] = [
        ("x * 1 + 0", lambda: x * 1 + 0, 0, 2),
        ("x.exp().log() * 2", lambda: x.exp().log() * 2, 1, 5),
        ("n + 2 + 3", lambda: n + 2 + 3, 1, 2),
        ("x + 2 + 3", lambda: x + 2 + 3, 2, 2),
    ]
    for written, make, on, off in examples:
        counts = []
        for noopt in (0, 1):
            with Context(NOOPT=noopt):
                value = make().schedule()[0].ast.src[0].src[1]
            counts.append(sum(n.op.name not in ("PARAM", "CONST") for n in value.toposort()))
            if not noopt:
                simplified = value
        print(f"  {written:<20} {counts[1]} operations -> {counts[0]}:  {text(simplified)}")
        assert counts == [on, off], f"{written}: {counts}"
    tell("log(exp(x)) = x is true of numbers, but not of floats: exp overflows above 88. Such rules are marked "
         "inexact. "
         "Integers n can be added in any order; floats x round at each step, so x + 2 + 3 stays as it was "
         "written.")


def show_counts() -> None:
    chapter("Kernel counts of three building blocks")
    x, w, b = random(64, 512), random(512), random(512)
    image, filters = random(8, 3, 32, 32), random(16, 3, 3, 3)
    q, k, v = (random(2, 4, 64, 32) for _ in range(3))
    rows: list[tuple[str, Tensor, int]] = [
        ("attention", q.scaled_dot_product_attention(k, v), 3),
        ("layer norm, scale, shift", x.layernorm() * w + b, 1),
        ("conv2d + relu", image.conv2d(filters).relu(), 1),
        ("conv2d, padded, + relu", image.conv2d(filters, padding=1).relu(), 1),
        ("conv2d, padded, relu, pool", image.conv2d(filters, padding=1).relu().max_pool2d(2), 2),
    ]
    for name, tensor, count in rows:
        items = tensor.schedule()
        print(f"  {name:<28} {kernels(len(items))}" + "".join(f"\n      {i.reasons[0]}" for i in items[:-1]))
        assert len(items) == count, f"{name}: {len(items)}"
    forward = kernels_of(rows[1][1])
    backward = kernels_of(*rows[1][1].square().sum().gradient(x, w, b))
    print(f"  layer norm: {forward} kernel forward; the three gradients (x, scale, shift) together take {backward}")


def show_matmul() -> None:
    chapter(f"A matrix product of {LARGE}, and the tile it gets")
    tell("A core can multiply far faster than it can load. The recipe keeps a tile of the result in registers, "
         "walks the inner axis "
         "once, and packs the factors into panels that stay in cache.")
    a, b = random(LARGE, LARGE), random(LARGE, LARGE)
    moves = Device[Device.DEFAULT].loop_tree((a @ b).schedule()[0].ast).moves
    print(f"  moves: {', '.join(moves)}")
    assert any("rows=" in move for move in moves) or Device.DEFAULT != "CPU"
    for name, size, settings in (("plain loops (NOOPT=1)", 256, {"NOOPT": 1}), ("the recipe", 256, {}),
                              ("the recipe", LARGE, {})):
        a, b = random(size, size), random(size, size)
        want = a.numpy() @ b.numpy()
        with Context(**settings):
            show_speed(name, a, b, times=2 if settings else 5)
            assert np.allclose((a @ b).numpy(), want, rtol=1e-3)


def show_speed(name: str, a: Tensor, b: Tensor, times: int) -> None:
    milliseconds, size = best_ms(lambda: (a @ b).realize(), times=times), a.shape[0]
    speed = 2 * size ** 3 / milliseconds / 1e6
    print(f"  {name:<22} {size:5d} x {size:<5d} {milliseconds:9.1f} ms {speed:8.1f} GFLOPS")


def show_search() -> None:
    chapter("The same product, and the tile that BEAM chose")
    tell("The recipe computes its tile from the number of registers and the size of the caches. BEAM=2 starts from it, "
         "changes one number at a time, and measures, in a process of its own. A candidate must give the same "
         "bits, and must be clearly faster in the end; otherwise the recipe stays.")
    a, b = random(LARGE, LARGE), random(LARGE, LARGE)
    plain = (a @ b).numpy()
    device = Device[Device.DEFAULT]
    ast = (a @ b).schedule()[0].ast
    recipe = device.loop_tree(ast).moves
    with Context(BEAM=2, BEAM_SECONDS=2 if SHORT else 30):
        tuned = (a @ b).numpy()                      # searches, or knows from an earlier run
        chosen = device.loop_tree(ast).moves
        show_speed("BEAM=2", a, b, times=5)
    show_speed("the recipe", a, b, times=5)
    print(f"  the recipe: {', '.join(recipe)}")
    print(f"  BEAM=2:     {', '.join(chosen) if chosen != recipe else 'the recipe stays'}")
    assert (tuned == plain).all(), "a search changes the time, and not one bit"


if __name__ == "__main__":
    Tensor.manual_seed(5)
    show_schedule()
    show_passes()
    show_algebra()
    show_counts()
    show_matmul()
    show_search()
