"""Whether NVIDIA's run-time compiler is here. Out: `needs_nvrtc`, a mark for tests that compile CUDA without a GPU."""

from __future__ import annotations

import pytest

from glassgrad import DeviceError
from glassgrad.runtime.gpu import nvrtc


def compiler_is_here() -> bool:
    try:
        return bool(nvrtc.nvrtc_version())
    except DeviceError:
        return False


needs_nvrtc = pytest.mark.skipif(not compiler_is_here(), reason="CUDA's compiler: pip install nvidia-cuda-nvrtc")
