"""Every decision of the optimizer and every rewriting of loops, on sizes that fit nothing (0, 1, primes) and on views.

`GRAPHS` has expressions for every kind of decision there is: a new kind without one fails here. Each is computed from
plain memory and from views (transposed, flipped, sliced, every other element), run as an optimized loop tree by the
kernel interpreter and checked against the graph's. Thresholds are lowered, so that small sizes go the way of large
ones.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_kernels import AMX, AVX512, HOPPER, NEON, Inputs, check

from glassgrad import Context, Tensor
from glassgrad.compiler import optimize as package
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import Choice
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

Make = Callable[..., Tensor]
Shapes = Callable[[int], tuple[tuple[int, ...], ...]]
SIZES = [0, 1, 7, 37]                       # each kind must be met at one of them
SMALL = Target("x86_64", 16, 16, frozenset({"sse2"}), l1_bytes=1 << 10, l2_bytes=4 << 10)

# kind of decision: a processor, an expression, the shapes of its operands by a size
GRAPHS: dict[str, list[tuple[Target, Make, Shapes]]] = {
    "contract": [(AVX512, lambda a, b: (a * 2 @ b).relu(), lambda n: ((n, 31), (31, n + 2))),
                 (NEON, lambda a, b: a @ b, lambda n: ((13, n), (n, 11))),
                 (AVX512, lambda a, b: a @ b + 1, lambda n: ((2, n, 17), (2, 17, 19))),
                 (AVX512, lambda a, b: a.transpose(0, 1) @ b - 1, lambda n: ((31, n), (31, n + 50)))],
    "direct": [(AVX512, lambda x, w: x.conv2d(w, padding=1) + 1, lambda n: ((2, 17, 3, n + 1), (19, 17, 3, 2))),
               (NEON, lambda x, w: x.conv2d(w, stride=2), lambda n: ((n, 3, 5, 7), (5, 3, 3, 3)))],
    "window": [(AVX512, lambda x, w: x.conv2d(w, groups=3, padding=1), lambda n: ((2, 3, 7, n + 1), (3, 1, 3, 3)))],
    "taps": [(AVX512, lambda x, w: x.conv2d(w, groups=3, padding=1).square().sum().gradient(w)[0],
              lambda n: ((n, 3, 7, 17), (3, 1, 3, 3))),
             (AVX512, lambda x, w: x.conv2d(w, padding=1).square().sum().gradient(w)[0],
              lambda n: ((n, 2, 11, 13), (6, 2, 3, 3)))],
    "stream": [(SMALL, lambda x, y: x * y + 1, lambda n: ((n, 41), (41,)))],
    "staged": [(GPU, lambda a, b: a @ b, lambda n: ((n + 16, 37), (37, n + 19)))],
    "boxes": [(HOPPER, lambda a, b: a.cast("bfloat16") @ b.cast("bfloat16"), lambda n: ((n + 60, 67), (67, n + 45)))],
    "unit": [(AMX, lambda a, b: a.cast("bfloat16") @ b.cast("bfloat16"), lambda n: ((n, 67), (67, n + 5)))],
    "rows": [(AVX512, lambda x, y: (x * y).sum(1), lambda n: ((n, 37), (37,)))],
    "slices": [(SMALL, lambda x, y: y @ x, lambda n: ((n + 64, 96), (1, n + 64))),
               (SMALL, lambda x: x.sum(0) * 2, lambda n: ((n + 16, n + 97),)),
               (NEON, lambda x, y: (x * y).max(1), lambda n: ((2, n + 200, 33), (n + 200, 1))),
               (SMALL, lambda x: x.softmax(1) + x.log_softmax(1), lambda n: ((2, n + 16, 33),)),
               (NEON, lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), lambda n: ((3, n + 90, 35),)),
               (SMALL, lambda x: x.argmax(0), lambda n: ((n + 16, 45),))],
    "turn": [(AVX512, lambda x: x.permute(2, 1, 0) * 2, lambda n: ((n, 3, 41),))],
    "lanes": [(AVX512, lambda x, y: x * y + 1, lambda n: ((3, n), (n,))), (NEON, lambda x: x.exp(), lambda n: ((n,),))],
    "fold": [(AVX512, lambda x: x.softmax(1), lambda n: ((3, n + 1),)), (NEON, lambda x: x.sum(), lambda n: ((n, 5),))],
    "hold": [(replace(GPU, few_tasks=1), lambda x: x.softmax(1), lambda n: ((3, n + 64),))],
    "strips": [(replace(GPU, few_tasks=1), lambda x: x.avg_pool2d((3, 3), 1), lambda n: ((n + 30, 2, 6, 7),)),
               (replace(GPU, few_tasks=1), lambda x, w: x.conv2d(w, groups=3, padding=1),
                lambda n: ((n + 20, 3, 7, 5), (3, 1, 3, 3)))],
    "parts": [(replace(GPU, few_tasks=1), lambda x: x.softmax(1), lambda n: ((9 * n, 29),))],
    "group": [(AVX512, lambda x: x.max(), lambda n: ((n + 1, 67),)), (NEON, lambda x: x.sum(0), lambda n: ((31, n),))],
    "tasks": [(AVX512, lambda x: x + 1, lambda n: ((n, 13),)), (NEON, lambda x: x.sum(1), lambda n: ((n, 13),))],
}
LIMITS: dict[str, dict[str, float]] = {     # what makes small sizes worth it, for every kind, or for one of them
    "plain.lanes_and_tasks": {"ADDS": 16}, "plain.plain_loops": {"ADDS": 16}, "plain.gpu_loops": {"ADDS": 16},
}
ROW_LIMITS = {"LEAST_ROW": 16, "SLICE": 32, "LEAST_SLICE": 16, "LEAST_COLUMN": 16}
OWN_LIMITS: dict[str, dict[str, dict[str, Any]]] = {
    "contract": {"targets.cpu_costs": {"NEAR_K": 32, "PACK_WORK": 64}, "product.packing": {"READ_AT_ONCE": 64}},
    "direct": {"targets.cpu_costs": {"LEAST_USE": 0.0, "PACK_IMAGE_CYCLES": 0.0}, "product.recognize": {"REREAD": 0},
               "product.conv_tile_plan": {"REREAD": 0}},
    "stream": {"recipes": {"STREAM_FROM": 1}},
    "taps": {"targets.cpu_costs": {"LEAST_OUTER": 1}},
    "window": {"targets.cpu_costs": {"LEAST_OUTER": 1}},
    "unit": {"targets.matrix_units": {"LIMITS": TilingThresholds(task_work=1000, most_tasks=16, long_k=1, k_block=1)}},
}
FAMILY_LIMITS = {
    "contract": TilingThresholds(task_work=500, most_tasks=32, long_k=16),
    "direct": TilingThresholds(task_work=1000, most_tasks=16, long_k=40, k_block=16),
    "taps": TilingThresholds(task_work=500, most_tasks=64, long_k=10),
    "window": TilingThresholds(task_work=500, most_tasks=64, long_k=40, k_block=20),
}


@pytest.fixture
def lowered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in {**LIMITS, **OWN_LIMITS.get(kind, {})}.items():
        for name, value in values.items():
            monkeypatch.setattr(importlib.import_module(f"{package.__name__}.{module}"), name, value)
    for name, value in ROW_LIMITS.items():
        monkeypatch.setattr(cpu, name, value)
    if kind in FAMILY_LIMITS:
        monkeypatch.setitem(cpu.LIMITS, kind, FAMILY_LIMITS[kind])


def viewed(values: Inputs, shape: tuple[int, ...], how: str, rng: np.random.Generator) -> UOp:
    """A leaf's view of this shape."""
    small = lambda *sizes: values.leaf(rng.uniform(-1, 1, sizes).astype("float32"))
    if how == "transposed":
        return small(*shape[::-1]).permute(range(len(shape))[::-1])
    if how == "flipped":
        return small(*shape).flip(range(len(shape)))
    if how == "sliced":
        return small(*[n + 3 for n in shape]).shrink([(1, n + 1) for n in shape])
    if how == "every other":
        pairs = small(*[size for n in shape for size in (n, 2)])
        return pairs.shrink([b for n in shape for b in ((0, n), (1, 2))]).reshape(shape)
    return small(*shape)


@pytest.mark.parametrize("how", ["plain", "transposed", "flipped", "sliced", "every other"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_every_decision_keeps_the_answer(kind: str, how: str, lowered: None, rng: np.random.Generator) -> None:
    log: list[str] = []

    def compiler(target: Target) -> Callable[[UOp], Kernel]:
        target = replace(target, task_steps=32, cut_steps=128)

        def compiled(ast: UOp) -> Kernel:
            kernel = optimize(lower(ast), target)
            log.extend(move.split("(")[0] for move in kernel.moves)
            return kernel
        return compiled

    for target, make, shapes in GRAPHS[kind]:
        for n in SIZES:
            values = Inputs()
            operands = [Tensor(viewed(values, shape, how, rng)) for shape in shapes(n)]
            [sink] = written_out([make(*operands).uop])
            if n:                       # as the engine does before it schedules
                [sink] = join_sums(rewrite([sink], ALGEBRA))
            check([sink], values, compiler(target), f"{kind} of {shapes(n)}, {how}")
    if how == "plain":
        assert kind in log, f"nothing here decides {kind}: {sorted(set(log))}"


ELSEWHERE = {"held": "test_chained_matmuls.py::test_trees_are_right",    # decided on nests, which these graphs have not
             "scan": "test_scans.py::test_a_group_goes_along_a_row",    # and on running totals, by groups
             "chunks": "test_scans.py::test_few_rows_are_cut_into_chunks",
             "warps": "test_gpu_warp_tile.py::test_trees_compute_the_same"}


def test_every_kind_of_decision_is_here() -> None:
    assert {*GRAPHS, *ELSEWHERE} == set(Choice.kinds), "each kind of decision needs an expression in GRAPHS"


# functions of optimize/ that say `before -> after`, and the test that runs both on ragged sizes
REWRITES = {
    "bulk_copy_tasks.in_boxes": "test_chained_matmul_pipeline.py::test_trees_are_right",
    "short_gpu_loops.along_results": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "short_gpu_loops.in_strips": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "short_gpu_loops._unrolled": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "short_gpu_loops.along_sum": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "short_gpu_loops.in_parts": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "short_gpu_loops.split_sums": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "joined_channel_groups.joined_groups":
        "test_conv_window_copies.py::test_groups_of_few_channels_are_one_product_with_zeros",
    "scans.read_ahead_of_totals": "test_scans.py::test_few_rows_are_cut_into_chunks",
    "read_ahead.read_first": "test_gpu_accesses.py::test_what_several_stores_need_is_read_first_and_the_same",
    "read_ahead.read_ahead": "test_gpu_accesses.py::test_what_is_read_ahead_is_the_same",
    "read_ahead.read_next": "test_gpu_matrix_unit.py::test_trees_compute_the_same",
    "rows_in_registers.hold": "test_rows_in_registers.py::test_held_rows_compute_the_same",
    "cpu_scatters.rows_among_tasks": "test_cpu_scatters.py::test_elements_by_an_index_each_are_read_row_by_row",
    "gpu_scatters.rows_apart": "test_gpu_scatters.py::test_rows_are_added_to_in_the_order_of_their_indices",
    "contraction_tilings.skip_unused_packing":
        "test_changing_sizes.py::test_few_rows_and_many_are_cut_in_two_ways",
    "flat_positions.flat_positions":
        "test_short_lengths.py::test_positions_of_all_rows_are_one_axis_where_vectors_are_masked",
    "run_time_blocks.in_blocks": "test_symbolic.py::test_products_are_packed_in_blocks",
    "run_time_blocks.by_terms": "test_short_lengths.py::test_a_product_of_few_terms_has_no_blocks_of_its_sum",
    "contraction_tilings.blocks_together": "test_short_lengths.py::test_a_task_goes_along_one_image_for_some_blocks",
    "contraction_tilings.limit_tasks": "test_changing_sizes.py::test_the_loop_trees_touch_only_their_memory",
    "loop_moves.merge": "test_optimize.py::test_merged_loops_compute_the_same",
    "lanes_and_tasks.unrolled": "test_optimize.py::test_a_short_sum_is_written_out",
    "lanes_and_tasks.tasks_of_rows": "test_optimize.py::test_a_task_has_more_rows_of_a_shorter_length",
    "loop_moves.wide": "test_optimize.py::test_a_widened_loop_computes_the_same",
    "cut_at_gates.cut_at_gates": "test_optimize.py::test_a_loop_cut_at_gates_computes_the_same_without_comparing",
    "cut_at_gates.branches_at_gates": "test_optimize.py::test_rows_with_a_condition_of_their_own_are_two_loops",
    "cut_at_gates.branches_at_parts": "test_optimize.py::test_rows_of_several_parts_have_a_branch_for_each",
    "loop_moves.without_known_gates": "test_optimize.py::test_what_a_loop_ends_at_is_no_condition",
    "reduction_moves.wide_reduce": "test_optimize.py::test_a_widened_reduction_computes_the_same",
    "reduction_moves.chunks": "test_optimize.py::test_a_sum_of_chunks_is_the_same_sum",
    "reduction_moves.sums_together": "test_optimize.py::test_sums_over_the_same_loops_become_one_nest",
    "lanes_and_tasks.one_loop": "test_short_gpu_loops.py::test_threads_along_short_loops_compute_the_same",
    "loop_moves.spread": "test_optimize.py::test_spread_runs_the_rest_once",
    "loop_moves.loops_as_tasks": "test_products.py::test_many_small_products",
    "loop_moves.serial": "test_online_softmax.py::test_trees_of_every_target_are_right_and_free_of_races",
    "tasks_of_several_nests.nests": "test_online_softmax.py::test_any_sizes",
    "chained_matmuls.in_registers": "test_chained_matmuls.py::test_trees_are_right",
    "loop_moves.tasks": "test_optimize.py::test_a_loop_spread_over_tasks_computes_the_same",
    "reduction_moves.group": "test_optimize.py::test_a_sum_by_groups_of_rows_is_the_same_sum",
    "padding_bounds.loop_between": "test_optimize_padding.py::test_bounds_leave_out_the_zeros_and_nothing_else",
    "loop_moves.branch": "test_cold_path.py::test_the_same_values_with_and_without_the_branch",
    "redundant_phases.without_redundant_fills":
        "test_conv_window_copies.py::test_the_gradients_of_a_strided_convolution",
    "split_by_remainder.in_one_nest": "test_short_gpu_loops.py::test_remainders_of_a_pooled_gradient_are_side_by_side",
    "split_by_remainder.split_where_divided":
        "test_joined_remainders.py::test_loops_of_groups_give_what_the_graph_gives",
    "split_by_remainder.by_remainder": "test_optimize_conv.py::test_a_strided_gradient_multiplies_no_zeros",
}


def test_every_rewriting_of_loops_has_its_test() -> None:
    shown, modules = set(), {}
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module = modules[found.name.rpartition(".")[2]] = importlib.import_module(found.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and "  ->  " in (function.__doc__ or ""):
                shown.add(f"{found.name.rpartition('.')[2]}.{name}")
    assert shown <= set(REWRITES), "a move needs a test on ragged sizes, named in REWRITES"
    for name, test in REWRITES.items():
        module, function = name.split(".")
        assert hasattr(modules[module], function), f"{name} is gone"
        file, where = test.split("::")
        [path] = Path(__file__).parents[1].rglob(file)
        assert f"def {where}(" in path.read_text(), f"{test} is gone"


# -- on this machine: the number of threads and who comes first decide nothing ---------------------------------------
LARGE: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "a product of primes": (lambda a, b: (a @ b).relu(), ((257, 521), (521, 263))),
    "few rows by a large matrix": (lambda a, b: a @ b + 1, ((37, 1031), (1031, 1033))),
    "more rows than a task packs for": (lambda a, b: a @ b, ((640, 520), (520, 640))),
    "a turned left factor": (lambda a, b: a.T @ b, ((521, 257), (521, 263))),
    "a long sum of products": (lambda a, b: a @ b, ((7, 20011), (20011, 5))),
    "one row by a matrix": (lambda a, b: a @ b, ((1, 1031), (1031, 1033))),
    "a batch": (lambda a, b: a @ b.transpose(1, 2), ((13, 67, 61), (13, 71, 61))),
    "a window": (lambda x, w: x.conv2d(w, padding=1), ((7, 16, 29, 31), (19, 16, 3, 3))),
    "its gradient by the image": (lambda x, w: x.conv2d(w, stride=2).square().sum().gradient(x)[0],
                                  ((7, 16, 29, 31), (19, 16, 3, 3))),
    "its gradient by the weight": (lambda x, w: x.conv2d(w).square().sum().gradient(w)[0],
                                   ((17, 3, 29, 31), (11, 3, 3, 3))),
    "a sum of everything": (lambda x: x.sum(), ((1009, 1013),)),
    "sums of columns": (lambda x: (x.flip(0) * 3).sum(0), ((4099, 257),)),
    "sums of rows": (lambda x: x.T.sum(1), ((1021, 263),)),
    "a softmax": (lambda x: x.softmax(-1), ((67, 10007),)),
    "a norm and its gradient": (lambda x: x.layernorm().square().sum().gradient(x)[0], ((131, 769),)),
    "a running sum": (lambda x: x.cumsum(0), ((100_003,),)),
    "rows added where an index says": (
        lambda x: Tensor.zeros(97, 64).scatter_reduce(0, (Tensor.arange(5003) * 31 % 97)[:, None].expand(5003, 64),
                                                      x, "sum"), ((5003, 64),)),
    "a copy across": (lambda x: x.permute(2, 1, 0).contiguous(), ((257, 3, 263),)),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_number_of_threads_changes_no_bit(name: str, seed: int) -> None:
    make, shapes = LARGE[name]
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape, dtype="float32") for shape in shapes]
    answers = {}
    for threads in (1, 2, 3):
        for again in range(2):
            with Context(THREADS=threads):
                answers[threads, again] = make(*[Tensor(array).realize() for array in arrays]).numpy().tobytes()
    assert len(set(answers.values())) == 1, f"{name} differs: " + str({k: hash(v) for k, v in answers.items()})
