"""Keep tensors in files: `device="disk:/path"`. In: nodes. Out: nodes over the file, or copied from it.

    Tensor.empty(1000, device="disk:/tmp/numbers")      # the file's first 4000 bytes; it is made, or made longer
    x.to("disk:/tmp/numbers")                           # written there, at once
    y[10:20].assign(z)                                  # so is this
    y[10:20].to("CPU")                                  # read from there, at once; `numpy` and `tolist` do the same

The file is mapped, so only what is touched is read. Others may write to it, so values that were read are not
remembered, and inside a jitted function nothing is read or written.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from glassgrad.base.errors import DeviceError
from glassgrad.compiler.graph import DType, Shape, UOp, ops as o
from glassgrad.compiler.graph.view import View
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import refuse_reading
from glassgrad.runtime.disk_device import PREFIX, on_disk
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas.bitcast import reread
from glassgrad.tensor.memory.file_mapping import exported, mapped

__all__ = ["no_place", "on_disk", "opened", "reread_in_place", "stored", "write"]


def opened(device: str, shape: Shape, dtype: DType) -> UOp:
    """Return the first bytes of a file as a BUFFER; the file is created, or extended, as needed."""
    path, buffer = device[len(PREFIX):], Buffer.from_host(None, 0, shape, dtype, device)
    if buffer.nbytes:
        buffer.owner, buffer.address = exported(_map(path, buffer.nbytes))
    return running.as_foreign(UOp(o.BUFFER, dtype, (), buffer))


def _map(path: str, nbytes: int) -> Any:
    if os.path.exists(path) and not os.access(path, os.W_OK) and os.path.getsize(path) >= nbytes:
        return mapped(path)                              # read-only: `write` checks again
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if os.fstat(handle).st_size < nbytes:
            os.ftruncate(handle, nbytes)
        return mmap.mmap(handle, nbytes)
    finally:
        os.close(handle)


def stored(node: UOp, computed_on: str, place: str) -> UOp:
    """Write a value to the start of a file; return its node there."""
    data = running.bytes_of(node, computed_on)
    target = opened(place, node.shape, node.dtype)
    write(target, data)
    return target


def reread_in_place(node: UOp, dtype: DType) -> UOp:
    """Return the bits of a part of a file as another type: over the file itself if the part is contiguous."""
    other = reread(node, dtype)
    views: tuple[View, ...] = node.st.views if node.base.op is o.BUFFER else ()
    if len(views) != 1 or views[0].mask is not None or views[0].strides != View.of(node.shape).strides:
        return other
    buffer: Buffer = node.base.arg
    address = buffer.address + views[0].offset * node.dtype.itemsize
    return running.as_foreign(running.over_memory(buffer, address, other.shape, dtype, buffer.device))


def no_place(node: UOp) -> DeviceError:
    """Return the error for elements of a tensor on a disk that are not a view of the file."""
    return DeviceError("this part of a file cannot be written to", given=f"elements of shape {node.shape}",
                       expected="a slice, a transpose or a reshape of a tensor on a disk",
                       fix="assign to a slice of the tensor itself, or assign the whole of it")


def write(node: UOp, data: Any) -> None:
    """Write bytes, in the order of a view's elements, to their positions in the file."""
    refuse_reading(f"the file of {node.device}")
    if not node.size:
        return
    views: tuple[View, ...] = node.st.views if node.base.op is o.BUFFER else ()
    if len(views) != 1 or views[0].mask is not None or 0 in (s for s, n in zip(views[0].strides, node.shape) if n > 1):
        raise no_place(node)
    buffer: Buffer = node.base.arg
    path = buffer.device[len(PREFIX):]
    if not os.access(path, os.W_OK):
        raise DeviceError("this file cannot be written to", given=path, expected="a file that you may write to",
                          fix="change its permissions, or write to a copy")
    import numpy
    element = numpy.dtype(f"V{node.dtype.itemsize}")
    lying = numpy.frombuffer(buffer.view(), element)[views[0].offset:]
    strides = [s * element.itemsize for s in views[0].strides]
    shown = numpy.lib.stride_tricks.as_strided(lying, node.shape, strides)
    shown[...] = numpy.frombuffer(data, element).reshape(node.shape)
