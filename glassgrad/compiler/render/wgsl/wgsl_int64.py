"""64-bit integers in WGSL, which has none. In: nothing. Out: `HELPERS`, functions on vec2<u32>, the low word first.

A kernel gets those that it calls, and those that these call. Signed numbers are two's complement, so that sums and
products are the same functions for both kinds. Division takes 64 steps of shifting and subtracting.
"""

from __future__ import annotations

import re

_TEXT = """
fn long_64(x: i32) -> vec2<u32> {
  return vec2<u32>(u32(x), u32(x >> 31u));
}
fn add_64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let low = x.x + y.x;
  return vec2<u32>(low, x.y + y.y + u32(low < x.x));
}
fn sub_64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(x.x - y.x, x.y - y.y - u32(x.x < y.x));
}
fn neg_64(x: vec2<u32>) -> vec2<u32> {
  return sub_64(vec2<u32>(), x);
}
fn abs_64(x: vec2<u32>) -> vec2<u32> {
  return select(x, neg_64(x), (x.y >> 31u) == 1u);
}
fn mul_32(x: u32, y: u32) -> vec2<u32> {
  let low = (x & 0xffffu) * (y & 0xffffu);
  let left = (x >> 16u) * (y & 0xffffu);
  let right = (x & 0xffffu) * (y >> 16u);
  let middle = (low >> 16u) + (left & 0xffffu) + (right & 0xffffu);
  let high = (x >> 16u) * (y >> 16u) + (left >> 16u) + (right >> 16u) + (middle >> 16u);
  return vec2<u32>((low & 0xffffu) | (middle << 16u), high);
}
fn mul_64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let low = mul_32(x.x, y.x);
  return vec2<u32>(low.x, low.y + x.x * y.y + x.y * y.x);
}
fn less_u64(x: vec2<u32>, y: vec2<u32>) -> bool {
  return (x.y < y.y) || (x.y == y.y && x.x < y.x);
}
fn less_i64(x: vec2<u32>, y: vec2<u32>) -> bool {
  return (i32(x.y) < i32(y.y)) || (x.y == y.y && x.x < y.x);
}
fn shl_64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let n = y.x;
  if (y.y != 0u || n >= 64u) { return vec2<u32>(); }
  if (n == 0u) { return x; }
  if (n >= 32u) { return vec2<u32>(0u, x.x << (n - 32u)); }
  return vec2<u32>(x.x << n, (x.y << n) | (x.x >> (32u - n)));
}
fn shr_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let n = y.x;
  if (y.y != 0u || n >= 64u) { return vec2<u32>(); }
  if (n == 0u) { return x; }
  if (n >= 32u) { return vec2<u32>(x.y >> (n - 32u), 0u); }
  return vec2<u32>((x.x >> n) | (x.y << (32u - n)), x.y >> n);
}
fn shr_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  if (y.y != 0u || y.x >= 64u) { return vec2<u32>(); }
  let sign = vec2<u32>(u32(i32(x.y) >> 31u));
  return shr_u64(x ^ sign, y) ^ sign;
}
fn parts_64(x: vec2<u32>, y: vec2<u32>) -> vec4<u32> {
  if (all(y == vec2<u32>())) { return vec4<u32>(); }
  var quotient = vec2<u32>();
  var rest = vec2<u32>();
  for (var i = 63u; i < 64u; i--) {
    let over = rest.y >> 31u;
    let bit = select(x.x >> i, x.y >> (i - 32u), i >= 32u) & 1u;
    rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
    quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
    if (over == 1u || !less_u64(rest, y)) {
      rest = sub_64(rest, y);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}
fn divide_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  return parts_64(x, y).xy;
}
fn modulo_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  return parts_64(x, y).zw;
}
fn divide_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let parts = parts_64(abs_64(x), abs_64(y));
  if (((x.y ^ y.y) >> 31u) == 0u) { return parts.xy; }
  return select(neg_64(parts.xy), ~parts.xy, any(parts.zw != vec2<u32>()));
}
fn modulo_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let rest = parts_64(abs_64(x), abs_64(y)).zw;
  let signed = select(rest, neg_64(rest), (x.y >> 31u) == 1u);
  let apart = any(rest != vec2<u32>()) && ((x.y ^ y.y) >> 31u) == 1u;
  return select(signed, add_64(signed, y), apart);
}
fn float_u64(x: vec2<u32>) -> f32 {
  if (x.y == 0u) { return f32(x.x); }
  let zeros = countLeadingZeros(x.y);
  let top = shl_64(x, vec2<u32>(zeros, 0u));
  return f32(top.y | u32(top.x != 0u)) * bitcast<f32>((159u - zeros) << 23u);
}
fn float_i64(x: vec2<u32>) -> f32 {
  let size = float_u64(abs_64(x));
  return select(size, -size, (x.y >> 31u) == 1u);
}
fn i64_float(x: f32) -> vec2<u32> {
  if (!(abs(x) < 9223372036854775808.0f)) { return vec2<u32>(0u, 0x80000000u); }
  let bits = bitcast<u32>(x);
  let exponent = i32((bits >> 23u) & 255u) - 150;
  let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  var size = vec2<u32>(mantissa.x >> u32(min(-exponent, 31)), 0u);
  if (exponent >= 0) { size = shl_64(mantissa, vec2<u32>(u32(exponent), 0u)); }
  return select(size, neg_64(size), (bits >> 31u) == 1u);
}
"""

HELPERS: dict[str, str] = {re.match(r"fn (\w+)", text).group(1): text  # type: ignore[union-attr]
                           for text in re.findall(r"^fn .*?^}", _TEXT, re.M | re.S)}
