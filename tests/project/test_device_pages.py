"""The pages of devices are complete: every device has a row with its names, and the conformance report is whole."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from glassgrad.conformance.check_groups import GROUPS
from glassgrad.runtime.devices import RECORDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "devices"


def rows() -> dict[str, list[str]]:
    """The table of the overview: device -> its other cells."""
    found = {}
    for line in (PAGES / "index.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.match(r"\[?`(\w+)`", cells[0])
        if line.startswith("|") and name:
            found[name[1]] = cells
    return found


def test_every_device_has_a_row_with_its_names_and_its_language() -> None:
    shown = rows()
    for record in RECORDS:
        assert record.name in shown, f"docs/devices/index.md needs a row: | `{record.name}` | {record.aliases} | ..."
        names, language, where, missing = shown[record.name][1:]
        assert names == ", ".join(f"`{alias}`" for alias in record.aliases), record.name
        assert language == record.dialect and where and missing, record.name


def test_there_is_no_row_of_a_device_that_there_is_not() -> None:
    for name, cells in rows().items():
        page = re.search(r"\((\w+\.md)\)", cells[0])
        written = page is None or (PAGES / page[1]).exists()
        assert not written or name in [record.name for record in RECORDS], f"{name} is not in Device.records"


def test_the_conformance_report_has_no_failures_and_says_when_it_was_made() -> None:
    text = (PAGES / "conformance.md").read_text()
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    run = {"CPU", "CLANG", "PYTHON", "OPENCL", "CUDA", "WEBGPU", "WASM", "HIP_SHIM", "METAL_SHIM"}
    assert {section.split()[0] for section in sections} >= run
    for section in sections:
        graded = re.findall(r"^\| (\d) \| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", section, re.M)
        groups = [group for _, group, *_ in graded]
        assert groups == [group.name for group in GROUPS], section
        assert all(failed == "0" for *_, failed, _ in graded), section
        assert f"Grade {len(GROUPS)} of {len(GROUPS)}" in section, section
        assert re.search(r"Run \d{4}-\d\d-\d\d at (commit|version) \S+, with Python 3", section)


def left_out() -> set[tuple[str, str, str]]:
    """What the page of exclusions names: file, test, reason."""
    rows = re.findall(r"^\| `(tests/\S+)` \| (.*) \| (.*) \|$", (PAGES / "exclusions.md").read_text(), re.M)
    return {(file, name, reason) for file, names, reason in rows for name in re.findall(r"`(test_\w+)`", names)}


def test_every_test_of_the_op_suite_that_other_devices_leave_out_is_on_the_page(request: pytest.FixtureRequest) -> None:
    items = [item for item in request.session.items if item.nodeid.startswith(("tests/tensor/", "tests/tensor_api/"))]
    if not items:
        pytest.skip("the op suite is not part of this run")
    [conftest] = [found for found in request.config.pluginmanager.get_plugins() if hasattr(found, "reason_to_skip")]
    for device in ("OPENCL", "WEBGPU", "WASM"):
        reasons = {item.nodeid: conftest.reason_to_skip(item, device, everything=True) for item in items}
        skipped = {(*test.partition("[")[0].split("::"), reason.partition(f"{device}: ")[2])
                   for test, reason in reasons.items() if reason}
        assert skipped - left_out() == set(), device


def test_every_test_that_is_said_to_be_left_out_is_there() -> None:
    assert len(left_out()) > 30
    for file, name, reason in left_out():
        text = (ROOT / file).read_text()
        assert f"def {name}(" in text and f'reason="{reason}"' in text, (file, name)


def lines_of_devices() -> dict[str, tuple[int, int, int]]:
    """Lines of code of the GPUs other than CUDA: entry among the dialects, driver, renderer of its own."""
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "tools" / "figures.py")
    assert spec and spec.loader
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    dialects = ROOT / "glassgrad/compiler/render/gpu/dialects.py"
    entries = {node.targets[0].id: (node.end_lineno or 0) - node.lineno + 1
               for node in ast.parse(dialects.read_text()).body
               if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    drivers = {"AMD": "hip", "OPENCL": "opencl", "METAL": "metal", "WEBGPU": "webgpu"}
    folder = ROOT / "glassgrad/runtime/gpu"
    driver_lines = {name: figures.code_lines(folder / f"{file}.py") for name, file in drivers.items()}
    renderers = {"WEBGPU": sum(map(figures.code_lines, (ROOT / "glassgrad/compiler/render/wgsl").glob("*.py")))}
    return {name: (entries.get({"AMD": "HIP"}.get(name, name), 0), driver_lines[name], renderers.get(name, 0))
            for name in drivers}


def test_a_gpu_takes_at_most_350_lines_and_the_page_has_the_count() -> None:
    table = (ROOT / "docs" / "extending" / "backend.md").read_text()
    for name, (dialect, driver, renderer) in lines_of_devices().items():
        together = dialect + driver + renderer
        assert together <= 350, f"{name}: {together} lines"
        [row] = re.findall(rf"^\| `{name}` \|(.*)\|$", table, re.M)
        shown = [int(re.sub(r"\D", "", cell) or 0) for cell in row.split("|")]
        counted = [dialect, driver, renderer, together]
        assert all(abs(a - b) <= 10 for a, b in zip(shown, counted)), f"{name}: {counted}, the page has {shown}"
