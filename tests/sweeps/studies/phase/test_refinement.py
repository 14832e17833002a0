"""Refinement on regions that are known in closed form: what it measures, finds and bounds."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

from sweeps.output.cells import colour_range
from sweeps.studies.phase import refinement
from sweeps.studies.phase.refinement import Guarded, Lattice, Refinement, guard, mixed

Shape = Callable[[np.ndarray, np.ndarray], np.ndarray]


def disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.hypot(x - 0.5, y - 0.5) < 0.37


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y > x**2.5


def sloped(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A stripe that the coarse grid sees in places, from which it is followed."""
    return abs(y - 0.5037 - 0.2 * x) < 0.006


def stripe(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A third of a coarse cell, along the axis: no corner of the coarse grid lies within."""
    return (32 * y > 10.4) & (32 * y < 10.7)


def dots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """49 islands, most of which the coarse grid misses and nothing connects."""
    return np.hypot((7 * x) % 1 - 0.513, (7 * y) % 1 - 0.513) < 0.05


def basins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which root of z^3 = 1 Newton's method finds: a fractal boundary."""
    z = 4 * x - 2 + 1j * (4 * y - 2) + 1e-9
    for _ in range(60):
        z = z - (z**3 - 1) / (3 * z**2)
    return np.argmin(abs(z[..., None] - np.exp(2j * np.pi * np.arange(3) / 3)), -1)


class Plane:
    """A region at all points, and which of them were asked for."""

    def __init__(self, shape: Shape, points: tuple[int, int]) -> None:
        i, j = np.indices(points)
        self.full = shape(i / (points[0] - 1), j / (points[1] - 1)).astype(int)
        self.names: list[str] = []
        self.asked = np.zeros(points, int)

    def __call__(self, name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.names.append(name)
        self.asked[tuple(points.T)] += 1
        return self.full[tuple(points.T)], 0.1 * points[:, 0] + 0.2 * points[:, 1]

    def refined(self) -> Refinement:
        return Refinement(Lattice.of(self.full.shape, 32), self)


@pytest.mark.parametrize("shape", [disc, power, sloped])
@pytest.mark.parametrize("points", [(200, 200), (129, 300)])
def test_a_connected_boundary_is_found_exactly(shape: Shape, points: tuple[int, int]) -> None:
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


@pytest.mark.parametrize(("shape", "low", "high"), [(disc, 0.95, 1.15), (basins, 1.35, 1.55)])
def test_the_coarse_grid_says_what_a_boundary_will_cost(
    shape: Shape, low: float, high: float
) -> None:
    """A curve has the dimension 1, and the basins one of about 1.4."""
    plane, said = Plane(shape, (257, 257)), []
    Refinement(
        Lattice.of((257, 257), 32), plane, report=lambda text: said.append((text, plane.names[-1]))
    )
    (first, before), *others = said
    assert before.startswith("level-0")
    numbers = re.fullmatch(
        "32 x 32 cells: about (.*) % of 66049 points .* here, (.*), on .*", first
    )
    assert numbers is not None
    assert low < float(numbers[2]) < high
    # Rough ones have cells with more or fewer neighbours than a curve.
    assert float(numbers[1]) == pytest.approx(100 * plane.asked.mean(), rel=0.15)
    assert [name.split("-")[1] for _, name in others] == ["1", "2"]


def half(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y > 0.31 + 0.29 * x


def carpet(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Every third point of a line along x, in rows that are shifted: no cell is of one region."""
    return (np.rint(256 * x) + np.rint(256 * y)) % 3 == 0


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [(half, 0.97, 1.03), (disc, 0.97, 1.03), (basins, 1.35, 1.5), (carpet, 2, 2)],
)
def test_the_dimension_of_the_boundary_is_that_of_the_curve(
    shape: Shape, low: float, high: float
) -> None:
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


@pytest.mark.parametrize("points", [(300, 7), (2, 90), (1, 90), (35, 34)])
def test_axes_of_few_values_have_each_of_them_once(points: tuple[int, int]) -> None:
    lattice = Lattice.of(points, 32)
    for level in range(lattice.levels + 1):
        corners = np.indices(lattice.sides(level) + 1).reshape(2, -1).T
        at = lattice.points(level, corners)
        # Corners of a level are among those of the next one, where a point is in its own cell.
        np.testing.assert_array_equal(lattice.points(level + 1, 2 * corners), at)
        cells = lattice.containing(level, at)
        assert (lattice.points(level, cells) == at)[(at < lattice.last)].all()
    assert len(np.unique(at, axis=0)) == np.prod(points)


def test_probes_find_what_the_coarse_grid_misses() -> None:
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


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
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


def test_the_bound_counts_what_the_last_draw_found_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SciPy does."""
    monkeypatch.setattr(refinement, "ROUNDS", 1)
    found = Plane(dots, (150, 150)).refined()
    left = 150**2 - found.num_measured
    guarded = guard(found, 1000)
    assert (guarded.rounds, guarded.probes) == (1, 1000)
    assert guarded.failures > 0
    # After the last draw nothing is refined, of which it would know nothing.
    assert found.num_measured == 150**2 - left + 1000
    test = binomtest(guarded.failures, 1000, alternative="less")
    share = test.proportion_ci(confidence_level=0.975).high
    assert guarded.bound == pytest.approx(share * left / 150**2, rel=1e-9)


def test_the_bound_holds_where_some_is_missed() -> None:
    missed = []
    for seed in range(20):
        plane = Plane(dots, (150, 150))
        found = plane.refined()
        guarded = guard(found, 100, seed)
        missed.append((found.infer().region != plane.full).mean())
        assert missed[-1] <= guarded.bound
    assert max(missed) > 0


def test_the_same_seed_asks_for_the_same_points() -> None:
    one, same, other = (Plane(dots, (100, 100)) for _ in range(3))
    assert guard(one.refined(), 50, 3) == guard(same.refined(), 50, 3)
    guard(other.refined(), 50, 4)
    assert one.names == same.names
    np.testing.assert_array_equal(one.asked, same.asked)
    assert (one.asked != other.asked).any()


@pytest.mark.parametrize("D", [1.3, pytest.param(1.5, marks=pytest.mark.full)])
def test_the_dimension_of_a_weierstrass_graph(D: float) -> None:
    # The graph of sum a^k cos(2 pi b^k x) has box dimension 2 + ln a / ln b. With b = 2 every
    # level adds as much detail, and the slope comes up to it slowly.
    a, last = 2.0 ** (D - 2), 16 * 2**7

    def below(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        terms = [a**k * np.cos(2 * np.pi * np.mod(2.0**k * x, 1)) for k in range(24)]
        return y < 0.5 + 0.45 * (1 - a) * np.sum(terms, axis=0)

    def measure(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = below(*points.T / last).astype(int)
        return found, found.astype(float)

    levels = Refinement(Lattice((last, last), (16, 16), 7), measure).levels()
    eps, cells = np.array([(level.eps, len(level.boundary)) for level in levels[3:]]).T
    assert D - 0.05 < np.polyfit(-np.log(eps), np.log(cells), 1)[0] < D
    # A connected boundary is found whole: as on the full grid of that level.
    side = 16 * 2**4
    full = below(*np.mgrid[: side + 1, : side + 1] / side)
    corners = np.stack([full[:-1, :-1], full[:-1, 1:], full[1:, :-1], full[1:, 1:]], axis=-1)
    want = np.argwhere(mixed(corners.reshape(-1, 4)).reshape(side, side))
    assert {*map(tuple, levels[4].boundary)} == {*map(tuple, want)}


def test_points_are_measured_once_and_only_near_the_boundary() -> None:
    seen: list[tuple[float, float]] = []

    def circle(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.extend(map(tuple, points.tolist()))
        radius = np.hypot(*(points / 256 - 0.5).T)
        return (radius < 0.37).astype(int), radius

    levels = Refinement(Lattice((256, 256), (8, 8), 5), circle).levels()
    assert len(seen) == len(set(seen)) == sum(len(level.places) for level in levels)
    for i, level in enumerate(levels):
        assert level.eps == 1 / (8 * 2**i)
        radius = np.hypot(*(level.places - 0.5).T)
        np.testing.assert_array_equal(radius, level.value)
        # A point of a cell that the circle cuts is no further from it than its diagonal, and one
        # of a sibling no further than twice that.
        assert i == 0 or (abs(radius - 0.37) <= 2 * np.sqrt(2) * level.eps).all()


@pytest.mark.more
def test_a_tolerance_is_a_share_of_the_range_of_colours() -> None:
    linear, decades = colour_range(np.array([1, 3, np.nan])), colour_range(np.array([1e-4, 1]))
    values = np.array([[1, 1.15], [1, 1.25], [np.nan, 1], [np.nan, np.nan]])
    assert linear.apart(values, 0.1).tolist() == [False, True, True, False]
    assert decades.apart(np.array([[0.1, 0.2], [0.1, 0.3]]), 0.1).tolist() == [False, True]
    assert mixed(np.array([[1, 1, 1, 2], [2, 2, 2, 2]])).tolist() == [True, False]
