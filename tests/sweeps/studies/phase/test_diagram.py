"""Phase diagrams: region rules on made-up runs, lines against closed forms, the picture."""

import math
import re
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy import integrate, optimize

import dynsim
from dynsim import Status
from odes import growth, symmetric
from sweeps import cli
from sweeps.output.cells import cell_edges, scale_of
from sweeps.studies.phase import diagram as phase
from sweeps.studies.phase import figure, panels, regions
from sweeps.studies.phase.regions import Region
from sweeps.systems import budget
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")

TIMES = np.array([0.0, 1, 2, 4, 8])
RISING, FALLING = TIMES, np.array([0, 1, 3, 2, 0.5])


def region(
    loss_end: float,
    speed: np.ndarray,
    entropy_end: float,
    status: int = Status.OK,
    tokens: int = 10,
) -> Region:
    loss = np.geomspace(3.5, loss_end, TIMES.size)
    entropy = np.linspace(math.log(tokens), entropy_end, TIMES.size)
    curves = {"loss": loss, "entropy": entropy, "speed": np.stack([speed, speed], -1)}
    return Region(int(regions.classify(recorded(status, curves))))


def recorded(status: int, curves: dict[str, np.ndarray]) -> xr.Dataset:
    """A single run, as a sweep records it."""
    over = {name: ("time", "class")[: values.ndim] for name, values in curves.items()}
    return xr.Dataset({name: (over[name], curves[name]) for name in curves}).assign(status=status)


def test_each_region_has_its_rule() -> None:
    even = math.log(10)
    assert region(1.76, RISING, even) == Region.NOT_LEARNED
    assert region(1.74, RISING, even) == Region.SCANNING
    assert region(1.74, FALLING, even) == Region.SNAPPED
    # Less than two tokens' worth of attention, whether still moving or not.
    for speed in (RISING, FALLING):
        assert region(0.1, speed, math.log(1.99)) == Region.WINNER_TAKE_ALL
    assert region(0.1, FALLING, math.log(2.01)) == Region.SNAPPED
    assert region(3.4, FALLING, 0.0) == Region.NOT_LEARNED
    for status in (Status.DIVERGED, Status.MAX_STEPS, Status.SOLVER_FAILED):
        assert region(0.1, FALLING, even, status) == Region.DIVERGED
    nan = np.full((TIMES.size, 2), np.nan)
    lost = recorded(1, {"loss": nan[:, 0], "entropy": nan[:, 0], "speed": nan})
    assert regions.classify(lost) == Region.DIVERGED


def test_nobody_wins_without_others() -> None:
    assert region(0.1, FALLING, 0.0, tokens=1) == Region.SNAPPED
    # Of two tokens one has won with more than an effective one and a half.
    assert region(0.1, FALLING, math.log(1.51), tokens=2) == Region.SNAPPED
    assert region(0.1, FALLING, math.log(1.49), tokens=2) == Region.WINNER_TAKE_ALL
    one, two = (
        phase.Phase(experiment(task="syn", num_distinct=number, steps=10), resolution=4)
        for number in (1, 2)
    )
    assert one.scatter() is None
    assert two.scatter() is not None


def test_the_peak_line_is_where_gamma_peaks_at_the_horizon() -> None:
    config = phase.Phase(experiment(momentum=0.0, steps=50), "eta_y:1e-3:1:41", "eta_z:0.1:1:3")
    closed = phase.lines(config)
    (_, eta_y), _ = config.axes().items()
    K, M = 2, 34
    for i in (0, 20, 40):
        # h' = eta_y / (M - 1 + e^{M h}) per visit (Lemma 3), integrated and maximised with SciPy.
        eta = eta_y[i]

        def gamma(t: float, eta: float = eta) -> float:
            h = integrate.solve_ivp(
                lambda _, h: eta / (M - 1 + np.exp(M * h)), (0, t / K), [0.0], rtol=1e-9, atol=1e-12
            ).y[0, -1]
            return (M - 1) ** 2 * h / (M - 1 + np.exp(M * h))

        guess = K * math.log(M) / eta
        peak = optimize.minimize_scalar(
            lambda t: -gamma(t), bounds=(0.2 * guess, 3 * guess), method="bounded"
        ).x
        # The optimum is flat: SciPy finds it to the square root of its precision.
        np.testing.assert_allclose(closed["peak"][:, i], peak / 50, rtol=2e-3)
        np.testing.assert_allclose(closed["rise_end"][:, i], guess / 50)


def test_lines_on_other_axes_and_with_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"x": "eta_y:0.1:1:5", "y": "eta_z:0.1:1:4"}
    plain, fast = (
        phase.lines(phase.Phase(experiment(momentum=momentum, steps=100), **axes))
        for momentum in (0.0, 0.9)
    )
    for name in ("rise_end", "peak", "snap"):
        np.testing.assert_allclose(fast[name], plain[name] / 10)
    assert (np.diff(plain["bound"], axis=0) > 0).all()
    run = experiment(task="overlapping", overlap=0.3, momentum=0.0, steps=100)
    over_k = phase.Phase(run, x="K:2:8:3", y="eta_y:0.1:1:2")
    assert over_k.axes()["K"] == (2, 4, 8)
    closed = phase.lines(over_k)
    M = 5 + 5 * np.array([2, 4, 8])
    want = np.array([2, 4, 8]) * np.log(M) / np.array([[0.1], [1.0]]) / 100
    np.testing.assert_allclose(closed["rise_end"], want)
    # A task whose table is too large has the lines of its reduced form: those of the table.
    monkeypatch.setattr(budget, "LARGEST_TABLE", 0)
    reduced = phase.lines(over_k)
    for name, values in closed.items():
        np.testing.assert_allclose(reduced[name], values, rtol=1e-6)


def test_the_bound_is_that_of_theorem_4_at_the_most_probable_common_token() -> None:
    """With momentum, and six classes of two queries."""
    task = dynsim.Syn(2, classes_per_query=3, num_common=2, M=72)
    run = experiment(task=task, momentum=0.5, steps=70)
    config = phase.Phase(run, x="eta_y:0.1:1:3", y="eta_z:0.1:0.4:2")
    probs = np.asarray(run.built[0].classes.probs)[0]
    common = np.asarray(run.built[0].classes.common())[0]
    c0 = growth.c0(np.sqrt((probs**2).sum()) / probs[common].max(), 6)
    rates = np.meshgrid(2 * np.geomspace(0.1, 1, 3), 2 * np.geomspace(0.1, 0.4, 2))
    want = growth.bound(70, *map(jnp.asarray, rates), 6, 72, c0=c0, classes_per_query=3)
    # float32 here, and float64 there.
    np.testing.assert_allclose(phase.lines(config)["bound"], want, rtol=1e-4)


# A plane of each theory.
@pytest.mark.full(
    "test_one_theory_is_one_panel",
    "odes/symmetric/test_solve.py::test_the_flow_is_the_full_population_flow",
)
def test_a_theory_compared_with_itself_differs_nowhere(tmp_path: Path) -> None:
    # The same flow twice, on all parameters and on those that symmetry leaves.
    options = ["--theory", "matched", "--length", "inf", "--against", "best", "--resolution", "3"]
    words = [
        "--x",
        "eta_y:0.1:1",
        "--y",
        "eta_z:0.1:1",
        "--momentum",
        "0.9",
        "--steps",
        "10",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(["phase", *options, *words]) == 0
    names = "matched", "symmetric"
    with np.load(tmp_path / "phase.npz") as arrays:
        one, other = (arrays[f"{name}/entropy"] for name in names)
        assert one.shape == (3, 3)
        assert np.ptp(one) > 0.01
        # Two solves at rtol 1e-8.
        np.testing.assert_allclose(one, other, rtol=1e-6)
        np.testing.assert_array_equal(*(arrays[f"{name}/region"] for name in names))


def test_lines_of_a_rule_are_where_their_values_are_zero() -> None:
    x, y = (xr.DataArray(np.geomspace(0.01, 1, 60), dims=name, name=name) for name in "xy")
    x, y = x.assign_coords(x=x.values), y.assign_coords(y=y.values)
    own = {"xy = 0.01": x * y - 0.01, "not in the plane": x * y}
    found = panels.lines_of({}, None, own, x * y)
    assert [line.name for line in found] == ["xy = 0.01"]
    drawn = plt.figure().gca()
    panels.plot_lines(found, ax=drawn)
    (path,) = drawn.collections[0].get_paths()
    # Contours are straight between points 8 % apart.
    np.testing.assert_allclose(path.vertices.prod(axis=1), 0.01, rtol=0.08**2)
    plt.close()


@pytest.mark.parametrize(
    ("values", "middle"),
    [([1e-4, 1, np.nan], 0.01), ([0.0, 1e-4, 1], 0.5), ([0.1, 1], 0.55), ([np.nan], 0.5)],
)
def test_colours_are_logarithmic_over_decades(values: list[float], middle: float) -> None:
    # Zero has no logarithm.
    assert panels.colours_of(np.array(values))(middle) == pytest.approx(0.5)


@pytest.mark.more
def test_one_theory_is_one_panel(tmp_path: Path) -> None:
    """Of descent, whose plane is that of its single runs."""
    words = ["--theory", "symmetric", "--x", "eta_y:0.1:10:3", "--y", "eta_z:0.1:1:2"]
    assert cli.main(["phase", *words, "--steps", "20", "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "phase.npz") as arrays:
        assert not [name for name in arrays if name.startswith("simulation")]
        entropy, codes = (arrays[f"symmetric-descent/{n}"] for n in ("entropy", "region"))
        axes = arrays["eta_y"], arrays["eta_z"]
    np.testing.assert_allclose(axes[0], [0.1, 1, 10])
    rates = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    alone = symmetric.descend(
        task, dynsim.sgd(*rates.T), steps=20, times=[20], record=["entropy", "loss"]
    )
    # float32 and its rounding of 20 steps.
    np.testing.assert_allclose(entropy.ravel(), alone["entropy"].ravel(), rtol=1e-4)
    # Half of ln 34 is what a task counts as learned from.
    learned = alone["loss"].ravel() < np.log(34) / 2
    np.testing.assert_array_equal(codes.ravel() != Region.NOT_LEARNED, learned)
    assert len(set(learned)) == 2


def test_the_closed_forms_say_nothing_of_adam() -> None:
    closed = phase.lines(phase.Phase(experiment(rule="adam"), "eta_y:0.1:1:3", "eta_z:0.1:1:2"))
    assert set(closed) == {*phase.STAGES, "bound"}
    for values in closed.values():
        assert values.shape == (2, 3)
        assert np.isnan(values).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "eta_q:1:2"}, "axis = 'eta_q:1:2': is not a setting; did you mean"),
        ({"x": "rule:1:2"}, "axis = 'rule:1:2': rule has no numbers"),
        ({"x": "seed:1:2"}, "axis = 'seed:1:2': seeds have no order"),
        ({"x": "eta_y:1"}, "must be NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER"),
        ({"x": "eta_y:0:1"}, "axis eta_y = 0.0: must be finite and in (0, inf)"),
        ({"x": "eta_z:1:2"}, "must be different axes"),
        ({"x": "num_queries:1:4"}, "syn-small does not have it; syn-medium, syn do"),
        ({"run": experiment(steps=1)}, "steps = 1: must be an integer >= 2"),
        ({"run": "yz"}, "run = 'yz': must be"),
        ({"theory": "magic"}, "theory = 'magic'"),
        ({"observable": "magic"}, "observable = 'magic'"),
    ],
)
def test_bad_input_is_named(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        figure.run(phase.Phase(**options, out=tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_noise_rules_where_its_spread_exceeds_mean_and_scale() -> None:
    logs = np.array([[0.5, 3.0], [0.5, 3.0]])
    found = xr.Dataset(
        {
            "z_top_distinct": (("eta_y", "eta_z", "class"), np.stack([logs, -logs], -1) * [1, 0]),
            "z_top_distinct_std": (("eta_y", "eta_z"), [[2.0, 2.0], [0.9, np.inf]]),
        },
        {"eta_y": [1.0, 10.0], "eta_z": [1.0, 10.0]},
    )
    found["z_top_distinct_std"] = found.z_top_distinct_std.expand_dims({"class": 2}, -1)
    noise = phase.noise(found, 1.0)
    # Means over the two classes: 0.25 and 1.5, beside which 1 is the larger in the first column.
    np.testing.assert_allclose(noise.values[0], np.log([2, 2 / 1.5]))
    assert noise.values[1, 0] < 0 < 700 < noise.values[1, 1]
    areas = xr.DataArray(
        [[Region.SNAPPED, Region.NOT_LEARNED], [Region.SNAPPED, Region.SCANNING]],
        noise.coords,
        noise.dims,
    )
    moved = phase.with_noise(areas, noise).values
    wins = Region.WINNER_TAKE_ALL
    assert moved.tolist() == [[wins, Region.NOT_LEARNED], [Region.SNAPPED, wins]]


def test_normal_logits_make_a_winner_from_some_spread_on() -> None:
    # Of three tokens exp(entropy) is below 2 in half of all cases from here on; by quadrature.
    at = phase.winning_spread(3)
    rng = np.random.default_rng(1)
    p = np.exp(at * rng.normal(size=(200_000, 3)))
    p /= p.sum(1, keepdims=True)
    won = np.exp(-(p * np.log(p)).sum(1)) < regions.WINNERS
    # Median of 4096 samples: 1/sqrt(4 n) = 0.8 % of all cases, times four.
    assert abs(won.mean() - 0.5) < 0.032
    # Of the first ones of a seed it is the median itself.
    p = np.exp(at * np.random.default_rng(0).normal(size=(4096, 3)))
    p /= p.sum(1, keepdims=True)
    assert np.median(np.exp(-(p * np.log(p)).sum(1))) == pytest.approx(2, rel=1e-9)
    assert phase.winning_spread(20) > phase.winning_spread(10) > at


def test_the_spread_is_swept_where_theory_describes_training(tmp_path: Path) -> None:
    config = phase.Phase(resolution=48, out=tmp_path)
    short = experiment(length=8, steps=100)
    assert config.theories() == ("simulation", "symmetric-finite-t")
    sweep = config.scatter()
    assert sweep.theory == "spread"
    assert [dim.size for dim in sweep.dims] == [24, 24]
    random = phase.Phase(experiment(start="uniform"), resolution=4)
    assert [dim.size for dim in random.scatter().dims] == [4, 4, 1], "one seed of random weights"
    for changes in ({"run": short}, {"theory": "symmetric"}, {"noise": False}, {"against": "none"}):
        assert phase.Phase(resolution=4, **changes).scatter() is None
    assert phase.Phase(short).theories() == ("simulation", "symmetric")


def test_cells_are_between_values_on_their_scale() -> None:
    assert scale_of([0.0, 0.3, 0.6]) == "linear"
    assert scale_of([0.1, 1.0, 10.0]) == "log"
    assert scale_of(np.array([1, 3, 4, 6])) == "linear"  # evenly spaced but for rounding
    np.testing.assert_allclose(cell_edges([0.0, 1.0, 2.0]), [-0.5, 0.5, 1.5, 2.5])
    np.testing.assert_allclose(cell_edges([1.0, 100.0]), [0.1, 10.0, 1000.0])


def test_whole_numbers_have_whole_ticks() -> None:
    whole = xr.DataArray(np.arange(2, 19), dims="K", name="K")
    rates = xr.DataArray(np.geomspace(0.1, 10, 5), dims="eta_y", name="eta_y")
    _, ax = plt.subplots()
    panels.decorate(ax, whole, rates)
    assert ax.get_xscale() == "linear"
    assert ax.get_yscale() == "log"
    # Every third of 17, so that there are eight at most.
    assert ax.get_xticks().tolist() == [2, 5, 8, 11, 14, 17]
    assert ax.xaxis.get_major_formatter()(5) == "5"
    assert len(ax.xaxis.get_minorticklocs()) == 0
    assert ax.get_yticks().tolist() != rates.values.tolist()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("K", "eta_y")
    plt.close()
