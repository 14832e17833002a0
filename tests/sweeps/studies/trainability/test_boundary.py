"""Trainability maps: the relative loss of a run, and the boundary on sets that are known."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim.training.loop import LAST
from odes import symmetric
from sweeps import cli
from sweeps.studies.phase.refinement import Lattice, Level, Refinement, mixed
from sweeps.studies.trainability import figure
from sweeps.studies.trainability.figure import Trainability, box_dimension, refine, trained
from sweeps.systems.experiment import experiment
from tests.systems.layers import initial_weights, simulate

SMALL = dynsim.SynSmall().build()


def mean_of_the_last(losses: np.ndarray) -> float:
    return losses[-20:].mean() / losses[0]


@pytest.mark.parametrize(
    ("steps", "eta_y"),
    [
        pytest.param(1, 1.0, marks=pytest.mark.full),
        (7, 1.0),
        pytest.param(20, 1.0, marks=pytest.mark.full),
        (33, 1.0),
        (33, 5e4),
    ],
)
@pytest.mark.more
def test_the_relative_loss_is_that_of_the_batch_losses(steps: int, eta_y: float) -> None:
    run = simulate(
        SMALL,
        dynsim.sgd(eta_y, 0.5),
        jax.random.key(3),
        steps=steps,
        length=4,
        batch=8,
        times=range(steps + 1),
        record=["loss", "relative_loss"],
        dtype="float64",
    )
    want = mean_of_the_last(run["batch_loss"][:steps])
    np.testing.assert_allclose(run["relative_loss"][-1], want, rtol=1e-12)
    assert np.isnan(run["relative_loss"][:-1]).all()
    assert (want > 1) == (eta_y > 1e3)


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.full), 12, 41])
def test_symmetric_descent_has_the_relative_loss_of_its_losses(steps: int) -> None:
    rates = np.array([0.3, 2.0, 5e3])
    run = symmetric.descend(
        symmetric.symmetric_task(SMALL),
        dynsim.sgd(rates, rates[::-1], momentum=0.9),
        steps=steps,
        times=range(steps + 1),
        record=["relative_loss", "loss"],
    )
    for losses, found in zip(run["loss"], run["relative_loss"], strict=True):
        np.testing.assert_allclose(found[-1], mean_of_the_last(losses[:steps]), rtol=1e-12)
        assert np.isnan(found[:-1]).all()


@pytest.mark.full(
    "test_trained_is_below_one_and_not_diverged",
    "sweeps/runner/test_run.py::test_diverged_runs_are_data_and_are_masked",
)
def test_a_run_that_overflows_is_data_and_did_not_train() -> None:
    axes = {"eta_y": [1.0, 1e38], "eta_z": [1.0]}
    run = experiment(steps=30, length=4, batch=8)
    for theory in ("simulation", "symmetric-descent"):
        found = sweeps.run(sweeps.Sweep(run, axes, theory=theory, record=("relative_loss",)))
        assert found.relative_loss.dims == ("eta_y", "eta_z")
        good, bad = found.relative_loss.values[:, 0]
        assert good < 1
        # A symmetric task trains at any rate, as long as float32 holds its weights.
        assert (bad < 1) == (theory == "symmetric-descent")
        ok = trained(found.relative_loss.values, found.status.values)[:, 0]
        assert ok.tolist() == [True, theory == "symmetric-descent"]
    # Where every loss is NaN, from a start that is.
    broken = initial_weights(SMALL, "zero", jax.random.key(0))
    broken = jax.tree.map(lambda leaf: leaf + np.nan, broken)
    lost = simulate(
        SMALL,
        dynsim.sgd(1.0, 1.0),
        steps=3,
        length=math.inf,
        batch=math.inf,
        init=broken,
        times=[3],
        record="relative_loss",
    )
    assert np.isnan(lost["relative_loss"]).all()


# A program for each theory.
@pytest.mark.full(
    "test_symmetric_descent_has_the_relative_loss_of_its_losses",
    "odes/symmetric/test_solve.py::test_descent_is_the_full_descent",
)
def test_both_descents_agree_and_the_others_are_unchanged_by_asking() -> None:
    def run(theory: str, *record: str) -> object:
        axes = {"eta_y": [0.5, 30.0], "eta_z": [2.0]}
        training = experiment(steps=25, dtype="float64", momentum=0.5)
        return sweeps.run(sweeps.Sweep(training, axes, theory=theory, record=record))

    reduced = run("symmetric-descent", "relative_loss", "loss")
    full = run("descent", "relative_loss")
    np.testing.assert_allclose(reduced.relative_loss, full.relative_loss, rtol=1e-9)
    np.testing.assert_array_equal(reduced.loss, run("symmetric-descent", "loss").loss)


def test_the_relative_loss_needs_the_end_of_the_run() -> None:
    message = "times must include steps = 9; they end at 8"
    with pytest.raises(ValueError, match=message):
        simulate(
            SMALL,
            dynsim.sgd(1, 1),
            jax.random.key(0),
            steps=9,
            times=[0, 8],
            record=["relative_loss"],
        )
    with pytest.raises(ValueError, match=message):
        symmetric.descend(
            symmetric.symmetric_task(SMALL),
            dynsim.sgd(1, 1),
            steps=9,
            times=[0, 8],
            record=["relative_loss"],
        )


def test_trained_is_below_one_and_not_diverged() -> None:
    relative = np.array([0.2, 1.0, 7.0, np.nan, np.inf, 0.2])
    status = np.array([0, 0, 0, 0, 0, dynsim.Status.DIVERGED])
    assert trained(relative, status).tolist() == [True, False, False, False, False, False]
    assert LAST == 20


def test_a_cell_is_mixed_unless_its_corners_agree() -> None:
    corners = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 1]])
    assert mixed(corners).tolist() == [False, False, True, True]


def test_points_are_classified_once_and_only_near_the_boundary() -> None:
    seen: list[tuple[float, float]] = []

    def circle(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.extend(map(tuple, points.tolist()))
        radius = np.hypot(*(points / 256 - 0.5).T)
        return (radius < 0.37).astype(int), radius

    levels = Refinement(Lattice((256, 256), (8, 8), 5), circle).levels()
    assert len(seen) == len(set(seen)) == sum(len(level.places) for level in levels)
    for i, level in enumerate(levels):
        side = 8 * 2**i
        assert level.eps == 1 / side
        if i:
            # A point of a cell that the circle cuts is no further from it than its diagonal, and
            # one of a sibling no further than twice that.
            radius = np.hypot(*(level.places - 0.5).T)
            np.testing.assert_array_equal(radius, level.value)
            assert (abs(radius - 0.37) <= 2 * np.sqrt(2) / side).all()
    assert abs(box_dimension(levels, (2, 5)).slope - 1) < 0.03


@pytest.mark.parametrize("D", [1.3, pytest.param(1.5, marks=pytest.mark.full)])
def test_the_dimension_of_a_weierstrass_graph(D: float) -> None:
    # The graph of sum a^k cos(2 pi b^k x) has box dimension 2 + ln a / ln b. With b = 2 every
    # level adds as much detail, and the slope comes up to it slowly.
    a = 2.0 ** (D - 2)

    def below(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        terms = [a**k * np.cos(2 * np.pi * np.mod(2.0**k * x, 1)) for k in range(24)]
        return y < 0.5 + 0.45 * (1 - a) * np.sum(terms, axis=0)

    def measure(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = below(*points.T / (16 * 2**7)).astype(int)
        return found, found.astype(float)

    last = 16 * 2**7
    levels = Refinement(Lattice((last, last), (16, 16), 7), measure).levels()
    assert D - 0.05 < box_dimension(levels, (3, 7)).slope < D
    # A connected boundary is found whole: as on the full grid of that level.
    side = 16 * 2**4
    full = below(*np.mgrid[: side + 1, : side + 1] / side)
    corners = np.stack([full[:-1, :-1], full[:-1, 1:], full[1:, :-1], full[1:, 1:]], axis=-1)
    want = {
        (int(i), int(j)) for i, j in np.argwhere(mixed(corners.reshape(-1, 4)).reshape(side, side))
    }
    assert {(int(i), int(j)) for i, j in levels[4].boundary} == want


def test_a_slope_and_its_error_are_those_of_a_textbook() -> None:
    counts, eps = [3, 7, 20, 33], [1 / 4, 1 / 8, 1 / 16, 1 / 32]
    empty = np.zeros((0, 2)), np.zeros(0, int), np.zeros(0)
    levels = [Level(*empty, np.zeros((n, 2), int), e) for n, e in zip(counts, eps, strict=True)]
    (slope, intercept), covariance = np.polyfit(-np.log(eps), np.log(counts), 1, cov="unscaled")
    rest = np.log(counts) - np.polyval([slope, intercept], -np.log(eps))
    found = box_dimension(levels, (0, 3))
    want = (slope, np.sqrt(covariance[0, 0] * (rest @ rest) / 2), intercept)
    np.testing.assert_allclose(found, want, rtol=1e-9)
    assert np.isnan(box_dimension(levels, (0, 1)).error)


def test_where_everything_trains_there_is_no_boundary(tmp_path: Path) -> None:
    # From zero weights the gradient of a symmetric task keeps its sign, so the loss stays below
    # its start ln M whatever the rates are.
    rates = {"eta_y": (1e-2, 1e9), "eta_z": (1e-2, 1e9)}
    config = Trainability(experiment(steps=25), "symmetric-descent", **rates, cells=6, out=tmp_path)
    (level,) = refine(config).levels()
    assert level.region.all()
    assert level.boundary.shape == (0, 2)
    assert (level.value < 1).all()
    assert np.isnan(box_dimension([level], (1, 3)).slope)


@pytest.mark.full(
    "test_points_are_classified_once_and_only_near_the_boundary",
    "sweeps/runner/store/test_store.py::test_a_sweep_that_ended_early_resumes_to_the_same_numbers",
)
def test_levels_are_stored_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = experiment(steps=20, length=4, batch=8, seed=2)
    rates = {"eta_y": (10.0, 1e5), "eta_z": (1e-1, 1e3)}
    config = Trainability(run, **rates, cells=3, levels=1, out=tmp_path)
    short = refine(config).levels()
    stored = sweeps.open(tmp_path / "level-1")
    first = config.rates(short[1].places[: stored.sizes["eta_y"]])
    np.testing.assert_allclose(np.stack([stored.eta_y, stored.eta_z], axis=-1), first)
    np.testing.assert_array_equal(
        stored.relative_loss[:, 0], short[1].value[: stored.sizes["eta_y"]]
    )
    # The levels that are there are read, not run.
    computed = []
    compute = figure.run_sweep

    def count(sweep: object, out: Path, **options: object) -> object:
        if not out.exists():
            computed.append(out.name)
        return compute(sweep, out, **options)

    monkeypatch.setattr(figure, "run_sweep", count)
    long = refine(dataclasses.replace(config, levels=2)).levels()
    assert {name.split("-")[1] for name in computed} == {"2"}
    for a, b in zip(short, long, strict=False):
        np.testing.assert_array_equal(a.boundary, b.boundary)
        np.testing.assert_array_equal(a.value, b.value)


@pytest.mark.full(
    "test_where_everything_trains_there_is_no_boundary",
    "test_points_are_classified_once_and_only_near_the_boundary",
)
def test_the_command_draws_and_writes(tmp_path: Path) -> None:
    options = ["--steps", "20", "--cells", "3", "--levels", "2", "--out", str(tmp_path)]
    assert cli.main(["figure", "trainability", *options, "--batch", "8"]) == 0
    with np.load(tmp_path / "trainability.npz", allow_pickle=False) as data:
        assert data["level-0/eta_y"].shape == (16,)
        for i in range(3):
            assert data["eps"][i] == 1 / (3 * 2**i)
            assert data["N"][i] == len(data[f"level-{i}/boundary"])
            assert len(data[f"level-{i}/relative_loss"]) == len(data[f"level-{i}/eta_z"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta_y": (10.0, 1.0)}, "eta_y = (10.0, 1.0): must increase"),
        ({"eta_z": (0.0, 1.0)}, "eta_z = 0.0: must be finite and in (0, inf)"),
        ({"cells": 0}, "cells = 0: must be an integer from 1"),
        ({"levels": 1}, "levels = 1: must be an integer from 2 to 12"),
        ({"eta_z": (2.0, 2.0)}, "eta_z = (2.0, 2.0): must increase"),
        ({"fit": (3, 5)}, "fit = (3, 5): must increase and lie within the levels 0 to 4"),
        ({"fit": (2, 2)}, "fit = (2, 2): must increase"),
        ({"fit": (-1, 2)}, "fit = (-1, 2): must increase"),
    ],
)
def test_bad_input_is_named_and_nothing_written(
    options: dict, message: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=re.escape(message)):
        figure.run(figure.Trainability(**options, out=out))
    assert not out.exists()
