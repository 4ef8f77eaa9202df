"""Serve the page on 127.0.0.1. In: the page's data. Out: a server that answers one address, until Ctrl-C.

Only this machine can reach it, and only requests with the token of the address are answered. It serves only this page:
no file, no other path, no method except GET and HEAD.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from glassgrad.viz.html_file import POLICY, html_page

HOST = "127.0.0.1"


class PageServer(ThreadingHTTPServer):
    """Serves one page, at `address`."""
    daemon_threads = True

    def __init__(self, data: dict[str, Any], port: int = 0):
        self.page = html_page(data).encode()
        self.token = secrets.token_urlsafe(16)
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "glassgrad", ""

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        self._answer(body=True)

    def do_HEAD(self) -> None:  # noqa: N802
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        asked = urlsplit(self.path)
        token = parse_qs(asked.query).get("token", [""])[0]
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in (HOST, "localhost"):            # another host name that resolves here: DNS rebinding
            return self._send(403, b"ask by 127.0.0.1\n", "text/plain", body)
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self._send(403, b"the address needs the token that was printed with it\n", "text/plain", body)
        if asked.path != "/":
            return self._send(404, b"there is one page, at /\n", "text/plain", body)
        return self._send(200, self.server.page, "text/html; charset=utf-8", body)

    def _send(self, status: int, content: bytes, kind: str, body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store",
                            "Content-Security-Policy": POLICY + "; frame-ancestors 'none'",
                            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not printed."""


def serve(data: dict[str, Any]) -> None:
    """Serve the page until Ctrl-C; open a browser if there is one."""
    with PageServer(data) as server:
        print(f"VIZ: {server.address}\nVIZ: this machine alone can open it; Ctrl-C ends it", file=sys.stderr,
              flush=True)
        if _has_browser():
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)


def _has_browser() -> bool:
    """Return whether a window could open: not over ssh, and not in a container."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
