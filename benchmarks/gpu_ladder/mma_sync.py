"""Matrix products with mma.sync, ldmatrix and cp.async. One text for bf16, f16, tf32 and int8: a step is 8 words of k."""

from __future__ import annotations

from dataclasses import dataclass

from device_text import PRELUDE, TILE_ORDER
from units import UNITS

PIECES = {"bf16": 2, "f16": 2, "tf32": 1, "s8": 4}
UNIT = {"bf16": UNITS[2], "f16": UNITS[3], "tf32": UNITS[4], "s8": UNITS[5]}


@dataclass(frozen=True)
class MmaSync:
    """C[z, M, N] = A[z, M, K] B: blocks of bm x bn, warps of wm x wn in each, `bk` bytes of K at once."""
    bm: int = 128
    bn: int = 128
    bk: int = 64                # bytes
    wm: int = 64
    wn: int = 64
    stages: int = 4
    dtype: str = "bf16"
    b: str = "kn"               # or "nk"
    load: int = 16              # bytes that a copy moves: 16 (cp.async); less: by way of registers, in such pieces
    group: int = 8
    arch: str = "sm_90a"
    order: int = 0              # of the products of a step: 0 along rows, 1 down columns, 2 there and back
    blocks_per_sm: int = 1

    @property
    def name(self) -> str:
        return (f"mma_{self.dtype}_{self.bm}x{self.bn}x{self.bk}B_w{self.wm}x{self.wn}_s{self.stages}_g{self.group}_{self.b}"
                f"_ld{self.load}_{self.arch}_x{self.blocks_per_sm}" + f"_o{self.order}" * bool(self.order))

    @property
    def size(self) -> int:
        return 4 // PIECES[self.dtype]

    @property
    def threads(self) -> int:
        return 32 * (self.bm // self.wm) * (self.bn // self.wn)

    @property
    def stage_bytes(self) -> int:
        return (self.bm + self.bn) * self.bk

    @property
    def shared_bytes(self) -> int:
        return max(self.stages * self.stage_bytes, self.bm * self.bn * 2)

    def source(self) -> str:
        assert self.b == "nk" or self.size != 1, "bytes cannot be turned by ldmatrix"
        assert self.load == 16 or self.stages == 2
        unit, whole = UNIT[self.dtype], self.dtype == "s8"
        sums = unit.total.homes[0]
        kind, total = ("int", "r") if whole else ("float", "f")
        constants = dict(BM=self.bm, BN=self.bn, BK=self.bk, WM=self.wm, WN=self.wn, STAGES=self.stages, SIZE=self.size,
                         THREADS=self.threads, B_ALONG_K=int(self.b == "nk"), STAGE_BYTES=self.stage_bytes, LOAD=self.load,
                         NARROW=int(self.size == 2), ORDER=self.order)
        pack = f"#define PACK pack_{self.dtype}" if self.size == 2 else "#define PACK pack_none"
        return "\n".join((
            f"#define GROUP {self.group}\n{pack}", PRELUDE, "\n".join(f"constexpr int {k} = {v};" for k, v in constants.items()),
            f"typedef {kind} Sum;", f"#define ROW(lane, register) ({sums.row})\n#define COLUMN(lane, register) ({sums.column})",
            TILE_ORDER, f"""
DEVICE void multiply(Sum (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {{
  asm volatile("{unit.name} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+{total}"(d[0]), "+{total}"(d[1]), "+{total}"(d[2]), "+{total}"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}}""", BODY.replace("BLOCKS_PER_SM", str(self.blocks_per_sm))))


BODY = r"""
#define METHOD __device__ __forceinline__
template <int bytes> struct Piece;
template <> struct Piece<1> { typedef unsigned char type; };
template <> struct Piece<2> { typedef u16 type; };
template <> struct Piece<4> { typedef u32 type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<16> { typedef uint4 type; };

DEVICE void load_matrices(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
DEVICE void load_turned(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
DEVICE void copy_async(u32 to, const void *from, int bytes) {      // 16 bytes, of which so many are real
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory"); }

// Where a 16-byte piece of a line lies in a tile of lines of `wide` bytes. With `turned` words, lines 0-3 differ in
// pieces 2 apart, because 8 words of each are read at once; else 8 lines are read at one piece.
template <int wide, bool words> DEVICE u32 place(int line, int piece) {
  if (words) return line * wide + ((piece ^ (line & 3) * 2) * 16);
  return line * wide + ((piece ^ (wide >= 128 ? line & 7 : wide == 64 ? line / 2 & 3 : line / 4 & 1)) * 16);
}

// One factor's tile: `lines` lines of `wide` bytes. Each thread copies 16-byte pieces at one place of every APART-th line.
template <int lines, int wide, bool words> struct Tile {
  static constexpr int PIECES = wide / 16, APART = THREADS / PIECES, COUNT = lines / APART;
  static_assert(THREADS % PIECES == 0 && lines % APART == 0 && APART % (words ? 4 : 8) == 0, "threads copy equally much, permuted alike");
  const char *from;
  long long pitch;
  int line, byte, all_lines;
  u32 to;
  uint4 held[LOAD == 16 ? 1 : COUNT];

  METHOD Tile(const char *matrix, int first_line, int first_byte, int all_lines, long long pitch) : pitch(pitch), all_lines(all_lines) {
    const int l = threadIdx.x / PIECES, p = threadIdx.x % PIECES;
    line = first_line + l;
    byte = first_byte + p * 16;
    from = matrix + line * pitch + byte;
    to = place<wide, words>(l, p);
  }
  METHOD int real(int i) {                           // bytes of a piece that are inside the matrix
    const int bytes = min(16, (int)pitch - byte);
    return line + i * APART < all_lines && bytes > 0 ? bytes : 0;
  }
  METHOD void copy(u32 stage) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) copy_async(stage + to + i * APART * wide, from + i * APART * pitch, real(i));
  }
  METHOD void read() {
    typedef typename Piece<LOAD>::type Part;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const int bytes = real(i);
      union { uint4 all; Part parts[16 / LOAD]; } both;
#pragma unroll
      for (int e = 0; e < 16 / LOAD; e++) both.parts[e] = e * LOAD < bytes ? ((const Part *)(from + i * APART * pitch))[e] : Part{};
      held[i] = both.all;
    }
  }
  METHOD void keep(char *stage) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) *(uint4 *)(stage + to + i * APART * wide) = held[i];
  }
  METHOD void along(int bytes) { from += bytes; byte += bytes; }
  METHOD void down(int count) { from += count * pitch; line += count; }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
kernel(const char *a, const char *b, char *c, int M, int N, int K, int tiles_m, int tiles_n)
{
  extern __shared__ __align__(1024) char raw[];
  const u32 shared = near(raw);
  constexpr int STEP = BK / SIZE;                    // elements of K in a stage
  constexpr int B_WIDE = B_ALONG_K ? BK : BN * SIZE;
  constexpr bool WORDS = !B_ALONG_K && SIZE == 4;
  constexpr int A_BYTES = BM * BK;
  const int steps = (K + STEP - 1) / STEP;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp / (BN / WN) * WM, warp_n = warp % (BN / WN) * WN;
  int m_tile, n_tile, z;
  tile_at(blockIdx.x, tiles_m, tiles_n, m_tile, n_tile, z);
  const int m = m_tile * BM, n = n_tile * BN;
  a += (long long)z * M * K * SIZE;
  b += (long long)z * K * N * SIZE;

  Tile<BM, BK, false> left(a, m, 0, M, (long long)K * SIZE);
  Tile<B_ALONG_K ? BN : STEP, B_WIDE, WORDS> right(b, B_ALONG_K ? n : 0, B_ALONG_K ? 0 : n * SIZE, B_ALONG_K ? N : K,
                                                   (long long)(B_ALONG_K ? K : N) * SIZE);
  auto go_on = [&]() {
    left.along(BK);
    if (B_ALONG_K) right.along(BK); else right.down(STEP);
  };
  auto copy = [&](int stage) {
    left.copy(shared + stage * STAGE_BYTES); right.copy(shared + stage * STAGE_BYTES + A_BYTES);
    go_on();
  };
  auto read = [&]() { left.read(); right.read(); go_on(); };
  auto keep = [&](int stage) { left.keep(raw + stage * STAGE_BYTES); right.keep(raw + stage * STAGE_BYTES + A_BYTES); };

  Sum sums[WM / 16][WN / 8][4];
#pragma unroll
  for (int i = 0; i < WM / 16; i++)
#pragma unroll
    for (int j = 0; j < WN / 8; j++)
#pragma unroll
      for (int r = 0; r < 4; r++) sums[i][j][r] = 0;

  // Fragments of 8 words of k, two of each: one is read while the other is multiplied.
  u32 x[2][WM / 16][4], y[2][WN / 16][4];
  auto fetch = [&](int which, int stage, int k) {
    const u32 at = shared + stage * STAGE_BYTES, right_at = at + A_BYTES;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
      load_matrices(x[which][i], at + place<BK, false>(warp_m + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < WN / 16; j++) {
      const int first = warp_n + 16 * j;
      if constexpr (B_ALONG_K)
        load_matrices(y[which][j], right_at + place<BK, false>(first + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      else if constexpr (!WORDS)
        load_turned(y[which][j], right_at + place<B_WIDE, false>(16 * k + lane % 16, (first + lane / 16 * 8) / 8));
      else {
#pragma unroll
        for (int w = 0; w < 4; w++) {
          const int line = 8 * k + lane % 4 + w % 2 * 4, column = first + w / 2 * 8 + lane / 4;
          y[which][j][w] = *(const u32 *)(raw + (right_at - shared) + place<B_WIDE, true>(line, column / 4) + column % 4 * 4);
        }
      }
    }
  };
  auto multiply_all = [&](int which) {
#pragma unroll
    for (int n = 0; n < WM / 16 * (WN / 8); n++) {
      const int i = ORDER == 1 ? n % (WM / 16) : n / (WN / 8), at = ORDER == 1 ? n / (WM / 16) : n % (WN / 8);
      const int j = ORDER == 2 && i % 2 ? WN / 8 - 1 - at : at;
      multiply(sums[i][j], x[which][i], y[which][j / 2][j % 2 * 2], y[which][j / 2][j % 2 * 2 + 1]);
    }
  };

  constexpr int INNER = BK / 32;                     // times 8 words of k in a stage: two 16-byte pieces of a line
  static_assert(INNER % 2 == 0, "fragments alternate");
  if constexpr (LOAD == 16) {
    for (int s = 0; s < STAGES - 1; s++) { if (s < steps) copy(s); copies_commit(); }
    copies_wait<STAGES - 2>();
    __syncthreads();
    fetch(0, 0, 0);
    int stage = 0;
    for (int step = 0; step < steps; step++) {
      const int next = stage == STAGES - 1 ? 0 : stage + 1;
#pragma unroll
      for (int k = 0; k < INNER; k++) {
        if (k == INNER - 1) {
          copies_wait<STAGES - 2>();                 // the next step's copies are there,
          __syncthreads();                           // everybody's, and all have read this stage
          fetch((k + 1) % 2, next, 0);
        } else fetch((k + 1) % 2, stage, k + 1);
        if (k == 0) {
          if (step + STAGES - 1 < steps) copy(stage == 0 ? STAGES - 1 : stage - 1);
          copies_commit();
        }
        multiply_all(k % 2);
      }
      stage = next;
    }
  } else {
    read(); keep(0);
    __syncthreads();
    for (int step = 0; step < steps; step++) {
      if (step + 1 < steps) read();                  // on its way while
#pragma unroll
      for (int k = 0; k < INNER; k++) { fetch(k % 2, step % 2, k); multiply_all(k % 2); }
      if (step + 1 < steps) keep((step + 1) % 2);
      __syncthreads();
    }
  }

  constexpr int OUT = NARROW ? 2 : 4;
  c += (long long)z * M * N * OUT;
  if constexpr (NARROW && WN == 64) {                // by way of shared memory: whole lines of 128 bytes
    char *area = raw + warp * WM * 128;
    __syncthreads();                                 // stages are read no more
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
      for (int j = 0; j < WN / 8; j++)
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
          const int row = 16 * i + ROW(lane, r), column = COLUMN(lane, r);
          *(u32 *)(area + row * 128 + (j ^ (row & 7)) * 16 + column * 2) = PACK(sums[i][j][r], sums[i][j][r + 1]);
        }
    __syncwarp();
    if (N % 8 == 0) {
#pragma unroll
      for (int i = 0; i < WM / 4; i++) {
        const int line = 4 * i + lane / 8, row = m + warp_m + line, column = n + warp_n + lane % 8 * 8;
        const uint4 piece = *(const uint4 *)(area + line * 128 + (lane % 8 ^ (line & 7)) * 16);
        if (row < M && column < N) *(uint4 *)((u16 *)c + (long long)row * N + column) = piece;
      }
    } else {
#pragma unroll 4
      for (int i = 0; i < WM * 2; i++) {
        const int line = i / 2, in_line = i % 2 * 32 + lane, row = m + warp_m + line, column = n + warp_n + in_line;
        const u16 value = *(const u16 *)(area + line * 128 + (in_line / 8 ^ (line & 7)) * 16 + in_line % 8 * 2);
        if (row < M && column < N) ((u16 *)c)[(long long)row * N + column] = value;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
      for (int j = 0; j < WN / 8; j++)
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
          const int row = m + warp_m + 16 * i + ROW(lane, r), column = n + warp_n + 8 * j + COLUMN(lane, r);
          const long long at = (long long)row * N + column;
          if constexpr (!NARROW) {
            if (row < M && column < N) ((Sum *)c)[at] = sums[i][j][r];
            if (row < M && column + 1 < N) ((Sum *)c)[at + 1] = sums[i][j][r + 1];
          } else {
            const u32 both = PACK(sums[i][j][r], sums[i][j][r + 1]);
            if (row < M && column < N) ((u16 *)c)[at] = (u16)both;
            if (row < M && column + 1 < N) ((u16 *)c)[at + 1] = (u16)(both >> 16);
          }
        }
  }
}
"""
