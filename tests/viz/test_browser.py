"""The page in a real browser: every view, every link, the keys, and the way to the slowest kernel, its line and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import data_of, page_of

from glassgrad import Tensor
from glassgrad.engine.observer import observed_by
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.viz.html_file import write_page
from glassgrad.viz.page_data import page_data
from glassgrad.viz.recorder import Recorder

pytestmark = pytest.mark.only_on("CPU", reason="the page is the same for all devices")
ROOT = Path(__file__).resolve().parents[2]
VIEWS = ["Overview", "Graph", "Schedule", "Kernel", "Timeline", "Memory", "Gradient"]
PRODUCT = "reduce_32_48_r64"                           # the first layer of the recorded training run
Look = Callable[..., Any]


def go(page: Any, view: str) -> None:
    page.click(f"nav[aria-label=views] button:has-text('{view}')")
    page.wait_for_selector(f"nav[aria-label=views] button.on:has-text('{view}')")


def choose(page: Any, name: str) -> None:
    """Show a kernel by its name: which one is the slowest changes from run to run."""
    go(page, "Kernel")
    number = page.evaluate("name => [...document.querySelector('select[aria-label=kernel]').options]"
                           ".find(option => option.text.includes(name)).value", name)
    page.select_option("select[aria-label=kernel]", number)
    page.wait_for_selector(f".kernel-card h3:has-text('{name}')")


def drawn(page: Any) -> None:
    """Wait until what was pressed or pointed at is drawn: two frames of the browser."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


# -- the views -----------------------------------------------------------------------------------------------
def test_every_view_shows_something(look: Look, training_page: Path, picture: Callable[[Any, str], None]) -> None:
    page = look(training_page)
    wanted = {"Overview": ".kernels tbody tr", "Graph": "svg.graph .box", "Schedule": ".kernel-list li",
              "Kernel": ".listing .row", "Timeline": "canvas", "Memory": ".plot .area",
              "Gradient": ".gradient tbody tr"}
    for theme in ("light", "dark"):
        while page.evaluate("document.documentElement.dataset.theme") != theme:
            page.keyboard.press("t")
            drawn(page)
        for view in VIEWS:
            go(page, view)
            page.wait_for_selector(wanted[view])
            picture(page, f"{view.lower()}-{theme}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is too wide"
            cards = "[...document.querySelectorAll('.card')]"
            assert page.evaluate(f"{cards}.every(card => card.scrollWidth <= card.clientWidth)"), \
                f"a card of {view} is cut off at its right"


def test_keys_choose_views_and_search(look: Look, training_page: Path) -> None:
    page = look(training_page)
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.wait_for_selector(f"nav[aria-label=views] button.on:has-text('{view}')")
    page.keyboard.press("1")
    page.keyboard.press("/")
    page.keyboard.type("no such kernel")
    page.wait_for_function("document.querySelectorAll('.kernels tbody tr').length === 0")
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelectorAll('.kernels tbody tr').length > 3")
    page.keyboard.press("?")
    page.wait_for_selector("[role=dialog]")
    page.keyboard.press("Escape")
    page.wait_for_selector("[role=dialog]", state="detached")


def test_what_is_no_button_has_the_keyboard_too(look: Look, training_page: Path) -> None:
    """Lines of the program, boxes of drawings, rows of listings: Tab reaches them, Enter is a click."""
    page = look(training_page)
    page.focus(".src-line.used:has-text('self.first(x)')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".src-line.selected:has-text('self.first(x)')")
    page.keyboard.press("2")
    page.focus("svg.graph .box:not(.group)")
    page.keyboard.press("Enter")
    page.wait_for_selector(".node-card")
    page.keyboard.press("Escape")
    page.wait_for_selector(".node-card", state="detached")
    page.keyboard.press("3")
    page.focus(".kernel-list li:nth-child(2)")
    page.keyboard.press("Enter")
    page.wait_for_selector(".kernel-list li:nth-child(2).selected")


# -- lines and nodes -----------------------------------------------------------------------------------------
def test_a_line_lights_its_nodes_and_a_node_its_line(look: Look, training_page: Path) -> None:
    page = look(training_page)
    go(page, "Graph")
    assert page.locator("svg.graph .box.lit").count() == 0
    page.click(".src-line.used:has-text('self.first(x)')")
    page.wait_for_selector("svg.graph .box.lit")
    assert page.locator("svg.graph .box.faded").count() > 0
    page.keyboard.press("Escape")
    page.wait_for_selector("svg.graph .box.lit", state="detached")
    node = page.locator("svg.graph .box:not(.group)").first
    node.dispatch_event("click")
    page.wait_for_selector(".node-card")
    page.wait_for_selector(".src-line.selected")


def test_calls_open_and_close(look: Look, training_page: Path) -> None:
    page = look(training_page)
    go(page, "Graph")
    page.wait_for_selector("svg.graph .box.group")
    before = page.locator("svg.graph .box").count()
    group = page.locator("svg.graph .box.group").first
    name = group.locator("text").first.text_content()
    group.dispatch_event("click")
    page.wait_for_function(f"document.querySelectorAll('svg.graph .box').length !== {before}")
    assert any(name in (text or "") for text in page.locator("svg.graph .cluster text").all_text_contents())
    page.keyboard.press("c")
    page.wait_for_function(f"document.querySelectorAll('svg.graph .box').length === {before}")


def test_as_written_and_as_compiled(look: Look, training_page: Path) -> None:
    page = look(training_page)
    go(page, "Graph")
    compiled = page.text_content(".status")
    page.click("button:has-text('as written')")
    page.wait_for_function(f"document.querySelector('.status').textContent !== {compiled!r}")


# -- kernels -------------------------------------------------------------------------------------------------
def test_passes_forward_back_search_and_hidden(look: Look, training_page: Path) -> None:
    page = look(training_page)
    choose(page, PRODUCT)
    page.wait_for_selector(".passes nav button.on:has-text('optimize')")
    assert page.locator(".row.new").count() > 0 and page.locator(".row.gone").count() > 0
    steps = page.locator(".passes nav button.move-step").count()       # the moves of optimize, where there are several
    for _ in range(steps + 1):
        page.keyboard.press("n")
    page.wait_for_selector(".passes nav button.on:has-text('render')")
    for _ in range(steps + 2):
        page.keyboard.press("p")
    page.wait_for_selector(".passes nav button.on:has-text('lower')")
    shown = page.locator(".passes nav button").count()
    page.click(".passes nav .toggle")
    page.wait_for_function(f"document.querySelectorAll('.passes nav button').length > {shown}")
    page.keyboard.press("/")
    page.keyboard.type("acc")
    page.wait_for_selector(".passes nav .count")
    page.wait_for_selector(".row.hit")


def test_loop_tree_and_source_light_each_other(look: Look, training_page: Path) -> None:
    page = look(training_page)
    choose(page, PRODUCT)
    page.click("button:has-text('Loop tree and source')")
    rows = page.locator(".side-by-side section:nth-child(2) .listing .row")
    for number in range(rows.count()):
        rows.nth(number).hover()
        drawn(page)
        if page.locator(".side-by-side section:nth-child(1) .row.pair").count():
            break
    else:
        pytest.fail("no line of source leads to the loop tree")


def test_instructions_lead_to_the_loop_tree_and_to_the_program(look: Look, training_page: Path) -> None:
    page = look(training_page)
    go(page, "Kernel")                                 # the slowest one: of others there may be no assembly
    page.click("button:has-text('Assembly')")
    page.wait_for_selector(".assembly .row.label-row")
    row = page.locator(".assembly .row.linked").first
    row.hover()
    drawn(page)
    assert page.locator(".side-by-side section:nth-child(1) .row.pair").count() == 1
    row.click()
    page.wait_for_selector(".src-line.selected")
    page.locator(".side-by-side section:nth-child(1) .row.linked").first.hover()
    drawn(page)
    assert page.locator(".assembly .row.pair").count() > 0


def test_the_loop_tree_after_each_move(look: Look, training_page: Path) -> None:
    """Forward and back, each compared with the tree before it, with the name and the reason of the move."""
    page = look(training_page)
    go(page, "Kernel")
    names = page.locator("select[aria-label=kernel] option")
    for number in range(names.count()):
        page.locator("select[aria-label=kernel]").select_option(index=number)
        drawn(page)
        if page.locator(".passes nav button.move-step").count() > 1:
            break
    else:
        pytest.fail("no kernel has several moves")
    page.click(".passes nav button.move-step >> nth=0")
    first = page.text_content(".pass h3")
    assert "->" in page.text_content(".pass header p") and first.startswith("1 ")
    assert page.locator(".row.new").count() > 0
    page.keyboard.press("n")
    page.wait_for_function("document.querySelector('.pass h3').textContent.startsWith('2 ')")
    page.keyboard.press("p")
    page.wait_for_function(f"document.querySelector('.pass h3').textContent === {first!r}")


def test_a_line_of_the_loop_tree_leads_to_the_program(look: Look, training_page: Path) -> None:
    page = look(training_page)
    choose(page, PRODUCT)
    page.click(".passes nav button:has-text('lower')")
    page.locator(".listing .row.linked").first.click()
    page.wait_for_selector(".src-line.selected")


def test_a_kernel_of_the_schedule_says_why_it_is_one(look: Look, training_page: Path) -> None:
    page = look(training_page)
    go(page, "Schedule")
    page.click(".kernel-list li:nth-child(2)")
    page.wait_for_selector(".kernel-list li:nth-child(2).selected")
    assert re.search(r"\d+ operations? fused; stored because: \w+", page.text_content(".kernel-list li:nth-child(2)"))
    assert "not fused with what reads it, because" in page.text_content(".right .kernel-card")


def test_kernels_are_groups_over_the_graph(look: Look, training_page: Path) -> None:
    """A kernel opens to the nodes that are fused in it; each leads to the graph, and from there back to the kernel."""
    page = look(training_page)
    go(page, "Schedule")
    page.wait_for_selector("svg.graph .box.selected")
    assert page.locator("svg.graph .cluster").count() == 0
    page.locator("svg.graph .box.selected").dispatch_event("click")
    page.wait_for_selector("svg.graph .cluster")
    inside = page.locator("svg.graph .box:not(.group)")
    name = inside.first.locator("text").first.text_content()
    assert inside.count() > 1 and page.locator("svg.graph .edge").count() > 0
    inside.first.dispatch_event("click")
    page.wait_for_selector(".node-card")
    assert page.text_content(".node-card h3").split()[0] == name.split()[0]
    page.click(".node-card p:has(.label:text('kernel')) .link")
    page.wait_for_selector(".kernel-view .picked .chip.lit")
    go(page, "Schedule")
    page.locator("svg.graph .box.selected").dispatch_event("click")
    page.wait_for_selector("svg.graph .cluster")
    page.locator("svg.graph .cluster").dispatch_event("click")
    page.wait_for_selector("svg.graph .cluster", state="detached")


def test_a_row_of_the_loop_tree_names_its_nodes(look: Look, training_page: Path) -> None:
    page = look(training_page)
    choose(page, PRODUCT)
    page.click("button:has-text('Loop tree and source')")
    row = page.locator(".side-by-side section:nth-child(1) .row.linked", has_text="+=").first
    row.click()
    page.wait_for_selector(".picked .chip:has-text('SUM')")
    page.wait_for_selector(".side-by-side section:nth-child(1) .row.of-node")
    page.click(".picked .chip:has-text('SUM')")
    page.wait_for_selector(".node-card h3:has-text('SUM')")
    page.wait_for_selector(".src-line.selected")


def test_a_kernel_of_the_backward_pass_names_the_forward_line(look: Look, training_page: Path) -> None:
    page = look(training_page)
    page.click(".kernels tbody tr:has(span[title=backward]) .name button")
    page.wait_for_selector(".kernel-card .badge.backward")
    card = page.locator(".kernel-card")
    assert "loss.backward()" in card.locator(".line-link").first.text_content()
    card.locator("p:has(.label:text('grad of')) .line-link").click()
    page.wait_for_selector(".src-line.selected")
    assert "backward" not in page.text_content(".src-line.selected")


def test_timeline_memory_and_gradient_lead_on(look: Look, training_page: Path) -> None:
    page = look(training_page)
    go(page, "Timeline")
    page.click("button:has-text('one jitted call')")
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] - 20)
    go(page, "Memory")
    page.click(".alive tbody tr:has(.line-link)")
    page.wait_for_selector(".src-line.selected")
    page.keyboard.press("Escape")
    go(page, "Gradient")
    page.click(".gradient tbody tr:has-text('Linear')")
    page.click(".gradient .details .chip")
    page.wait_for_selector(".node-card")


def test_back_and_an_address_with_a_selection(look: Look, training_page: Path) -> None:
    page = look(training_page)
    page.click(".kernels tbody tr:nth-child(3) .name button")
    page.wait_for_selector(".kernel-view")
    name = page.text_content(".kernel-card h3 .link")
    address = page.url
    page.go_back()
    page.wait_for_selector(".overview")
    page.evaluate(f"location.href = {address!r}")
    page.wait_for_selector(".kernel-view")
    assert page.text_content(".kernel-card h3 .link") == name


# -- what a program may hold ---------------------------------------------------------------------------------
def test_markup_in_names_is_text(look: Look, tmp_path: Path) -> None:
    page_of("""
        from glassgrad import Tensor
        def ünïcode_日本(x):
            return x + 1  # <script>window.broken = 1</script><img src=x onerror="window.broken = 1">
        ünïcode_日本(Tensor.rand(4, 4)).realize()
    """, tmp_path / "out.html", name="a<b>&.py")
    page = look(tmp_path / "out.html")
    assert "<script>window.broken" in page.text_content(".source") and "a<b>&.py" in page.text_content(".source")
    for view in VIEWS:
        go(page, view)
    assert page.evaluate("window.broken === undefined")
    assert "ünïcode_日本" in page.content()


def test_nothing_ran(look: Look, tmp_path: Path) -> None:
    write_page(page_data(Recorder(), measure=False), tmp_path / "empty.html")
    page = look(tmp_path / "empty.html")
    for view in VIEWS:
        go(page, view)
        page.wait_for_selector(".empty")


def test_one_node_and_a_file_that_is_gone(look: Look, tmp_path: Path) -> None:
    recorder = Recorder()
    with forgotten_schedules(), observed_by(recorder):
        exec(compile("Tensor.full((3,), 2.0).contiguous().realize()", "/nowhere/gone.py", "exec"), {"Tensor": Tensor})
    write_page(page_data(recorder), tmp_path / "one.html")
    page = look(tmp_path / "one.html")
    assert "not there any more" in page.text_content(".source")
    go(page, "Graph")
    page.wait_for_selector("svg.graph .box")


def large(nodes: int, tmp_path: Path) -> Path:
    """A page with a graph of so many nodes: that of a small program, with many more of its operations, a hundred to a
    call."""
    recorder, x = Recorder(), Tensor.rand(4).realize()
    with forgotten_schedules(), observed_by(recorder):
        (x + 1).realize()
    data = page_data(recorder, measure=False, texts=False)
    graph = data["graphs"][0]
    for rows in (graph["written"], graph["nodes"]):
        rows += [["ADD", "binary", "float32", [4], [len(rows) + i - 1, max(0, len(rows) + i - 50)], "", -1, i // 100, 0]
                 for i in range(nodes - len(rows))]
    data["calls"] = [[-1 if i % 10 == 0 else i - i % 10, f"block{i}", "layer"] for i in range(nodes // 100 + 1)]
    write_page(data, tmp_path / "large.html")
    return tmp_path / "large.html"


@pytest.mark.parametrize("nodes", [10_000, 50_000])
def test_of_a_large_graph_only_what_is_open_is_laid_out(look: Look, tmp_path: Path, nodes: int) -> None:
    """How long it takes is measured by benchmarks/viz.py."""
    page = look(str(large(nodes, tmp_path).as_uri()))
    go(page, "Graph")
    page.wait_for_selector("svg.graph .box")
    shown = re.search(r"([\d,]+) nodes", page.text_content(".status") or "")
    assert shown is not None and int(shown[1].replace(",", "")) >= nodes * 0.99
    assert page.locator("svg.graph .box").count() < 100, "the rest is inside groups"
    page.locator("svg.graph .box.group").first.dispatch_event("click")
    page.wait_for_selector("svg.graph .cluster")
    assert page.locator("svg.graph .box").count() < nodes // 4


# -- the way that matters ------------------------------------------------------------------------------------
def test_the_slowest_kernel_its_line_and_why(look: Look, mnist_folder: Path, tmp_path: Path,
                                             picture: Callable[[Any, str], None]) -> None:
    """For a reader who opens the page of the example for the first time, the first thing on it is the answer."""
    out = tmp_path / "mnist.html"
    example = str(ROOT / "examples" / "beautiful_mnist.py")
    subprocess.run([sys.executable, example, "--steps", "3", "--test-images", "500"], check=True, capture_output=True,
                   env={**os.environ, "VIZ": str(out), "PYTHONPATH": str(ROOT),
                        "GLASSGRAD_DATA": str(mnist_folder.parent)})
    data = data_of(out.read_text(encoding="utf-8"))
    slowest = max((k for k in data["kernels"] if k["runs"]), key=lambda k: k["ns"])
    file, number = data["lines"][slowest["line"]]
    line = data["files"][file]["text"].split("\n")[number - 1].strip()
    page = look(out)
    card = page.locator(".headline .kernel-card")
    text = card.text_content()
    assert "slowest kernel" in page.text_content(".headline").lower()
    assert card.locator("h3 .link").text_content() == slowest["name"] \
        == page.text_content(".kernels tbody tr:first-child .name button")
    assert f"beautiful_mnist.py:{number}{line}" in text and slowest["why"] in text and slowest["tries"][0] in text
    assert re.search(r"not fused with what reads it, because: \w+", text)
    card.locator(".line-link").first.click()
    page.wait_for_selector(".src-line.selected")
    assert line in page.text_content(".src-line.selected")
    picture(page, "mnist-overview")
    page.keyboard.press("Escape")
    page.click(".headline .kernel-card h3 .link")
    page.wait_for_selector(".passes nav button.on")
    assert page.text_content(".kernel-card h3 .link") == slowest["name"]
    go(page, "Graph")
    page.wait_for_selector("svg.graph .box")
    picture(page, "mnist-graph")
