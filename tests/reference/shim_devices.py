"""Registers HIP_SHIM, METAL_SHIM, CUDA_SHIM and ARM64_SHIM. In: being run. Out: devices, for what takes a script.

    glassgrad conformance HIP_SHIM --from tests/reference/shim_devices.py
"""

import arm64_device
import shim_device

from glassgrad import Device

shim_device.register()
Device.register("ARM64_SHIM", arm64_device.Arm64Device, target="an emulated processor", dialect="LLVM IR",
                install=arm64_device.INSTALL)
