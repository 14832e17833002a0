"""Settings that only some values of another setting read.

They are None until somebody gives them, which stands for the default of what reads them. So what
was given is known, and what nobody reads is refused instead of ignored.
"""

import abc
from collections.abc import Iterable, Mapping, Sequence
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

    @property
    def owned(self) -> tuple[str, ...]:
        """The settings that one of the options reads."""
        return tuple(dict.fromkeys(name for reads in self.options.values() for name in reads))

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
        for name in self.owned:
            given = getattr(settings, name)
            if given is not None and not self.reads(name):
                raise ValueError(f"{name} = {given!r}: {self.refusal(name)}")

    def refusal(self, name: str, words: Sequence[str] = ()) -> str:
        """Why a setting is not read by what was chosen, or by any of several `words`, and who reads
        it."""
        readers = [option for option, reads in self.options.items() if name in reads]
        does = f"{' and '.join(readers)} {'do' if len(readers) > 1 else 'does'}"
        if len(words) > 1:
            return f"{self.field} {' and '.join(map(repr, words))} do not read it, {does}"
        word = words[0] if words else self.chosen
        own = ", ".join(self.options.get(word, ())) or "nothing of its own"
        return f"{self.field} {word!r} does not read it, {does}; it reads {own}"


def unread(choices: Iterable[Choice], chosen: Mapping[str, Any]) -> dict[str, None]:
    """The settings that words among the `chosen` values do not read, as left out."""
    made = (each._replace(chosen=chosen[each.field]) for each in choices if each.field in chosen)
    return {name: None for each in made for name in each.owned if not each.reads(name)}


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

    def given(self, name: str) -> Any:
        """A setting as it was given, None where it was left out."""
        return getattr(self, name)

    def check_axes(self, axes: Mapping[str, Sequence[Any]]) -> None:
        """Raise `ValueError` for axes, and for settings along an axis of words, that none of these
        runs reads."""
        for choice in self.choices:
            words = axes.get(choice.field, (choice.chosen,))
            for name in choice.owned:
                said = f"axes.{name}" if name in axes else ""
                if choice.field in axes and not said and self.given(name) is not None:
                    said = f"run.{name} = {self.given(name)!r}"
                if said and not any(name in choice.options.get(word, ()) for word in words):
                    raise ValueError(f"{said}: {choice.refusal(name, words)}")

    def at(self, chosen: Mapping[str, Any]) -> Any:
        """The runs at the `chosen` values of axes, which leave out what words among these do not
        read."""
        return super().at({**chosen, **unread(self.choices, chosen)})  # type: ignore[misc]

    def by_word(self, axes: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, dict[str, Any]]]:
        """By axis of words and by word, the values of the settings that only some of its words
        read, but for those that are axes."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for choice in self.choices:
            for word in axes.get(choice.field, ()):
                run, reads = self.at({choice.field: word}), choice.options[word]
                told = {n: run.value(n) for n in reads if n not in axes and run.reads(n, axes)}
                found.setdefault(choice.field, {})[word] = told
        return found

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        del axes
        return all(choice.reads(field) for choice in self.choices if choice.owns(field))

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those that were left out at their defaults."""
        plain: dict[str, object] = super().as_json()  # type: ignore[misc]
        names = [name for name in plain if any(choice.owns(name) for choice in self.choices)]
        return {**plain, **{name: self.value(name) for name in names}}
