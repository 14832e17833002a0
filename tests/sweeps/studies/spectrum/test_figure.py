"""`dynsim figure spectrum` of two-stage training: which runs, and which times of them."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import sweeps
from odes.two_stage import claims
from sweeps.studies.spectrum import checkpoint, figure
from sweeps.systems.experiment import experiment

TINY = {
    "stage_2": 0.5,
    "d": 4,
    "length": 7,
    "batch": 8,
    "pool": 16,
    "num_test": 16,
    "decay": 0.2,
    "eta_2": 0.1,
}


@pytest.mark.more
def test_both_stages_of_every_run_are_examined_at_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is drawn is not looked at here; 4000 prompts are for the numbers that are printed.
    monkeypatch.setattr(figure, "draw", lambda *_: Figure())
    monkeypatch.setattr(claims, "NUM_PROMPTS", 16)
    figure.run(figure.Spectrum(run=experiment("two_stage", **TINY), seeds=2, out=tmp_path))
    stored = sweeps.open(tmp_path / "simulation").load()
    np.testing.assert_array_equal(stored.time, 2 * [[6, 6 + 25]])
    with np.load(tmp_path / "spectrum.npz") as arrays:
        found = {stage: arrays[f"stage-{stage}/singular"] for stage in (1, 2)}
    for stage, values in found.items():
        for seed in range(2):
            W, V = (stored[f"{name}_signal"][seed, stage - 1].values for name in "WV")
            both = np.concatenate([np.linalg.svd(x, compute_uv=False) for x in (W, V)])
            # float32.
            np.testing.assert_allclose(values[seed], np.sort(both)[::-1], rtol=1e-4, atol=1e-5)


def test_values_of_rounding_are_not_drawn() -> None:
    """Those below a ten-millionth of the largest."""
    sigma = np.array([1e3, 1.0, 5e-5])
    found = checkpoint.Decomposed(
        name="a",
        shape=(3, 3),
        inner=None,
        dtype="float32",
        status="ok",
        sigma=sigma,
        numbers=checkpoint.numbers(sigma),
        null_sigma=np.array([1.5, 1.0, 0.5]),
        null=checkpoint.numbers(np.array([1.5, 1.0, 0.5])),
        edge=2.0,
        spikes=1,
    )
    ax = figure.plot_values([found], {"a": "red"}, Figure().subplots())
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[1 / 6, 500], [1 / 2, 0.5]])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [0.75, 0.5, 0.25])
