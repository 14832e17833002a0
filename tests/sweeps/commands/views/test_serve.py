"""The server of the explorer: who is let in, what it reads, and theory at sliders."""

import http.client
import json
import math
import shutil
import socket

import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from odes import symmetric
from sweeps import Sweep, experiment
from sweeps.commands.views import live, serve
from sweeps.commands.views.content import recipe
from sweeps.language.tree import encode
from sweeps.runner.config import config_of
from sweeps.runner.spec import load
from sweeps.runner.store.arrays import MISSING
from sweeps.systems.kinds import language
from tests.doors import refuses

CELL = {"eta_y": 0.5, "eta_z": 1.0}


def asked(server, route, body=None, token=None, host=""):
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


def alone():
    return live.Theory(sweeps.experiment(task="overlapping", steps=50))


def test_nobody_is_let_in_without_the_token_or_by_another_name(started):
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
    assert (
        asked(server, "theory", {"chosen": {}, "values": {"eta_y": "x" * serve.MOST_REQUEST}})[0]
        == 400
    )


def test_slices_are_those_of_the_store(stored, started, tmp_path):
    runs = sweeps.open(stored)
    server = started(serve.StoredSweeps([str(stored)]), live.Theory(runs))
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
    for array, fixed, free, named in (
        ("los", {}, [], "array = '0/los"),
        ("time", {}, [[None, 10**9]], "1000000000"),
        ("status", {}, [[None, 2**40], [None, 2**40]], "at most"),
        ("status", {}, [[None, -1]], "-1"),
        ("status", {}, [["seed", 10**9]], "free.seed = 1000000000"),
        # A list of places would be repeated along every dimension.
        ("status", {"eta_y": [0] * 9999, "eta_z": [0] * 9999}, [], "fixed.eta_y"),
        ("status", {"eta_y": 2}, [], "fixed.eta_y = 2"),
    ):
        asks = {"array": f"0/{array}", "fixed": fixed, "free": free}
        status, told = asked(server, "slice", asks)
        assert (status, named in json.loads(told)["error"]) == (400, True), (told, named)


def test_a_client_that_sends_slowly_does_not_keep_its_connection(started, monkeypatch):
    monkeypatch.setattr(serve, "CONNECTIONS", 1)
    monkeypatch.setattr(serve, "TIMEOUT", 0.2)
    server = started(None, alone())
    with socket.create_connection(server.server_address) as slow:
        # Silent for much less than the limit, again and again.
        slow.settimeout(0.02)
        for _ in range(200):
            try:
                slow.sendall(b"x")
                closed = not slow.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
            break
        assert closed
    assert asked(server, "", token="x")[0] == 403


def test_a_running_sweep_is_read_again(stored, tmp_path, started, monkeypatch):
    monkeypatch.setattr(serve, "REFRESH", 0.0)
    store = shutil.copytree(stored, tmp_path / "store")
    records = sorted(store.glob("status/.chunks-*/[01].json"))
    kept = [each.rename(tmp_path / each.name) for each in records]
    server = started(serve.StoredSweeps([str(store)]), live.Theory(sweeps.open(stored)))
    for done, back in ((0, None), (6, 0), (12, 1)):
        if back is not None:
            kept[back].rename(records[back])
        told = json.loads(asked(server, "progress", {})[1])
        assert (told["done"], told["unfinished"], len(told["notes"])) == (
            done,
            done < 12,
            done < 12,
        )
        asks = {"array": "0/status", "fixed": {}, "free": [["eta_y", 2], ["eta_z", 3], ["seed", 2]]}
        codes = np.frombuffer(asked(server, "slice", asks)[1], "i1")
        assert (codes != MISSING).sum() == done


@pytest.mark.more
def test_theory_is_that_of_the_reduction_at_the_settings_of_a_cell(stored, started):
    theory = live.Theory(sweeps.open(stored))
    server = started(serve.StoredSweeps([str(stored)]), theory)
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


def test_bad_sliders_and_other_systems_are_told_in_a_sentence(stored, started):
    runs = sweeps.open(stored)
    server = started(None, live.Theory(runs))
    for values, message in (
        ({"eta_y": -1}, "eta.Y = -1"),
        ({"eta_y": 0}, "eta_y = 0"),
        ({"length": 3}, "length = 3"),
        ({"K": 3}, "K = 3"),
        ({"task": "syn"}, "'task'"),
    ):
        status, told = asked(server, "theory", {"chosen": CELL, "values": values})
        (sentence,) = json.loads(told)["words"]
        assert (status, json.loads(told)["curves"]) == (200, {})
        assert message in sentence
    config = json.loads(runs.attrs["config"])
    qkv = config | {"record": ["loss"], "run": encode(language(), sweeps.experiment("qkv"))}
    other = live.Theory(runs.assign_attrs(config=json.dumps(qkv)))
    refuses(lambda: other.sliders({}), "yz", "qkv")


RULES = [{"kind": "adamw", "decay": 0.1}, "adam"]


def test_the_file_of_all_runs_is_the_sweep_again(tmp_path):
    run = experiment(task="overlapping", eta=0.1, steps=5, length="inf")
    axes = {"rule": RULES, "overlap": [0.1, 0.2], "batch": [8, 9]}
    sweep = Sweep(run, axes, record=("loss",), times=3, zip=(("overlap", "batch"),))
    config = config_of(sweep)
    coords = {
        name: ("rule" if name == "rule" else "overlap", values)
        for name, values in config["axes"].items()
    }
    found = recipe(xr.Dataset(coords=coords, attrs={"config": json.dumps(config)}))
    assert found is not None
    values = (f"{n} = [{', '.join(axis['values'])}]" for n, axis in found["axes"].items())
    lines = [*found["head"], f"zip = {json.dumps(found['zip'])}", "[axes]", *values, *found["run"]]
    (tmp_path / "cell.toml").write_text("\n".join(lines))
    assert config_of(load(tmp_path / "cell.toml")) == config
