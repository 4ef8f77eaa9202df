"""List the variants of the ladder, and what is measured beside them."""

from __future__ import annotations

from dataclasses import replace

from attention import Attention
from mma_sync import MmaSync
from simple import Join, Pad, VectorMatrix
from wgmma import Wgmma

# -- the ladder: what each step adds to the one before
STEP1 = MmaSync(bm=128, bn=256, bk=128, wm=64, wn=64, stages=3)
STEP2 = Wgmma(bm=128, bn=128, stages=4, consumers=1, producer=False, persistent=False, store="direct")
STEP3 = Wgmma(bm=128, bn=256, stages=4, persistent=False, store="direct")
STEP4 = replace(STEP3, persistent=True)
STEP5 = replace(STEP4, cluster=2)
STEP6 = replace(STEP5, store="box", stages=3, out_buffers=4)
LADDER = {"1 mma.sync": STEP1, "2 wgmma, TMA": STEP2, "3 producer, 2 consumers": STEP3, "4 persistent": STEP4,
          "5 cluster of 2": STEP5, "6 box store": STEP6}

MMA = {
    "mma 128x128 x2": replace(STEP1, bn=128, bk=64, stages=4, blocks_per_sm=2),
    "mma 128x128 s3 128B x2": replace(STEP1, bn=128, bk=128, stages=3, blocks_per_sm=2),
    "mma 128x256 64B s4": replace(STEP1, bk=64, stages=4),
    "mma 128x256 128B s4": replace(STEP1, bk=128, stages=4),
    "mma 128x256 s6": replace(STEP1, bk=64, stages=6),
    "mma 256x128": replace(STEP1, bm=256, bn=128),
    "mma 128x256 128B s3 down": replace(STEP1, bk=128, stages=3, order=1),
    "mma 128x256 128B s3 there and back": replace(STEP1, bk=128, stages=3, order=2),
    "mma 128x256 128B s3 nk": replace(STEP1, bk=128, stages=3, b="nk"),
    "mma 256x128 128B s3": replace(STEP1, bk=128, stages=3, bm=256, bn=128),
    "mma nk": replace(STEP1, b="nk"),
    "mma PTX for sm_80": replace(STEP1, arch="compute_80"),
    "mma by registers, 2 bytes": replace(STEP1, bk=64, load=2, stages=2, bn=128),
    "mma by registers, 8 bytes": replace(STEP1, bk=64, load=8, stages=2, bn=128),
}
FULL = replace(STEP6, cluster=1)
OTHERS = {
    "no cluster": FULL,
    "no cluster, 4 stages, 2 buffers": replace(FULL, stages=4, out_buffers=2),
    "cluster, 4 stages, 2 buffers": replace(STEP6, stages=4, out_buffers=2),
    "no cluster group 4": replace(FULL, group=4),
    "no cluster group 16": replace(FULL, group=16),
    "cluster group 4": replace(STEP6, group=4),
    "cluster group 16": replace(STEP6, group=16),
    "cluster of 4": replace(STEP6, cluster=4, group=4),
    "alone 128x128 s3 x2": replace(STEP2, stages=3, blocks_per_sm=2),
    "128x128": replace(FULL, bn=128, stages=5),
    "128x128 cluster": replace(STEP6, bn=128, stages=5),
    "256x128": replace(FULL, bm=256, bn=128),
    "256x128 cluster": replace(STEP6, bm=256, bn=128),
    "128x192": replace(FULL, bn=192, stages=4, out_buffers=3),
    "192x192": replace(FULL, bm=192, bn=192, consumers=3, stages=4, out_buffers=1),
    "pingpong 64x256": replace(FULL, bm=64, pingpong=True, stages=4),
    "pingpong 128x128": replace(FULL, bn=128, pingpong=True, stages=5),
    "pingpong 128x128 cluster": replace(STEP6, bn=128, pingpong=True, stages=5),
    "lines": replace(FULL, store="lines", stages=4, out_buffers=1),
}
LINES = OTHERS["lines"]
FAIR = replace(LINES, bn=128, stages=6)
PLAIN = {"plain 1": replace(LINES, plain=1), "plain 1, nk": replace(LINES, plain=1, b="nk"), "plain 1, 128x128": replace(FAIR, plain=1),
         "plain 2, 128x128": replace(FAIR, plain=2), "plain 1, 4 bytes": replace(LINES, plain=1, load=4),
         "plain 1, 2 bytes": replace(LINES, plain=1, load=2), "plain 2, 2 bytes, 128x128": replace(FAIR, plain=2, load=2)}
# -- what single switches do
SWITCHES = {"3, along rows": replace(STEP3, group=1), "3, groups of 8": STEP3, "3, groups of 32": replace(STEP3, group=32),
            "6, no cluster": FULL, "6, no cluster, along rows": replace(FULL, group=1), "6, registers stay": replace(FULL, move_registers=False),
            "lines": LINES, "lines, registers stay": replace(LINES, move_registers=False),
            "1, along rows": replace(STEP1, group=1), "1, groups of 8": STEP1,
            "128x192 lines": replace(LINES, bn=192), "192x128 lines": replace(LINES, bm=192, bn=128, consumers=3, stages=5),
            "128x128 lines": FAIR, "pingpong 128x128 lines": replace(FAIR, pingpong=True),
            "2, lines": replace(STEP2, store="lines", out_buffers=1), "2, lines, two in a core": replace(STEP2, store="lines", out_buffers=1, stages=3, blocks_per_sm=2)}
# -- no roles: all threads multiply, one of them asks for copies; several blocks in a core cover for each other
ONE = replace(STEP2, store="lines", out_buffers=1)
SIMPLE = {"128x128 s3 x2": replace(ONE, stages=3, blocks_per_sm=2), "128x192 s2 x2": replace(ONE, bn=192, stages=2, blocks_per_sm=2),
          "64x256 s2 x2": replace(ONE, bm=64, bn=256, stages=2, blocks_per_sm=2), "64x128 s4 x2": replace(ONE, bm=64, stages=4, blocks_per_sm=2),
          "64x128 s8": replace(ONE, bm=64, stages=8), "64x192 s3 x2": replace(ONE, bm=64, bn=192, stages=3, blocks_per_sm=2),
          "64x64 s6 x2": replace(ONE, bm=64, bn=64, stages=6, blocks_per_sm=2), "64x128 s2 x3": replace(ONE, bm=64, stages=2, blocks_per_sm=3),
          "128x64 s4 x2": replace(ONE, bn=64, stages=4, blocks_per_sm=2), "128x64 s8": replace(ONE, bn=64, stages=8),
          "128x256 s4, 2 groups": replace(ONE, bn=256, consumers=2), "128x192 s4, 2 groups": replace(ONE, bn=192, consumers=2),
          "256x128 s4, 2 groups": replace(ONE, bm=256, consumers=2), "128x128 s6, 2 groups": replace(ONE, consumers=2, stages=6),
          "128x128 s2 x2, 2 groups": replace(ONE, consumers=2, stages=2, blocks_per_sm=2)}
# -- no copy engine: all threads copy, 16 bytes each; one or two waits of the block in a step
TWO = replace(ONE, bn=256, consumers=2)
THREADS = {"S 128x256": TWO, "cp 128x256 1": replace(TWO, by_threads=1), "cp 128x256 2": replace(TWO, by_threads=2),
           "cp 128x256 1 nk": replace(TWO, by_threads=1, b="nk"),
           "cp 128x192 s5 1": replace(TWO, bn=192, stages=5, by_threads=1), "cp 128x192 s4 2": replace(TWO, bn=192, by_threads=2),
           "cp 128x128 s6 1": replace(TWO, bn=128, stages=6, by_threads=1), "cp 128x128 s3 2 x2": replace(ONE, stages=3, by_threads=2, blocks_per_sm=2),
           "cp 256x128 s4 1": replace(TWO, bm=256, bn=128, stages=4, by_threads=1),
           "cp 128x64 s8 1": replace(TWO, bn=64, stages=8, by_threads=1), "cp 64x64 s6 1 x2": replace(ONE, bm=64, bn=64, stages=6, by_threads=1, blocks_per_sm=2),
           "cp 64x128 s8 1": replace(ONE, bm=64, stages=8, by_threads=1), "cp 128x64 s3 2 x2": replace(TWO, bn=64, stages=3, by_threads=2, blocks_per_sm=2)}
for _name, _c in [(name, c) for name, c in THREADS.items() if c.by_threads == 1 and c.bm + c.bn >= 256]:
    THREADS |= {f"{_name}, {n} known": replace(_c, known=n) for n in (4096, 8192)}
# -- beside the ladder, in the same rounds
MORE = {"no cluster": FULL, "no cluster, lines": OTHERS["lines"], "4 stages, 2 buffers": OTHERS["no cluster, 4 stages, 2 buffers"],
        "pingpong": OTHERS["pingpong 128x128"], "64x128 s8": Wgmma(bm=64, bn=128, consumers=1, stages=8)}
LAYOUTS = {"nk": replace(STEP6, b="nk"), "km": replace(STEP6, a="km"), "km, nk": replace(STEP6, a="km", b="nk"),
           "f16": replace(STEP6, dtype="f16")}
NARROW = replace(FULL, bm=64, bn=128, consumers=1, stages=6, out_buffers=2)
SPLIT = replace(FULL, bn=128, stages=5, persistent=False)
SMALL = {
    "128x64": replace(FULL, bn=64, stages=6, out_buffers=1),
    "64x128": NARROW,
    "64x128 s8": replace(NARROW, stages=8),
    "64x128 s9": replace(NARROW, stages=9, out_buffers=1),
    "64x128 cluster": replace(NARROW, cluster=2, stages=8),
    "64x128 direct": replace(NARROW, store="direct"),
    "64x64 x2": replace(NARROW, bn=64, stages=5, out_buffers=1, blocks_per_sm=2),
    "64x128 x2": replace(NARROW, stages=3, blocks_per_sm=2),
    "128x128 split 2": replace(SPLIT, split=2, out_buffers=1),
    "128x128 split 4": replace(SPLIT, split=4, store="direct"),
    "128x256 split 4": replace(FULL, persistent=False, split=4, out_buffers=1),
    "64x256 split 2": replace(FULL, bm=64, consumers=1, persistent=False, split=2, stages=5, out_buffers=2),
}
TWICE = {2: Wgmma(bn=128, stages=6, store="direct", out="f32"), 4: Wgmma(bn=256, stages=4, store="direct", out="f32")}
RAGGED = {"box": FULL, "lines": OTHERS["lines"], "lines 128x128": replace(OTHERS["lines"], bn=128, stages=6),
          "direct": replace(FULL, store="direct"), "cluster": replace(OTHERS["lines"], cluster=2), "mma": MMA["mma by registers, 2 bytes"]}
KINDS = {"tf32": replace(STEP1, dtype="tf32", bn=128), "tf32 nk": replace(STEP1, dtype="tf32", b="nk", bn=128),
         "tf32 256": replace(STEP1, dtype="tf32"), "tf32 nk 256": replace(STEP1, dtype="tf32", b="nk"),
         "s8": replace(STEP1, dtype="s8", b="nk", bn=128), "s8 256": replace(STEP1, dtype="s8", b="nk"),
         "wgmma tf32": Wgmma(bn=256, dtype="tf32", b="nk", store="direct", out="f32"),
         "wgmma tf32 128": Wgmma(bn=128, dtype="tf32", b="nk", store="direct", out="f32", stages=6),
         "wgmma s8": Wgmma(bn=256, dtype="s8", b="nk", store="direct", out="s32"),
         "wgmma s8 128": Wgmma(bn=128, dtype="s8", b="nk", store="direct", out="s32", stages=6),
         "f16": replace(STEP1, dtype="f16")}
VECTOR = [VectorMatrix(p, w, r, x) for p, w, r, x in
          ((8, 8, 8, 4), (9, 8, 8, 4), (7, 8, 16, 3), (18, 4, 8, 8), (4, 16, 8, 2), (4, 8, 16, 2), (9, 8, 4, 4))]
ATTENTION = {"128": Attention(), "128, no turns": Attention(turns=False), "176": Attention(kv=176),
             "160": Attention(kv=160), "176, no turns": Attention(kv=176, turns=False),
             "causal": Attention(causal=True), "causal, no turns": Attention(causal=True, turns=False)}


def everything():
    seen = {}
    for table in (LADDER, MMA, OTHERS, PLAIN, SWITCHES, SIMPLE, THREADS, LAYOUTS, SMALL, TWICE, RAGGED, KINDS, ATTENTION):
        seen.update({c.name: c for c in table.values()})
    seen.update({c.name: c for c in (*VECTOR, Pad(), *(Join(p, "bf16") for p in TWICE))})
    return list(seen.values())


SHAPES = ("1x5000x3000x1111", "1x5000x3000x1112", "1x4097x4097x4097", "1x1000x1000x1000", "1x3072x5120x1536",
          "64x256x256x256", "256x128x128x128", "128x512x512x64", "1x512x512x512", "1x128x4096x4096", "1x8192x1024x4096",
          "1x1777x2313x777")


def JOBS(which: str = "all"):
    checks = [f"check {c.name}" for c in everything() if isinstance(c, (Wgmma, MmaSync))]
    ladder = [f"{kind} {n}" for kind in ("ladder", "rested") for n in (1024, 2048, 4096, 8192)]
    rest = ["random shapes", "clusters", *(f"square {n}" for n in (1024, 2048, 4096, 8192)), *(f"shape {s}" for s in SHAPES),
            "promotion 1x5000x3000x1112", "promotion 1x1000x1000x1000", "promotion 1x4096x4096x4096",
            "f16", "tf32", "s8", "vector", "attention plain", "attention causal"]
    plain = [f"plain {n}" for n in (1024, 2048, 4096, 8192)]
    return {"all": [*checks, *ladder, *plain, *rest, "rested small"], "ladder": ladder, "checks": checks, "plain": plain,
            "simple": [*(f"check {c.name}" for c in SIMPLE.values()),
                       *(f"simple {n}" for n in (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192))],
            "threads": [*(f"check {c.name}" for c in THREADS.values()), *(f"threads {n}" for n in (1024, 2048, 4096, 8192))],
            "switches": [*(f"check {c.name}" for c in SWITCHES.values()), *(f"switches {n}" for n in (1536, 2048, 3072, 4096, 8192))]}[which]
