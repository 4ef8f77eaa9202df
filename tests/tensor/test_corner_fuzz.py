"""Random calls in corners and random writes through views, a few of each; `./dev fuzz` goes on with others."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients and layers, is not installed")

import loop_fuzzer  # noqa: E402
import method_fuzzer  # noqa: E402
import training_fuzzer  # noqa: E402
import write_fuzzer  # noqa: E402
import wrong_argument_fuzzer  # noqa: E402

from glassgrad import Device, InputError  # noqa: E402


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_single_methods_give_what_pytorch_gives_in_corners(first: int) -> None:
    reports = [method_fuzzer.check(seed) for seed in range(first, first + 50)]
    if not Device[Device.DEFAULT].has_float64:
        reports = [report for report in reports if " has no float64\n" not in report]
    assert not any(reports), "\n\n".join(filter(None, reports))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_wrong_argument_is_explained(first: int) -> None:
    reports = [wrong_argument_fuzzer.check(seed) for seed in range(first, first + 50)]
    assert not any(reports), "\n\n".join(filter(None, reports))


@pytest.mark.filterwarnings("ignore")
def test_an_argument_that_is_not_explained_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [seed for seed in range(3000) if ".tril(" in wrong_argument_fuzzer.WrongCall(seed).text]
    for error in (KeyError("k"), InputError("too little is said")):
        monkeypatch.setattr("glassgrad.tensor.methods.creation.tril", Mock(side_effect=error))
        assert any(f"{type(error).__name__}: " in wrong_argument_fuzzer.check(seed) for seed in seeds)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_views_and_writes_in_place_give_what_pytorch_gives(first: int) -> None:
    reports = [write_fuzzer.check(seed) for seed in range(first, first + 25)]
    assert not any(reports), "\n\n".join(filter(None, reports))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
def test_models_train_as_in_pytorch(seed: int) -> None:
    assert not (report := training_fuzzer.check(seed)), report


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_training_loops_with_the_jit_do_as_pytorch(seed: int) -> None:
    assert not (report := loop_fuzzer.check(seed)), report


@pytest.mark.filterwarnings("ignore")
def test_a_loop_whose_gradients_are_not_cleared_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad.torch import optim
    monkeypatch.setattr(optim.SGD, "zero_grad", lambda self, set_to_none=True: None)
    seed = next(seed for seed in range(99) if "o = torch.optim.SGD(p, lr=0.05)" in (
        program := loop_fuzzer.LoopProgram(seed)).text and program.together and "o.zero_grad()" in program.text)
    assert ", PyTorch [" in loop_fuzzer.check(seed)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_step_of_training_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad.torch import optim
    monkeypatch.setattr(optim.SGD, "step", lambda self: None)
    seed = next(seed for seed in range(99) if training_fuzzer.TrainingProgram(seed).optimizer.startswith("SGD(p, lr"))
    assert ", PyTorch [" in training_fuzzer.check(seed)


def test_a_wrong_result_is_reported_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generators can fail: a broken method is found and its program is made small."""
    from glassgrad.torch import Tensor
    monkeypatch.setattr(Tensor, "abs", lambda self: self)
    seeds = [seed for seed in range(3000) if method_fuzzer.Corner(seed).text == "x.abs()"]
    assert any("x.abs()" in method_fuzzer.check(seed) for seed in seeds)
    monkeypatch.setattr(Tensor, "neg_", lambda self: self)
    programs = (write_fuzzer.check(seed) for seed in range(300)
                if any(".neg_()" in line for line in write_fuzzer.WriteProgram(seed).lines))
    assert any(".neg_()" in report for report in programs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_functions_of_the_largest_numbers(dtype: str) -> None:
    """Found by the generators: acosh of the largest number was infinite, sinc of float16's was NaN."""
    import torch

    from glassgrad import Tensor
    largest = torch.tensor([torch.finfo(getattr(torch, dtype)).max, 1.5, 3.0], dtype=getattr(torch, dtype))
    x = Tensor(largest.double().numpy()).cast(dtype)
    for ours, theirs in ((x.acosh(), largest.acosh()), (x.asinh(), largest.asinh()), (x.sinc(), largest.sinc())):
        assert ours.dtype.name == dtype
        torch.testing.assert_close(torch.tensor(ours.double().numpy()), theirs.double(), rtol=1e-2, atol=1e-3,
                                   equal_nan=True)
