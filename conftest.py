"""What every test and docstring example begins with: the names it may use, settings as the user has set them, a device.
And which tests run: tests/reference/rotation.py.

The suite runs on the default device, so `DEVICE=CLANG ./dev test` runs it on another one. Two markers say what that
leaves out, each skip with its reason:

    @pytest.mark.only_on("CPU", reason="it reads LLVM IR")         what is tested exists there only: skips elsewhere
    @pytest.mark.slow_on("PYTHON")                                 takes over 20 s there: skips there, unless --slow
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import rotation

from glassgrad import Context, Device, DeviceError, DTypeError, Tensor, dtypes
from glassgrad.base.source_lines import note_calls
from glassgrad.engine.realize import forgotten_schedules

NAME = [pytest.mark.only_on("CPU", reason="it shows the default device's name").mark]
COMPILED = [pytest.mark.only_on("CPU", "CLANG", reason="it shows what compiled kernels need").mark]
EXAMPLES = {          # pages and docstrings have no place for a marker of their own
    "docs/architecture.md::architecture.md": COMPILED,
    "docs/quickstart.md::quickstart.md": NAME,
    "glassgrad/tensor/tensor.py::glassgrad.tensor.tensor.Tensor": NAME,
}
WITH_ONNX = ("docs/guide/onnx.md::onnx.md",)
WITH_CC = ("docs/extending/backend.md::backend.md",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that are slow on this device as well")
    parser.addoption("--all", action="store_true", help="run every test, and write docs/test_results.md")
    parser.addoption("--part", type=int, choices=range(1, rotation.PARTS + 1),
                     help="of the slow families, run this part (default: the part of the current commit)")
    parser.addoption("--sample", metavar="NUMBER:MOST", help="run at most MOST of the tests; NUMBER says which")


def default_device() -> str:
    """The device that the environment chooses for the whole run."""
    try:
        return Device.DEFAULT
    except DeviceError as error:
        raise pytest.UsageError(str(error)) from None


PART, STARTED = pytest.StashKey[rotation.Part | None](), pytest.StashKey[float]()


if os.environ.get("DEVICE", "").endswith("_SHIM"):           # kernels for processors that are not here
    import shim_devices  # noqa: F401


if worker := os.environ.get("PYTEST_XDIST_WORKER"):      # processes that share PoCL's cache of kernels abort
    os.environ.setdefault("POCL_CACHE_DIR", f"{tempfile.gettempdir()}/pocl-{getpass.getuser()}-{worker}")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.monotonic()
    config.stash[PART] = chosen_part(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:    # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def chosen_part(config: pytest.Config) -> rotation.Part | None:
    """The part of the slow families that this run takes; None where everything that was named runs."""
    if hasattr(config, "workerinput"):                       # a process of xdist's: as the first process chose
        number = config.workerinput["part"]
        return rotation.Part(number, "") if number else None
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if config.getoption("part"):
        return rotation.Part(config.getoption("part"), "--part")
    if config.getoption("all") or named or config.getoption("keyword") or config.getoption("markexpr"):
        return None
    return rotation.current_part()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    part = node.config.stash[PART]
    node.workerinput["part"] = part.number if part else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from fixed_scheduling import FixedScheduling
    return FixedScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    part = config.stash[PART]
    return [f"device: {default_device()}", rotation.describe(part),
            *([rotation.describe_sample(rotation.run_number()[0])] if part else [])]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    device, everything = default_device(), config.getoption("slow")
    for item in items:
        reason = reason_to_skip(item, device, everything)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    part = config.stash[PART]
    if part is not None:
        others = [item for item in items if not rotation.taken(item.nodeid, part.number)]
        items[:] = [item for item in items if rotation.taken(item.nodeid, part.number)]
        if others:
            config.hook.pytest_deselected(items=others)
        items.sort(key=lambda item: rotation.part_of(item.nodeid) > 0)      # what changes with each commit comes last
    if config.getoption("sample"):
        number, _, most = config.getoption("sample").partition(":")
        chosen = rotation.sampled(items, int(number), int(most))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """After `--all`: the page that says how the run ended. After another run: how to run the same part again."""
    part = config.stash[PART]
    if part is not None:
        terminalreporter.write_line(rotation.describe(part))
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if named or not rotation.is_complete(lambda option: config.getoption(option, None)):
        return
    stats = terminalreporter.stats
    outcomes = Counter({kind: len(stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")})
    skips = [report.longrepr[2] for report in stats.get("skipped", ()) if isinstance(report.longrepr, tuple)]
    seconds = time.monotonic() - config.stash[STARTED]
    rotation.RESULTS.write_text(rotation.results_page(
        rotation.result_rows(outcomes, skips, seconds, default_device())))
    terminalreporter.write_line(f"written: {rotation.RESULTS.relative_to(rotation.ROOT)}")


def has_onnx() -> bool:
    """Whether the package onnx is installed: one of its modules, because a folder of tests has its name too."""
    try:
        return importlib.util.find_spec("onnx.reference") is not None
    except ImportError:
        return False


def reason_to_skip(item: pytest.Item, device: str, everything: bool) -> str | None:
    """Why an item has no place in a run on `device`."""
    for mark in (*item.iter_markers("only_on"), *EXAMPLES.get(item.nodeid, ())):
        if device not in mark.args:
            return f"only on {' and '.join(mark.args)}, and this run is on {device}: {mark.kwargs['reason']}"
    if item.nodeid in WITH_CC and shutil.which("cc") is None:
        return "it compiles C, and there is no cc here"
    if item.nodeid in WITH_ONNX and not has_onnx():
        return "the package onnx is not installed"
    slow = any(device in mark.args for mark in item.iter_markers("slow_on"))
    return f"over 20 s on {device} (--slow runs it)" if slow and not everything else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """A test whose numbers are float64 skips on a device that has none, by that device's own refusal."""
    try:
        return (yield)
    except DTypeError as error:
        if " has no float64\n" not in str(error) or Device[default_device()].has_float64:
            raise
        pytest.skip(f"{default_device()} has no float64")


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> Iterator[None]:
    doctest_namespace.update(Tensor=Tensor, dtypes=dtypes, Device=Device)
    if "glassgrad.compat.finder" in sys.modules:   # what compat changes ends with the test that imports it
        sys.modules["glassgrad.compat.finder"].uninstall()
    sys.modules.pop("glassgrad.compat", None)      # so that a page that imports it finds it newly imported
    noted = note_calls(None)                       # SANITIZE=1 has calls noted until the process ends
    note_calls(noted)
    with Context():                                # `Tensor.training = True` ends with the test that says so
        yield
    note_calls(noted)


@pytest.fixture(autouse=True)
def _new_schedules(request: pytest.FixtureRequest) -> Iterator[None]:
    """A page or docstring begins as a user's process does: no schedule and no size was seen before."""
    with forgotten_schedules() if isinstance(request.node, pytest.DoctestItem) else contextlib.nullcontext():
        yield
