"""Boundaries that differ by seed, on runs whose boundary and band are known in closed form."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binomtest, norm

import sweeps
from sweeps.studies.phase import counts, figure, maps
from sweeps.studies.phase.counts import Tally
from sweeps.studies.phase.plane import Phase
from sweeps.studies.phase.regions import agreement, sides
from sweeps.systems.diagrams import Rule

SIDE = 40
WIDTH = 0.06
"""Standard deviation of the places of boundaries, in units of the plane."""


def curve(y: np.ndarray) -> np.ndarray:
    """Where on the x axis, from 0 to 1, half of the seeds are on either side."""
    return 0.4 + 0.3 * y**2


@dataclasses.dataclass
class Runs:
    """In place of `run_sweep`: runs that end above zero beyond a place that each seed draws, one
    for all of the plane or one for each point. Keeps what it ran by folder, as a store does."""

    shared: bool
    root: int = 0
    width: float = WIDTH
    fails_at: int = -1

    def __post_init__(self) -> None:
        self.kept: dict[Path, sweeps.Sweep] = {}

    def __call__(self, sweep: sweeps.Sweep, out: Path, **options: object) -> xr.Dataset:
        if self.kept.setdefault(out, sweep).fields != sweep.fields:
            raise sweeps.StoreError(f"{out}: holds something else")
        if len(self.kept) == self.fails_at:
            self.fails_at = -1
            del self.kept[out]
            raise sweeps.Interrupted("stopped")
        (x, xs), (y, ys), (_, seeds) = sweep.fields.items()
        dims = [dim.name for dim in sweep.dims]
        across, up = (np.log10(values) for values in (xs, ys))
        if len(dims) == 3:
            across, up = across[:, None], up[None, :]
        place = across - curve(up)
        drawn = [self.drawn(seed)[self.at(across, up)] for seed in seeds]
        loss = np.stack([place - self.width * each for each in drawn], -1)
        on = dims[0] if len(dims) == 2 else y
        return xr.Dataset(
            {
                "loss": ((*dims, "time"), loss[..., None]),
                "status": (dims, np.zeros(loss.shape, int)),
            },
            {x: list(xs), y: (on, list(ys)), "seed": list(seeds)},
        )

    def drawn(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng([self.root, seed])
        return np.full((SIDE, SIDE), rng.normal()) if self.shared else rng.normal(size=(SIDE, SIDE))

    def at(self, *places: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.rint(place * (SIDE - 1)).astype(int) for place in places)


RULE = Rule(
    ("loss",),
    lambda dataset: (dataset["loss"].isel(time=-1) > 0) * 3,
    {0: ("below", "0.9"), 3: ("above", "0.5")},
)


def options(out: Path, **settings: object) -> Phase:
    axes = {"x": f"eta_y:1:10:{SIDE}", "y": f"eta_z:1:10:{SIDE}"}
    given = {"against": "none", "observable": "loss", "noise": False, **axes, **settings}
    return sweeps.diagrams.Phase(sweeps.experiment(steps=20), **given, out=out)


def mapped(monkeypatch: pytest.MonkeyPatch, runs: Runs, config: Phase) -> xr.Dataset:
    monkeypatch.setattr(maps, "run_sweep", runs)
    return sweeps.diagrams.maps(config, RULE)["simulation"]


def places(table: xr.Dataset, level: float, of: str = "share") -> tuple[np.ndarray, np.ndarray]:
    """The vertices of a curve of the region above, on axes from 0 to 1."""
    at = (table.region == "above") & (table.level == level) & (table.of == of)
    return tuple(np.log10(table[name].values[at.values]) for name in ("x", "y"))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.more
def test_curves_are_where_the_share_of_the_seeds_is_the_level(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is normal: the band between 10 and 90 % is 2.56 standard deviations wide."""
    seeds = 96
    runs = Runs(shared)
    table = sweeps.diagrams.boundary(mapped(monkeypatch, runs, options(tmp_path, seeds=seeds)))
    assert set(table.region.values) == {"below", "above"}
    assert table.computed.all()
    assert table.x.attrs["axis"] == "eta_y"
    draws = np.array([runs.drawn(seed)[0, 0] for seed in range(seeds)])
    for level in (0.1, 0.5, 0.9):
        x, y = places(table, level)
        # What the seeds drew, which is the same in each row, or else on average what all draw.
        want = np.quantile(draws, level) if shared else norm.ppf(level)
        error = x - curve(y) - WIDTH * want
        if shared:
            # A point apart, half of which is on average that to the next one.
            assert abs(error).max() < 1 / (SIDE - 1)
        else:
            assert abs(error.mean()) < 0.1 * WIDTH


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.more
def test_the_boundary_is_within_its_stated_error(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_seeds_are_added_where_the_boundary_is_uncertain_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_interrupted_band_resumes_to_the_same_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = options(tmp_path, seeds=8, band=2, max_seeds=24)
    whole = Runs(False)
    want = mapped(monkeypatch, whole, config)
    # Twice as many, and no more than allowed; each round is a store of its own.
    names = ["2-points-1-from-8-to-16", "2-points-2-from-16-to-24"]
    seeds = tmp_path / "simulation-seeds"
    assert list(whole.kept) == [tmp_path / "simulation", *(seeds / name for name in names)]
    drawn = [list(sweep.fields["seed"]) for sweep in whole.kept.values()]
    assert drawn == [list(range(8)), list(range(8, 16)), list(range(16, 24))]
    for fails_at in range(2, len(whole.kept) + 1):
        runs = Runs(False, fails_at=fails_at)
        with pytest.raises(sweeps.Interrupted):
            mapped(monkeypatch, runs, config)
        xr.testing.assert_identical(mapped(monkeypatch, runs, config), want)
        assert list(runs.kept) == list(whole.kept)


def test_a_refined_band_says_what_it_did_not_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = options(tmp_path, seeds=8, band=2, refine=True, probes=20)
    runs = Runs(True)
    found = mapped(monkeypatch, runs, config)
    # The folders that a command which resumes looks for.
    folders = {path.relative_to(tmp_path).parts[0] for path in runs.kept}
    assert folders == {"simulation-refined", "simulation-refined-seeds"}
    full = mapped(monkeypatch, Runs(True), options(tmp_path, seeds=8, band=2))
    assert found.attrs["band"] <= 2
    assert found.attrs["runs"] == found.seeds.sum() < full.attrs["runs"]
    np.testing.assert_array_equal(found.computed, found.seeds > 0)
    np.testing.assert_array_equal(found.probability.isnull().any("code"), ~found.computed)
    assert found.share.notnull().all()
    np.testing.assert_allclose(found.share.sum("code"), 1)
    x, y = places(sweeps.diagrams.boundary(found), 0.5)
    X, Y = places(sweeps.diagrams.boundary(full), 0.5)
    assert abs(np.interp(y, Y[np.argsort(Y)], X[np.argsort(Y)]) - x).max() < 1 / (SIDE - 1)


def test_intervals_are_those_of_clopper_and_pearson() -> None:
    k, n = np.array([0, 1, 4, 7, 8]), np.full(5, 8)
    low, high = counts.interval(k / n, n)
    for i, count in enumerate(k.tolist()):
        want = binomtest(count, 8).proportion_ci(1 - 2 * counts.TAIL, "exact")
        assert (low[i], high[i]) == pytest.approx((want.low, want.high), rel=1e-9)
    # A point without seeds is as uncertain as those with the fewest.
    assert counts.interval(np.array([1.0, 1.0]), np.array([0, 8]))[0].tolist() == [low[-1]] * 2


def test_a_mask_is_wide_where_a_larger_disc_fits() -> None:
    mask = np.zeros((30, 40), bool)
    mask[:, 5:8] = True
    mask[10:20, 20:30] = True
    assert counts.widths(mask).max() == 10
    assert not counts.wide(mask, 10).any()
    found = counts.wide(mask, 3)
    assert not found[:, :10].any()
    # All of the square but for what no disc reaches in its corners.
    assert (mask & ~found)[:, 10:].sum() == 0
    assert counts.wide(mask, 2)[:, 5:8].all()
    assert counts.widths(np.ones((3, 4), bool)).min() == np.inf


def test_theory_is_right_where_it_has_the_most_probable_region() -> None:
    x, y = np.arange(4.0), np.arange(5.0)
    region = xr.DataArray(
        np.where(x < 2, 0, 3)[:, None] + 0 * np.indices((4, 5))[0], {"x": x, "y": y}, ("x", "y")
    )
    line = xr.DataArray([-1.0, 1.0], {"x": [0.5, 1.5]}, "x") + xr.DataArray(
        [0.0, 0.0], {"y": [0.0, 4.0]}, "y"
    )
    # The line is at x = 1, so that half of the plane lies beyond, and all of it is "above".
    positive, negative, codes = sides(line - 1e-9, region)
    assert (positive, negative) == (3, 0)
    single = xr.Dataset({"region": region})
    found = agreement(codes, single)
    assert found == (1.0, None)
    assert str(found) == "100.0 %"
    above = xr.DataArray([0.09, 0.5, 0.9, 0.9], {"x": x}, "x") + 0 * region
    seeded = single.assign(share=xr.concat([1 - above, above], "code").assign_coords(code=[0, 3]))
    # Of x = 0, 1, 2, 3 the shares of the predicted region are 0.91, 0.5, 0.9 and 0.9: the ends of
    # the band are in it.
    assert agreement(codes, seeded) == (1.0, 0.75)
    assert str(agreement(codes, seeded)) == "100.0 % (75.0 % in the band)"
    seeded["share"] = seeded["share"].isel(code=[1, 0]).assign_coords(code=[0, 3])
    # Of what is everywhere "below" 0.09, 0.5, 0.9 and 0.9, and of its opposite 0.1.
    assert agreement(xr.zeros_like(region), seeded) == (0.5, 0.75)
    seeded["share"] = seeded["share"].where(seeded["share"] != 0.9, 0.1)
    assert agreement(xr.zeros_like(region), seeded) == (0.5, 0.75)


def test_the_most_common_region_wins_over_seeds() -> None:
    tally = Tally((2, 1), RULE, "loss")
    loss = xr.DataArray([[-1.0, 1, 1], [1, -1, -1]], dims=("x", "seed")).expand_dims("time", -1)
    status = xr.DataArray([[0, 0, 0], [0, 1, 0]], dims=("x", "seed"))
    tally.add(np.array([[0, 0], [1, 0]]), xr.Dataset({"loss": loss, "status": status}))
    assert tally.region.tolist() == [[3], [0]]
    # Means of the runs that ended well.
    np.testing.assert_allclose(tally.value, [[1 / 3], [0.0]])
    assert tally.seeds.tolist() == [[3], [3]]
    with pytest.raises(
        ValueError, match="a run has the code 7; must be a code of the legend, 0, 3"
    ):
        Tally((2, 1), RULE._replace(classify=lambda runs: runs.status + 7), "loss").add(
            np.array([[0, 0], [1, 0]]), xr.Dataset({"loss": loss, "status": status})
        )


@pytest.mark.more
def test_the_report_and_the_files_have_the_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lambda runs: {"half": np.log10(runs["eta_y"]) - curve(np.log10(runs["eta_z"]))}
    monkeypatch.setattr(maps, "run_sweep", Runs(True))
    figure.run(options(tmp_path, seeds=8, band=2), RULE._replace(lines=lines))
    said = capsys.readouterr().out
    assert "simulation: 8 to " in said
    assert "the boundary is uncertain by at most 2 points\n" in said
    assert "line half: 9" in said
    assert "above on one side and below on the other" in said
    import pandas as pd

    table = xr.load_dataset(tmp_path / "phase-boundary.nc", engine="h5netcdf")
    text = pd.read_csv(tmp_path / "phase-boundary.csv")
    assert list(text) == ["region", "level", "of", "piece", "x", "y", "computed"]
    np.testing.assert_allclose(text["x"], table.x)
    drawn = json.loads((tmp_path / "phase.json").read_text())["lines"]
    (line,) = [each for each in drawn if each["name"] == "half"]
    x, y = np.log10([line["x"][:-1], line["y"][:-1]])
    # The curve bends by half of its second derivative, 0.6, times a quarter of a squared step.
    np.testing.assert_allclose(x, curve(y), atol=0.3 / 4 / (SIDE - 1) ** 2)
    with np.load(tmp_path / "phase.npz") as arrays:
        assert arrays["simulation/probability"].shape == (SIDE, SIDE, 2)
        assert 0.9 < arrays["agreement/half"] < 1


def test_a_plane_in_one_region_has_no_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "run_sweep", Runs(True))
    one = RULE._replace(classify=lambda dataset: dataset["status"])
    written = figure.run(options(tmp_path, seeds=8), one)
    assert [path.name for path in written] == ["phase.npz", "phase.json", "phase.png"]
