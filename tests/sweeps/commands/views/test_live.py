"""Live theory without its solves: which sliders there are, what is solved, and what is told."""

import json
import math
import re
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sweeps
from dynsim import Status, Trajectory
from sweeps.commands.views import live, page, serve
from sweeps.systems import layer

GEOMETRIC = {
    "eta_y": (1e-3, 1e3, 121),
    "eta_y.peak": (1e-3, 1e3, 121),
    "eta_z": (1e-4, 1e2, 121),
    "eta_z.peak": (1e-4, 1e2, 121),
    "ratio": (1e-2, 1e3, 101),
    "K": (1, 100_000, 101),
    "num_queries": (1, 10_000, 81),
    "M": (2, 1_000_000, 101),
    "steps": (10, 100_000, 121),
}
"""Ends of sliders and their number of steps, of which whole numbers leave out some."""


def run(**given: Any) -> sweeps.Experiment:
    return sweeps.experiment(**{"task": "overlapping", "steps": 50, "length": math.inf, **given})


def ended(apart: float, status: Status = Status.OK, **curves: list[float]) -> Trajectory:
    """A solve of two classes whose logits end so far apart."""
    curves = {"z_top_distinct": [0.0, apart], "z_top_common": [0.0, 0.0], **curves}
    observables = {name: jnp.asarray(values)[:, None] for name, values in curves.items()}
    return Trajectory(jnp.array([0.0, 50.0]), observables, None, jnp.int32(status), jnp.int32(-1))


@pytest.mark.parametrize("name", GEOMETRIC)
def test_sliders_are_geometric(name: str) -> None:
    values = np.array([each for each in live.SLIDERS[name] if each is not None])
    low, high, number = GEOMETRIC[name]
    assert (values[0], values[-1]) == (low, high)
    step = math.log(high / low) / (number - 1)
    if values.dtype.kind == "f":
        # Three digits are kept.
        np.testing.assert_allclose(np.diff(np.log(values)), step, atol=0.01)
        assert len(values) == number
    else:
        # Every whole number, and from where they are denser than the steps, one for each step.
        sparse = values[values > 2 / step]
        np.testing.assert_allclose(np.diff(np.log(sparse)), step, atol=1 / sparse[0])
        assert (values[: int(0.5 / step)] == np.arange(int(0.5 / step)) + low).all()


def test_other_sliders_have_their_values() -> None:
    powers = [2**i for i in range(17)]
    assert live.SLIDERS["length"] == [*powers[1:], math.inf]
    assert live.SLIDERS["batch"] == [*powers, math.inf]
    assert live.SLIDERS["overlap"] == pytest.approx(np.linspace(0.01, 0.99, 99))
    assert live.SLIDERS["momentum"] == pytest.approx([*np.linspace(0, 0.95, 20), 0.98, 0.99])
    assert live.SLIDERS["M"][0] is None


def test_a_slider_has_the_value_of_the_run_in_its_place() -> None:
    sliders = {each["name"]: each for each in live.Theory(run(eta_y=0.7, K=7)).sliders({})}
    assert {"eta_y", "eta_z", "K", "overlap", "length", "batch", "steps"} <= sliders.keys()
    assert (sliders["eta_y"]["value"], sliders["length"]["value"]) == (0.7, "inf")
    for name, own in (("eta_y", 0.7), ("K", 7)):
        values = sliders[name]["values"]
        assert values == sorted({*live.SLIDERS[name], own})
    assert "M" not in sliders
    (derived,) = (each for each in live.Theory(run(task="syn")).sliders({}) if each["name"] == "M")
    assert (derived["value"], derived["values"][:3]) == (None, [None, 2, 3])
    assert sliders["length"]["values"][-2:] == [2**16, "inf"]
    assert sliders["eta_y"]["label"] == "learning rate of Y (1/step)"


def test_times_are_dense_at_early_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(live.symmetric, "solve", lambda *given, **more: asked.append((given, more)))
    task, _ = live.solve(run(length=64))
    ((solved, _, times), more), *_ = asked
    assert solved is task
    assert (more["length"], more["record"]) == (64, live.RECORD)
    assert (times[0], len(times)) == (0, 257)
    # As many in each decade of 1 + t.
    np.testing.assert_allclose(np.diff(np.log1p(times)), math.log(51) / 256, rtol=1e-9)


def test_classes_without_a_table_are_reduced_too() -> None:
    found = live.reduced(run(K=10**5))
    assert (int(found.K), int(found.M)) == (10**5, 500_005)


def test_programs_of_all_sliders_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[Any] = []
    monkeypatch.setattr(live, "solve", solved.append)
    live.warm(run(momentum=0.3))
    reached = {(each.bare.length, each.setting("momentum")) for each in solved}
    assert len(solved) == 4
    assert reached == {(length, mu) for length in (math.inf, 256) for mu in (None, 0.5)}


def test_what_is_no_number_is_left_out_of_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = ended(1.0, loss=[0.5, math.inf], xi=[math.nan, -2.0])
    monkeypatch.setattr(live, "solve", lambda run: (live.reduced(run), solved))
    found = live.Theory(run()).answer({}, {"eta_y": 0.3})
    assert found["times"] == [0, 50]
    assert found["curves"]["loss"] == [0.5, None]
    assert found["curves"]["xi"] == [None, -2]
    assert found["curves"]["z_top_distinct"] == [0, 1]


@pytest.mark.parametrize("status", [Status.OK, Status.DIVERGED])
@pytest.mark.parametrize("batch", [math.inf, 8, 1024])
def test_the_end_of_a_run_and_its_batch_are_told(status: Status, batch: float) -> None:
    """Seven classes at rates that strain nothing but, if it is small, the batch."""
    own = run(K=7, overlap=0.1, eta_y=0.1, eta_z=0.02, momentum=None, steps=20_000, batch=batch)
    task = live.reduced(own)
    solved = ended(1.0, status)
    solved = Trajectory(solved.times * 400, solved.observables, None, solved.status, jnp.int32(-1))
    peak = layer.stages_of(task, own.rule.build())["peak"]
    share = live.symmetric_noise(task, batch) if batch < math.inf else 0.0
    wanted = ["The solve ended with the status DIVERGED."] * (status != Status.OK)
    wanted.append(f"Regime: snapped; the speed peaks at step {peak:.3g}.")
    if batch < math.inf:
        assert (share > 0.5) == (batch == 8)
        wanted.append(
            f"The gradient of {batch:g} examples at the start is off by {share:.2g} of its norm; "
            "the curve is that of an infinite batch."
        )
    if batch == 8:
        wanted.append(
            f"Strained: batch -> infinity (all flows): the gradient of 8 examples at the start is "
            f"off by {share:.2g} of its norm, above 0.5; `dynsim compare` also trains on batches"
        )
    else:
        wanted.append("No assumption is strained.")
    assert list(live.words(own, task, solved)) == wanted


@pytest.mark.parametrize(("share", "strained"), [(0.5, False), (0.501, True)])
def test_the_gradient_of_a_batch_may_be_off_by_half_of_its_norm(
    share: float, strained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "symmetric_noise", lambda task, batch: share)
    own = run(K=7, batch=8)
    words = " ".join(live.words(own, live.reduced(own), ended(1.0)))
    sentence = "gradient of 8 examples at the start is off by 0.5 of its norm, above 0.5"
    assert (sentence in words) == strained


def test_a_rule_without_a_closed_form_has_no_regime() -> None:
    own = run(rule="adam")
    regime_, *_ = live.words(own, live.reduced(own), ended(1.0))
    assert regime_ == "Regime: unknown, as the closed form does not describe this update rule."


def test_a_page_of_theory_alone_asks_every_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_plotly", lambda: "/* the library */")
    text = serve.written(None, live.Theory(run(K=7))).decode()
    (found,) = re.findall(r'id="about">(.*?)</script>', text)
    about = json.loads(found)
    assert about["title"].startswith("Theory of yz: overlapping")
    assert (about["live"]["refresh"], len(about["live"]["curves"])) == (3000, len(live.RECORD))
    # A page of theory alone knows no sweep.
    assert not {"done", "unfinished"} & about["live"].keys()
    assert {name: about[name] for name in ("notes", "dims", "stores")} == {
        "notes": [],
        "dims": {},
        "stores": [],
    }


def test_the_server_is_that_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []

    class Served:
        address = "http://here"

        def __init__(self, *given: Any) -> None:
            made.append(given)

        def __enter__(self) -> "Served":
            return self

        def __exit__(self, *_: object) -> None:
            made.append("closed")

        def serve_forever(self) -> None:
            made.append("served")

    monkeypatch.setattr(serve, "Server", Served)
    monkeypatch.setattr(live, "warm", lambda run: None)
    own = run()
    serve.run(SimpleNamespace(paths=(), run=own, port=7))
    (stored, theory, port), *rest = made
    assert (stored, theory.source, port, rest) == (None, own, 7, ["served", "closed"])
    assert capsys.readouterr().out.splitlines()[0] == "http://here"
    with pytest.raises(ValueError, match="live theory starts from zero weights"):
        serve.run(SimpleNamespace(paths=(), run=run(start="uniform"), port=7))
