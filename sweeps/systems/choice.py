"""Runs whose task or optimiser decides which settings are read."""

import abc
from collections.abc import Collection
from typing import Any

from dynsim.problem.choice import Choice


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
