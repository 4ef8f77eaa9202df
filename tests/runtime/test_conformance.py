"""`glassgrad conformance`: what passes, what fails and how, of devices that are right, wrong, refuse, crash or hang."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassgrad import Device
from glassgrad.base.errors import DeviceError, InputError
from glassgrad.cli.conformance import main
from glassgrad.conformance.case import Case, Compared, check, difference
from glassgrad.conformance.check_groups import GROUPS, chosen
from glassgrad.conformance.runner import conformance
from glassgrad.runtime.python.python_device import PythonDevice

ROOT = Path(__file__).resolve().parents[2]
DEVICE = """
import ctypes, os, signal, sys, time
from glassgrad import Device, DTypeError
from glassgrad.runtime.python.python_device import PythonDevice

class Bad(PythonDevice):
    def copy_in(self, address, data):
        size = memoryview(data).nbytes
        {act}
        super().copy_in(address, data)

Device.register("BAD", Bad, install="a new one")
if __name__ == "__main__":
    raise SystemExit("a script that registers a device does not run as the main program")
"""


@pytest.fixture
def graded(tmp_path: Path):
    """A report of a device that does something when bytes of some size are copied in."""
    def grade(act: str, only: list[str], **options: float):
        script = tmp_path / "bad.py"
        script.write_text(DEVICE.format(act=act))
        try:
            return conformance("BAD", only, script=str(script), **options)
        finally:
            Device.unregister("BAD")
    return grade


def outcomes(report) -> dict[str, str]:
    return {result.case: result.outcome for result in report.results if result.outcome != "passed"}


# -- devices that are right ----------------------------------------------------------------------------------
def test_the_default_device_passes_every_grade_but_training_in_this_process():
    report = conformance(Device.DEFAULT, [group.name for group in GROUPS[:5]], isolated=False)
    assert report.passed, str(report)
    assert report.grade == 5 and set(report.groups) == {group.name for group in GROUPS[:5]}


def test_a_device_that_a_script_registers_is_graded_in_processes_of_its_own(graded):
    report = graded("print('copied', size)", ["copies", "8"])          # what a device prints is not a result
    assert report.passed and report.groups == ["copies", "jit"], str(report)
    assert str(report).startswith("grade  group          passed failed refused  seconds\n1      copies")
    assert str(report).endswith("\n\nBAD: passed")


def test_a_grade_is_shown_when_it_ends_and_before_the_next_begins():
    opened, shown = [], []

    class Counting(PythonDevice):
        def copy_in(self, address, data):
            opened.append(len(shown))
            super().copy_in(address, data)

    Device.register("COUNTING", Counting)
    try:
        report = conformance("COUNTING", ["copies", "jit"], isolated=False, show=shown.append)
    finally:
        Device.unregister("COUNTING")
    assert [line.split()[:3] for line in shown[1:]] == [["1", "copies", "16"], ["8", "jit", "7"]]
    assert set(opened) == {1, 2}, "copies run when the head is shown, jit when the row of copies is"
    assert str(report) == "\n".join([*shown, report.conclusion()])


@pytest.mark.skipif(shutil.which("cc") is None, reason="project 7 compiles C")
def test_the_device_of_project_7_conforms(capsys):
    try:
        script = str(ROOT / "projects/07_custom_backend/backend.py")
        status = main(["MY", "--from", script, "--only", "copies", "--json"])
    finally:
        Device.unregister("MY")
        Device.unregister("MYOMP")
    told = json.loads(capsys.readouterr().out)
    assert status == 0 and told["passed"] and told["groups"] == {"copies": {"passed": 16, "failed": 0, "refused": 0}}


# -- devices that are not ------------------------------------------------------------------------------------
def test_a_wrong_result_is_told_with_what_was_expected_and_the_next_step(graded):
    report = graded("data = bytes(size) if size == 251 else data", ["copies"])
    assert outcomes(report) == {"251 bytes in and out": "failed"} and report.grade == 0
    [failure] = report.failures
    assert failure.given == "uint8[251]" and failure.got.startswith("0; 2") and failure.got.endswith("elements differ")
    assert "CHECK=1 glassgrad conformance BAD --only copies --from " in str(report)
    assert "the device's memory: allocate, copy_in and copy_out" in str(report)


def test_what_a_device_raises_is_told_with_its_line(graded):
    report = graded("if size == 251: raise OSError('the cable is out')", ["copies"])
    assert outcomes(report) == {"251 bytes in and out": "failed"}
    assert report.failures[0].got.startswith("OSError: the cable is out\nraised at ")
    assert "bad.py:9, in copy_in" in report.failures[0].got


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("act, how", [("if size == 251: ctypes.string_at(8)", "the process was ended by SIGSEGV"),
                                      ("if size == 251: os._exit(0)", "the process ended with status 0")])
def test_after_a_crash_the_run_goes_on(graded, act, how):
    report = graded(act, ["copies"])
    assert outcomes(report) == {"251 bytes in and out": "crashed"}
    assert report.failures[0].got.startswith(how) and report.counts("copies")["passed"] == 15
    if "SIGSEGV" in how:
        assert "bad.py" in report.failures[0].got, "where it was, from the fault handler"


def test_a_check_that_hangs_is_ended(graded):
    report = graded("while size == 251: time.sleep(1)", ["copies"], timeout=3.0)
    assert outcomes(report) == {"251 bytes in and out": "hung"}
    assert report.failures[0].got.splitlines()[0] == "nothing came for 3 s"
    assert "--timeout 600" in report.next_step(report.failures[0])


def test_a_type_that_is_refused_by_name_is_missing_not_wrong():
    class NoDouble(PythonDevice):
        def compile(self, ast):
            if any(node.dtype.name == "float64" for node in ast.toposort()):
                raise DeviceError("NODOUBLE has no float64", given="a kernel")
            return super().compile(ast)

    Device.register("NODOUBLE", NoDouble)
    try:
        report = conformance("NODOUBLE", ["dtypes"], isolated=False)
    finally:
        Device.unregister("NODOUBLE")
    assert report.passed and list(report.missing) == ["float64"] and report.counts("dtypes")["refused"] >= 5
    assert "\nmissing: float64, in 5 checks\n  DeviceError: NODOUBLE has no float64\n" in str(report) + "\n"


def test_a_device_that_does_not_open_is_told_with_what_to_install():
    def absent(name: str):
        raise DeviceError(f"there is no {name} here", given="nothing", fix="buy one")

    Device.register("ABSENT", absent, install="pip install absent")
    try:
        report = conformance("ABSENT", ["copies", "views"], isolated=False)
    finally:
        Device.unregister("ABSENT")
    assert not report.passed and report.counts("views") == {"passed": 0, "failed": 20, "refused": 0}
    assert report.next_step(report.failures[0]) == "install what it needs: pip install absent"
    assert {result.outcome for result in report.results if result.group == "views"} == {"not run"}


# -- the report ----------------------------------------------------------------------------------------------
def test_the_page_keeps_the_sections_of_other_devices(tmp_path):
    page = tmp_path / "devices" / "conformance.md"
    for device in ("CPU", "PYTHON", "CPU"):
        report = conformance(device, ["jit"], isolated=False)
        report.write(page)
    text = page.read_text()
    assert text.startswith("# Conformance\n") and text.count("\n## CPU\n") == text.count("\n## PYTHON\n") == 1
    assert "| 8 | jit | 7 | 0 | 0 |" in text and report.date in text and report.commit in text


def test_the_command_says_what_is_wrong_with_its_arguments(capsys):
    from glassgrad.cli import main as glassgrad
    assert glassgrad(["conformance", "CPU", "--only", "ten"]) == 1
    said = capsys.readouterr().err
    assert "there is no such grade\n  given:    'ten'\n  expected: 1 to 9, or one of copies, " in said
    assert glassgrad(["conformance", "NOWHERE"]) == 1
    assert "there is no such device" in capsys.readouterr().err
    assert glassgrad(["conformance", "DISK:/tmp/x"]) == 1
    assert "a file does not compute: there is nothing to grade" in capsys.readouterr().err
    for script, what in (("nowhere.py", "there is no such script"), ("no_such_module", "there is no such module")):
        assert glassgrad(["conformance", "MY", "--from", script]) == 1
        assert what in capsys.readouterr().err
    with pytest.raises(InputError):
        chosen(["0"])


def test_a_comparison_sees_shapes_and_single_elements():
    import numpy as np
    assert difference(np.zeros(2), np.zeros((2, 1)), "float32", 1) == ("shape [2]", "shape [2, 1]")
    assert difference(np.array([1, 2]), np.array([1, 3]), "int32", 1) == ("2 at [1]", "3; 1 of 2 elements differ")
    assert difference(np.array(np.nan), np.array(np.nan), "float32", 1) == ("", "")
    assert difference(np.array(1.0), np.array(np.nan), "float32", 1) == ("1.0", "nan; 1 of 1 element differ")
    case = Case("c", lambda device: Compared("", np.array(1), np.array(2)))
    assert check("g", case, "CPU").outcome == "failed"


def test_help_names_the_grades():
    done = subprocess.run([sys.executable, "-m", "glassgrad", "conformance", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(group.name in done.stdout for group in GROUPS)
