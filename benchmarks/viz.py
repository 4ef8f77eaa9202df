"""Measure what the visualizer and the sanitizer cost: `python -m benchmarks.viz`. Out: JSON.

    overhead    of VIZ and of SANITIZE on a jitted training step: a tiny one, the MLP of the MNIST digits with batches
                of 64, and one that is mostly products; taken in turn, ratios of what the faster steps take (a tenth
                is faster still): others may use the machine
    page        bytes of the page after 10,000 small steps, and seconds to make it
    opening     seconds from opening a page to its graph, for 10,000 and 50,000 nodes, in Chromium without a window
    moving      the same graphs with some calls opened: seconds to open them, and milliseconds from frame to frame while
                the drawing is zoomed and dragged (60 a second are 17; Chromium draws without a GPU here)
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["measure_moving", "measure_opening_a_page", "measure_overhead", "measure_page"]

STEPS, ROUNDS = 200, 15
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def training_step(sizes: tuple[int, int, int], batch: int) -> Callable[[], Any]:
    """A jitted step of a network of two layers, captured."""
    from glassgrad import Tensor, TinyJit, nn
    first, second = nn.Linear(sizes[0], sizes[1]), nn.Linear(sizes[1], sizes[2])
    optimizer = nn.optim.SGD(nn.state.get_parameters([first, second]), lr=0.01)
    x, y = Tensor.rand(batch, sizes[0]).realize(), Tensor.randint(batch, high=sizes[2]).realize()

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = second(first(x).relu()).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(4):
        step(x, y)
    return lambda: step(x, y)


def _seconds(step: Callable[[], Any], steps: int) -> list[float]:
    """What each of some steps takes, after a few that are not counted: VIZ notes the first ones kernel by kernel."""
    taken = []
    for number in range(-5, steps):
        began = time.perf_counter()
        step()
        if number >= 0:
            taken.append(time.perf_counter() - began)
    return taken


def _faster(taken: list[float]) -> float:
    return sorted(taken)[len(taken) // 10]


def measure_overhead() -> dict[str, dict[str, float]]:
    """Seconds of a step, and how many times as long it takes while it is recorded, and while it is sanitized."""
    from glassgrad import Context
    from glassgrad.viz.program_recording import begin, end
    found = {}
    cases = (("tiny", (64, 48, 10), 32, STEPS), ("digits", (784, 128, 10), 64, STEPS),
             ("products", (1024, 1024, 10), 256, 12))
    for name, sizes, batch, steps in cases:
        step, sanitized = training_step(sizes, batch), None
        with Context(SANITIZE=1):
            sanitized = training_step(sizes, batch)
        plain: list[float] = []
        recorded: list[float] = []
        checked: list[float] = []
        for _ in range(ROUNDS):
            plain += _seconds(step, steps)
            begin("out.html")
            recorded += _seconds(step, steps)
            end()
            with Context(SANITIZE=1):
                checked += _seconds(sanitized, steps)
        one = _faster(plain)
        found[name] = {"step": one, "VIZ": _faster(recorded) / one, "SANITIZE": _faster(checked) / one}
    return found


def measure_page(steps: int = 10_000) -> dict[str, float]:
    """Bytes of the page after so many small steps, and seconds to make it."""
    from glassgrad.viz.html_file import html_page
    from glassgrad.viz.page_data import page_data
    from glassgrad.viz.program_recording import begin, end
    begin("out.html")
    step = training_step((64, 48, 10), 32)
    for _ in range(steps):
        step()
    recorder = end()
    assert recorder is not None
    began = time.perf_counter()
    size = len(html_page(page_data(recorder)))
    return {"steps": steps, "bytes": size, "seconds": time.perf_counter() - began}


def _large_page(nodes: int, path: Path) -> None:
    """A page with a graph of so many nodes, a hundred to a call."""
    from glassgrad import Tensor
    from glassgrad.engine.observer import observed_by
    from glassgrad.engine.realize import forgotten_schedules
    from glassgrad.viz.html_file import write_page
    from glassgrad.viz.page_data import page_data
    from glassgrad.viz.recorder import Recorder
    recorder = Recorder()
    with forgotten_schedules(), observed_by(recorder):
        (Tensor.rand(4).realize() + 1).realize()
    data = page_data(recorder, measure=False, texts=False)
    for rows in (data["graphs"][0]["written"], data["graphs"][0]["nodes"]):
        rows += [["ADD", "binary", "float32", [4], [len(rows) + i - 1, max(0, len(rows) + i - 50)], "", -1, i // 100, 0]
                 for i in range(nodes - len(rows))]
    data["calls"] = [[-1 if i % 10 == 0 else i - i % 10, f"block{i}", "layer"] for i in range(nodes // 100 + 1)]
    write_page(data, path)


@contextmanager
def _browser() -> Iterator[Any]:
    """Chromium without a window; None where there is none, or nothing to drive it."""
    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        yield None
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def _open_graph(browser: Any, path: Path) -> Any:
    page = browser.new_page()
    page.goto(path.as_uri() + "#view=graph&graph=0")
    page.wait_for_selector(".app")
    page.keyboard.press("2")
    page.wait_for_selector("svg.graph .box")
    return page


def measure_opening_a_page(nodes: int, times: int = 3) -> float | None:
    """Seconds from opening a page to its graph; None where there is no browser to drive."""
    found = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder, _browser() as browser:
        if browser is None:
            return None
        path = Path(folder) / "large.html"
        _large_page(nodes, path)
        for _ in range(times):
            page = _open_graph(browser, path)
            found.append(page.evaluate("performance.now()") / 1000)
            page.close()
    return min(found)


FRAMES = """() => {
  window.frames_seen = [];
  let before = performance.now();
  const next = (now) => { window.frames_seen.push(now - before); before = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""


def measure_moving(nodes: int, moves: int = 120) -> dict[str, float] | None:
    """Opens calls with the key e, then zooms by the wheel and drags: what a frame takes, median and worst 5%."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder, _browser() as browser:
        if browser is None:
            return None
        path = Path(folder) / "large.html"
        _large_page(nodes, path)
        page = _open_graph(browser, path)
        before, began = page.locator("svg.graph .box").count(), time.perf_counter()
        page.keyboard.press("e")
        while page.locator("svg.graph .box").count() == before and time.perf_counter() - began < 30:
            pass
        opened = time.perf_counter() - began
        page.mouse.move(600, 400)
        page.evaluate(FRAMES)
        for number in range(moves):
            page.mouse.wheel(0, 60 if number % 20 < 10 else -60)
        page.mouse.down()
        for number in range(moves):
            page.mouse.move(600 + 3 * (number % 50), 400 + 2 * (number % 40))
        page.mouse.up()
        frames = sorted(page.evaluate("window.frames_seen"))
        boxes = page.locator("svg.graph .box").count()
    return {"boxes": boxes, "opened": opened, "frame": frames[len(frames) // 2],
            "slow frame": frames[len(frames) * 95 // 100]}


def main() -> None:
    """Print everything as JSON."""
    json.dump({"overhead": measure_overhead(), "page": measure_page(),
               "opening": {nodes: measure_opening_a_page(nodes) for nodes in (10_000, 50_000)},
               "moving": {nodes: measure_moving(nodes) for nodes in (10_000, 50_000)}}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
