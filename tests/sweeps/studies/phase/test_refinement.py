"""Refinement on regions that are known in closed form: what it measures, finds and bounds."""

import numpy as np
import pytest

from sweeps.studies.phase.refinement import Guarded, Lattice, Refinement, guard


def disc(x, y):
    return np.hypot(x - 0.5, y - 0.5) < 0.37


def power(x, y):
    return y > x**2.5


def sloped(x, y):
    """A stripe that the coarse grid sees in places, from which it is followed."""
    return abs(y - 0.5037 - 0.2 * x) < 0.006


def stripe(x, y):
    """A third of a coarse cell, along the axis: no corner of the coarse grid lies within."""
    return (32 * y > 10.4) & (32 * y < 10.7)


def dots(x, y):
    """49 islands, most of which the coarse grid misses and nothing connects."""
    return np.hypot((7 * x) % 1 - 0.513, (7 * y) % 1 - 0.513) < 0.05


def basins(x, y):
    """Which root of z^3 = 1 Newton's method finds: a fractal boundary."""
    z = 4 * x - 2 + 1j * (4 * y - 2) + 1e-9
    for _ in range(60):
        z = z - (z**3 - 1) / (3 * z**2)
    return np.argmin(abs(z[..., None] - np.exp(2j * np.pi * np.arange(3) / 3)), -1)


class Plane:
    """A region at all points, and which of them were asked for."""

    def __init__(self, shape, points):
        i, j = np.indices(points)
        self.full = shape(i / (points[0] - 1), j / (points[1] - 1)).astype(int)
        self.names = []
        self.asked = np.zeros(points, int)

    def __call__(self, name, points):
        self.names.append(name)
        self.asked[tuple(points.T)] += 1
        return self.full[tuple(points.T)], 0.1 * points[:, 0] + 0.2 * points[:, 1]

    def refined(self):
        return Refinement(Lattice.of(self.full.shape, 32), self)


@pytest.mark.parametrize("shape", [disc, power, sloped])
@pytest.mark.parametrize("points", [(200, 200), (129, 300)])
def test_a_connected_boundary_is_found_exactly(shape, points):
    plane = Plane(shape, points)
    found = plane.refined().infer()
    np.testing.assert_array_equal(found.region, plane.full)
    np.testing.assert_array_equal(found.measured, plane.asked == 1)
    assert plane.asked.max() == 1
    # The first batch of a level has no number.
    for level in range(4):
        batches = [name for name in plane.names if name.startswith(f"level-{level}")]
        more = [f"level-{level}-{i}" for i in range(1, len(batches))]
        assert batches == [f"level-{level}", *more]
    assert found.measured.mean() < 0.12
    # What is linear along both axes is drawn exactly.
    i, j = np.indices(points)
    np.testing.assert_allclose(found.value, 0.1 * i + 0.2 * j)


def carpet(x, y):
    """Every third point of a line along x, in rows that are shifted: no cell is of one region."""
    return (np.rint(256 * x) + np.rint(256 * y)) % 3 == 0


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [(power, 0.97, 1.03), (disc, 0.97, 1.03), (basins, 1.35, 1.5), (carpet, 2, 2)],
)
def test_the_dimension_of_the_boundary_is_that_of_the_curve(shape, low, high):
    """That of boxes with more than one region in the full picture."""
    plane = Plane(shape, (257, 257))
    numbers = []
    for side in (1, 2, 4):
        corners = [
            plane.full[i : 257 - side + i : side, j : 257 - side + j : side]
            for i in range(side + 1)
            for j in range(side + 1)
        ]
        numbers.append((np.ptp(corners, axis=0) > 0).sum())
    found = plane.refined()
    fitted = np.polyfit(np.log([1, 2, 4]), np.log(numbers), 1)[0]
    # Refinement misses a few islands of the basins.
    assert found.dimension() == pytest.approx(-fitted, abs=1e-9 if shape is not basins else 0.01)
    assert low - 1e-9 < found.dimension() < high + 1e-9
    if low == 2:
        assert found.forecast(0)[1] == 1
    assert np.isnan(Plane(stripe, (257, 257)).refined().dimension())


def test_probes_find_what_the_coarse_grid_misses():
    plane = Plane(stripe, (257, 257))
    found = plane.refined()
    assert not found.infer().region.any()
    guarded = guard(found, 400)
    # One probe in 107 lies in the stripe; from there all of it is followed.
    assert guarded.rounds == 2
    assert guarded.failures == 0
    # The second of the draws has a sixth of the 5 %.
    left = (257**2 - (found.num_measured - 400)) / 257**2
    assert guarded.bound == pytest.approx((1 - (0.05 / 6) ** (1 / 400)) * left, rel=1e-9)
    np.testing.assert_array_equal(found.infer().region, plane.full)
    assert plane.asked.max() == 1
    assert plane.asked.mean() < 0.08
    assert len(set(plane.names)) == len(plane.names)


def test_the_bound_is_that_of_clopper_and_pearson():
    """In closed form for no failure: (1 - p)^n is the chance to see none."""
    plane = Plane(disc, (200, 200))
    found = plane.refined()
    left = 40000 - found.num_measured
    guarded = guard(found, 300)
    assert guarded[:3] == (1, 300, 0)
    # The first of the draws has half of the 5 %.
    assert guarded.bound == pytest.approx((1 - 0.025 ** (1 / 300)) * left / 40000, rel=1e-9)
    assert guard(plane.refined(), 0) == Guarded(0, 0, 0, 1.0)
    assert guard(plane.refined(), 40000).bound == 0


def test_the_bound_holds_where_some_is_missed():
    missed = []
    for seed in range(20):
        plane = Plane(dots, (150, 150))
        found = plane.refined()
        guarded = guard(found, 100, seed)
        missed.append((found.infer().region != plane.full).mean())
        assert missed[-1] <= guarded.bound
    assert max(missed) > 0
