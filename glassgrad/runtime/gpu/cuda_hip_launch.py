"""Launch kernels through a GPU's driver. In: compiled programs, slots of memory. Out: plans.

A schedule that runs once or a few times launches its kernels one by one (`DriverPlan`). What a jit replays becomes one
CUDA or HIP graph (`GraphPlan`): a chain of kernel nodes, launched by one call. The driver copies arguments into the
graph, so the nodes whose addresses or scalars have changed are updated before a launch.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.base.interrupts import interrupts_deferred
from glassgrad.base.settings import settings
from glassgrad.compiler.render.launch_info import TasksByValue
from glassgrad.runtime.gpu.cuda_hip_calls import DriverCalls
from glassgrad.runtime.gpu.gpu_device import GpuPlan, KernelCall, groups_at

NO_GRAPH_UP_TO = 1           # launches of a replay: a graph of so few would save nothing


class DriverLaunch:
    """A kernel launch with its arguments in the driver's form: an array of pointers to the value of each argument."""

    def __init__(self, driver: DriverCalls, call: KernelCall, more: Sequence[int] = ()):
        driver.enter()
        self.driver, self.kernel, self.scalars, self.groups = driver, call, call.scalars, call.groups
        self.tasks: TasksByValue | None = None     # how `groups` depends on scalars, and the values it is for
        self.counted_for: list[int] | None = None
        self.has_work = True
        scalars = call.scalars
        self.values = (ctypes.c_uint64 * max(1, len(scalars)))()
        first = ctypes.addressof(self.values)
        # a scalar's pointer is its host address; a buffer's pointer leads to the device address in `values`
        self.pointers = (ctypes.c_void_p * max(1, len(scalars) + len(more)))(
            *[0 if scalar else first + 8 * i for i, scalar in enumerate(scalars)], *more)
        # launches the kernel and returns the driver's result; a Python function instead of a `partial` would double the
        # cost of the call
        self.call = self.launch = self.with_groups()

    def with_groups(self) -> Callable[[], int]:
        """Return the driver's launch call for the current number of groups."""
        return partial(getattr(self.driver.library, self.driver.names.launch), self.kernel.function, self.groups, 1, 1,
                       self.kernel.threads, 1, 1, self.kernel.group_bytes, None, self.pointers, None)

    def follow(self, tasks: TasksByValue) -> None:
        self.tasks, self.call = tasks, self.call_settled

    def share_arguments(self, other: DriverLaunch) -> None:
        self.values, self.pointers = other.values, other.pointers
        self.launch = self.with_groups()
        self.call = self.launch if self.tasks is None else self.call_settled

    def call_settled(self) -> int:
        """Update computed arguments and the number of groups, then launch."""
        self.bring_up_to_date()
        return self.launch()

    def bring_up_to_date(self) -> None:
        """Recompute the number of groups if a scalar that it depends on has changed."""
        if self.tasks is not None and self.counted_for != (values := [*map(self.number, self.tasks.arguments)]):
            self.counted_for, self.groups = values, groups_at(self.tasks, values, self.kernel.groups)
            self.has_work = self.tasks.at(*values) > 0
            self.launch = self.with_groups() if self.has_work else _no_launch

    def number(self, position: int) -> int:
        """Return the value of a scalar argument."""
        return ctypes.c_int64.from_address(self.pointers[position] or 0).value

    def argument_slot(self, position: int) -> tuple[Any, int]:
        return (self.pointers if self.scalars[position] else self.values), position

    def settle(self) -> bool:
        """Update computed arguments and the number of groups. Return whether the launch can be part of a graph: it
        cannot if an argument must be copied first."""
        self.bring_up_to_date()
        return True

    def start(self) -> None:
        self.driver.enter()
        self.driver.check(self.driver.names.launch, self.call())
        self.driver.launched += 1


def _no_launch() -> int:
    """Do nothing, in the place of launching a kernel that has no tasks for the present value; return the driver's
    result of a success. (In a graph it is launched with one group, which does nothing.)"""
    return 0


class LaunchesByValue:
    """The launches of one kernel whose numbers of groups depend on scalar values: only those that have work are
    started."""

    def __init__(self, launches: Sequence[DriverLaunch], arguments: Sequence[int]):
        self.launches, self.arguments = launches, arguments
        self.values, self.active = list[int](), list[Callable[[], int]]()

    @staticmethod
    def calls(launches: Sequence[Any]) -> list[Callable[[], int]]:
        """Return the calls that start the launches of a kernel: one for all of them, if they depend on scalar
        values."""
        followed = {argument for launch in launches if launch.tasks is not None for argument in launch.tasks.arguments}
        if len(launches) == 1 or not followed:
            return [launch.call for launch in launches]
        return [LaunchesByValue(launches, sorted(followed)).call]

    def call(self) -> int:
        """Start the launches that have work; return the driver's result."""
        values = [*map(self.launches[0].number, self.arguments)]
        if values != self.values:
            for launch in self.launches:
                launch.bring_up_to_date()
            self.values = values
            self.active = [launch.call_settled if launch.kernel.maps else launch.launch
                           for launch in self.launches if launch.has_work]
        return next(filter(None, (start() for start in self.active)), 0)


class DriverPlan(GpuPlan):
    """A plan that makes one foreign call per launch."""

    def __init__(self, device: Any, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]):
        super().__init__(device, programs, slots)
        self.driver: DriverCalls = device
        self.run_of_all = (weakref.ref(self), None)
        self.calls = [call for launches in self.launches for call in LaunchesByValue.calls(launches)]

    def run(self) -> None:
        """Launch all kernels in order, without waiting."""
        driver = self.driver
        driver.enter()
        driver.started.append(self.run_of_all)
        for call in self.calls:
            result = call()
            if result:
                driver.check(driver.names.launch, result)
        driver.launched += 1

    def run_one(self, number: int) -> int:
        self.driver.started.append((self.run_of_all[0], number))
        return super().run_one(number)


class TrackedArguments:
    """An array of addresses that calls `changed` when an element changes."""
    __slots__ = ("array", "changed")

    def __init__(self, array: Any, changed: Callable[[], None]):
        self.array, self.changed = array, changed

    def __setitem__(self, position: int, address: int) -> None:
        if self.array[position] != address:
            self.array[position] = address
            self.changed()


class LaunchGraph:
    """A CUDA or HIP graph: a chain of kernels that one call launches."""

    def __init__(self, driver: DriverCalls, launches: Sequence[DriverLaunch]):
        self.driver, names = driver, driver.names
        self._start = getattr(driver.library, names.launch_graph)
        self._graph, self._instance = ctypes.c_void_p(), ctypes.c_void_p()
        self._records = [driver.kernel_record(function=launch.kernel.function, groups=(launch.groups, 1, 1),
                                              threads=(launch.kernel.threads, 1, 1),
                                              group_bytes=launch.kernel.group_bytes,
                                              arguments=ctypes.addressof(launch.pointers)) for launch in launches]
        self._nodes: list[ctypes.c_void_p] = []
        self._launches = list(launches)            # the records point at their arguments
        try:
            self._graph = driver.made(names.make_graph, 0)
            for record in self._records:
                before = self._nodes[-1:]
                self._nodes.append(driver.made(names.add_kernel, self._graph, (ctypes.c_void_p * len(before))(*before),
                                               ctypes.c_size_t(len(before)), ctypes.byref(record)))
            self._instance = driver.made(names.instantiate, self._graph, ctypes.c_uint64(0))
        except Bug as error:
            raise DeviceError("the driver makes no graph of a jitted function's kernels",
                              given=str(error).splitlines()[0],
                              expected="a driver with graphs: CUDA 12 or ROCm 6, or newer",
                              fix="GPU_GRAPH=0 starts the kernels one by one") from error

    def update(self, number: int) -> None:
        """Update the arguments and the number of groups of one kernel in the instantiated graph."""
        self._records[number].groups[0] = self._launches[number].groups
        self.driver.call(self.driver.names.set_kernel, self._instance, self._nodes[number],
                         ctypes.byref(self._records[number]))

    def start(self) -> None:
        """Launch the graph on the stream."""
        result = self._start(self._instance, None)
        if result:
            self.driver.check(self.driver.names.launch_graph, result)
        self.driver.launched += 1

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            for handle, destroy in ((self._instance, self.driver.names.destroy_instance),
                                    (self._graph, self.driver.names.destroy_graph)):
                if handle.value:
                    self.driver.call(destroy, handle)


class GraphPlan(DriverPlan):
    """A plan for replays with changing addresses, as one graph. With GPU_GRAPH=0, for a single launch, or if a kernel
    needs an argument copied first, kernels are launched one by one."""
    uninterrupted = True

    def __init__(self, device: Any, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]):
        super().__init__(device, programs, slots)
        self._kept_together = False                # whether a run must not be interrupted
        self._changed: dict[int, None] = {}        # launches whose arguments differ from those in the graph
        self._not_settled: set[int] = set()
        self._numbers: list[list[Any]] | None = None      # per scalar: cell, value in the graph, launches
        self._graph: LaunchGraph | None = None
        self._said = False
        users: dict[int, list[int]] = {}           # of each array: the launches of one kernel share theirs
        for number, launch in enumerate(self.flat):
            for array in (launch.values, launch.pointers):
                users.setdefault(id(array), []).append(number)
        scalars = {id(launch.pointers) for launch in self.flat}
        self.wires = [(slot, TrackedArguments(array, partial(self._note, users[id(array)], id(array) in scalars)),
                       position) for slot, array, position in self.wires]

    def _note(self, numbers: Sequence[int], is_scalar: bool) -> None:
        self._changed.update(dict.fromkeys(numbers))
        if is_scalar:
            self._numbers = None

    def keep_together(self, first: int) -> None:
        """Do not interrupt a run once it has reached this program."""
        self._kept_together = True

    def run(self) -> None:
        self.runner()()

    def runner(self) -> Callable[[], None]:
        if settings.GPU_GRAPH and len(self.flat) > NO_GRAPH_UP_TO and self._graph is None:
            self._make_graph()
        return partial(self._run, bool(settings.GPU_GRAPH))

    def _make_graph(self) -> None:
        for number in range(len(self.flat)):
            self._settle(number)
        self._graph = LaunchGraph(self.driver, self.flat)
        if settings.DEBUG >= 1:
            print(f"GPU_GRAPH: {len(self.flat)} launches on {self.device.name} are one graph")

    def _run(self, as_graph: bool) -> None:
        self.driver.enter()
        if as_graph and self._graph is not None and self._update(self._graph):
            self.driver.started.append(self.run_of_all)
            self._graph.start()
            return
        with interrupts_deferred() if self._kept_together and len(self.flat) > 1 else nullcontext():
            super().run()

    def _update(self, graph: LaunchGraph) -> bool:
        """Write changed arguments into the graph; return whether it can be launched."""
        changed = self._changed
        if self._numbers is None:
            self._numbers = self._find_numbers()
        for row in self._numbers:
            cell, value, launches = row
            if cell.value != value:
                row[1] = cell.value
                changed.update(launches)
        if changed:
            for number in changed:
                if self._settle(number):
                    graph.update(number)
            changed.clear()
        return not self._not_settled

    def _settle(self, number: int) -> bool:
        settled = self.flat[number].settle()
        if settled:
            self._not_settled.discard(number)
            return True
        self._not_settled.add(number)
        if settings.DEBUG >= 1 and not self._said:
            self._said = True
            print(f"GPU_GRAPH: a kernel on {self.device.name} needs an argument copied first: its launches are "
                  "started one by one")
        return False

    def _find_numbers(self) -> list[list[Any]]:
        """Return the distinct scalars that launches read: [cell, value in the graph, launches that read it]."""
        found: dict[int, list[Any]] = {}
        for number, launch in enumerate(self.flat):
            for position, is_scalar in enumerate(launch.scalars):
                address = launch.pointers[position]
                if is_scalar and address:
                    cell = ctypes.c_uint64.from_address(address)
                    row = found.setdefault(address, [cell, None, {}])
                    row[2][number] = None
        return list(found.values())
