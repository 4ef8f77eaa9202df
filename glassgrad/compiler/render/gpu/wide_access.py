"""Access up to 16 bytes at once. In: stores of one thread to contiguous elements. Out: one wide store.

TILE loops are unrolled to `out[i] = f(x[i]); out[i + 1] = f(x[i + 1]); ..`: this is one wide store, with wide loads if
the loads in it are contiguous too. Sums of contiguous elements use wide loads too. A kernel cannot rely on an
argument's address being a multiple of 16, since it may be part of another buffer: helpers have a parameter `aligned`,
which the kernel tests once, with the same result in all threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from glassgrad.compiler.graph import UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import linear
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, If, Statement, Store, expressions
from glassgrad.compiler.render.c.c_ops import CValue
from glassgrad.compiler.render.c.c_source import CFunction

STORES_LITTLE = 8                            # a phase stores little if it reads more than 8 times as many elements
IsAligned = Callable[[UOp], bool]            # whether a memory always begins at a multiple of 16 bytes
MOST_BYTES = 16
HALF_WORD = "u16"                            # element type of which two make a word
WORDS = {16: "uint4", 8: "uint2", 4: "unsigned"}         # bytes -> the type that moves them at once


def contiguous_stores(body: list[Statement], at: int) -> list[Store]:
    """The stores from body[at] on that go to contiguous elements: 4, 8 or 16 bytes of them, or that one alone."""
    first = body[at]
    assert isinstance(first, Store)
    size = first.memory.dtype.itemsize
    found = [first]
    for statement in body[at + 1:at + MOST_BYTES // size]:
        if not isinstance(statement, Store) or not _follows(first, statement, len(found)):
            break
        found.append(statement)
    begin, terms = linear(first.index)
    for nbytes in (16, 8, 4):
        count = nbytes // size
        if 1 < count <= len(found) and all(n % count == 0 for n in (begin, *terms.values())):
            return found[:count]
    return found[:1]


def _follows(first: Store, later: Store, distance: int) -> bool:
    return later.memory is first.memory and later.gate is first.gate and first.combine is later.combine is None \
        and _is_next(first.index, later.index, distance)


def _is_next(first: UOp, later: UOp, distance: int) -> bool:
    (begin, terms), (there, others) = linear(first), linear(later)
    return there == begin + distance and others == terms


def runs_of_reads(body: list[Statement]) -> dict[int, list[Statement]]:
    """Runs of consecutive statements that accumulate into registers, or load into them, by the id of their first one. A
    run of loads is at most one wide access."""
    found: dict[int, list[Statement]] = {}
    run: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            found.update(runs_of_reads(s.body))
        most = 0                                 # statements of a run that ends with this one
        if isinstance(s, Accumulate):
            most = len(body)
        elif isinstance(s, Assign) and (read := _read_alone(s.value)) is not None:
            most = MOST_BYTES // read.dtype.itemsize
        goes_on = bool(run) and type(s) is type(run[0]) and len(run) < most
        run = [*run, s] if goes_on else [s] if most else []
        if run:
            found[id(run[0])] = run
    return {first: some for first, some in found.items() if len(some) > 1}


def _read_alone(value: UOp) -> UOp | None:
    """The load from which a value is computed by casts and constant factors alone; None for others."""
    while value.op in (o.MUL, o.CAST):
        if value.op is o.MUL and value.src[1].op is not o.CONST:
            return None
        value = value.src[0]
    return value if value.op is o.LOAD else None


def store_wide(f: CFunction, stores: list[Store], test: str, is_aligned: IsAligned, whole: str, pair: str = "") -> None:
    """Write contiguous stores as one, under a condition (empty: always). `whole` stores {words} to device memory.
    `pair`, if given, is a function that rounds two float32 values to a word of two small floats: the stores are of such
    values."""
    load_wide(f, [s.value for s in stores], is_aligned)
    first, count = stores[0], len(stores)
    values = [f.operand(s.value.src[0] if pair else s.value).text for s in stores]
    kind, nbytes = f.unit(first.memory), count * first.memory.dtype.itemsize
    given = f.type(dtypes.float32) if pair else kind
    takes = ", ".join(f"{given} v{i}" for i in range(count))
    aligned = is_aligned(first.memory)
    if pair or kind == HALF_WORD:
        words = [f"{pair}(v{i}, v{i + 1})" if pair else f"v{i} | (unsigned)v{i + 1} << 16" for i in range(0, count, 2)]
        begin, single = [f"const unsigned w[] = {{{', '.join(words)}}};"], "p[i] = w[i / 2] >> 16 * (i % 2);"
        begin.append(f"const {WORDS[nbytes]} all = {{{', '.join(f'w[{i}]' for i in range(count // 2))}}};")
    else:
        begin, single = [f"union {{ {WORDS[nbytes]} all; {kind} each[{count}]; }} v = {{}};"], "p[i] = v.each[i];"
        begin += [*[f"v.each[{i}] = v{i};" for i in range(count)], f"const {WORDS[nbytes]} all = v.all;"]
    stored = ("*({words} *)p = all;" if aligned else whole).format(words=WORDS[nbytes])
    at = f"{f.base(first.memory)} + {f.split(first.index)[0].text}"
    _call(f, f"store_{kind}_{count}{f'_by_{pair}' if pair else ''}", f"{kind} *p, {takes}",
          [*begin, *_moved(stored, single, count, aligned)], f"{at}, {', '.join(values)}", aligned, test)


def _moved(whole: str, single: str, count: int, aligned: bool) -> list[str]:
    return [whole] if aligned else [f"if (aligned) {whole}", f"else for (int i = 0; i < {count}; i++) {single}"]


def _call(f: CFunction, name: str, takes: str, body: list[str], given: str, aligned: bool, test: str) -> None:
    """Define a helper and call it. The condition is a parameter, so that the address is computed in any case: computed
    under the condition, each of several addresses took registers of its own through the whole loop."""
    name += "_aligned" if aligned else ""
    if not aligned:
        takes, given = f"{takes}, bool aligned", f"{given}, aligned"
    if test:
        name, takes, given = f"{name}_if", f"bool test, {takes}", f"{test}, {given}"
        body = ["if (!test) return;", *body]
    f.line(f"{f.define(name, 'void', takes, *body)}({given});")


def read_once(body: list[Statement], tasks: int) -> set[UOp]:
    """Arguments of which a phase that stores little (sums, not norms) reads each element once. Caching these in a
    processor takes time (vector times matrix 33.4 us, 32.3 without caching; sums over columns 67.9, 66.8)."""
    reads, stored = Counter[UOp](), 0

    def visit(body: list[Statement], times: int) -> None:
        nonlocal stored
        stored += times * sum(isinstance(s, Store) for s in body)
        for n in toposort([e for s in body if not isinstance(s, (For, If)) for e in expressions(s)]):
            if n.op is o.LOAD and n.src[0].op is o.PARAM:
                reads[n.src[0]] += times
        for s in body:
            if isinstance(s, (For, If)):
                visit(s.body, times * (s.range.arg.size if isinstance(s, For) else 1))
    visit(body, tasks)
    return {memory for memory, count in reads.items() if STORES_LITTLE * stored < count <= memory.size}


def load_wide(f: CFunction, values: list[UOp], is_aligned: IsAligned, once: str = "") -> None:
    """Merge loads of contiguous elements in `values`. `once`: how to load 16 bytes that are not read again."""
    reads = [[n for n in toposort([value]) if n.op is o.LOAD] for value in values]
    if len({len(some) for some in reads}) > 1:
        return
    for loads in zip(*reads):
        if any(f.scope_of(n) is not f.scopes[-1] or n in f.scope_of(n).values for n in loads):
            continue
        width = _width(loads)
        for start in range(0, len(loads), width) if width > 1 else ():
            _read(f, loads[start:start + width], is_aligned(loads[start].src[0]), once)


def _width(loads: tuple[UOp, ...]) -> int:
    """How many of some loads at a time are contiguous, and so one access; 1: none."""
    size = loads[0].dtype.itemsize
    for nbytes in WORDS if all(n.dtype.itemsize == size for n in loads) else ():
        width = nbytes // size
        if 1 < width <= len(loads) and len(loads) % width == 0 and \
                all(_side_by_side(loads[start:start + width]) for start in range(0, len(loads), width)):
            return width
    return 1


def _side_by_side(loads: tuple[UOp, ...]) -> bool:
    first, width = loads[0], len(loads)
    begin, terms = linear(first.src[1])
    return all(n % width == 0 for n in (begin, *terms.values())) and \
        all(n.src[0] is first.src[0] and n.src[2:] == first.src[2:] and _is_next(first.src[1], n.src[1], i)
            for i, n in enumerate(loads))


def _read(f: CFunction, loads: tuple[UOp, ...], aligned: bool, once: str) -> None:
    first, count = loads[0], len(loads)
    memory, nbytes = first.src[0], count * first.dtype.itemsize
    kind = f.unit(memory)
    # two 16-bit values are extracted from their word where they are used: extracted under the test, a thread would wait
    halves = kind == HALF_WORD
    holds, many = ("unsigned", count // 2) if halves else (kind, count)
    single = "to[i] = p[2 * i] | (unsigned)p[2 * i + 1] << 16;" if halves else "to[i] = p[i];"
    once = once if nbytes == MOST_BYTES else ""
    read = once or f"v.all = *(const {WORDS[nbytes]} *)p;"
    whole = f"{{ union {{ {WORDS[nbytes]} all; {holds} each[{many}]; }} v; {read} " \
        f"for (int i = 0; i < {many}; i++) to[i] = v.each[i]; }}"
    gate = f.operand(first.src[2]).inside if len(first.src) == 3 else ""
    test = " && ".join(t for t in (f.takes_part(first.src[1]), gate) if t)
    held = f.fresh_name("w")
    at = f"{f.base(memory)} + {f.spot(memory, first.src[1])}"
    f.line(f"{holds} {held}[{many}] = {{}};")
    _call(f, f"load_{kind}_{count}{'_once' if once else ''}", f"const {kind} *p, {holds} *to",
          _moved(whole, single, many, aligned), f"{at}, {held}", aligned, test)
    for i, load in enumerate(loads):
        text = f"({kind})({held}[{i // 2}] >> {16 * (i % 2)})" if halves else f"{held}[{i}]"
        value = CValue(text, load.dtype)
        if load.dtype is dtypes.bool:
            value = f.cast(CValue(text, dtypes.uint8), dtypes.bool)
        f.keep(f.scope_of(load), load, f.reads[load], value)
