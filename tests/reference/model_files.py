"""Where real data and model files are on this machine; tests that want them skip with a reason where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def model_file(name: str) -> Path:
    """A file of $GLASSGRAD_DATA/models or ../shared/data/models, or a skip."""
    for place in (os.environ.get("GLASSGRAD_DATA"), ROOT.parent / "shared" / "data"):
        if place and (Path(place) / "models" / name).is_file():
            return Path(place) / "models" / name
    pytest.skip(f"the real model is absent: no models/{name} in $GLASSGRAD_DATA or ../shared/data")


def data_folder(name: str) -> Path:
    """A folder of real data that is already on this machine, or a skip: tests never download."""
    places = [Path(p) for p in (os.environ.get("GLASSGRAD_DATA"), ROOT.parent / "shared" / "data") if p]
    for place in places:
        if (place / name).is_dir():
            return place / name
    pytest.skip(f"the real data are absent: no {name}/ in $GLASSGRAD_DATA or ../shared/data")
