"""Runs whose task or optimiser decides which settings are read."""

import abc
from collections.abc import Collection
from typing import Any

from dynsim import checks
from dynsim.problem.choice import Choice
from dynsim.training.constant.descent import Descent

RULES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
}
"""What each rule with one learning rate reads besides it, with defaults."""


class Chooses(abc.ABC):
    """Settings some of which only some choices read. To be mixed into a run, before `Run`."""

    @property
    @abc.abstractmethod
    def choices(self) -> tuple[Choice, ...]:
        """What is chosen."""

    def value(self, name: str) -> Any:
        """A setting as it was given, or the default of what reads it; None where nothing does."""
        owner = next((choice for choice in self.choices if choice.owns(name)), None)
        return getattr(self, name) if owner is None else owner.value(self, name)

    def check_read(self) -> None:
        """Raise `ValueError` for a setting that was given and that nothing reads."""
        for choice in self.choices:
            choice.check(self)

    def check_axes(self, axes: Collection[str]) -> None:
        """Raise `ValueError` for axes that these runs do not read."""
        for name in axes:
            for choice in self.choices:
                if choice.owns(name) and not choice.reads(name):
                    raise ValueError(f"axes.{name}: {choice.refusal(name)}")

    def reads(self, field: str, axes: Collection[str]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        del axes
        return all(choice.reads(field) for choice in self.choices if choice.owns(field))

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those that were left out at their defaults."""
        plain: dict[str, object] = super().as_json()  # type: ignore[misc]
        names = [name for name in plain if any(choice.owns(name) for choice in self.choices)]
        return {**plain, **{name: self.value(name) for name in names}}


def descent(run: Any, **more: Any) -> Descent:
    """The update rule of a run with one learning rate `eta` and an `optimizer` of `RULES`.

    Raises:
        ValueError: for an unknown rule, a setting of another one, or a number that cannot be.
    """
    checks.choice("optimizer", run.optimizer, tuple(RULES))
    run.check_read()
    own = {name: run.value(name) for name in RULES[run.optimizer]}
    return Descent(eta=run.eta, kind=run.optimizer, **own, **more)
