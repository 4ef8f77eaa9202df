"""CUDA C++ that all kernels share: barriers, copies, fences, conversions. Header-free: NVRTC needs no include path."""

PRELUDE = r"""
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned short u16;
#define DEVICE static __device__ __forceinline__

DEVICE u32 near(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// -- conversions: two sums to one word, the first in the lower half
DEVICE u32 pack_bf16(float low, float high) {
  u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
DEVICE u32 pack_f16(float low, float high) {
  u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
DEVICE u32 pack_none(float, float) { return 0; }           // sums that are stored as they are
"""

HOPPER = r"""
struct __align__(64) TensorMap { char bytes[128]; };

// -- transaction barriers
DEVICE void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
DEVICE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
// The same barrier of another block of the cluster. Not .release.cluster: that would be a memory barrier of the whole
// device for each step, and all that was done before is reading.
DEVICE void barrier_arrive_at(u32 bar, u32 block) {
  asm volatile("{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [far]; }" :: "r"(bar), "r"(block) : "memory");
}
DEVICE u32 barrier_try(u32 bar, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done;
}
DEVICE void barrier_wait(u32 bar, u32 parity) {            // until the phase of this parity is over
#if WATCHDOG          // for debugging only: a trap makes the compiler give all roles the registers of the launch
  for (u32 tries = 0; !barrier_try(bar, parity);) if (++tries == 4000000) __trap();
#else
  while (!barrier_try(bar, parity)) {}
#endif
}
DEVICE void barriers_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void cluster_meet() {               // all threads of all blocks; what they stored is not made visible
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
DEVICE void cluster_wait() {               // as __syncthreads() for a cluster
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE void store_far(u32 address, u32 block, float a, float b, float c, float d) {     // into another block's shared memory
  asm volatile("{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1;\n"
               "st.shared::cluster.v4.f32 [far], {%2, %3, %4, %5}; }" :: "r"(address), "r"(block), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
DEVICE float4 load_near(u32 address) {
  float4 r;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w) : "r"(address) : "memory");
  return r;
}
DEVICE u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }

// -- the copy engine: boxes of a tensor of rank 3
DEVICE void box_load(u32 to, const TensorMap *map, u32 bar, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               :: "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}
DEVICE void box_load_to_all(u32 to, const TensorMap *map, u32 bar, int x, int y, int z, u16 blocks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%3, %4, %5}], [%2], %6;"
               :: "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(blocks) : "memory");
}
DEVICE void box_store(const TensorMap *map, u32 from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               :: "l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
DEVICE void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending> DEVICE void stores_read() {         // all but so many have read their shared memory
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(pending) : "memory");
}
DEVICE void map_prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory"); }
DEVICE void to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// -- copies by threads: 16 bytes, or zeros where nothing is there
DEVICE void copy_piece(u32 to, const void *from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory"); }

// -- groups of 4 warps
DEVICE void group_wait(int name) { asm volatile("bar.sync %0, 128;" :: "r"(name) : "memory"); }
template <int count> DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count)); }
template <int count> DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count)); }
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory"); }
// Until the sums are there: they are named, so that no use of them can move up past the wait.
template <int count> DEVICE void hold(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
template <int count> DEVICE void hold(int (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+r"(d[i]) :: "memory");
}
template <int count> DEVICE void hold(u32 (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+r"(d[i]) :: "memory");
}

// A matrix in shared memory as wgmma is told of it: where, two strides in bytes, how 16-byte pieces are permuted.
DEVICE u64 matrix_at(u32 address, u32 leading, u32 stride) {
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

DEVICE void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
"""


def wgmma_step(name: str, columns: int, kind: str, trans_a: int, trans_b: int, left: str = "shared") -> str:
    """The function for one step, 32 bytes of k: d[columns / 2] (+)= left * right; `more` 0 starts a new sum."""
    whole = kind == "s8"
    total, held, letter = ("s32", "int", "r") if whole else ("f32", "float", "f")
    depth = {"bf16": 16, "f16": 16, "tf32": 8, "s8": 32}[kind]
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    if left == "shared":
        a, ins, given, at = f"%{count}", '"l"(a)', "u64 a", count + 1
        turned = f", {trans_a}, {trans_b}" if depth == 16 else ""
    else:
        a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        ins, given, at = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])', "const u32 *a", count + 4
        turned = f", {trans_b}"
    signs = "" if whole else ", 1, 1"
    return f"""
DEVICE void {name}({held} (&d)[{count}], {given}, u64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{at + 1}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{total}.{kind}.{kind} {{{sums}}}, {a}, %{at}, p{signs}{turned}; }}"
               : {outs} : {ins}, "l"(b), "r"(more));
}}
"""


TILE_ORDER = r"""
// The n-th tile: groups of GROUP rows of tiles, down the columns of each group, so that tiles that run at once share
// what they read.
DEVICE void tile_at(int n, int tiles_m, int tiles_n, int &m_tile, int &n_tile, int &z) {
  int each = tiles_m * tiles_n, in_group = GROUP * tiles_n;
  z = n / each; n -= z * each;
  int group = n / in_group, first = group * GROUP, rows = min(GROUP, tiles_m - first), rest = n - group * in_group;
  n_tile = rest / rows;
  m_tile = first + rest - n_tile * rows;
}
"""
