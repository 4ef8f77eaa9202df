"""The processor a kernel is written for. In: what the runtime found out. Out: `Target`. Asks the machine nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit, units_of


@dataclass(frozen=True)
class Target:
    """What renderers and recipes need to know of a processor; `features` are spelled as LLVM spells them.

    >>> Target("x86_64", 32, 16, frozenset({"avx2", "fma"})).has_fma
    True
    """
    arch: str                                 # "x86_64" or "aarch64"
    vector_bytes: int                         # width of one vector register
    vector_registers: int
    features: frozenset[str] = frozenset()
    l1_bytes: int = 32 << 10                  # data cache of one core
    l2_bytes: int = 1 << 20
    row_bytes: int = 256 << 10                # the longest row of values that a task may keep to itself
    groups: bool = False                      # a vector is a group of threads, which share memory
    units: tuple[MatrixUnit, ...] = ()        # products of small matrices in one instruction
    task_steps: int = 32 << 10                # element steps that are worth a task
    most_tasks: int = 256                     # of one loop nest
    few_tasks: int = 8                        # fewer leave workers idle: a sum is cut into parts then,
    cut_steps: int = 128 << 10                # if it is this long,
    least_chunk: int = 16                     # and a part has so many steps

    @staticmethod
    def of(host: Any) -> Target:
        """The target in a fuller description of a machine, such as the runtime's."""
        return host if isinstance(host, Target) else Target(
            host.arch, host.vector_bytes, host.vector_registers, host.features, host.l1_bytes, host.l2_bytes,
            units=units_of(host.features))

    @property
    def free_tasks(self) -> bool:
        """Whether a task costs nothing, however little it does."""
        return self.task_steps == 1

    def lanes(self, itemsize: int) -> int:
        """How many elements of a size fit one vector register."""
        return max(1, self.vector_bytes // itemsize)

    def why_scores_are_stored(self, dtype: DType) -> str | None:
        """Why softmax(scores) times values is better done by several kernels, where the factors have this type; None:
        by one, in one pass over blocks of scores."""
        if self.groups:
            return "groups of threads have no tiles for it"
        return "a matrix unit multiplies what is stored" if any(unit.left is dtype for unit in self.units) else None

    @property
    def has_fma(self) -> bool:
        """Whether a multiply and an add are one instruction."""
        return self.arch == "aarch64" or "fma" in self.features

    @property
    def has_f16c(self) -> bool:
        """Whether float16 converts to and from float32 in one instruction."""
        return self.arch == "aarch64" or "f16c" in self.features

    def small_floats(self, language: str) -> frozenset[DType]:
        """The small floats that convert to and from float32 in one instruction that a renderer writes."""
        if language == "cuda" and any(f.startswith("sm_") and int(f[3:].rstrip("a")) >= 80 for f in self.features):
            return frozenset((dtypes.float16, dtypes.bfloat16))
        return frozenset((dtypes.float16,)) if language == "llvm" and self.has_f16c else frozenset()

    @property
    def has_round(self) -> bool:
        """Whether rounding a float to an integer is one instruction (else LLVM would call a library)."""
        return self.arch == "aarch64" or "sse4.1" in self.features

    @property
    def has_masks(self) -> bool:
        """Whether loads and stores of some lanes only are one instruction for every element size."""
        return "avx512bw" in self.features and "avx512vl" in self.features


# A group of 256 threads is a vector of 256 floats; two groups on each of an H200's 132 processors keep it busy.
GPU = Target("gpu", 1024, 64, l1_bytes=128 << 10, row_bytes=40 << 10, task_steps=1 << 10, most_tasks=1 << 20,
             few_tasks=264, least_chunk=64, groups=True)
