"""Project 2: the three kinds of operation, and what each becomes. Run it: python projects/02_op_types.py

Its page is docs/guide/02_op_types.md. With `--guess` it asks for your own count before it shows each answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from telling import body_of, chapter, kernels_of, kernels_run, plain_source, tell, tree

from glassgrad import Context, Device, GlobalCounters, Tensor
from glassgrad.compiler.graph.ops import Kind

ROWS, COLUMNS = 4, 6


def elementwise(x: Tensor) -> None:
    chapter("Elementwise: the same shape out as in")
    tell("Each result needs one element of each source, at the same place. It becomes an expression inside the "
         "loops over "
         "the result.")
    for text, y in (("x * 2 + 1", x * 2 + 1), ("(x > 0).where(x, 0.1 * x)", (x > 0).where(x, 0.1 * x))):
        assert y.shape == x.shape and kernels_of(y) == 1
        print(f"\n{text}\n{plain_source(y)}")


def reduce(x: Tensor) -> None:
    chapter("Reduce: an axis disappears")
    tell("Each result needs a whole row of its source: a loop inside the loops, with an accumulator that starts "
         "at the "
         "operation's neutral element (0 for a sum, minus infinity for a maximum).")
    for text, y in (("x.sum(1)", x.sum(1)), ("x.max(0)", x.max(0))):
        assert kernels_of(y) == 1 and y.uop.base.op.kind is Kind.REDUCE
        print(f"\n{text}   {x.shape} -> {y.shape}\n{plain_source(y)}")
    tell("Compare the indices: axis 1 lies side by side in memory (k0), axis 0 is 6 elements apart (k0 * 6). "
         "The loops are "
         "alike; the memory they walk is not.")


def movement(x: Tensor) -> None:
    chapter("Movement: nothing is computed, so nothing runs")
    views = {
        "x.reshape(3, 8)": x.reshape(3, 8),
        "x.T": x.T,
        "x[1:3, ::2]": x[1:3, ::2],
        "x.flip(0)": x.flip(0),
        "x.reshape(4, 1, 6).expand(4, 5, 6)": x.reshape(4, 1, 6).expand(4, 5, 6),
    }
    GlobalCounters.reset()
    for text, y in views.items():
        print(f"  {text:<36} shape {y.shape!s:<10} {kernels_of(y)} kernels, {kernels_run(y.realize)} run by realize()")
        assert kernels_of(y) == 0
    assert GlobalCounters.kernel_count == 0
    tell("A view is another way to read the same memory. Where it meets an operation it turns into index "
         "arithmetic, and is "
         "gone. Each of these adds 1 to a view of x; look only at how data1 is read:")
    moved: list[tuple[str, Tensor, Callable[[np.ndarray], np.ndarray]]] = [
        ("x.T + 1", x.T + 1, lambda x: x.T + 1),
        ("x[1:3, ::2] + 1", x[1:3, ::2] + 1, lambda x: x[1:3, ::2] + 1),
        ("x.flip(0) + 1", x.flip(0) + 1, lambda x: x[::-1] + 1),
        ("x.pad(((1, 1), (0, 0))) + 1", x.pad(((1, 1), (0, 0))) + 1, lambda x: np.pad(x, ((1, 1), (0, 0))) + 1),
    ]
    for text, y, same in moved:
        line = next(line for line in plain_source(y).splitlines() if "data0[" in line)
        print(f"  {text:<30}{line.strip()}")
        assert np.array_equal(y.numpy(), same(x.numpy()))
    tell("Where a slice starts is not in the index: the kernel gets a pointer that already points there, "
         "so all slices "
         "of one shape share one kernel. pad is the one that looks before it reads: outside there is 0. "
         "Repeating an axis costs no memory at all; the element "
         "is read again:")
    big = Tensor([1.0, 2.0]).reshape(2, 1).expand(2, 1_000_000_000)
    last = big[1, 999_999_999].item()
    print(f"  a tensor of {big.numel():,} elements, {kernels_of(big)} kernels; its last one is {last}")


def matmul() -> None:
    chapter("A matrix product is expand, multiply, sum")
    Tensor.manual_seed(2)
    a, b = Tensor.randn(64, 32).realize(), Tensor.randn(32, 48).realize()
    wide_a = a.reshape(64, 32, 1).expand(64, 32, 48)        # (row, inner, column): the same for every column
    wide_b = b.reshape(1, 32, 48).expand(64, 32, 48)        # (row, inner, column): the same for every row
    product = (wide_a * wide_b).sum(1)
    print(tree(product.uop))
    counts = kernels_of(product), kernels_of(a @ b)         # before reading them: a value that is known needs no kernel
    difference = float(np.abs(product.numpy() - (a @ b).numpy()).max())
    print(f"\nkernels: {counts[0]} for expand * multiply * sum, {counts[1]} for a @ b;"
          f" largest difference {difference:.1e}")
    assert counts == (1, 1) and difference < 1e-4
    tell("The 64 x 32 x 48 products never exist in memory: the multiplication is an expression inside the sum's "
         "loop.")
    print(plain_source(a @ b))
    tell("There is no matmul operation in the whole table of ops; @ builds this graph. The optimizer recognises "
         "a sum of "
         "products whose factors are used again and again, and rewrites these three loops into tiles of registers:")
    item = (a @ b).schedule()[0]
    print(f"  moves: {', '.join(Device[Device.DEFAULT].loop_tree(item.ast).moves) or 'none on this device'}")


def predict() -> None:
    chapter("Predict, then count")
    tell("How many kernels? Movement is free, elementwise melts into its neighbours, a reduction ends a kernel "
         "only where "
         "its result is needed before the next step. Write down your guess before reading the right-hand column.")
    x, w = Tensor.rand(256, 256).realize(), Tensor.rand(256, 256).realize()
    questions: list[tuple[str, Tensor, int, str]] = [
        ("x.T.reshape(-1)[10:20]", x.T.reshape(-1)[10:20], 0, "views only"),
        ("(x * 2 + 1).exp()", (x * 2 + 1).exp(), 1, "one loop over the elements"),
        ("(x + w).sum()", (x + w).sum(), 1, "elementwise before a sum is inside it"),
        ("x.sum(0) * 2", x.sum(0) * 2, 1, "elementwise after a sum is done with its result at hand"),
        ("x.softmax(1)", x.softmax(1), 1, "two reductions of the same rows: one row at a time, all steps"),
        ("x @ w", x @ w, 1, "expand * multiply * sum"),
        ("(x @ w + 1).relu()", (x @ w + 1).relu(), 1, "bias and relu while the result is still in registers"),
        ("x @ w @ w", x @ w @ w, 2, "every element of the second product needs a whole row of the first"),
        ("x - x.mean()", x - x.mean(), 1, "two walks over x in one kernel: first the mean, then the difference"),
        ("x.sum(1).max()", x.sum(1).max(), 2, "the sums are the rows of another reduction"),
        ("x.softmax(1) @ w", x.softmax(1) @ w, 2, "each softmax is used 256 times: computed once, and kept"),
        ("x.contiguous() + 1", x.contiguous() + 1, 1, "x is in memory already, row by row"),
    ]
    right = 0
    for text, tensor, count, why in questions:
        guess = None
        if "--guess" in sys.argv:
            guess = input(f"  {text}: how many kernels? ").strip()
            right += guess == str(count)
        found = kernels_of(tensor)
        print(f"  {text:<26} {found}   {why}")
        assert found == count, f"{text}: {found} kernels, but the text says {count}"
    tell("The scheduler can say itself why a value in between was given memory: item.reasons.")
    for text, tensor, count, _ in questions:
        if count > 1:
            print(f"  {text:<26} {tensor.schedule()[0].reasons[0]}")
    if "--guess" in sys.argv:
        print(f"  you had {right} of {len(questions)}")


def seen_by_the_processor() -> None:
    chapter("What the processor really gets")
    tell("The sources above are plain loops, for reading. Without NOOPT=1 the same kernel is rewritten before "
         "it is compiled: "
         "lanes, tiles, several accumulators, tasks for the cores. This is x.sum(1) of a larger x, as this "
         "machine runs it:")
    x = Tensor.rand(512, 512).realize()
    big = x.sum(1)
    print(body_of(Device["CPU"].source(big.schedule()[0].ast)))
    tell("Both must give the same answer, apart from the order in which floats are added:")
    fast = big.numpy()
    with Context(NOOPT=1):
        plain = Tensor(x.numpy()).sum(1).numpy()      # the numbers in new memory: x.sum(1) is known by now
    print(f"  largest difference {np.abs(plain - fast).max():.1e} in sums of about {plain.mean():.0f}")
    assert np.allclose(plain, fast, rtol=1e-5)


if __name__ == "__main__":
    x = Tensor.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).float().realize()
    elementwise(x)
    reduce(x)
    movement(x)
    matmul()
    predict()
    seen_by_the_processor()
