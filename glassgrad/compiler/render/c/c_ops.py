"""Arithmetic in C with vector extensions. In: operands as `CValue`s. Out: expressions, and the helpers they call.

`C_OPS`, at the end, has one line for each op. For GCC 12, Clang and their `vector_size` types, with -fwrapv. A vector
of n lanes is held in one of the next power of two. Booleans are 0 and 1; in vectors, 0 and -1 in 32 bits. Floats of
less than 32 bits are held as integers with their bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, bits_of, dtypes, round_float
from glassgrad.compiler.lower.missing_instructions import SMALL_FLOATS, carrier, held
from glassgrad.compiler.render.value_placement import fold_lanes, line_of

NAMES = {dtypes.bool: "bool", dtypes.int8: "i8", dtypes.uint8: "u8", dtypes.int16: "i16", dtypes.uint16: "u16",
         dtypes.int32: "i32", dtypes.uint32: "u32", dtypes.int64: "i64", dtypes.uint64: "u64", dtypes.float32: "f32",
         dtypes.float64: "f64"}
SPELLED = {"bool": "_Bool", "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short",
           "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float",
           "f64": "double"}
SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}
MASK = dtypes.int32


class CValue(NamedTuple):
    """An expression: its text, its element type and lanes (0 for a scalar), and facts about it."""
    text: str
    dtype: DType
    lanes: int = 0
    simple: bool = True                            # needs no parentheses as an operand
    constant: float | int | bool | None = None     # the value, if the text is a literal
    low: int | None = None                         # a lower bound of the value, if one is known

    @property
    def inside(self) -> str:
        """The text as an operand of another expression."""
        return self.text if self.simple else f"({self.text})"


@dataclass
class Definitions:
    """The text before the functions: types, then helpers, each by name, in the order of their first use."""
    types: dict[str, str] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return [text for text in (*self.types.values(), *self.helpers.values()) if text]


@dataclass(frozen=True)
class Spelling:
    """The spelling of literals, functions and variables in a language; the defaults are C's."""
    function: str = "__builtin_{name}{end}"                         # {end}: "f" for float32
    nan: tuple[str, str] = ('__builtin_nanf("")', '__builtin_nan("")')      # for float32, for float64
    inf: tuple[str, str] = ("__builtin_inff()", "__builtin_inf()")
    ends: Mapping[DType, str] = field(default_factory=lambda: literal_ends("ll"))       # suffixes of literals
    bools: tuple[str, str] = ("0", "1")
    head: str = "{inline} {result} {name}({parameters})"            # of a function definition
    parameter: str = "{kind} {name}"
    value: str = "{kind} {name} = {value};"                         # a variable that is not reassigned
    cut: str = "({kind})({text})"                                   # truncates a 32-bit integer to a smaller type
    distance: str = "{y}"                                           # the distance of a shift
    differ: str = "{x} != {y}"                                      # of floats: true if either is NaN
    absolute: str = "fabs"                                          # of a float
    nearest: str = "rint"                                           # rounds a float to an integral value, ties to even


def literal_ends(long: str) -> dict[DType, str]:
    """The suffixes of C literals; `long` is that of 64-bit integers."""
    return {dtypes.float32: "f", dtypes.uint32: "u", dtypes.int64: long, dtypes.uint64: f"u{long}"}


BUILTIN = Spelling()


def number(value: float | int | bool, dtype: DType, spelling: Spelling = BUILTIN) -> str:
    """A literal."""
    if dtype in SMALL_FLOATS:
        value, dtype = bits_of(float(value), dtype), carrier(dtype)
    if dtype.kind == "b":
        return spelling.bools[bool(value)]
    end = spelling.ends.get(dtype, "")
    if dtype.kind != "f":
        if dtype is dtypes.int64 and -(1 << 31) < value < 1 << 31:
            end = ""
        text = f"{value}{end}" if value > dtype.min or not value else f"(-{-(value + 1)}{end} - 1)"
        return f"({text})" if value < 0 and text[0] != "(" else text
    if math.isnan(value):
        return spelling.nan[dtype is dtypes.float64]
    value = round_float(value, dtype)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}{spelling.inf[dtype is dtypes.float64]}"
    text = repr(value)
    if dtype is dtypes.float32:       # the shortest text with the same float32 value
        text = next(t for p in range(1, 10) if bits_of(float(t := f"{value:.{p}g}"), dtype) == bits_of(value, dtype))
    text = text if any(c in text for c in ".en") else text + ".0"
    return f"({text}{end})" if text[0] == "-" else text + end


class CArithmetic:
    """Ops on CValues. `definitions` collects the types and helpers that the text needs, in order."""
    definitions: Definitions
    spelled: dict[str, str] = SPELLED
    spelling: Spelling = BUILTIN
    inline: str = "static inline"          # the words before a helper
    language: str = "C"

    @property
    def ops(self) -> Mapping[o.Op, COp]:
        """The table of ops."""
        return C_OPS

    def apply(self, op: o.Op, dtype: DType, *values: CValue) -> CValue:
        """Apply an op to values of `dtype`, by its line in the table."""
        result: CValue = line_of(self.ops, op, dtype, self.language)(self, dtype, *values)
        return result

    def constant(self, value: float | int | bool, dtype: DType) -> CValue:
        known = bits_of(float(value), dtype) if dtype in SMALL_FLOATS else value
        return CValue(number(value, dtype, self.spelling), dtype, constant=known)

    # -- types ---------------------------------------------------------------------------------------------------
    def type(self, dtype: DType, lanes: int = 0) -> str:
        """The C name of a type; the type is defined at its first use."""
        if lanes and dtype is dtypes.bool:
            dtype = MASK
        base, types = NAMES[held(dtype)], self.definitions.types
        if base not in types:
            spelled = self.spelled[base]
            text = "#define bool _Bool" if base == "bool" else f"typedef {spelled} {base};"      # a keyword in C23
            types[base] = text if spelled != base else ""
        if not lanes:
            return base
        name = f"{base}x{lanes}"
        if name not in types:
            whole = width(lanes) * held(dtype).itemsize
            types[name] = f"typedef {base} {name} __attribute__((vector_size({whole})));"
        return name

    def define(self, name: str, result: str, arguments: str, *body: str) -> str:
        """Define a helper function, once."""
        if name not in self.definitions.helpers:
            head = self.spelling.head.format(inline=self.inline, result=result, name=name, parameters=arguments)
            lines = "\n".join(f"  {line}" for line in body)
            self.definitions.helpers[name] = f"{head} {{\n{lines}\n}}"
        return name

    def parameters(self, kind: str, names: str) -> str:
        """Parameters of one type."""
        return ", ".join([self.spelling.parameter.format(kind=kind, name=name) for name in names])

    # -- spelling of scalar operations that differs between languages ---------------------------------------------
    def choice(self, dtype: DType, test: str, yes: str, no: str) -> CValue:
        """Choose between two values, by a test."""
        return CValue(f"{test} ? {yes} : {no}", dtype, 0, False)

    def cut(self, dtype: DType, text: str) -> str:
        """Truncate an integer result to its type: types below 32 bits are computed in 32."""
        smaller = dtype.bits < 32 and dtype.kind in "iu"
        return self.spelling.cut.format(kind=self.type(dtype), text=text, bits=dtype.bits) if smaller else text

    def converted(self, x: CValue, dtype: DType) -> str:
        """Convert a value to another type; from float to integer only if it fits."""
        return f"({self.type(dtype)}){x.inside}"

    def call(self, name: str, dtype: DType, lanes: int, *arguments: CValue) -> CValue:
        return CValue(f"{name}({', '.join([a.text for a in arguments])})", dtype, lanes)

    def wide(self, x: CValue, lanes: int) -> CValue:
        """Broadcast a value to all lanes, unused ones included, since C also divides there."""
        if x.lanes == lanes:
            return x
        if x.lanes:
            raise Bug(f"a vector of {x.lanes} lanes is used where {lanes or 'a scalar'} is needed")
        full = self.type(x.dtype, lanes)
        if x.constant == 0 and math.copysign(1, x.constant) > 0:
            return CValue(f"({full}){{0}}", x.dtype, lanes)
        # truth values are masks of the integers' type: the same type, another meaning, another name
        value, name = ("-x", "mask") if x.dtype is dtypes.bool else ("x", "all")
        name = self.define(f"{name}_{full}", full, f"{self.type(x.dtype)} x",
                           f"return ({full}){{{', '.join([value] * width(lanes))}}};")
        return self.call(name, x.dtype, lanes, x)

    def select(self, dtype: DType, condition: CValue, yes: CValue, no: CValue) -> CValue:
        lanes = max(condition.lanes, yes.lanes, no.lanes)
        yes, no = self.wide(yes, lanes), self.wide(no, lanes)
        if not condition.lanes:
            return self.choice(dtype, condition.inside, yes.inside, no.inside)._replace(lanes=lanes)
        if dtype is dtypes.bool:
            test = condition.inside
            return CValue(f"({test} & {yes.inside}) | (~{test} & {no.inside})", dtype, lanes, False)
        full, bits = self.type(dtype, lanes), self.type(SIGNED[held(dtype).itemsize], lanes)
        name = self.define(f"select_{full}", full, f"{bits} where, {full} x, {full} y",
                           f"return ({full})((where & ({bits})x) | (~where & ({bits})y));")
        return self.call(name, dtype, lanes, self.mask(condition, held(dtype).itemsize), yes, no)

    def mask(self, condition: CValue, itemsize: int) -> CValue:
        """A vector of booleans with lanes of another size."""
        if itemsize == MASK.itemsize:
            return condition
        full = self.type(SIGNED[itemsize], condition.lanes)
        return CValue(f"__builtin_convertvector({condition.text}, {full})", SIGNED[itemsize], condition.lanes)

    def lanewise(self, name: str, dtype: DType, expression: str, *arguments: CValue) -> CValue:
        """A helper that applies `expression`, over x and y, lane by lane; compilers vectorize it."""
        lanes = arguments[0].lanes
        full = self.type(dtype, lanes)
        names = "xyz"[:len(arguments)]
        takes = ", ".join(f"{self.type(a.dtype, lanes)} {n}" for a, n in zip(arguments, names))
        for n in names:
            expression = expression.replace(f"${n}", f"{n}[i]")
        self.define(f"{name}_{full}", full, takes, f"{full} r;",
                    f"for (int i = 0; i < {width(lanes)}; i++) r[i] = {expression};", "return r;")
        return self.call(f"{name}_{full}", dtype, lanes, *arguments)

    def per_lane(self, name: str, function: str, dtype: DType, *arguments: CValue) -> CValue:
        """Apply a scalar function lane by lane; `name` is the prefix of its helper for vectors."""
        if not arguments[0].lanes:
            return self.call(function, dtype, 0, *arguments)
        names = ", ".join(f"${n}" for n in "xyz"[:len(arguments)])
        return self.lanewise(name, dtype, f"{function}({names})", *arguments)

    # -- ops -----------------------------------------------------------------------------------------------------
    def infix(self, sign: str, x: CValue, y: CValue, dtype: DType) -> CValue:
        """x sign y. The compiler broadcasts a scalar operand of a vector, except where C would promote it first."""
        lanes = max(x.lanes, y.lanes)
        if lanes and (x.dtype.bits < 32 or x.dtype is dtypes.bool):
            x, y = self.wide(x, lanes), self.wide(y, lanes)
        text = f"{x.inside} {sign} {y.inside}"
        if not lanes and dtype.bits < 32 and dtype is not dtypes.bool:
            return CValue(self.cut(dtype, text), dtype)
        return CValue(text, dtype, lanes, False)

    def negate(self, dtype: DType, x: CValue) -> CValue:
        if dtype.kind != "f" and not x.lanes:
            return self.apply(o.SUB, dtype, self.constant(0, dtype), x)
        return CValue(f"-{x.inside}", dtype, x.lanes, False)

    def invert(self, dtype: DType, x: CValue) -> CValue:
        if dtype.kind == "b" and not x.lanes:
            return CValue(f"!{x.inside}", dtype)
        return CValue(f"~{x.inside}" if x.lanes else self.cut(dtype, f"~{x.inside}"), dtype, x.lanes)

    def absolute(self, dtype: DType, x: CValue) -> CValue:
        if dtype.kind == "u":
            return x
        if dtype.kind == "f":
            return self.function(self.spelling.absolute, dtype, x)
        if x.lanes:
            return self.lanewise("abs", dtype, "$x < 0 ? -$x : $x", x)
        return self.choice(dtype, f"{x.inside} < 0", self.negate(dtype, x).inside, x.inside)

    def function(self, name: str, dtype: DType, *arguments: CValue) -> CValue:
        """A function of C's library on floats: "sqrt" is sqrtf for float32."""
        spelled = self.spelling.function.format(name=name, end="f" if dtype is dtypes.float32 else "")
        return self.per_lane(name, spelled, dtype, *arguments)

    def multiply_add(self, dtype: DType, x: CValue, y: CValue, z: CValue) -> CValue:
        return self.apply(o.ADD, dtype, self.apply(o.MUL, dtype, x, y), z)

    def compare(self, sign: str, x: CValue, y: CValue) -> CValue:
        """x sign y of numbers, as booleans."""
        lanes, itemsize = max(x.lanes, y.lanes), held(x.dtype).itemsize
        if not lanes:
            spelled = self.spelling.differ if sign == "!=" and x.dtype.kind == "f" else f"{{x}} {sign} {{y}}"
            return CValue(spelled.format(x=x.inside, y=y.inside), dtypes.bool, 0, False)
        result = self.infix(sign, x, y, dtypes.bool)
        if itemsize == MASK.itemsize:
            return CValue(result.text, dtypes.bool, lanes, False)
        return CValue(f"__builtin_convertvector({result.text}, {self.type(dtypes.bool, lanes)})", dtypes.bool, lanes)

    def extreme(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        """max or min of numbers; NaN wins."""
        lanes = max(x.lanes, y.lanes)
        x, y = self.wide(x, lanes), self.wide(y, lanes)
        full = self.type(dtype, lanes)
        if not lanes:        # if y is NaN, no comparison holds, and the result is y
            test = f"x {sign} y || !(x == x)" if dtype.kind == "f" else f"x {sign} y"
            self.define(f"{name}_{full}", full, self.parameters(full, "xy"),
                        f"return {self.choice(dtype, test, 'x', 'y').text};")
        else:
            bits = self.type(SIGNED[dtype.itemsize], x.lanes)
            test = f"(x {sign} y) | (x != x)" if dtype.kind == "f" else f"x {sign} y"
            self.define(f"{name}_{full}", full, f"{full} x, {full} y", f"{bits} where = {test};",
                        f"return ({full})((where & ({bits})x) | (~where & ({bits})y));")
        return self.call(f"{name}_{full}", dtype, x.lanes, x, y)

    def shift(self, sign: str, dtype: DType, x: CValue, y: CValue) -> CValue:
        """x shifted by y, which must be less than the number of bits."""
        lanes = max(x.lanes, y.lanes)
        whole = self.converted(x, dtype) if x.constant is not None and not lanes else self.wide(x, lanes).inside
        by = self.spelling.distance.format(y=self.wide(y, lanes).inside) if y.constant is None else y.constant
        shifted = f"{whole} {sign} {by}"                     # of a converted x: C's 16 is an int
        return CValue(shifted if lanes else self.cut(dtype, shifted), dtype, lanes, False)

    def divide(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        """x // y or x % y of integers, rounding down; 0 if y is 0."""
        scalar, lanes = self.type(dtype), max(x.lanes, y.lanes)
        if y.constant is not None and y.constant > 0 and (dtype.kind == "u" or x.low is not None and x.low >= 0):
            return self.infix(sign, x, y if dtype.bits >= 32 else self.wide(y, lanes), dtype)
        x, y = self.wide(x, lanes), self.wide(y, lanes)
        by_zero = self.choice(dtype, "y == 0", "0", f"x {sign} y" if dtype.kind == "u" else "-x").text
        body = [f"return {by_zero};"]
        if dtype.kind == "i":       # rounds down; division by 0 gives 0, and by -1 never overflows
            exact, below = ("x / y", "x / y - 1") if sign == "/" else ("r", "r + y")
            rounded = self.choice(dtype, "r != 0 && (r ^ y) < 0", below, exact).text
            body = [f"if (y == 0 || y == -1) {{ return {self.cut(dtype, by_zero) if sign == '/' else 0}; }}",
                    self.spelling.value.format(kind=scalar, name="r", value="x % y"), f"return {rounded};"]
        helper = self.define(f"{name}_{NAMES[dtype]}", scalar, self.parameters(scalar, "xy"), *body)
        return self.per_lane(name, helper, dtype, x, y)

    def fold(self, combine: o.Op, dtype: DType, x: CValue) -> CValue:
        """Combine all lanes."""
        scalar, full = self.type(dtype), self.type(dtype, x.lanes)
        name = f"fold_{combine.name.lower()}_{'bool_' if dtype is dtypes.bool else ''}{full}"
        body = [f"{scalar} {', '.join(f't{i} = v[{i}]' for i in range(x.lanes))};"]

        def pairs(low: list[str], high: list[str]) -> list[str]:
            results = [self.apply(combine, dtype, CValue(a, dtype), CValue(b, dtype)).text for a, b in zip(low, high)]
            body.append(" ".join(f"{a} = {result};" for a, result in zip(low, results)))
            return low
        [result] = fold_lanes(x.lanes, [f"t{i}" for i in range(x.lanes)], lambda t, i, stop: t[i:stop], pairs)
        self.define(name, scalar, f"{full} v", *body, f"return {result};")
        return self.call(name, dtype, 0, x)

    # -- conversions ---------------------------------------------------------------------------------------------
    def cast(self, x: CValue, dtype: DType) -> CValue:
        """Convert a value to another type. float -> int32 or int64 as on x86: the least integer if it does not fit."""
        source, lanes = x.dtype, x.lanes
        if source is dtype:
            return x
        if dtype.kind == "b":
            return self.compare("!=", x, self.wide(CValue("0", source, constant=0), lanes))
        full = self.type(dtype, lanes)
        if source.kind == "b" and lanes:
            integer = SIGNED[dtype.itemsize]
            ones = self.mask(x, dtype.itemsize)
            ones = CValue(f"{ones.inside} & {self.wide(CValue('1', integer), lanes).text}", integer, lanes, False)
            return ones if dtype is integer else self.cast(ones, dtype)
        if source.kind == "f" and dtype.kind in "iu":
            return self._to_integer(x, dtype)
        if not lanes:
            return CValue(self.converted(x, dtype), dtype)
        if source.kind != "f" and dtype.kind != "f" and source.bits == dtype.bits:
            return CValue(f"({full}){x.inside}", dtype, lanes)
        return CValue(f"__builtin_convertvector({x.text}, {full})", dtype, lanes)

    def _to_integer(self, x: CValue, dtype: DType) -> CValue:
        """Convert a float to int32 or int64."""
        result, scalar = self.type(dtype), self.type(x.dtype)
        limit, least = self.constant(2.0 ** (dtype.bits - 1), x.dtype).text, number(dtype.min, dtype, self.spelling)
        body = self.choice(dtype, f"x >= -{limit} && x < {limit}", self.converted(x._replace(text="x"), dtype), least)
        name = self.define(f"to_{result}_{scalar}", result, self.parameters(scalar, "x"), f"return {body.text};")
        return self.per_lane(name, name, dtype, x)

    def bitcast(self, x: CValue, dtype: DType) -> CValue:
        to, source = self.type(dtype, x.lanes), self.type(x.dtype, x.lanes)
        if to == source:
            return x._replace(dtype=dtype)
        if x.lanes or held(dtype).kind != "f" and held(x.dtype).kind != "f":
            return CValue(f"({to}){x.inside}", dtype, x.lanes)
        name = self.define(f"{to}_bits_{source}", to, f"{source} x", f"union {{ {source} from; {to} to; }} bits;",
                           "bits.from = x;", "return bits.to;")
        return self.call(name, dtype, 0, x)


def width(lanes: int) -> int:
    """The number of lanes of the vector type that holds `lanes`: the next power of two."""
    return 1 << (lanes - 1).bit_length()


COp = Callable[..., CValue]      # (renderer, type of the operands, *operands)


def infix(sign: str) -> COp:
    """x sign y."""
    return lambda c, dtype, x, y: c.infix(sign, x, y, dtype)


C_OPS: dict[o.Op, COp] = {
    o.NEG: lambda c, dtype, x: c.negate(dtype, x),
    o.ABS: lambda c, dtype, x: c.absolute(dtype, x),
    o.RECIP: lambda c, dtype, x: c.infix("/", c.constant(1.0, dtype), x, dtype),
    o.SQRT: lambda c, dtype, x: c.function("sqrt", dtype, x),
    o.TRUNC: lambda c, dtype, x: c.function("trunc", dtype, x),
    o.ROUND: lambda c, dtype, x: c.function(c.spelling.nearest, dtype, x),
    o.NOT: lambda c, dtype, x: c.invert(dtype, x),
    o.ADD: infix("+"),
    o.SUB: infix("-"),
    o.MUL: infix("*"),
    o.DIV: infix("/"),
    o.IDIV: lambda c, dtype, x, y: c.divide(dtype, x, y, "/", "divide"),
    o.MOD: lambda c, dtype, x, y: c.divide(dtype, x, y, "%", "modulo"),
    o.MAX: lambda c, dtype, x, y: c.extreme(dtype, x, y, ">", "max"),
    o.MIN: lambda c, dtype, x, y: c.extreme(dtype, x, y, "<", "min"),
    o.CMPLT: lambda c, dtype, x, y: c.compare("<", x, y),
    o.CMPNE: lambda c, dtype, x, y: c.compare("!=", x, y),
    o.CMPEQ: lambda c, dtype, x, y: c.compare("==", x, y),
    o.AND: infix("&"),
    o.OR: infix("|"),
    o.XOR: lambda c, dtype, x, y: c.infix("^" if dtype.kind != "b" or x.lanes or y.lanes else "!=", x, y, dtype),
    o.SHL: lambda c, dtype, x, y: c.shift("<<", dtype, x, y),
    o.SHR: lambda c, dtype, x, y: c.shift(">>", dtype, x, y),
    o.WHERE: lambda c, dtype, condition, x, y: c.select(dtype, condition, x, y),
    o.MULACC: lambda c, dtype, x, y, z: c.multiply_add(dtype, x, y, z),
}
