"""Lower one kernel's graph to loops. In: a SINK of STOREs over PARAMs. Out: a loop tree (`Kernel`), not optimized.

Each output axis becomes a counter, and each result is computed at these counters (element_expressions.py). A costly
value that several loops of one row read is kept in LOCAL memory (`choose_kept`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from glassgrad.compiler.graph import Length, UOp, ops as o, toposort, upper_bound
from glassgrad.compiler.graph.index_algebra import index
from glassgrad.compiler.lower.attention.attention_backward import ComputedFactor
from glassgrad.compiler.lower.attention.attention_blocks import SCORE_BLOCKS, ScoreBlocks
from glassgrad.compiler.lower.attention.online_softmax import OnlineSoftmax
from glassgrad.compiler.lower.element_expressions import Block, Values, flatten, source_index
from glassgrad.compiler.lower.loops import Kernel, Phase, Store
from glassgrad.compiler.lower.scatter_and_scan import ScatterAndScan
from glassgrad.compiler.lower.steps_of_items import ScheduleStep, StepsOfItems
from glassgrad.compiler.schedule.attention_backward import FactorProduct, in_kernel
from glassgrad.compiler.schedule.online_softmax import SoftmaxProduct

KEEP_COST = 12            # a value of at least this cost (in vector instructions) is kept, not computed again
KEEP_BYTES = 256 * 1024   # the longest row that is kept: on a CPU, it should stay in the second-level cache


def lower(sink: UOp, keep_bytes: int = KEEP_BYTES, blocks: ScoreBlocks = SCORE_BLOCKS,
          schedule: ScheduleStep | None = None) -> Kernel:
    """Lower a kernel's graph to a plain loop tree. A task keeps rows of up to `keep_bytes`, and computes
    softmax(scores) times values in these blocks. `schedule` makes the kernels of one step of a recurrence.

    The graph is lowered again for each value that is worth keeping in LOCAL memory; a matmul has none.
    """
    if sink.src[0].op is o.STORE and sink.src[0].src[1].op is o.RECURRENCE:
        assert schedule is not None
        return StepsOfItems(sink, schedule, lambda ast: lower(ast, keep_bytes, blocks)).kernel()
    chains = in_kernel(sink) if any(n.op is o.EXP2 for n in toposort([sink])) else []
    if chains and isinstance(chains[0], SoftmaxProduct):
        return _online_softmax(sink, chains[0], blocks)
    if chains:
        return ComputedFactor(sink, [c for c in chains if isinstance(c, FactorProduct)], blocks).kernel()
    kept: dict[UOp, tuple[int, ...]] = {}
    while True:
        lowering = _Lowering(sink, kept)
        kernel = lowering.run()
        found = lowering.choose_kept(keep_bytes)
        if found is None:
            return kernel
        node, axes = found
        kept[node] = axes


def _online_softmax(sink: UOp, chain: SoftmaxProduct, blocks: ScoreBlocks) -> Kernel:
    """The loops of softmax(scores) times values; on a CPU, run-time rows are cut into blocks of several sizes."""
    size = chain.weights.shape[chain.row_axis]
    if blocks.equal_sizes or not isinstance(size, Length):
        return OnlineSoftmax(sink, chain, blocks).kernel()
    rows = tuple([n for n in blocks.symbolic_rows if n <= upper_bound(size)]) or blocks.symbolic_rows[-1:]
    kernels = [OnlineSoftmax(sink, chain, blocks._replace(symbolic_rows=rows), larger, n).kernel()
               for larger, n in zip((0, *rows), rows)]
    return replace(kernels[0], phases=[phase for kernel in kernels for phase in kernel.phases])


class _Lowering(ScatterAndScan):
    """One attempt at lowering a kernel, with the given values kept in LOCAL memory."""

    def run(self) -> Kernel:
        """Build the kernel: loops over the axes of the results, around the computation and stores of their values."""
        stores = [s for s in self.sink.src if s.op is o.STORE]
        root = stores[0].src[1]
        while root.op is o.RESHAPE and root.src[0].op in (o.RESHAPE, o.SCATTER):     # these share memory
            root = root.src[0]
        if root.op in (o.SCATTER, o.SCAN):
            phases = (self.scatter if root.op is o.SCATTER else self.scan)(stores[0].src[0], root)
            shape = root.shape
        else:
            shape = max((s.src[1] for s in stores), key=lambda value: value.size).shape
            counters = [self.counter(f"i{axis}", n) if upper_bound(n) > 1 or isinstance(n, Length) else index(0)
                        for axis, n in enumerate(shape)]
            for c in self.row_order(counters):
                self.open_blocks.append(Block(c))
                self.outputs.add(c)
            blocks = self.open_blocks
            for s in stores:
                target, value = s.src
                at = tuple(index(0) if n == 1 else c for c, n in zip(counters, value.shape))
                result = self.value_at(value, at, None)
                depth = self.depth(at, None)
                if target.op is o.SHRINK:                # the target is a part of an existing buffer
                    at, _ = source_index(target, at, self.size)
                blocks[depth].statements.append(Store(target.base, flatten(at, target.base.shape, self.size), result))
            phases = [Phase(self.nested(blocks))]
        kind = root.op.name.lower() if root.op in (o.SCATTER, o.SCAN) else "reduce" if self.reductions else "map"
        outputs = [str(n) for n in map(upper_bound, shape) if n > 1]
        sizes = "_".join([*outputs, *[f"r{upper_bound(n)}" for n in self.reduced]])
        written = tuple(s.src[0].base.arg.slot for s in stores)
        return Kernel(f"{kind}_{sizes or 1}", self.params, phases, written)

    def row_order(self, counters: list[UOp]) -> list[UOp]:
        """Order output counters: those that reductions depend on outermost, so that these run once per row."""
        loops = [c for c in counters if c.op is o.RANGE]
        if not self.reductions:
            return loops
        probe = Values(self.sink, self.kept)
        probe.open_blocks += [Block(c) for c in loops]
        probe.extents.update(self.extents)
        votes = probe.votes = dict.fromkeys(loops, 0)
        for value in [s.src[1] for s in self.sink.src if s.op is o.STORE]:
            probe.value_at(value, tuple(index(0) if n == 1 else c for c, n in zip(counters, value.shape)), None)
        return sorted(loops, key=lambda c: -votes[c])

    def choose_kept(self, keep_bytes: int) -> tuple[UOp, tuple[int, ...]] | None:
        """The outermost costly value that several loops of one row read, each over the whole row; or None."""
        if not self.reductions:
            return None
        for node in reversed(toposort([self.sink])):
            requests = list(dict.fromkeys(self.requested.get(node, [])))
            if len(requests) < 2 or node in self.kept or any(gate is not None for _, gate in requests):
                continue
            if _work(node) < KEEP_COST:
                continue
            varying = tuple(a for a in range(len(node.shape)) if len({at[a] for at, _ in requests}) > 1)
            whole_rows = all(at[a].op is o.RANGE and self.extents.get(at[a], at[a].arg.size) == node.shape[a]
                             for at, _ in requests for a in varying)
            distinct = all(len({at[a] for a in varying}) == len(varying) for at, _ in requests)
            size = math.prod(upper_bound(node.shape[a]) for a in varying) * node.dtype.itemsize
            if varying and whole_rows and distinct and size <= keep_bytes:
                return node, varying
        return None


def _work(node: UOp) -> int:
    """The cost of computing one element, down to the loads and reductions below it."""
    inside = toposort([node], lambda n: [s for s in n.src if s.op not in o.REDUCE])
    return sum([n.op.cost for n in inside if n.op in o.ELEMENTWISE or n.op is o.RANDOM])
