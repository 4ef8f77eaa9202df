"""Call a GPU's driver. In: its library, and its functions' names. Out: `DriverCalls`, which checks each result.

NVIDIA's and AMD's drivers have the same functions under other names, so they differ by data: `DriverNames`, and the
layout of the record that describes a kernel node. Does not know kernels or memory; it remembers the plans started since
the last synchronization, to name the kernels when one of them fails.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.runtime.gpu.gpu_device import in_forked_process


class DriverNames(NamedTuple):
    """The names of a driver's functions."""
    allocate: str
    free: str
    allocate_host: str           # pinned host memory
    copy_in: str                 # these two are asynchronous, on a stream
    copy_out: str
    read: str                    # synchronous copy to the host
    load: str
    function: str
    launch: str
    make_stream: str
    make_event: str
    record: str
    await_event: str             # blocks the host until an event
    stream_awaits: str           # makes a stream wait for an event, not the host
    elapsed: str
    synchronize: str
    make_graph: str
    add_kernel: str
    instantiate: str
    set_kernel: str              # sets the arguments of a kernel in an instantiated graph
    launch_graph: str
    destroy_graph: str
    destroy_instance: str


class _Entered(threading.local):
    done = False                 # whether the device is current in this thread


class DriverCalls:
    """A driver that is called from several threads. A subclass provides the names, `make_current` and `reason`."""
    name: str                                  # of the device
    names: DriverNames
    kernel_record: type[ctypes.Structure]      # what `add_kernel` takes: function, groups, threads, memory, arguments

    def __init__(self, library: ctypes.CDLL):
        self.library, self._entered, self.process = library, _Entered(), os.getpid()
        self.launched = 0                      # launch counter: orders launches, releases and copies
        # plans started since the last synchronization, each with the number of its one kernel, or None for all
        self.started: deque[tuple[weakref.ref[Any], int | None]] = deque(maxlen=MOST_STARTED)

    def make_current(self) -> None:
        """Make the device current in this thread."""
        raise Bug(f"{type(self).__name__} has no make_current")

    def reason(self, result: int) -> str:
        """Return the driver's text for an error number."""
        raise Bug(f"{type(self).__name__} has no reason")

    def enter(self) -> None:
        """Make the device current in this thread, if it is not yet."""
        if not self._entered.done:
            self.make_current()
            self._entered.done = True

    def call(self, name: str, *arguments: object) -> None:
        """Call a driver function; raises `Bug`, or `DeviceError` for a kernel that failed and in a forked child."""
        self.enter()
        self.check(name, getattr(self.library, name)(*arguments))
        if name in (self.names.synchronize, self.names.read):             # all that was started is done
            self.started.clear()

    def check(self, name: str, result: int) -> None:
        if result in KERNEL_FAULTS and self.started:
            raise self.fault(result)
        if result and os.getpid() != self.process:
            raise in_forked_process(self.name)
        if result:
            raise Bug(f"{name}: {self.reason(result)}")

    def fault(self, result: int) -> DeviceError:
        """Return the error for a failed kernel. Drivers report it late and without a name, so it lists all
        candidates."""
        kernels = [kernel for reference, number in tuple(self.started) if (plan := reference()) is not None
                   for kernel in plan.described(number)]
        names = list(dict.fromkeys(kernels))
        given, advice = "the kernel " + "".join(names), ""
        if len(names) != 1:
            among = f", among the last {MOST_STARTED} runs" if len(self.started) == MOST_STARTED else ""
            more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
            given = "\n".join([f"one of those started since the GPU last answered{among}:", *names[:MOST_NAMED], *more])
            advice = "DEBUG=2 waits for each kernel, and so names this one; "
        return DeviceError(f"a kernel failed on the GPU: {self.reason(result)}", given=given,
                           expected="kernels that stay within their memory",
                           fix=advice + "in a kernel of your own, check its indices, and report any other; then start "
                           "the program anew: the GPU does nothing more for this process")

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call a driver function that creates something; return the handle that it writes to its first argument."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def event(self, timed: bool = False) -> Any:
        """Make an event; one that measures time costs more."""
        return self.made(self.names.make_event, 0 if timed else _WITHOUT_TIME)


_WITHOUT_TIME = 2                # the same number in both drivers
# errors after which the context is unusable; the same numbers in both drivers: illegal address, launch timeout, assert,
# stack error, illegal instruction, misaligned address, invalid address space, invalid program counter, launch failure
KERNEL_FAULTS = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
MOST_STARTED = 16                # runs remembered for the message about a failed kernel
MOST_NAMED = 12                  # kernels that the message names
