"""The theories of a problem by name.

A package registers a theory as an entry point in the group `dynsim.theories`. The entry point is
named "<problem>.<theory>", where <problem> is the problem's `NAME`, and refers to a `Theory` named
<theory>. For example, in pyproject.toml:

    [project.entry-points."dynsim.theories"]
    "yz.mine" = "their_package.theory:MINE"
"""

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

from dynsim import checks, plugins
from dynsim.joma import JoMA
from dynsim.linear_icl.regression import Regression
from dynsim.problem.base import Problem
from dynsim.qkv import QKV
from dynsim.sparse_attention import Retrieval
from dynsim.training.rule import UpdateRule
from dynsim.two_stage.task import Prompts
from dynsim.yz.layer import Layer
from odes import (
    batch_noise,
    central,
    general,
    joma,
    linear_icl,
    qkv,
    sparse_attention,
    two_stage,
    yz,
)
from odes.batch_noise import paths
from odes.theory import AnyTheory, Theory

GROUP = "dynsim.theories"
"""Entry-point group of registered theories."""
BUILT_IN: Mapping[type[Problem], tuple[AnyTheory, ...]] = {
    Layer: yz.THEORIES,
    QKV: qkv.THEORIES,
    Prompts: two_stage.THEORIES,
    Regression: linear_icl.THEORIES,
    Retrieval: sparse_attention.THEORIES,
    JoMA: joma.THEORIES,
}
"""Theories of the built-in problems, most exact first."""
TRAINED_BY = (
    *("init", "draw", "prepare", "batches", "loss", "loss_and_gradient", "population_loss"),
    *("population_loss_and_gradient", "normal_noise", "compact", "groups", "is_frozen"),
)
"""Methods that determine how a problem trains."""


class Theories(dict[str, AnyTheory]):
    """Theories by name. An unknown name raises `ValueError` with the reason."""

    def __init__(self, cls: type[Problem], by_name: Mapping[str, AnyTheory]) -> None:
        self.cls = cls
        super().__init__(by_name)

    def __missing__(self, name: str) -> AnyTheory:
        # `theories` leaves a broken entry point out; who names it gets its error.
        if (entry := f"{self.cls.NAME}.{name}") in plugins.entry_points(GROUP):
            return _load(entry)
        try:
            return self[checks.choice("theory", name, tuple(self))]
        except ValueError as error:
            reason = why_not_inherited(self.cls)
            raise ValueError(f"{error}; {reason}" if reason else str(error)) from None


def theories(problem: Problem) -> Theories:
    """Return all theories of a problem by name: those from `problem.theories`, built-in ones, most
    exact first, flows down its population loss, and registered ones. If several have the same name,
    the first is used. Use a theory's `check` to see whether it describes a run.

    Raises:
        ValueError: if `problem` is not a `Problem`.

    Example:
        >>> problem = dynsim.Layer(dynsim.SynSmall(), length=32)
        >>> theory = odes.theories(problem)["plain-finite-t"]
        >>> theory.solve(problem, dynsim.sgd(1.0, 0.1), [0, 50, 100])["loss"]
    """
    checks.kind("problem", problem, Problem)
    by_name = Theories(type(problem), of_class(type(problem)))
    for entry in plugins.entry_points(GROUP):
        system, _, name = entry.partition(".")
        if system == by_name.cls.NAME or not name:
            try:
                theory = _load(entry)
                if name in by_name:
                    point = plugins.described(GROUP, entry)
                    raise ValueError(f"{point}: {system} already has a theory with this name")
                by_name[name] = theory
            except ValueError as error:
                # One broken package must not break the theories of all others.
                warnings.warn(f"{error}; it is left out", stacklevel=2)
    return by_name


@functools.lru_cache(maxsize=64)
def of_class(cls: type[Problem]) -> dict[str, AnyTheory]:
    """Return the theories of a problem class by name, without registered ones."""
    known: list[AnyTheory] = []
    built_in: tuple[AnyTheory, ...] = ()
    if why_not_inherited(cls) is None:
        built_in = next((BUILT_IN[base] for base in cls.__mro__ if base in BUILT_IN), ())
        with checks.code_of_user(f"{cls.__name__}.theories"):
            own = tuple(cls.theories())
        for theory in own:
            checks.kind(f"{cls.__name__}.theories", theory, Theory)
        known += (*own, *built_in)
    if cls.population_loss is not Problem.population_loss:
        known += (*general.flows(), central.THEORY, general.WHOLE)
    # Problems with built-in theories have their own theories of batch noise.
    if not built_in and cls.draw is not Problem.draw and cls.loss is not Problem.loss:
        known += (batch_noise.THEORY, *paths.THEORIES)
    by_name: dict[str, AnyTheory] = {}
    for theory in known:
        by_name.setdefault(theory.name, theory)
    return by_name


def _load(entry: str) -> AnyTheory:
    point, (system, _, name) = plugins.described(GROUP, entry), entry.partition(".")
    if not system or not name:
        raise ValueError(f"{point}: must be named <problem>.<theory>")
    theory = plugins.load(GROUP, entry)
    if not isinstance(theory, Theory) or theory.name != name:
        raise ValueError(f"{point}: must be a Theory called {name!r}, got {theory!r}")
    return theory


def applicable(
    problem: Problem,
    rule: UpdateRule,
    variants: bool = False,
    *,
    batch: int | float = math.inf,
    steps: int | None = None,
) -> tuple[str, ...]:
    """Return the names of the theories that describe a training, in the order of `theories`: a
    problem's own come before flows. `variants` adds variants of other theories.

    Raises:
        ValueError: if `problem` is not a `Problem` or `rule` not an update rule.

    Example:
        >>> odes.applicable(dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 0.1, momentum=0.9))[0]
        'matched-finite-t'
    """
    return tuple(
        name
        for name, theory in theories(problem).items()
        if (variants or not theory.variant) and theory.why_not(problem, rule, batch, steps) is None
    )


def why_not_inherited(cls: type[Problem]) -> str | None:
    """Return why a problem class cannot use the theories that it inherits, or None. It cannot if it
    overrides a method that determines how it trains, since the theories do not read those."""
    # The theories belong to the base class that names the system or lists them.
    owner: Any = next(base for base in cls.__mro__ if {"NAME", "theories"} & vars(base).keys())
    own = [name for name in TRAINED_BY if getattr(cls, name) is not getattr(owner, name)]
    if not own:
        return None
    return f"{cls.__name__} overrides {own[0]!r} of {owner.__name__}, whose theories do not read it"
