"""Messages about tuning files, each read whole."""
# ruff: noqa: E501   (messages stand here as users see them)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassgrad import FormatError, InputError, Tensor
from glassgrad.runtime.cpu.native_device import NativeDevice
from glassgrad.runtime.search import tuning_results as tuning


def text(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value).partition("\n  at: ")[0]


def refused(path: Path, **content: Any) -> str:
    path.write_text(json.dumps(content))
    with pytest.raises(FormatError) as error:
        tuning.import_tuning(path)
    return text(error)


def test_nothing_to_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "known", lambda: [])
    monkeypatch.setattr(tuning, "tuning_folder", lambda: "/kept/here")
    with pytest.raises(InputError) as error:
        tuning.export_tuning("never.json")
    assert text(error) == """\
there is nothing to export: no search has been made on this machine with this version
  given:    the folder /kept/here
  expected: results of searches
  fix:      run your program with BEAM=2 first"""


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        tuning.import_tuning(tmp_path / "none.json")
    assert text(error) == f"""\
the tuning file cannot be read
  given:    {tmp_path / "none.json"}: No such file or directory
  expected: a file written by glassgrad tune export
  fix:      check the path"""


def test_another_file(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    assert refused(path, format="music") == f"""\
this is not a tuning file, or it is damaged
  given:    {path}: its format is 'music'
  expected: a file written by glassgrad tune export ("format": "{tuning.FORMAT}")
  fix:      export it again"""


def test_another_version_and_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuned.json"
    monkeypatch.setattr(tuning, "source_digest", lambda: "1234567890abcdef")
    monkeypatch.setattr(tuning, "machine", lambda: {"processor": "fast", "threads": 4})
    assert refused(path, format=tuning.FORMAT, version="fedcba0987654321") == f"""\
the tuning file was made by another version of glassgrad
  given:    {path}
  expected: version 1234567890ab, not fedcba098765
  fix:      search again with this version: its recipes may be faster than what was found then"""
    there = {"processor": "fast", "threads": 2}
    assert refused(path, format=tuning.FORMAT, version="1234567890abcdef", machine=there) == f"""\
the tuning file was made on another machine
  given:    {path}: threads 2
  expected: threads 4
  fix:      search on this machine: BEAM=2, or set THREADS=2"""


def test_moves_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    [item] = (Tensor([1.0, 2.0]) + 1).schedule()
    monkeypatch.setattr(NativeDevice, "moves", lambda self, ast: ("fly()",))
    with pytest.raises(FormatError) as error:
        NativeDevice("CPU", "llvm").programs([item.ast])
    assert text(error).splitlines()[0] == "what a tuning file says of a kernel does not fit it"
    assert text(error).splitlines()[2:] == ["  expected: moves as a search found them",
                                            "  fix:      glassgrad tune clear, and search again"]
    assert "fly" in error.value.given
