"""Decide which results share a kernel, and in which order kernels run. In: stored nodes. Out: `KernelGroup`s, in order.

Related results with the same shape, except for axes of length 1, share one kernel: a result and the values computed
from it elementwise (a gradient and the updated weight), and results that read the same values (an optimizer's moments).
On a GPU, so do reductions of the same rows, such as a mean and a variance, and small unrelated maps of one shape, such
as the updates of many biases, because a launch takes longer than they do. A kernel runs after those it reads from, and
kernels that free memory run before those that allocate it. A kernel that computes the new value of an input (an
optimizer's step) runs after the other readers of the old value, so that a jit can overwrite it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from heapq import heappop, heappush
from operator import or_
from typing import Any, NamedTuple

from glassgrad.compiler.graph import Shape, UOp, ops as o, toposort, upper_bound
from glassgrad.compiler.schedule.fusion import DEEP_ENOUGH, LONG_ENOUGH, OTHER_BUFFERS
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, LEAVES, OUT_OF_ORDER, FusionLimits
from glassgrad.compiler.schedule.partial_updates import part_of

MOST_RESULTS = 8      # related results in one kernel
SMALL_MAP = 1 << 14   # elements up to which a launch takes longer than the kernel
LONG_MAP = 60         # operations per element from which it is better to compile equal kernels once than to fuse them


@dataclass(eq=False)
class KernelGroup:
    """The results of one kernel, and what the kernel needs."""
    roots: list[UOp]
    reads: dict[UOp, bool]       # stored nodes and leaves it reads -> whether only elementwise
    needs: int                   # bit set of the groups it depends on, including itself
    reduces: bool
    bit: int
    rows: ReducedRows | None = None     # the rows that all its reductions reduce, or None


class ReducedRows(NamedTuple):
    """What a reduction reduces: the shape of its source, and the reduced axes."""
    shape: Shape
    axes: tuple[int, ...]

    @property
    def last(self) -> bool:
        """Whether the last axes are reduced, so that rows are contiguous."""
        return self.axes == tuple(range(len(self.shape) - len(self.axes), len(self.shape)))

    def among(self, reads: Iterable[UOp]) -> set[UOp]:
        """Those of the values read that have about as many elements as are reduced (fewer where rows are padded)."""
        size = math.prod(map(upper_bound, self.shape))
        return {r for r in reads if size * 3 // 4 < upper_bound(r.size) <= size}


def group_results(reasons: dict[UOp, str], outputs: set[UOp], stored_by: dict[UOp, UOp],
                  limits: FusionLimits = CPU_LIMITS) -> list[KernelGroup]:
    """Group the stored nodes by kernel, in execution order. `outputs` are still needed after the run; `stored_by` maps
    a node to the node whose kernel stores it too."""
    groups: list[KernelGroup] = []
    group_of: dict[UOp, KernelGroup] = {}
    by_shape: dict[Shape, list[KernelGroup]] = {}
    recurrences: dict[Any, KernelGroup] = {}         # recurrence -> the group of all its results
    for node in _kernels_in_order(reasons, stored_by) if stored_by else reasons:
        steps = (node.src, node.arg._replace(result=0, last=False)) if node.op is o.RECURRENCE else None
        if steps in recurrences:
            recurrences[steps].roots.append(node)
            group_of[node] = recurrences[steps]
            continue
        roots = [*[n for n, result in stored_by.items() if result is node], node]
        fresh = _new_group(roots, 1 << len(groups), group_of, reasons, limits)
        if steps is not None:
            recurrences[steps] = fresh
        alone = _runs_alone(roots, reasons, outputs)
        near = by_shape.get(squeezed(node), [])[-MOST_RESULTS:]
        joined = None if alone else _join(fresh, near, group_of, groups, reasons, limits)
        if joined is not None:
            group_of[node] = joined
            continue
        groups.append(fresh)
        group_of.update((root, fresh) for root in roots)
        if not alone:
            by_shape.setdefault(squeezed(node), []).append(fresh)
    if limits.side_by_side:
        for maps in by_shape.values():
            small = [group for group in maps if not group.reduces]
            _join_small_maps(small, groups, group_of, min(limits.side_by_side, limits.buffers))
    return _new_values_later(_in_memory_order(groups, group_of, outputs), outputs)


def _new_group(roots: list[UOp], bit: int, group_of: dict[UOp, KernelGroup], reasons: dict[UOp, str],
               limits: FusionLimits) -> KernelGroup:
    """Make the group of some results; the last of them names the kernel."""
    node = roots[-1]
    found, reduces = _reads(node, reasons)
    for other in roots[:-1]:
        found.update((r, found.get(r, True) and plain) for r, plain in _reads(other, reasons)[0].items())
    reads = {r: plain for r, plain in found.items() if r not in roots}
    rows = _rows(node, reads, reasons) if reduces and limits.few_rows else None
    if rows is not None and rows.last and node.size < limits.few_rows and \
            (math.prod([upper_bound(rows.shape[a]) for a in rows.axes]) > limits.held_row or
             any(n.op in OUT_OF_ORDER for n in _inside(node, reasons))):
        rows = None                          # no thread group can hold a row
    return KernelGroup(roots, reads, bit | _needs(reads, group_of), reduces, bit, rows)


def _runs_alone(roots: list[UOp], reasons: dict[UOp, str], outputs: set[UOp]) -> bool:
    """Whether no other result may join the kernel of these: copies, scans, recurrences, writes by index or to a part,
    and kernels that compute several weighted sums together."""
    node = roots[-1]
    return _writer(node, reasons).op in (o.COPY, o.SCATTER, o.SCAN, o.RECURRENCE) or \
        (node.op is o.WHERE and node in outputs and part_of(node) is not None) or \
        any(r.size == node.size for r in roots[:-1])


def _writer(node: UOp, reasons: dict[UOp, str]) -> UOp:
    """The node that computes a stored value: the one below CONTIGUOUS and RESHAPE, unless that is stored itself."""
    while node.op in (o.CONTIGUOUS, o.RESHAPE) and node.src[0] not in reasons:
        node = node.src[0]
    return node


def _join_small_maps(maps: list[KernelGroup], groups: list[KernelGroup], group_of: dict[UOp, KernelGroup],
                     most_values: int) -> None:
    """Join small maps of one shape to the kernel of an earlier one, where neither depends on the other."""
    into: KernelGroup | None = None
    for group in maps:
        if upper_bound(group.roots[0].size) > SMALL_MAP:
            return
        if into is None or _values(into) + _values(group) > most_values or into.needs & group.bit or \
                group.needs & into.bit or into.roots[0].device != group.roots[0].device:
            into = group
            continue
        into.roots += group.roots
        into.reads |= {r: plain and into.reads.get(r, True) for r, plain in group.reads.items()}
        into.bit |= group.bit
        _add_needs(groups, into.bit, into.needs | group.needs)
        group_of.update((root, into) for root in group.roots)
        groups.remove(group)


def _needs(values: Iterable[UOp], group_of: dict[UOp, KernelGroup]) -> int:
    """The bit set of the groups that compute these values, and of all groups that those depend on."""
    return reduce(or_, [group_of[value].needs for value in values if value in group_of], 0)


def _add_needs(groups: list[KernelGroup], bit: int, needs: int) -> None:
    """Add dependencies to a group, and to all groups that depend on it."""
    for group in groups:
        if group.needs & bit:
            group.needs |= needs


def _values(group: KernelGroup) -> int:
    """How many values in memory a kernel reads and writes."""
    return len(group.roots) + len(group.reads)


def _kernels_in_order(reasons: dict[UOp, str], stored_by: dict[UOp, UOp]) -> list[UOp]:
    """The stored nodes, except those stored by other nodes' kernels, each after all nodes that its kernel reads."""
    def read(node: UOp) -> list[UOp]:
        roots = [*[n for n, result in stored_by.items() if result is node], node]
        return [stored_by.get(r, r) for root in roots for r in _reads(root, reasons)[0]
                if r in reasons and stored_by.get(r) is not node]

    return toposort([node for node in reasons if node not in stored_by], read)


def _join(fresh: KernelGroup, candidates: list[KernelGroup], group_of: dict[UOp, KernelGroup],
          groups: list[KernelGroup], reasons: dict[UOp, str], limits: FusionLimits) -> KernelGroup | None:
    """Join a new result to a group with which it may share a kernel, and return that group; None if none fits."""
    node = fresh.roots[0]
    for group in reversed(candidates):
        if not _suits(fresh, group, reasons, limits):
            continue
        outside_needs = _needs([r for r in fresh.reads if r not in group.roots], group_of)
        if outside_needs & group.bit:
            continue  # it depends on a third kernel that depends on this group: joining makes a cycle
        group.roots.append(node)
        for r, plain in fresh.reads.items():
            if r not in group.roots:
                group.reads[r] = group.reads.get(r, True) and plain
        if outside_needs & ~group.needs:
            _add_needs(groups, group.bit, outside_needs)
        return group
    return None


def _suits(fresh: KernelGroup, group: KernelGroup, reasons: dict[UOp, str], limits: FusionLimits) -> bool:
    """Whether one kernel may compute a new result with a group, and should: it reduces the same rows, reads the group's
    results element by element, or reads a value that the group reads too."""
    node = fresh.roots[0]
    arguments = len(group.roots) + len({*group.reads, *fresh.reads}) + OTHER_BUFFERS
    if len(group.roots) >= MOST_RESULTS or group.roots[0].device != node.device or arguments > limits.buffers:
        return False
    inside = [r for r in fresh.reads if r in group.roots]
    if any(reasons[r] in (LONG_ENOUGH, DEEP_ENOUGH) for r in inside):
        return False                      # that kernel was ended on purpose: it is long or deep
    if _same_rows(fresh, group) and (node.size >= limits.few_rows or
                                     all(_row_by_row(node, r, reasons) for r in inside)):
        return True
    if fresh.reduces:
        return False
    if inside:
        return all(fresh.reads[r] for r in inside)
    return not group.reduces and any(r in group.reads and (r.size > 1 or _short(node, reasons)) for r in fresh.reads)


def _short(root: UOp, reasons: dict[UOp, str]) -> bool:
    """Whether a result takes so few operations that reading the same scalar is reason enough to share a kernel."""
    return sum([n.op.cost for n in _inside(root, reasons) if n.op in o.ELEMENTWISE or n.op is o.RANDOM]) < LONG_MAP


def _same_rows(fresh: KernelGroup, group: KernelGroup) -> bool:
    """Whether one kernel should do the reductions of both: they reduce the same rows; or the same columns, if they read
    the same values and the new result does not read the other."""
    rows = fresh.rows
    if rows is None or rows != group.rows:
        return False
    return rows.last or not rows.among(fresh.reads).isdisjoint(group.reads) and \
        not any(r in group.roots for r in fresh.reads)


def _row_by_row(root: UOp, read: UOp, reasons: dict[UOp, str]) -> bool:
    """Whether each row of a result reads only the same row of another value: no permute, no reshape across rows."""
    reached = {read}
    for node in reversed(_inside(root, reasons)):
        if not reached.isdisjoint(node.src):
            if node.op is o.PERMUTE or node.op is o.RESHAPE and _leading(node) != _leading(node.src[0]):
                return False
            reached.add(node)
    return True


def _leading(node: UOp) -> Shape:
    """A shape without its trailing axes of length 1."""
    shape = node.shape
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _reads(root: UOp, reasons: dict[UOp, str]) -> tuple[dict[UOp, bool], bool]:
    """The values that a result's kernel reads, each with whether only elementwise; and whether the kernel reduces."""
    reads: dict[UOp, bool] = {}
    reduces = False
    shape = squeezed(root)
    plain: dict[UOp, bool] = {root: True}
    for node in _inside(root, reasons):
        reduces = reduces or node.op in o.REDUCE
        straight = plain.get(node, True) and (node.op in o.ELEMENTWISE or
                                              node.op in (o.CONTIGUOUS, o.DETACH, o.RESHAPE))
        for s in node.src:
            through = straight and squeezed(s) == shape
            if s in reasons or s.op in LEAVES:
                if s.op not in (o.CONST, o.SCALAR):
                    reads[s] = reads.get(s, True) and through
            else:
                plain[s] = plain.get(s, True) and through
    return reads, reduces


def _rows(root: UOp, reads: dict[UOp, bool], reasons: dict[UOp, str]) -> ReducedRows | None:
    """The rows that all reductions of a result reduce; None where they differ, or no value of that size is read."""
    found = {ReducedRows(n.src[0].shape, tuple(n.arg.axes)) for n in _inside(root, reasons) if n.op in o.REDUCE}
    return found.pop() if len(found) == 1 and next(iter(found)).among(reads) else None


def squeezed(node: UOp) -> Shape:
    """A shape without its axes of length 1: shapes that agree in this have the same elements in order."""
    return tuple([n for n in node.shape if n != 1])


def _inside(root: UOp, reasons: dict[UOp, str]) -> list[UOp]:
    """The nodes computed in the kernel of a result, users first."""
    order = toposort([root], lambda node: [s for s in reversed(node.src) if s not in reasons and s.op not in LEAVES])
    order.reverse()
    return order


def _in_memory_order(groups: list[KernelGroup], group_of: dict[UOp, KernelGroup],
                     outputs: set[UOp]) -> list[KernelGroup]:
    """Reorder the groups, each still after those it reads from, so that fewer values are alive at a time: a ready group
    that frees at least as much memory as it allocates runs next. For example, the gradient of a weight is the last
    reader of a layer's input. Each group and each value is visited once, so the time is that of sorting."""
    reads = [{r for r in group.reads if r in group_of and group_of[r] is not group} for group in groups]
    readers: dict[UOp, list[int]] = {}
    for i, values in enumerate(reads):
        for value in values:
            readers.setdefault(value, []).append(i)
    left = {value: len(waiting) for value, waiting in readers.items()}           # value -> readers that have not run
    # per group: how many groups it still waits for
    missing = [len({group_of[value].bit for value in values}) for values in reads]
    takes = [sum(_bytes(r) for r in group.roots if r not in outputs) for group in groups]

    def ends(value: UOp, reader: int) -> None:
        """Note that `reader` is the last remaining reader of a value, and so frees its memory."""
        if value not in outputs:
            takes[reader] -= _bytes(value)

    for value, waiting in readers.items():
        if len(waiting) == 1:
            ends(value, waiting[0])
    done = [False] * len(groups)
    # a heap, in which groups that free memory come first
    ready = sorted((takes[i] > 0, i) for i, count in enumerate(missing) if not count)
    out: list[KernelGroup] = []
    while ready:
        _, at = heappop(ready)
        if done[at]:
            continue
        done[at] = True
        out.append(groups[at])
        for value in reads[at]:
            left[value] -= 1
            if left[value] == 1:
                last = next(i for i in readers[value] if not done[i])
                ends(value, last)
                if not missing[last]:
                    heappush(ready, (takes[last] > 0, last))
        for follower in dict.fromkeys(i for r in groups[at].roots for i in readers.get(r, [])):
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (takes[follower] > 0, follower))
    return out


def _new_values_later(order: list[KernelGroup], outputs: set[UOp]) -> list[KernelGroup]:
    """Move each group that may overwrite an input with an output (if it is the only such group) behind the other groups
    that read the input, unless one of these depends on it."""
    readers: dict[UOp, list[KernelGroup]] = {}
    for group in order:
        for value in group.reads:
            readers.setdefault(value, []).append(group)
    for value, found in readers.items():
        like = (value.dtype, squeezed(value))
        writers = [group for group in found if value.op is o.PARAM and group.reads[value] and any(
            r in outputs and (r.dtype, squeezed(r)) == like for r in group.roots)]
        if len(writers) == 1 and len(found) > 1:
            at, last = order.index(writers[0]), max(map(order.index, found))
            if not any(group.needs & writers[0].bit for group in order[at + 1:last + 1]):
                order.insert(last, order.pop(at))
    return order


def _bytes(node: UOp) -> int:
    return node.size * node.dtype.itemsize
