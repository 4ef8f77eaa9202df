"""The source as pages of the site. In: the repository. Out: page -> Markdown. Does not depend on MkDocs.

A framework made to be read has its source one click away: every file that a page may link to is here, with numbered
lines that can be linked to.
"""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("glassgrad", "projects", "examples", "benchmarks", "docs/tools")
SINGLE = ("tinygrad_lite.py",)
TEXTS = {"README.md": "index.md", "CONTRIBUTING.md": "about/contributing.md", "CHANGELOG.md": "about/changelog.md",
         "SECURITY.md": "about/security.md"}
HIDDEN = "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n"      # space for 120 columns
LANGUAGES = {".py": "python", ".c": "c", ".sh": "sh", ".toml": "toml", ".json": "json", ".md": "markdown"}


def page_of(place: str, is_folder: bool = False) -> str:
    """The page that shows a file or folder of the repository.

    >>> page_of("glassgrad/compiler/graph/ops.py"), page_of("projects", True), page_of("CHANGELOG.md")
    ('source/glassgrad/compiler/graph/ops.py.md', 'source/projects/index.md', 'about/changelog.md')
    """
    return TEXTS.get(place) or f"source/{place}{'/index' if is_folder else ''}.md"


def is_generated(page: str) -> bool:
    """Whether a page is written here, with links that are right already."""
    return page.startswith("source/")


def pages(root: Path) -> dict[str, str]:
    """Every page: files, folders, and the texts beside the package."""
    out: dict[str, str] = {}
    for name in SINGLE:
        out[page_of(name)] = listing(root / name, name)
    for name in FOLDERS:
        folders = [p for p in (root / name, *sorted((root / name).rglob("*"))) if p.is_dir() and p.name[0] not in "._"
                   and any(inside.suffix in LANGUAGES for inside in p.rglob("*"))]
        for folder in folders:
            files = sorted(p for p in folder.iterdir() if p.suffix in LANGUAGES)
            inner = [p for p in folders if p.parent == folder]
            if not files and not inner:
                continue
            place = folder.relative_to(root).as_posix()
            rows = [f"- [{p.name}/]({p.name}/index.md)" for p in inner] + [f"- [{p.name}]({p.name}.md)" for p in files]
            out[page_of(place, True)] = f"{HIDDEN}# {place}\n\n" + "\n".join(rows) + "\n"
            for path in files:
                out[page_of(f"{place}/{path.name}")] = listing(path, f"{place}/{path.name}")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        out[page_of(name)] = _moved((root / name).read_text())
    return out


def listing(path: Path, place: str) -> str:
    """One file as a page."""
    text = path.read_text()
    fence = "`" * 4
    return f'{HIDDEN}# {place}\n\n{fence}{LANGUAGES[path.suffix]} linenums="1"\n{text.rstrip()}\n{fence}\n'


def _moved(text: str) -> str:
    """A text of the repository's root, read from about/: its links to docs/ go up one folder."""
    return text.replace("](docs/", "](../").replace("](CHANGELOG.md)", "](changelog.md)") \
               .replace("](CONTRIBUTING.md)", "](contributing.md)").replace("](SECURITY.md)", "](security.md)")
