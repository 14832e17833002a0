"""The spectrum of two-stage training: which runs, and which times of them."""

from pathlib import Path

import numpy as np
import pytest

import sweeps
from papers.two_stage.spectrum import Spectrum

TINY = {"stage_2": 0.5, "d": 4, "length": 7, "batch": 8, "pool": 16, "num_test": 16}
TINY |= {"decay": 0.2, "eta_2": 0.1}


@pytest.mark.more
def test_both_stages_of_every_run_are_examined_at_their_ends(tmp_path: Path) -> None:
    Spectrum(run=sweeps.experiment("two_stage", **TINY), seeds=2, out=tmp_path).save()
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
    assert (tmp_path / "spectrum.png").stat().st_size > 10_000
