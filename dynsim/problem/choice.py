"""Settings that only some values of another setting read.

They are None until somebody gives them, which stands for the default of what reads them. So what
was given is known, and what nobody reads is refused instead of ignored.
"""

import abc
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """What a setting chooses, and what each of its values reads.

    Attributes:
        field: name of the setting that chooses.
        chosen: its value.
        options: by its values, the settings that each reads and their defaults.
    """

    field: str
    chosen: str
    options: Mapping[str, Mapping[str, Any]]

    def owns(self, name: str) -> bool:
        """Whether `name` is a setting that one of the options reads."""
        return any(name in reads for reads in self.options.values())

    def reads(self, name: str) -> bool:
        """Whether what was chosen reads the setting."""
        return name in self.options.get(self.chosen, {})

    def value(self, settings: Any, name: str) -> Any:
        """A setting as it was given, or by default."""
        given = getattr(settings, name)
        return self.options.get(self.chosen, {}).get(name) if given is None else given

    def check(self, settings: Any) -> None:
        """Raise `ValueError` for a setting that was given and is not read."""
        for name in dict.fromkeys(name for reads in self.options.values() for name in reads):
            given = getattr(settings, name)
            if given is not None and not self.reads(name):
                raise ValueError(f"{name} = {given!r}: {self.refusal(name)}")

    def refusal(self, name: str) -> str:
        """Why a setting is not read, and who reads it."""
        readers = [option for option, reads in self.options.items() if name in reads]
        own = ", ".join(self.options.get(self.chosen, ())) or "nothing of its own"
        return (
            f"{self.field} {self.chosen!r} does not read it, {' and '.join(readers)} "
            f"{'do' if len(readers) > 1 else 'does'}; it reads {own}"
        )


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
