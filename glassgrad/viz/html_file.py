"""Write the page as one file. In: the page's data. Out: HTML that loads nothing and needs no server.

The page's program and style are built by `npm run build` in viz-ui/, into assets/, which is part of the package.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from glassgrad.base.errors import InputError

ASSETS = Path(__file__).resolve().parent / "assets"
# Content security policy: the page may run its own script and style, and load nothing.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@lru_cache(maxsize=4)
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def to_json(data: Any) -> str:
    """Return JSON that is safe inside a <script> element: no string in it can close the element or open another.

    >>> to_json("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def html_page(data: dict[str, Any]) -> str:
    """Return the whole page."""
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><title>glassgrad viz</title>'
            f'<style>{_asset("viz.css")}</style></head>\n<body><div id="app"></div>\n'
            f'<script type="application/json" id="data">{to_json(data)}</script>\n'
            f'<script>{_asset("viz.js")}</script></body></html>\n')


def write_page(data: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page to a file."""
    try:
        Path(path).write_text(html_page(data), encoding="utf-8")
    except OSError as problem:
        raise InputError("the visualizer's page cannot be written", given=f"VIZ={path}: {problem.strerror}",
                         expected="a file in a folder that exists and can be written to",
                         fix="choose another path, such as VIZ=out.html") from None
