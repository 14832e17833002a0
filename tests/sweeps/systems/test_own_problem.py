"""A problem from outside on the command line: the example of the page on own models."""

import contextlib
import inspect
import json
import pkgutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PRNGKeyArray

import dynsim
import sweeps
from dynsim import Status
from dynsim.decoding import Rate
from sweeps import cli
from sweeps.language.describe import describe
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep, from_table
from sweeps.systems import base
from sweeps.systems.experiment import experiment

NAME = "deep_linear:DeepLinear"
HOWTO = Path(__file__).parents[3] / "docs" / "howto"


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HOWTO))


def strengths(time: np.ndarray, u0: float) -> np.ndarray:
    """(S, 2) strengths of two modes by Euler's rule in many small steps."""
    s, u, rows = np.array([1.0, 0.5]), np.full(2, u0), []
    for begin, end in zip([0.0, *time[:-1]], time, strict=True):
        for _ in range(2000):
            u = u + (end - begin) / 2000 * 2 * u * (s - u)
        rows.append(u)
    return np.array(rows)


def test_the_example_is_short() -> None:
    lines = (HOWTO / "deep_linear.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 60


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_compare_holds_training_flow_and_closed_form_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--eta", "0.02", "--modes", "2", "--u0", "0.05", "--steps", "300", "--batch", "inf"]
    run = ["--eta", "linear", "--eta-peak", "0.02", "--eta-steps", "300", *run[2:]]
    few = ["--eta-warmup", "20", "--seeds", "2", "--times", "6"]
    names = ["--theories", "plain", "corrected", "modes"]
    assert cli.main(["compare", NAME, *run, *few, *names, "--out", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["simulation"]["status"] == {"OK": 2}
    errors = {n: t["relative_error"]["learned"] for n, t in report["theories"].items()}
    # Of first order in eta = 0.02, and of second.
    assert 1e-4 < errors["modes"]["over_time"] < 0.02
    assert errors["corrected"]["over_time"] < 0.1 * errors["plain"]["over_time"]
    with np.load(tmp_path / "compare.npz") as arrays:
        closed, flow = arrays["modes/learned"][0], arrays["plain/learned"][0]
        times = arrays["modes/times"][0]
    # The closed form is the flow, because the start is aligned; the flow takes few equal steps.
    np.testing.assert_allclose(closed, flow, rtol=3e-4)
    rate = np.r_[np.arange(20) / 20, 1 - np.arange(280) / 280] * 0.02
    time = np.array([rate[: int(t)].sum() for t in times])
    # Euler's rule is off by some 1e-3 of the change at most.
    np.testing.assert_allclose(closed[1:], strengths(time[1:], 0.05), rtol=2e-3)


@pytest.mark.more
def test_sweep_files_name_it_and_its_stores_know_its_settings(tmp_path: Path) -> None:
    file, out = tmp_path / "deep.toml", tmp_path / "store"
    file.write_text(
        f'record = ["batch_loss"]\n[run]\nproblem = "{NAME}"\nsteps = 8\nbatch = 4\n'
        'rule = {kind = "adamw", decay = 0.1, clip = 1, eta = {kind = "cosine", steps = 8}}\n'
        "[axes]\neta_peak = [0.01, 0.1]\nwarmup = [0, 4]\nu0 = [1e-3, 0.1]\nmodes = [2]\n"
    )
    assert cli.main(["sweep", str(file), "--out", str(out)]) == 0
    store = sweeps.open(out)
    assert store.batch_loss.shape == (2, 2, 2, 1)
    assert (store.status == Status.OK).all()
    assert store.u0.attrs["long_name"] == "strength of every mode at the start"
    assert store.modes.attrs["long_name"] == "number of modes"
    assert store.warmup.attrs["units"] == "1"
    config = json.loads(store.attrs["config"])
    assert config["run"]["problem"]["kind"] == NAME
    assert config["run"]["rule"]["eta"]["steps"] == 8
    assert cli.main(["sweep", str(file), "--out", str(out)]) == 0
    assert cli.main(["sweep", str(file), "--out", str(out), "--set", "run.steps = 9"]) == 2


class Documented(dynsim.Problem):
    """A problem that says what its parts are.

    Attributes:
        rate: how often something
            happens; more is better.
        plain: without a full stop
        seen: what can be seen [token].
    """

    rate: Rate = 1.0
    plain: float = 1.0

    def init(self, key: PRNGKeyArray) -> PRNGKeyArray:
        return key


@pytest.mark.full("dynsim/problem/test_train.py::test_recorded_weights_are_those_of_descent")
def test_weights_over_time_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(
        f'record = ["params", "batch_loss"]\ntimes = 2\n[run]\nproblem = "{NAME}"\n'
        "steps = 3\nbatch = 4\nmodes = 2\n[axes]\neta = [0.01, 0.1]\nseed = [0, 1]\n"
    )
    assert cli.main(["sweep", str(file), "--dry-run"]) == 0
    found = sweeps.run(sweeps.load(file))
    size = sum(array.nbytes for array in found.data_vars.values()) / 1e3
    assert f"at most {size:.3g} kB" in capsys.readouterr().out
    alone = dynsim.train(
        pkgutil.resolve_name(NAME)(modes=2),
        dynsim.sgd(0.1),
        jax.random.fold_in(jax.random.key(0), 1),
        steps=3,
        times=found.time.values.astype(int),
        batch=4,
        record="params",
    )
    for name, values in alone.observables.items():
        # Batched products round otherwise.
        np.testing.assert_allclose(found[name].sel(eta=0.1, seed=1), values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("indentation", ["as written", "taken away"])
def test_labels_are_what_the_class_documents(
    indentation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 takes the indentation of docstrings away."""
    if indentation == "taken away":
        monkeypatch.setattr(Documented, "__doc__", inspect.cleandoc(Documented.__doc__ or ""))
    found = base.described(Documented())
    assert {name: said for name, said in found.items() if "sharpness" not in name} == {
        "seen": ("what can be seen", "token")
    }
    described = describe(Documented).fields
    assert (described["rate"].doc, described["rate"].unit) == (
        "how often something happens; more is better",
        "1/step",
    )
    assert described["plain"].doc == "without a full stop"


def test_it_is_trained_by_sgd_unless_another_rule_is_asked_for() -> None:
    assert experiment(NAME).rule == dynsim.SGD(0.1)


@pytest.mark.full("extension/test_extension.py::test_its_plane_is_drawn_by_its_own_rule")
def test_phase_draws_it(tmp_path: Path) -> None:
    plane = ["--x", "eta:0.1:1e6:3", "--y", "u0:1e-3:0.1:2", "--steps", "20", "--batch", "8"]
    assert cli.main(["phase", NAME, *plane, "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "phase.npz") as arrays:
        assert set(arrays["simulation/region"].ravel()) == {Status.OK, Status.DIVERGED}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "deep_linear:Nothing"], "problem = 'deep_linear:Nothing': cannot be imported"),
        (["compare", "deep_linear:by_mode"], "must be a dataclass or an Equinox module"),
        (["compare", NAME, "--u1", "1"], "u1 = 1: is not a setting; there are seeds,"),
        (["compare", NAME, "--modes", "0"], "record = 'learned': is empty"),
        (["compare", NAME, "--rule", "adamw"], "rule.decay: is missing"),
        (["compare", NAME, "--eta-end", "0.1"], "eta does not have it; linear, cosine"),
        (["compare", NAME, "--b2", "0.9"], "b2 = 0.9: sgd does not have it; adam, adamw"),
        (["compare", NAME, "--clip", "1"], "none of the system's theories describes these runs"),
    ],
)
def test_bad_input_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Words that no command has end it before anything runs.
    with contextlib.suppress(SystemExit):
        assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.full(
    "sweeps/systems/test_problems.py::test_a_grid_of_numbers_is_one_program_and_found_again",
    "odes/solver/test_flows.py::test_vmap_over_rates_marks_the_stiff_member_and_spares_the_others",
)
def test_runs_of_one_program() -> None:
    """Rates, warm-up, decay and a setting: all are numbers of one program, of theories too."""

    cosine = {"kind": "cosine", "peak": 0.1, "steps": 5, "warmup": 1}
    run = experiment(NAME, steps=5, batch=4, decay=0.1, eta=cosine)
    axes = {"eta.peak": [0.1, 0.2], "warmup": [1, 2], "decay": [0.0, 0.1], "u0": [0.1, 0.2]}
    jobs.forget()
    for theory in ("simulation", "descent"):
        for first in (0.1, 0.3):
            axes["eta.peak"] = [first, 0.2]
            sweeps.run(Sweep(run, axes, theory, ("loss",)))
    assert len(jobs.PROGRAMS) == 2


ALONE = """
import dynsim
import jax
import jax.numpy as jnp

class Line(dynsim.Problem):
    slope: float = 2.0

    def init(self, key):
        return jnp.zeros(())

    def draw(self, key, batch):
        return jax.random.rademacher(key, (batch,), float)

    def loss(self, w, x):
        return jnp.mean((w * x - self.slope * x) ** 2)

    def observables(self):
        return {"reached": lambda problem, w: w / problem.slope}
"""


class Bowl(dynsim.Problem):
    """A weight in a bowl, whose examples pull it by a normal number."""

    def init(self, key):
        return jnp.ones(())

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, w, x):
        return jnp.mean((w - x) ** 2) / 2

    def population_loss(self, w):
        return (w**2 + 1) / 2

    def observables(self):
        return {"weight": lambda problem, w: w}


@pytest.mark.more
def test_a_strained_prediction_is_called_so_in_its_row() -> None:
    """After 80 steps the slope of the loss is 0.9^80, while its curvature makes it scatter as half
    the square of a normal weight."""
    eta, steps, batch = 0.1, 80, 8
    run = sweeps.Experiment(Bowl(), dynsim.sgd(eta), steps=steps, batch=batch)
    found = sweeps.compare(run, theories="linear-noise", seeds=64, times=2)
    ends = found.report["theories"]["linear-noise"]["spread_at_end"]
    fall = (1 - eta) ** (2 * np.arange(steps))
    std = eta * np.sqrt(fall.sum() / batch)
    # The predictions are from 512 examples in each step, with a kurtosis of 3.
    share = np.sqrt(2 / 512 * (fall**2).sum()) / fall.sum() / 2
    for name, slope in (("weight", 1.0), ("loss", 0.9**steps)):
        assert ends[name]["predicted"] == pytest.approx(slope * std, rel=4 * share)
        assert ends[name]["predicted_error"] == pytest.approx(share * slope * std, rel=0.25)
    # The square has a kurtosis of 15.
    true = std**2 / 2**0.5
    assert ends["loss"]["measured"] == pytest.approx(true, rel=4 * (14 / 4 / 64) ** 0.5)
    assert [name for name, row in ends.items() if row["strained"]] == ["loss"]
    ratio = ends["loss"]["measured"] / ends["loss"]["predicted"]
    rows = [line.split() for line in str(found).splitlines()]
    assert [row[-2:] for row in rows if row[:1] == ["loss"]][-1] == [f"{ratio:.3g}", "times"]
    assert [row[-1] for row in rows if row[:1] == ["weight"]][-1] == "-"


@pytest.mark.more
def test_a_problem_without_a_population_loss_is_compared_with_linear_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "line.py").write_text(ALONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "compare",
        "line:Line",
        "--eta",
        "0.1",
        "--steps",
        "3",
        "--seeds",
        "2",
        "--batch",
        "2",
        "--times",
        "2",
    ]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "2 runs of 3 steps: 2 OK" in told
    assert "linear-noise: Standard deviation across seeds at the end." in told
    with np.load(tmp_path / "out" / "compare.npz") as arrays:
        # w' = w - 2 eta (w - slope): 0.8^k of the way is left.
        np.testing.assert_allclose(arrays["simulation/reached"][:, -1], 1 - 0.8**3, rtol=1e-6)
        # Each example has the same gradient.
        assert (arrays["linear-noise/reached_std"] < 1e-12).all()
        np.testing.assert_allclose(
            arrays["linear-noise/reached"], arrays["simulation/reached"][:1], rtol=1e-6
        )
    # Of the stochastic equation each seed has a path, here without noise that of the flow.
    assert cli.main([*words, "--theories", "sde", "--out", str(tmp_path / "sde")]) == 0
    assert "sde: Standard deviation across seeds at the end." in capsys.readouterr().out
    with np.load(tmp_path / "sde" / "compare.npz") as arrays:
        want = np.broadcast_to(1 - np.exp(-0.6), 2)
        np.testing.assert_allclose(arrays["sde/reached"][:, -1], want, rtol=1e-4)
    # Linear noise describes no clipping.
    clipped = [*words, "--clip", "100", "--out", str(tmp_path / "clipped")]
    assert cli.main(clipped) == 0
    assert "No theory describes this problem; only training is shown." in capsys.readouterr().out
    # None of its observables is usual, and a sweep records the first.
    table = {"run": {"problem": "line:Line"}, "axes": {"eta": [0.1]}}
    assert from_table(table).record == ("reached",)
