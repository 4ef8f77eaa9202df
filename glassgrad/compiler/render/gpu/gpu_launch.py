"""How the functions of a kernel are launched on a GPU. In: a `Kernel`. Out: groups, threads and bytes of each phase.

In a phase, a group has as many threads as the widest vector has lanes. If the memory of a group exceeds a processor's
shared memory, it is in global memory: then few groups run, and each does several tasks. Does not know a kernel's text.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, UNIT, For, Kernel, walk
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.async_copies_and_mma import box_maps, has_copies
from glassgrad.compiler.render.launch_info import BoxMap, LaunchInfo, LocalLayout, launch_info, shared_slots

WARP = 32                   # groups are whole multiples of it
GROUPS = 1056               # groups that run at once if each has global memory: 8 for each of 132 processors


@dataclass(frozen=True)
class GpuLaunch:
    """How a kernel's functions are launched, in order."""
    phases: tuple[tuple[str, int, int, int], ...]    # (function, groups, threads per group, bytes that a group shares)
    info: LaunchInfo                             # device memory that a launch must provide
    maps: tuple[BoxMap, ...] = ()                # further arguments: how boxes of the others are copied


def gpu_launch(kernel: Kernel, group_bytes: int = GPU.group_bytes) -> GpuLaunch:
    """How to launch a kernel on a device with `group_bytes` of shared memory per group."""
    info = launch_info(kernel, replayed=True)
    threads = [group_threads([s.range for s in walk(phase.body) if isinstance(s, For) and s.kind == LANE])
               for phase in kernel.phases]
    in_global = scratch_is_global(kernel, info.scratch_bytes, group_bytes)
    in_group = [0 if in_global else LocalLayout(kernel, p).nbytes for p in range(len(kernel.phases))]
    phases = tuple([(name, min(tasks, GROUPS) if in_global else tasks, t, n)
                    for (name, tasks), t, n in zip(info.phases, threads, in_group)])
    most = max((groups for _, groups, _, _ in phases), default=1)
    shared = (*info.shared, most * info.scratch_bytes) if in_global else info.shared
    maps = tuple(box_maps(kernel, shared_slots(kernel)))
    return GpuLaunch(phases, LaunchInfo(info.phases, shared, 0, info.by_value), maps)


def scratch_is_global(kernel: Kernel, scratch_bytes: int, group_bytes: int) -> bool:
    """Whether the memory of a group is in global memory, because it is too large; never if copies write to it or a
    matrix unit reads it."""
    units = any(isinstance(s, For) and s.kind == UNIT for phase in kernel.phases for s in walk(phase.body))
    return scratch_bytes > group_bytes and not has_copies(kernel) and not units


def group_threads(lanes: list[UOp]) -> int:
    """How many threads a group needs for its widest vector."""
    most = max((r.arg.size for r in lanes), default=1)
    return -(-most // WARP) * WARP
