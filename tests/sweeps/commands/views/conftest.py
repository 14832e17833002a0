"""A small stored sweep that pages are made of, and a theory beside it."""

import json
import threading

import matplotlib.pyplot as plt
import numpy as np
import pytest

import sweeps
from dynsim import Status
from sweeps import Sweep, experiment
from sweeps.commands.views import serve

TITLE = "rates <script>window.harmed = true</script> <b>& more</b>"
AXES = {"eta_y": [0.5, 5.0], "eta_z": [0.1, 1.0, 10.0], "seed": {"range": 2}}


@pytest.fixture(autouse=True)
def closed():
    """Figures that a test drew are closed, as matplotlib warns of more than twenty."""
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """12 runs in two chunks, so that half of them can be lost."""
    out = tmp_path_factory.mktemp("explore") / "runs"
    run = experiment(steps=8, batch=8, length=8)
    record = ("entropy", "loss", "z_top_distinct")
    sweeps.run(Sweep(run, AXES, record=record, times=4, title=TITLE), out, chunk=6)
    return out


@pytest.fixture(scope="session")
def diagram(tmp_path_factory):
    """Settings of a phase diagram whose sweeps are stored: training, and descent at infinite T. The
    seeds of its last cell end in two regions."""
    config = sweeps.diagrams.Phase(
        experiment(momentum=0.9, steps=20, length=32),
        x="eta_y:1e-1:1e1:3",
        y="eta_z:1e1:1e2:2",
        seeds=3,
        against="symmetric-descent",
        out=tmp_path_factory.mktemp("explore") / "phase",
    )
    sweeps.diagrams.maps(config)
    return config


@pytest.fixture
def started():
    """Starts servers, which end with the test."""
    servers = []

    def start(stored, theory):
        servers.append(serve.Server(stored, theory))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def screen(tmp_path_factory):
    """A browser, `screen.Screen`; skips where there is none."""
    pytest.importorskip("plotly", reason="needs plotly of the extra `test`")
    name = "tests.sweeps.commands.views.screen"
    why = "needs selenium of the extra `test`"
    screens = pytest.importorskip(name, reason=why, exc_type=ModuleNotFoundError)
    if not (screens.CHROMIUM and screens.DRIVER):
        pytest.skip("needs chromium and chromedriver (Debian: chromium-driver)")
    with screens.opened(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def runs(stored):
    """The sweep, as if one seed of a cell and both of another had diverged."""
    found = sweeps.open(stored).load()
    status = found["status"].values
    status[0, 1, 1] = status[1, 2, :] = Status.DIVERGED
    found["loss"].values[1, 2, :, 1:] = np.inf
    return found


@pytest.fixture
def theory(runs):
    """A theory of the sweep: one curve without a seed, at other times as well."""
    found = runs.isel(seed=0, drop=True).copy(deep=True)
    found["status"].values[:] = Status.OK
    found["loss"].values[:] = 1 + np.arange(found["loss"].size).reshape(found["loss"].shape)
    config = json.loads(found.attrs["config"]) | {"theory": "matched", "title": "theory"}
    config["axes"] = ["eta_y", "eta_z"]
    times = found["time"].values
    found = found.reindex(time=[*times, times[-1] + 5], method="ffill")
    return found.assign_attrs(config=json.dumps(config), title="theory")


@pytest.fixture
def path(runs, theory, tmp_path):
    """A page of the sweep and its theory."""
    return sweeps.explore(runs, theory).write(tmp_path / "page.html")
