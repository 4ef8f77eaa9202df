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
SIZE = {"width": 1366, "height": 768}


def record(folder: Path) -> Path:
    """The page of a short training run of the example, whose kernels are compiled already."""
    out = folder / "mnist.html"
    command = [sys.executable, str(ROOT / "examples" / "beautiful_mnist.py"), "--test-images", "500", "--steps"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "3"], check=True, env=environment, cwd=folder)
    subprocess.run([*command, "20"], check=True, env={**environment, "VIZ": str(out)}, cwd=folder)
    return out


def click_line(page: Any) -> None:
    page.click(".src-line.used:has-text('return self.layers')")
    page.wait_for_selector(".box.lit")


def open_kernel(page: Any) -> None:
    page.locator("svg.graph .box.selected").dispatch_event("click")
    page.wait_for_selector("svg.graph .cluster")


def loop_tree(page: Any) -> None:
    page.click("button:has-text('Loop tree and source')")
    page.locator(".side-by-side section:nth-child(1) .row.linked", has_text="+=").first.dispatch_event("click")
    page.wait_for_selector(".picked")


def one_call(page: Any) -> None:
    page.click("button:has-text('one jitted call')")


def drawn(page: Any) -> None:
    """Wait until what was pressed is drawn: two frames of the browser."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


SHOTS: dict[str, tuple[str, Any]] = {
    "overview": ("1", None), "graph": ("2", click_line), "schedule": ("3", open_kernel), "kernel": ("4", None),
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
            drawn(page)
            if act is not None:
                act(page)
                drawn(page)
            page.screenshot(path=str(IMAGES / f"viz_{name}.png"))
            page.close()
            print(f"drawn: docs/img/viz_{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
