"""The one table of operations. In: nothing. Out: `Op` objects and groups computed from their traits.

Each op is declared once with everything that is true of it on every device. `meaning` is its definition in NumPy
(given the module, so that loading this file loads no NumPy); the interpreters run it and every generated kernel is
checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Kind:
    """What family an op belongs to; decides its arity, shape rule and how it is lowered."""
    UNARY, BINARY, TERNARY = "unary", "binary", "ternary"   # one result element from one element of each source
    REDUCE = "reduce"          # folds axes of its source to size 1
    MOVEMENT = "movement"      # the same elements under other indices; never computes
    MEMORY = "memory"          # where values live
    SPECIAL = "special"        # cannot honestly be composed of the others
    LEAF = "leaf"              # has no tensor sources
    KERNEL = "kernel"          # appears only inside a lowered kernel


class Op:
    """One operation: its name, kind and traits. Plain object, compared by identity (hashing an Enum costs more)."""
    __slots__ = ("name", "kind", "meaning", "commutative", "associative", "idempotent", "identity", "compares",
                 "combine", "cost")

    def __init__(self, name: str, kind: str, meaning: Callable[..., Any] | None, traits: dict[str, Any]):
        self.name, self.kind, self.meaning = name, kind, meaning
        self.commutative: bool = traits.get("commutative", False)
        self.associative: bool = traits.get("associative", False)
        self.idempotent: bool = traits.get("idempotent", False)
        self.identity: Any = traits.get("identity")        # x op identity == x; "min"/"max" stand for the type's limits
        self.compares: bool = traits.get("compares", False)  # the result is bool
        self.combine: Op | None = traits.get("combine")    # of a reduction: the binary op it repeats
        self.cost: int = traits.get("cost", 1)             # in units of one vector instruction, roughly

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (op_by_name, (self.name,))


class _Ops(type):
    def __iter__(cls) -> Iterator[Op]:
        return (v for v in vars(cls).values() if isinstance(v, Op))


class Ops(metaclass=_Ops):
    """Every op by name: `Ops.ADD`. Filled by the declarations below, so the table is the only list."""


def _declare(name: str, kind: str, meaning: Callable[..., Any] | None = None, **traits: Any) -> Op:
    op = Op(name, kind, meaning, traits)
    setattr(Ops, name, op)
    return op


def op_by_name(name: str) -> Op:
    found: Op = getattr(Ops, name)
    return found


def _nan_max(np: Any, x: Any, y: Any) -> Any:
    return np.maximum(x, y)


def _floor_divide(np: Any, x: Any, y: Any) -> Any:  # total: by zero gives 0, INT_MIN / -1 wraps
    safe = np.where(y == 0, np.ones_like(y), y)
    with np.errstate(all="ignore"):
        return np.where(y == 0, np.zeros_like(x), np.floor_divide(x, safe)).astype(x.dtype)


def _floor_mod(np: Any, x: Any, y: Any) -> Any:
    safe = np.where(y == 0, np.ones_like(y), y)
    with np.errstate(all="ignore"):
        return np.where(y == 0, np.zeros_like(x), np.mod(x, safe)).astype(x.dtype)


def _shift_left(np: Any, x: Any, y: Any) -> Any:  # over-wide shifts give 0
    bits = x.dtype.itemsize * 8
    wide = (y < 0) | (y >= bits)
    return np.where(wide, np.zeros_like(x), np.left_shift(x, np.where(wide, np.zeros_like(y), y)))


def _shift_right(np: Any, x: Any, y: Any) -> Any:
    bits = x.dtype.itemsize * 8
    wide = (y < 0) | (y >= bits)
    return np.where(wide, np.zeros_like(x), np.right_shift(x, np.where(wide, np.zeros_like(y), y)))


U, B, T, R, M = Kind.UNARY, Kind.BINARY, Kind.TERNARY, Kind.REDUCE, Kind.MOVEMENT

# -- elementwise ---------------------------------------------------------------------------------------------
NEG = _declare("NEG", U, lambda np, x: np.negative(x))
ABS = _declare("ABS", U, lambda np, x: np.abs(x))
RECIP = _declare("RECIP", U, lambda np, x: np.divide(x.dtype.type(1), x), cost=8)
SQRT = _declare("SQRT", U, lambda np, x: np.sqrt(x), cost=8)
EXP2 = _declare("EXP2", U, lambda np, x: np.exp2(x), cost=16)
LOG2 = _declare("LOG2", U, lambda np, x: np.log2(x), cost=20)
SIN = _declare("SIN", U, lambda np, x: np.sin(x), cost=30)
TRUNC = _declare("TRUNC", U, lambda np, x: np.trunc(x))
NOT = _declare("NOT", U, lambda np, x: np.logical_not(x) if x.dtype == np.bool_ else np.invert(x))
CAST = _declare("CAST", U)            # value conversion, to the node's own dtype: see check/graph_interpreter.py
BITCAST = _declare("BITCAST", U)      # the same bits under another type of the same size

ADD = _declare("ADD", B, lambda np, x, y: np.add(x, y), commutative=True, associative=True, identity=0)
SUB = _declare("SUB", B, lambda np, x, y: np.subtract(x, y))
MUL = _declare("MUL", B, lambda np, x, y: np.multiply(x, y), commutative=True, associative=True, identity=1)
DIV = _declare("DIV", B, lambda np, x, y: np.divide(x, y), cost=8)          # floats only
IDIV = _declare("IDIV", B, _floor_divide, cost=20)                          # integers; rounds down
MOD = _declare("MOD", B, _floor_mod, cost=20)                               # integers; the sign of the divisor
MAX = _declare("MAX", B, _nan_max, commutative=True, associative=True, idempotent=True, identity="min")
MIN = _declare("MIN", B, lambda np, x, y: np.minimum(x, y), commutative=True, associative=True, idempotent=True,
               identity="max")
CMPLT = _declare("CMPLT", B, lambda np, x, y: np.less(x, y), compares=True)
CMPNE = _declare("CMPNE", B, lambda np, x, y: np.not_equal(x, y), commutative=True, compares=True)
CMPEQ = _declare("CMPEQ", B, lambda np, x, y: np.equal(x, y), commutative=True, compares=True)
AND = _declare("AND", B, lambda np, x, y: np.bitwise_and(x, y), commutative=True, associative=True, idempotent=True)
OR = _declare("OR", B, lambda np, x, y: np.bitwise_or(x, y), commutative=True, associative=True, idempotent=True)
XOR = _declare("XOR", B, lambda np, x, y: np.bitwise_xor(x, y), commutative=True, associative=True)
SHL = _declare("SHL", B, _shift_left)
SHR = _declare("SHR", B, _shift_right)

WHERE = _declare("WHERE", T, lambda np, c, x, y: np.where(c, x, y))
MULACC = _declare("MULACC", T, lambda np, x, y, z: np.add(np.multiply(x, y), z))   # rounded once where it can be

# -- reductions: fold `arg.axes` to size 1 with the `combine` op ---------------------------------------------
SUM = _declare("SUM", R, lambda np, x, axes: np.sum(x, axis=axes, keepdims=True, dtype=x.dtype), combine=ADD)
PROD = _declare("PROD", R, lambda np, x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype), combine=MUL)
AMAX = _declare("AMAX", R, lambda np, x, axes: np.max(x, axis=axes, keepdims=True), combine=MAX)
AMIN = _declare("AMIN", R, lambda np, x, axes: np.min(x, axis=axes, keepdims=True), combine=MIN)

# -- movement: the same elements under other indices ---------------------------------------------------------
RESHAPE = _declare("RESHAPE", M)
PERMUTE = _declare("PERMUTE", M)
EXPAND = _declare("EXPAND", M)        # axes of size 1 repeat
PAD = _declare("PAD", M)              # with zeros
SHRINK = _declare("SHRINK", M)
FLIP = _declare("FLIP", M)
WINDOW = _declare("WINDOW", M)        # out[.., o, .., k] = x[.., o*stride + k*dilation, ..]; k is a new last axis
UNWINDOW = _declare("UNWINDOW", M)    # out[.., i, .., k] = x[.., (i - k*dilation) / stride, .., k], or 0

# -- memory and leaves ---------------------------------------------------------------------------------------
BUFFER = _declare("BUFFER", Kind.LEAF)             # arg: Buffer, a row-major value in memory
CONST = _declare("CONST", Kind.LEAF)               # arg: a Python scalar; shape ()
SCALAR = _declare("SCALAR", Kind.LEAF)             # arg: Cell, a scalar handed to the kernel when it runs; shape ()
LENGTH = _declare("LENGTH", Kind.LEAF)             # arg: Count, a symbolic size as a number; shape ()
CONTIGUOUS = _declare("CONTIGUOUS", Kind.MEMORY)   # "store this here"
COPY = _declare("COPY", Kind.MEMORY)               # to arg.device
DETACH = _declare("DETACH", Kind.MEMORY)           # the same value; gradients stop
STORE = _declare("STORE", Kind.MEMORY)             # (PARAM, value): a kernel's result
SINK = _declare("SINK", Kind.MEMORY)               # (STORE, ...): all that one kernel does

# -- those that cannot honestly be composed ------------------------------------------------------------------
GATHER = _declare("GATHER", Kind.SPECIAL)     # (rows (n, *rest), index S) -> S + rest:  out[s, r] = rows[index[s], r]
SCATTER = _declare("SCATTER", Kind.SPECIAL)   # (base (n, *rest), index S, value S + rest): base[index[s], r] op= value
SCAN = _declare("SCAN", Kind.SPECIAL)         # running combination along one axis, inclusive
IOTA = _declare("IOTA", Kind.SPECIAL)         # 0, 1, ..., n - 1 of arg.shape (n,): each element is its own index
RANDOM = _declare("RANDOM", Kind.SPECIAL)     # (seed, stream) -> uint64 of arg.shape: counter-based random bits

# -- inside kernels ------------------------------------------------------------------------------------------
PARAM = _declare("PARAM", Kind.LEAF)       # arg: Param, the kernel's n-th buffer or scalar
RANGE = _declare("RANGE", Kind.KERNEL)     # arg: Range, a loop's counter
LOCAL = _declare("LOCAL", Kind.KERNEL)     # arg: Local, memory that lives as long as one launch
LOAD = _declare("LOAD", Kind.KERNEL, cost=1)   # (memory, index[, gate]): an element, or 0 where the gate is false
REGISTER = _declare("REGISTER", Kind.KERNEL)   # arg: name; src: wide axes that index it; a mutable scalar or tile
FOLD = _declare("FOLD", Kind.KERNEL)       # (value, *wide axes) with arg.combine: a tile or vector to one value
PHILOX = _declare("PHILOX", Kind.KERNEL)   # (seed, stream, element index): RANDOM at one element

ELEMENTWISE = frozenset(o for o in Ops if o.kind in (U, B, T))
REDUCE = frozenset(o for o in Ops if o.kind == R)
MOVEMENT = frozenset(o for o in Ops if o.kind == M)
COMPARES = frozenset(o for o in Ops if o.compares)
