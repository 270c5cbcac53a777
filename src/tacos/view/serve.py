"""Serve a page over HTTP, only to browsers on this machine."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

__all__ = ["Server"]

_HOSTS = ("127.0.0.1", "localhost")


class Server(ThreadingHTTPServer):
    """An HTTP server for one page at ``/``, on 127.0.0.1. Call `serve_forever`; `url` is the page's address.

    >>> from urllib.request import urlopen
    >>> from threading import Thread
    >>> with Server("<p>hello") as server:
    ...     Thread(target=server.handle_request).start()
    ...     urlopen(server.url).read()
    b'<p>hello'
    """

    daemon_threads = True

    def __init__(self, page: str, port: int = 0) -> None:
        """Open the port, or any free one if it is 0.

        Raises:
            OSError: Another process uses the port.
        """
        self.page = page.encode()
        super().__init__((_HOSTS[0], port), _Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{_HOSTS[0]}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        # Reject other host names: a foreign page may have resolved its name to this machine (DNS rebinding).
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in _HOSTS or urlsplit(self.path).path != "/":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
