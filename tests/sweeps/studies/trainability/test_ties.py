"""Where ties are unstable, and descent with noise, as phase diagrams have them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from dynsim.classes.tasks import TaskTable
from odes import symmetric
from sweeps.studies.phase import plane
from sweeps.studies.phase.plane import Tally
from sweeps.studies.trainability import limits
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")


@pytest.mark.more
def test_the_line_is_that_of_the_flow_at_each_point() -> None:
    run = experiment(momentum=0.9, steps=60)
    plane = sweeps.Sweep(run, {"eta_y": (0.01, 0.1), "eta_z": (1.0, 100.0)})
    (values,) = limits.tie_lines(plane).values()
    task = symmetric.merged(symmetric.symmetric_task(dynsim.SynSmall().build()))
    rule = dynsim.sgd(0.1, 100.0, momentum=0.9)
    one = symmetric.instability(task, rule, steps=60, batch=128, length=128)
    point = values.sel(eta_y=0.1, eta_z=100.0)
    # Solved in lockstep with others, to the tolerances of the solver.
    np.testing.assert_allclose(point, one.max(), rtol=1e-3)
    assert values.sel(eta_z=1.0).max() < 0 < point


@pytest.mark.more
def test_at_infinite_length_it_is_where_steps_overshoot() -> None:
    run = experiment(momentum=0.9, steps=60, length=np.inf)
    found = limits.tie_lines(sweeps.Sweep(run, {"eta_y": (0.1, 0.2), "eta_z": (1.0, 100.0)}))
    (values,) = found.values()
    assert list(found) == [limits.OVERSHOOT]
    task = symmetric.merged(symmetric.symmetric_task(dynsim.SynSmall().build()))
    one = symmetric.overshoot(task, dynsim.sgd(0.1, 100.0, momentum=0.9), steps=60)
    point = values.sel(eta_y=0.1, eta_z=100.0)
    np.testing.assert_allclose(point, np.log(one.max()), rtol=1e-3)
    assert values.sel(eta_z=1.0).max() < 0 < point


@pytest.mark.parametrize("length", [64, np.inf])
def test_lines_are_of_the_worst_token_and_step_at_every_point(
    length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From other formulas of both rates: beyond the rim at every point of the largest eta_Y, where
    the flow fails, and as far as can be from overshooting where nothing does."""
    asked: dict[str, Any] = {}

    def worst(task: Any, rule: Any, **options: Any) -> jax.Array:
        asked.update(options)
        y, z = (jax.tree.leaves(rule.eta[name])[0] for name in "YZ")
        found = jnp.stack([y * z**2, y * z, -z]) - 0.5
        return jnp.where(y > 2, jnp.nan, found)

    monkeypatch.setattr(limits.symmetric, "instability", worst)
    monkeypatch.setattr(limits.symmetric, "overshoot", worst)
    run = experiment(steps=60, batch=32, length=length)
    axes = {"eta_y": (0.2, 1.0, 3.0), "eta_z": (0.7, 2.0)}
    ((name, values),) = limits.tie_lines(sweeps.Sweep(run, axes)).items()
    y, z = (np.array(each) for each in axes.values())
    want = np.maximum(y[:, None] * z**2, y[:, None] * z) - 0.5
    failed, tiny = np.log(np.finfo(float).max), np.finfo(float).tiny
    if np.isinf(length):
        assert (name, asked) == (limits.OVERSHOOT, {"steps": 60})
        want = np.log(np.maximum(want, tiny))
    else:
        assert (name, asked) == (limits.TIES, {"steps": 60, "batch": 32, "length": 64})
    want[2] = failed
    np.testing.assert_allclose(values, want, rtol=1e-12)
    assert values.dims == ("eta_y", "eta_z")
    for axis, each in axes.items():
        np.testing.assert_array_equal(values[axis], each)


@pytest.mark.parametrize(
    ("settings", "axis"),
    [
        ({"length": np.inf, "rule": "adam"}, "eta_z"),
        ({"rule": "adam"}, "eta_z"),
        (
            {"task": TaskTable([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2]], [0, 0])},
            "eta_z",
        ),
        ({}, "batch"),
    ],
)
def test_there_is_no_line_where_the_theory_says_nothing(settings: dict, axis: str) -> None:
    axes = {"eta_y": (0.1, 1.0), axis: (10.0, 100.0)}
    assert limits.tie_lines(sweeps.Sweep(experiment(**settings), axes)) == {}


@pytest.mark.more
def test_regions_of_a_theory_with_noise_are_probabilities(tmp_path: Path) -> None:
    options = sweeps.phase.Phase(
        experiment(steps=10),
        x="eta_y:0.01:0.1:2",
        y="eta_z:30:60:2",
        theory="symmetric-noise",
        seeds=3,
        out=tmp_path,
    )
    found = sweeps.phase.maps(options)["symmetric-noise"]
    assert found.seeds.values.tolist() == [[3, 3], [3, 3]]
    np.testing.assert_allclose(found.share.sum("code"), 1)


@pytest.mark.more
def test_a_flow_gives_way_to_steps_where_they_are_too_large(tmp_path: Path) -> None:
    # Syn-Small has two classes of 34 tokens: with the first step alone, which has no momentum, the
    # speed peaks in closed form from eta_Y = 6.6 on.
    axes = {"x": "eta_y:6.3:7:2", "y": "eta_z:0.01:100:2"}
    run = experiment(steps=2, momentum=0.9)
    options = sweeps.phase.Phase(run, **axes, seeds=2, against="none", out=tmp_path)
    axes = {name: list(values) for name, values in options.axes().items()}
    region = xr.DataArray(np.full((2, 2), 7), axes, tuple(axes))
    for unstable, moved in ((None, []), (0.1, [(0, 1)])):
        if unstable is not None:
            # The rim itself is not beyond it.
            unstable = xr.DataArray([[0.0, 0.1], [-1, -1]], axes, tuple(axes))
        tally = Tally((2, 2), options.rule(), options.observable)
        noisy = plane.sweep(options, limits.NOISY)
        out = tmp_path / str(len(moved))
        found = limits.stepped(run, region, unstable, noisy, tally, out)
        assert found is not None
        large = {(1, 0), (1, 1), *moved}
        assert {tuple(at) for at in np.argwhere(tally.seeds == 2)} == large
        assert {tuple(at) for at in np.argwhere(found.values != 7)} == large
    # With steps that are nowhere too large there is nothing to run.
    slow = region.isel(eta_y=[0])
    assert limits.stepped(run, slow, None, noisy, tally, tmp_path / "none") is None
    # Nothing is said of rules that the noise does not describe.
    refused = dataclasses.replace(noisy, run=run.at({"start": "uniform"}))
    assert limits.stepped(run, region, None, refused, tally, tmp_path / "refused") is None
