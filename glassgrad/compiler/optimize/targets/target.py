"""The processor that a kernel is compiled for. In: what the runtime found out. Out: `Target`. Queries no hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.lower.attention.attention_blocks import BOX_BLOCKS, GROUP_BLOCKS, SCORE_BLOCKS, ScoreBlocks
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit, units_of
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits

MOST_COLUMNS = 128     # columns of a result that stays in registers of a thread group between blocks of scores


@dataclass(frozen=True)
class Target:
    """What renderers and recipes need to know about a processor; `features` have LLVM's names.

    >>> Target("x86_64", 32, 16, frozenset({"avx2", "fma"})).has_fma
    True
    """
    arch: str                                 # "x86_64", "aarch64", "wasm32", "gpu" or "python"
    vector_bytes: int                         # width of a vector register
    vector_registers: int
    features: frozenset[str] = frozenset()
    l1_bytes: int = 32 << 10                  # data cache of one core
    l2_bytes: int = 1 << 20
    row_bytes: int = 256 << 10                # the longest row that a task may keep in private memory
    groups: bool = False                      # a vector is a group of threads with shared memory
    group_bytes: int = 40 << 10               # of this size; memory that does not fit is the device's
    most_threads: int = 0                     # threads of a group, if it may have more than a vector has lanes
    iteration_limit: int = 1 << 62                # iterations of all loops of a thread, after which the driver ends it
    narrow_steps: int = 0  # element steps of a kernel up to which vectors of half the width are better
    masks: bool = True                        # whether kernels use masked accesses, if the processor has them
    units: tuple[MatrixUnit, ...] = ()        # instructions that multiply small matrices
    tiled_products: bool = True               # whether contractions get tiles and packed panels, or plain loops
    task_steps: int = 32 << 10                # element steps that are worth a task
    most_tasks: int = 256                     # the most tasks of one loop nest
    workers: int = 16                         # threads that share the tasks
    few_tasks: int = 8                        # fewer tasks leave workers idle: then a sum is split into parts,
    cut_steps: int = 128 << 10                # if it has this many steps,
    least_chunk: int = 16                     # and each part at least this many
    fusion: FusionLimits = CPU_LIMITS           # costs that decide which values are recomputed, and which are stored

    @staticmethod
    def of(host: Any) -> Target:
        """Make a target from a more detailed description of a machine, such as the runtime's."""
        return host if isinstance(host, Target) else Target(
            host.arch, host.vector_bytes, host.vector_registers, host.features, host.l1_bytes, host.l2_bytes,
            narrow_steps=host.narrow_steps, units=units_of(host.features))

    @property
    def free_tasks(self) -> bool:
        """Whether a task costs nothing, however short it is."""
        return self.task_steps == 1

    def lanes(self, itemsize: int) -> int:
        """How many elements of a size fit one vector register."""
        return max(1, self.vector_bytes // itemsize)

    @property
    def score_blocks(self) -> ScoreBlocks:
        """The sizes of blocks in which softmax(scores) times values is computed."""
        if not self.groups:
            return SCORE_BLOCKS
        if any(unit.text is not None and unit.text.held for unit in self.units):
            return BOX_BLOCKS._replace(processors=self.few_tasks // 2)
        loads = any(unit.loads is not None for unit in self.units)
        return GROUP_BLOCKS._replace(processors=self.few_tasks // 2) if loads else SCORE_BLOCKS

    def why_scores_are_stored(self, dtype: DType, width: int = 1) -> str | None:
        """Why several kernels should compute softmax(scores) times values, for factors of this type, with keys and
        values of `width` elements; None if one kernel should, in one pass over blocks."""
        if self.groups:
            takes = any(unit.loads is not None and unit.left is dtype for unit in self.units)
            if not takes:
                return "groups of threads have no tiles for it"
            many = f"{width} numbers of a row are too many for the registers of threads"
            return None if width <= MOST_COLUMNS else many
        return "a matrix unit multiplies what is stored" if any(unit.left is dtype for unit in self.units) else None

    @property
    def has_fma(self) -> bool:
        """Whether multiply-add is one instruction."""
        return self.arch == "aarch64" or "fma" in self.features

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether a multiply-add can take one lane of a vector as a factor of all lanes."""
        return self.arch == "aarch64"

    @property
    def prefetch_level(self) -> int:
        """The nearest cache level that a prefetch fills. On a Neoverse N1, 1024 x 1024 @ 1024 x 1024 runs at 28 GFLOPS
        with prefetches into the second level, at 36 without prefetches, and at 37 with prefetches into the first
        level."""
        return 1 if self.arch == "aarch64" else 2

    @property
    def has_f16c(self) -> bool:
        """Whether one instruction converts float16 to and from float32."""
        return self.arch == "aarch64" or "f16c" in self.features

    def small_floats(self, language: str) -> frozenset[DType]:
        """The small floats with an instruction, written by this language's renderer, from and to float32."""
        if language == "cuda" and any(f.startswith("sm_") and int(f[3:].rstrip("a")) >= 80 for f in self.features):
            return frozenset((dtypes.float16, dtypes.bfloat16))
        if language in ("hip", "metal"):
            return frozenset((dtypes.float16,))
        return frozenset((dtypes.float16,)) if language == "llvm" and self.has_f16c else frozenset()

    @property
    def has_round(self) -> bool:
        """Whether one instruction rounds a float to an integer (otherwise LLVM would call a library function)."""
        return self.arch in ("aarch64", "wasm32") or "sse4.1" in self.features

    @property
    def has_gathers(self) -> bool:
        """Whether one instruction loads each lane from an index of its own. If not, extracting the indices from a
        vector and inserting the loaded values into another costs more than it saves: on a Neoverse N1, x.gather(1,
        index) takes 1.3 ns per element without vectors, and 1.9 with them."""
        return "avx2" in self.features or "avx512f" in self.features

    @property
    def has_masks(self) -> bool:
        """Whether loads and stores of only some lanes are one instruction for every element size."""
        return self.masks and "avx512bw" in self.features and "avx512vl" in self.features


# A group of 256 threads is a vector of 256 floats; two groups on each of an H200's 132 processors keep it busy. In the
# time to store an element and read it again, at 4 TB/s, its threads execute some 60 instructions.
GPU = Target("gpu", 1024, 64, l1_bytes=128 << 10, row_bytes=40 << 10, task_steps=1 << 10, most_tasks=1 << 20,
             few_tasks=264, least_chunk=128, groups=True,
             fusion=FusionLimits(costly=64, costly_with_rows=64, stores_factors=True, small=256, few_rows=264,
                                 long_rows=16 << 10, held_row=8 << 10, few_columns=264 * 256, long_column=256,
                                 column_elements=0, pads_as_read=True, side_by_side=64, products_per_byte=6,
                                 softmax_rows=1, masked_keys=0))

# Apple: some of a group's 32 KB of shared memory is used for folds; a kernel has at most 31 arguments.
APPLE_GPU = replace(GPU, row_bytes=31 << 10, group_bytes=31 << 10, fusion=GPU.fusion._replace(buffers=31))

# Vectors of 128 bits and a single thread: sums are not split for workers. Costs are those of CPUs
# (targets/cpu_costs.py).
WASM = Target("wasm32", 16, 16, few_tasks=1, most_tasks=1)
