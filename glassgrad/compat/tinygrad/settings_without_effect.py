"""Provide settings that only tinygrad has, as objects that scripts can read and set. In: the environment. Out:
ContextVars.

Scripts import them to skip a test or to switch something inside tinygrad's compiler. They keep the value they are given
and have no effect here. Settings that glassgrad has too are in `helpers`.
"""

from __future__ import annotations

import os
from typing import Any

from glassgrad.compat.tinygrad.helpers import ContextVar

# the name of each, and its default
_NUMBERS: dict[str, int] = {name: 0 for name in """
    ALL2ALL ALLOW_TF32 AMD_LLVM AMX CAPTURE_PROCESS_REPLAY CHECK_OOB CORRECT_DIVMOD_FOLDING CPU_LVP CUDA_PTX
    DEBUG_RANGEIFY DISABLE_COMPILER_CACHE DISALLOW_BROADCAST DONT_GROUP_REDUCES DONT_REALIZE_EXPAND FUSE_CONV_BW
    FUSE_OPTIM IGNORE_BEAM_CACHE MAX_BUFFER_SIZE MAX_KERNEL_BUFFERS NOLOCALS NO_COLOR NO_MEMORY_PLANNER
    NULL_ALLOW_COPYOUT NULL_IR3 NULL_NAK NV_NAK NV_PTX OPENPILOT_HACKS PCONTIG QCOM_IR3 QUANTIZE TC_OPT USE_ATOMICS
    VALIDATE_WITH_CPU
""".split()}
_NUMBERS |= {name: 1 for name in """
    ALLOW_DEVICE_USAGE ALLREDUCE_CAST CAPTURING CCACHE CPU_LLVM DEVECTORIZE DISABLE_FAST_IDIV FUSE_ARANGE IGNORE_OOB
    LAZYCACHE PICKLE_BUFFERS SCACHE SPEC TC TC_SEARCH_OVER_SHAPE TRANSCENDENTAL TUPLE_ORDER USE_TC
""".split()}
_NUMBERS |= {"CACHELEVEL": 2, "JIT_BATCH_SIZE": 32, "TC_SELECT": -1, "PARALLEL": 0,
             "CPU_COUNT": os.cpu_count() or 1, "NUM_CPU_THREADS": os.cpu_count() or 1}
_WORDS = {name: "" for name in "AMD_CC CPU_CC CUDA_CC EMULATE EMULATED_DTYPES NV_CC PROFILEPATH QCOM_CC".split()}
_WORDS |= {"DEFAULT_FLOAT": "float32", "DEFAULT_INT": "int32"}

KNOBS: dict[str, ContextVar] = {name: ContextVar(name, default) for name, default in {**_NUMBERS, **_WORDS}.items()}
__all__ = list(KNOBS)


def __getattr__(name: str) -> Any:
    if name in KNOBS:
        return KNOBS[name]
    raise AttributeError(f"tinygrad has no setting {name!r} that is known here")
