"""The sharpness of training at the edge of stability next to that of the central flow."""

import numpy as np
import xarray as xr

from dynsim.training.recording import PRECONDITIONED
from sweeps.comparison.errors import Comparison
from sweeps.comparison.scatter import held


def runs(sharpness: list[list[float]], first_bad_step: list[int]) -> xr.Dataset:
    """Runs with a record at steps 0, 1, 2, 4, 6."""
    found = {"preconditioned_sharpness": (("seed", "time"), np.array(sharpness))}
    bad = {"first_bad_step": ("seed", np.array(first_bad_step))}
    return xr.Dataset({**found, **bad}, {"time": [0.0, 1, 2, 4, 6]})


def test_the_edge_is_compared_from_where_the_central_flow_reaches_it() -> None:
    """By hand, with the records at 2, 4 and 6 as long as 1.5, 2 and 2: 1.5 * 3 + 2 * 1 + 2 * 2.5 =
    11.5 of 5.5, and of a second run, which ends before step 6, 1.5 * 2 + 2 * 2."""
    training = runs([[0, 9, 3, 1, 2.5], [0, 9, 2, 2, np.nan]], [-1, 6])
    central = runs([[0, 1, 2, 2, 1.5], [0, 1, 2, 2, 2]], [-1, -1])
    found = held(training, central)
    assert found is not None
    mean = (11.5 + 7) / 9
    weights, values = np.array([1.5, 2, 2, 1.5, 2]), np.array([3, 1, 2.5, 2, 2])
    varies = np.sqrt(weights @ (values - mean) ** 2 / 9)
    want = [2, mean, varies, 2 - 2 * 0.5 / 9]
    got = [found.step, found.training, found.varies, found.central]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert "from step 2 on, the preconditioned sharpness of training is 2.056" in str(found)
    assert held(training, runs([[0, 1, 1, 1, 1]] * 2, [-1, -1])) is None
    assert held(training, runs([[0, 1, 2, 2, 2]] * 2, [1, 1])) is None


def test_a_comparison_has_the_edge_if_both_sides_record_it() -> None:
    training = runs([[0, 9, 3, 1, 2.5]], [-1])
    central = runs([[0, 1, 2, 2, 1.5]], [-1])

    def of(theory: str, *names: str) -> Comparison:
        return Comparison(None, {}, training, {theory: central}, {}, names)  # pyright: ignore[reportArgumentType]

    assert of("central", "loss", PRECONDITIONED).edge == held(training, central)
    assert of("central", "loss").edge is None
    assert of("flow", "loss", PRECONDITIONED).edge is None
