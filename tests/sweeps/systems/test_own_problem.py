"""A problem from outside on the command line: the example of the page on own models."""

import inspect
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.decoding import Rate
from sweeps import cli
from sweeps.language.describe import describe
from sweeps.runner.spec import from_table
from sweeps.systems import base
from sweeps.systems.experiment import experiment

NAME = "deep_linear:DeepLinear"
HOWTO = Path(__file__).parents[3] / "docs" / "howto"


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(HOWTO))


def strengths(time, u0):
    """(S, 2) strengths of two modes by Euler's rule in many small steps."""
    s, u, rows = np.array([1.0, 0.5]), np.full(2, u0), []
    for begin, end in zip([0.0, *time[:-1]], time, strict=True):
        for _ in range(2000):
            u = u + (end - begin) / 2000 * 2 * u * (s - u)
        rows.append(u)
    return np.array(rows)


def test_the_example_is_short():
    lines = (HOWTO / "deep_linear.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 60
    assert experiment(NAME).rule == dynsim.SGD(0.1)


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_compare_holds_training_flow_and_closed_form_together(tmp_path, capsys):
    run = "--eta linear --eta-peak 0.02 --eta-steps 300 --eta-warmup 20 --modes 2 --u0 0.05"
    run += " --steps 300 --batch inf --seeds 2 --times 6 --theories plain corrected modes"
    assert cli.main(["compare", NAME, *run.split(), "--out", str(tmp_path), "--json"]) == 0
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

    def init(self, key):
        return key


@pytest.mark.parametrize("doc", [Documented.__doc__, inspect.cleandoc(Documented.__doc__ or "")])
def test_labels_are_what_the_class_documents(doc, monkeypatch):
    """Python 3.13 takes the indentation of docstrings away."""
    monkeypatch.setattr(Documented, "__doc__", doc)
    found = base.docstring_labels(Documented())
    assert {name: about for name, about in found.items() if "sharpness" not in name} == {
        "seen": ("what can be seen", "token")
    }
    fields = describe.__wrapped__(Documented).fields
    rate = fields["rate"]
    assert (rate.doc, rate.unit) == ("how often something happens; more is better", "1/step")
    assert fields["plain"].doc == "without a full stop"


class Line(dynsim.Problem):
    """Data on a line, whose slope is learned."""

    slope: float = 2.0

    def init(self, key):
        return jnp.zeros(())

    def draw(self, key, batch):
        return jax.random.rademacher(key, (batch,), float)

    def loss(self, w, x):
        return jnp.mean((w * x - self.slope * x) ** 2)

    def observables(self):
        return {"reached": lambda problem, w: w / problem.slope}


@pytest.mark.more
def test_a_problem_without_a_population_loss_is_compared_with_linear_noise(tmp_path):
    line = f"compare {__name__}:Line --eta 0.1 --steps 3 --seeds 2 --batch 2 --times 2"
    words = line.split()
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0
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
    with np.load(tmp_path / "sde" / "compare.npz") as arrays:
        want = np.broadcast_to(1 - np.exp(-0.6), 2)
        np.testing.assert_allclose(arrays["sde/reached"][:, -1], want, rtol=1e-4)
    # Linear noise describes no clipping.
    assert cli.main([*words, "--clip", "100", "--out", str(tmp_path / "clipped")]) == 0
    with np.load(tmp_path / "clipped" / "compare.npz") as arrays:
        assert {name.split("/")[0] for name in arrays if "reached" in name} == {"simulation"}
    # None of its observables is usual, and a sweep records the first.
    table = {"run": {"problem": f"{__name__}:Line"}, "axes": {"eta": [0.1]}}
    assert from_table(table).record == ("reached",)
