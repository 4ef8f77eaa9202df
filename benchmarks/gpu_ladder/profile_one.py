"""One launch each of a few variants, for a profiler: ncu --clock-control none -k regex:kernel python3 profile_one.py"""

import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import driver as d
from mma_sync import MmaSync
from variants import FULL, OTHERS, STEP1, STEP4, STEP6

n = 4096
a, b = (torch.randn(1, n, n, device="cuda").bfloat16() for _ in range(2))
for c in (STEP1, STEP4, FULL, STEP6, OTHERS["lines"]):
    out = torch.empty(1, n, n, device="cuda", dtype=torch.bfloat16)
    launch = d.mma_sync(c, a, b, out) if isinstance(c, MmaSync) else d.wgmma(c, a, b, out)
    launch()
    torch.cuda.synchronize()
    print(c.name, flush=True)
