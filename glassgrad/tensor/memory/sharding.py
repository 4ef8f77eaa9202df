"""Tensors and several devices. In: tensors, names of devices. Out: tensors.

A tensor lives on one device. The names by which other libraries spread one over several are here, and do what they can:
all the devices named must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import DeviceError
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.checks import REQUIRED
from glassgrad.tensor.evaluate import canonical_device


class ShardingMixin(TensorBase):
    """Where a tensor is, by other libraries' names."""
    __slots__ = ()

    def cpu(self) -> Self:
        """The values on the CPU.

        >>> Tensor([1]).cpu().device
        'CPU'
        """
        return self.to("CPU")

    def shard(self, devices: Sequence[str], axis: int | None = None, splits: Any = None) -> Self:
        """The tensor spread over devices; here a tensor lives on one device, so they must all be the same.

        >>> Tensor([1, 2]).shard(("CPU", "CPU"), axis=0).tolist()
        [1, 2]
        """
        names = {canonical_device(d) for d in checks.items("shard", devices=devices)}
        if len(names) != 1:
            raise DeviceError("a tensor lives on one device",
                              given=f"shard over {', '.join(map(str, devices))}", expected="one device name",
                              fix="keep a part per device yourself: x.chunk(n), then .to(device)")
        return self.to(names.pop())

    def shard_(self, devices: Sequence[str], axis: int | None = None, splits: Any = None) -> Self:
        """`shard`, of this tensor itself.

        >>> Tensor([1, 2]).shard_(("CPU",)).tolist()
        [1, 2]
        """
        self.to_(self.shard(devices, axis).device)
        return self

    def shard_like(self, other: Self = REQUIRED, **spelling: Any) -> Self:
        """Where the other tensor is.

        >>> Tensor([1, 2]).shard_like(Tensor([3])).tolist()
        [1, 2]
        """
        other, = checks.spelled("shard_like", spelling, other=other)
        checks.tensors("shard_like", other=other)
        return self.to(other.device)
