"""The command `glassgrad` and the demo: help, exit statuses, and a trained model at the end, come what may."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from glassgrad import Device, DeviceError, Tensor, cli
from glassgrad.cli import demo, doctor, train, training_loop
from glassgrad.nn.datasets import files as datafiles
from glassgrad.nn.state import load_checkpoint, safe_load, save_checkpoint
from glassgrad.runtime.python.python_device import PythonDevice

ROOT = Path(__file__).resolve().parents[2]


def glassgrad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "glassgrad", *arguments], capture_output=True, text=True,
                          cwd=ROOT, env={**os.environ, **environment})


def test_no_command_prints_help_and_exits_2():
    done = glassgrad()
    assert done.returncode == 2 and done.stdout == "" and "examples:" in done.stderr


@pytest.mark.parametrize("arguments", [["frobnicate"], ["data", "x"], ["demo", "--epochs", "none"],
                                       ["demo", "--epochs", "0"], ["--frobnicate"], ["train"], ["train", "chess"],
                                       ["train", "mnist", "--steps", "0"], ["doctor", "now"], ["onnx"]])
def test_wrong_usage_exits_2(arguments):
    done = glassgrad(*arguments)
    assert done.returncode == 2 and done.stdout == "" and "usage: glassgrad" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["data", "--help"], ["devices", "--help"],
                                       ["train", "--help"], ["doctor", "--help"], ["onnx", "--help"]])
def test_help_exits_0(arguments):
    done = glassgrad(*arguments)
    assert done.returncode == 0 and done.stdout.startswith("usage: glassgrad") and done.stderr == ""


def test_a_mistake_at_the_terminal_names_no_line_of_python():
    done = glassgrad("tune", "import", "nowhere.json")
    assert done.returncode == 1 and done.stderr == """\
the tuning file cannot be read
  given:    nowhere.json: No such file or directory
  expected: a file written by glassgrad tune export
  fix:      check the path
"""


def test_the_version_is_the_package_s_or_says_that_it_is_not_installed():
    done = glassgrad("--version")
    assert done.returncode == 0 and re.fullmatch(r"glassgrad (\d+\.\d+\.\d+.*|\(not installed: .*\))\n", done.stdout)


def test_devices_says_what_each_one_is_on_this_machine():
    done = glassgrad("devices", DEV="CPU")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert re.match(r"CPU +\S.*, \d+ cores, \d+-bit vectors, compiled by llvmlite \d.* \(the default\)$", lines["CPU"])
    assert re.match(r"CLANG +the same processor, compiled by \S|CLANG +not here: ", lines["CLANG"])
    assert lines["PYTHON"] == "PYTHON   an interpreter: slow, and needs nothing"


def test_devices_says_what_each_one_has_and_needs(monkeypatch, capsys):
    class Half(PythonDevice):
        description, missing_types = "half a device", ("float64",)

    def absent(name):
        raise DeviceError("there is none", given="nothing:\n\nthe driver said so", fix="get one")

    monkeypatch.setattr(Device, "_devices", {})
    Device.register("HALF", Half, aliases=("SEMI",), target="a desk", dialect="pencil")
    Device.register("NONE", absent, install="a shop")
    assert cli.main(["devices", "--measure"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"""HALF     half a device
         also SEMI; runs on a desk; kernels in pencil
         dtypes: all 17 but float64; matrix units: none
         measured: \S+ GFLOPS in float32, \S+ GB/s
NONE     not here: nothing: the driver said so; get one
         needs a shop
""", out), out


def test_devices_without_a_c_compiler(tmp_path):
    done = glassgrad("devices", CC="/no/such/compiler", DEV="CPU")
    assert done.returncode == 0
    assert done.stdout.splitlines()[3] == ("CLANG    not here: CC=/no/such/compiler; "
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


def test_doctor_shows_everything_and_tests_every_device(tmp_path):
    done = glassgrad("doctor", CACHE_DIR=str(tmp_path / "cache"), MEMORY_MB="4096")
    assert done.returncode == 0, done.stdout + done.stderr
    for heading in ("versions", "devices", "memory", "compiled kernels", "data", "settings from the environment",
                    "self-test"):
        assert re.search(rf"^{heading}$", done.stdout, re.M), heading
    assert re.search(r"^CPU +right: a value and its gradient differ from NumPy's by ", done.stdout, re.M)
    assert f"folder         {tmp_path / 'cache'}" in done.stdout and "limit          4,096 MiB" in done.stdout
    assert done.stdout.endswith("\nAll is well.\n")


def test_doctor_says_when_a_device_computes_wrongly(monkeypatch, capsys):
    monkeypatch.setattr(doctor.Tensor, "softmax", lambda self, axis: self)
    assert not doctor.self_test("CPU")
    assert capsys.readouterr().out.startswith("CPU      WRONG: ")


def test_bench_runs_the_benchmarks_or_says_where_they_are(tmp_path, monkeypatch, capsys):
    assert glassgrad("bench", "--help").stdout.startswith("usage:")
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "glassgrad" / "cli" / "__init__.py"))
    assert cli.main(["bench"]) == 1
    assert capsys.readouterr().err == ("the benchmarks are not part of the installed package\n"
                                       "  fix:      clone the repository, and run ./dev bench in it\n")


# ---- training


@pytest.fixture
def few_images(monkeypatch):
    """The digits that ship with glassgrad, in the place of MNIST."""
    monkeypatch.setattr(train.datasets, "mnist", train.datasets.digits)


@pytest.mark.slow_on("PYTHON")
def test_training_on_images_learns_and_goes_on_from_its_checkpoint(few_images, tmp_path, capsys):
    file = tmp_path / "digits.safetensors"
    assert cli.main(["train", "mnist", "--steps", "40", "--checkpoint", str(file)]) == 0
    assert cli.main(["train", "mnist", "--steps", "80", "--checkpoint", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and f"going on from step 40 in {file}" in out
    accuracy = re.search(r"step 80: loss [\d.]+, test accuracy ([\d.]+)%", out)
    assert accuracy and float(accuracy[1]) > 70


@pytest.mark.slow_on("PYTHON")
def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(few_images, tmp_path, capsys):
    whole, half = str(tmp_path / "whole"), str(tmp_path / "half")
    assert cli.main(["train", "mnist", "--steps", "8", "--checkpoint", whole]) == 0
    assert cli.main(["train", "mnist", "--steps", "4", "--checkpoint", half]) == 0
    assert cli.main(["train", "mnist", "--steps", "8", "--checkpoint", half]) == 0
    first, second = safe_load(whole), safe_load(half)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert np.array_equal(tensor.numpy(), second[name].numpy()), name


@pytest.mark.slow_on("PYTHON")
def test_a_checkpoint_that_cannot_be_written_or_is_another_training_is_told_before_the_first_step(
        few_images, tmp_path, capsys):
    nowhere, other = tmp_path / "nowhere" / "digits", tmp_path / "other"
    assert cli.main(["train", "mnist", "--steps", "300", "--checkpoint", str(nowhere)]) == 1
    assert f"the checkpoint cannot be written\n  given:    --checkpoint {nowhere}\n" in capsys.readouterr().err
    save_checkpoint(other, [Tensor.zeros(2)])
    assert cli.main(["train", "mnist", "--steps", "300", "--checkpoint", str(other)]) == 1
    out, err = capsys.readouterr()
    assert "fix:      construct the model and the optimizer as they were for this training, or name another file" in err
    assert "step" not in out and load_checkpoint(other, [Tensor.ones(2)]).step == 0


@pytest.mark.slow_on("PYTHON")
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself Ctrl-C there")
def test_ctrl_c_saves_the_step_and_a_later_training_goes_on(few_images, tmp_path, capsys, monkeypatch):
    file, whole = tmp_path / "stopped", tmp_path / "whole"
    computed = train.Tensor.item

    def interrupted(self):
        if not file.exists():                        # in the first step, long before the first regular save
            os.kill(os.getpid(), signal.SIGINT)
        return computed(self)
    monkeypatch.setattr(train.Tensor, "item", interrupted)
    assert cli.main(["train", "mnist", "--steps", "6", "--checkpoint", str(file)]) == 130
    monkeypatch.setattr(train.Tensor, "item", computed)
    out = capsys.readouterr().out
    assert "stopping after this step, to save it; Ctrl-C again stops at once\n" in out
    assert f"step 1 of 6 is saved in {file}; the same command goes on from there\n" in out
    assert cli.main(["train", "mnist", "--steps", "6", "--checkpoint", str(file)]) == 0
    assert cli.main(["train", "mnist", "--steps", "6", "--checkpoint", str(whole)]) == 0
    assert f"going on from step 1 in {file}" in capsys.readouterr().out
    first, second = safe_load(file), safe_load(whole)
    assert all(np.array_equal(tensor.numpy(), second[name].numpy()) for name, tensor in first.items())


@pytest.mark.slow_on("PYTHON")
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself Ctrl-C there")
@pytest.mark.parametrize("times, checkpoint", [(2, True), (1, False)])
def test_a_second_ctrl_c_or_one_without_a_checkpoint_stops_at_once(few_images, tmp_path, monkeypatch, times,
                                                                   checkpoint):
    file = tmp_path / "stopped"

    def interrupted(self):
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on")
    monkeypatch.setattr(train.Tensor, "item", interrupted)
    assert cli.main(["train", "mnist", "--steps", "6", *(["--checkpoint", str(file)] if checkpoint else [])]) == 130
    assert not file.exists()


@pytest.mark.slow_on("PYTHON")
def test_ctrl_c_between_a_step_and_its_save_is_not_said_to_be_saved(few_images, tmp_path, capsys, monkeypatch):
    """One more step is done, and is saved."""
    file, answers = tmp_path / "stopped", iter([False])

    class Asked:                                     # a Ctrl-C after the first question
        def is_set(self):
            return next(answers, True)
    monkeypatch.setattr(training_loop, "_interrupt_noted", lambda wanted: nullcontext(Asked()))
    assert cli.main(["train", "mnist", "--steps", "6", "--checkpoint", str(file)]) == 130
    assert f"step 2 of 6 is saved in {file}" in capsys.readouterr().out
    assert safe_load(file)["model.0.weight"].shape == (16, 1, 3, 3)


@pytest.mark.slow_on("PYTHON")
def test_training_on_text_learns_and_writes_a_sample(monkeypatch, capsys):
    monkeypatch.setattr(train, "shakespeare", lambda: "to be, or not to be\n" * 100)
    assert cli.main(["train", "shakespeare", "--steps", "30", "--batch", "8"]) == 0
    out = capsys.readouterr().out
    loss = re.search(r"step 30: loss [\d.]+, validation loss ([\d.]+)", out)
    assert loss and float(loss[1]) < 1.5 and len(out) > 300


def test_train_without_data_says_how_to_get_them(monkeypatch, capsys):
    def nowhere() -> None:
        raise datafiles.DataMissingError("MNIST is not on this machine", given="nothing", expected="files",
                                         fix="connect to the network")

    monkeypatch.setattr(train.datasets, "mnist", nowhere)
    assert cli.main(["train", "mnist"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "MNIST is not on this machine" in err and "connect to the network" in err


# ---- the demo


@pytest.mark.slow_on("PYTHON")
def test_without_mnist_the_demo_says_so_and_learns_the_digits_that_ship(monkeypatch, capsys):
    def nowhere() -> datafiles.Arrays:
        raise datafiles.DataMissingError("MNIST is not on this machine", fix="connect to the network")

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
