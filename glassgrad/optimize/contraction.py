"""Any sum of products, fast: the packed recipe. In: a plain loop tree. Out: phases of one that packs and multiplies.

Of the loops around a sum of products, some are seen only by the left factor (M), some only by the right (N), some by
both (batch), and K is summed. Matmul in every transpose, batched matmul, convolution and both its gradients, einsum
and attention scores are all this; none is matched by name.

    phase 1   pack the left factor into panels  [panel of M][K][rows of the tile]     (any view, mask, cast or
    phase 2   pack the right factor likewise    [panel of N][K][columns of the tile]   prologue is absorbed here)
    phase 3   TASK blocks of M: for panels of N: for panels of M: a register tile over all of K, then the epilogue

A register tile of `rows` x `vectors` accumulators reads both panels from end to end, so every line and page that is
touched is used whole. Edges are packed as zeros (or clamped rows) and dropped at the store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.graph import ops as o
from glassgrad.graph.index import add, both, divide, index, linear, modulo, multiply, substitute_index
from glassgrad.graph.uop import UOp, const, identity, toposort
from glassgrad.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Statement, Store, counter, load,
                                   local, ranges_of, register)
from glassgrad.optimize import moves
from glassgrad.optimize.target import Target

LEAST_K = 8              # shorter sums do not repay packing
LEAST_WORK = 4096        # multiply-adds below which plain loops do as well
TASK_WORK = 512 * 1024   # multiply-adds worth a task of their own
CHUNK = 2048             # products added in one register before the sum is put aside: float32 stays accurate


@dataclass
class Product:
    """A sum of products taken apart: out[batch, m, n] = epilogue(sum over k of left[m, k] * right[k, n])."""
    left: UOp
    right: UOp
    m: list[UOp]
    n: list[UOp]
    batch: list[UOp]
    k: list[UOp]
    total: UOp                    # the register that is summed into
    epilogue: list[Statement]


def recognise(body: list[Statement]) -> Product | None:
    """The body as a sum of products, or None."""
    loops: list[UOp] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == TASK:
        loops.append(body[0].range)
        body = body[0].body
    if len(body) < 3 or not isinstance(body[0], Assign) or not isinstance(body[1], For):
        return None
    if not all(isinstance(s, Store) for s in body[2:]):
        return None
    total, inner, k = body[0].register, body[1], [body[1].range]
    while len(inner.body) == 1 and isinstance(inner.body[0], For):
        inner = inner.body[0]
        k.append(inner.range)
    if len(inner.body) != 1 or not isinstance(inner.body[0], Accumulate):
        return None
    step = inner.body[0]
    if step.register is not total or step.combine is not o.ADD or step.value.op is not o.MUL:
        return None
    left, right = step.value.src
    in_left, in_right = ranges_of(left), ranges_of(right)
    if not all(r in in_left and r in in_right for r in k):
        return None
    m = [r for r in loops if r in in_left and r not in in_right]
    n = [r for r in loops if r in in_right and r not in in_left]
    batch = [r for r in loops if (r in in_left) == (r in in_right)]
    product = Product(left, right, m, n, batch, k, total, body[2:])
    return _lanes_on_the_right(product) if m and n else None


def _lanes_on_the_right(p: Product) -> Product:
    """Exchange the factors where the axis that is contiguous in the output belongs to the left one."""
    store = p.epilogue[-1]
    assert isinstance(store, Store)
    _, terms = linear(store.index)
    if any(terms.get(r) == 1 for r in p.m):
        return Product(p.right, p.left, p.n, p.m, p.batch, p.k, p.total, p.epilogue)
    return p


def contraction(body: list[Statement], target: Target, log: list[str]) -> list[list[Statement]] | None:
    """The phases of the packed recipe; refuses (None) what is not a sum of products or is too small to repay it."""
    p = recognise(body)
    if p is None:
        return None
    depth = math.prod(r.arg.size for r in p.k)
    work = depth * math.prod(r.arg.size for r in p.m + p.n + p.batch)
    m_in, m_out = _flat_axis(p.m, p.epilogue, "m")
    n_in, n_out = _image_axis(p) or _flat_axis(p.n, p.epilogue, "n")
    if depth < LEAST_K or work < LEAST_WORK or n_in.size < 4 or m_in.size < 2:
        return None
    itemsize = p.total.dtype.itemsize
    lanes = target.lanes(itemsize)
    vectors = 2 if n_in.size > lanes else 1
    rows = _rows(m_in.size, (target.vector_registers - vectors - 2) // vectors)
    columns = vectors * lanes
    panels_m, panels_n = -(-m_in.size // rows), -(-n_in.size // columns)
    outer = [*p.batch, *m_out, *n_out]
    log.append(f"contract(rows={rows}, columns={vectors} x {lanes}, k={depth})")

    panel_m, row = counter("mo", panels_m), counter("mi", rows)
    panel_n, over, lane = counter("no", panels_n), counter("ni", vectors), counter("l", lanes)
    step = counter("k", depth)
    at_m = add(multiply(_one(panel_m), rows), _one(row))
    column = add(multiply(_one(over), lanes), lane)
    at_n = add(multiply(_one(panel_n), columns), column)
    gate_m, gate_n = moves.below(at_m, m_in.size), moves.below(at_n, n_in.size)

    left = _Operand("left", p.left, m_in, outer, p.k, rows, 1, panels_m)
    right = _Operand("right", p.right, n_in, outer, p.k, columns, vectors, panels_n)
    phases: list[list[Statement]] = [left.pack(lanes)]
    in_place = n_in.pitch > 0
    if in_place:                        # windows of an image: every tap is a vector load from the image itself
        log.append(f"image(pitch={n_in.pitch})")
        flat = index(0)
        for r in p.k:
            flat = add(multiply(flat, r.arg.size), r)
        a = load(left.memory, left.place(_one(panel_m), flat, _one(row)))
        b = moves.edge_gate(substitute_index(p.right, n_in.apart(at_n), {}), gate_n)
    else:
        phases.append(right.pack(lanes))
        a = load(left.memory, left.place(_one(panel_m), step, _one(row)))
        b = load(right.memory, right.place(_one(panel_n), step, column))
    steps = p.k if in_place else [step]

    wide = tuple(r for r in (row, over, lane) if r.arg.size > 1)
    total = register(p.total.arg, p.total.dtype, wide)
    inner: list[Statement]
    result = total
    if depth > CHUNK and p.total.dtype.is_float and not in_place:
        inner, result = _in_chunks(total, a, b, step, depth, rows * columns, add(multiply(_one(row), columns), column))
    else:
        inner = [Assign(total, identity(o.ADD, total.dtype)), *_summed(steps, [Accumulate(total, o.ADD, a * b)])]
    replace = {p.total: result, **m_in.apart(at_m), **n_in.apart(at_n)}
    gate = both(gate_m, both(gate_n, n_in.gate(at_n)))
    for s in moves.rebuild(p.epilogue, replace):
        assert isinstance(s, Store)
        inner.append(Store(s.memory, s.index, moves.edge_gate(s.value, gate), s.combine, both(gate, s.gate)))
    tile: list[Statement] = [For(lane, LANE, inner)]
    for r in (over, row):
        tile = [For(r, TILE, tile)] if r.arg.size > 1 else tile

    # blocks of M as tasks: as large as keeps their packed rows in the second-level cache, as many as feed the workers
    wanted = max(1, min(16, work // TASK_WORK) // max(1, math.prod(r.arg.size for r in outer)))
    block = max(1, min(panels_m, target.l2_bytes // 4 // (rows * depth * itemsize), -(-panels_m // wanted)))
    blocks_m = -(-panels_m // block)
    blocks_n = max(1, min(panels_n, wanted // blocks_m))
    nested = [moves.tasks(For(panel_m, LOOP, tile), 1)] if panels_m > 1 else tile
    if panels_m > 1 and blocks_m > 1:
        split = moves.tasks(For(panel_m, LOOP, tile), blocks_m)
        around, within = split, split.body
        if split.range is panel_m:                     # one panel each: the task is the panel
            within = tile
        inside = _n_loop(panel_n, within, blocks_n)
        nested = [For(around.range, TASK, inside)]
    else:
        nested = _n_loop(panel_n, nested, blocks_n)
    for r in reversed(outer):
        nested = [For(r, TASK if work >= TASK_WORK else LOOP, nested)]
    return [*phases, nested]


def _summed(steps: list[UOp], body: list[Statement]) -> list[Statement]:
    """The loops over K; short inner ones (the taps of a window) written out."""
    count = 1
    for r in reversed(steps):
        count *= r.arg.size
        if count <= 9 and len(steps) > 1:
            body = [s for i in range(r.arg.size) for s in moves.rebuild(body, {r: index(i)})]
        else:
            body = [For(r, LOOP, body)]
    return body


def _n_loop(panel: UOp, body: list[Statement], blocks: int) -> list[Statement]:
    return [moves.tasks(For(panel, LOOP, body), blocks)] if panel.arg.size > 1 else body


def _in_chunks(total: UOp, a: UOp, b: UOp, step: UOp, depth: int, size: int, place: UOp) -> tuple[list[Statement], UOp]:
    """Sum K in chunks, each put aside into LOCAL memory: no register adds more than CHUNK products."""
    memory = local("tile", total.dtype, size)
    whole, rest = divmod(depth, CHUNK // 2)
    outer, inner, last = counter("kc", whole), counter("k", CHUNK // 2), counter("k", max(rest, 1))
    begin = Assign(total, identity(o.ADD, total.dtype))

    def chunk(along: UOp, at: UOp) -> list[Statement]:
        product = substitute_index(a * b, {step: at}, {})
        return [begin, For(along, LOOP, [Accumulate(total, o.ADD, product)]), Store(memory, place, total, o.ADD)]

    out: list[Statement] = [Store(memory, place, const(0, total.dtype)),
                            For(outer, LOOP, chunk(inner, add(multiply(outer, CHUNK // 2), inner)))]
    if rest:
        out += chunk(last, add(index(whole * (CHUNK // 2)), last))
    return out, load(memory, place)


# -- axes and operands ----------------------------------------------------------------------------------------------------
@dataclass
class FlatAxis:
    """Several loops as one: `size` positions, taken apart again by division where that is needed.

    With a pitch, two loops (rows and columns of an image) are laid out as the image is in memory: a row's positions
    past its last column stand for nothing, and `gate` says where.
    """
    parts: list[UOp]
    size: int
    pitch: int = 0

    def gate(self, at: UOp) -> UOp | None:
        """Where a position stands for something; None: everywhere."""
        if not self.pitch:
            return None
        return moves.below(modulo(at, self.pitch), self.parts[1].arg.size)

    def apart(self, at: UOp) -> dict[UOp, UOp]:
        if self.pitch:
            return {self.parts[0]: divide(at, self.pitch), self.parts[1]: modulo(at, self.pitch)}
        out, step = {}, 1
        for r in reversed(self.parts):
            whole = divide(at, step)
            out[r] = whole if r is self.parts[0] else modulo(whole, r.arg.size)
            step *= r.arg.size
        return out


def _flat_axis(loops: list[UOp], epilogue: list[Statement], name: str) -> tuple[FlatAxis, list[UOp]]:
    """The innermost loops that flatten to one axis linear in the output, and the loops left outside."""
    def joined(parts: list[UOp]) -> FlatAxis:
        return FlatAxis(parts, math.prod(r.arg.size for r in parts))

    best = joined(loops[-1:])
    for start in range(len(loops) - 2, -1, -1):
        axis = joined(loops[start:])
        whole = counter(name, axis.size)
        split = axis.apart(whole)
        stores = [substitute_index(s.index, split, {}) for s in epilogue if isinstance(s, Store)]
        if any(n.op in (o.IDIV, o.MOD) for n in toposort(stores)):
            break
        best = axis
    if best.size < 8 and len(best.parts) < len(loops):
        return joined(loops), []
    return best, loops[:len(loops) - len(best.parts)]


def _image_axis(p: Product) -> tuple[FlatAxis, list[UOp]] | None:
    """The last two loops of N laid out with the pitch of the image they walk over: then each tap of a window is one
    contiguous read, at a constant distance. For images that are read many times over; refuses anything else."""
    if len(p.n) < 2 or p.right.op is not o.LOAD or len(p.right.src) != 2:
        return None
    rows, columns = p.n[-2:]
    at = p.right.src[1]
    steps = [_step(at, r) for r in (rows, columns, *p.k)]
    if None in steps or steps[1] != 1:
        return None
    pitch = steps[0]
    reads = math.prod(r.arg.size for r in p.k + p.n)
    touched = 1 + sum((_step(at, r) or 0) * (r.arg.size - 1) for r in p.k + p.n if (_step(at, r) or 0) > 0) \
        + sum(-(_step(at, r) or 0) * (r.arg.size - 1) for r in p.k + p.n if (_step(at, r) or 0) < 0)
    if pitch is None or pitch < columns.arg.size or pitch > 2 * columns.arg.size or touched * 2 > reads:
        return None
    return FlatAxis([rows, columns], (rows.arg.size - 1) * pitch + columns.arg.size, pitch), p.n[:-2]


class _Operand:
    """One factor, packed as [outer loops it depends on][panel][k][position in the panel]."""

    def __init__(self, name: str, value: UOp, axis: FlatAxis, outer: list[UOp], k: list[UOp], width: int, vectors: int,
                 panels: int):
        self.value, self.axis, self.k, self.width, self.vectors, self.panels = value, axis, k, width, vectors, panels
        self.outer = [r for r in outer if r in ranges_of(value)]
        self.depth = math.prod(r.arg.size for r in k)
        copies = math.prod(r.arg.size for r in self.outer)
        self.memory = local(name, value.dtype, copies * panels * self.depth * width, "shared")

    def place(self, panel: UOp, step: UOp, position: UOp) -> UOp:
        at = index(0)
        for r in self.outer:
            at = add(multiply(at, r.arg.size), r)
        at = add(multiply(at, self.panels), panel)
        at = add(multiply(at, self.depth), step)
        return add(multiply(at, self.width), position)

    def pack(self, lanes: int) -> list[Statement]:
        """The loops that fill the panels: lanes along the axis that is contiguous in memory."""
        panel, spot = counter("p", self.panels), counter("q", self.width)
        flat = index(0)
        for r in self.k:
            flat = add(multiply(flat, r.arg.size), r)
        at = add(multiply(_one(panel), self.width), _one(spot))
        gate = moves.below(at, self.axis.size)
        value = substitute_index(self.value, self.axis.apart(at), {})
        reads = [n for n in toposort([value]) if n.op is o.LOAD]
        along_k = bool(reads) and not any(_step(n.src[1], spot) == 1 for n in reads) and \
            all(_step(n.src[1], self.k[-1]) == 1 and _step(n.src[1], spot) is not None for n in reads)
        if gate is not None:
            value = moves.edge_gate(value, gate)
            if value.op is not o.LOAD:
                value = gate.where(value, const(0, value.dtype))
        store: list[Statement] = [Store(self.memory, self.place(_one(panel), flat, _one(spot)), value)]
        if along_k:
            body = self.across(spot, store, lanes)
            inner_k = self.k[:-1]
        else:
            body = moves.wide(For(spot, LOOP, store), self.vectors, lanes) if self.width > 1 else store
            inner_k = self.k
        for r in reversed(inner_k):
            body = [For(r, LOOP, body)]
        work = math.prod(r.arg.size for r in self.outer) * self.panels * self.depth * self.width
        kind = TASK if work >= 32 * 1024 else LOOP
        if self.panels > 1:
            body = [For(panel, kind, body)]
        for r in reversed(self.outer):
            body = [For(r, kind, body)]
        return body


    def across(self, spot: UOp, store: list[Statement], lanes: int) -> list[Statement]:
        """Packing what lies along k: for pieces of k: for rows: read a piece, write it with a stride.

        A piece is a few cache lines, so that the part of the panel it goes to stays in the first-level cache; it is
        written element by element, because a scatter instruction costs more than the scalar stores.
        """
        k, piece = self.k[-1], 4 * lanes
        whole, rest = divmod(k.arg.size, piece)
        out: list[Statement] = []
        for outer, inner, start in ((counter("kb", whole), counter("kq", piece), 0), (None, counter("kq", max(rest, 1)),
                                                                                     whole * piece)):
            if (whole if outer is not None else rest) == 0:
                continue
            at = add(inner, index(start)) if outer is None else add(multiply(_one(outer), piece), inner)
            body = moves.wide(For(inner, LOOP, moves.rebuild(store, {k: at})), lanes, 1)
            body = [For(spot, LOOP, body)] if self.width > 1 else body
            out += [For(outer, LOOP, body)] if outer is not None and whole > 1 else body
        return out


def _rows(size: int, most: int) -> int:
    """Rows of the register tile: as many as there are registers for, fewer where that wastes less at the edge."""
    if size <= most:
        return size
    return min(range(max(1, most // 2), most + 1), key=lambda r: (-(-size // r) * (r + 1.5), -r))


def _step(at: UOp, along: UOp) -> int | None:
    """The stride of an address along a counter; None where it is not a constant."""
    _, terms = linear(at)
    if any(along in ranges_of(atom) and atom is not along for atom in terms):
        return None
    return terms.get(along, 0)


def _one(range_: UOp) -> UOp:
    return range_ if range_.arg.size > 1 else index(0)
