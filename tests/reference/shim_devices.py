"""Registers HIP_SHIM, METAL_SHIM and CUDA_SHIM. In: being run. Out: devices, for commands that take a script.

    glassgrad conformance HIP_SHIM --from tests/reference/shim_devices.py
"""

import shim_device

shim_device.register()
