"""`dynsim explore --serve`: a local server for the page, which reads data on request.

The server listens only on the loopback address. Its URL contains an unguessable token; requests
without it, or with another host name, are rejected.
"""

import contextlib
import hmac
import http.server
import io
import json
import math
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar

import numpy as np

from dynsim import checks
from sweeps.commands.views import diagrams, live, page
from sweeps.commands.views.content import content, remaining
from sweeps.output import JsonObject, drawing
from sweeps.runner import progress
from sweeps.systems.experiment import Experiment

HOST = "127.0.0.1"
SERVER_POLICY = page.POLICY.replace("connect-src data:", "connect-src 'self' data:")
REFRESH = 3.0
"""Seconds between updates of a running sweep."""
MOST_REQUEST = 2**16
"""Maximum bytes of a request."""
MOST_ANSWER = 2**25
"""Maximum number of values in an answer."""
TIMEOUT = 10.0
"""Maximum seconds for a request to arrive, and for an answer to be taken."""
CONNECTIONS = 64
"""Maximum number of concurrent connections; others wait."""
Route = Callable[[JsonObject], bytes | JsonObject]
RouteT = TypeVar("RouteT")


class StoredSweeps:
    """Stored sweeps, which are reread while they are running.

    Args:
        paths: paths of the sweeps.
        options: options of `content`.
    """

    def __init__(self, paths: Sequence[str], **options: Sequence) -> None:
        self.paths, self.options = paths, options
        self.lock = threading.Lock()
        self.read(progress.say)

    def read(self, report: Callable[[str], None]) -> None:
        sweeps = diagrams.opened(self.paths, report)
        self.content = content(sweeps, begun=False, **self.options)
        datasets = self.content.datasets.values()
        missing = sum(map(remaining, datasets))
        self.done = sum(dataset["status"].size for dataset in datasets) - missing
        self.unfinished = missing > 0
        self.arrays = self.content.arrays()
        self.last_read = time.monotonic()

    def progress(self) -> JsonObject:
        """Return the current progress of the sweeps."""
        with self.lock:
            # Of several requests, the first one reads, and the others wait for it.
            if self.unfinished and time.monotonic() >= self.last_read + REFRESH:
                self.read(lambda line: None)
        notes = self.content.about["notes"]
        return {"notes": notes, "done": self.done, "unfinished": self.unfinished}

    def part(self, name: str, fixed: JsonObject, free: Sequence[tuple[str, int]]) -> bytes:
        """Return the part of an array that `slice` of `numbers.js` requests."""
        array = self.arrays[checks.choice("array", name, tuple(self.arrays))]
        sizes = [
            checks.integer(f"free.{dim}", size, array.sizes.get(dim, 1), array.sizes.get(dim))
            for dim, size in free
        ]
        if math.prod(sizes) > MOST_ANSWER:
            raise ValueError(f"free = {free}: {math.prod(sizes)} values, at most {MOST_ANSWER}")
        along = [dim for dim, _ in free if dim in array.dims]
        index = {dim: fixed.get(str(dim), 0) for dim in array.dims if dim not in along}
        for dim, place in index.items():
            checks.integer(f"fixed.{dim}", place, 0, array.sizes[dim] - 1)
        values = array.isel(index).transpose(*along).values
        # The array is broadcast along dimensions that it lacks.
        own = [size if dim in array.dims else 1 for (dim, _), size in zip(free, sizes, strict=True)]
        return page.packed(str(array.name), np.broadcast_to(values.reshape(own), sizes))


class Server(http.server.ThreadingHTTPServer):
    """A server of one page.

    Args:
        stored: the sweeps; None to show theory only.
        theory: computes the answers for sliders.
        port: port to listen on; 0 chooses a free one.

    Attributes:
        address: URL of the page, with its token.

    Raises:
        ValueError: if the port is in use.
    """

    request_queue_size = 256

    def __init__(self, stored: StoredSweeps | None, theory: live.Theory, port: int = 0) -> None:
        checks.integer("port", port, 0, 65535)
        try:
            super().__init__((HOST, port), PageHandler)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"port = {port}: {reason}; --port 0 chooses a free one") from None
        # Each connection has a thread, and the handler reads at most MOST_REQUEST bytes of it.
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        # Other users of this machine can reach the port, but do not know the token.
        self.token = secrets.token_urlsafe(32)
        self.hosts = {f"{host}:{self.server_port}" for host in (HOST, "localhost")}
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"
        self.pages = {"": lambda: served_page(stored, theory)}
        self.routes: dict[str, Route] = {
            "sliders": lambda body: {"sliders": theory.sliders(_table(body, "chosen"))},
            "theory": lambda body: theory.answer(_table(body, "chosen"), _table(body, "values")),
        }
        if stored is not None:
            self.routes["progress"] = lambda body: stored.progress()
            self.routes["slice"] = lambda body: stored.part(
                body["array"], _table(body, "fixed"), body["free"]
            )

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        """Answer in a thread, once few enough connections are open."""
        # Blocks the loop that accepts connections: others wait in the system's queue.
        self.free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket, client_address: tuple[str, int]
    ) -> None:
        """Answer, then let the next connection start."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        """Print errors, except for a page that was closed before its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(io.RawIOBase):
    """The request of a connection, which has to arrive within some seconds as a whole: otherwise
    clients that send it slowly would hold all connections."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        self.connection.settimeout(max(self.end - time.monotonic(), 1e-3))
        return self.connection.recv_into(buffer)


class PageHandler(http.server.BaseHTTPRequestHandler):
    """Handles the single request of a connection."""

    server: Server
    # Answers are small, and the user is dragging a slider.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Request(self.connection, TIMEOUT))

    def do_GET(self) -> None:
        """Serve the page."""
        if page_of := self._route(self.server.pages):
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page_of())

    def do_POST(self) -> None:
        """Answer a JSON request of the page with binary numbers or JSON."""
        if not (route := self._route(self.server.routes)):
            return
        try:
            size = checks.integer(
                "size", int(self.headers.get("Content-Length", "-1")), 0, MOST_REQUEST
            )
            answer = route(json.loads(self.rfile.read(size)))
        except (ValueError, OSError, LookupError, TypeError, RecursionError) as error:
            # Our page only causes the first two; the messages help authors of other clients.
            message = json.dumps({"error": str(error)})
            self._send(HTTPStatus.BAD_REQUEST, "application/json", message.encode())
            return
        if isinstance(answer, bytes):
            self._send(HTTPStatus.OK, "application/octet-stream", answer)
        else:
            # A browser cannot parse NaN.
            text = json.dumps(answer, allow_nan=False)
            self._send(HTTPStatus.OK, "application/json", text.encode())

    def _route(self, routes: Mapping[str, RouteT]) -> RouteT | None:
        """Return the route of the address. Requests without the token are rejected."""
        token, _, name = self.path.removeprefix("/").partition("/")
        # In constant time, so that the time of an answer does not reveal the token.
        authorised = hmac.compare_digest(token.encode(), self.server.token.encode())
        # Rejects other host names, which prevents DNS rebinding from foreign pages.
        if not authorised or self.headers.get("Host") not in self.server.hosts:
            reason = b"open the address that dynsim has printed"
            self._send(HTTPStatus.FORBIDDEN, "text/plain", reason)
        elif name not in routes:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page")
        else:
            return routes[name]
        return None

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.connection.settimeout(TIMEOUT)
        self.send_response(status)
        # The address contains the token: it must not stay in a cache, or be sent to other sites.
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Disable logging, as addresses contain the token."""


def _table(body: JsonObject, name: str) -> JsonObject:
    """Return a table of a request; raises `ValueError` if it is not one."""
    checks.kind(name, body[name], dict)
    return body[name]


def served_page(stored: StoredSweeps | None, theory: live.Theory) -> bytes:
    """Return the page without arrays."""
    curves = [{"name": name, "label": live.labelled(name)} for name in live.RECORD]
    settings: JsonObject = {"curves": curves, "refresh": 1000 * REFRESH}
    if stored is not None:
        about = stored.content.about
        settings |= {"unfinished": stored.unfinished, "done": stored.done}
    else:
        about = {
            "title": f"Theory of {theory.source.about}",
            "notes": [],
            "dims": {},
            "stores": [],
            "palette": drawing.PALETTE,
        }
    return page.filled({**about, "live": settings}, "", SERVER_POLICY).encode()


def run(paths: Sequence[str], experiment: Experiment, port: int, **options: Sequence) -> None:
    """Serve stored sweeps, or theory of an experiment if there are none, until Ctrl-C.

    Args:
        options: options of `content`.

    Raises:
        ValueError: as in `content`, for settings outside the theory, or if the port is in use.
    """
    stored = None
    if paths:
        stored = StoredSweeps(paths, **options)
        theory = live.Theory(next(iter(stored.content.datasets.values())))
    else:
        theory = live.Theory(experiment)
        # Report invalid settings here, before there is a page.
        theory.sliders({})

    def warm() -> None:
        # For a sweep that the theory does not describe, the page shows the reason.
        with contextlib.suppress(ValueError):
            live.warm(theory.run({}, {}))

    with Server(stored, theory, port) as server:
        # Compilation takes seconds, in which the user opens the page.
        threading.Thread(target=warm, daemon=True).start()
        print(server.address)
        print("Open this address in a browser on this machine; Ctrl-C ends the server.", flush=True)
        server.serve_forever()
