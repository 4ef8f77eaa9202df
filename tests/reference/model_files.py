"""Where real model files are on this machine; tests that want them skip with a reason where they are not."""

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
