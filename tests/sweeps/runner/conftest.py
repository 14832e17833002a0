"""A bucket on a server of S3 in a process of its own."""

import importlib.util
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = ("obstore", "moto", "flask", "flask_cors")


class Server:
    """A running s3.py."""

    def __init__(self, port: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        # As a user would say where the bucket is and who asks.
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def control(self, **settings: int | str) -> None:
        """Set what it does from now on, nothing special by default."""
        query = "&".join(f"{name}={value}" for name, value in settings.items())
        urllib.request.urlopen(f"{self.url}/control?{query}").close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} of the extra `test`")
    command = [sys.executable, str(Path(__file__).with_name("s3.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        port = process.stdout.readline().strip()
        assert port, "s3.py has ended"
        yield Server(port)
        process.kill()


@pytest.fixture
def s3(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, found by the environment and well-behaved at first."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.control()
    yield server
    server.control()
