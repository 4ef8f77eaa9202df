"""Conversions in WebAssembly. In: a `WasmValue` and a type. Out: the value in that type.

A float becomes an int32 or int64 as on x86: rounded towards zero, and the least integer if it does not fit.
(WebAssembly's own instruction then gives the nearest integer, and 0 for NaN.) Casts to other integers, and of floats
below float32, have been replaced by arithmetic before (compiler/lower/missing_instructions.py).
"""

from __future__ import annotations

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.lower.missing_instructions import held
from glassgrad.compiler.render.wasm.instruction_encoding import Code
from glassgrad.compiler.render.wasm.wasm_ops import PIECE, WasmArithmetic, WasmValue, literal, pieces_of, scalar_type

LOWER_HALVES = bytes([*range(8), *range(PIECE, PIECE + 8)])        # of two vectors
UPPER_HALF = bytes([*range(8, PIECE), *range(8, PIECE)])           # of one, in both halves


class WasmCasts(WasmArithmetic):
    """Conversions of WasmValues."""

    def cast(self, x: WasmValue, dtype: DType) -> WasmValue:
        """Convert a value to another type."""
        a, b = x.dtype.kind, dtype.kind
        if x.dtype is dtype:
            return x
        if b == "b":
            return self.compare("ne", x.dtype, x, self.constant(0, x))
        if a == "b":
            return self._from_bool(x, dtype)
        if a == "f":
            return self._between_floats(x, dtype) if b == "f" else self._to_integer(x, dtype)
        return self._to_float(x, dtype) if b == "f" else self._between_integers(x, dtype)

    def bitcast(self, x: WasmValue, dtype: DType) -> WasmValue:
        """The same bits under another type of the same size."""
        dtype = held(dtype)
        a, b = scalar_type(x.dtype), scalar_type(dtype)
        if x.lanes:
            return WasmValue(x.pieces, dtype, x.lanes)
        return self.fit(x.code, dtype) if a == b else WasmValue((Code(f"{b}.reinterpret_{a}", (x.code,)),), dtype)

    def _from_bool(self, x: WasmValue, dtype: DType) -> WasmValue:
        if x.lanes:
            ones = self.wide(literal(1, dtype), x.lanes)
            return WasmValue(self.each("v128.and", self.mask(x, dtype.itemsize), ones), dtype, x.lanes)
        return self.cast(WasmValue(x.pieces, dtypes.uint32), dtype)

    def _between_integers(self, x: WasmValue, dtype: DType) -> WasmValue:
        source = x.dtype
        if x.lanes:
            pieces = self.resized(x.pieces, x.lanes, source.itemsize, dtype.itemsize, source.kind)
            return WasmValue(pieces, dtype, x.lanes)
        code = x.code
        if source.bits == 64 and dtype.bits < 64:
            code = Code("i32.wrap_i64", (code,))
        elif source.bits < 64 and dtype.bits == 64:
            code = Code(f"i64.extend_i32_{'s' if source.kind == 'i' else 'u'}", (code,))
        return self.fit(code, dtype)

    def _to_float(self, x: WasmValue, dtype: DType) -> WasmValue:
        source, to = x.dtype, scalar_type(dtype)
        sign = "s" if source.kind == "i" else "u"
        if not x.lanes:
            return WasmValue((Code(f"{to}.convert_{scalar_type(source)}_{sign}", (x.code,)),), dtype)
        if source.bits == 64:
            return self.lanewise(lambda lane: self._to_float(lane, dtype), dtype, x)
        pieces = self.resized(x.pieces, x.lanes, source.itemsize, 4, source.kind)
        if dtype is dtypes.float32:
            return WasmValue(tuple([Code(f"f32x4.convert_i32x4_{sign}", (p,)) for p in pieces]), dtype, x.lanes)
        return self._doubled(f"f64x2.convert_low_i32x4_{sign}", pieces, x.lanes)

    def _between_floats(self, x: WasmValue, dtype: DType) -> WasmValue:
        if not x.lanes:
            name = "f64.promote_f32" if dtype is dtypes.float64 else "f32.demote_f64"
            return WasmValue((Code(name, (x.code,)),), dtype)
        if dtype is dtypes.float64:
            return self._doubled("f64x2.promote_low_f32x4", x.pieces, x.lanes)
        halves = tuple([Code("f32x4.demote_f64x2_zero", (piece,)) for piece in x.pieces])
        return WasmValue(self._joined(halves, x.lanes), dtype, x.lanes)

    def _doubled(self, name: str, pieces: tuple[Code, ...], lanes: int) -> WasmValue:
        """Convert to float64 by an instruction that converts the lower two of four lanes."""
        pieces = tuple([self.bind(piece) for piece in pieces])
        halves = [half for p in pieces for half in (p, Code("i8x16.shuffle", (p, p), UPPER_HALF))]
        return WasmValue(tuple([Code(name, (half,)) for half in halves[:pieces_of(lanes, 8)]]), dtypes.float64, lanes)

    def _joined(self, halves: tuple[Code, ...], lanes: int) -> tuple[Code, ...]:
        """Join vectors whose lower halves have two 32-bit lanes each to vectors of four lanes."""
        if len(halves) % 2:
            halves = (*halves, Code("v128.const", (), bytes(PIECE)))
        joined = [Code("i8x16.shuffle", halves[i:i + 2], LOWER_HALVES) for i in range(0, len(halves), 2)]
        return tuple(joined[:pieces_of(lanes, 4)])

    def _to_integer(self, x: WasmValue, dtype: DType) -> WasmValue:
        """Convert a float to int32 or int64."""
        if x.lanes and dtype.bits == 64:
            return self.lanewise(lambda lane: self._to_integer(lane, dtype), dtype, x)
        x = self.bound(x)
        fits = self.compare("lt", x.dtype, x, self.constant(2.0 ** (dtype.bits - 1), x))      # false for NaN
        if not x.lanes:
            code = Code(f"{scalar_type(dtype)}.trunc_sat_{scalar_type(x.dtype)}_s", (x.code,))
            nearest = WasmValue((code,), dtype)
        elif x.dtype is dtypes.float32:
            nearest = WasmValue(self.each("i32x4.trunc_sat_f32x4_s", x), dtype, x.lanes)
        else:
            nearest = WasmValue(self._joined(self.each("i32x4.trunc_sat_f64x2_s_zero", x), x.lanes), dtype, x.lanes)
        return self.select(fits, nearest, self.constant(int(dtype.min), nearest))
