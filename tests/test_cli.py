"""The command `glassgrad` and the demo: help, exit statuses, and a trained model at the end, come what may."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glassgrad import cli, demo
from glassgrad.nn import datafiles

ROOT = Path(__file__).resolve().parent.parent


def glassgrad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "glassgrad.cli", *arguments], capture_output=True, text=True,
                          cwd=ROOT, env={**os.environ, **environment})


def test_no_command_prints_help_and_exits_2():
    done = glassgrad()
    assert done.returncode == 2 and done.stdout == "" and "examples:" in done.stderr


@pytest.mark.parametrize("arguments", [["frobnicate"], ["data", "x"], ["demo", "--epochs", "none"],
                                       ["demo", "--epochs", "0"], ["--frobnicate"]])
def test_wrong_usage_exits_2(arguments):
    done = glassgrad(*arguments)
    assert done.returncode == 2 and done.stdout == "" and "usage: glassgrad" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["data", "--help"], ["devices", "--help"]])
def test_help_exits_0(arguments):
    done = glassgrad(*arguments)
    assert done.returncode == 0 and done.stdout.startswith("usage: glassgrad") and done.stderr == ""


def test_version():
    done = glassgrad("--version")
    assert done.returncode == 0 and re.fullmatch(r"glassgrad (\d+\.\d+\.\d+.*|\(not installed: .*\))\n", done.stdout)


def test_devices():
    done = glassgrad("devices")
    assert done.returncode == 0, done.stderr
    cpu, clang = done.stdout.splitlines()
    assert re.match(r"CPU +\S.*, \d+ cores, \d+-bit vectors, compiled by llvmlite \d", cpu)
    assert re.match(r"CLANG +the same processor, compiled by \S|CLANG +not here: ", clang)


def test_devices_without_a_c_compiler(tmp_path):
    done = glassgrad("devices", CC="/no/such/compiler")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1] == ("CLANG    not here: CC=/no/such/compiler; "
                                           "correct the environment variable CC, or unset it")


def test_data_says_where_each_data_set_is(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for file in datafiles.MNIST.files:
        (folder / file.name).touch()
    done = glassgrad("data", GLASSGRAD_DATA=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0
    mnist, fashion, cifar = done.stdout.splitlines()
    assert mnist.split() == ["MNIST", str(folder)]
    assert fashion.startswith("Fashion-MNIST") and cifar.startswith("CIFAR-10")


def test_without_mnist_the_demo_says_so_and_learns_the_digits_that_ship(monkeypatch, capsys):
    def nowhere() -> datafiles.Arrays:
        raise datafiles.DataMissingError("MNIST is not on this machine", mend="connect to the network")

    monkeypatch.setattr(demo, "mnist_arrays", nowhere)
    assert demo.main(["--epochs", "5"]) == 0
    out, err = capsys.readouterr()
    assert err == ("MNIST is not on this machine; to have it, connect to the network.\n"
                   "Going on with the 8x8 digits that ship with glassgrad.\n\n")
    assert out.startswith("8x8 digits: 1,497 images to learn from, 300 to be tested on")
    accuracy = re.search(r"^test accuracy: ([\d.]+)%$", out, re.M)
    assert accuracy and float(accuracy[1]) > 95
    assert re.search(r"^kernel +times +total ms +share +GFLOPS +GB/s +line$", out, re.M)
    assert re.search(r"^reduce_128_256_r64 +\d+ .* demo.py:\d+$", out, re.M)


def test_the_demo_in_a_pipe_has_no_progress_bar(monkeypatch, capsys, rng):
    x, y = rng.integers(0, 255, (64, 1, 28, 28), np.uint8), rng.integers(0, 10, 64)
    monkeypatch.setattr(demo, "mnist_arrays", lambda: (x, y, x, y))
    assert demo.main(["--epochs", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\r" not in out


def test_main_can_be_called_from_python(capsys):
    assert cli.main(["data"]) == 0
    assert capsys.readouterr().out.count("\n") == 3
