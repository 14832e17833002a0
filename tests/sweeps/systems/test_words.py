"""Which settings are axes of words, in every system and in those of others, and bad words."""

import dataclasses
import re
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray
from sweeps.systems.problems.options import options_of

import dynsim
import sweeps
from sweeps import Sweep, Training
from sweeps.runner import files
from sweeps.systems import registry
from tests.extension.toy_quadratic import SYSTEM, Quadratic


@dataclasses.dataclass(frozen=True)
class Steep(Quadratic):
    """Descent of somebody else's that goes down or up."""

    AXES: ClassVar = Quadratic.AXES._replace(static=("steps", "way"), words={"way": ("down", "up")})
    way: Literal["down", "up"] = "down"

    def numbers(self) -> dict[str, Any]:
        found = super().numbers()
        return {**found, "eta": found["eta"] * (1 if self.way == "down" else -1)}


def test_a_system_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))
    sweeps.register(SYSTEM._replace(name="steep", run=Steep))
    axes = {"way": ["up", "down"], "eta": [0.1, 0.2], "seed": [0, 1]}
    found = sweeps.run(Sweep(axes, Steep(steps=3), record=("weight",), times=[0, 3])).weight
    share = (found.isel(time=1) / found.isel(time=0)).transpose("way", "eta", "seed")
    want = (1 + np.array([[0.1, 0.2], [-0.1, -0.2]])) ** 3
    np.testing.assert_allclose(share, np.broadcast_to(want[..., None], (2, 2, 2)), rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"optimizer": ["adm"]}, "axes.optimizer = 'adm': did you mean 'adam' or 'adamw'? It must"),
        ({"optimizer": [1.0]}, "axes.optimizer = 1.0: must be one of sgd, momentum, nesterov"),
        ({"optimizer": [["sgd"]]}, "axes.optimizer = ('sgd',): must be one of"),
        ({"optimizer": []}, "axes.optimizer = []: must be a list of some of sgd, momentum"),
        ({"optimizer": "sgd"}, "axes.optimizer = 'sgd': must be a list of some of sgd"),
        ({"optimizer": {"range": 2}}, "axes.optimizer = {'range': 2}: must be a list of some"),
        ({"optimizer": ["sgd", "adam", "sgd"]}, "axes.optimizer: has the value 'sgd' twice"),
        (
            {"optimizer": ["sgd", "sign"], "b1": [0.5]},
            "axes.b1: optimizer 'sgd' and 'sign' do not read it, adam and adamw do",
        ),
        (
            {"optimizer": ["sgd", "sign"], "run": {"b2": 0.5}},
            "run.b2 = 0.5: optimizer 'sgd' and 'sign' do not read it, rmsprop and adam and",
        ),
        ({"init": ["zero"], "run": {"init": "zero"}}, "run.init = 'zero': is an axis as well"),
        ({"eta_z": [1], "run": {"b2": 0.5}}, "b2 = 0.5: optimizer 'sgd' does not read it"),
        ({"eta_z": [1], "optimizer": ["sgd", "adamw"]}, "decay = None: adamw needs a weight decay"),
        ({"dtype": ["float32"]}, "axes = 'dtype': must be one of"),
        ({"task": ["syn"]}, "axes = 'task': must be one of"),
        ({"layout": ["paper"], "run": {"task": "overlapping"}}, "task 'overlapping' does not read"),
        ({"system": "joma", "init": ["zero"]}, "axes = 'init': "),
        ({"system": "two_stage", "preset": ["fast"]}, "axes = 'preset': "),
        (
            {"system": "two_stage", "control": ["forever"], "eta_2": [0.1]},
            "axes.eta_2: control = 'forever' does not read it",
        ),
    ],
)
def test_bad_words_are_named(table: dict[str, Any], message: str) -> None:
    others = {name: table[name] for name in ("run", "system") if name in table}
    axes = {name: values for name, values in table.items() if name not in others}
    with pytest.raises(ValueError, match=re.escape(message)):
        files.from_table({"axes": axes, **others}).check()


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("yz", {"init": ["zero", "uniform"], "layout": ["paper", "authors"]}),
        ("joma", {"activation": ["relu", "tanh"], "head": ["signal", "cross-entropy"]}),
        ("qkv", {"normalisation": ["l2", "none"]}),
        ("linear_icl", {"attention": ["merged", "separate"], "rank": [1, 2]}),
        ("transformer", {"positions": ["learned", "none"]}),
        ("two_stage", {"control": ["none", "forever"], "core": ["fixed"], "eta_2": [0.01]}),
        ("sparse_attention", {"optimizer": ["sgd", "adam"]}),
    ],
)
def test_words_of_every_system(system: str, words: dict[str, Any]) -> None:
    files.from_table({"system": system, "axes": words}).check()


def test_of_very_many_combinations_every_word_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"batch": list(range(1, 101)), "optimizer": ["sgd", "sign", "rmsprop", "adam"]}
    found = Sweep(many, Training(steps=2)).some_slices()
    assert len(found) <= 64
    assert {each["optimizer"] for each in found} == set(many["optimizer"])
    zipped = {"batch": list(range(1, 101)), "optimizer": ["sgd"] * 98 + ["adam", "sgd"]}
    found = Sweep(zipped, Training(steps=2), zip=(("batch", "optimizer"),)).some_slices()
    assert {each["optimizer"] for each in found} == {"sgd", "adam"}
    assert {1, 100} <= {each["batch"] for each in found}


class Clashing(dynsim.Problem):
    """A problem with a field that is called like a number of Adam."""

    b1: float = 0.5

    def init(self, key: PRNGKeyArray) -> Array:
        return jnp.zeros(())


def test_a_field_called_like_a_number_of_the_rule_is_the_problems() -> None:
    run: Any = options_of(Clashing(), "clashing")
    assert run(optimizer="adam").rule == dynsim.adam(0.1)
    assert run(optimizer="adam", rule_b1=0.7).rule == dynsim.adam(0.1, b1=0.7)
    # Adam's number alone is left out where no word reads it.
    found = run(b1=0.4, rule_b1=0.7).at({"optimizer": "sgd"})
    assert (found.b1, found.rule_b1) == (0.4, None)
    with pytest.raises(ValueError, match=r"rule_b1 = 0\.7: optimizer 'sgd' does not read it"):
        run(rule_b1=0.7).check_read()
