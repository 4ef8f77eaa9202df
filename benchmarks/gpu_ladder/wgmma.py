"""Matrix products with wgmma, the copy engine and transaction barriers: one text, with a switch for each step."""

from __future__ import annotations

from dataclasses import dataclass

from device_text import HOPPER, PRELUDE, TILE_ORDER, wgmma_step
from units import UNITS

MOST_SHARED = 227 * 1024


@dataclass(frozen=True)
class Wgmma:
    """One way to cut C[z, M, N] = A[z, M, K] B[z, K, N]; z counts a batch or the parts of a K that is split."""
    bm: int = 128
    bn: int = 128
    stages: int = 4
    consumers: int = 2          # groups of 4 warps that multiply
    producer: bool = True       # another one copies; else thread 0 does so between steps
    persistent: bool = True     # as many blocks as fit at once, each takes tile after tile
    cluster: int = 1            # blocks that share the right factor's tiles
    split: int = 1              # blocks of a cluster that share out K and then join their sums
    store: str = "box"          # the copy engine: rows of whole 16 bytes; "lines": warps, any rows; "direct": from registers
    group: int = 8              # rows of tiles (of a cluster's tiles) that go together
    a: str = "mk"               # or "km"
    b: str = "kn"               # or "nk"
    dtype: str = "bf16"         # or "f16"; "tf32" and "s8" only along k on both sides, with sums as they are
    out: str = ""               # "f32" or "s32": sums as they are; else dtype
    out_buffers: int = 2        # of 64 x 64 each, for each consumer
    even: bool = False          # all sizes are multiples of the tile (direct stores need no tests)
    blocks_per_sm: int = 1
    move_registers: bool = True # from copying to multiplying threads (setmaxnreg)
    plain: int = 0              # groups of 4 warps that copy by ordinary loads and stores; 0: the copy engine does
    load: int = 16              # bytes of such a load
    pingpong: bool = False      # each consumer has tiles of its own; one multiplies while the other stores
    by_threads: int = 0         # no producer: all threads copy, 16 bytes each (cp.async); waits of the block per step, 1 or 2
    known: int = 0              # M, N and K, where the text may know them

    @property
    def name(self) -> str:
        tags = [f"wgmma_{self.dtype}_{self.bm}x{self.bn}x{self.bk}_s{self.stages}_c{self.consumers}"]
        tags += ["p"] * self.producer + ["pers"] * self.persistent + [f"cl{self.cluster}"] * (self.cluster > 1)
        tags += [f"split{self.split}"] * (self.split > 1)
        tags += [self.store + (str(self.out_buffers) if self.store != "direct" else ""), f"g{self.group}", self.a, self.b]
        tags += ["fixed"] * (not self.move_registers) + [self.out] * bool(self.out) + ["even"] * self.even + ["pp"] * self.pingpong
        tags += [f"x{self.blocks_per_sm}"] * (self.blocks_per_sm > 1) + [f"plain{self.plain}_ld{self.load}"] * bool(self.plain)
        tags += [f"cp{self.by_threads}"] * bool(self.by_threads) + [f"known{self.known}"] * bool(self.known)
        return "_".join(tags)

    @property
    def size(self) -> int:
        return {"bf16": 2, "f16": 2, "tf32": 4, "s8": 1}[self.dtype]

    @property
    def bk(self) -> int:
        """Elements of K in a stage: 128 bytes, one line of the widest permutation."""
        return 128 // self.size

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + (self.plain or int(self.producer)))

    @property
    def m_tiles(self) -> int:
        """Matrices of 64 rows of one consumer."""
        return self.bm // 64 // (1 if self.pingpong else self.consumers)

    @property
    def stage_bytes(self) -> int:
        return (self.bm + self.bn) * 128

    @property
    def shared_bytes(self) -> int:
        out = self.consumers * self.out_buffers * 8192 if self.store != "direct" else 0
        return 1024 + self.stages * self.stage_bytes + out + 256

    def registers(self) -> tuple[int, int, int]:
        """Of a thread at launch, of a producer's, of a consumer's: the last two share what all had at launch."""
        launch = min(65536 // self.blocks_per_sm // self.threads, 255) // 8 * 8
        fewer = 120 if self.plain == 1 else 104 if self.plain else 40 if launch > 128 else 24
        rest = launch * self.threads // 128 - fewer * (self.plain or 1)
        return launch, fewer, min(240, rest // self.consumers // 8 * 8)

    def boxes(self) -> dict[str, tuple[int, int]]:
        """Of the tensor maps: (fast axis, slow axis), in elements."""
        a = (self.bk, self.bm) if self.a == "mk" else (64, self.bk)
        part = self.bn // self.cluster
        b = (self.bk, part) if self.b == "nk" else (64, self.bk)
        return {"a": a, "b": b, "c": (64, 64)}

    def source(self) -> str:
        assert self.bm % 64 == 0 and self.bn % 8 == 0 and self.m_tiles >= 1
        assert (self.shared_bytes + 1024) * self.blocks_per_sm <= MOST_SHARED + 1024, (self.name, self.shared_bytes)
        assert self.store == "direct" or (self.bn // self.split % 64 == 0 and self.out == "")
        assert self.split == 1 or (self.cluster == 1 and self.m_tiles == 1 and not self.persistent and not self.pingpong)
        assert self.b == "nk" or self.bn // self.cluster % 64 == 0
        assert self.size == 2 or ((self.a, self.b, self.store) == ("mk", "nk", "direct") and self.out)
        assert not self.plain or (self.bm % 128 == self.bn % 128 == 0 and self.cluster == self.split == 1 and self.a == "mk" and self.size == 2 and self.producer)
        assert self.producer or (self.cluster == self.split == 1 and not self.persistent and not self.pingpong)
        _, fewer, more = self.registers()
        sums = UNITS[6].total.homes[0]
        of_text = dict(BM=self.bm, BN=self.bn, BK=self.bk, STAGES=self.stages, CONSUMERS=self.consumers,
                       CLUSTER=self.cluster, MT=self.m_tiles, OUT_BUFFERS=self.out_buffers, FEWER=fewer, MORE=more,
                       A_BYTES=self.bm * 128, STAGE_BYTES=self.stage_bytes, THREADS=self.threads,
                       A_ALONG_K=int(self.a == "mk"), B_ALONG_K=int(self.b == "nk"), BOX=int(self.store == "box"), LINES=int(self.store == "lines"), SPLIT=self.split,
                       OUT32=int(bool(self.out)), EVEN=int(self.even), PINGPONG=int(self.pingpong), PLAIN=self.plain, COPIERS=self.plain or 1, MOVE=int(self.move_registers), LOAD=self.load,
                       WAITS=self.by_threads)
        constants = "\n".join(f"constexpr int {k} = {v};" for k, v in of_text.items())
        step = wgmma_step("multiply", self.bn, self.dtype, int(self.a != "mk"), int(self.b != "nk"))
        pack = f"pack_{self.dtype}" if self.size == 2 else "pack_none"
        constants += f"\ntypedef {'int' if self.dtype == 's8' else 'float'} Sum;\ntypedef {'int2' if self.dtype == 's8' else 'float2'} Pair;"
        body = PRODUCER + CONSUMER if self.producer else BY_THREADS if self.by_threads else ALONE
        together = self.cluster * self.split
        cluster = f" __cluster_dims__({together}, 1, 1)" if together > 1 else ""
        return "\n".join((
            f"#define GROUP {self.group}\n#define WATCHDOG 0\n#define PACK {pack}", PRELUDE, HOPPER, constants,
            f"#define ROW(lane, register) ({sums.row})\n#define COLUMN(lane, register) ({sums.column})",
            TILE_ORDER, step, COMMON,
            f'extern "C" __global__ void __launch_bounds__(THREADS, {self.blocks_per_sm}){cluster} kernel(', PARAMETERS if not self.known else
            PARAMETERS.replace("int M, int N, int K,", "int, int, int,").replace("{\n", f"{{\n  constexpr int M = {self.known}, N = M, K = M;\n", 1),
            body, "}"))


PARAMETERS = r"""    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
    const __grid_constant__ TensorMap map_c, const u16 *a, const u16 *b, void *c, int M, int N, int K, int tiles_m, int tiles_n, int tiles)
{
  extern __shared__ char raw[];
  const u32 shared = (near(raw) + 1023) & ~1023u;
  const u32 out_at = shared + STAGES * STAGE_BYTES;
  const u32 full = out_at + (BOX || LINES ? CONSUMERS * OUT_BUFFERS * 8192 : 0), empty = full + STAGES * 8;
  const u32 turn = empty + STAGES * 8;       // pingpong: whose turn it is to multiply
  const int steps = (K + BK - 1) / BK;
  const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0);      // alike in a warp, as the compiler now sees
"""

COMMON = r"""
// Both factors' tiles of one step of K into a stage. A block of a cluster copies its part of the right one to all.
DEVICE void copy_stage(u32 stage, u32 bar, const TensorMap *map_a, const TensorMap *map_b, int m, int n, int k, int z, u32 rank) {
  barrier_expect(bar, STAGE_BYTES);
  if (A_ALONG_K) box_load(stage, map_a, bar, k, m, z);
  else {
#pragma unroll
    for (int i = 0; i < BM / 64; i++) box_load(stage + i * 8192, map_a, bar, m + i * 64, k, z);
  }
  const u32 right = stage + A_BYTES;
  constexpr int PART = BN / CLUSTER;
  if constexpr (CLUSTER == 1) {
    if (B_ALONG_K) box_load(right, map_b, bar, k, n, z);
    else {
#pragma unroll
      for (int i = 0; i < BN / 64; i++) box_load(right + i * 8192, map_b, bar, n + i * 64, k, z);
    }
  } else {
    const u32 mine = right + rank * PART * 128;
    const int first = n + rank * PART;
    if (B_ALONG_K) box_load_to_all(mine, map_b, bar, k, first, z, (1 << CLUSTER) - 1);
    else {
#pragma unroll
      for (int i = 0; i < PART / 64; i++)
        box_load_to_all(mine + i * 8192, map_b, bar, first + i * 64, k, z, (1 << CLUSTER) - 1);
    }
  }
}

// The same by ordinary loads, which may compute what they load: 16-byte pieces, some at a time, and as many on
// their way.
template <int bytes> struct Piece;
template <> struct Piece<2> { typedef u16 type; };
template <> struct Piece<4> { typedef u32 type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<16> { typedef uint4 type; };
DEVICE uint4 read_piece(const u16 *from, int real) {               // elements that are inside the matrix
  typedef typename Piece<LOAD>::type Part;
  union { uint4 all; Part parts[16 / LOAD]; } both;
#pragma unroll
  for (int e = 0; e < 16 / LOAD; e++) both.parts[e] = e * LOAD / 2 < real ? __ldg((const Part *)from + e) : Part{};
  return both.all;
}
DEVICE void copy_plain(char *stage, const u16 *a, const u16 *b, int m, int n, int k, int M, int N, int K, int thread) {
  constexpr int A_COUNT = BM / 16, COUNT = A_COUNT + BN / 16;      // pieces of a thread
  constexpr int BATCH = LOAD >= 8 ? 8 : LOAD;
  constexpr int B_APART = B_ALONG_K ? 16 : 1024 / BN;              // lines between a thread's pieces
  uint4 held[2][BATCH];
  const int a_line = m + thread / 8, along_k = k + thread % 8 * 8;
  const int b_line = B_ALONG_K ? n + thread / 8 : k + thread / (BN / 8), b_at = B_ALONG_K ? along_k : n + thread % (BN / 8) * 8;
  const int b_pitch = B_ALONG_K ? K : N;
  const u16 *a_from = a + (long long)a_line * K + along_k, *b_from = b + (long long)b_line * b_pitch + b_at;
  int a_left = M - a_line, b_left = (B_ALONG_K ? N : K) - b_line;  // lines inside the matrix
  asm volatile("" : "+l"(a_from), "+l"(b_from), "+r"(a_left), "+r"(b_left));       // else all addresses are kept in registers
  auto read = [&](int batch) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int n_th = batch * BATCH + i, at = n_th < A_COUNT ? n_th : n_th - A_COUNT;
      held[batch % 2][i] = n_th < A_COUNT ? read_piece(a_from + (long long)16 * at * K, 16 * at < a_left ? K - along_k : 0)
        : read_piece(b_from + (long long)B_APART * at * b_pitch, B_APART * at < b_left ? b_pitch - b_at : 0);
    }
  };
  auto keep = [&](int batch) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int n_th = batch * BATCH + i;
      int line, chunk; char *to = stage;
      if (n_th < A_COUNT) { line = thread / 8 + 16 * n_th; chunk = thread % 8; }
      else if (B_ALONG_K) { to += A_BYTES; line = thread / 8 + 16 * (n_th - A_COUNT); chunk = thread % 8; }
      else {
        to += A_BYTES + thread % (BN / 8) / 8 * 8192;
        line = thread / (BN / 8) + 1024 / BN * (n_th - A_COUNT); chunk = thread % 8;
      }
      *(uint4 *)(to + line * 128 + ((chunk ^ (line & 7)) * 16)) = held[batch % 2][i];
    }
  };
  read(0);
#pragma unroll
  for (int batch = 0; batch < COUNT / BATCH; batch++) {
    if (batch + 1 < COUNT / BATCH) read(batch + 1);
    keep(batch);
  }
}

// One step of K: all products of a stage. `first_row` is the consumer's first, in matrices of 64 rows.
DEVICE void multiply_stage(Sum (&sums)[MT][BN / 2], u32 stage, int first_row, int more) {
  wgmma_fence();
  // along k: lines of 64 k, eight lines apart 1024 bytes; across: lines of 64 positions, 8 k apart 1024 bytes, and the
  // next 64 positions after BK lines (8192 bytes); a step is 32 bytes of k
  const u64 left = matrix_at(stage + first_row * 8192, A_ALONG_K ? 16 : 8192, 1024);
  const u64 right = matrix_at(stage + A_BYTES, B_ALONG_K ? 16 : 8192, 1024);
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int m = 0; m < MT; m++)
      multiply(sums[m], left + (m * 8192 + k * (A_ALONG_K ? 32 : 2048)) / 16, right + k * (B_ALONG_K ? 32 : 2048) / 16,
               more | k);
  wgmma_commit();
}

// From registers to memory, two neighbours at a time: words `begin` to `end` of each matrix.
DEVICE void store_direct(Sum (&sums)[MT][BN / 2], int begin, int end, void *c, int m, int n, int z, int M, int N, int lane) {
  const bool pairs = EVEN || N % 2 == 0;
#pragma unroll
  for (int t = 0; t < MT; t++)
#pragma unroll
    for (int r = begin; r < end; r += 2) {
      const int row = m + 64 * t + ROW(lane, r), column = n + COLUMN(lane, r);
      const long long at = ((long long)z * M + row) * N + column;
      if constexpr (OUT32) {
        if (EVEN || (row < M && column + 1 < N && pairs)) *(Pair *)((Sum *)c + at) = Pair{sums[t][r], sums[t][r + 1]};
        else if (row < M && column < N) {
          ((Sum *)c)[at] = sums[t][r];
          if (column + 1 < N) ((Sum *)c)[at + 1] = sums[t][r + 1];
        }
      } else {
        const u32 both = PACK(sums[t][r], sums[t][r + 1]);
        if (EVEN || (row < M && column + 1 < N && pairs)) *(u32 *)((u16 *)c + at) = both;
        else if (row < M && column < N) {
          ((u16 *)c)[at] = (u16)both;
          if (column + 1 < N) ((u16 *)c)[at + 1] = (u16)(both >> 16);
        }
      }
    }
}

// 64 x 64 sums into a piece of shared memory, lines of 128 bytes, permuted as the copy engine does.
DEVICE void lay_out(Sum (&sums)[BN / 2], int first, u32 piece, int lane) {
  const int row = lane / 32 * 16 + lane % 16, half = lane % 32 / 16;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int r = first + j * 8;
    store_matrices(piece + row * 128 + ((2 * j + half) ^ (row & 7)) * 16,
                   PACK(sums[r], sums[r + 1]), PACK(sums[r + 2], sums[r + 3]), PACK(sums[r + 4], sums[r + 5]), PACK(sums[r + 6], sums[r + 7]));
  }
}

// By way of shared memory, in pieces of 64 x 64, the copy engine storing one while the next is laid out.
DEVICE void store_boxes(Sum (&sums)[MT][BN / 2], int begin, int end, const TensorMap *map, u32 buffers, int &buffer, int m, int n, int z, int lane, int name) {
#pragma unroll
  for (int t = 0; t < MT; t++)
#pragma unroll
    for (int r = begin; r < end; r += 32) {
      const u32 piece = buffers + buffer * 8192;
      buffer = buffer == OUT_BUFFERS - 1 ? 0 : buffer + 1;
      if (lane == 0) stores_read<OUT_BUFFERS - 1>();
      group_wait(name);
      lay_out(sums[t], r, piece, lane);
      to_async();
      group_wait(name);
      if (lane == 0) { box_store(map, piece, n + 2 * r, m + 64 * t, z); stores_commit(); }
    }
}

// By way of shared memory, each warp storing the lines that it laid out: rows may start anywhere.
DEVICE void store_lines(Sum (&sums)[MT][BN / 2], int begin, int end, void *c, u32 buffers, int m, int n, int z, int M, int N, int lane) {
  const int inside = lane % 32, first = lane / 32 * 16;
#pragma unroll
  for (int t = 0; t < MT; t++)
#pragma unroll
    for (int r = begin; r < end; r += 32) {
      __syncwarp();
      lay_out(sums[t], r, buffers, lane);
      __syncwarp();
      if (N % 8 == 0) {                      // 16 bytes of each thread, 8 threads to a line
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int line = first + 4 * i + inside / 8, row = m + 64 * t + line, column = n + 2 * r + inside % 8 * 8;
          uint4 piece;
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                       : "r"(buffers + line * 128 + (inside % 8 ^ (line & 7)) * 16) : "memory");
          if (row < M && column < N) *(uint4 *)((u16 *)c + ((long long)z * M + row) * N + column) = piece;
        }
      } else {
#pragma unroll 4
        for (int i = 0; i < 32; i++) {
          const int line = first + i / 2, in_line = i % 2 * 32 + inside, row = m + 64 * t + line, column = n + 2 * r + in_line;
          u16 value;
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value)
                       : "r"(buffers + line * 128 + ((in_line / 8 ^ (line & 7)) * 16) + in_line % 8 * 2) : "memory");
          if (row < M && column < N) ((u16 *)c)[((long long)z * M + row) * N + column] = value;
        }
      }
    }
}

// Blocks of a cluster that each have a part of K: all send the others their shares of the columns, and add what they get.
DEVICE void exchange(Sum (&sums)[BN / 2], u32 area, u32 rank, int me, int lane) {
  constexpr int SHARE = BN / 2 / SPLIT;
  cluster_wait();                            // stages are read no more, in any block
#pragma unroll
  for (int other = 0; other < SPLIT; other++)
    if (other != rank) {
      const u32 to = area + (me * (SPLIT - 1) + (rank < other ? rank : rank - 1)) * SHARE * 512 + lane * 16;
#pragma unroll
      for (int r = 0; r < SHARE; r += 4) {
        const int at = other * SHARE + r;
        store_far(to + r * 512, other, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]);
      }
    }
  cluster_wait();
#pragma unroll
  for (int mine = 0; mine < SPLIT; mine++)
    if (mine == rank)
#pragma unroll
      for (int from = 0; from < SPLIT - 1; from++)
#pragma unroll
        for (int r = 0; r < SHARE; r += 4) {
          const float4 more = load_near(area + (me * (SPLIT - 1) + from) * SHARE * 512 + r * 512 + lane * 16);
          const int at = mine * SHARE + r;
          sums[at] += more.x; sums[at + 1] += more.y; sums[at + 2] += more.z; sums[at + 3] += more.w;
        }
}
"""

# All threads multiply, and thread 0 asks for a stage as soon as all have finished with it.
ALONE = r"""
  if (thread == 0) {
    map_prefetch(&map_a); map_prefetch(&map_b);
    for (int s = 0; s < STAGES; s++) barrier_init(full + s * 8, 1);
    barriers_visible();
  }
  __syncthreads();
  int m_tile, n_tile, z;
  tile_at(blockIdx.x, tiles_m, tiles_n, m_tile, n_tile, z);
  const int m = m_tile * BM, n = n_tile * BN, lane = thread % 128, first_row = group * MT;
  if (thread == 0)
    for (int s = 0; s < STAGES - 1 && s < steps; s++)
      copy_stage(shared + s * STAGE_BYTES, full + s * 8, &map_a, &map_b, m, n, s * BK, z, 0);
  Sum sums[MT][BN / 2];
  int s = 0; u32 parity = 0;
  for (int k = 0; k < steps; k++) {
    const int next = k + STAGES - 1;
    barrier_wait(full + s * 8, parity);
    multiply_stage(sums, shared + s * STAGE_BYTES, first_row, k);
    wgmma_wait<1>();                         // the step before is over
    __syncthreads();
    const int free = s == 0 ? STAGES - 1 : s - 1;
    if (++s == STAGES) { s = 0; parity ^= 1; }
    if (thread == 0 && next < steps)
      copy_stage(shared + free * STAGE_BYTES, full + free * 8, &map_a, &map_b, m, n, next * BK, z, 0);
  }
  wgmma_wait<0>();
#pragma unroll
  for (int t = 0; t < MT; t++) hold(sums[t]);
  const u32 buffers = out_at + group * OUT_BUFFERS * 8192;
  if constexpr (BOX) {
    int buffer = 0;
    store_boxes(sums, 0, BN / 2, &map_c, buffers, buffer, m + first_row * 64, n, z, lane, 1 + group);
    if (lane == 0) stores_read<0>();
  } else if constexpr (LINES) store_lines(sums, 0, BN / 2, c, buffers, m + first_row * 64, n, z, M, N, lane);
  else store_direct(sums, 0, BN / 2, c, m + first_row * 64, n, z, M, N, lane);
"""

# All threads multiply, and all copy: 16 bytes each, as many times as a stage takes. With one wait of the block in a step
# a stage is filled again two steps after it was read, with two waits one step after.
BY_THREADS = r"""
  int m_tile, n_tile, z;
  tile_at(blockIdx.x, tiles_m, tiles_n, m_tile, n_tile, z);
  const int m = m_tile * BM, n = n_tile * BN, lane = thread % 128, first_row = group * MT;
  const u16 *a_z = a + (long long)z * M * K, *b_z = b + (long long)z * K * N;
  auto copy = [&](u32 stage, int k) {
#pragma unroll
    for (int i = 0; i < BM * 8 / THREADS; i++) {
      const int piece = i * THREADS + thread;
      if constexpr (A_ALONG_K) {
        const int line = piece / 8, chunk = piece % 8, row = m + line, at = k + chunk * 8;
        copy_piece(stage + line * 128 + (chunk ^ line % 8) * 16, a_z + (long long)row * K + at, row < M && at < K);
      } else {
        const int line = piece / 8 % 64, chunk = piece % 8, box = piece / 512, row = m + box * 64 + chunk * 8, at = k + line;
        copy_piece(stage + box * 8192 + line * 128 + (chunk ^ line % 8) * 16, a_z + (long long)at * M + row, row < M && at < K);
      }
    }
#pragma unroll
    for (int i = 0; i < BN * 8 / THREADS; i++) {
      const int piece = i * THREADS + thread;
      const u32 right = stage + A_BYTES;
      if constexpr (B_ALONG_K) {
        const int line = piece / 8, chunk = piece % 8, column = n + line, at = k + chunk * 8;
        copy_piece(right + line * 128 + (chunk ^ line % 8) * 16, b_z + (long long)column * K + at, column < N && at < K);
      } else {
        const int line = piece / (BN / 8), box = piece / 8 % (BN / 64), chunk = piece % 8, column = n + box * 64 + chunk * 8, at = k + line;
        copy_piece(right + box * 8192 + line * 128 + (chunk ^ line % 8) * 16, b_z + (long long)at * N + column, column < N && at < K);
      }
    }
  };
  constexpr int AHEAD = STAGES - 3 + WAITS;
  for (int s = 0; s < AHEAD; s++) {
    if (s < steps) copy(shared + s * STAGE_BYTES, s * BK);
    copies_commit();
  }
  Sum sums[MT][BN / 2];
  int s = 0, to = AHEAD;
  for (int k = 0; k < steps; k++) {
    copies_wait<AHEAD - 1>();
    to_async();
    __syncthreads();
    multiply_stage(sums, shared + s * STAGE_BYTES, first_row, k);
    if constexpr (WAITS == 2) { wgmma_wait<1>(); __syncthreads(); }
    if (k + AHEAD < steps) copy(shared + to * STAGE_BYTES, (k + AHEAD) * BK);
    copies_commit();
    if constexpr (WAITS == 1) wgmma_wait<1>();
    if (++s == STAGES) s = 0;
    if (++to == STAGES) to = 0;
  }
  wgmma_wait<0>();
#pragma unroll
  for (int t = 0; t < MT; t++) hold(sums[t]);
  const u32 buffers = out_at + group * OUT_BUFFERS * 8192;
  store_lines(sums, 0, BN / 2, c, buffers, m + first_row * 64, n, z, M, N, lane);
"""

PRODUCER = r"""
  constexpr int TOGETHER = CLUSTER * SPLIT;
  const u32 rank = TOGETHER > 1 ? cluster_rank() : 0;
  const int first_tile = blockIdx.x / TOGETHER, tiles_apart = gridDim.x / TOGETHER;
  const int begin = SPLIT > 1 ? steps * (int)rank / SPLIT : 0, end = SPLIT > 1 ? steps * ((int)rank + 1) / SPLIT : steps;
  if (thread == 0) {
    map_prefetch(&map_a); map_prefetch(&map_b);
    for (int s = 0; s < STAGES; s++) {
      barrier_init(full + s * 8, PLAIN ? 128 : 1);                            // the copy engine counts bytes
      barrier_init(empty + s * 8, (PINGPONG ? 1 : CONSUMERS) * 4 * CLUSTER);  // each warp says that it is done
    }
    for (int g = 0; g < 2; g++) barrier_init(turn + g * 8, 4);
    barriers_visible();
  }
  if (TOGETHER > 1) cluster_meet(); else __syncthreads();
  if (group < COPIERS) {
    if constexpr (MOVE) fewer_registers<FEWER>();
    if constexpr (PLAIN) {
      int s = 0, turn = 0; u32 parity = 0;
      for (int tile = first_tile; tile < tiles; tile += tiles_apart) {
        int m_tile, n_tile, z;
        tile_at(tile, tiles_m, tiles_n, m_tile, n_tile, z);
        for (int k = 0; k < steps; k++) {
          if (turn == group) {
            barrier_wait(empty + s * 8, parity ^ 1);
            copy_plain(raw + (shared - near(raw)) + s * STAGE_BYTES, a + (long long)z * M * K, b + (long long)z * K * N,
                       m_tile * BM, n_tile * BN, k * BK, M, N, K, thread % 128);
            to_async();                      // what was stored is for the matrix unit
            barrier_arrive(full + s * 8);
          }
          if (++turn == COPIERS) turn = 0;
          if (++s == STAGES) { s = 0; parity ^= 1; }
        }
      }
    } else if (thread == 0) {
      int s = 0; u32 parity = 0;
      for (int tile = first_tile; tile < tiles; tile += tiles_apart) {
        int m_tile, n_tile, z;
        tile_at(tile, tiles_m, tiles_n, m_tile, n_tile, z);
        const int m = (CLUSTER > 1 ? m_tile * CLUSTER + rank : m_tile) * BM, n = n_tile * BN;
        for (int k = begin; k < end; k++) {
          barrier_wait(empty + s * 8, parity ^ 1);
          copy_stage(shared + s * STAGE_BYTES, full + s * 8, &map_a, &map_b, m, n, k * BK, z, rank);
          if (++s == STAGES) { s = 0; parity ^= 1; }
        }
      }
    }
  } else {
    if constexpr (MOVE) more_registers<MORE>();
"""

CONSUMER = r"""
    const int lane = thread % 128, me = group - COPIERS;
    const u32 buffers = out_at + me * OUT_BUFFERS * 8192;
    int s = 0; u32 parity = 0;
    auto release = [&](int stage) {
      if (CLUSTER > 1) { if (lane % 32 < CLUSTER) barrier_arrive_at(empty + stage * 8, lane % 32); }
      else if (lane % 32 == 0) barrier_arrive(empty + stage * 8);
    };
    auto skip = [&](int count) {             // steps that the other group takes
      s += count;
      parity ^= s / STAGES & 1;
      s %= STAGES;
    };
    Sum sums[MT][BN / 2];
    int buffer = 0;
    auto store = [&](int m, int n, int z, int first, int last) {
      if constexpr (BOX) store_boxes(sums, first, last, &map_c, buffers, buffer, m, n, z, lane, 1 + me);
      else if constexpr (LINES) store_lines(sums, first, last, c, buffers, m, n, z, M, N, lane);
      else store_direct(sums, first, last, c, m, n, z, M, N, lane);
    };
    u32 turns = 0;
    int tile = first_tile;
    if (PINGPONG && me) { tile += tiles_apart; skip(steps); }
    for (; tile < tiles; tile += tiles_apart * (PINGPONG ? 2 : 1)) {
      int m_tile, n_tile, z;
      tile_at(tile, tiles_m, tiles_n, m_tile, n_tile, z);
      const int m = (CLUSTER > 1 ? m_tile * CLUSTER + rank : m_tile) * BM + (PINGPONG ? 0 : me * MT * 64), n = n_tile * BN;
      if (PINGPONG) barrier_wait(turn + me * 8, turns ^ (me ? 0 : 1));        // the first turn is group 0's
      int before = 0;
      for (int k = begin; k < end; k++) {
        barrier_wait(full + s * 8, parity);
        multiply_stage(sums, shared + s * STAGE_BYTES, PINGPONG ? 0 : me * MT, k - begin);
        wgmma_wait<1>();                     // the step before is over: its stage is free
        if (k > begin) release(before);
        before = s;
        if (++s == STAGES) { s = 0; parity ^= 1; }
      }
      if (PINGPONG && lane % 32 == 0) barrier_arrive(turn + (1 - me) * 8);
      wgmma_wait<0>();
#pragma unroll
      for (int t = 0; t < MT; t++) hold(sums[t]);
      release(before);
      if constexpr (PINGPONG) { skip(steps); turns ^= 1; }
      if constexpr (SPLIT > 1) {
        exchange(sums[0], shared, rank, me, lane);
#pragma unroll
        for (int share = 0; share < SPLIT; share++)
          if (share == rank) store(m, n, z, share * (BN / 2 / SPLIT), (share + 1) * (BN / 2 / SPLIT));
      } else store(m, n, z, 0, BN / 2);
    }
    if (BOX && lane == 0) stores_read<0>();
  }
  if (SPLIT > 1 && group == 0) { cluster_wait(); cluster_wait(); }       // as consumers do when they exchange sums
  if (CLUSTER > 1) cluster_meet();           // others may still write here
"""


if __name__ == "__main__":
    import sys
    sys.stdout.write(Wgmma(bn=256).source())
