"""Run every compiler pass, from graph to text, in order. In: results of a graph, or one kernel's graph. Out: a
`Schedule`, or source text.

`PASSES` is the whole list: each function below decorated with `@compiler_pass` is one entry, and nothing else runs.

    graph      sinks -> sinks               algebra on the whole graph
    schedule   sinks -> `Schedule`          which values get memory; kernels; devices
    kernel     one kernel's graph -> loop tree (`Kernel`)
    text       loop tree -> source in one language

Each pass states the ops, settings or devices that it is for (`When`) and runs only there: an expression of products
and sums needs about half of the passes.

DEBUG=4 prints the result of each pass that has a label. CHECK=1 interprets the loop tree after each pass over a kernel
and names the first pass that changes its results. docs/pipeline.md shows the list. A pass over kernels imports its code
when it runs: a process whose kernels are all cached on disk never loads it. Imports no device, no LLVM and no NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.gradient import without_detach, written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums, reduce_fewer_axes
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.schedule.attention_backward import with_log_sums
from glassgrad.compiler.schedule.fusion import fuse
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.compiler.schedule.kernel_groups import KernelGroup, group_results
from glassgrad.compiler.schedule.kernels import Schedule, cut_into_kernels, describe_graph, place_on_devices
from glassgrad.compiler.schedule.online_softmax import StoresScores
from glassgrad.compiler.schedule.recurrent_steps import schedule_steps

if TYPE_CHECKING:
    from glassgrad.compiler.lower.loops import Kernel, Statement
    from glassgrad.compiler.optimize.decisions import Decisions
    from glassgrad.compiler.optimize.targets.target import Target
    from glassgrad.compiler.render.launch_info import LaunchInfo
    from glassgrad.compiler.render.unroll_and_jam import Jammed


GRAPH, SCHEDULE, KERNEL, TEXT = "graph", "schedule", "kernel", "text"


# -- what passes work on -------------------------------------------------------------------------------------
@dataclass
class GraphWork:
    """A graph on its way to a schedule; each pass replaces a field or fills the next one."""
    sinks: list[UOp]                                  # the results, as a graph over PARAM leaves
    inputs: list[UOp]                                 # these leaves, ordered by slot
    device: str                                       # default device, for values with no inputs
    stores_scores: StoresScores | None = None         # whether, and why, the device stores the scores of a softmax
    limits: FusionLimits = CPU_LIMITS                 # costs of fusion on that device
    stored: dict[UOp, str] = field(default_factory=dict)         # nodes that get memory, with the reason
    stored_by: dict[UOp, UOp] = field(default_factory=dict)      # node -> the node whose kernel stores it too
    groups: list[KernelGroup] = field(default_factory=list)      # results by kernel, in execution order
    schedule: Schedule = field(default_factory=Schedule)
    _ops: tuple[list[UOp] | None, frozenset[o.Op]] = None, frozenset()      # the sinks, and the ops under them

    @property
    def ops(self) -> frozenset[o.Op]:
        """The ops in the graph; cached until a pass replaces the sinks."""
        if self._ops[0] is not self.sinks:
            self._ops = self.sinks, frozenset([n.op for n in toposort(self.sinks)])
        return self._ops[1]


@dataclass
class KernelWork:
    """A kernel on its way to text; each pass replaces a field or fills the next one."""
    ast: UOp | None                                   # SINK of STOREs over PARAMs
    target: Target
    language: str = ""                                # "llvm", "c", "plain c", "wasm", "wat", or a GPU dialect's name
    plain: bool = False                               # leave the loops unoptimized, as under NOOPT=1
    moves: Sequence[str] | None = None                # moves to apply instead of the recipe's choice
    decisions: Decisions | None = None                # the moves that were applied, and the alternatives
    loops: Kernel | None = None
    phases: list[Jammed] = field(default_factory=list)           # each phase's loops, with TILE loops unrolled
    source: str = ""
    binary: bytes = b""                               # the output of a language that is not text
    rows: dict[Statement, int] | None = None          # if given: statement -> its row in the printed loop tree

    @property
    def kernel(self) -> Kernel:
        """The loop tree, which the pass `lower` makes."""
        if self.loops is None:
            raise Bug("no pass has made a loop tree; is `lower` missing from the list of passes?")
        return self.loops


# -- the list ------------------------------------------------------------------------------------------------
class Printout(NamedTuple):
    """What DEBUG=4 prints after a pass: `--- label: detail` and the text."""
    label: str
    text: Callable[[Any], str]
    detail: Callable[[Any], str] | None = None


class When(NamedTuple):
    """When a pass runs: the condition in words, as a test of the work, and ops of which the graph must contain at least
    one (empty: no such requirement)."""
    words: str
    test: Callable[[Any], bool]
    ops: frozenset[o.Op] = frozenset()

    def where(self, words: str, *ops: o.Op) -> When:
        """The same condition, but only for graphs that contain at least one of these ops."""
        return When(f"where {words}" + f", {self.words}" * (self.words != "always"), self.test, frozenset(ops))

    def holds(self, work: Any) -> bool:
        return (not self.ops or not self.ops.isdisjoint(work.ops)) and self.test(work)


@dataclass(frozen=True)
class Pass:
    """One step of the compiler."""
    name: str
    stage: str
    does: str                            # one sentence: the docstring of its function
    file: str                            # where the work is done, below glassgrad/compiler
    run: Callable[[Any], None]
    when: When
    views: tuple[Printout, ...] = ()


PASSES: list[Pass] = []
ALWAYS = When("always", lambda work: True)
OPTIMIZING = When("not under NOOPT=1", lambda work: not settings.NOOPT)
OPTIMIZING_LOOPS = When("not under NOOPT=1, nor for a device that takes plain loops",
                        lambda work: not (settings.NOOPT or work.plain))
PLAIN_LOOPS = When("under NOOPT=1, and for a device that takes plain loops",
                   lambda work: bool(settings.NOOPT or work.plain))
FEWER_PRODUCTS = When("for a GPU, not under WINOGRAD=0 nor NOOPT=1",
                      lambda work: bool(work.limits.products_per_byte and settings.WINOGRAD and not settings.NOOPT))
STRIDED = When("not under NOOPT=1", lambda work: not settings.NOOPT and any(
    n.op is o.UNWINDOW and n.arg.stride > 1 for n in toposort(work.sinks)))
ON_A_GPU = When("for a GPU, not under NOOPT=1", lambda work: bool(work.limits.held_row and not settings.NOOPT))
ENDING_LOOPS = When("for a driver that ends long loops", lambda work: work.target.iteration_limit < 1 << 62)
SANITIZING = When("under SANITIZE=1", lambda work: bool(settings.SANITIZE))


def compiler_pass(stage: str, file: str, when: When = ALWAYS, *views: Printout) -> Callable[[Any], Any]:
    """Decorator that appends a function to `PASSES`, under its own name and docstring."""
    def add(run: Callable[[Any], None]) -> Callable[[Any], None]:
        PASSES.append(Pass(run.__name__, stage, " ".join((run.__doc__ or "").split()), file, run, when, views))
        return run
    return add


def _loops(work: KernelWork) -> str:
    from glassgrad.compiler.lower.printing import show
    return show(work.kernel)


def _operations(work: KernelWork) -> str:
    from glassgrad.compiler.lower.printing import linear
    return linear(work.kernel)


INITIAL = Printout("initial", lambda work: describe_graph(work.sinks))
FOLDED = Printout("folded", lambda work: describe_graph(work.sinks))
LOWERED = Printout("after loop analysis", _loops)
OPTIMIZED = (Printout("optimized", _loops, lambda work: ", ".join(work.kernel.moves) or "as it was"),
             Printout("linearized", _operations))


# -- graph: the results stay the same values -----------------------------------------------------------------
@compiler_pass(GRAPH, "graph/gradient.py")
def write_gradients(work: GraphWork) -> None:
    """Expand each FORMULA, and each GRADIENT by the gradient table; then remove DETACH nodes, now without effect."""
    work.sinks = without_detach(written_out(work.sinks, stored=work.sinks))


@compiler_pass(GRAPH, "graph/rules/reductions.py", OPTIMIZING.where("something is reduced", *o.REDUCE))
def invariant_axes(work: GraphWork) -> None:
    """Drop reductions along axes on which the source is constant: the sum of n equal values is n times the value."""
    work.sinks = reduce_fewer_axes(work.sinks)


@compiler_pass(GRAPH, "graph/rules/algebra.py", OPTIMIZING, FOLDED)
def fold(work: GraphWork) -> None:
    """Rewrite by the rules of algebra until none applies: constants, identities, views of views."""
    work.sinks = rewrite(work.sinks, ALGEBRA)


@compiler_pass(GRAPH, "graph/rules/reductions.py", OPTIMIZING.where("a window has a gradient", o.UNWINDOW), FOLDED)
def conv_input_gradient(work: GraphWork) -> None:
    """Merge nested sums of products into one: the chain rule gives them for a convolution's input gradient."""
    work.sinks = join_sums(work.sinks)


# -- schedule: from one graph to kernels ---------------------------------------------------------------------
@compiler_pass(SCHEDULE, "pipeline.py")
def separate_results(work: GraphWork) -> None:
    """Copy a result that is an input, a view or a repeat of another result, so that it has memory of its own."""
    sinks, views = work.sinks, (o.Kind.LEAF, o.Kind.MOVEMENT)
    shares_memory = [sink.op.kind in views or sink in sinks[:i] for i, sink in enumerate(sinks)]
    work.sinks = [UOp(o.CONTIGUOUS, s.dtype, (s,)) if shares else s for s, shares in zip(sinks, shares_memory)]


@compiler_pass(SCHEDULE, "schedule/joined_remainders.py",
               STRIDED.where("a window with a stride has a gradient", o.UNWINDOW))
def joined_remainders(work: GraphWork) -> None:
    """Make a strided transposed convolution one contraction, where its zeros cost less than several loop nests."""
    from glassgrad.compiler.schedule.joined_remainders import with_joined_remainders
    work.sinks = with_joined_remainders(work.sinks, work.limits.products_of)


@compiler_pass(SCHEDULE, "schedule/winograd.py", FEWER_PRODUCTS.where("there are windows", o.WINDOW))
def fewer_products(work: GraphWork) -> None:
    """Compute large float32 convolutions with fewer products (Winograd), on devices that store tiles fast enough."""
    from glassgrad.compiler.schedule.winograd import with_fewer_products
    work.sinks = with_fewer_products(work.sinks, work.limits.products_per_byte)


@compiler_pass(SCHEDULE, "schedule/flat_scatters.py", OPTIMIZING.where("values are written by index", o.SCATTER))
def flat_scatters(work: GraphWork) -> None:
    """Split a large scatter into parts, or on a GPU sort its indices into bins, so that many threads can share it."""
    from glassgrad.compiler.schedule.flat_scatters import with_flat_scatters_cut
    work.sinks = with_flat_scatters_cut(work.sinks, work.limits)


@compiler_pass(SCHEDULE, "schedule/long_softmax.py", ON_A_GPU.where("there is an exponential", o.EXP2))
def long_softmax(work: GraphWork) -> None:
    """Split few, long rows into parts, read once, to compute their maximum and sum of exponentials (softmax)."""
    from glassgrad.compiler.schedule.long_softmax import with_long_rows_in_parts
    work.sinks = with_long_rows_in_parts(work.sinks, work.limits, work.device, work.stores_scores)


@compiler_pass(SCHEDULE, "schedule/attention_backward.py", ALWAYS.where("there is an exponential", o.EXP2))
def softmax_log_sums(work: GraphWork) -> None:
    """Let a softmax's gradient read one value per row, not two: exp2(x) / sum becomes exp2(x - log2(sum))."""
    work.sinks = with_log_sums(work.sinks, work.device, work.stores_scores, work.limits)


@compiler_pass(SCHEDULE, "schedule/fusion.py")
def fusion(work: GraphWork) -> None:
    """Decide which values are stored in memory, each with a reason; all others are computed where they are used."""
    work.stored, work.stored_by = fuse(list(dict.fromkeys(work.sinks)), work.device, work.stores_scores, work.limits)


@compiler_pass(SCHEDULE, "schedule/kernel_groups.py")
def kernel_groups(work: GraphWork) -> None:
    """Decide which stored values share a kernel, and order the kernels so that few values are alive at a time."""
    work.groups = group_results(work.stored, set(work.sinks), work.stored_by, work.limits)


@compiler_pass(SCHEDULE, "schedule/kernels.py")
def kernels(work: GraphWork) -> None:
    """Build each kernel's own graph over numbered PARAMs, so that equal kernels are equal graphs."""
    work.schedule = cut_into_kernels(work.sinks, work.inputs, work.stored, work.groups, work.limits)


@compiler_pass(SCHEDULE, "schedule/kernels.py")
def device_placement(work: GraphWork) -> None:
    """Assign a device to every kernel and value, and add the copies between devices."""
    place_on_devices(work.schedule, work.device)


@compiler_pass(SCHEDULE, "schedule/recurrent_steps.py", ALWAYS.where("there is a recurrence", o.RECURRENCE))
def recurrent_steps(work: GraphWork) -> None:
    """Schedule one step of each recurrence; every step runs the same kernels."""
    schedule_steps(work.schedule, work.inputs, lambda sinks, params, device: make_schedule(
        sinks, params, device, work.stores_scores, work.limits))


# -- kernel: from a kernel's graph to a loop tree ------------------------------------------------------------
@compiler_pass(KERNEL, "lower/lower.py", ALWAYS, LOWERED)
def lower(work: KernelWork) -> None:
    """Turn views into index arithmetic and reductions into loops with registers."""
    from glassgrad.compiler.lower.lower import lower
    assert work.ast is not None
    work.loops = lower(work.ast, work.target.row_bytes, work.target.score_blocks, lambda sinks, params: make_schedule(
        sinks, params, "", limits=work.target.fusion))


@compiler_pass(KERNEL, "optimize/recipes.py", OPTIMIZING_LOOPS, *OPTIMIZED)
def optimize(work: KernelWork) -> None:
    """Apply moves to the loop tree (lanes, tiles, packed panels, tasks), chosen by the recipe or given by a search."""
    from glassgrad.compiler.optimize.decisions import Decisions
    from glassgrad.compiler.optimize.recipes import decide
    work.decisions = Decisions(work.moves)
    work.loops = decide(work.kernel, work.target, work.decisions)


@compiler_pass(KERNEL, "optimize/recipes.py", PLAIN_LOOPS, *OPTIMIZED)
def plain_loops(work: KernelWork) -> None:
    """Keep the loops unoptimized; where tasks have a cost, make each phase one task."""
    from glassgrad.compiler.optimize.recipes import unoptimized
    if not (work.target.free_tasks or work.target.groups):
        work.loops = unoptimized(work.kernel)


@compiler_pass(KERNEL, "lower/access_bounds.py", SANITIZING)
def access_bounds(work: KernelWork) -> None:
    """Prove that every load and store stays inside its buffer; changes nothing."""
    from glassgrad.compiler.lower.access_bounds import prove_accesses
    prove_accesses(work.kernel)


# -- text: from a loop tree to source ------------------------------------------------------------------------
@compiler_pass(TEXT, "render/unroll_and_jam.py")
def unroll_and_jam(work: KernelWork) -> None:
    """Unroll and jam TILE loops, and express operations that the target lacks by those it has."""
    from glassgrad.compiler.lower.missing_instructions import Instructions
    from glassgrad.compiler.render.unroll_and_jam import jam
    target = work.target
    has = Instructions(target.small_floats(work.language), rounding=target.has_round or target.groups)
    origins: dict[Statement, Statement] | None = None if work.rows is None else {}
    work.phases = [jam(phase, has, origins) for phase in work.kernel.phases]
    if work.rows is not None and origins is not None:
        from glassgrad.compiler.lower.printing import rows_of
        rows = rows_of(work.kernel)
        work.rows.update((made, rows[statement]) for made, statement in origins.items() if statement in rows)


@compiler_pass(TEXT, "render/gpu/loop_iteration_limit.py", ENDING_LOOPS)
def loop_iteration_limit(work: KernelWork) -> None:
    """Unroll long loops, so that no thread runs more iterations than its driver allows."""
    from glassgrad.compiler.render.gpu.loop_iteration_limit import limit_iterations
    work.phases = limit_iterations(work.phases, work.kernel, work.target)


@compiler_pass(TEXT, "render")
def render(work: KernelWork) -> None:
    """Write each phase as a function: LLVM IR, C, WebAssembly, a dialect of C for GPUs, or WGSL."""
    if work.language == "llvm":
        from glassgrad.compiler.render.llvm.llvm_ir import render_llvm
        work.source = render_llvm(work.kernel, work.target, work.phases, work.rows or {})
    elif work.language in ("c", "plain c"):
        from glassgrad.compiler.render.c.c_source import render_c
        work.source = render_c(work.kernel, work.target, work.phases, "static " if work.language == "plain c" else "")
    elif work.language in ("wasm", "wat"):
        from glassgrad.compiler.render.wasm.wasm_module import render_wasm
        module = render_wasm(work.kernel, work.phases)
        if work.language == "wasm":
            work.binary = module.binary()
        else:
            work.source = module.text()
    elif work.language == "wgsl":
        from glassgrad.compiler.render.wgsl.wgsl_source import render_wgsl
        work.source = render_wgsl(work.kernel, work.target, work.phases)
    else:
        from glassgrad.compiler.render.gpu.dialects import DIALECTS
        from glassgrad.compiler.render.gpu.gpu_source import render_gpu
        work.source = render_gpu(work.kernel, work.target, DIALECTS[work.language], work.phases)


# -- running the list ----------------------------------------------------------------------------------------
_watching: ContextVar[Callable[[Pass, Any], None] | None] = ContextVar("watching", default=None)


@contextmanager
def watched(after: Callable[[Pass, Any], None]) -> Iterator[None]:
    """Within this context, call `after(pass, work)` after each pass that runs."""
    token = _watching.set(after)
    try:
        yield
    finally:
        _watching.reset(token)


def run_passes(work: GraphWork | KernelWork, *stages: str, say: bool = True) -> None:
    """Run the passes of these stages, in the order of the list. With `say`, DEBUG=4 prints their results; consecutive
    passes with the same printouts print once, after the last of them."""
    say, after = say and settings.DEBUG >= 4, _watching.get()
    views: tuple[Printout, ...] = ()
    for each in PASSES:
        if each.stage in stages and each.when.holds(work):
            if each.views != views:
                _print(views, work)
            each.run(work)
            if after is not None:
                after(each, work)
            views = each.views if say else ()
    _print(views, work)


def _print(views: Sequence[Printout], work: GraphWork | KernelWork) -> None:
    for view in views:
        detail = "" if view.detail is None else ": " + view.detail(work)
        print(f"--- {view.label}{detail}\n{view.text(work)}")


def make_schedule(sinks: Sequence[UOp], inputs: Sequence[UOp], device: str,
                  stores_scores: StoresScores | None = None, limits: FusionLimits = CPU_LIMITS) -> Schedule:
    """Schedule the kernels that compute these results; `inputs` are the PARAM leaves, ordered by slot."""
    work = GraphWork(list(sinks), list(inputs), device, stores_scores, limits)
    if settings.DEBUG >= 4:
        _print((INITIAL,), work)
    run_passes(work, GRAPH, SCHEDULE)
    return work.schedule


def make_source(kernel: Kernel, target: Target, language: str) -> str:
    """Render a loop tree as source text.

    >>> from glassgrad import Tensor
    >>> from glassgrad.compiler.optimize.targets.target import Target
    >>> target = Target("x86_64", 16, 16)
    >>> [item] = (Tensor([1.0, 2.0]) + Tensor([3.0, 4.0])).schedule()
    >>> work = KernelWork(item.ast, target, plain=True)
    >>> run_passes(work, KERNEL)
    >>> print(make_source(work.kernel, target, "c").strip().split(chr(10) * 2)[-1])
    void map_2_0(void **args, i64 task, void *scratch) {
      const f32 *data1 = args[1];
      const f32 *data2 = args[2];
      f32 *data0 = args[0];
      for (i64 i0 = 0; i0 < 2; i0++) {
        data0[i0] = data1[i0] + data2[i0];
      }
    }
    """
    work = KernelWork(None, target, language, loops=kernel)
    with one_place():
        run_passes(work, TEXT)
    return work.source


# -- one kernel's graph through the list ---------------------------------------------------------------------
class Built(NamedTuple):
    """A kernel as source text, and what its launch needs."""
    name: str
    source: str
    binary: bytes                        # instead of `source`, for a binary format
    info: LaunchInfo
    read_first: tuple[tuple[int, int], ...]      # (result, source): a result that may use the memory of a source
    kernel: Kernel
    decisions: Decisions | None          # the optimizer's decisions; None under NOOPT=1


def kernel_of(ast: UOp, target: Target, say: bool = False, moves: Sequence[str] | None = None,
              plain: bool = False) -> Kernel:
    """Return the optimized loop tree of a kernel's graph, by the recipe or by the given moves (unoptimized with `plain`
    or NOOPT=1). With `say`, DEBUG=4 prints the passes."""
    work = KernelWork(ast, target, plain=plain, moves=moves)
    run_passes(work, KERNEL, say=say)
    return work.kernel


def build(ast: UOp, target: Target, language: str, moves: Sequence[str] | None = None, say: bool = True,
          rows: bool = False) -> Built:
    """Run all passes for one kernel, by the recipe or by the given moves. With `rows`, each line of LLVM IR ends with
    the row of the printed loop tree that it comes from."""
    from glassgrad.compiler.render.launch_info import launch_info
    from glassgrad.compiler.render.read_before_written import pairs_read_first
    work = KernelWork(ast, target, language, moves=moves, rows={} if rows else None)
    with one_place():
        run_passes(work, KERNEL, TEXT, say=say)
        info = launch_info(work.kernel, serial_steps=2 * target.task_steps)
        pairs = pairs_read_first(work.phases) if len(work.kernel.written) > 1 else ()  # a single result: see its graph
        return Built(work.kernel.name, work.source, work.binary, info, pairs, work.kernel, work.decisions)


def lines_of(ast: UOp) -> str:
    """The lines of the user's program that a kernel computes, for messages; empty if they are not known."""
    stored = [store.src[1] for store in ast.src if store.op is o.STORE]
    return ", ".join(dict.fromkeys(str(node.line) for node in stored if node.line is not None))
