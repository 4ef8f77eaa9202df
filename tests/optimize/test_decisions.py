"""A kernel's optimization as data: every neighbour gives the same bits; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from loop_kernels import AMX, AVX2, AVX512

from glassgrad import Tensor
from glassgrad.compiler.check.graph_interpreter import to_storage
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import Choice, Decisions, Refused, read
from glassgrad.compiler.optimize.plain.lanes_and_tasks import Lanes
from glassgrad.compiler.optimize.recipes import decide, optimize
from glassgrad.compiler.optimize.targets.target import Target

SMALL = Target("x86_64", 16, 16, frozenset({"sse2"}), l1_bytes=1 << 10, l2_bytes=4 << 10)


def kernel_of(make: Callable[..., Tensor], *shapes: tuple[int, ...]) -> UOp:
    """The last kernel of an expression of tensors of these shapes."""
    item = make(*[Tensor.zeros(s).contiguous().realize() for s in shapes]).schedule()[-1]
    return item.ast


def run(kernel: Kernel, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    arrays = [to_storage(rng.standard_normal(p.size), p.dtype).copy() for p in kernel.params]
    run_kernel(kernel, arrays)
    return [arrays[slot].tobytes() for slot in kernel.written]


KERNELS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "matmul of primes": (lambda a, b: a @ b, ((13, 31), (31, 37))),
    "a long sum": (lambda a, b: a @ b, ((3, 2100), (2100, 5))),
    "one row": (lambda a, b: a @ b, ((2, 33), (33, 67))),
    "each task packs its own part": (lambda a, b: (a @ b).relu(), ((70, 60), (60, 601))),
    "the same, transposed": (lambda a, b: a.T @ b.T, ((60, 70), (601, 60))),
    "transposed factors": (lambda a, b: a.T @ b.T, ((17, 19), (23, 17))),
    "sliced and flipped": (lambda a, b: a[1:, ::2].flip(1) @ b[::2, 3:] + 1, ((18, 34), (34, 40))),
    "a batch, prologue, epilogue": (lambda a, b, c: ((a * 2) @ b + c).relu(), ((3, 11, 16), (3, 16, 17), (17,))),
    "convolution": (lambda x, w: x.conv2d(w), ((1, 3, 11, 11), (5, 3, 3, 3))),
    "convolution of channels": (lambda x, w: x.conv2d(w), ((2, 16, 6, 7), (16, 16, 3, 3))),
    "its gradient by the weight": (lambda x, w: x.conv2d(w).square().sum().gradient(w)[0], ((5, 1, 13, 13),
                                                                                            (3, 1, 3, 3))),
    "bfloat16": (lambda a, b: a.cast("bfloat16").realize() @ b.cast("bfloat16").realize(), ((37, 70), (70, 41))),
    "a map": (lambda x, y: (x * y + 1).exp(), ((97,), (97,))),
    "a transposed map": (lambda x, y: x.T + y, ((13, 29), (29, 13))),
    "a copy across": (lambda x: x.permute(2, 1, 0) * 2, ((37, 3, 50),)),
    "one element": (lambda x: x + 1, ((1,),)),
    "rows summed": (lambda x: x.sum(1), ((31, 67),)),
    "columns summed": (lambda x: x[:, ::2].sum(0), ((67, 34),)),
    "long rows, several at once": (lambda x, y: (x * y).sum(1), ((37, 300), (300,))),
    "columns along slices": (lambda x, y: y @ x, ((67, 1024), (1, 67))),
    "softmax": (lambda x: x.softmax(1), ((5, 131),)),
    "a running sum": (lambda x: x.cumsum(0), ((67, 17),)),
}


@pytest.mark.parametrize("name, target", [*[(name, AVX512) for name in KERNELS], ("matmul of primes", SMALL),
                                          ("columns along slices", SMALL), ("softmax", AVX2), ("convolution", AVX2),
                                          ("bfloat16", AMX)])
def test_every_neighbour_gives_the_same_bits(name: str, target: Target) -> None:
    make, shapes = KERNELS[name]
    plain = lower(kernel_of(make, *shapes))
    decisions = Decisions()
    recipe = decide(plain, target, decisions)
    for which, kind in (("its gradient by the weight", "contract("), ("convolution of channels", "direct("),
                        ("bfloat16", "unit(" if target is AMX else "contract(")):
        assert name != which or recipe.moves[0].startswith(kind), recipe.moves
    wanted, tried = run(recipe), 0
    for moves in decisions.neighbours():
        try:
            kernel = optimize(plain, target, given=moves)
        except Refused:
            continue                       # a decision can change which questions follow it
        assert kernel.moves == moves
        assert run(kernel) == wanted, f"{recipe.moves} -> {moves}"
        tried += 1
    assert tried or name in ("one element", "a running sum"), "nothing to choose here"


@pytest.mark.parametrize("name", KERNELS)
def test_a_description_can_be_replayed(name: str) -> None:
    make, shapes = KERNELS[name]
    plain = lower(kernel_of(make, *shapes))
    moves = optimize(plain, AVX2).moves
    assert optimize(plain, AVX2, given=moves).moves == moves
    assert [str(read(text)) for text in moves] == moves


def refused(moves: list[str], change: Callable[[str], str]) -> str:
    plain = lower(kernel_of(lambda a, b: a @ b, (13, 31), (31, 37)))
    with pytest.raises(Refused) as caught:
        optimize(plain, AVX2, given=[change(m) for m in moves])
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_a_reason() -> None:
    make, shapes = KERNELS["matmul of primes"]
    plain = lower(kernel_of(make, *shapes))
    own = optimize(plain, AVX2).moves
    assert own == ["contract(rows=13, vectors=1, lanes=8, block_m=1, block_n=5, left=in_place, right=in_place, "
                   "ahead=no)"]
    for old, new, why in [
            ("rows=13", "rows=40", "there are 13 rows"), ("lanes=8", "lanes=16", "1, 2, 4 .. 8 lanes"),
            ("lanes=8", "lanes=3", "1, 2, 4 .. 8 lanes"), ("block_m=1", "block_m=4", "larger than the product"),
            ("vectors=1", "vectors=9", "117 of 16 registers"),
            (", ahead=no", ", ahead=no, k_block=16", "fixed: 0"), ("rows=13", "rows=five", "no int"),
            ("rows=13, ", "", "lacks rows"), ("rows=13", "depth=5", "not a field"),
            ("contract", "contact", "none of the known moves"), ("contract", "direct", "one of contract"),
            ("left=in_place", "left=shared", "in place or from panels")]:
        assert why in refused(own, lambda text, old=old, new=new: text.replace(old, new)), new
    with pytest.raises(Refused, match="ends before contract"):
        optimize(plain, AVX2, given=[])
    with pytest.raises(Refused, match="makes no such decision"):
        optimize(plain, AVX2, given=[*own, "tasks(count=2)"])
    with pytest.raises(Refused, match="the decision here is one of contract"):
        optimize(plain, AVX2, given=["tasks(count=2)"])


def test_neighbours_change_one_free_field() -> None:
    here = Lanes("i0", 4, 8)
    assert {str(c) for c in here.neighbours()} == {f"lanes(loop=i0, tile={t}, lanes={v})" for t, v in (
        (8, 8), (2, 8), (5, 8), (3, 8), (4, 16), (4, 4), (4, 9), (4, 7))}
    kinds = {"lanes", "fold", "group", "tasks", "contract", "taps"}
    assert kinds <= set(Choice.kinds), "every kind of decision can be read back"
