"""The pictures of docs/guide/visualizer.md, from a page that is really recorded. Out: docs/img/viz_*.png.

    python docs/tools/screenshots.py        needs Chromium and `pip install playwright`, and the MNIST files
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "docs" / "img"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1280, "height": 760}


def record(folder: Path) -> Path:
    """The page of a short training run of the example."""
    out = folder / "mnist.html"
    example = str(ROOT / "examples" / "beautiful_mnist.py")
    subprocess.run([sys.executable, example, "--steps", "10", "--test-images", "500"], check=True,
                   env={**os.environ, "VIZ": str(out), "PYTHONPATH": str(ROOT)}, cwd=folder)
    return out


def click_line(page: Any) -> None:
    page.click(".src-line.used:has-text('return self.layers')")
    page.wait_for_selector(".box.lit")


def loop_tree(page: Any) -> None:
    page.click("button:has-text('Loop tree and source')")
    page.locator(".side-by-side section:nth-child(2) .row", has_text="for (").first.hover()


def one_call(page: Any) -> None:
    page.click("button:has-text('one jitted call')")


SHOTS: dict[str, tuple[str, Any]] = {
    "overview": ("1", None), "graph": ("2", click_line), "schedule": ("3", None), "kernel": ("4", None),
    "source": ("4", loop_tree), "timeline": ("5", one_call), "memory": ("6", None), "gradient": ("7", None)}


def main() -> None:
    from playwright.sync_api import sync_playwright
    browser_path = next(path for name in CHROMIUM if (path := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        address = record(Path(folder)).as_uri()
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        for name, (key, act) in SHOTS.items():
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto(address)
            page.wait_for_selector(".app")
            page.keyboard.press(key)
            page.wait_for_timeout(300)
            if act is not None:
                act(page)
                page.wait_for_timeout(400)
            page.screenshot(path=str(IMAGES / f"viz_{name}.png"))
            page.close()
            print(f"drawn: docs/img/viz_{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
