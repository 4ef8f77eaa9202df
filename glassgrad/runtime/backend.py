"""Define the backend contract: what a device provides. In: nothing. Out: `DeviceRecord`, `Backend` and their types.

A device is a record in runtime/devices.py and a subclass of `Backend`. The engine uses nothing else of it.

A device must provide                                  it may provide
    memory   allocate, release, copy_in, copy_out          memory.on_host   memory shared with NumPy and files
    compile  a kernel's graph -> a program                 memory.in_parts  kernels take addresses inside a block
    launch   run one program on these addresses            memory.numbers   results of checks, read later
                                                           programs         compile several kernels at once; BEAM
                                                           plan             a command list, run without Python
                                                           replay_plan      a plan that a jit replays, such as a graph
                                                           loop_tree        the loops it compiles, which CHECK=1 runs

A device that overrides `programs` needs no `compile`; one that overrides `plan` needs no `launch` (as on the CPU).

Memory is named by addresses: integers that only the device itself dereferences. A scalar argument of a kernel is passed
by address too: always eight bytes of host memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from glassgrad.base.errors import Bug
from glassgrad.base.settings import kernel_mode
from glassgrad.compiler.graph.dtype import ALL, DType
from glassgrad.compiler.graph.symbolic import Size, upper_bound

if TYPE_CHECKING:            # a warm process does not load the compiler
    from glassgrad.compiler.graph.uop import UOp
    from glassgrad.compiler.lower.loops import Kernel
    from glassgrad.compiler.render.launch_info import LaunchInfo
    from glassgrad.runtime.memory_pool import MemoryBlock


class DeviceRecord(NamedTuple):
    """What is known about a device before it is opened; `Device.records` has one for each.

    >>> DeviceRecord("MY", open=lambda name: Backend(name, None), aliases=("MINE",)).names
    ('MY', 'MINE')
    """
    name: str
    open: Callable[[str], Any]          # name -> Backend; raises DeviceError, which says what to install
    aliases: tuple[str, ...] = ()       # NAME=1 in the environment, with any of its names, makes it the default
    target: str = ""                    # what its kernels run on
    dialect: str = ""                   # what they are written in
    install: str = ""                   # what it needs on the machine, and how to get it

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, then its aliases."""
        return self.name, *self.aliases


class DeviceMemory(Protocol):
    """The memory of a device: blocks of bytes, named by their addresses."""
    on_host: bool           # whether addresses are host pointers, so that NumPy and files can share the memory
    in_parts: bool          # whether a kernel may be passed an address inside a block, to read or write there

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Return a block of at least `nbytes` bytes, not cleared."""

    def release(self, block: MemoryBlock) -> None:
        """Take back a block that is not used any more."""

    def copy_in(self, address: int, data: Any) -> None:
        """Copy host bytes to a device address, ordered after all earlier launches."""

    def copy_out(self, address: int, nbytes: int) -> bytearray | memoryview:
        """Return a host copy of the bytes at a device address, ordered after all earlier launches."""

    def empty_cache(self) -> None:
        """Return pooled blocks to the system."""


class DeviceProgram(Protocol):
    """A compiled kernel."""
    name: str
    info: LaunchInfo        # the memory that a launch must provide
    operations: Size        # arithmetic operations of one run, and bytes moved: lengths of the kernel's variables
    bytes: Size


LONG_WORK = 2_000_000_000        # operations between two checks for Ctrl-C: 2 ms at 1 TFLOPS, 0.4 s at 5 GFLOPS
OPERATIONS_PER_BYTE = 10         # operations that take as long as moving one byte


def longest_work(program: DeviceProgram) -> int:
    """Return the work of a program, counted in operations, for the greatest values of its variables."""
    return max(upper_bound(program.operations), OPERATIONS_PER_BYTE * upper_bound(program.bytes))


class DevicePlan:
    """A list of launches over numbered memory slots that is run repeatedly: arrays of addresses, which `bind` fills,
    and a way to run. This base class starts each launch from Python; a device with native command lists
    overrides that."""
    # Whether a run, once it reaches the program given to `keep_together(first)`, always completes: neither a signal
    # nor a failing program stops it halfway.
    uninterrupted = False
    # Whether the plan also has `check(before, numbers)`, which ends a run before program `before` if a 32-bit integer
    # in memory is below its bound; `numbers` are (address, bound) pairs.
    ends_early = False
    by_value = False            # whether a `runner` is valid only for the scalar values that were bound before it

    def __init__(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]],
                 launch: Callable[[Any, Sequence[int]], None] | None = None):
        self.programs, self._launch = list(programs), launch
        self.arguments = [[0] * len(uses) for uses in slots]       # of each program: addresses
        # for every use of a slot: the slot, and the (array, position) that holds its address
        self.wires: list[tuple[int, Any, int]] = [(slot, array, position) for array, uses in zip(self.arguments, slots)
                                                  for position, slot in enumerate(uses)]
        self.lines: Sequence[Sequence[Any]] = ()       # for each program, the lines of the user's code that it computes

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory that a run needs, over all workers."""
        return 0

    def described(self, number: int | None = None) -> list[str]:
        """Return the name and the user's line of each program, or of one of them, for messages."""
        every = list(zip(self.programs, self.lines or [()] * len(self.programs)))
        return [f"{program.name}  {lines[0] if lines else ''}".rstrip()
                for program, lines in (every if number is None else every[number:number + 1])]

    def bind(self, addresses: Sequence[int]) -> None:
        """Set the address of every slot."""
        for slot, array, position in self.wires:
            array[position] = addresses[slot]

    def rebind(self, addresses: Sequence[int]) -> None:
        """Set the address of every slot again. The scalars must have the values that were bound before the `runner` in
        use was made."""
        self.bind(addresses)

    def uses(self) -> dict[int, list[tuple[Any, int]]]:
        """Return for each slot every (array, position) that holds its address, where a replay overwrites it."""
        found: dict[int, list[tuple[Any, int]]] = {}
        for slot, array, position in self.wires:
            found.setdefault(slot, []).append((array, position))
        return found

    def run(self) -> None:
        """Launch every program in order; may return before they have finished."""
        for number in range(len(self.programs)):
            self.run_one(number)

    def runner(self) -> Callable[[], Any]:
        """Return a function that does `run` under the current settings; its result is true if a check ended the run."""
        return self.run

    def run_one(self, number: int) -> int:
        """Run one program, wait for it, and return its nanoseconds."""
        if self._launch is None:
            raise Bug(f"{type(self).__name__} has neither a launch nor a run_one of its own")
        start = time.perf_counter_ns()
        self._launch(self.programs[number], list(self.arguments[number]))
        return time.perf_counter_ns() - start

    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch that times each launch of this plan. There is one per plan, because it accumulates
        totals."""
        found: Stopwatch | None = getattr(self, "_watch", None)
        if found is None:
            found = self._watch = Stopwatch(self)
        return found


class Stopwatch:
    """Times each program of a plan by running them one by one from Python. A device that can read a clock between
    commands overrides it."""

    def __init__(self, plan: DevicePlan):
        self.plan, self.runs, self.timed_runs = plan, 0, 0
        self._latest: list[int] = []
        self._totals = [0] * len(plan.programs)

    @property
    def latest(self) -> list[int]:
        """Nanoseconds of each program in the latest timed run."""
        return self._latest

    @property
    def totals(self) -> list[int]:
        """Nanoseconds of each program in all timed runs."""
        return self._totals

    def run(self, every: bool = True) -> Any:
        """Run every program. Without `every`, only runs 1 to 4 and those numbered by a power of two are timed, and the
        first, which loads programs, is dropped from the totals."""
        self.runs += 1
        if not every and self.runs > 4 and self.runs & (self.runs - 1):
            return self.plan.runner()()
        if not every and self.runs == 2:
            self.timed_runs, self._totals = 0, [0] * len(self._totals)
        self.timed_runs += 1
        self._latest = [self.plan.run_one(number) for number in range(len(self.plan.programs))]
        self._totals = [total + one for total, one in zip(self._totals, self._latest)]
        return 0


class RendererFacts(NamedTuple):
    """Facts about the language that a device is programmed in, under the names that scripts read:
    `Device[name].renderer`.

    >>> RendererFacts("CPU", "llvm").has_local
    False
    """
    device: str
    language: str                      # "llvm", "c", "python", "cuda", "opencl", "hip" or "metal"
    supports_float4: bool = False      # kernels use other vector types; there is no float4
    has_local: bool = False            # work groups; without them a kernel's tasks are spread over threads
    has_shared: bool = False
    has_threads: bool = True
    tensor_cores: tuple[Any, ...] = ()
    global_max: tuple[int, ...] | None = None
    local_max: tuple[int, ...] | None = None
    shared_max: int = 0
    missing_types: Callable[[], tuple[str, ...]] = tuple      # names of unsupported element types

    @property
    def name(self) -> str:
        return self.language

    def supported_dtypes(self) -> set[DType]:
        """The element types that tensors on this device may have (tinygrad's name).

        >>> sorted(dtype.name for dtype in RendererFacts("CPU", "llvm").supported_dtypes())[:3]
        ['bfloat16', 'bool', 'float16']
        """
        missing = self.missing_types()
        return {dtype for dtype in ALL if dtype.name not in missing}


class Backend:
    """An opened device. `programs` compiles each distinct kernel once per set of compiler settings."""
    renderer: Any = None
    missing_types: tuple[str, ...] = ()        # names of unsupported element types

    @property
    def has_float64(self) -> bool:
        """Whether kernels can compute with float64."""
        return "float64" not in self.missing_types

    def __init__(self, name: str, memory: Any):
        self.name, self.memory = name, memory
        self._programs: dict[tuple[UOp, tuple[Any, ...]], Any] = {}

    # -- what a device must provide, besides its memory --------------------------------------------------------
    def compile(self, ast: UOp) -> Any:
        """Compile a kernel's graph to a `DeviceProgram`."""
        raise Bug(f"{type(self).__name__} has no compile(ast)")

    def launch(self, program: Any, addresses: Sequence[int]) -> None:
        """Run a program on the addresses of its PARAMs, then those of `info.shared`."""
        raise Bug(f"{type(self).__name__} has neither launch(program, addresses) nor plan(programs, slots)")

    # -- what it may provide -----------------------------------------------------------------------------------
    def programs(self, kernels: Sequence[UOp]) -> list[Any]:
        """Return the compiled program of each kernel's graph."""
        mode = kernel_mode()
        for ast in kernels:
            if (ast, mode) not in self._programs:
                self._programs[ast, mode] = self.compile(ast)
        return [self._programs[ast, mode] for ast in kernels]

    def plan(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]) -> Any:
        """Return a `DevicePlan` of these programs; `slots` has those of each one's PARAMs, then of `info.shared`."""
        return DevicePlan(programs, slots, self.launch)

    def replay_plan(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]) -> Any:
        """Return a plan for launches that a jit replays often, so that costly preparation pays off."""
        return self.plan(programs, slots)

    def source(self, ast: UOp) -> str:
        """The source text of a kernel, for people."""
        return "the device shows no source"

    def loop_tree(self, ast: UOp) -> Kernel:
        """The loop tree that is compiled for a kernel; CHECK=1 interprets it to find a wrong pass."""
        raise Bug(f"{type(self).__name__} has no loop_tree(ast), which CHECK=1 needs")

    def synchronize(self) -> None:
        """Wait until all launches have finished. A device with synchronous launches has nothing to do."""

    def copy_in(self, address: int, data: Any) -> None:
        """Copy host bytes to device memory."""
        self.memory.copy_in(address, data)

    def copy_out(self, address: int, nbytes: int) -> bytearray | memoryview:
        """Copy bytes of device memory to the host."""
        copied: bytearray | memoryview = self.memory.copy_out(address, nbytes)
        return copied

    def empty_cache(self) -> None:
        """Return pooled memory to the system."""
        self.memory.empty_cache()

    @property
    def description(self) -> str:
        """One line for people: what the device is on this machine."""
        return f"here: {type(self).__name__}"
