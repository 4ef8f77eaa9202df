"""What every test and docstring example begins with: the names it may use, settings as the user has set them, a device.

The suite runs on the default device, so `DEVICE=CLANG ./dev test` runs it on another one. Two markers say what that
leaves out, each skip with its reason:

    @pytest.mark.only_on("CPU", reason="it reads LLVM IR")         what is tested exists there only: skips elsewhere
    @pytest.mark.slow_on("PYTHON")                                 takes over 20 s there: skips there, unless --slow
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from glassgrad import Context, Device, DeviceError, Tensor, dtypes

NAME = [pytest.mark.only_on("CPU", reason="it shows the default device's name").mark]
COMPILED = [pytest.mark.only_on("CPU", "CLANG", reason="it shows what compiled kernels need").mark]
EXAMPLES = {          # pages and docstrings have no place for a marker of their own
    "docs/architecture.md::architecture.md": COMPILED,
    "docs/quickstart.md::quickstart.md": NAME,
    "glassgrad/tensor/tensor.py::glassgrad.tensor.tensor.Tensor": NAME,
}
WITH_CC = ("docs/extending/backend.md::backend.md",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that are slow on this device as well")


def default_device() -> str:
    """The device that the environment chooses for the whole run."""
    try:
        return Device.DEFAULT
    except DeviceError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> str:
    return f"device: {default_device()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    device, everything = default_device(), config.getoption("slow")
    for item in items:
        reason = reason_to_skip(item, device, everything)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def reason_to_skip(item: pytest.Item, device: str, everything: bool) -> str | None:
    """Why an item has no place in a run on `device`."""
    for mark in (*item.iter_markers("only_on"), *EXAMPLES.get(item.nodeid, ())):
        if device not in mark.args:
            return f"only on {' and '.join(mark.args)}, and this run is on {device}: {mark.kwargs['reason']}"
    if item.nodeid in WITH_CC and shutil.which("cc") is None:
        return "it compiles C, and there is no cc here"
    slow = any(device in mark.args for mark in item.iter_markers("slow_on"))
    return f"over 20 s on {device} (--slow runs it)" if slow and not everything else None


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> Iterator[None]:
    doctest_namespace.update(Tensor=Tensor, dtypes=dtypes, Device=Device)
    if "glassgrad.compat.finder" in sys.modules:   # what compat changes ends with the test that imports it
        sys.modules["glassgrad.compat.finder"].uninstall()
    sys.modules.pop("glassgrad.compat", None)      # so that a page that imports it finds it newly imported
    with Context():                                # `Tensor.training = True` ends with the test that says so
        yield
