"""Store a tile's sums. In: the register matrix of a group, the product's epilogue. Out: loops.

Sums go to shared memory line by line, and the epilogue reads them there, so that consecutive threads store consecutive
pieces of a line, whatever the unit's layout is. Does not know which unit it is.
"""

from __future__ import annotations

from glassgrad.compiler.graph import DType, UOp, ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, less, modulo, multiply
from glassgrad.compiler.lower.loops import (LANE, TILE, UNIT, For, Statement, Store, counter, current, load, local,
                                            nested, nodes_in, walk)
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.moves.read_ahead import read_ahead, read_next
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import Product, stride_along
from glassgrad.compiler.optimize.product.split_k import Parts
from glassgrad.compiler.optimize.targets import gpu_costs as gpu


def tile_to_memory(product: Product, total: UOp, m: tuple[FlatAxis, UOp], n: tuple[FlatAxis, UOp], threads: int,
                   over: str, parts: tuple[Parts, UOp] | None = None, into: tuple[UOp, UOp] | None = None) \
        -> list[Statement]:
    """The loops that move the sums to shared memory and then apply the epilogue, in which consecutive threads store
    consecutive pieces of a line. `m` and `n` are the axes, and where the tile begins on them. If the epilogue first
    casts the sums to a small type, they are cast before they go to shared memory. That memory overlays the one named
    `over`; or it is `into`: a memory and an offset. With `parts`, the sums are stored as the partial sums of that part
    of K."""
    row, column = total.src
    if parts is None and neighbours_stored(product, n[0]) == 1 < neighbours_stored(product, m[0]):
        m, n, row, column = n, m, column, row                     # lines go along M, like those of the result
    (axis_m, first_m), (axis_n, first_n) = m, n
    height, width = row.arg.size, column.arg.size
    columns = axis_n.row if parts is not None else neighbours_stored(product, axis_n) if axis_n.stop is None else 1
    across = parts is None and height % 32 == 0 and _continues(product, axis_m, columns)
    pitch = width + (gpu.UNIT_PAD // 2 if across else gpu.UNIT_PAD)         # threads read one column, or one line
    small = rounded_to(product) if parts is None or parts[0].part.arg.size == 1 else None
    tile, start = into or (local("tile", small or total.dtype, height * pitch, over=over), index(0))
    value = total if small is None else total.cast(small)
    keep = nested([*total.src], [Store(tile, add(add(multiply(row, pitch), column), start), value)], UNIT)
    piece = next(v for v in (8, 4, 2, 1) if columns % v == 0)               # contiguous elements that a thread stores
    along = width // piece
    each, further = counter("e", piece), counter("f", 8 // piece)
    times, lane = counter("i", height * width // (8 * threads)), counter("l", threads)
    at = add(multiply(add(multiply(current(times), 8 // piece), current(further)), threads), lane)
    if across:                       # in the result, a run of a line is followed by that of the next line
        run = columns // piece if width % columns == 0 else 1
        lines = divide(at, run)
        line, part = modulo(lines, height), add(multiply(divide(lines, height), run), modulo(at, run))
    else:
        line, part = divide(at, along), modulo(at, along)
    begin = multiply(part, piece)
    at_m, at_n = add(first_m, line), add(first_n, begin)
    gate = both(_inside(axis_m, at_m, height), _inside(axis_n, at_n, width))
    gate = both(gate, both(axis_m.gate(at_m), axis_n.gate(at_n)))
    result = load(tile, add(add(add(multiply(line, pitch), begin), current(each)), start))
    if parts is None:
        product = product if small is None else product.rounded(small)
        stores = product.stores(result, {**axis_m.indices(at_m), **axis_n.indices(add(at_n, current(each)))}, gate)
    else:
        stores = [parts[0].store(parts[1], at_m, add(at_n, current(each)), result, gate)]
    pieces = nested([times], nested([further, each], [For(lane, LANE, stores)], TILE))
    ahead = read_ahead(pieces, most=4)
    return [*keep, *(ahead if ahead is not pieces else read_next(pieces, most=4))]


def _inside(axis: FlatAxis, at: UOp, tile: int) -> UOp | None:
    """The condition that a position is inside an axis; None if no tile goes past its end."""
    if axis.stop is not None:
        return less(at, axis.stop)
    return below(at, axis.size) if axis.size % tile else None


def epilogue_operations(product: Product) -> int:
    """Floating-point operations of the epilogue per sum."""
    return sum(n.op in o.ELEMENTWISE and n.op is not o.CAST and n.dtype.kind == "f" for n in nodes_in(product.epilogue))


def neighbours_stored(product: Product, axis: FlatAxis) -> int:
    """How many positions of an axis are contiguous in the result: those of all its loops, or of the last ones."""
    stores = [s for s in walk(product.epilogue) if isinstance(s, Store)]
    run = 1
    for r in reversed(axis.parts[-1:] if axis.pitch else axis.parts):
        if any(stride_along(s.index, r) != run for s in stores):
            break
        run *= r.arg.size
    return run


def _continues(product: Product, axis: FlatAxis, run: int) -> bool:
    """Whether an axis has stride `run` in the result, so that runs of the other axis fill the gaps."""
    stores = [s for s in walk(product.epilogue) if isinstance(s, Store)]
    return 1 < run < 8 and all(stride_along(s.index, axis.parts[-1]) == run for s in stores)


def rounded_to(product: Product) -> DType | None:
    """The 16-bit type to which the epilogue first casts the sum; None if it does not."""
    found: set[DType | None] = set()
    for node in nodes_in(product.epilogue):
        if product.total in node.src:
            found.add(node.dtype if node.op is o.CAST and node.dtype.itemsize == 2 and node.dtype.kind == "f" else None)
    return found.pop() if len(found) == 1 else None
