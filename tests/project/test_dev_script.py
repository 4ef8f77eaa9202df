"""./dev and .ci/run: usage, setting up once, and what is said when something is missing.

A stand-in for python3 records how it is called, so that nothing is installed and nothing needs the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELLS = [shell for shell in ("dash", "bash", "sh") if shutil.which(shell)]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="./dev is a POSIX shell script")

STAND_IN = r"""#!/bin/sh
case "$1 ${2:-}" in
--version*) echo "Python ${FAKE_VERSION:-3.11.7}" ;;
"-c "*version_info*) [ -z "${FAKE_VERSION:-}" ] ;;
"-c "*find_spec*)
    for lacking in ${FAKE_LACKS-torch}; do case "$2" in *"'$lacking'"*) exit 1 ;; esac; done ;;
"-c "*) ;;
"-m venv") echo "$*" >>"$LOG"; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*) echo "$*" >>"$LOG"; case "$*" in *"${FAKE_FAILS:-nothing fails}"*) exit 1 ;; esac ;;
esac
"""


class Checkout:
    """A copy of the script in a folder of its own, with nothing on the PATH but a few tools and the stand-in."""

    def __init__(self, folder: Path):
        self.folder, self.tools, self.log = folder / "clone with spaces", folder / "bin", folder / "log"
        self.folder.mkdir()
        self.tools.mkdir()
        for name in ("dev", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder / name)
        for tool in ("cat", "cksum", "cp", "dirname", "mkdir"):
            path = shutil.which(tool)
            assert path, f"this machine has no {tool}"
            (self.tools / tool).symlink_to(path)
        self.python = self.tools / "python3"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)

    def run(self, *arguments: str, shell: str = "sh", **environment: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        shell_path = shutil.which(shell)
        assert shell_path
        variables = {"PATH": str(self.tools), "LOG": str(self.log), **environment}
        return subprocess.run([shell_path, str(self.folder / "dev"), *arguments], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env=variables)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("arguments, complaint", [
    ([], "say what to do"), (["frobnicate"], "there is no command 'frobnicate'"),
    (["lint", "x"], "lint takes no arguments"), (["docs", "x"], "docs takes nothing, build or serve"),
    (["wheel", "x"], "wheel takes no arguments"), (["setup", "x"], "setup takes no arguments"),
    (["--demo"], "there is no command '--demo'")])
def test_wrong_usage_prints_help_and_exits_2(checkout, shell, arguments, complaint):
    done = checkout.run(*arguments, shell=shell)
    assert done.returncode == 2 and done.stdout == "" and checkout.calls() == []
    assert done.stderr.startswith(f"dev: {complaint}\n\nusage: ./dev COMMAND")
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize("asked", ["help", "-h", "--help"])
def test_help_exits_0_and_names_every_command(checkout, asked):
    done = checkout.run(asked)
    assert done.returncode == 0 and done.stderr == ""
    commands = re.findall(r"^  (\w+) {2,}\w", done.stdout, re.M)
    assert commands == ["demo", "test", "lint", "bench", "fuzz", "arm64", "docs", "wheel", "setup", "help"]


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_valid_shell(shell):
    subprocess.run([shell, "-n", str(ROOT / "dev")], check=True)
    if shell == "bash":
        subprocess.run([shell, "-n", str(ROOT / ".ci" / "run")], check=True)


def test_scripts_can_be_executed():
    assert os.access(ROOT / "dev", os.X_OK) and os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_first_run_sets_up_and_the_second_only_runs(checkout, shell):
    first = checkout.run("demo", "--epochs", "2", shell=shell)
    assert first.returncode == 0, first.stderr
    assert checkout.calls() == ["-m venv --clear .venv", "-m pip install --quiet --progress-bar off -e .",
                                "-m glassgrad demo --epochs 2"]
    second = checkout.run("demo", shell=shell)
    assert second.returncode == 0 and second.stderr == "" and checkout.calls() == ["-m glassgrad demo"]


def test_a_changed_pyproject_installs_again(checkout):
    checkout.run("demo")
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    checkout.run("demo")
    assert checkout.calls() == ["-m pip install --quiet --progress-bar off -e .", "-m glassgrad demo"]


def test_a_half_made_environment_is_made_again(checkout):
    checkout.run("demo")
    (checkout.folder / ".venv" / ".ready").unlink()
    checkout.run("demo")
    assert checkout.calls()[0] == "-m venv --clear .venv"


def test_the_test_command_installs_torch_by_its_exact_version_and_passes_arguments_on(checkout):
    done = checkout.run("test", "-k", "a or b", "--maxfail=1")
    assert done.returncode == 0, done.stderr
    assert checkout.calls()[1:] == ["-m pip install --quiet --progress-bar off -e .[test]",
                                    "-m pip install --quiet --progress-bar off torch==2.13.0",
                                    "-m pytest -n auto -k a or b --maxfail=1"]


def test_the_test_command_uses_an_installed_torch(checkout):
    done = checkout.run("test", FAKE_LACKS="")
    assert "and its installed torch" in done.stderr
    assert checkout.calls() == ["-m venv --clear --system-site-packages .venv",
                                "-m pip install --quiet --progress-bar off -e .[test]", "-m pytest -n auto"]


def test_the_test_command_goes_on_without_torch_and_does_not_try_each_time(checkout):
    for tries in (1, 0):
        done = checkout.run("test", FAKE_FAILS="torch==2.13.0")
        assert done.returncode == 0
        assert sum("torch" in call for call in checkout.calls()) == tries
        assert checkout.calls()[-1] == "-m pytest -n auto"
        assert "the tests it references will skip (to try again: rm .venv/.no-torch)" in done.stderr


def test_the_status_of_the_tests_is_the_status_of_the_script(checkout):
    assert checkout.run("test", FAKE_FAILS="-m pytest").returncode == 1


def test_setup_installs_what_every_command_needs_and_runs_nothing(checkout):
    assert checkout.run("setup").returncode == 0
    assert checkout.calls()[1:] == ["-m pip install --quiet --progress-bar off -e .[dev,docs,wheel,test]",
                                    "-m pip install --quiet --progress-bar off torch==2.13.0"]
    assert checkout.run("lint").returncode == 0 and not [call for call in checkout.calls() if "pip" in call]


@pytest.mark.parametrize("fails, status", [("-m ruff", 1), ("-m mypy", 1), ("nothing", 0)])
def test_lint_runs_both_checkers_and_fails_if_either_does(checkout, fails, status):
    assert checkout.run("lint", FAKE_FAILS=fails).returncode == status
    assert checkout.calls()[-3:] == ["-m ruff check .", "-m isort --check-only --quiet .", "-m mypy"]


@pytest.mark.parametrize("arguments, calls", [
    ([], ["-m pytest -q README.md docs", "-m mkdocs build --strict"]), (["build"], ["-m mkdocs build --strict"]),
    (["serve"], ["-m mkdocs serve"])])
def test_docs_runs_the_examples_and_builds_the_pages(checkout, arguments, calls):
    done = checkout.run("docs", *arguments)
    assert done.returncode == 0, done.stderr
    assert checkout.calls()[1:] == ["-m pip install --quiet --progress-bar off -e .[docs]", *calls]
    assert ("open site/index.html" in done.stderr) == (arguments != ["serve"])


@pytest.mark.parametrize("fails", ["-m pytest", "-m mkdocs"])
def test_docs_fails_when_an_example_or_the_site_does(checkout, fails):
    done = checkout.run("docs", FAKE_FAILS=fails)
    assert done.returncode == 1 and "open site" not in done.stderr


def test_docs_that_cannot_be_installed_say_so(checkout):
    done = checkout.run("docs", "build", FAKE_FAILS="[docs]")
    assert done.returncode == 1 and "-m mkdocs build --strict" not in checkout.calls()
    assert "installing glassgrad with what 'docs' needs" in done.stderr
    assert "the installation failed: see the message above." in done.stderr


def test_wheel_is_built_and_tried_by_its_script(checkout):
    assert checkout.run("wheel").returncode == 0
    assert checkout.calls()[1:] == ["-m pip install --quiet --progress-bar off -e .[wheel]",
                                    "tests/project/try_wheel.py"]
    assert (ROOT / "tests" / "project" / "try_wheel.py").exists()


def test_bench_says_when_there_is_nothing_to_run(checkout):
    done = checkout.run("bench")
    assert done.returncode == 1 and done.stderr == ("dev: there are no benchmarks yet: "
                                                    "benchmarks/__main__.py is missing\n")


def test_a_failed_installation_says_so_and_is_tried_again(checkout):
    done = checkout.run("demo", FAKE_FAILS="-m pip")
    assert done.returncode == 1 and "the installation failed: see the message above." in done.stderr
    checkout.run("demo")
    assert "-m pip install --quiet --progress-bar off -e ." in checkout.calls()


def test_without_a_python_it_says_where_to_get_one(checkout):
    checkout.python.unlink()
    done = checkout.run("demo")
    assert done.returncode == 1
    assert done.stderr.startswith("dev: there is no python3 here: glassgrad needs Python 3.10 or newer. Get it from")


def test_an_old_python_is_refused_by_its_version(checkout):
    done = checkout.run("demo", FAKE_VERSION="3.8.18")
    assert done.returncode == 1
    assert done.stderr.startswith("dev: Python 3.8.18 is too old: glassgrad needs Python 3.10 or newer.")


def test_a_newer_python_beside_an_old_one_is_found(checkout):
    newer = checkout.tools / "python3.12"
    shutil.copy(checkout.python, newer)
    checkout.python.write_text("#!/bin/sh\nexit 1\n")
    assert checkout.run("demo").returncode == 0


def test_dev_python_chooses_the_python_of_a_new_environment(checkout):
    other = checkout.folder.parent / "other python"
    checkout.python.rename(other)
    assert checkout.run("demo", DEV_PYTHON=str(other)).returncode == 0
    done = checkout.run("demo", DEV_PYTHON="/no/such/python")
    assert done.returncode == 0                             # .venv exists by now: DEV_PYTHON is for making it
    shutil.rmtree(checkout.folder / ".venv")
    done = checkout.run("demo", DEV_PYTHON="/no/such/python")
    assert done.returncode == 1
    assert done.stderr == "dev: DEV_PYTHON=/no/such/python is not a Python of version 3.10 or newer\n"


def test_a_python_without_venv_says_what_to_install(checkout):
    done = checkout.run("demo", FAKE_LACKS="ensurepip torch")
    assert done.returncode == 1 and checkout.calls() == []
    assert done.stderr.startswith("dev: python3 cannot make virtual environments: its venv module is missing. "
                                  "Debian, Ubuntu: sudo apt install python3-venv.")


def run_ci(folder: Path, dev: str) -> subprocess.CompletedProcess[str]:
    """What .ci/run does where `./dev` is a script that takes the case of its first argument."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "dev").write_text(f"#!/bin/sh\ncase $1 in {dev} esac\n")
    (folder / "dev").chmod(0o755)
    return subprocess.run([str(folder / ".ci" / "run")], capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.skipif("bash" not in SHELLS, reason=".ci/run needs bash")
@pytest.mark.parametrize("lint, docs, wheel, test, status", [
    (0, 0, 0, 0, 0), (1, 0, 0, 0, 1), (0, 1, 0, 0, 1), (0, 0, 1, 0, 1), (0, 0, 0, 1, 1)])
def test_ci_runs_all_and_ends_with_pytests_closing_line(tmp_path, lint, docs, wheel, test, status):
    closing = "===== 3 passed, 1 skipped in 0.12s ====="
    done = run_ci(tmp_path, f"setup) ;; lint) echo linted; exit {lint} ;; docs) [ $2 = build ] && echo built; "
                            f"exit {docs} ;; wheel) exit {wheel} ;; test) echo dots 1 of 2; echo '{closing}'; "
                            f"exit {test} ;;")
    assert done.returncode == status
    assert "built\n" in done.stdout and "linted\n" in done.stdout and done.stdout.splitlines()[-1] == closing


@pytest.mark.skipif("bash" not in SHELLS, reason=".ci/run needs bash")
@pytest.mark.parametrize("first, alone, status, ended", [
    ("2 failed, 9 passed in 3s", 0, 0, "2 unstable, 9 passed in 3s"),
    ("2 failed, 9 passed in 3s", 1, 1, "2 failed, 9 passed in 3s"),
    ("4 failed, 9 passed in 3s", 0, 1, "4 failed, 9 passed in 3s"),
    ("1 failed, 9 passed, 1 error in 3s", 0, 1, "1 failed, 9 passed, 1 error in 3s"),
    ("worker 'gw1' crashed while running 'a'\n1 failed, 9 passed in 3s", 0, 1, "1 failed, 9 passed in 3s")])
def test_ci_names_a_few_tests_that_pass_by_themselves_as_unstable(tmp_path, first, alone, status, ended):
    done = run_ci(tmp_path, f"setup | lint | docs | wheel) ;; test) case $* in *last-failed*) exit {alone} ;; esac; "
                            f'echo "{first}"; exit 1 ;;')
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, ended)
    assert ("UNSTABLE" in done.stdout) == (status == 0)


def test_the_workflow_of_public_ci_calls_commands_of_dev():
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    said = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    commands = re.findall(r"^([a-z]+)\)$", (ROOT / "dev").read_text(), re.M)
    assert said and all(words[0] == "./dev" and words[1] in commands for words in said)
    assert {words[1] for words in said} == {"lint", "docs", "test", "wheel"}
    matrix = jobs["test"]["strategy"]["matrix"]
    assert 'requires-python = ">=3.10"' in (ROOT / "pyproject.toml").read_text()
    assert matrix["python"] == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]


def test_a_checkout_on_windows_has_lines_that_a_shell_reads():
    """Git gives them a carriage return there, unless the repository says otherwise: `set -eu` of ./dev failed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    found = subprocess.run(["git", "check-attr", "eol", "dev", "tests/render/golden"], cwd=ROOT, capture_output=True,
                           text=True, check=True)
    assert found.stdout.splitlines() == ["dev: eol: lf", "tests/render/golden: eol: lf"]


STAND_IN_FUZZER = """
import argparse, os, signal
parser = argparse.ArgumentParser()
for name, kind in (("seed", int), ("count", int), ("progress", str)):
    parser.add_argument("--" + name, type=kind)
options = parser.parse_args()
with open(options.progress, "w") as letters:
    for seed in range(options.seed, options.seed + options.count):
        if seed in (12, 17):
            os.kill(os.getpid(), signal.SIGSEGV)
        print("w" if seed == 14 else "r", end="", file=letters, flush=True)
"""


def test_fuzz_goes_on_after_a_program_that_ends_its_process(tmp_path, capfd):
    pytest.importorskip("torch")
    import fuzz
    script = tmp_path / "fuzzer.py"
    script.write_text(STAND_IN_FUZZER)
    assert fuzz.watch([sys.executable, str(script)], 10, 10) == 3
    shown = capfd.readouterr().out
    assert re.findall(r"seed (\d+): ended its process, status (-\d+)", shown) == [("12", "-11"), ("17", "-11")]
    assert shown.endswith("10 programs, 3 wrong\n")
