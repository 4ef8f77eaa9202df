"""What MkDocs calls while it builds the site. In: the pages of docs/. Out: those, an API reference, and the source.

Pages link to files of the repository (`../glassgrad/compiler/graph/ops.py`), which works where the repository is
browsed. The site has a page for each such file, and the links lead to it.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

import reference  # noqa: E402 - MkDocs loads this file by its path, so the folder is not on the path by itself
import source_pages  # noqa: E402

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```)", re.M | re.S)
TRACEBACK = re.compile(r'(<span class="gt">.*?)(?=(?:<a [^>]*></a>)?<span class="gp">|</code>)', re.S)
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'>\s]+"
                    r"|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^\"'>\s]+|@import[^;]*//[^;]+", re.I)


def on_config(config: Any) -> Any:
    """The pages that are generated join the navigation."""
    for section in config["nav"]:
        if "API reference" in section:
            section["API reference"] += reference.navigation()
    config["nav"].append({"About": [{"Contributing": "about/contributing.md"}, {"Changes": "about/changelog.md"},
                                    {"Security": "about/security.md"}]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that are no files of docs/."""
    from mkdocs.structure.files import File
    for path, text in {**reference.pages(), **source_pages.pages(ROOT)}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files of the repository lead to their pages here; names in the big table lead to the reference."""
    path = page.file.src_uri
    if path == "api.md":
        markdown = reference.linked(markdown)
    return with_site_links(markdown, path)


def with_site_links(markdown: str, page: str) -> str:
    """The text of a page of the site whose links outside docs/ lead to pages of the site.

    >>> with_site_links("[ops](../glassgrad/compiler/graph/ops.py)", "settings.md")
    '[ops](source/glassgrad/compiler/graph/ops.py.md)'
    >>> with_site_links("[projects](../../projects), [a page](02_op_types.md)", "guide/01_tensor_basics.md")
    '[projects](../source/projects/index.md), [a page](02_op_types.md)'
    """
    folder = posixpath.dirname(page)

    def lead(found: re.Match[str]) -> str:
        target, hash_, anchor = found[2].partition("#")
        if not target or re.match(r"https?:|mailto:|/", target) or source_pages.is_generated(page):
            return found[0]
        place = posixpath.normpath(posixpath.join("docs", folder, target))
        if place.startswith("docs/") and not place.startswith("docs/tools/"):      # those are no pages
            return found[0]
        to = posixpath.relpath(source_pages.page_of(place, (ROOT / place).is_dir()), folder or ".")
        return f"{found[1]}{to}{hash_}{anchor}{found[3]}"

    parts = FENCE.split(markdown)
    return "".join(as_session(part) if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def as_session(block: str) -> str:
    """A block that is typed into Python or a shell, marked as such: prompts and output have their own colours, and are
    not copied (img/site.css). In the repository it is a `python` block, which every viewer colours, or a `text` block.

    >>> as_session("```python\\n>>> 1 + 1\\n2\\n```")
    '```pycon\\n>>> 1 + 1\\n2\\n```'
    >>> as_session("```text\\n$ echo 2\\n2\\n```")
    '```console\\n$ echo 2\\n2\\n```'
    """
    return block.replace("```python\n>>>", "```pycon\n>>>", 1).replace("```text\n$ ", "```console\n$ ", 1)


def with_tracebacks_as_output(html: str) -> str:
    """A page whose tracebacks are output as a whole: Pygments marks their parts in other ways, and they were copied.

    >>> with_tracebacks_as_output('<span class="gt">Traceback</span>: <span class="n">x</span></code>')
    '<span class="go"><span class="gt">Traceback</span>: <span class="n">x</span></span></code>'
    """
    return TRACEBACK.sub(r'<span class="go">\1</span>', html)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Numbered lines of source can be linked to; MkDocs looks for anchors in headings and raw HTML only."""
    if source_pages.is_generated(page.file.src_uri):
        page.present_anchor_ids = (page.present_anchor_ids or set()) | set(re.findall(r'id="(line-\d+-\d+)"', html))
    return with_tracebacks_as_output(html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """A page that would load something from another host is refused: the site is read offline too."""
    from mkdocs.exceptions import PluginError
    found = LOADED.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} would load from another host: {found[0]}")
    return output
