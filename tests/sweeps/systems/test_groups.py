"""Rates of groups of weights have the same names in Python, files, axes and on the command line."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from sweeps import cli, experiment
from sweeps.commands.line import parse_command
from sweeps.runner.labels import label
from sweeps.systems.training import names_of_numbers, partition

NAME = f"{__name__}:Deep"


def numbers(run):
    """The numbers of the rule that training would vary."""
    found = partition(run.training())[0]
    return dict(zip(names_of_numbers(found), jax.tree.leaves(found), strict=True))


class Deep(dynsim.Problem):
    """A chain of scalar layers W0, W1, ..., each a group of its own, that should multiply to 2."""

    layers: int = 2
    inputs: dynsim.Arrays | None = None

    def init(self, key):
        return {f"W{i}": jnp.array(1.0 + 0.1 * i) for i in range(self.layers)}

    def groups(self, params):
        return {name: name for name in params}

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, params, data):
        return self.population_loss(params) + 0 * data.sum()

    def population_loss(self, params):
        return (jnp.prod(jnp.stack(list(params.values()))) - 2.0) ** 2 / 2


def descended(rates):
    """The loss after seven steps of gradient descent, by hand."""
    w = 1.0 + 0.1 * np.arange(len(rates))
    for _ in range(7):
        slope = np.prod(w) - 2
        w = w - np.array(rates) * slope * np.prod(w) / w
    return (np.prod(w) - 2) ** 2 / 2


class Careful(Deep):
    """Groups that only weights with values have."""

    def groups(self, params):
        return {name: f"W{int(value)}" for name, value in params.items()}


class Whole(dynsim.Problem):
    """Settings of another problem."""

    def init(self, key):
        raise NotImplementedError

    def build(self, rule):
        return Deep()


LARGE = Deep(inputs=dynsim.Arrays({"x": np.full((50, 3), 7.0)}))
PEAK = {"kind": "cosine", "steps": 9, "peak": 0.1}
# A problem, settings, and the rates that training varies; other groups keep the rate of all.
RATES = [
    *(
        (Deep(), {name: 0.05, "eta_W0": 0.02}, {"eta.W0": 0.02, "eta.W1": 0.05})
        for name in ("eta.W1", "eta_W1", "eta-w1", "rule.eta.W1", "ETA w1")
    ),
    (Deep(), {"eta_w0": 0.3}, {"eta.W0": 0.3, "eta.W1": 0.1}),
    (
        Deep(), {"eta": 0.2, "decay_w1": 0.01, "eta_w0": 0.3},
        {"eta.W0": 0.3, "eta.W1": 0.2, "decay.W1": 0.01},
    ),
    (Deep(), {"eta": PEAK, "eta_W0_peak": 0.4}, {"eta.W0": 0.4, "eta.W1": 0.1}),
    # Groups are those of the other settings, and need no data.
    (
        NAME, {"layers": 3, "eta_W2": 0.05, "eta": 0.02},
        {"eta.W0": 0.02, "eta.W1": 0.02, "eta.W2": 0.05},
    ),
    (LARGE, {"eta_w1": 0.5}, {"eta.W0": 0.1, "eta.W1": 0.5}),
    # A group that is not known yet has any name.
    *((each, {"eta.W0": 0.3, "eta.W1": 0.2}, None) for each in (Careful(), Whole())),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "settings", "expected"), RATES)
def test_rates_of_groups_have_many_spellings(problem, settings, expected):
    for order in (1, -1):
        run = experiment(problem, **dict([*settings.items()][::order]))
        if expected is None:
            assert run.rule.schedules.keys() == {"W0", "W1"}
            continue
        found = numbers(run)
        assert {name: found[name] for name in expected} == pytest.approx(expected)
        for name in settings:
            if name.casefold().startswith(("eta", "rule")) and isinstance(settings[name], float):
                assert run.at({name: 0.6}).setting(name) == 0.6


@pytest.mark.more
def test_files_stores_and_figures_have_the_same_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head = f'record = ["loss"]\n[run]\nproblem = "{NAME}"\nsteps = 7\nbatch = inf\neta.W1 = 0.05\n'
    for i, name in enumerate(("eta_w0", '"eta.W0"')):
        Path(f"{i}.toml").write_text(f"{head}[axes]\n{name} = [0.02, 0.1]\n")
        assert cli.main(["sweep", f"{i}.toml", "--out", f"runs{i}"]) == 0
    exact = [descended([rate, 0.05]) for rate in (0.02, 0.1)]
    for i, name in enumerate(("eta_w0", "eta.W0")):
        found = sweeps.open(f"runs{i}")
        np.testing.assert_allclose(found.sel({name: [0.02, 0.1]}).loss, exact, rtol=1e-4)
        assert label(found[name]) == "learning rate of W0 (1/step)"
        for spelt in ("eta.W0", "eta-w0"):
            line = ["export", f"runs{i}", "--where", f"{spelt}=0.1", "--out", "one.nc"]
            assert cli.main([*line, "--overwrite"]) == 0
            with xr.open_dataset("one.nc", engine="h5netcdf") as one:
                np.testing.assert_allclose(one.loss, exact[1], rtol=1e-4)
    # Two sweeps whose axes have other spellings have one axis in a figure.
    assert cli.main(["plot", "runs0", "runs1", "--x", "eta_W0", "--out", "both.png"]) == 0
    with np.load("both.npz") as arrays:
        np.testing.assert_array_equal(arrays["sweep2/loss"], arrays["loss"])
        assert "sweep2/eta_w0" in arrays


@pytest.mark.parametrize("command", ["explain", "compare", "phase"])
def test_options_have_the_names_of_groups(command):
    axes = ["--x", "eta_w0:0.1:1", "--y", "layers:1:4"] if command == "phase" else []
    for first, second in (("--eta-w0", "--eta_W1"), ("--eta.W0", "--rule.eta.w1")):
        words = [command, NAME, first, "0.02", second, "0.05", *axes]
        run = parse_command(words, check_paths=False).settings.run
        assert numbers(run) == {"eta.W0": 0.02, "eta.W1": 0.05}
