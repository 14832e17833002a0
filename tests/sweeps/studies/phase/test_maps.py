"""Maps of phase diagrams on runs whose regions and bands are known, resumed and refined."""

import dataclasses

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binomtest, norm

import sweeps
from sweeps.studies.phase import counts, figure, maps
from sweeps.studies.phase.counts import Tally
from sweeps.studies.phase.plane import at_points
from sweeps.systems.diagrams import Regions
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")
SIDE = 40
WIDTH = 0.06
"""Standard deviation of the places of boundaries, in units of the plane."""


def curve(y):
    """Where on the x axis, from 0 to 1, half of the seeds are on either side."""
    return 0.4 + 0.3 * y**2


@dataclasses.dataclass
class Runs:
    """In place of `run_sweep`: runs that end above zero beyond a place that each seed draws, one
    for all of the plane or one for each point. Keeps what it ran by folder, as a store does."""

    shared: bool
    root: int = 0

    def __post_init__(self):
        self.kept = {}

    def __call__(self, sweep, out, **options):
        if self.kept.setdefault(out, sweep).fields != sweep.fields:
            raise sweeps.StoreError(f"{out}: holds something else")
        (x, xs), (y, ys), (_, seeds) = sweep.fields.items()
        dims = [dim.name for dim in sweep.dims]
        across, up = (np.log10(values) for values in (xs, ys))
        if len(dims) == 3:
            across, up = across[:, None], up[None, :]
        place = across - curve(up)
        drawn = [self.drawn(seed)[self.at(across, up)] for seed in seeds]
        loss = np.stack([place - WIDTH * each for each in drawn], -1)
        on = dims[0] if len(dims) == 2 else y
        return xr.Dataset(
            {
                "loss": ((*dims, "time"), loss[..., None]),
                "status": (dims, np.zeros(loss.shape, int)),
            },
            {x: list(xs), y: (on, list(ys)), "seed": list(seeds)},
        )

    def drawn(self, seed):
        rng = np.random.default_rng([self.root, seed])
        return np.full((SIDE, SIDE), rng.normal()) if self.shared else rng.normal(size=(SIDE, SIDE))

    def at(self, *places):
        return tuple(np.rint(place * (SIDE - 1)).astype(int) for place in places)


RULE = Regions(
    ("loss",),
    lambda dataset: (dataset["loss"].isel(time=-1) > 0) * 3,
    {0: ("below", "0.9"), 3: ("above", "0.5")},
)


def options(out, **settings):
    axes = {"x": f"eta_y:1:10:{SIDE}", "y": f"eta_z:1:10:{SIDE}"}
    given = {"against": "none", "observable": "loss", "noise": False, **axes, **settings}
    return sweeps.diagrams.Phase(sweeps.experiment(steps=20), **given, out=out)


def mapped(monkeypatch, runs, config):
    monkeypatch.setattr(maps, "run_sweep", runs)
    return sweeps.diagrams.maps(config, RULE)["simulation"]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.more
def test_the_boundary_is_within_its_stated_error(shared, tmp_path, monkeypatch):
    """With 95 % confidence, over repetitions."""
    held, spent = [], []
    for root in range(8):
        config = options(tmp_path, seeds=8, band=2, max_seeds=128)
        found = mapped(monkeypatch, Runs(shared, root), config)
        assert found.attrs["band"] <= 2 or found.seeds.max() == 128
        above = found.isel(code=list(found.name.values).index("above"))
        true = np.abs(found.eta_y - 10 ** curve(np.log10(found.eta_z))).argmin("eta_y")
        low, high = (above[end].isel(eta_y=true) for end in ("low", "high"))
        # The probability at the point nearest to the curve, half of a point from it at most.
        place = np.log10(found.eta_y.isel(eta_y=true)) - curve(np.log10(found.eta_z))
        truth = norm.cdf(place / WIDTH)
        held.append(float(((low <= truth) & (truth <= high)).mean()))
        spent.append(found.attrs["runs"])
    assert np.mean(held) > 0.95
    # As many everywhere as the boundary needs would be several times as much.
    assert max(spent) < 24 * SIDE**2


def test_seeds_are_added_where_the_boundary_is_uncertain_and_nowhere_else(tmp_path, monkeypatch):
    few, band = options(tmp_path, seeds=8), options(tmp_path, seeds=8, band=2, max_seeds=32)
    before, after = (mapped(monkeypatch, Runs(False), each) for each in (few, band))
    more = after.seeds.values > 8
    unsure = ((before.low < 0.5) & (before.high > 0.5)).any("code").values
    # Few doublings reach a point that was certain at first.
    assert more[unsure].mean() > 0.5 > 0.1 > more[~unsure].mean()
    far = np.abs(np.log10(after.eta_y) - curve(np.log10(after.eta_z))) > 4 * WIDTH
    assert not more[far.values].any()
    # Seeds are numbered through: a point has the ones that it would have in a uniform diagram.
    full = mapped(monkeypatch, Runs(False), options(tmp_path, seeds=32))
    most = after.seeds == 32
    assert most.any()
    np.testing.assert_array_equal(after.probability.where(most), full.probability.where(most))


def test_intervals_are_those_of_clopper_and_pearson():
    k, n = np.array([0, 1, 4, 7, 8]), np.full(5, 8)
    low, high = counts.interval(k / n, n)
    for i, count in enumerate(k.tolist()):
        want = binomtest(count, 8).proportion_ci(1 - 2 * counts.TAIL_PROBABILITY, "exact")
        assert (low[i], high[i]) == pytest.approx((want.low, want.high), rel=1e-9)
    # A point without seeds is as uncertain as those with the fewest.
    assert counts.interval(np.array([1.0, 1.0]), np.array([0, 8]))[0].tolist() == [low[-1]] * 2


def test_the_most_common_region_wins_over_seeds():
    tally = Tally((2, 1), RULE, "loss")
    loss = xr.DataArray([[-1.0, 1, 1], [1, -1, -1]], dims=("x", "seed")).expand_dims("time", -1)
    status = xr.DataArray([[0, 0, 0], [0, 1, 0]], dims=("x", "seed"))
    tally.add(np.array([[0, 0], [1, 0]]), xr.Dataset({"loss": loss, "status": status}))
    assert tally.region.tolist() == [[3], [0]]
    # Means of the runs that ended well.
    np.testing.assert_allclose(tally.value, [[1 / 3], [0.0]])
    assert tally.seeds.tolist() == [[3], [3]]


THEORY = "symmetric-descent"
AXES = {"x": "eta_y:0.1:100:45", "y": "eta_z:0.1:10:3"}


def refined_options(out, refine):
    run = experiment(steps=20)
    return sweeps.diagrams.Phase(run, **AXES, theory=THEORY, out=out, refine=refine, probes=12)


@pytest.fixture(scope="module")
def refined(tmp_path_factory):
    """A refined map, and the folder of its stores."""
    out = tmp_path_factory.mktemp("refined")
    return out, sweeps.diagrams.maps(refined_options(out, refine=True))[THEORY]


@pytest.mark.more
def test_a_refined_diagram_has_the_regions_of_the_full_one(refined, tmp_path):
    out, found = refined
    full = sweeps.diagrams.maps(refined_options(tmp_path, refine=False))[THEORY]
    assert full.computed.all()
    assert len(np.unique(full.region)) > 1
    np.testing.assert_array_equal(found.region, full.region)
    assert found.attrs["runs"] == found.computed.sum() < found.computed.size
    # Nothing that was inferred has a value, and what has one is what the full grid has.
    np.testing.assert_array_equal(found.entropy.isnull(), ~found.computed)
    # float32 and its rounding, in programs of other widths.
    np.testing.assert_allclose(found.entropy, full.entropy.where(found.computed), rtol=1e-5)
    assert found.drawn.notnull().all()
    # What is drawn and written is read from the stores, and is the same.
    figure.run(refined_options(out, refine=True))
    with np.load(out / "phase.npz") as arrays:
        for name in ("region", "entropy", "computed"):
            np.testing.assert_array_equal(arrays[f"{THEORY}/{name}"], found[name])
        assert arrays[f"{THEORY}/bound"] == found.attrs["bound"]


def test_an_interrupted_refinement_resumes_to_the_same_map(refined, tmp_path, monkeypatch):
    run, ran = maps.run_sweep, []

    def noted(sweep, out, **options):
        if not out.exists():
            ran.append(out.name)
        if len(ran) == 3:
            raise sweeps.Interrupted("stopped")
        return run(sweep, out, **options)

    monkeypatch.setattr(maps, "run_sweep", noted)
    with pytest.raises(sweeps.Interrupted):
        sweeps.diagrams.maps(refined_options(tmp_path, refine=True))
    ran.append("resumed")
    xr.testing.assert_identical(
        sweeps.diagrams.maps(refined_options(tmp_path, refine=True))[THEORY], refined[1]
    )
    # What was stored is not run again.
    assert ran[2] == ran[4]
    assert len(set(ran)) == len(ran) - 1


def test_the_points_of_a_level_are_zipped_and_lines_are_on_their_grid():
    full = sweeps.Sweep(
        experiment(steps=4, eta_y=1.0),
        {"momentum": [0.0, 0.5, 0.9], "eta_z": [1.0, 2.0], "seed": [0, 1]},
        "symmetric-descent",
        ("loss",),
        title="plane",
    )
    points = np.indices((3, 2)).reshape(2, -1).T
    some = at_points(full, points[[0, 3]], "level-1")
    assert some.fields == {"momentum": (0.0, 0.5), "eta_z": (1.0, 2.0), "seed": (0, 1)}
    assert [(dim.name, dim.size) for dim in some.dims] == [("momentum", 2), ("seed", 2)]
    zipped = sweeps.run(at_points(full, points, "level-0"), progress=False)
    grid = maps.on_grid(zipped, "momentum", "eta_z").transpose("momentum", "eta_z", "seed", ...)
    np.testing.assert_array_equal(grid.loss, sweeps.run(full, progress=False).loss)
    np.testing.assert_array_equal(grid.eta_z, [1.0, 2.0])
