"""Names of the arrays and dimensions of a sweep. Each array is a folder of its store, on file
systems that may not tell upper from lower case."""

from collections.abc import Iterable

from dynsim import checks

OF_STORES = ("zarr.json", "time", "status", "first_bad_step", "checkpoint")
"""What a store has, or may have, whatever is recorded."""


def check_names(*named: tuple[str, Iterable[str]]) -> None:
    """Raise `ValueError` for a name that no array can have, and for one name of two things.

    Args:
        *named: names by the setting that they come from; empty for those of `OF_STORES`.
    """
    found: dict[str, tuple[str, str]] = {}
    for field, names in named:
        for name in names:
            if field:
                checks.name(field, name)
            before, other = found.setdefault(name.casefold(), (field, name))
            if (before, other) == (field, name):
                continue
            what = {"": "something that every store has", "record": "an array that is recorded"}
            same = f"is the name of {what.get(before, f'one of the {before}')} as well"
            if other != name:
                same = f"differs from {other!r} by its case alone, which not every file system sees"
            raise ValueError(f"{field} = {name!r}: {same}; one of them needs another name")
