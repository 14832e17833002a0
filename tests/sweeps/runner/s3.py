"""A process of its own that serves S3 from memory, by moto: prints its port.

GET /control?every=7 makes it answer each seventh request with 500 from then on, by turns before
and after the request has been carried out; put=409 is the answer to all PUTs, or to so many of them
as `times` says; page=1 answers each GET with a web page; blind=IF_MATCH drops that condition.
"""

import itertools
import threading
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "bucket"
PAGE = b"<!DOCTYPE html><title>Sign in</title>"


class Faulty:
    """The application, one request at a time: moto looks at conditions and then writes, and does
    not see to it that nobody else writes in between."""

    def __init__(self, application: Callable) -> None:
        self.application = application
        self.turn = threading.Lock()
        self.every = 0
        self.put, self.times, self.page, self.blind = 0, 0, False, ""
        self.numbers = itertools.count(1)

    def __call__(self, environ: dict, start: Callable) -> Iterable[bytes]:
        with self.turn:
            if environ["PATH_INFO"] == "/control":
                return self.control(parse_qs(environ["QUERY_STRING"]), start)
            method = environ["REQUEST_METHOD"]
            if method == "PUT" and self.put and self.times:
                self.times -= 1
                start(f"{self.put} Answer", [])
                return [b"<Error><Code>NoSuchBucket</Code></Error>"]
            if method == "GET" and self.page:
                about = {"Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT", "ETag": '"page"'}
                start("200 OK", [*about.items(), ("Content-Length", str(len(PAGE)))])
                return [PAGE]
            environ.pop(f"HTTP_{self.blind}", None)
            fault, rest = divmod(next(self.numbers), self.every) if self.every else (0, 1)
            if rest:
                return list(self.application(environ, start))
            if fault % 2:
                list(self.application(environ, lambda *_: None))
            start("500 Internal Server Error", [])
            return []

    def control(self, settings: dict[str, list[str]], start: Callable) -> Iterable[bytes]:
        self.every = int(settings.get("every", ["0"])[0])
        self.put = int(settings.get("put", ["0"])[0])
        self.times = int(settings.get("times", ["-1"])[0])
        self.page = settings.get("page") == ["1"]
        self.blind = settings.get("blind", [""])[0]
        self.numbers = itertools.count(1)
        start("200 OK", [])
        return []


class Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, "us-east-1")
    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(server.port, flush=True)
    server.serve_forever()
