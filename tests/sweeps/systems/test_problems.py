"""Sweeps of a problem of one's own: their runs are those of `dynsim.train`, whatever is an axis."""

import dataclasses
import importlib.util
import json
import linecache
import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import odes
import sweeps
from dynsim import Status, schedules
from sweeps import Experiment, Sweep
from sweeps.runner.config import config_of
from sweeps.runner.program import jobs


class Net(dynsim.Problem):
    """A small network on a fixed design, with a setting of each kind."""

    inputs: np.ndarray = eqx.field(default_factory=lambda: np.linspace(-1, 1, 10))
    width: int = 3
    shift: float = 0.5
    activation: Any = jnp.tanh

    def init(self, key):
        return eqx.nn.MLP("scalar", "scalar", self.width, 1, self.activation, key=key)

    def draw(self, key, batch):
        x = jax.random.choice(key, self.inputs, (batch,))
        return x, x**2 + self.shift

    def loss(self, params, data):
        return jnp.mean((jax.vmap(params)(data[0]) - data[1]) ** 2)

    def observables(self):
        return {"output": lambda problem, params: jax.vmap(params)(problem.inputs)}


RULE = dynsim.adamw(schedules.warmup_cosine(0.03, 2, 10), decay=0.1, clip=1.0)
AXES: dict[str, Any] = {
    "eta.peak": [0.01, 0.3],
    "eta.warmup": [0.0, 4.0],
    "decay": [0.0, 1.0],
    "noise": [0.1],
    "shift": [0.5, 2.0],
    "width": [3, 5],
    "batch": [4, 8],
    "seed": [0, 7],
}
RECORD = ("batch_loss", "update_norm", "output")


def alone(eta=0.03, warmup=2.0, decay=0.1, shift=0.5, width=3, batch=4, seed=0, **rule: Any):
    rate = schedules.warmup_cosine(eta, warmup, 10)
    return dynsim.train(
        Net(width=width, shift=shift),
        dynsim.adamw(rate, decay=decay, clip=1.0, **rule),
        jax.random.fold_in(jax.random.key(0), seed),
        steps=10,
        batch=batch,
        record=list(RECORD),
        times=[10],
    )


@pytest.mark.more
def test_a_run_of_a_sweep_is_the_run_that_train_makes() -> None:
    # A program for each width, which has a batch of its own.
    sizes = (("width", "batch"),)
    found = sweeps.run(Sweep(Experiment(Net(), RULE, steps=10), AXES, record=RECORD, zip=sizes))
    assert (found.status == Status.OK).all()
    chosen = {"decay": 1.0, "shift": 2.0, "width": 5, "batch": 8, "seed": 7}
    along = {name: value for name, value in chosen.items() if name != "batch"}
    at = found.sel({**along, "eta.peak": 0.3, "eta.warmup": 4.0}).squeeze()
    assert at.batch == 8
    want = alone(**chosen, eta=0.3, warmup=4.0, noise=0.1)
    for name in RECORD:
        # Batches of other sizes are summed up in another order.
        np.testing.assert_allclose(at[name], want[name][-1], rtol=2e-5, atol=1e-6)


class Clash(Net):
    """A setting called as a number of the rule is."""

    decay: float = 0.0


@pytest.mark.more
def test_a_number_of_the_rule_that_the_problem_has_too_is_called_after_it() -> None:
    axes = {"problem.decay": [0.0, 1.0], "rule.decay": [0.0, 1.0]}
    found = sweeps.run(Sweep(Experiment(Clash(), RULE, 10, 4), axes, record="output")).output
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[:, 0], found[:, 1])


@pytest.mark.more
def test_runs_that_diverge_are_data() -> None:
    found = sweeps.run(Sweep(Experiment(Net(), dynsim.sgd(0.1), 5, 4), {"eta": [0.1, 1e9]}))
    np.testing.assert_array_equal(found.status, [Status.OK, Status.DIVERGED])


@pytest.mark.more
def test_a_grid_of_numbers_is_one_program_and_found_again() -> None:
    jobs.forget()
    axes = {"eta.warmup": [1.0, 3.0], "decay": [0.0, 0.3], "shift": [0.0, 1.0]}
    for first in (0.1, 0.2):
        axes["peak"] = [first, 1.0]
        sweeps.run(Sweep(Experiment(Net(), RULE, 10, 4), axes))
    assert len(jobs.PROGRAMS) == 1


@pytest.mark.more
def test_any_optax_rule() -> None:
    rule = dynsim.from_optax(optax.lion, learning_rate=0.1, weight_decay=0.0)
    sweep = Sweep(Experiment(Net(), rule, 3, 4), {"weight_decay": [0.0, 0.5]}, record="output")
    found = sweeps.run(sweep).output.values
    want = alone_by(dynsim.from_optax(optax.lion, learning_rate=0.1, weight_decay=0.5))
    np.testing.assert_allclose(found[1], want["output"][-1], rtol=1e-5)
    assert not np.allclose(found[0], found[1])


def alone_by(rule: Any) -> dynsim.Trajectory:
    key = jax.random.fold_in(jax.random.key(0), 0)
    return dynsim.train(Net(), rule, key, steps=3, batch=4, record="output", times=[3])


class Grouped(Net):
    """The last layer has a rate of its own."""

    def groups(self, params):
        return eqx.tree_at(lambda p: p.layers, jax.tree.map(lambda _: None, params), ("in", "out"))


@pytest.mark.full("test_a_run_of_a_sweep_is_the_run_that_train_makes")
def test_rates_by_group() -> None:
    rule = dynsim.sgd({"in": 0.1, "out": schedules.constant(0.2, warmup=2)})
    axes = {"eta.in": [0.1, 0.0], "eta.out.peak": [0.5], "eta.out.warmup": [1.0]}
    found = sweeps.run(Sweep(Experiment(Grouped(), rule, 3, 4), axes, record="output")).output
    rule = dynsim.sgd({"in": 0.1, "out": schedules.constant(0.5, warmup=1)})
    key = jax.random.fold_in(jax.random.key(0), 0)
    want = dynsim.train(Grouped(), rule, key, steps=3, batch=4, record="output", times=[3])
    np.testing.assert_allclose(found.values[0, 0, 0], want["output"][-1], rtol=1e-5)
    with pytest.raises(ValueError, match=r"eta: has no rate for the group 'in'"):
        sweeps.run(Sweep(Experiment(Grouped(), dynsim.sgd({"out": 0.1}), 3, 4), {"seed": [0]}))


@pytest.mark.full(
    "test_a_store_is_not_resumed_with_another_loss",
    "sweeps/runner/store/test_reuse.py::test_runs_go_on_for_more_steps",
)
def test_a_store_is_resumed_extended_and_opened_without_the_problem(tmp_path: Path) -> None:
    options = {"checkpoint": True, "record": ("batch_loss", "gradient_norm")}
    axes = {"eta.peak": [0.01, 0.1], "seed": [0, 1]}
    sweeps.run(Sweep(Experiment(Net(), RULE, 12, 4), axes, **options), tmp_path / "first")
    longer = Sweep(Experiment(Net(), RULE, 20, 4), {**axes, "seed": [0, 1, 2]}, **options)
    found = sweeps.run(longer, tmp_path / "second", reuse=[tmp_path / "first"]).load()
    whole = sweeps.run(longer)
    for name in ("batch_loss", "gradient_norm", "status"):
        np.testing.assert_array_equal(found[name], whole[name])
    config = json.loads(sweeps.open(tmp_path / "first").attrs["config"])
    assert config["run"]["problem"]["kind"] == f"{__name__}:Net"
    other = Net(inputs=np.linspace(0, 1, 10))
    with pytest.raises(sweeps.StoreError, match=r"run\.problem\.inputs"):
        sweeps.run(Sweep(Experiment(other, RULE, 12, 4), axes, **options), tmp_path / "first")


@pytest.mark.more
def test_a_store_is_not_resumed_with_another_loss(tmp_path: Path) -> None:
    """A class of the same name, of which a comment, or a number, is another one."""

    def made(body: str) -> type:
        file = tmp_path / "mine.py"
        file.write_text(f"import dynsim\nfrom {__name__} import Net\n\n\n{body}")
        linecache.checkcache(str(file))
        spec = importlib.util.spec_from_file_location("mine", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules["mine"] = module
        spec.loader.exec_module(module)
        return module.Mine

    head = "class Mine(Net):\n    def loss(self, params, data):\n"
    one, two = (f"{head}        return {n} * super().loss(params, data)\n" for n in (1.0, 2.0))
    axes, out = {"eta": [0.1]}, tmp_path / "s"
    rule = dynsim.sgd(0.1)
    for body, same in ((one, True), ("# One\n" + one, True), (two, False)):
        sweep = Sweep(Experiment(made(body)(), rule, 10, 4), axes)
        if same:
            sweeps.run(sweep, out)
        else:
            with pytest.raises(sweeps.StoreError, match=r"Mine\.loss"):
                sweeps.run(sweep, out)
    other = Sweep(Experiment(made(one)(inputs=np.linspace(0, 1, 10)), rule, 10, 4), axes)
    with pytest.raises(sweeps.StoreError, match=r"run\.problem\.inputs"):
        sweeps.run(other, out)


def half(k):
    return 0.5 + 0 * k


def test_functions_are_named_and_have_no_address() -> None:
    """A store has to be resumed by another process. What functions do is part of programs."""

    def text(**changes: Any) -> str:
        given = {"problem": Net(), "rule": RULE} | changes
        sweep = Sweep(Experiment(**given, steps=10, batch=4), {"seed": [0]})
        return json.dumps(config_of(sweep))

    made = [
        text(),
        text(problem=Net(activation=jax.nn.relu)),
        text(problem=Net(activation=lambda x: x)),
        text(rule=dynsim.sgd(half)),
        text(rule=dynsim.sgd(lambda k: 1 / (k + 1))),
        text(rule=dynsim.from_optax(optax.lion, learning_rate=0.1)),
    ]
    assert len(set(made)) == len(made)
    assert not [each for each in made if "0x" in each]
    assert text(problem=Net(inputs=np.ones(10))) != text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"depth": [1]}}, "axes.depth = 1: is not a setting; there are problem, inputs"),
        ({"axes": {"peak": [-1.0]}}, "axes.rule.eta.peak = -1.0: must be a number in [0, inf)"),
        ({"axes": {"width": [1.5]}}, "axes.problem.width = 1.5: must be an integer"),
        ({"record": ("speed",)}, "record = 'speed': must be one of output, batch_loss"),
        ({"steps": 0}, "steps = 0: must be an integer from 1"),
        ({"batch": 0}, "batch = 0: must be an integer from 1"),
        ({"batch": math.inf}, "batch = inf: Net has no method 'population_loss'"),
        ({"steps": 5}, "eta: its schedule has 10 steps, but the run has steps = 5"),
        (
            {"theory": "plain"},
            "theory = 'plain': must be one of simulation, linear-noise, sde, corrected-sde, best; "
            "descent and flows need Net.population_loss",
        ),
        ({"rule": 0.1}, "rule = 0.1: must be a dynsim.Rule"),
    ],
)
def test_bad_input_is_named_before_anything_is_compiled(
    changes: dict[str, Any], message: str
) -> None:
    def check(axes: Any = None, theory: str = "simulation", record: Any = None, **run: Any) -> None:
        run = {"rule": RULE, "steps": 10, "batch": 4} | run
        Sweep(Experiment(Net(), **run), axes or {"peak": [0.1]}, theory, record).check()

    with pytest.raises(ValueError, match=re.escape(message)):
        check(**changes)


@pytest.mark.parametrize("method", ["init", "draw"])
def test_code_that_needs_values_is_named_by_sweeps(method: str) -> None:
    def valued(self: Net, *given: Any) -> Any:
        leaf = jax.tree.leaves(given)[0]
        return jnp.ones(3) if jnp.any(leaf == leaf) else leaf

    problem = type("Valued", (Net,), {method: valued})()
    sweep = Sweep(Experiment(problem, RULE, 10, 4), {"seed": [0]}, record=("batch_loss",))
    with pytest.raises(ValueError, match=f"^Valued.{method}: needs the values of arrays"):
        sweep.check()


def deviation(problem, params):
    """An observable that the problem does not know."""
    return jnp.std(jax.vmap(params)(problem.inputs))


@pytest.mark.full("test_a_run_of_a_sweep_is_the_run_that_train_makes")
class Decay(dynsim.Problem):
    """One weight in a quadratic valley."""

    a: float = 0.5

    def init(self, key):
        return jnp.ones(1)

    def population_loss(self, params):
        return self.a * jnp.sum(params**2) / 2

    @classmethod
    def theories(cls):
        def steep(training):
            return "a > 1" if training.problem.a > 1 else None

        def decay(problem, init, time):
            return {"loss": problem.a * jnp.exp(-2 * problem.a * time) / 2}

        return (odes.closed_form("decay", "decay", "a < 1", decay, inapplicable=steep),)


def test_a_theory_is_asked_for_the_numbers_of_each_run() -> None:
    """And not for arrays of an axis, nor while JAX compiles, as `if` needs a number."""
    run = Experiment(Decay(), dynsim.sgd(0.1), steps=10, batch=math.inf)
    axes = {"eta": [0.1, 0.2], "a": [0.5, 0.7, 1.0]}
    found = sweeps.run(Sweep(run, axes, "decay", ["loss"]))
    eta, a = np.array(axes["eta"])[:, None], np.array(axes["a"])
    np.testing.assert_allclose(found["loss"], a * np.exp(-20 * eta * a) / 2, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^theory 'decay' does not apply: a > 1"):
        Sweep(run, {**axes, "a": [0.5, 1.5, 0.7]}, "decay", ["loss"]).check()


@pytest.mark.more
def test_functions_are_recorded_next_to_names(tmp_path: Path) -> None:
    record = ("output", {"deviation": deviation})
    sweep = Sweep(Experiment(Net(), RULE, 10, 4), {"peak": [0.01, 0.1]}, record=record)
    found = sweeps.run(sweep, tmp_path / "s").load()
    want = np.std(found.output.values, axis=-1)
    # One pass over ten numbers in float32.
    np.testing.assert_allclose(found.deviation, want, rtol=1e-5)
    other = Sweep(sweep.run, sweep.axes, record=("output", {"deviation": lambda *_: 0.0}))
    with pytest.raises(sweeps.StoreError, match="functions"):
        sweeps.run(other, tmp_path / "s")


@pytest.mark.full("sweeps/runner/test_agreement.py::test_a_worker_that_lives_on_is_found_out")
def test_workers_are_sent_what_no_configuration_can_make(tmp_path: Path) -> None:
    """A problem given as it is, and a function: each worker makes the sweep that it was sent."""
    record = ("batch_loss", {"deviation": deviation})
    run = Experiment(Net(activation=half), RULE, 10, 4)
    sweep = Sweep(run, {"peak": [0.01, 0.1]}, record=record)
    with ThreadPoolExecutor(1) as pool:
        # A compiled function loses its name on the way.
        with pytest.raises(ValueError, match="cannot be sent this sweep"):
            sweeps.run(
                Sweep(run.at({"activation": jnp.tanh}), sweep.axes, record=record),
                tmp_path / "n",
                executor=pool,
            )
        found = sweeps.run(sweep, tmp_path / "s", executor=pool, chunk=1).load()
    want = sweeps.run(sweep)
    for name in ("batch_loss", "deviation"):
        np.testing.assert_array_equal(found[name], want[name])


SCRIPT = """
import dynsim, jax, jax.numpy as jnp, sweeps

class Own(dynsim.Problem):
    shift: float = 0.5
    def init(self, key):
        return jnp.asarray(2.0)
    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))
    def loss(self, w, x):
        return jnp.mean((w - x - self.shift) ** 2)

sweep = sweeps.Sweep(sweeps.Experiment(Own(), dynsim.sgd(0.1), 2, 2), {"eta": [0.1, 0.2]})
found = sweeps.run(sweep, "out", progress=False)
assert sweeps.run(sweep, "out", strict=True, progress=False).equals(found)
"""


@pytest.mark.full("sweeps/runner/test_agreement.py::test_a_session_in_which_code_changes")
def test_a_problem_of_a_script_that_python_reads_from_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-"]
    subprocess.run(command, input=SCRIPT, cwd=tmp_path, check=True, text=True)


class Plain(dynsim.Problem):
    """A quadratic loss, as steep as `factor`."""

    factor: float = 1.0

    def init(self, key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (2,))

    def draw(self, key: jax.Array, batch: int) -> jax.Array:
        return jax.random.normal(key, (batch, 2))

    def loss(self, params: jax.Array, data: jax.Array) -> jax.Array:
        return self.factor * jnp.mean((data @ params) ** 2)

    def population_loss(self, params: jax.Array) -> jax.Array:
        return self.factor * jnp.sum(params**2)


class Tripled(Plain):
    """Building it twice would make it nine times as steep."""

    def build(self, rule: Any) -> "Tripled":
        return dataclasses.replace(self, factor=3 * self.factor)


@pytest.mark.parametrize(
    ("theory", "name"), [("simulation", "batch_loss"), ("descent", "loss"), ("flow", "loss")]
)
@pytest.mark.more
def test_a_problem_is_built_once(theory: str, name: str) -> None:
    """A sweep has the runs that the problem has which `build` returns."""
    three, one = (
        sweeps.run(
            sweeps.Sweep(
                sweeps.Experiment(problem, dynsim.sgd(0.1), 3, 4),
                {"factor": values, "seed": [0, 1]},
                theory=theory,
                record=[name],
            )
        )
        for problem, values in ((Tripled(), [1.0, 2.0]), (Plain(), [3.0, 6.0]))
    )
    np.testing.assert_array_equal(three[name], one[name])
