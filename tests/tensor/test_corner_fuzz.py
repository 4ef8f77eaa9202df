"""Random calls in corners and random writes through views, a few of each; `./dev fuzz` goes on with others."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients and layers, is not installed")

import method_fuzzer  # noqa: E402
import write_fuzzer  # noqa: E402


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_single_methods_give_what_pytorch_gives_in_corners(first: int) -> None:
    reports = [method_fuzzer.check(seed) for seed in range(first, first + 50)]
    assert not any(reports), "\n\n".join(filter(None, reports))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_views_and_writes_in_place_give_what_pytorch_gives(first: int) -> None:
    reports = [write_fuzzer.check(seed) for seed in range(first, first + 25)]
    assert not any(reports), "\n\n".join(filter(None, reports))


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
