"""Kernels touch nothing outside their memory: what they read ends with a page, and behind it nobody may look.

Vectors of ragged rows end in masks, early starts or shorter vectors; one that reads or writes too much goes unseen
wherever something else of ours lies there. Here it ends the process, or leaves its mark in the bytes behind a result.
"""

from __future__ import annotations

import sys

import pytest
from scripts import run_script

SCRIPT = """
import ctypes

import numpy as np

from glassgrad import Tensor, dtypes
from glassgrad.runtime import host_memory as pages, memory_pool

forbid, kept, made = ctypes.CDLL(None).mprotect, [], []
forbid.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(nbytes):
    '''An address whose bytes end where a page ends; neither that before them nor that behind may be touched.'''
    whole = pages.round_up(nbytes, pages.PAGE)
    start = pages.map_pages(whole + 2 * pages.PAGE)
    forbid(start, pages.PAGE, 0)
    forbid(start + pages.PAGE + whole, pages.PAGE, 0)
    return start + pages.PAGE + whole - nbytes


def allocate(self, nbytes):
    size = pages.round_up(nbytes, 64)                    # what kernels write begins at a multiple of 64 bytes
    address = guarded(size)
    ctypes.memset(address, 0xA5, size)
    made.append((address + nbytes, size - nbytes))
    return memory_pool.MemoryBlock(address, nbytes, size)


pages.HostMemory.allocate, pages.HostMemory.release = allocate, lambda self, block: None


def given(*shape, dtype="float32"):
    values = np.arange(int(np.prod(shape))) * 7 % 11 - 5
    kind = dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values = (values / 8).astype(np.float32).view(np.uint32) >> 16 if dtype == "bfloat16" else values
    values = values.astype({"bfloat16": np.uint16}.get(dtype, dtype))
    address = guarded(values.nbytes)
    ctypes.memmove(address, values.ctypes.data, values.nbytes)
    kept.append(values)
    return Tensor.from_blob(address, shape, dtype=kind)


def gradients(x, w, **options):
    return x.conv2d(w, **options).square().sum().gradient(x, w)


for dtype in ("float32", "bfloat16", "int8", "float64", "float16"):
    wide = dtypes.int32 if dtype == "int8" else None
    given(37, 33, dtype=dtype).matmul(given(33, 17, dtype=dtype), dtype=wide).realize()
    given(33, 37, dtype=dtype).T.matmul(given(49, 33, dtype=dtype).T, dtype=wide).realize()
    given(3, 19, 17, dtype=dtype).permute(2, 1, 0).contiguous().realize()
    (given(5, 67, dtype=dtype)[:, ::2] + given(5, 34, dtype=dtype).flip(1)).realize()
    (given(5, 67, dtype=dtype)[:, ::3].sum(0) + given(23, dtype=dtype)).realize()
for narrow in ("int8", "int16", "bfloat16", "bool"):
    (given(7, 17, dtype="int32") * 3).cast(narrow).realize()
    given(7, 33).sum(0, keepdim=True).cast(narrow).realize()
    (given(9, 13) @ given(13, 17)).cast(narrow).realize()
given(2, 3, 7, 9).conv2d(given(5, 3, 3, 3), padding=1).realize()
for wanted in (*gradients(given(2, 17, 5, 9), given(19, 17, 3, 3), padding=1),
               *gradients(given(2, 8, 9, 35), given(8, 1, 3, 3), groups=8, padding=1),
               *gradients(given(3, 3, 17, 17), given(5, 3, 3, 3), stride=2)):
    wanted.realize()
given(5, 131).softmax().realize()
given(67, 129).layernorm().realize()
given(1, 133).matmul(given(133, 65)).realize()
given(11, 17)[Tensor([10, 0, 10])].cumsum(0).realize()
for address, nbytes in made:
    assert ctypes.string_at(address, nbytes) == bytes([0xA5]) * nbytes, "something behind a result was written"
print(len(made))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by another call there")
@pytest.mark.parametrize("features", ["", "-avx512f"])
def test_kernels_touch_nothing_outside_their_memory(features: str) -> None:
    out, _ = run_script(SCRIPT, DEV="CPU", CPU_FEATURES=features)
    assert int(out) > 50, "results were made in memory of another kind"
