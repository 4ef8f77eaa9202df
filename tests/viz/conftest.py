"""A recorded training run, and a browser to look at pages with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium

sys.path.insert(0, str(Path(__file__).parent))

from recorded import TRAINING, data_of, page_of  # noqa: E402 - lies beside this file

ARTIFACTS = os.environ.get("SCREENSHOTS")           # a folder for pictures of every view


@pytest.fixture(scope="session")
def training_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small training run."""
    path = tmp_path_factory.mktemp("viz") / "training.html"
    page_of(TRAINING, path, name="training.py")
    return path


@pytest.fixture(scope="session")
def training(training_page: Path) -> dict[str, Any]:
    """Its data."""
    return data_of(training_page.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; whatever it reports as an error, and whatever it tries to load, fails the test."""
    pages: list[Any] = []
    wrong: list[str] = []

    def open_page(address: str | Path, size: tuple[int, int] = (1366, 768)) -> Any:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        pages.append(page)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        address = address.as_uri() if isinstance(address, Path) else address
        page.on("request", lambda request: wrong.append(f"loads {request.url}")
                if request.url.split("#")[0] != address and "favicon" not in request.url else None)
        page.goto(address)
        page.wait_for_selector(".app")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not wrong, wrong


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """Keeps a picture of a page where SCREENSHOTS names a folder."""
    def take(page: Any, name: str) -> None:
        if ARTIFACTS:
            Path(ARTIFACTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(Path(ARTIFACTS) / f"{name}.png"))
    return take
