"""The documentation site, without building it: its navigation, its generated pages, its links and its drawings.

`./dev docs build` (which .ci/run runs) builds it, and refuses broken links and anchors.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import diagrams  # noqa: E402
import hooks  # noqa: E402
import reference  # noqa: E402
import source_pages  # noqa: E402
import stage_diagrams  # noqa: E402

from glassgrad import Tensor  # noqa: E402

CONFIGURATION = (ROOT / "mkdocs.yml").read_text()


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", CONFIGURATION[CONFIGURATION.index("\nnav:"):], re.M)
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def test_the_guide_and_the_sidebar_have_the_same_order() -> None:
    section = CONFIGURATION[CONFIGURATION.index("  - Guide:\n"):CONFIGURATION.index("  - Coming from:")]
    sidebar = re.findall(r"([\w/-]+\.md)$", section, re.M)
    assert sidebar.pop(0) == "guide/index.md"
    shown = re.findall(r"\]\(([\w./-]+\.md)\)", (DOCS / "guide" / "index.md").read_text())
    pages = list(dict.fromkeys((DOCS / "guide" / page).resolve().relative_to(DOCS).as_posix() for page in shown))
    assert pages == sidebar


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: p.relative_to(DOCS).as_posix())
def test_a_page_says_who_it_is_for(page: Path) -> None:
    title, _, first = page.read_text().partition("\n\n")
    assert title.startswith("# ") and first.startswith(("For ", "For: ")), first[:100]


def test_a_session_is_marked_as_one_and_is_copied_without_its_prompts() -> None:
    assert hooks.with_site_links("```python\n>>> x = 1\n```", "index.md") == "```pycon\n>>> x = 1\n```"
    assert hooks.with_site_links("```python\nx = 1\n```", "index.md") == "```python\nx = 1\n```"
    assert hooks.with_site_links("```text\n$ ls\nsite\n```", "index.md") == "```console\n$ ls\nsite\n```"
    style = (DOCS / "img" / "site.css").read_text()
    assert "[data-md-copying] .gp, [data-md-copying] .go { display: none; }" in style


def test_no_line_of_a_traceback_is_copied() -> None:
    markdown = pytest.importorskip("markdown", reason="MkDocs is not installed (pip install -e '.[docs]')")
    session = (">>> f()\nTraceback (most recent call last):\n...\nglassgrad.base.errors.InputError: not this\n"
               "  given:    1\n...\n\n>>> g()\n2")
    html = markdown.markdown(f"```pycon\n{session}\n```", extensions=["pymdownx.highlight", "pymdownx.superfences"])
    output = re.sub(r"<a [^>]*></a>", "", hooks.with_tracebacks_as_output(html))
    while (inner := re.sub(r'<span class="(?!g[op]")[^"]*">([^<]*)</span>', r"\1", output)) != output:
        output = inner
    typed = re.sub(r'<span class="g[op]">[^<]*</span>', "", output)
    assert re.sub(r"<[^>]*>|\s", "", typed) == "f()g()"


def test_generated_pages_of_the_navigation_exist() -> None:
    def leaves(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [leaf for inner in (entry.values() if isinstance(entry, dict) else entry) for leaf in leaves(inner)]
    assert sorted(leaves(reference.navigation())) == sorted(reference.pages())


# -- the API reference ---------------------------------------------------------------------------------------
def test_the_reference_has_every_public_name_of_tensor() -> None:
    pages = reference.pages()
    anchors = {name for path, text in pages.items() if path.startswith("reference/tensor/")
               for name in re.findall(r"^## \w+ \{ #(\w+) \}$", text, re.M)}
    assert anchors == {n for n in dir(Tensor) if not n.startswith("_")}


def test_an_entry_has_signature_sentence_example_and_source() -> None:
    page = reference.pages()["reference/tensor/reductions.md"]
    entry = page[page.index("## sum { #sum }"):]
    entry = entry[:entry.index("\n## ", 5)]
    assert re.search(r"```python\nsum\(.*axis.*\) -> Tensor\n```", entry, re.S)
    assert "```pycon\n>>> " in entry
    path, line = re.search(r"\((?:\.\./)+source/(glassgrad/tensor/[\w/]+\.py)\.md#line-0-(\d+)\)", entry).groups()
    defined = (ROOT / path).read_text().splitlines()[int(line) - 1:int(line) + 3]
    assert any("def sum(" in text for text in defined)


def test_names_of_the_big_table_lead_to_the_reference() -> None:
    linked = reference.linked((DOCS / "api.md").read_text())
    assert re.search(r"\| \[`relu\(\)`\]\(reference/tensor/\w+\.md#relu\) \|", linked)
    assert "| [`TinyJit`](reference/glassgrad.md#TinyJit) |" in linked
    assert "| [`Linear`](reference/nn.md#Linear) |" in linked


@lru_cache(maxsize=1)
def all_pages() -> frozenset[str]:
    written = (p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    return frozenset([*source_pages.pages(ROOT), *reference.pages(), *written])


# -- the source ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: p.relative_to(DOCS).as_posix())
def test_links_out_of_docs_have_a_page(page: Path) -> None:
    place = page.relative_to(DOCS).as_posix()
    text = re.sub(r"^```.*?^```", "", hooks.with_site_links(page.read_text(), place), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s#]+\.md)", text):
        to = (Path("/") / place).parent / target
        assert to.resolve().relative_to("/").as_posix() in all_pages(), target


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: p.relative_to(DOCS).as_posix())
def test_a_link_to_source_leads_to_a_page_not_to_the_file(page: Path) -> None:
    text = hooks.with_site_links(page.read_text(), page.relative_to(DOCS).as_posix())
    assert not re.findall(r"\]\(([^)\s#]+\.py)[)#]", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def test_a_source_page_shows_the_file() -> None:
    page = source_pages.pages(ROOT)["source/glassgrad/compiler/graph/ops.py.md"]
    assert (ROOT / "glassgrad/compiler/graph/ops.py").read_text().rstrip() in page and 'linenums="1"' in page


# -- other hosts ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("html", [
    '<script src="https://a.example/x.js"></script>', '<link rel=stylesheet href="//b.example">',
    "<img src='http://c.example/p.png'>", "<style>@import url(https://d.example/f.css);</style>"])
def test_what_another_host_would_serve_is_found(html: str) -> None:
    assert hooks.LOADED.search(html)


def test_links_to_follow_are_no_loading() -> None:
    assert not hooks.LOADED.search('<a href="https://semver.org">versions</a> <script src="assets/x.js"></script>')


# -- the book ------------------------------------------------------------------------------------------------
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the book shows code of an x86-64 processor")
def test_the_machine_code_in_the_book_is_what_llvm_makes() -> None:
    """The instructions of the inner loop, whatever registers LLVM chose; the page leaves out the middle."""
    from glassgrad.runtime.cpu.llvm_compiler import assembly
    from glassgrad.runtime.cpu.processor import host_description
    if not {"avx2", "fma"} <= host_description().features:
        pytest.skip("the book shows code of a processor with AVX2")
    page = (DOCS / "architecture.md").read_text()
    shown = re.search(r"<!-- machine code.*?```text\n(.*?)```", page, re.S)
    assert shown is not None
    [first, *wanted] = [line.split()[0] for line in shown[1].splitlines()]
    made = assembly(stage_diagrams.book_kernel("llvm").source)
    [loop] = [part for part in re.split(r"^(?=\.LBB)", made, flags=re.M) if "vfmadd" in part]
    found = [line.split()[0] for line in loop.split("\n\tjb")[0].splitlines()[1:]] + ["jb"]
    middle = wanted.index("...")
    assert Counter(found)["vfmadd231ps"] == 12 and Counter(found)["vbroadcastss"] == 6
    assert sorted(set(wanted[:middle])) == sorted({i for i in found if i.startswith("v")})
    assert wanted[middle + 1:] == found[-len(wanted[middle + 1:]):] and first.endswith(":")


# -- drawings ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", diagrams.DRAWINGS)
def test_a_drawing_is_what_would_be_drawn_now(name: str) -> None:
    assert (DOCS / "img" / name).read_text() == diagrams.DRAWINGS[name](), "python docs/tools/diagrams.py draws it anew"


def test_every_drawing_is_shown() -> None:
    text = "".join(p.read_text() for p in DOCS.rglob("*.md"))
    unused = [p.name for p in (DOCS / "img").glob("*.*g") if f"img/{p.name}" not in text]
    assert not unused
