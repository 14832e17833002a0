"""The programs of a store: which one each combination of static values is computed by, and which
others were found to give the same numbers.

The first process that computes runs of a combination registers its program, before any chunk of
them. Whoever comes later has the same program, or one that was decided to be the same: by numbers,
where versions or devices are others, or because a user accepted it.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pydantic

from sweeps.runner.store.base import (
    CHANGED,
    Digest,
    Identity,
    Place,
    damaged,
    sealed,
    sha,
    unsealed,
)
from sweeps.runner.store.manifest import spelt

PROGRAMS = "status/.programs"
"""Folder of the programs, each a file called by its combination of static values."""
SHORT = 12
"""Letters of a program's hash in messages and names of files."""


@dataclasses.dataclass(frozen=True)
class Registered:
    """The program of a combination of static values, or one that is the same.

    Attributes:
        store: id of the store.
        chosen: the values, by axis.
        program: hash of its text.
        platform: for which it was lowered, such as "cpu".
        environment: digest of the environment that registered it.
        same_as: for another program than the registered one, the hash of that.
        decided: how that was found: by "numbers", or "accepted" by a user.
        runs: number of stored runs that were computed again.
        difference: the largest one that was found, relative to the largest value of an array.
        instead_of: hash of the program that it replaced, of which no chunk is to be kept.
    """

    store: Identity
    chosen: dict[str, Any]
    program: Digest
    platform: str
    environment: Digest
    same_as: str = ""
    decided: Literal["", "numbers", "accepted"] = ""
    runs: int = 0
    difference: float = 0.0
    instead_of: str = ""

    @property
    def key(self) -> str:
        """The file that says so."""
        return _key(self.chosen, self.program if self.decided else "")


_REGISTERED = pydantic.TypeAdapter(Registered)


class Programs:
    """The registered programs of the store `store` at a place."""

    def __init__(self, place: Place, store: Identity) -> None:
        self.place, self.store = place, store

    def get(self, chosen: Mapping[str, Any], program: str = "") -> Registered | None:
        """The program of a combination of static values, or what was decided of another `program`;
        None where there is none. `StoreError` for a file that is damaged."""
        return self._read(_key(chosen, program))

    def put(self, known: Registered) -> bool:
        """Register a program, or a decision; False where there is one already."""
        return self.place.put(known.key, sealed(dataclasses.asdict(known)))

    def keep(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Forget the programs of all combinations but those of which there are chunks."""
        kept = {_key(chosen) for chosen in stored}
        for each in self.all():
            if _key(each.chosen) not in kept:
                self.place.remove(each.key)

    def all(self) -> list[Registered]:
        """Everything that is registered; `StoreError` for a file that is damaged."""
        names = sorted(name for name in self.place.files(PROGRAMS) if name.endswith(".json"))
        found = (self._read(f"{PROGRAMS}/{name}") for name in names)
        return [each for each in found if each is not None]

    def _read(self, key: str) -> Registered | None:
        if (value := self.place.read(key)) is None:
            return None
        try:
            known = _REGISTERED.validate_json(unsealed(value), strict=True)
        except ValueError:
            raise damaged(self.place.name, key, CHANGED) from None
        if (known.store, known.key) != (self.store, key):
            raise damaged(self.place.name, key, "it is that of other runs, or of another store")
        return known


def plain(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Static values as JSON has them."""
    return {name: spelt([value])[0] for name, value in chosen.items()}


def _key(chosen: Mapping[str, Any], program: str = "") -> str:
    combination = sha(json.dumps(plain(chosen), sort_keys=True).encode())[:SHORT]
    return f"{PROGRAMS}/{combination}{f'-{program[:SHORT]}' if program else ''}.json"
