"""The table of operations. In: nothing. Out: `Op` objects, and sets of them by property.

Each op is declared once, with everything about it that is true on every device. `meaning` defines it in NumPy (NumPy is
passed in, so that importing this file does not load it), `constant` defines it for plain Python numbers. Ops without a
`meaning` (movement, casts, gather, scatter, scan, random) are defined by the graph interpreter. The interpreters,
constant folding and the rules for shapes and types read these declarations; CHECK=1 and the tests compare generated
kernels with them. An op has two more places: its gradient (gradient.py), and one line in each renderer's table (C_OPS,
LLVM_OPS, WASM_OPS, GPU_OPS). docs/extending/op.md adds an op step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from glassgrad.compiler.graph.dtype import DType, convert


class Kind:
    """The family of an op; it decides arity, shape rule and lowering."""
    UNARY, BINARY, TERNARY = "unary", "binary", "ternary"   # one result element from one element of each source
    REDUCE = "reduce"          # folds axes of its source to size 1
    MOVEMENT = "movement"      # the same elements under other indices; never computes
    MEMORY = "memory"          # where values are stored
    SPECIAL = "special"        # cannot be expressed by the others
    LEAF = "leaf"              # has no tensor sources
    KERNEL = "kernel"          # appears only inside a lowered kernel


class Op:
    """One operation: its name, kind and properties. Plain object, compared by identity (hashing an Enum costs more)."""
    __slots__ = ("name", "kind", "meaning", "ufunc", "constant", "takes", "commutative", "associative", "idempotent",
                 "identity", "compares", "converts", "approximate", "combine", "cost", "sign")

    def __init__(self, name: str, kind: str, meaning: str | Callable[..., Any] | None, properties: dict[str, Any]):
        get = properties.get
        self.name, self.kind = name, kind
        self.ufunc = meaning if isinstance(meaning, str) else None       # the NumPy function that does the same
        self.meaning = _numpy_function(meaning) if isinstance(meaning, str) else meaning     # (np, *arrays) -> array
        self.constant: Callable[..., Any] | None = get("constant")       # (dtype, *numbers) -> number; None: not exact
        self.takes: str = get("takes", "bfiu")             # element types it accepts: bool, float, int, unsigned
        self.commutative: bool = get("commutative", False)
        self.associative: bool = get("associative", False)
        self.idempotent: bool = get("idempotent", False)
        self.identity: Any = get("identity")               # x op identity == x; "min" and "max" are the type's limits
        self.compares: bool = get("compares", False)       # the result is bool; else it has the last source's type ...
        self.converts: bool = get("converts", False)       # ... unless `converts`: then the node's own dtype
        self.approximate: bool = get("approximate", False)   # written as a polynomial: lower/transcendental.py
        self.combine: Op | None = get("combine")           # of a reduction: the binary op that it repeats
        self.cost: int = get("cost", 1)                    # in units of one vector instruction, roughly
        self.sign: str = get("sign", "")                   # infix sign in printed loop trees

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (op_by_name, (self.name,))


class _Ops(type):
    def __iter__(cls) -> Iterator[Op]:
        return (v for v in vars(cls).values() if isinstance(v, Op))


class Ops(metaclass=_Ops):
    """Every op by name: `Ops.ADD`. Filled by the declarations below, so the table is the only list."""


ELEMENTWISE: set[Op] = set()
REDUCE: set[Op] = set()
MOVEMENT: set[Op] = set()
_GROUPS = {Kind.UNARY: ELEMENTWISE, Kind.BINARY: ELEMENTWISE, Kind.TERNARY: ELEMENTWISE, Kind.REDUCE: REDUCE,
           Kind.MOVEMENT: MOVEMENT}


def declare(name: str, kind: str, meaning: str | Callable[..., Any] | None = None, **properties: Any) -> Op:
    """Declare an op as `Ops.<name>`. `meaning` is the name of a NumPy function, or a function of (np, *arrays)."""
    op = Op(name, kind, meaning, properties)
    setattr(Ops, name, op)
    if kind in _GROUPS:
        _GROUPS[kind].add(op)
    return op


def op_by_name(name: str) -> Op:
    found: Op = getattr(Ops, name)
    return found


def _numpy_function(name: str) -> Callable[..., Any]:
    return lambda np, *arrays: getattr(np, name)(*arrays)


# -- meanings in NumPy that are not one of its functions -----------------------------------------------------
def _divided(name: str) -> Callable[..., Any]:
    """Integer division defined for all operands: division by zero gives 0, and INT_MIN / -1 wraps."""
    def divide(np: Any, x: Any, y: Any) -> Any:
        safe = np.where(y == 0, np.ones_like(y), y)
        with np.errstate(all="ignore"):
            return np.where(y == 0, np.zeros_like(x), getattr(np, name)(x, safe)).astype(x.dtype)
    return divide


def _shifted(name: str) -> Callable[..., Any]:
    """A shift defined for all operands: by a negative count, or by as many bits as the type has or more, it gives 0."""
    def shift(np: Any, x: Any, y: Any) -> Any:
        beyond = (y < 0) | (y >= x.dtype.itemsize * 8)
        return np.where(beyond, np.zeros_like(x), getattr(np, name)(x, np.where(beyond, np.zeros_like(y), y)))
    return shift


# -- meanings for Python numbers: floats are float64, and the caller rounds the result to the op's type ------
def _divide(dtype: DType, x: float, y: float) -> float:
    if y != 0:
        return x / y
    return math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1, y)


def _sqrt(dtype: DType, x: float) -> float:
    return math.sqrt(x) if x >= 0 else (x if x == 0 or x != x else math.nan)


def _trunc(dtype: DType, x: float) -> float:
    return math.copysign(math.trunc(x), x) if math.isfinite(x) else x


def _round(dtype: DType, x: float) -> float:
    return math.copysign(round(x), x) if math.isfinite(x) else x


def _exp2(dtype: DType, x: float) -> float:
    try:
        return float(2.0 ** x)
    except OverflowError:
        return math.inf


def _log2(dtype: DType, x: float) -> float:
    return math.log2(x) if x > 0 else (-math.inf if x == 0 else math.nan)


def _choose(pick: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """max or min of two numbers: NaN wins; for 0.0 and -0.0 the result is undefined (None)."""
    def choose(dtype: DType, x: Any, y: Any) -> Any:
        if x != x or y != y:
            return math.nan
        if x == y == 0 and math.copysign(1, x) != math.copysign(1, y):
            return None
        return pick(x, y)
    return choose


def _shift(move: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda dtype, x, y: move(x, y) if 0 <= y < dtype.bits else 0


U, B, T, R, M = Kind.UNARY, Kind.BINARY, Kind.TERNARY, Kind.REDUCE, Kind.MOVEMENT

# -- elementwise ---------------------------------------------------------------------------------------------
NEG = declare("NEG", U, "negative", takes="fiu", constant=lambda dtype, x: -x)
ABS = declare("ABS", U, "abs", takes="fiu", constant=lambda dtype, x: abs(x))
RECIP = declare("RECIP", U, lambda np, x: np.divide(x.dtype.type(1), x), takes="f", cost=8,
                constant=lambda dtype, x: _divide(dtype, 1.0, x))
SQRT = declare("SQRT", U, "sqrt", takes="f", cost=8, constant=_sqrt)
EXP2 = declare("EXP2", U, "exp2", takes="f", cost=16, approximate=True, constant=_exp2)
LOG2 = declare("LOG2", U, "log2", takes="f", cost=20, approximate=True, constant=_log2)
SIN = declare("SIN", U, "sin", takes="f", cost=30, approximate=True,
              constant=lambda dtype, x: math.sin(x) if math.isfinite(x) else math.nan)
TRUNC = declare("TRUNC", U, "trunc", takes="f", constant=_trunc)
ROUND = declare("ROUND", U, "rint", takes="f", constant=_round)            # halves to the even integer
NOT = declare("NOT", U, lambda np, x: np.logical_not(x) if x.dtype == np.bool_ else np.invert(x), takes="biu",
              constant=lambda dtype, x: not x if dtype.kind == "b" else ~x)
CAST = declare("CAST", U, converts=True)         # the same value in the node's own type: check/graph_interpreter.py
BITCAST = declare("BITCAST", U, converts=True)   # the same bits under another type of the same size

ADD = declare("ADD", B, "add", sign="+", commutative=True, associative=True, identity=0,
              constant=lambda dtype, x, y: x + y)
SUB = declare("SUB", B, "subtract", sign="-", takes="fiu", constant=lambda dtype, x, y: x - y)
MUL = declare("MUL", B, "multiply", sign="*", commutative=True, associative=True, identity=1,
              constant=lambda dtype, x, y: x * y)
DIV = declare("DIV", B, "divide", sign="/", takes="f", cost=8, constant=_divide)
IDIV = declare("IDIV", B, _divided("floor_divide"), sign="//", takes="iu", cost=20,          # rounds down
               constant=lambda dtype, x, y: x // y if y else 0)
MOD = declare("MOD", B, _divided("mod"), sign="%", takes="iu", cost=20,                      # the sign of the divisor
              constant=lambda dtype, x, y: x % y if y else 0)
MAX = declare("MAX", B, "maximum", commutative=True, associative=True, idempotent=True, identity="min",
              constant=_choose(max))
MIN = declare("MIN", B, "minimum", commutative=True, associative=True, idempotent=True, identity="max",
              constant=_choose(min))
CMPLT = declare("CMPLT", B, "less", sign="<", compares=True, constant=lambda dtype, x, y: x < y)
CMPNE = declare("CMPNE", B, "not_equal", sign="!=", compares=True, commutative=True,
                constant=lambda dtype, x, y: x != y)
CMPEQ = declare("CMPEQ", B, "equal", sign="==", compares=True, commutative=True, constant=lambda dtype, x, y: x == y)
AND = declare("AND", B, "bitwise_and", sign="&", takes="biu", commutative=True, associative=True, idempotent=True,
              constant=lambda dtype, x, y: x & y)
OR = declare("OR", B, "bitwise_or", sign="|", takes="biu", commutative=True, associative=True, idempotent=True,
             constant=lambda dtype, x, y: x | y)
XOR = declare("XOR", B, "bitwise_xor", sign="^", takes="biu", commutative=True, associative=True,
              constant=lambda dtype, x, y: x ^ y)
SHL = declare("SHL", B, _shifted("left_shift"), sign="<<", takes="iu", constant=_shift(lambda x, y: x << y))
SHR = declare("SHR", B, _shifted("right_shift"), sign=">>", takes="iu", constant=_shift(lambda x, y: x >> y))

WHERE = declare("WHERE", T, "where", constant=lambda dtype, c, x, y: x if c else y)      # c is bool
MULACC = declare("MULACC", T, lambda np, x, y, z: np.add(np.multiply(x, y), z), takes="fiu",   # may be rounded once
                 constant=lambda dtype, x, y, z: convert(x * y, dtype.accumulator) + z)

# -- reductions: fold `arg.axes` to size 1 with the `combine` op ---------------------------------------------
SUM = declare("SUM", R, lambda np, x, axes: np.sum(x, axis=axes, keepdims=True, dtype=x.dtype), combine=ADD)
PROD = declare("PROD", R, lambda np, x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype), combine=MUL)
AMAX = declare("AMAX", R, lambda np, x, axes: np.max(x, axis=axes, keepdims=True), combine=MAX)
AMIN = declare("AMIN", R, lambda np, x, axes: np.min(x, axis=axes, keepdims=True), combine=MIN)

# -- movement: the same elements under other indices ---------------------------------------------------------
RESHAPE = declare("RESHAPE", M)
PERMUTE = declare("PERMUTE", M)
EXPAND = declare("EXPAND", M)        # axes of size 1 repeat
PAD = declare("PAD", M)              # with zeros
SHRINK = declare("SHRINK", M)
FLIP = declare("FLIP", M)
WINDOW = declare("WINDOW", M)        # out[.., o, .., k] = x[.., o*stride + k*dilation, ..]; k is a new last axis
UNWINDOW = declare("UNWINDOW", M)    # out[.., i, .., k] = x[.., (i - k*dilation) / stride, .., k], or 0

# -- memory and leaves ---------------------------------------------------------------------------------------
BUFFER = declare("BUFFER", Kind.LEAF)             # arg: Buffer, a row-major value in memory
CONST = declare("CONST", Kind.LEAF)               # arg: a Python scalar; shape ()
SCALAR = declare("SCALAR", Kind.LEAF)             # arg: Cell, a number passed to the kernel at launch; shape ()
LENGTH = declare("LENGTH", Kind.LEAF)             # arg: Count, a symbolic size as a number; shape ()
CONTIGUOUS = declare("CONTIGUOUS", Kind.MEMORY)   # materialize this value
COPY = declare("COPY", Kind.MEMORY)               # to arg.device
DETACH = declare("DETACH", Kind.MEMORY)           # the same value; gradients stop
STORE = declare("STORE", Kind.MEMORY)             # (PARAM, value): a kernel's result
SINK = declare("SINK", Kind.MEMORY)               # (STORE, ...): all that one kernel does

# -- ops that cannot be expressed by the others --------------------------------------------------------------
GATHER = declare("GATHER", Kind.SPECIAL)     # (rows (n, *rest), index S) -> S + rest:  out[s, r] = rows[index[s], r]
SCATTER = declare("SCATTER", Kind.SPECIAL)   # (base (n, *rest), index S, value S + rest): base[index[s], r] op= value
SCAN = declare("SCAN", Kind.SPECIAL)         # inclusive prefix combination along one axis
RECURRENCE = declare("RECURRENCE", Kind.SPECIAL)     # (starts, sequences, constants) -> every step: recurrence.py
IOTA = declare("IOTA", Kind.SPECIAL)         # 0, 1, ..., n - 1, for arg.shape (n,)
GRADIENT = declare("GRADIENT", Kind.SPECIAL)     # (target, value, seed): d value / d target: gradient.py
FORMULA = declare("FORMULA", Kind.SPECIAL)       # (inputs): a formula that arg.function expands: gradient.py
RANDOM = declare("RANDOM", Kind.SPECIAL, cost=60)    # (seed, stream) -> uint64 of arg.shape: counter-based random bits

# -- inside kernels ------------------------------------------------------------------------------------------
PARAM = declare("PARAM", Kind.LEAF)       # arg: Param, the kernel's n-th buffer or scalar
RANGE = declare("RANGE", Kind.KERNEL)     # arg: Range, a loop's counter
LOCAL = declare("LOCAL", Kind.KERNEL)     # arg: Local, scratch memory for the duration of one launch
LOAD = declare("LOAD", Kind.KERNEL)       # (memory, index[, gate]): an element, or 0 where the gate is false
REGISTER = declare("REGISTER", Kind.KERNEL)   # arg: name; src: the wide axes that index it; a mutable scalar or tile
FOLD = declare("FOLD", Kind.KERNEL)       # (value, *wide axes) with arg.combine: reduce a tile or vector to one value
CALL = declare("CALL", Kind.KERNEL)       # arg: UserCall; (memory, ...): a user's function, launched like a kernel
