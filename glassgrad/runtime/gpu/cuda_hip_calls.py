"""Call a GPU's driver. In: its library, and its functions' names. Out: `DriverCalls`, which calls and checks.

NVIDIA's and AMD's drivers have the same functions under other names, so they differ by data: `DriverNames`, and the
layout of the record that describes a kernel of a graph. Does not know kernels or memory; of plans it holds which were
started since the GPU last answered, to name the kernels where one has failed.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, DeviceError

__all__ = ["DriverCalls", "DriverNames"]


class DriverNames(NamedTuple):
    """The functions of a driver."""
    allocate: str
    free: str
    allocate_host: str           # memory of the host that the GPU copies from and to by itself (pinned)
    copy_in: str                 # these two start a copy on a stream, and do not wait for it
    copy_out: str
    read: str                    # copies to the host behind the kernels, and waits for it
    load: str
    function: str
    launch: str
    make_stream: str
    make_event: str
    record: str
    await_event: str             # the host waits for an event
    stream_awaits: str           # a stream waits for an event, and the host does not
    elapsed: str
    synchronize: str
    make_graph: str
    add_kernel: str
    instantiate: str
    set_kernel: str              # another set of arguments for a kernel of a graph that can run
    launch_graph: str
    destroy_graph: str
    destroy_instance: str


class _Entered(threading.local):
    done = False                 # whether the device is this thread's


class DriverCalls:
    """A driver that is called from several threads. A subclass provides the names, `make_current` and `reason`."""
    names: DriverNames
    kernel_record: type[ctypes.Structure]      # what `add_kernel` takes: function, groups, threads, memory, arguments

    def __init__(self, library: ctypes.CDLL):
        self.library, self._entered = library, _Entered()
        self.launched = 0                      # raised after each launch: orders launches, releases and copies
        # plans that were started since the GPU last answered, each with the number of the only kernel, or None for all
        self.started: deque[tuple[weakref.ref[Any], int | None]] = deque(maxlen=MOST_STARTED)

    def make_current(self) -> None:
        """Make the device this thread's."""
        raise Bug(f"{type(self).__name__} has no make_current")

    def reason(self, result: int) -> str:
        """An error's number in words."""
        raise Bug(f"{type(self).__name__} has no reason")

    def enter(self) -> None:
        """Make the device this thread's, once."""
        if not self._entered.done:
            self.make_current()
            self._entered.done = True

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; an error is a `Bug`, or a kernel's."""
        self.enter()
        self.check(name, getattr(self.library, name)(*arguments))
        if name in (self.names.synchronize, self.names.read):             # all that was started is done
            self.started.clear()

    def check(self, name: str, result: int) -> None:
        if result in KERNEL_FAULTS and self.started:
            raise self.fault(result)
        if result:
            raise Bug(f"{name}: {self.reason(result)}")

    def fault(self, result: int) -> DeviceError:
        """What is said of a kernel that failed: a driver reports it later, and does not say which one it was."""
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
        """The handle that one of the driver's functions writes to where its first argument points."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def event(self, timed: bool = False) -> Any:
        """A new event; one that measures time costs more."""
        return self.made(self.names.make_event, 0 if timed else _WITHOUT_TIME)


_WITHOUT_TIME = 2                # the same number in both drivers
# after these a GPU does nothing more for a process; the same numbers in both drivers: a bad address, a time limit, an
# assertion, a bad stack, a bad instruction, a misaligned address, two more kinds of bad addresses, any other failure
KERNEL_FAULTS = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
MOST_STARTED = 16                # runs that are remembered for the message about a kernel that failed
MOST_NAMED = 12                  # kernels that it names
