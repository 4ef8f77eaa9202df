"""Small kernels around the products: a vector times a matrix, sums of the parts of a split K, and padded copies."""

from __future__ import annotations

from dataclasses import dataclass

from device_text import PRELUDE


@dataclass(frozen=True)
class VectorMatrix:
    """y[N] = x[K] B[K, N], bf16: a warp reads 512 bytes of a row; blocks share out columns and parts of K, and the last
    block of a column's parts joins them."""
    parts: int = 16
    warps: int = 8
    rows: int = 8               # loads in flight
    blocks_per_sm: int = 4

    @property
    def name(self) -> str:
        return f"vector_matrix_p{self.parts}_w{self.warps}_r{self.rows}_x{self.blocks_per_sm}"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    shared_bytes = 0

    def source(self) -> str:
        return "\n".join((PRELUDE, f"constexpr int PARTS = {self.parts}, WARPS = {self.warps}, ROWS = {self.rows}, AT_ONCE = {self.blocks_per_sm};", VECTOR_MATRIX))


VECTOR_MATRIX = r"""
DEVICE float low(u32 both) { return __uint_as_float(both << 16); }
DEVICE float high(u32 both) { return __uint_as_float(both & 0xffff0000u); }

extern "C" __global__ void __launch_bounds__(WARPS * 32, AT_ONCE)
kernel(const u16 *x, const u16 *b, u16 *y, float *partial, u32 *counts, int K, int N)
{
  __shared__ float area[WARPS][256];
  __shared__ u32 last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 256 + lane * 8, part = blockIdx.y;
  const int each = (K + PARTS - 1) / PARTS, begin = part * each, end = min(K, begin + each);
  float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (column < N)
    for (int k = begin + warp; k < end; k += WARPS * ROWS) {
      uint4 row[ROWS]; float factor[ROWS];
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const int at = k + i * WARPS;
        row[i] = at < end ? __ldcs((const uint4 *)(b + (long long)at * N + column)) : make_uint4(0, 0, 0, 0);
        factor[i] = at < end ? __uint_as_float((u32)x[at] << 16) : 0;
      }
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        sums[0] += factor[i] * low(row[i].x); sums[1] += factor[i] * high(row[i].x);
        sums[2] += factor[i] * low(row[i].y); sums[3] += factor[i] * high(row[i].y);
        sums[4] += factor[i] * low(row[i].z); sums[5] += factor[i] * high(row[i].z);
        sums[6] += factor[i] * low(row[i].w); sums[7] += factor[i] * high(row[i].w);
      }
    }
#pragma unroll
  for (int i = 0; i < 8; i++) area[warp][i * 32 + lane] = sums[i];
  __syncthreads();
  for (int c = threadIdx.x; c < 256; c += WARPS * 32) {        // c is i * 32 + lane
    float total = 0;
    for (int w = 0; w < WARPS; w++) total += area[w][c];
    area[0][c] = total;
    if (PARTS > 1) partial[((long long)blockIdx.x * PARTS + part) * 256 + c] = total;
  }
  if (PARTS > 1) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&counts[blockIdx.x], 1) == PARTS - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) counts[blockIdx.x] = 0;
    for (int c = threadIdx.x; c < 256; c += WARPS * 32) {
      float total = 0;
#pragma unroll
      for (int p = 0; p < PARTS; p++) total += __ldcg(&partial[((long long)blockIdx.x * PARTS + p) * 256 + c]);
      area[0][c] = total;
    }
  }
  __syncthreads();
  for (int pair = threadIdx.x; pair < 128; pair += WARPS * 32) {
    const int at = pair * 2, to = blockIdx.x * 256 + at;
    if (to < N) *(u32 *)(y + to) = pack_bf16(area[0][at % 8 * 32 + at / 8], area[0][(at + 1) % 8 * 32 + at / 8]);
  }
}
"""


@dataclass(frozen=True)
class Join:
    """C = the sum of the parts of a split K."""
    parts: int = 2
    dtype: str = "bf16"
    threads = 256
    shared_bytes = 0

    @property
    def name(self) -> str:
        return f"join_{self.dtype}_{self.parts}"

    def source(self) -> str:
        return "\n".join((PRELUDE, f"constexpr int PARTS = {self.parts};\n#define PACK pack_{self.dtype}", r"""
extern "C" __global__ void __launch_bounds__(256) kernel(const float4 *parts, uint2 *c, int quads)
{
  const int at = blockIdx.x * 256 + threadIdx.x;
  if (at >= quads) return;
  float4 total = parts[at];
#pragma unroll
  for (int p = 1; p < PARTS; p++) {
    const float4 more = parts[(long long)p * quads + at];
    total.x += more.x; total.y += more.y; total.z += more.z; total.w += more.w;
  }
  c[at] = make_uint2(PACK(total.x, total.y), PACK(total.z, total.w));
}
"""))


@dataclass(frozen=True)
class Pad:
    """A copy of a matrix of 2-byte elements whose rows start at multiples of 16 bytes, zeros behind each row."""
    threads = 256
    shared_bytes = 0
    name = "pad"

    def source(self) -> str:
        return PRELUDE + r"""
// A thread copies two elements of each of 8 rows. Rows start at odd places, too: two words are read, and shifted.
extern "C" __global__ void __launch_bounds__(256) kernel(const u32 *from, u32 *to, int rows, int columns, int words)
{
  const int word = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * 8;
  if (word >= words) return;
  const long long last = ((long long)rows * columns - 1) / 2;         // the last word that there is
  u32 low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const long long at = (long long)(first + i) * columns + 2 * word;
    low[i] = at / 2 <= last ? from[at / 2] : 0;
    high[i] = at % 2 && at / 2 + 1 <= last ? from[at / 2 + 1] : 0;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (first + i >= rows) break;
    const long long at = (long long)(first + i) * columns + 2 * word;
    u32 both = at % 2 ? __funnelshift_r(low[i], high[i], 16) : low[i];
    if (2 * word + 1 >= columns) both = 2 * word < columns ? both & 0xffff : 0;
    to[(long long)(first + i) * words + word] = both;
  }
}
"""
