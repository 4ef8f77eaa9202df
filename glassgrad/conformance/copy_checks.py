"""Check memory: bytes must survive the round trip to a device, the first thing a new device needs. Out: cases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from glassgrad.conformance.case import REFERENCE, Case, Compared, on, seeded
from glassgrad.runtime.devices import Device
from glassgrad.tensor.tensor import Tensor


def copies() -> Iterator[Case]:
    """Return cases that copy in and out, in sizes 0, 1 and primes; several values at a time; and in order with
    kernels."""
    yield Case("the device opens", _opens)
    for size in (0, 1, 2, 3, 251, 4096, 4099, 1_000_003):
        yield Case(f"{size:,} bytes in and out", partial(_round_trip, size=size))
    yield Case("every byte value", lambda device: Compared("uint8[256]", on(device, BYTES), BYTES))
    yield Case("many values at a time", _many)
    yield Case("to another device and back", _through_another)
    yield Case("a value that is read twice", _twice)
    yield Case("a read waits for the kernel before it", _in_order)
    yield Case("a write waits for the kernel before it", _overwritten)
    yield Case("memory that was released is used again", _released)


BYTES = np.arange(256, dtype=np.uint8)


def _opens(device: str) -> Compared:
    return Compared(f"Device[{device!r}]", np.array(Device[device] is not None), np.array(True))


def _round_trip(device: str, size: int) -> Compared:
    sent = seeded(size, low=0, high=255, dtype="uint8")
    return Compared(f"uint8[{size}]", on(device, sent), sent)


def _many(device: str) -> Compared:
    sent = [np.full(1 + 37 * n, n, np.int32) for n in range(40)]
    held = [on(device, array) for array in sent]
    got = np.concatenate([t.numpy() for t in reversed(held)])
    return Compared("40 tensors of int32", got, np.concatenate(sent[::-1]))


def _through_another(device: str) -> Compared:
    sent = seeded(7, 13)
    other = on(device, sent).to(REFERENCE).realize()
    return Compared(f"float32[7, 13], {device} -> {REFERENCE} -> {device}", other.to(device), sent)


def _twice(device: str) -> Compared:
    sent = seeded(101)
    there = on(device, sent)
    return Compared("float32[101]", np.stack([there.numpy(), there.numpy()]), np.stack([sent, sent]))


def _in_order(device: str) -> Compared:
    x = on(device, np.zeros(4097, np.int32))
    for _ in range(20):
        x = (x + 1).realize()
    return Compared("int32[4097], 20 kernels that add 1", x, np.full(4097, 20, np.int32))


def _overwritten(device: str) -> Compared:
    """Replace a value after a kernel has read it: the kernel must have seen the old one."""
    x = on(device, np.full(4097, 1, np.int32))
    seen = (x * 10).realize()
    x.assign(Tensor(np.full(4097, 2, np.int32), device=device)).realize()
    return Compared("int32[4097], multiplied by 10, then replaced", np.stack([seen.numpy(), x.numpy()]),
                 np.stack([np.full(4097, 10), np.full(4097, 2)]).astype(np.int32))


def _released(device: str) -> Compared:
    sums = []
    for n in range(50):
        x = on(device, np.full(100_003, n, np.int32))
        sums.append(int(x[-1].item()))
        del x
    return Compared("50 tensors of int32[100003], one after another", np.array(sums), np.arange(50))
