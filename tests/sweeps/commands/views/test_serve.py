"""The server of the explorer: who is let in, what it reads, and theory at sliders."""

import http.client
import json
import math
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

import dynsim
import sweeps
from odes import symmetric
from sweeps.commands.views import live, serve
from sweeps.language.tree import encode
from sweeps.runner.store.arrays import MISSING
from sweeps.systems.kinds import language
from tests.sweeps.ending import ended

CELL = {"eta_y": 0.5, "eta_z": 1.0}


def asked(
    server: serve.Server, route: str, body: Any = None, token: str | None = None, host: str = ""
) -> tuple[int, bytes]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection(serve.HOST, server.server_port, timeout=60)
    headers = {"Host": host} if host else {}
    path = f"/{server.token if token is None else token}/{route}"
    method = "GET" if body is None else "POST"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def alone() -> live.Theory:
    return live.Theory(sweeps.experiment(task="overlapping", steps=50))


def test_nobody_is_let_in_without_the_token_or_by_another_name(
    started: Callable[..., serve.Server],
) -> None:
    server = started(None, alone())
    assert server.server_address[0] == "127.0.0.1"
    assert server.token in server.address
    assert len(server.token) >= 43
    for route, body in (("", None), ("theory", {"chosen": {}, "values": {}}), ("none", {})):
        for token in ("", "x", server.token[:-1]):
            assert asked(server, route, body, token)[0] == 403
        rebound = f"dynsim.example:{server.server_port}"
        assert asked(server, route, body, host=rebound)[0] == 403
    status, text = asked(server, "sliders", {"chosen": {}}, host=f"localhost:{server.server_port}")
    assert status == 200
    assert {each["name"] for each in json.loads(text)["sliders"]} >= {"eta_y", "K", "steps"}
    assert asked(server, "none", {})[0] == 404
    assert asked(server, "theory", {"chosen": {}, "values": {"eta_y": "x" * serve.MOST}})[0] == 400


def test_requests_of_another_form_are_answered(started: Callable[..., serve.Server]) -> None:
    server = started(None, alone())
    for body in ({"chosen": "x"}, {"chosen": ["eta_y"]}, [], "x", None, {}):
        connection = http.client.HTTPConnection(serve.HOST, server.server_port, timeout=60)
        connection.request("POST", f"/{server.token}/sliders", json.dumps(body))
        assert connection.getresponse().status == 400
    nested = http.client.HTTPConnection(serve.HOST, server.server_port)
    nested.request("POST", f"/{server.token}/sliders", "[" * 50_000)
    assert nested.getresponse().status == 400


@pytest.mark.parametrize(("size", "status"), [(2**16, 200), (2**16 + 1, 400)])
def test_a_request_has_at_most_64_kilobytes(
    size: int, status: int, started: Callable[..., serve.Server]
) -> None:
    server = started(None, alone())
    connection = http.client.HTTPConnection(serve.HOST, server.server_port, timeout=60)
    connection.putrequest("POST", f"/{server.token}/sliders")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    # One that is too large is refused before it is read.
    if status == 200:
        connection.send(json.dumps({"chosen": {}}).ljust(size).encode())
    answer = connection.getresponse()
    told = json.loads(answer.read())
    assert answer.status == status
    sent = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    assert {name: answer.getheader(name) for name in sent} == sent
    if status == 400:
        assert told["error"] == "size = 65537: must be an integer <= 65536"
    else:
        assert len(told["sliders"]) > 5
    connection.close()


def test_silent_connections_are_few_and_end(
    started: Callable[..., serve.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (serve.CONNECTIONS, serve.Handler.timeout) == (64, 10)
    monkeypatch.setattr(serve, "CONNECTIONS", 2)
    monkeypatch.setattr(serve.Handler, "timeout", 0.1)
    lock, open_now, most = threading.Lock(), 0, 0

    class Counted(serve.Handler):
        def handle(self) -> None:
            nonlocal open_now, most
            with lock:
                open_now += 1
                most = max(most, open_now)
            super().handle()
            with lock:
                open_now -= 1

    monkeypatch.setattr(serve, "Handler", Counted)
    server = started(None, alone())
    silent = [socket.create_connection((serve.HOST, server.server_port)) for _ in range(6)]
    assert asked(server, "sliders", {"chosen": {}})[0] == 200
    assert most == 2
    for each in silent:
        each.settimeout(10)
        assert each.recv(1) == b""
        each.close()


def test_bad_options_are_refused_in_a_line(
    stored: Path,
    started: Callable[..., serve.Server],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sweeps.commands.views.page.check_plotly", lambda: None)
    used = started(None, alone()).server_port
    for words, message in (
        (["--serve", "--port", str(used)], f"port = {used}: Address already in use; --port 0"),
        (
            ["--serve", str(stored), "--task", "overlapping"],
            "run.problem.task = 'overlapping': is for --serve",
        ),
        ([str(stored), "--steps", "5"], "run.steps = 5: is for --serve without a sweep"),
        (["--serve", "--task", "overlapping", "--M", "9"], "M = 9: overlapping does not have it"),
        ([], "paths: must name a stored sweep, or --serve shows theory alone"),
    ):
        assert ended(["explore", *words]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1


def test_slices_are_those_of_the_store(
    stored: Path, started: Callable[..., serve.Server], tmp_path: Path
) -> None:
    runs = sweeps.open(stored)
    server = started(serve.Stored([str(stored)]), live.Theory(runs))
    free = [["eta_z", 3], ["seed", 2]]
    fixed = {"eta_y": 1, "time": 2, "eta_z": 0, "n": 1}
    status, found = asked(server, "slice", {"array": "0/entropy", "fixed": fixed, "free": free})
    wanted = runs["entropy"].isel(eta_y=1, time=2).transpose("eta_z", "seed")
    assert status == 200
    np.testing.assert_array_equal(np.frombuffer(found, "<f4"), wanted.values.ravel())
    # The status has no times, along which it repeats; a dimension without a name has one place.
    free = [["time", 2], ["seed", 2], [None, 1]]
    _, found = asked(server, "slice", {"array": "0/status", "fixed": fixed, "free": free})
    own = runs["status"].isel(eta_y=1, eta_z=0).values
    np.testing.assert_array_equal(np.frombuffer(found, "i1"), [*own, *own])
    _, found = asked(server, "slice", {"array": "0/time", "fixed": {}, "free": [["time", 5]]})
    np.testing.assert_array_equal(np.frombuffer(found, "<f8"), runs["time"].values[:5])
    status, told = asked(server, "slice", {"array": "0/los", "fixed": {}, "free": []})
    assert (status, json.loads(told)["error"][:14]) == (400, "array = '0/los")


def test_a_running_sweep_is_read_again(
    stored: Path,
    tmp_path: Path,
    started: Callable[..., serve.Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "REFRESH", 0.0)
    store = shutil.copytree(stored, tmp_path / "store")
    records = sorted(store.glob("status/.chunks-*/[01].json"))
    kept = [each.rename(tmp_path / each.name) for each in records]
    server = started(serve.Stored([str(store)]), live.Theory(sweeps.open(stored)))
    for done, back in ((0, None), (6, 0), (12, 1)):
        if back is not None:
            kept[back].rename(records[back])
        told = json.loads(asked(server, "progress", {})[1])
        said = [f"{store}: {done} of 12 runs done; the others are blank."] if done < 12 else []
        assert told == {"notes": said, "done": done, "unfinished": done < 12}
        asks = {"array": "0/status", "fixed": {}, "free": [["eta_y", 2], ["eta_z", 3], ["seed", 2]]}
        codes = np.frombuffer(asked(server, "slice", asks)[1], "i1")
        assert (codes != MISSING).sum() == done


@pytest.mark.more
def test_theory_is_that_of_the_reduction_at_the_settings_of_a_cell(
    stored: Path, started: Callable[..., serve.Server]
) -> None:
    theory = live.Theory(sweeps.open(stored))
    server = started(serve.Stored([str(stored)]), theory)
    _, told = asked(server, "sliders", {"chosen": CELL})
    values = {each["name"]: each["value"] for each in json.loads(told)["sliders"]}
    assert values == {**CELL, "length": 8, "batch": 8, "momentum": 0.0, "steps": 8}
    asks = {"chosen": CELL, "values": {**values, "eta_y": 2.0, "length": "inf", "steps": 30}}
    status, told = asked(server, "theory", asks)
    found = json.loads(told)
    assert status == 200
    # From the table of the task, without what makes the live one faster.
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    rule = dynsim.sgd({"Y": 2.0, "Z": 1.0})
    wanted = symmetric.solve(task, rule, found["times"], record=live.RECORD)
    assert (found["times"][0], found["times"][-1]) == (0, pytest.approx(30))
    for name in live.RECORD:
        # Kinds of equal tokens are added in another order: the solver's tolerance, 1e-9 at best.
        own = np.array([math.nan if v is None else v for v in found["curves"][name]])
        np.testing.assert_allclose(own, np.ravel(wanted[name]), rtol=1e-6, atol=1e-9)
    assert any(word.startswith("Regime: ") for word in found["words"])
    assert any(word.startswith("Strained: ") for word in found["words"])


def test_bad_sliders_and_other_systems_are_told_in_a_sentence(
    stored: Path, started: Callable[..., serve.Server]
) -> None:
    runs = sweeps.open(stored)
    server = started(None, live.Theory(runs))
    for values, message in (
        ({"eta_y": -1}, "rule.eta.Y = -1: must be"),
        ({"eta_y": 0}, "eta_y = 0: nothing moves from zero weights"),
        ({"length": 3}, "length = 3: the theory is an expansion in 1/T"),
        ({"K": 3}, "K = 3: syn-small does not have it"),
        ({"task": "syn"}, "setting = 'task': "),
    ):
        status, told = asked(server, "theory", {"chosen": CELL, "values": values})
        (sentence,) = json.loads(told)["words"]
        assert (status, json.loads(told)["curves"]) == (200, {})
        assert sentence.startswith(message)
    config = json.loads(runs.attrs["config"])
    qkv = config | {"record": ["loss"], "run": encode(language(), sweeps.experiment("qkv"))}
    other = live.Theory(runs.assign_attrs(config=json.dumps(qkv)))
    with pytest.raises(
        ValueError, match=r"^live theory is of the system 'yz'; these runs are of 'q"
    ):
        other.sliders({})
    made = json.dumps(config | {"functions": {"mine": "0"}})
    with pytest.raises(ValueError, match="no sweep file describes these runs"):
        live.Theory(runs.assign_attrs(config=made)).sliders({})


@pytest.mark.parametrize(("K", "overlap"), [(2, 0.3), pytest.param(5, 0.1, marks=pytest.mark.full)])
def test_the_noise_of_a_batch_is_that_of_sampled_ones(K: int, overlap: float) -> None:
    task, batch = dynsim.Overlapping(K, overlap).build(), 64
    layer = dynsim.Layer(task, length=math.inf)
    start = layer.init(jax.random.key(0))

    @jax.jit
    def share(key: PRNGKeyArray) -> Array:
        exact = jax.grad(layer.population_loss)(start)
        found = layer.loss_and_gradient(start, layer.draw(key, batch))[1]
        want, got = (ravel_pytree(gradient)[0] for gradient in (exact, found))
        return jnp.linalg.norm(got - want) / jnp.linalg.norm(want)

    shares = [float(share(jax.random.key(i))) for i in range(12)]
    found = live.symmetric_noise(symmetric.symmetric_task(task), batch)
    # The mean square of 12 draws of K - 1 degrees of freedom, at three standard errors.
    error = 3 * math.sqrt(2 / (12 * (K - 1)))
    assert np.mean(np.square(shares)) == pytest.approx(found**2, rel=error)


def test_the_page_of_a_server_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[Any] = []
    monkeypatch.setattr(serve.page, "filled", lambda *given: filled.append(given) or "made")
    theory = SimpleNamespace(source=SimpleNamespace(about="a layer"))
    assert serve.written(None, theory) == b"made"
    about, arrays, policy = filled[0]
    assert (about["title"], about["stores"], about["dims"]) == ("Theory of a layer", [], {})
    assert (arrays, policy) == ("", serve.POLICY)
    assert [each["name"] for each in about["live"]["curves"]] == list(live.RECORD)
    # A script counts in milliseconds.
    assert about["live"]["refresh"] == 3000
    assert "done" not in about["live"]
    content = SimpleNamespace(about={"title": "runs"})
    serve.written(SimpleNamespace(unfinished=True, done=7, content=content), theory)
    about = filled[1][0]
    assert about["title"] == "runs"
    assert (about["live"]["unfinished"], about["live"]["done"]) == (True, 7)
