"""Project 1: what a tensor is, and when anything happens. Run it: python projects/01_tensor_basics.py

Its page is docs/guide/01_tensor_basics.md. Every claim below is also an assert: if one rots, this script fails.
"""

from __future__ import annotations

import time

from telling import best_ms, chapter, kernels, kernels_of, kernels_run, plain_source, tell, tree

from glassgrad import Device, GlobalCounters, Tensor, dtypes


def factories() -> None:
    chapter("Values, shapes and types")
    tell("A tensor is a block of numbers of one type. It can come from Python numbers, or from a rule.")
    made = {
        "Tensor([1, 2, 3])": Tensor([1, 2, 3]),
        "Tensor([1.0, 2.0])": Tensor([1.0, 2.0]),
        "Tensor([True, False])": Tensor([True, False]),
        "Tensor.zeros(2, 3)": Tensor.zeros(2, 3),
        "Tensor.arange(6).reshape(2, 3)": Tensor.arange(6).reshape(2, 3),
        "Tensor.eye(2)": Tensor.eye(2),
        "Tensor.full((2, 2), 7)": Tensor.full((2, 2), 7),
    }
    for text, x in made.items():
        print(f"  {text:<32} shape {x.shape!s:<8} {x.dtype.name:<8} {x.tolist()}")
    assert made["Tensor([1, 2, 3])"].dtype is dtypes.int32 and made["Tensor([1.0, 2.0])"].dtype is dtypes.float32
    tell("Integers become int32 and others float32. Where two types meet, a float wins over a whole "
         "number, and "
         "the wider over the narrower:")
    mixed = Tensor([1, 2]) + Tensor([0.5, 0.5])
    halves = Tensor([1.0, 2.0], dtype=dtypes.float16)
    print(f"  int32 + float32    -> {mixed.dtype.name}   {mixed.tolist()}")
    print(f"  float16 * 2        -> {(halves * 2).dtype.name}   a Python number does not widen a tensor")
    assert mixed.dtype is dtypes.float32 and (halves * 2).dtype is dtypes.float16
    Tensor.manual_seed(0)
    first = Tensor.randn(3).tolist()
    Tensor.manual_seed(0)
    assert Tensor.randn(3).tolist() == first
    tell("Tensor.manual_seed(0) makes random tensors repeat.")


def laziness() -> None:
    chapter("Nothing happens until a value is read")
    GlobalCounters.reset()
    start = time.perf_counter()
    x = Tensor.full((10_000, 10_000), 2.0)
    y = ((x + 1) * 3).sqrt()
    microseconds = (time.perf_counter() - start) * 1e6
    tell(f"A square root of 100 million numbers was 'computed' in {microseconds:,.0f} us: Python only wrote "
         f"down what to "
         f"do. Kernels launched so far: {GlobalCounters.kernel_count}.")
    assert GlobalCounters.kernel_count == 0
    tell("What was written down is a graph of UOps, and y holds its last node:")
    print(tree(y.uop))
    tell("Asking for one element computes that element only: a view says which part of the graph is wanted.")
    element = y[5, 5].item()
    print(f"  y[5, 5] = {element}, after {GlobalCounters.kernel_count} kernel")
    assert element == 3.0 and GlobalCounters.kernel_count == 1


def fusion() -> None:
    chapter("(a + b).relu().sum() is one kernel")
    a, b = Tensor.rand(2000, 2000).realize(), Tensor.rand(2000, 2000).realize()
    x = (a + b).relu().sum()
    before = GlobalCounters.kernel_count
    items = x.schedule()
    again = x.schedule()
    assert len(items) == len(again) == 1 and GlobalCounters.kernel_count == before
    print(f"before realize(): {len(items)} kernel in the schedule (asking ran nothing, so one can ask again)")
    tell("In the kernel, add, relu and sum are one expression inside one loop. Here it is before any optimization "
         "(NOOPT=1), in C:")
    print(plain_source(x))
    tell("The sum a + b is never written to memory: it lives in a register for as long as it takes to add it up.")
    x.realize()
    print(f"after realize():  {len(x.schedule())} kernels in the schedule; the tensor is now {x.uop.base.op} memory")
    assert x.schedule() == [] and x.uop.base.op.name == "BUFFER"

    chapter("The same, step by step, is three kernels")

    def fused() -> Tensor:
        return (a + b).relu().sum().realize()

    def stepwise() -> Tensor:
        total = (a + b).realize()
        positive = total.relu().realize()
        return positive.sum().realize()

    rows = []
    for name, way in (("one expression", fused), ("realized step by step", stepwise)):
        way()
        GlobalCounters.reset()
        way()
        count, megabytes = GlobalCounters.kernel_count, GlobalCounters.global_mem / 1e6
        rows.append((count, megabytes, best_ms(way)))
        print(f"  {name:<22} {kernels(count):<10} {megabytes:6.1f} MB through memory   {rows[-1][2]:.2f} ms")
    assert rows[0][0] == 1 and rows[1][0] == 3
    tell("Both give the same number. a and b are 16 MB each. One kernel reads them: 32 MB. Step by step, 32 MB "
         "are read "
         "and 16 written, then 16 read and 16 written, then 16 read: 96 MB. Memory is what these kernels wait "
         "for, so the "
         "time goes with the megabytes.")
    assert abs(rows[0][1] - 32) < 0.1 and abs(rows[1][1] - 96) < 0.1
    assert abs(fused().item() - stepwise().item()) < 1e-4 * fused().item()


def reading() -> None:
    chapter("Looking is not cutting")
    x = Tensor([1.0, 2.0, 3.0])
    loss = (x * x).sum()
    print(f"  loss.item() = {loss.item()}")
    loss.backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0, 6.0]
    print(f"  x.grad      = {x.grad.tolist()}")
    tell("item(), numpy(), tolist() and print() compute a value and remember it, and the expression stays: "
         "backward() still "
         "finds its way. realize() is the cut: it keeps the value and drops where it came from.")
    y = Tensor([1.0, 2.0]) + 1
    assert kernels_run(y.tolist) == 1 and kernels_run(y.tolist) == 0
    assert kernels_of(y) == 0
    tell("Reading a second time runs nothing.")


if __name__ == "__main__":
    print(f"glassgrad on {Device.DEFAULT}")
    factories()
    laziness()
    fusion()
    reading()
