"""The site's search where its pages are read from the disk, in a real browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import chromium

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.only_on("CPU", reason="the site is the same for all devices")


@pytest.fixture
def small_site(tmp_path: Path) -> Path:
    """Two pages, built with the project's theme, plugins and scripts."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed (pip install -e '.[docs]')")
    whole = (ROOT / "mkdocs.yml").read_text()
    kept = whole[:whole.index("\nhooks:")].replace("docs_dir: docs", "docs_dir: pages")
    (tmp_path / "mkdocs.yml").write_text(kept + "\n")
    pages = tmp_path / "pages"
    shutil.copytree(ROOT / "docs" / "img", pages / "img")
    (pages / "guide").mkdir()
    (pages / "index.md").write_text("# First\n\nAbout nothing.\n")
    (pages / "guide" / "views.md").write_text("# Second\n\nA shapetracker says where an element lies.\n")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q"], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "site"


def test_a_page_is_found_from_any_other_without_a_server(small_site: Path) -> None:
    with chromium() as browser:
        for start in ("index.html", "guide/views.html"):
            page = browser.new_page(viewport={"width": 1366, "height": 820})
            loaded: list[str] = []
            page.on("request", lambda request, loaded=loaded: loaded.append(request.url))
            page.goto((small_site / start).as_uri())
            page.click("input.md-search__input")
            page.wait_for_function("document.querySelector('.md-search-result__meta').textContent.includes('Type')")
            page.keyboard.type("shapetracker")
            page.wait_for_selector(".md-search-result__item")
            first = page.locator(".md-search-result__item a").first.get_attribute("href")
            assert first.startswith((small_site / "guide" / "views.html").as_uri())
            assert all(url.startswith(("file:", "data:", "blob:", "about:")) for url in loaded)
