"""The backend contract: what a device provides. In: nothing. Out: `DeviceRecord`, `Backend` and the types they use.

A device is a record in runtime/devices.py and a subclass of `Backend`. The engine uses nothing else of it.

A device must provide                                  it may provide
    memory   allocate, release, copy_in, copy_out          memory.on_host   memory shared with NumPy and files
    compile  a kernel's graph -> a program                 memory.in_parts  kernels take addresses inside a block
    launch   run one program on these addresses            memory.numbers   checks of a run that are read later
                                                           programs         several kernels at a time; a search (BEAM)
                                                           plan             launches without Python between them
                                                           replay_plan      the same for launches that a jit repeats
                                                           loop_tree        the loops it compiles, which CHECK=1 runs

A device with `programs` of its own needs no `compile`, and one with a `plan` of its own no `launch`: the CPU has both.

Memory is named by addresses: integers that only the device itself dereferences. A scalar argument of a kernel has an
address too, always one of the host's, of eight bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from glassgrad.base.errors import Bug
from glassgrad.base.settings import kernel_mode
from glassgrad.compiler.graph.dtype import ALL, DType

if TYPE_CHECKING:            # a warm process does without the compiler
    from glassgrad.compiler.graph.uop import UOp
    from glassgrad.compiler.lower.loops import Kernel
    from glassgrad.compiler.render.launch_info import LaunchInfo
    from glassgrad.runtime.host_memory import MemoryBlock

__all__ = ["Backend", "DeviceMemory", "DevicePlan", "DeviceProgram", "DeviceRecord", "RendererFacts", "Stopwatch"]


class DeviceRecord(NamedTuple):
    """All that is known of a device before it is opened; `Device.records` has one for each.

    >>> DeviceRecord("MY", open=lambda name: Backend(name, None), aliases=("MINE",)).names
    ('MY', 'MINE')
    """
    name: str
    open: Callable[[str], Any]          # name -> Backend; raises DeviceError, which says what to install
    aliases: tuple[str, ...] = ()       # other names of it; NAME=1 in the environment chooses it by any of its names
    target: str = ""                    # what its kernels run on
    dialect: str = ""                   # what they are written in
    install: str = ""                   # what it needs on the machine, and how to get it

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, then its aliases."""
        return self.name, *self.aliases


class DeviceMemory(Protocol):
    """Blocks of bytes."""
    on_host: bool           # whether an address is one of the host's, so that NumPy and files can share it
    in_parts: bool          # whether a kernel can be given an address inside a block, and write from there

    def allocate(self, nbytes: int) -> MemoryBlock:
        """A block of at least so many bytes, not cleared."""

    def release(self, block: MemoryBlock) -> None:
        """Take back a block that is not used any more."""

    def copy_in(self, address: int, data: Any) -> None:
        """Copy bytes of the host to an address, after everything that was launched before."""

    def copy_out(self, address: int, nbytes: int) -> bytearray | memoryview:
        """Copy bytes at an address to new memory of the host, after everything that was launched before."""

    def empty_cache(self) -> None:
        """Give back to the system what is kept for later."""


class DeviceProgram(Protocol):
    """A compiled kernel."""
    name: str
    info: LaunchInfo        # the memory that a launch must bring along
    operations: int         # what a run costs: operations, and bytes moved
    bytes: int


LONG_WORK = 2_000_000_000        # operations between two looks for a Ctrl-C: 2 ms at 1 TFLOPS, 0.4 s at 5 GFLOPS
OPERATIONS_PER_BYTE = 10         # that take as long as to move a byte


class DevicePlan:
    """Launches in order over numbered slots of memory, to be run often. This one starts each launch from Python; a
    device with a command list of its own overrides all of it."""
    # Whether a run that has begun always ends: no signal and no failing program stops it halfway.
    # It holds from the program `first` on, for which `keep_together(first)` was called.
    uninterrupted = False
    # Whether such a plan also has `check(before, numbers)`: it ends a run before the program `before`
    # if a 32-bit number in memory is below its bound; `numbers` are pairs of (address, bound).
    ends_early = False

    def __init__(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]],
                 launch: Callable[[Any, Sequence[int]], None] | None = None):
        self.programs, self.slots, self._launch = list(programs), list(slots), launch
        self.addresses: list[int] = []
        self.lines: Sequence[Sequence[Any]] = ()       # of each program, the user's lines that it comes from

    @property
    def scratch(self) -> int:
        """Bytes of private memory that running takes, of all workers together."""
        return 0

    def described(self, number: int | None = None) -> list[str]:
        """The programs, or one of them, with the user's line, for messages."""
        every = list(zip(self.programs, self.lines or [()] * len(self.programs)))
        return [f"{program.name}  {lines[0] if lines else ''}".rstrip()
                for program, lines in (every if number is None else every[number:number + 1])]

    def bind(self, addresses: Sequence[int]) -> None:
        """Set the address of every slot."""
        self.addresses = list(addresses)

    def uses_of(self, slot: int) -> list[tuple[Any, int]]:
        """Where a slot's address is written, as (array, position): a replay changes it there."""
        return [(self.addresses, slot)] if any(slot in uses for uses in self.slots) else []

    def run(self) -> None:
        """Run every program in order; it may return before they are done."""
        for number in range(len(self.programs)):
            self.run_one(number)

    def runner(self) -> Callable[[], Any]:
        """`run` under the settings of now, to be called often; it returns true where a check ended the run."""
        return self.run

    def run_one(self, number: int) -> int:
        """Run one program to its end; return its nanoseconds."""
        if self._launch is None:
            raise Bug(f"{type(self).__name__} has neither a launch nor a run_one of its own")
        start = time.perf_counter_ns()
        self._launch(self.programs[number], [self.addresses[slot] for slot in self.slots[number]])
        return time.perf_counter_ns() - start

    def stopwatch(self) -> Stopwatch:
        """These launches, each timed; always the same object, which keeps totals."""
        found: Stopwatch | None = getattr(self, "_watch", None)
        if found is None:
            found = self._watch = Stopwatch(self)
        return found


class Stopwatch:
    """Times each program of a plan, by running one after another from Python. A device that can read a clock between
    its own commands overrides it."""

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
        """Run every program; without `every` only some runs are timed: the first few, then ever fewer. The first of
        all, which loads programs, then stands for none but itself."""
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
    supports_float4: bool = False      # kernels have vectors of their own; there is no type for four floats
    has_local: bool = False            # no work groups: a kernel's tasks are spread over threads
    has_shared: bool = False
    has_threads: bool = True
    tensor_cores: tuple[Any, ...] = ()
    global_max: tuple[int, ...] | None = None
    local_max: tuple[int, ...] | None = None
    shared_max: int = 0
    missing_types: Callable[[], tuple[str, ...]] = tuple      # names of the element types that the device refuses

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
    """A device, opened. `programs` compiles each distinct kernel once for each set of settings."""
    renderer: Any = None
    missing_types: tuple[str, ...] = ()        # names of the element types that it refuses

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
        """A program for each kernel's graph."""
        mode = kernel_mode()
        for ast in kernels:
            if (ast, mode) not in self._programs:
                self._programs[ast, mode] = self.compile(ast)
        return [self._programs[ast, mode] for ast in kernels]

    def plan(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]) -> Any:
        """A `DevicePlan` of these programs: of each, the slots of its PARAMs, then those of `info.shared`."""
        return DevicePlan(programs, slots, self.launch)

    def replay_plan(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]) -> Any:
        """The same, for launches that a jit repeats: what takes a while to prepare pays here."""
        return self.plan(programs, slots)

    def source(self, ast: UOp) -> str:
        """A kernel as text to read."""
        return "the device shows no source"

    def loop_tree(self, ast: UOp) -> Kernel:
        """A kernel's loop tree as it is compiled, which CHECK interprets to find the pass that is wrong."""
        raise Bug(f"{type(self).__name__} has no loop_tree(ast), which CHECK=1 needs")

    def synchronize(self) -> None:
        """Wait until everything that was launched has run. A device whose launches wait has nothing to do."""

    def copy_in(self, address: int, data: Any) -> None:
        """Copy bytes of the host to its memory."""
        self.memory.copy_in(address, data)

    def copy_out(self, address: int, nbytes: int) -> bytearray | memoryview:
        """Copy bytes of its memory to the host."""
        copied: bytearray | memoryview = self.memory.copy_out(address, nbytes)
        return copied

    def empty_cache(self) -> None:
        """Give memory that is kept for later back to the system."""
        self.memory.empty_cache()

    @property
    def description(self) -> str:
        """What it is on this machine, in one line for people."""
        return f"here: {type(self).__name__}"
