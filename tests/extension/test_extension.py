"""A package of somebody else, found by its entry points: compared, swept and drawn, nothing of ours
touched. `toy_quadratic.py` beside this file is that package, its dist-info what pip would leave."""

import contextlib
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from sweeps import System, cli
from sweeps.systems import registry
from sweeps.systems.experiment import experiment
from tests.doors import refuses
from tests.extension import packages
from tests.systems.layers import simulate

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    def forget():
        packages.forget()
        registry._SYSTEMS.pop("toy", None)

    monkeypatch.syspath_prepend(HERE)
    forget()
    yield
    forget()
    sys.modules.pop("toy_quadratic", None)


@pytest.mark.more
def test_its_system_is_compared_with_its_theory(tmp_path, capsys):
    options = ["--eta", "0.5", "--curvature", "2.0", "--steps", "4", "--dtype", "float64"]
    few = ["--seeds", "3", "--times", "5", "--out", str(tmp_path)]
    assert cli.main(["compare", "toy", *options, *few, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["simulation"]["status"] == {"OK": 3}
    # eta a = 1: descent is done after a step, the flow has exp(-2 t) of its loss left.
    steps = np.array([0, 1, 2, 3, 4])
    want = np.linalg.norm(np.exp(-2.0 * steps) - (steps == 0))
    found = report["theories"]["flow"]
    assert found["title"] == "exact flow"
    # float32 draws the starts of both.
    assert found["relative_error"]["loss"]["over_time"] == pytest.approx(want, rel=1e-6)
    assert (tmp_path / "compare.png").stat().st_size > 10_000


@pytest.mark.more
def test_its_plane_is_drawn_by_its_own_rule(tmp_path):
    axes = ["--x", "eta:0.01:1:3", "--y", "curvature:0.1:10:3", "--steps", "50"]
    rule = ["--regions", "toy_quadratic:LEARNED_OR_NOT", "--against", "flow"]
    rule += ["--seeds", "8", "--band", "1"]
    assert cli.main(["phase", "toy", *axes, *rule, "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "phase.npz") as arrays:
        rate = arrays["eta"][:, None] * arrays["curvature"]
        trained, solved = arrays["simulation/region"], arrays["flow/region"]
        # The share of the loss that is left does not depend on the start.
        np.testing.assert_array_equal(arrays["simulation/probability"][..., 1], trained == 1)
        # The border is that of the flow, whichever way its share is counted.
        for theory in ("flow", "the flow's border"):
            assert arrays[f"agreement/{theory}"] == (trained == solved).mean()
    with np.errstate(over="ignore"):
        left = (1 - rate) ** 100
    # Its regions say nothing of runs that diverge, which are a third one.
    np.testing.assert_array_equal(trained, np.where(left > 1e3, 2, left < 0.01))
    np.testing.assert_array_equal(solved, np.exp(-100 * rate) < 0.01)


def test_its_system_adds_rows_to_explain(monkeypatch):
    found = sweeps.explain("toy", eta=0.5, curvature=4.0, steps=3)
    assert found.theory == "exact flow"
    row = found["loss over e at step"]
    assert (row.prediction, row.error) == (0.25, 0)
    assert "eta curvature = 2" in found.strained[-1]

    def predict(run: sweeps.Experiment) -> sweeps.Prediction:
        loss = {"loss": np.array([2.0, 1.0, 0.5])}
        codes = np.array(dynsim.Status.OK), np.array(-1)
        solved = dynsim.Trajectory(np.array([0.0, 1.0, 2.0]), loss, None, *codes)
        return sweeps.Prediction(
            "mine", run.training(), solved, "n = 1", exact=True, has_limit=False
        )

    # And may bring the prediction itself.
    toy = registry.system("toy")._replace(predict=predict)
    monkeypatch.setitem(registry._SYSTEMS, "toy", toy)
    found = sweeps.explain("toy", eta=0.5, curvature=0.5, steps=2)
    assert (found.theory, found.applicable) == ("mine", {})
    assert found["loss at the end"][1:3] == (0.5, 0)
    # Half of the fall of 1.5, between the first two times; 1 if the middle one is left out.
    half = found["half of the decrease by step"]
    assert (half.prediction, half.error) == (0.75, pytest.approx(0.25 / 3))
    assert found["loss over e at step"].prediction == 2


def test_a_sweep_file_names_its_system(tmp_path):
    file = tmp_path / "toy.toml"
    file.write_text(
        'record = ["weight"]\n[run]\nproblem = "toy"\nsteps = 3\n[axes]\neta = [0.1, 3e38]\n'
    )
    assert cli.main(["sweep", str(file), "--out", str(tmp_path / "store")]) == 0
    found = sweeps.open(tmp_path / "store").load()
    np.testing.assert_array_equal(found.status, [dynsim.Status.OK, dynsim.Status.DIVERGED])
    start = jax.random.normal(jax.random.fold_in(jax.random.key(0), 0))
    np.testing.assert_allclose(found.weight[0], start * 0.9**3, rtol=1e-6)


def test_its_observable_and_its_task_have_names_of_ours():
    task, optimizer, key = dynsim.SynSmall().build(), dynsim.sgd(1.0, 1.0), jax.random.key(0)
    run = simulate(
        task, optimizer, key, steps=2, length=8, batch=4, record=["largest_weight", "attention"]
    )
    np.testing.assert_array_equal(run["largest_weight"], run["attention"].max(-1))
    own = experiment(task="toy_quadratic:TwoClasses").built[0].classes
    assert (own.K, own.M) == (2, 3)


def test_a_wrong_system_is_named():
    toy = registry.system("toy")
    refuses(lambda: sweeps.register(toy._replace(name="yz")), "system 'yz'", "registered")
    refuses(lambda: sweeps.register(System("mine", toy.problems, {})), "'mine'", "'simulation'")
    refuses(lambda: registry.system("toi"), "system = 'toi'", ", ".join(registry.BUILT_IN), "toy")
    sweep = sweeps.Sweep(experiment("toy"), {"eta": [0.1]}, "plain", ("loss",))
    refuses(sweep.check, "theory = 'plain'", "simulation, flow")


def test_a_broken_entry_point_names_its_package(tmp_path, monkeypatch):
    broken = {"dynsim.systems": {"broken": "no_such_module:SYSTEM"}}
    packages.write(tmp_path, "broken-toy", entries=broken)
    monkeypatch.syspath_prepend(str(tmp_path))
    packages.forget()
    refuses(lambda: registry.system("broken"), "broken = no_such_module:SYSTEM", "broken-toy")
    # Who does not ask for it is not concerned.
    toy = registry.system("toy")
    assert registry.system_of(experiment("toy")) is toy


def test_an_import_does_not_change_the_precision_of_others(tmp_path, monkeypatch):
    text = "import jax\nimport dynsim\njax.config.update('jax_enable_x64', True)\n"
    (tmp_path / "doubled.py").write_text(f"{text}Own = dynsim.Layer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        pytest.warns(UserWarning, match="doubled:Own.*jax_enable_x64"),
        contextlib.suppress(ValueError),
    ):
        experiment("doubled:Own")
    assert not jax.config.jax_enable_x64


# Last, because the fixture stays for the rest of the file.
@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_its_theory_is_known_to_odes_and_to_sweeps(tmp_path):
    few = {"steps": 3, "seeds": 1, "length": 8, "batch": 4, "times": 3}
    result = sweeps.compare(theories=("still",), out=tmp_path, **few)
    loss = result.predictions["still"]["loss"][0]
    # Zero weights to the end: 34 tokens are equally likely.
    np.testing.assert_allclose(loss, np.log(34), rtol=1e-12)
    sweep = sweeps.Sweep(experiment(steps=3), {"eta_z": [1.0, 2.0]}, "still", ("loss",))
    np.testing.assert_allclose(sweeps.run(sweep).loss, np.log(34), rtol=1e-12)
    layer = dynsim.Layer(dynsim.SynSmall())
    still = odes.theories(layer)["still"]
    refuses(lambda: still.check(layer, dynsim.adam(1.0, 1.0)), "'still'", "it describes sgd")
