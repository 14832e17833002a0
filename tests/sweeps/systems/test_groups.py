"""Rates of groups of weights have the same names in Python, files, axes and on the command line."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from sweeps import Sweep, cli, experiment
from sweeps.commands.line import understood
from sweeps.language.fields import LanguageError
from sweeps.runner.labels import label
from sweeps.systems import kinds
from sweeps.systems.training import divided, names_of_numbers

STEPS = 7
NAME = f"{__name__}:Deep"


def numbers(run: sweeps.Experiment) -> dict[str, float]:
    """The numbers of the rule that training would vary."""
    found = divided(run.training())[0]
    return dict(zip(names_of_numbers(found), jax.tree.leaves(found), strict=True))


class Deep(dynsim.Problem):
    """A chain of scalar layers W0, W1, ..., each a group of its own, that should multiply to 2.

    Attributes:
        layers: number of layers.
        inputs: examples, of which only the mean square matters.
    """

    layers: int = 2
    inputs: dynsim.Arrays | None = None

    def init(self, key: Any) -> Any:
        return {f"W{i}": jnp.array(1.0 + 0.1 * i) for i in range(self.layers)}

    def groups(self, params: Any) -> Any:
        return {name: name for name in params}

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Any, data: Any) -> Any:
        return self.population_loss(params) + 0 * data.sum()

    def population_loss(self, params: Any) -> Any:
        return (jnp.prod(jnp.stack(list(params.values()))) - 2.0) ** 2 / 2


def descended(rates: list[float], steps: int = STEPS) -> float:
    """The loss after gradient descent, by hand."""
    w = 1.0 + 0.1 * np.arange(len(rates))
    for _ in range(steps):
        slope = np.prod(w) - 2
        w = w - np.array(rates) * slope * np.prod(w) / w
    return (np.prod(w) - 2) ** 2 / 2


@pytest.mark.parametrize("name", ["eta.W1", "eta_W1", "eta-w1", "rule.eta.W1", "ETA w1"])
@pytest.mark.more
def test_a_rate_has_many_spellings(name: str) -> None:
    run = experiment(Deep(), steps=STEPS, batch=float("inf"), **{name: 0.05, "eta_W0": 0.02})
    assert run.rule.schedules.keys() == {"W0", "W1"}
    assert numbers(run) == {"eta.W0": 0.02, "eta.W1": 0.05}
    assert run.at({name: 0.3}).setting(name) == run.at({"eta.W1": 0.3}).setting("eta_w1") == 0.3
    found = sweeps.run(Sweep(run, {name: [0.05, 0.1]}, record="loss"), progress=False)
    exact = [descended([0.02, rate]) for rate in (0.05, 0.1)]
    np.testing.assert_allclose(found.loss, exact, rtol=1e-4)
    assert label(found[name]) == "learning rate of W1 (1/step)"


def test_other_groups_keep_the_rate_of_all() -> None:
    assert numbers(experiment(Deep(), eta_w0=0.3)) == {"eta.W0": 0.3, "eta.W1": 0.1}
    run = experiment(Deep(), eta=0.2, decay_w1=0.01, eta_w0=0.3)
    assert numbers(run) == {"eta.W0": 0.3, "eta.W1": 0.2, "decay.W1": 0.01}
    cosine = {"kind": "cosine", "steps": 9, "peak": 0.1}
    peaks = experiment(Deep(), eta=cosine, eta_W0_peak=0.4)
    assert (numbers(peaks)["eta.W0"], numbers(peaks)["eta.W1"]) == (0.4, 0.1)


@pytest.mark.parametrize("order", [1, -1])
def test_groups_are_those_of_the_other_settings(order: int) -> None:
    settings = {"layers": 3, "eta_W2": 0.05, "eta": 0.02}
    run = experiment(NAME, steps=STEPS, **dict([*settings.items()][::order]))
    assert numbers(run) == {"eta.W0": 0.02, "eta.W1": 0.02, "eta.W2": 0.05}
    with pytest.raises(LanguageError, match=r"^eta_W2 = 1: is not a setting; did you mean .*W1"):
        experiment(Deep(), eta_W2=1)


def test_groups_do_not_depend_on_what_arrays_hold() -> None:
    large = dynsim.Arrays({"x": np.full((50, 3), 7.0)})
    run = experiment(Deep(inputs=large), eta_w1=0.5)
    assert numbers(run) == {"eta.W0": 0.1, "eta.W1": 0.5}
    np.testing.assert_array_equal(run.problem.inputs.train["x"], np.full((50, 3), 7.0))


class Plain(dynsim.Problem):
    """Weights without groups."""

    gain: float = 1.0

    def init(self, key: Any) -> Any:
        return {"w": jnp.ones(2)}

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.sum(params["w"] ** 2)


class Careful(Deep):
    """Groups that only weights with values have."""

    def groups(self, params: Any) -> Any:
        return {name: f"W{int(value)}" for name, value in params.items()}


class Whole(dynsim.Problem):
    """Settings of another problem."""

    def init(self, key: Any) -> Any:
        raise NotImplementedError

    def build(self, rule: Any) -> Any:
        return Deep()


def test_problems_without_groups_and_with_groups_that_are_not_known_yet() -> None:
    """A misspelt number of a schedule is no group, and a group that nothing tells is what it is."""
    with pytest.raises(LanguageError, match=r"eta_peak = 1: rule.eta does not have it; constant, "):
        experiment(Plain(), eta_peak=1)
    with pytest.raises(LanguageError, match=r"eta.W0 = 1: is not a setting"):
        experiment(Plain(), **{"eta.W0": 1})
    for problem in (Careful(), Whole()):
        run = experiment(problem, **{"eta.W0": 0.3, "eta.W1": 0.2})
        assert run.rule.schedules.keys() == {"W0", "W1"}


def test_the_groups_of_a_problem_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(kinds, "_GROUPS", {})
    original = Deep.groups
    monkeypatch.setattr(Deep, "groups", lambda self, p: asked.append(1) or original(self, p))
    run = experiment(Deep(layers=4), eta_w3=1)
    run.at({"eta_w2": 2})
    number = len(asked)
    assert number > 0
    for steps in range(2, 9):
        run.at({"steps": steps, "eta_w2": 1 / steps})
        experiment(Deep(layers=4), eta_w3=steps, steps=steps)
    assert len(asked) == number


@pytest.mark.more
def test_files_stores_and_figures_have_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head = f'record = ["loss"]\n[run]\nproblem = "{NAME}"\nsteps = 7\nbatch = inf\neta.W1 = 0.05\n'
    for i, name in enumerate(("eta_w0", '"eta.W0"')):
        Path(f"{i}.toml").write_text(f"{head}[axes]\n{name} = [0.02, 0.1]\n")
        assert cli.main(["sweep", f"{i}.toml", "--out", f"runs{i}"]) == 0
    exact = [descended([rate, 0.05]) for rate in (0.02, 0.1)]
    for i, name in enumerate(("eta_w0", "eta.W0")):
        found = sweeps.open(f"runs{i}")
        np.testing.assert_allclose(found.sel({name: [0.02, 0.1]}).loss, exact, rtol=1e-4)
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
def test_options_have_the_names_of_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ["--x", "eta_w0:0.1:1", "--y", "layers:1:4"] if command == "phase" else []
    for first, second in (("--eta-w0", "--eta_W1"), ("--eta.W0", "--rule.eta.w1")):
        words = [command, NAME, first, "0.02", second, "0.05", *axes]
        run = understood(words, places=False).settings.run
        assert numbers(run) == {"eta.W0": 0.02, "eta.W1": 0.05}
    with pytest.raises(SystemExit):
        understood([command, NAME, "--eta-w7", "0.02", *axes])
    assert "did you mean eta.W" in capsys.readouterr().err


def test_axes_of_a_phase_diagram_have_the_names_of_groups() -> None:
    run = experiment(Deep(), steps=STEPS, batch=float("inf"))
    plane = sweeps.diagrams.Phase(run, "eta_W0:0.01:0.1", "eta-w1:0.02:0.2", resolution=3)
    (made,) = plane.sweeps().values()
    found = sweeps.run(made, progress=False)
    assert [label(found[name]) for name in ("eta_W0", "eta-w1")] == [
        "learning rate of W0 (1/step)",
        "learning rate of W1 (1/step)",
    ]
    last = found.isel(time=-1, seed=0).loss
    exact = [[descended([a, b]) for b in found["eta-w1"].values] for a in found.eta_W0.values]
    np.testing.assert_allclose(last, exact, rtol=2e-3)


@pytest.mark.more
def test_built_in_layers_are_labelled_by_their_groups() -> None:
    made = Sweep(experiment("yz", steps=2), {"rule.eta.Z": [0.1, 0.2]}, record="loss")
    assert label(sweeps.run(made, progress=False)["rule.eta.Z"]).startswith("learning rate of Z")
