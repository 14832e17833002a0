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
from typing import Any, TypeVar

import numpy as np

from dynsim import checks
from sweeps.commands.views import diagrams, live, page
from sweeps.commands.views.content import content, remaining
from sweeps.output import drawing
from sweeps.runner import progress

HOST = "127.0.0.1"
POLICY = page.POLICY.replace("connect-src data:", "connect-src 'self' data:")
REFRESH = 3.0
"""Seconds between updates of a running sweep."""
MOST = 2**16
"""Maximum bytes of a request."""
MOST_VALUES = 2**25
"""Maximum number of values in an answer."""
SECONDS = 10.0
"""Maximum seconds for a request to arrive, and for an answer to be taken."""
CONNECTIONS = 64
"""Maximum number of concurrent connections; others wait."""
Route = Callable[[Mapping[str, Any]], bytes | dict[str, Any]]
RouteT = TypeVar("RouteT", bound=Callable[..., Any])


class Stored:
    """Stored sweeps, which are reread while they are running.

    Args:
        paths: paths of the sweeps.
        options: options of `content`.
    """

    def __init__(self, paths: Sequence[str], **options: Sequence[Any]) -> None:
        self.paths, self.options = paths, options
        self.lock = threading.Lock()
        self.read(progress.say)

    def read(self, report: Callable[[str], None]) -> None:
        sweeps = diagrams.opened(self.paths, report)
        self.content = content(sweeps, begun=False, **self.options)
        datasets = self.content.datasets.values()
        left = sum(map(remaining, datasets))
        self.done = sum(each["status"].size for each in datasets) - left
        self.unfinished = left > 0
        self.arrays = self.content.arrays()
        self.at = time.monotonic()

    def progress(self) -> dict[str, Any]:
        """Return the current progress of the sweeps."""
        with self.lock:
            if self.unfinished and time.monotonic() >= self.at + REFRESH:
                self.read(lambda told: None)
        notes = self.content.about["notes"]
        return {"notes": notes, "done": self.done, "unfinished": self.unfinished}

    def part(self, name: str, fixed: Mapping[str, Any], free: Sequence[tuple[str, int]]) -> bytes:
        """Return the part of an array that `slice` of `numbers.js` requests."""
        array = self.arrays[checks.choice("array", name, tuple(self.arrays))]
        along = [dim for dim, _ in free if dim in array.dims]
        held = {d: fixed.get(str(d), 0) for d in array.dims if d not in along}
        sizes = [
            checks.integer(f"free.{dim}", size, array.sizes.get(dim, 1), array.sizes.get(dim))
            for dim, size in free
        ]
        if math.prod(sizes) > MOST_VALUES:
            raise ValueError(f"free = {free}: {math.prod(sizes)} values, at most {MOST_VALUES}")
        for dim, at in held.items():
            checks.integer(f"fixed.{dim}", at, 0, array.sizes[dim] - 1)
        found = array.isel(held).transpose(*along)
        # The array is broadcast along dimensions that it lacks.
        own = [size if dim in array.dims else 1 for (dim, _), size in zip(free, sizes, strict=True)]
        values = np.broadcast_to(found.values.reshape(own), sizes)
        return page.packed(str(array.name), values)


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

    def __init__(self, stored: Stored | None, theory: live.Theory, port: int = 0) -> None:
        checks.integer("port", port, 0, 65535)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"port = {port}: {why}; --port 0 chooses a free one") from None
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        self.token = secrets.token_urlsafe(32)
        self.hosts = {f"{host}:{self.server_port}" for host in (HOST, "localhost")}
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"
        self.pages: dict[str, Callable[[], bytes]] = {"": lambda: written(stored, theory)}
        self.routes: dict[str, Route] = {
            "sliders": lambda asked: {"sliders": theory.sliders(_table(asked, "chosen"))},
            "theory": lambda asked: theory.answer(_table(asked, "chosen"), _table(asked, "values")),
        }
        if stored is not None:
            self.routes["progress"] = lambda asked: stored.progress()
            self.routes["slice"] = lambda asked: stored.part(
                asked["array"], _table(asked, "fixed"), asked["free"]
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, once few enough connections are open."""
        self.free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then let the next connection start."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except for a page that was closed before its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Arriving(io.RawIOBase):
    """The request of a connection, which has to arrive within some seconds as a whole: otherwise
    clients that send it slowly would hold all connections."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(self.end - time.monotonic(), 1e-3))
        return self.connection.recv_into(buffer)


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles the single request of a connection."""

    server: Server
    # Answers are small, and the user is dragging a slider.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Arriving(self.connection, SECONDS))

    def do_GET(self) -> None:
        """Serve the page."""
        if found := self._route(self.server.pages):
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", found())

    def do_POST(self) -> None:
        """Answer a JSON request of the page with binary numbers or JSON."""
        if not (found := self._route(self.server.routes)):
            return
        try:
            size = checks.integer("size", int(self.headers.get("Content-Length", "-1")), 0, MOST)
            answer = found(json.loads(self.rfile.read(size)))
        except (ValueError, OSError, LookupError, TypeError, RecursionError) as error:
            # Our page only causes the first two; the messages help authors of other clients.
            told = json.dumps({"error": str(error)})
            self._send(HTTPStatus.BAD_REQUEST, "application/json", told.encode())
            return
        if isinstance(answer, bytes):
            self._send(HTTPStatus.OK, "application/octet-stream", answer)
        else:
            text = json.dumps(answer, allow_nan=False)
            self._send(HTTPStatus.OK, "application/json", text.encode())

    def _route(self, routes: Mapping[str, RouteT]) -> RouteT | None:
        """Return the route of the address. Requests without the token are rejected."""
        token, _, name = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        # Rejects other host names, which prevents DNS rebinding from foreign pages.
        if not known or self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "open the address that dynsim has printed")
        elif name not in routes:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            return routes[name]
        return None

    def _refuse(self, status: HTTPStatus, told: str) -> None:
        self._send(status, "text/plain", told.encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.connection.settimeout(SECONDS)
        self.send_response(status)
        sent = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Disable logging, as addresses contain the token."""


def _table(asked: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a request; raises `ValueError` if it is not one."""
    checks.kind(name, asked[name], dict)
    return asked[name]


def written(stored: Stored | None, theory: live.Theory) -> bytes:
    """Return the page without arrays."""
    about: dict[str, Any] = {
        "curves": [{"name": n, "label": live.labelled(n)} for n in live.RECORD]
    }
    about |= {"unfinished": stored.unfinished, "done": stored.done} if stored else {}
    about["refresh"] = 1000 * REFRESH
    if stored is not None:
        found = stored.content.about
    else:
        found = {
            "title": f"Theory of {theory.source.about}",
            "notes": [],
            "dims": {},
            "stores": [],
            "palette": drawing.PALETTE,
        }
    return page.filled({**found, "live": about}, "", POLICY).encode()


def run(config: Any) -> None:
    """Serve the sweeps of the `dynsim explore` settings until Ctrl-C.

    Raises:
        ValueError: as in `content`, for settings outside the theory, or if the port is in use.
    """
    stored = None
    if config.paths:
        chosen = {name: getattr(config, name) for name in ("observables", "times", "where")}
        stored = Stored(config.paths, **chosen)
        theory = live.Theory(next(iter(stored.content.datasets.values())))
    else:
        theory = live.Theory(config.run)
        # Report invalid settings here, before there is a page.
        theory.sliders({})
    with Server(stored, theory, config.port) as server:
        threading.Thread(target=_warm, args=(theory,), daemon=True).start()
        print(server.address)
        print("Open this address in a browser on this machine; Ctrl-C ends the server.", flush=True)
        server.serve_forever()


def _warm(theory: live.Theory) -> None:
    # For a sweep that the theory does not describe, the page shows the reason.
    with contextlib.suppress(ValueError):
        live.warm(theory.run({}, {}))
