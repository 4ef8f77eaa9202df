"""Files: what `torch.save` writes here PyTorch reads, and what PyTorch writes is read here."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgrad.torch as ours
from glassgrad import FormatError, InputError, Tensor, nn

theirs = pytest.importorskip("torch")


def test_files_hold_tensors_and_plain_values(tmp_path: Path) -> None:
    state = {"model": {"w": Tensor([1.0, 2.0])}, "epoch": 3, "losses": [0.5], "dtype": ours.float32}
    ours.save(state, tmp_path / "ours.pt")
    found = ours.load(tmp_path / "ours.pt", map_location="cpu", weights_only=True)
    assert found["model"]["w"].tolist() == [1, 2] and found["epoch"] == 3 and found["dtype"] is ours.float32
    theirs.save({"w": theirs.tensor([3.0])}, tmp_path / "theirs.pt")
    assert ours.load(tmp_path / "theirs.pt")["w"].tolist() == [3]
    assert isinstance(found["model"]["w"], ours.Tensor)
    numbers = {"loss": np.float32(0.5), "count": np.int64(1 << 40), "best": np.bool_(True), "rate": np.float64(0.1)}
    ours.save(numbers, tmp_path / "numbers.pt")
    assert ours.load(tmp_path / "numbers.pt") == {"loss": 0.5, "count": 1 << 40, "best": True, "rate": 0.1}
    assert theirs.load(tmp_path / "numbers.pt", weights_only=True)["best"] is True
    for value, text, fix in ((nn.Identity(), "Identity() of type glassgrad.nn.layers.linear.Identity",
                              "save model.state_dict(), not the model itself"),
                             (np.array([1.0, 2.0]), "array([1., 2.]) of type numpy.ndarray",
                              "write Tensor(array) in its place"),
                             (np.datetime64("2026"), "np.datetime64('2026') of type numpy.datetime64",
                              "save the numbers, strings and tensors that it consists of")):
        with pytest.raises(InputError) as wrong:
            ours.save(value, tmp_path / "model.pt")
        assert str(wrong.value).partition("\n  at: ")[0] == f"""\
a file of tensors does not hold this
  given:    {text}
  expected: tensors, numbers, strings, bytes, element types, lists, tuples, sets and dictionaries
  fix:      {fix}"""
    assert not (tmp_path / "model.pt").exists()
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InputError, match="a file cannot hold a value that holds itself"):
        ours.save(circle, tmp_path / "circle.pt")
    with pytest.raises(FormatError, match="not a file of PyTorch"):
        ours.load(io.BytesIO(b"hello"))


def test_a_file_that_cannot_be_written_whole_leaves_the_one_before(tmp_path: Path, monkeypatch: Any) -> None:
    ours.save({"w": Tensor([1.0])}, tmp_path / "all.pt")

    def full(_: int) -> None:
        raise OSError("no space left on device")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        ours.save({"w": Tensor([2.0])}, tmp_path / "all.pt")
    assert os.listdir(tmp_path) == ["all.pt"] and ours.load(tmp_path / "all.pt")["w"].tolist() == [1.0]


@pytest.mark.parametrize("weights_only", [True, False])
def test_pytorch_reads_what_is_saved_here(tmp_path: Path, weights_only: bool) -> None:
    kinds = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "bool",
             "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    tied = ours.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    plain = {"epoch": 3, "large": 1 << 70, "less": -(1 << 40), "rate": 0.1, "name": "h\u00e9", "rows": [1, (2, ()), []],
             "ordered": OrderedDict(a=None, b=True), "betas": (0.9, 0.999)}
    tensors = {**{kind: ours.tensor([0, 1, 1], dtype=getattr(ours, kind)) for kind in kinds}, "tied": tied,
               "again": tied, "number": ours.tensor(2.5), "empty": ours.zeros(0, 3), "transposed": tied.T}
    optimizer = ours.optim.Adam([tied])
    _ = tied.sum().backward()
    optimizer.step()
    ours.save({**plain, **tensors, "type": ours.float16, "optimizer": optimizer.state_dict()}, tmp_path / "all.pt")
    there = theirs.load(tmp_path / "all.pt", weights_only=weights_only)
    assert {name: there[name] for name in plain} == plain and there["type"] is theirs.float16
    for name, tensor in tensors.items():
        assert there[name].tolist() == tensor.tolist() and there[name].requires_grad == (tensor.requires_grad is True)
        assert str(there[name].dtype).removeprefix("torch.") == (name if name in kinds else "float32")
    assert there["tied"].data_ptr() == there["again"].data_ptr()
    assert there["optimizer"]["state"][0]["exp_avg"].shape == (2, 3)
    here = ours.load(tmp_path / "all.pt")
    assert {name: here[name].tolist() for name in tensors} == {name: t.tolist() for name, t in tensors.items()}


def test_a_file_without_counts_of_batches_loads() -> None:
    """PyTorch before 0.4.1 wrote none, and PyTorch loads such files."""
    there, here = theirs.nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    state = {name: t for name, t in there.state_dict().items() if name != "num_batches_tracked"}
    state["running_mean"] = theirs.tensor([3.0, 4.0])
    report = nn.state.load_state_dict({"bn": here}, {f"bn.{name}": t for name, t in state.items()})
    assert report.missing_keys == [] and here.running_mean is not None and here.running_mean.tolist() == [3, 4]
    with pytest.raises(InputError, match="1 missing from the state"):
        nn.state.load_state_dict(here, {name: t for name, t in state.items() if name != "running_var"})


def test_files_hold_sets_bytes_and_complex_numbers(tmp_path: Path) -> None:
    values = {"seen": {1, "a"}, "key": bytes(range(256)), "root": 1 - 2j, "large": bytearray(b"ab"), "none": set(),
              "single": np.complex64(1j), "nested": [b"", (1j, {b"x"})]}
    ours.save(values, tmp_path / "ours.pt")
    assert theirs.load(tmp_path / "ours.pt", weights_only=True) == ours.load(tmp_path / "ours.pt") == values
    ours.save({"fixed": frozenset({1, 2})}, tmp_path / "fixed.pt")
    assert theirs.load(tmp_path / "fixed.pt", weights_only=False) == {"fixed": frozenset({1, 2})}
