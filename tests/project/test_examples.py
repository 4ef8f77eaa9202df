"""The examples run, shortened: each explains itself, learns or tells what it should, and goes on from a checkpoint."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from glassgrad import Tensor
from glassgrad.nn.state import get_state_dict, safe_save

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "common")
STORY = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she "
         "saw a big, red ball. She wanted to play with it, but it was too high.")


def example(name: str, *arguments: str, status: int = 0) -> str:
    """What an example prints; it must end with this status."""
    done = subprocess.run([sys.executable, f"examples/{name}.py", *arguments], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def loaded_module(name: str) -> ModuleType:
    """An example as a module, to look into."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "examples"))


def needs(name: str) -> Path:
    """Real data that are already on this machine, or a skip: tests never download."""
    for place in (os.environ.get("GLASSGRAD_DATA"), ROOT.parent / "shared" / "data"):
        if place and (Path(place) / name).exists():
            return Path(place) / name
    pytest.skip(f"the real data are absent: no {name} in $GLASSGRAD_DATA or ../shared/data")


def number(text: str, before: str) -> float:
    found = re.search(before + r"\s*([\d.]+)", text)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_shows_its_usage(name):
    assert example(name, "--help").startswith(f"usage: {name}.py")


def test_there_are_five_examples():
    assert EXAMPLES == ["beautiful_mnist", "gpt", "llama", "resnet", "transformer"]


@pytest.mark.parametrize("name, option", [("gpt", "--steps"), ("llama", "--tokens"), ("resnet", "--batch")])
def test_a_count_below_1_is_refused(name, option):
    assert "is less than 1" in example(name, option, "0", status=2)


# ---- telling


@pytest.mark.slow_on("PYTHON")
def test_llama_tells_the_known_story():
    needs("models/llama2c")
    assert example("llama", "--tokens", "100").startswith(STORY)


@pytest.mark.slow_on("PYTHON")
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_llama_from_gguf_tells_the_same(kind):
    file = needs("models/gguf") / f"stories260K-{kind}.gguf"
    told = example("llama", "--model", str(file), "--tokens", "60")
    assert len(told) > 100 and STORY.startswith(told[:-1])


@pytest.mark.slow_on("PYTHON")
def test_llama_goes_on_with_its_story(tmp_path):
    needs("models/llama2c")
    file = str(tmp_path / "story.safetensors")
    begun = example("llama", "--tokens", "20", "--checkpoint", file)
    assert STORY.startswith(begun[:-1])
    assert STORY.startswith(example("llama", "--tokens", "50", "--checkpoint", file)[:-1])


@pytest.mark.slow_on("PYTHON")
def test_the_commands_that_llama_suggests_run(tmp_path):
    needs("models/llama2c")
    commands = re.findall(r"^    python examples/(llama.py.*?)(?:   .*)?$", example("llama", "--help"), re.M)
    assert len(commands) == 3
    for command in commands:
        words = [sys.executable, str(ROOT / "examples" / "llama.py"), *shlex.split(command)[1:], "--tokens", "5"]
        subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=300)
    assert (tmp_path / "story.safetensors").exists()


def test_llama_refuses_what_is_no_model(tmp_path):
    (tmp_path / "short.bin").write_bytes(b"abc")
    out = example("llama", "--model", str(tmp_path / "short.bin"), "--tokenizer", "unread.bin", status=1)
    assert "not a llama2.c checkpoint" in out


# ---- learning


@pytest.mark.slow_on("PYTHON")
def test_the_transformer_learns_to_sort(tmp_path):
    file = str(tmp_path / "sort.safetensors")
    example("transformer", "--length", "5", "--steps", "60", "--checkpoint", file)
    out = example("transformer", "--length", "5", "--steps", "120", "--checkpoint", file)
    assert "going on from step 60" in out
    assert float(re.search(r"([\d.]+)% of 10,000 new rows", out)[1]) > 50


@pytest.mark.slow_on("PYTHON")
def test_gpt_learns_characters():
    needs("text")
    out = example("gpt", "--steps", "40", "--batch", "8", "--tokens", "20", "--temperature", "0")
    assert number(out, "validation loss") < 3.3         # guessing among 65 characters is 4.17


def test_gpt_reads_the_published_names(tmp_path):
    gpt = loaded_module("gpt")
    model = gpt.GPT(gpt.Config(words=6, length=8, layers=2, heads=1, width=64))
    names = {f"transformer.{name}": tensor for name, tensor in get_state_dict(model).items()}
    safe_save({**names, "transformer.h.0.attn.bias": Tensor.ones(1, 1, 8, 8),
               "lm_head.weight": model.wte.weight}, tmp_path / "model.safetensors")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120ab": 4, "c": 5}',
                                          encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n\u0120 ab\n", encoding="utf-8")
    loaded, tokens = gpt.load_gpt2(tmp_path / "model.safetensors")
    assert tokens.encode("ab abc") == [2, 4, 5] and tokens.decode(4) == b" ab"
    row = Tensor([[0, 1, 2, 5]])
    np.testing.assert_allclose(loaded(row).numpy(), model(row).numpy(), rtol=1e-6, atol=1e-6)
    (tmp_path / "merges.txt").unlink()
    assert "no merges.txt in" in example("gpt", "--weights", str(tmp_path / "model.safetensors"), status=1)


@pytest.mark.slow_on("PYTHON")
def test_the_published_resnet_is_as_good_as_it_says():
    needs("models/torch")
    needs("cifar-10-batches-bin")
    out = example("resnet", "--evaluate", "--test-images", "500")
    assert number(out, "test accuracy:") == 91.0        # as PyTorch with the same file; of all 10,000: 91.73


@pytest.mark.slow_on("PYTHON")
def test_a_resnet_learns(tmp_path):
    needs("cifar-10-batches-bin")
    out = example("resnet", "--steps", "8", "--batch", "16", "--test-images", "100",
                  "--checkpoint", str(tmp_path / "resnet.safetensors"))
    assert number(out, "step 8: loss") < 4 and "test accuracy" in out


@pytest.mark.parametrize("name, parameters", [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_the_names_and_sizes_are_torchvisions(name, parameters):
    state = get_state_dict(loaded_module("resnet").build(name, classes=1000))
    learned = {n: t for n, t in state.items() if not n.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    assert sum(t.numel() for t in learned.values()) == parameters
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias", "layer4.1.bn2.running_mean",
            "fc.weight"} <= state.keys()


@pytest.mark.slow_on("PYTHON")
def test_beautiful_mnist_learns():
    needs("mnist")
    out = example("beautiful_mnist", "--steps", "25", "--batch", "32", "--test-images", "500")
    assert number(out, "step 25: loss") < 1.6
