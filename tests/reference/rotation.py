"""Which tests a run takes: the core suite whole, and one part of slow families. `./dev test --all` takes everything.

In: the collected tests. Out: those of this run, and a line that says which. A family is a file whose many cases try the
same thing at other values: each run takes one part of its parametrized cases, the next commit the next part. All are
collected; those of other parts are deselected. A part depends on names alone: it is the same tests on every machine.

The families are the slowest files of the suite, and have the most cases that resemble each other.

    ./dev test                    the core suite, and the part of the current commit
    ./dev test --part 3           the core suite, and part 3
    ./dev test --all              everything; writes docs/test_results.md
    ./dev test tests/render       what is named, all of it
    ./dev test --sample 7:20 FILE at most 20 of its tests, evenly spread, the eighth such choice

Which process runs a test follows from its file and its place there, not from how fast the others were: what a test
finds in its process (compiled kernels, sizes that were seen) is then the same in every run, and a failure comes again.

Devices that are not the default run the op suite (`SUITE`) by `DEVICE=OPENCL ./dev test --all tests/tensor ...`. Each
usual run takes some tests of one of its files on one of `ON_DEVICES`, the next commit on the next device:
tests/runtime/test_device_suites.py.
"""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "test_results.md"
CHANGED = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/test_results.md")
PARTS = 6
FAMILIES = (
    "tests/tensor_api/test_every_method.py", "tests/tensor_api/test_api_order.py", "tests/optimize/test_decisions.py",
    "tests/optimize/test_rows_in_registers.py", "tests/optimize/test_transposed_copies.py",
    "tests/optimize/test_attention_gradient.py", "tests/optimize/test_optimize.py", "tests/optimize/test_recipes.py",
    "tests/optimize/test_products.py", "tests/optimize/test_product_tilings.py",
    "tests/optimize/test_matrix_unit.py", "tests/render/test_render_ops.py", "tests/render/test_render_fuzz.py",
    "tests/lower/test_online_softmax.py",
    "tests/engine/test_changing_sizes.py", "tests/engine/test_sizes_compiled.py", "tests/engine/test_short_lengths.py",
    "tests/engine/test_python_loops.py", "tests/engine/test_kept_values.py", "tests/compat/test_torch_names.py",
    "tests/optimize/test_chained_matmuls.py", "tests/optimize/test_ragged.py",
    "tests/optimize/test_gpu_matrix_unit.py", "tests/optimize/test_chained_matmul_pipeline.py",
    "tests/optimize/test_conv_window_copies.py", "tests/optimize/test_gpu_group_tile.py",
    "tests/optimize/test_short_gpu_loops.py", "tests/optimize/test_gpu_warp_tile.py",
    "tests/optimize/test_unit_types.py", "tests/optimize/test_scans.py", "tests/render/test_gpu.py",
    "tests/tensor/test_fuzz.py", "tests/onnx/test_node_cases.py", "tests/onnx/test_onnx_models.py",
    "tests/tensor/test_resampling.py", "tests/tensor_api/test_api_linalg.py", "tests/nn/test_nn_training.py",
    "tests/nn/test_nn_layers.py", "tests/nn/test_nn_recurrent.py", "tests/nn/test_nn_transformer.py",
    "tests/nn/test_optim_steps.py")


T = TypeVar("T")


class Part(NamedTuple):
    """One part of the slow families, and why it is this one."""
    number: int
    reason: str


def part_of(test: str) -> int:
    """The part that a test belongs to, from its name alone; 0 for the core suite, which every run takes.

    >>> part_of("tests/graph/test_ops.py::test_every_op_has_a_gradient_or_is_flat")
    0
    """
    if not test.startswith(FAMILIES) or "[" not in test:
        return 0
    return zlib.crc32(test.encode()) % PARTS + 1


def taken(test: str, part: int | None) -> bool:
    """Whether a run with this part takes a test; None takes everything."""
    return part is None or part_of(test) in (0, part)


TOGETHER = 8              # neighbours in a file that one process runs: often they share kernels


def shared_out(tests: Sequence[str], processes: int) -> list[int]:
    """For each test, the number of the process that runs it.

    >>> shared_out([f"tests/test_a.py::test_{i}" for i in range(20)], processes=2)
    [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    places: Counter[str] = Counter()
    numbers = []
    for test in tests:
        file = test.partition("::")[0]
        numbers.append((zlib.crc32(file.encode()) + places[file] // TOGETHER) % processes)
        places[file] += 1
    return numbers


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def run_number(today: datetime.date | None = None) -> tuple[int, str]:
    """A number that the next commit raises by one, and what it is of. Without a whole history: that of the day."""
    count = _git("rev-list", "--count", "HEAD")
    if count and _git("rev-parse", "--is-shallow-repository") == "false":
        return int(count), f"commit {_git('rev-parse', '--short', 'HEAD')}"
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    return day.toordinal(), f"the day {day.isoformat()}"


def current_part(today: datetime.date | None = None) -> Part:
    """The part of the current commit; the next commit has the next one."""
    number, reason = run_number(today)
    return Part(number % PARTS + 1, reason)


def sampled(tests: Sequence[T], number: int, most: int) -> list[T]:
    """At most so many of the tests, evenly spread; other numbers take the others.

    >>> [sampled("abcdefg", number, most=3) for number in range(3)]
    [['a', 'd', 'g'], ['b', 'e'], ['c', 'f']]
    """
    step = max(1, -(-len(tests) // most))
    return list(tests[number % step::step])


# -- the op suite on devices that are not the default ----------------------------------------------------------
SUITE = ("tests/tensor", "tests/lower", "tests/jit", "tests/nn", "tests/tensor_api")
OPS = ("tests/tensor/test_*.py", "tests/tensor_api/test_*.py")


class DeviceSample(NamedTuple):
    """What a run takes of the op suite on a device, in about 30 s."""
    most: int                                  # tests, of one file
    files: tuple[str, ...] = (*OPS, "tests/jit/test_*.py")
    environment: Mapping[str, str] = {}        # what makes it faster


ON_DEVICES = {
    "OPENCL": DeviceSample(12, tuple(f"{folder}/test_*.py" for folder in SUITE),
                           {"PYOPENCL_BUILD_OPTIONS": "-cl-opt-disable", "POCL_MAX_PTHREAD_COUNT": "1",
                            "POCL_WORK_GROUP_SPECIALIZATION": "0"}),
    "WEBGPU": DeviceSample(12),
    "WASM": DeviceSample(20),
    "HIP_SHIM": DeviceSample(8, OPS),     # a process that a test of the jit starts does not have these two
    "METAL_SHIM": DeviceSample(8, OPS),
}


def suite_sample(number: int) -> tuple[str, str, int]:
    """On which device a run takes some of the op suite, which file of it, and which sample of the file's tests."""
    devices = list(ON_DEVICES)
    device, turn = devices[number % len(devices)], number // len(devices)
    files = sorted(file.relative_to(ROOT).as_posix() for name in ON_DEVICES[device].files for file in ROOT.glob(name))
    return device, files[turn % len(files)], turn // len(files)


def describe_sample(number: int) -> str:
    """The line that says what a run takes of the op suite on a device that is not the default."""
    device, file, sample = suite_sample(number)
    return f"on {device}: sample {sample} of {file}; again: DEVICE={device} ./dev test --sample " \
           f"{sample}:{ON_DEVICES[device].most} {file}"


def describe(part: Part | None) -> str:
    """The line at the top of a run."""
    if part is None:
        return "tests: everything that is named"
    return (f"tests: the core suite, and part {part.number} of {PARTS} of {len(FAMILIES)} slow families, "
            f"by {part.reason}; again: ./dev test --part {part.number}; everything: ./dev test --all")


# -- the last complete run -----------------------------------------------------------------------------------
PAGE = """# The last complete run of the tests

For readers who want to know when every test last passed. A usual run takes the core suite and one of {parts} parts of
some slow families ([CONTRIBUTING.md](../CONTRIBUTING.md#tests) says which); this page is written by `./dev test --all`,
which takes everything.

| | |
|---|---|
"""


CHOOSES = ("collectonly", "keyword", "markexpr", "sample", "part", "lf", "maxfail")    # options that run fewer tests


def is_complete(option: Callable[[str], Any]) -> bool:
    """Whether a run whose options these are executes every test of the files that it was given.

    >>> is_complete({"all": True}.get), is_complete({"all": True, "collectonly": True}.get)
    (True, False)
    """
    return bool(option("all")) and not any(option(name) for name in CHOOSES)


def results_page(rows: dict[str, str]) -> str:
    """The page that `./dev test --all` leaves."""
    return PAGE.format(parts=PARTS) + "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def result_rows(outcomes: Counter[str], skips: Sequence[str], seconds: float, device: str) -> dict[str, str]:
    """What is worth knowing of a run: when, of what, where, and how it ended."""
    changed = " with uncommitted changes" if _git(*CHANGED) else ""
    counts = [f"{outcomes[kind]:,} {kind}" for kind in ("passed", "failed", "error", "skipped") if outcomes[kind]]
    reasons = Counter(re.sub(r"^Skipped: ", "", reason) for reason in skips)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": (_git("rev-parse", "--short=12", "HEAD") or "unknown") + changed,
        "result": ", ".join(counts) or "no tests ran",
        "time": f"{seconds / 60:.0f} minutes",
        "Python": f"{platform.python_version()} on {sys.platform}, {platform.machine()}",
        "device": device,
        "skipped": "; ".join(f"{count:,}: {reason}" for reason, count in reasons.most_common(12)) or "nothing",
    }
