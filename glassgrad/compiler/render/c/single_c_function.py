"""A kernel as one plain C function. In: a `Kernel`. Out: C source that any C compiler takes, with ordinary pointers.

    void name(float *data0, const float *data1, char *scratch)

For users' own devices: no vectors, no tasks, no table of arguments. All phases run one after another.
"""

from __future__ import annotations

from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.lower.cast_lowering import in_memory
from glassgrad.compiler.lower.loops import Kernel, shared_locals
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import NAMES, SPELLED
from glassgrad.compiler.render.launch_info import LaunchInfo, launch_info

__all__ = ["PLAIN", "plain_function", "plain_launch"]

PLAIN = Target("plain", 8, 16)      # a processor of which nothing is known: scalar registers


def plain_launch(kernel: Kernel) -> LaunchInfo:
    """What a launch must provide: memory shared by the phases, and scratch, each as one more pointer."""
    info = launch_info(kernel)
    scratch = (info.scratch_bytes,) if info.scratch_bytes else ()
    return LaunchInfo(info.phases, (*info.shared, *scratch), 0)


def plain_function(kernel: Kernel, phases: str, prefix: str = "", qualifier: str = "") -> str:
    """The phases ("plain c" for the target PLAIN: static functions), and the kernel itself, which calls them. `prefix`
    comes before everything, `qualifier` before the kernel (`extern "C"`, for example)."""
    info = launch_info(kernel)
    slots = sorted(kernel.params, key=lambda p: p.arg.slot)
    parameters = [f"{'' if p.arg.slot in kernel.written else 'const '}{_type(p.dtype)} *data{p.arg.slot}"
                  for p in slots]
    pointers = [f"(void *)data{p.arg.slot}" for p in slots]
    for i, _ in enumerate(shared_locals(kernel)):
        parameters.append(f"void *shared{i}")
        pointers.append(f"shared{i}")
    scratch = "0"
    if info.scratch_bytes:
        parameters.append("void *scratch")
        scratch = "scratch"
    body = [f"  void *args[] = {{{', '.join(pointers)}}};"]
    for name, tasks in info.phases:
        call = f"{name}(args, task, {scratch});"
        body.append(f"  for (long long task = 0; task < {tasks}; task++) {call}" if tasks != 1 else
                    f"  {name}(args, 0, {scratch});")
    head = f"{qualifier + ' ' if qualifier else ''}void {kernel.name}({', '.join(parameters)}) {{"
    return "\n".join([*([prefix] if prefix else []), phases, head, *body, "}", ""])


def _type(dtype: DType) -> str:
    """What a pointer to elements points to: reduced-precision floats are passed as bits, booleans as bytes."""
    return SPELLED[NAMES[in_memory(dtype)]]

