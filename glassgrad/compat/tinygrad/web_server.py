"""Provide tinygrad's small web server, a base for those of scripts. In: requests. Out: responses. Independent of
tensors.
"""

from __future__ import annotations

import itertools
import json
import socketserver
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import Any


class TCPServerWithReuse(socketserver.TCPServer):
    """A server whose port can be reused at once after it ended; prints its address."""
    allow_reuse_address = True

    def __init__(self, server_address: tuple[str, int], RequestHandlerClass: Any):
        super().__init__(server_address, RequestHandlerClass)
        print(f"listening on http://127.0.0.1:{self.server_address[1]}")


class HTTPRequestHandler(BaseHTTPRequestHandler):
    """Sends a response as a whole, or as a stream of events."""

    def _begin(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_data(self, data: bytes, content_type: str = "application/json", status_code: int = 200) -> int:
        """Send one response; return how many bytes were sent."""
        self._begin(status_code, Content_Type=content_type, Content_Length=str(len(data)))
        return self.wfile.write(data)

    def stream_json(self, source: Iterable[Any]) -> None:
        """Send an event for each value, then a final one; ends silently when the client has disconnected."""
        try:
            self._begin(200, Content_Type="text/event-stream", Cache_Control="no-cache")
            for text in itertools.chain(map(json.dumps, source), ["[DONE]"]):
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass
