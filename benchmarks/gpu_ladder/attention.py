"""Compute attention forward with wgmma: O = softmax(Q K^T * scale) V. The scores are never in memory."""

from __future__ import annotations

from dataclasses import dataclass

from device_text import HOPPER, PRELUDE, wgmma_step


@dataclass(frozen=True)
class Attention:
    """Q, K, V, O [heads, length, 128]: a block has 64 rows of Q for each consumer and goes over K and V in tiles."""
    kv: int = 128               # rows of K and V in a tile
    stages: int = 2
    consumers: int = 2
    causal: bool = False
    turns: bool = True          # consumers issue products in turn, so that one multiplies while another takes exponents
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        return f"attention_{self.dtype}_kv{self.kv}_s{self.stages}_c{self.consumers}" + "_causal" * self.causal + "_turns" * self.turns

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def shared_bytes(self) -> int:
        return 1024 + 256 + self.consumers * 64 * 256 + 2 * self.stages * self.kv * 256

    def source(self) -> str:
        fewer, more = {2: (24, 240), 3: (32, 160)}[self.consumers]
        constants = dict(KV=self.kv, STAGES=self.stages, CONSUMERS=self.consumers, CAUSAL=int(self.causal), FEWER=fewer,
                         MORE=more, TURNS=int(self.turns and self.consumers == 2), THREADS=self.threads,
                         BQ=64 * self.consumers)
        return "\n".join((f"#define WATCHDOG 0\n#define PACK pack_{self.dtype}", PRELUDE, HOPPER,
                          "\n".join(f"constexpr int {k} = {v};" for k, v in constants.items()),
                          wgmma_step("multiply_scores", self.kv, self.dtype, 0, 0),
                          wgmma_step("multiply_values", 128, self.dtype, 0, 1, "registers"), BODY))


BODY = r"""
constexpr int TILE_BYTES = KV * 256;         // of K or of V: two boxes of 64 columns

DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE void named_sync(int name) { asm volatile("bar.sync %0, 256;" :: "r"(name) : "memory"); }
DEVICE void named_arrive(int name) { asm volatile("bar.arrive %0, 256;" :: "r"(name) : "memory"); }

// Scores of this thread's two rows to probabilities, in place.
DEVICE void softmax(float (&s)[KV / 2], float (&most)[2], float (&sum)[2], float (&factor)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float m = most[r];
#pragma unroll
    for (int j = 0; j < KV / 8; j++) m = fmaxf(m, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    const float base = m * scale;
    factor[r] = exp2_fast(most[r] * scale - base);
    most[r] = m;
    float total = 0;
#pragma unroll
    for (int j = 0; j < KV / 8; j++) {
      float &x = s[4 * j + 2 * r], &y = s[4 * j + 2 * r + 1];
      x = exp2_fast(fmaf(x, scale, -base)); y = exp2_fast(fmaf(y, scale, -base));
      total += x + y;
    }
    sum[r] = sum[r] * factor[r] + total;
  }
}

// As the left factor of the next product: a thread has the same elements, two to a word.
DEVICE void packed(float (&s)[KV / 2], u32 (&p)[KV / 4]) {
#pragma unroll
  for (int i = 0; i < KV / 4; i++) p[i] = PACK(s[2 * i], s[2 * i + 1]);
}

DEVICE void mask(float (&s)[KV / 2], int row, int first, int length, int lane) {
#pragma unroll
  for (int i = 0; i < KV / 2; i++) {
    const int column = first + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    const int last = CAUSAL ? min(length - 1, row + 8 * (i / 2 % 2)) : length - 1;
    if (column > last) s[i] = -1e30f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
       const __grid_constant__ TensorMap map_o, float scale, int length)
{
  extern __shared__ char raw[];
  const u32 shared = (near(raw) + 1023) & ~1023u;
  const u32 q_at = shared, k_at = q_at + BQ * 256, v_at = k_at + STAGES * TILE_BYTES, bars = v_at + STAGES * TILE_BYTES;
  const u32 q_full = bars, k_full = bars + 8, k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0);
  const int tile = CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x, head = blockIdx.y;      // the longest first
  const int rows = tile * BQ, reach = CAUSAL ? min(length, rows + BQ) : length, blocks = (reach + KV - 1) / KV;
  if (thread == 0) {
    barrier_init(q_full, 1);
    for (int s = 0; s < STAGES; s++) {
      barrier_init(k_full + 8 * s, 1); barrier_init(v_full + 8 * s, 1);
      barrier_init(k_empty + 8 * s, 4 * CONSUMERS); barrier_init(v_empty + 8 * s, 4 * CONSUMERS);
    }
    barriers_visible();
  }
  __syncthreads();
  if (group == 0) {
    fewer_registers<FEWER>();
    if (thread == 0) {
      barrier_expect(q_full, BQ * 256);
      for (int half = 0; half < 2; half++) box_load(q_at + half * BQ * 128, &map_q, q_full, half * 64, rows, head);
      int s = 0; u32 parity = 0;
      for (int j = blocks - 1; j >= 0; j--) {
        barrier_wait(k_empty + 8 * s, parity ^ 1);
        barrier_expect(k_full + 8 * s, TILE_BYTES);
        for (int half = 0; half < 2; half++)
          box_load(k_at + s * TILE_BYTES + half * KV * 128, &map_k, k_full + 8 * s, half * 64, j * KV, head);
        barrier_wait(v_empty + 8 * s, parity ^ 1);
        barrier_expect(v_full + 8 * s, TILE_BYTES);
        for (int half = 0; half < 2; half++)
          box_load(v_at + s * TILE_BYTES + half * KV * 128, &map_v, v_full + 8 * s, half * 64, j * KV, head);
        if (++s == STAGES) { s = 0; parity ^= 1; }
      }
    }
  } else {
    more_registers<MORE>();
    const int lane = thread % 128, me = group - 1;
    const int row = rows + me * 64 + lane / 32 * 16 + lane % 32 / 4;
    const bool first_in_warp = lane % 32 == 0;
    float scores[KV / 2], out[64], most[2] = {-1e30f, -1e30f}, sum[2] = {0, 0}, factor[2];
    u32 p[KV / 4];
    auto multiply_qk = [&](int s) {
      const u64 left = matrix_at(q_at + me * 8192, 16, 1024), right = matrix_at(k_at + s * TILE_BYTES, 16, 1024);
#pragma unroll
      for (int k = 0; k < 8; k++)
        multiply_scores(scores, left + (k / 4 * BQ * 128 + k % 4 * 32) / 16, right + (k / 4 * KV * 128 + k % 4 * 32) / 16, k);
      wgmma_commit();
    };
    auto multiply_pv = [&](int s, int more) {
      const u64 right = matrix_at(v_at + s * TILE_BYTES, KV * 128, 1024);
#pragma unroll
      for (int k = 0; k < KV / 16; k++) multiply_values(out, p + 4 * k, right + k * 2048 / 16, more | k);
      wgmma_commit();
    };
    auto masked = [&](int j) {
      if ((CAUSAL && j * KV + KV > rows + me * 64) || j * KV + KV > length) mask(scores, row, j * KV, length, lane);
    };
    if (TURNS && me == 1) named_arrive(2);
    int s = 0, v = 0; u32 parity = 0, v_parity = 0;
    barrier_wait(q_full, 0);
    barrier_wait(k_full, 0);
    wgmma_fence();
    multiply_qk(0);
    wgmma_wait<0>();
    hold(scores);
    if (first_in_warp) barrier_arrive(k_empty);
    masked(blocks - 1);
    softmax(scores, most, sum, factor, scale);
    packed(scores, p);
    if (++s == STAGES) { s = 0; parity ^= 1; }
    for (int j = blocks - 2; j >= 0; j--) {
      barrier_wait(k_full + 8 * s, parity);
      if (TURNS) named_sync(2 + me);
      hold(p);                                 // they are made before the products start
      wgmma_fence();
      multiply_qk(s);
      barrier_wait(v_full + 8 * v, v_parity);
      wgmma_fence();
      multiply_pv(v, blocks - 2 - j);
      if (TURNS) named_arrive(3 - me);
      wgmma_wait<1>();
      hold(scores);
      if (first_in_warp) barrier_arrive(k_empty + 8 * s);
      masked(j);
      softmax(scores, most, sum, factor, scale);
      hold(scores);
      wgmma_wait<0>();                         // until then the words of p are being read
      hold(out);
      packed(scores, p);
      if (first_in_warp) barrier_arrive(v_empty + 8 * v);
#pragma unroll
      for (int i = 0; i < 64; i++) out[i] *= factor[i / 2 % 2];
      if (++s == STAGES) { s = 0; parity ^= 1; }
      if (++v == STAGES) { v = 0; v_parity ^= 1; }
    }
    barrier_wait(v_full + 8 * v, v_parity);
    hold(p);
    wgmma_fence();
    multiply_pv(v, blocks - 1);
    wgmma_wait<0>();
    hold(out);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      factor[r] = 1 / sum[r];
    }
#pragma unroll
    for (int i = 0; i < 64; i++) out[i] *= factor[i / 2 % 2];
    // this consumer's rows of Q are read no more: the result goes where they were
    const int line = lane / 32 * 16 + lane % 16, half = lane % 32 / 16;
#pragma unroll
    for (int piece = 0; piece < 2; piece++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int r = piece * 32 + j * 8;
        store_matrices(q_at + piece * BQ * 128 + me * 8192 + line * 128 + ((2 * j + half) ^ (line & 7)) * 16,
                       PACK(out[r], out[r + 1]), PACK(out[r + 2], out[r + 3]), PACK(out[r + 4], out[r + 5]), PACK(out[r + 6], out[r + 7]));
      }
    to_async();
    group_wait(4 + me);
    if (lane == 0) {
      for (int piece = 0; piece < 2; piece++)
        box_store(&map_o, q_at + piece * BQ * 128 + me * 8192, piece * 64, rows + me * 64, head);
      stores_commit();
      stores_read<0>();
    }
  }
}
"""
