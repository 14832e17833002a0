"""The settings of a run: the meaning of names, and how settings combine.

A run is described by a table of settings, such as `{"rule": {"kind": "adam", "eta": 0.1}}`.
`sweeps.language.tree` builds objects from it.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from sweeps.language.fields import (
    MISSING,
    Field,
    Kind,
    LanguageError,
    Path,
    Setting,
    Table,
    Value,
    allowed,
    check,
    check_module,
    closest,
    is_array,
    is_branch,
    is_by_group,
    is_number,
    must_be,
    normalise,
)

Pairs = list[tuple[str, object]]
"""Ordered pairs of a setting's name and its value."""
Groups: TypeAlias = Path | None
"""Names of the groups of weights: () if only the weights know them, None if there are none."""


class Language:
    """The settings of all runs that can be described.

    Args:
        kinds: the classes that runs consist of.
        more: function that returns the kind of a word that a package registers, or None.
        others: function that returns registered words for subclasses of a class, module:name.
        groups: function that returns `Kind.groups` of a problem of another package, from the
            language, its field and its table.
        root: the word of the class of a run.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        more: Callable[[str], Kind | None] = lambda word: None,
        others: Callable[[str], Iterable[str]] = lambda base: (),
        groups: "Callable[[Language, Field, Table], Groups]" = lambda language, field, part: (),
        root: str = "experiment",
    ) -> None:
        self.kinds, self._more, self._registered = tuple(kinds), more, others
        self._groups = groups
        self._by_location = {kind.location: kind for kind in self.kinds}
        # Also caches classes that cannot be imported, such as those defined in functions.
        self._others: dict[str, Kind] = {}
        self.classes: dict[str, type] = {}
        self._by_word: dict[str, list[Kind]] = {}
        for kind in self.kinds:
            self._by_word.setdefault(normalise(kind.word), []).append(kind)
        self._run = self._by_word[normalise(root)][0]
        self.root = Field(bases=(self._run.location,))

    def rooted(self, kind: Kind) -> "Language":
        """Return a language with one more kind, which replaces the run as its root."""
        return Language([*self.kinds, kind], self._more, self._registered, self._groups, kind.word)

    def words(self, field: Field, packages: bool = True) -> list[str]:
        """Return the words of the kinds that a field allows, those of `packages` last."""
        fits = [k.word for k in self.kinds if not k.abstract and {*field.bases} & {*k.bases}]
        bases = field.bases if packages else ()
        return [*fits, *(word for base in bases for word in self._registered(base))]

    def kind_of(self, cls: type) -> Kind:
        """Return the kind of any class."""
        from sweeps.language.describe import describe, name_of

        if known := self._by_location.get(name_of(cls)):
            return known
        kind = describe(cls)
        if "kind" in kind.fields:
            name = f"{kind.location}.kind"
            raise LanguageError(name, "cannot be the name of a field; choose another one")
        self._others[kind.location], self.classes[kind.location] = kind, cls
        return kind

    def find(self, field: Field, word: object, path: str) -> Kind:
        """Return the kind that a word chooses for a field. Imports `module:Name`.

        Raises:
            LanguageError: for `path`, if the kind does not exist.
        """
        text = word if isinstance(word, str) else ""
        if ":" in text:
            kind = self._by_location.get(text) or self._others.get(text)
            if kind is None:
                cls = _import(text, path)
                if not isinstance(cls, type) or not hasattr(cls, "__dataclass_fields__"):
                    raise LanguageError(path, "must be a dataclass or an Equinox module", word)
                kind = self.kind_of(cls)
            kinds = [kind]
        else:
            kinds = self._by_word.get(normalise(text), [])
            if text and not kinds and (registered := self._more(text)):
                kinds = [registered]
        # A word may stand for classes of different fields.
        for kind in kinds:
            if {*field.bases} & {*kind.bases} and not kind.abstract:
                return kind
        words = self.words(field)
        reason = must_be(word, words, f"{allowed(field, words)}, or module:Name of your own")
        if kinds:
            bases = " or ".join(base.partition(":")[2] for base in field.bases)
            reason = f"is not a kind of {bases}; {reason}"
        raise LanguageError(path, reason, word)

    def choice(self, setting: Setting, value: Any) -> Table:
        """Return the table for a value that chooses a kind, either a word or a table."""
        word = value["kind"] if is_branch(value) else value
        for kind in self.kinds:
            if kind.endings and {*kind.bases} & {*setting.field.bases}:
                field, suffixes, *hints = kind.endings
                if str(word).endswith(tuple(suffixes)):
                    return {"kind": kind.word, field: word}
                if re.fullmatch(r"[^:]*\.[a-z]{2,4}", str(word)):
                    reason = f"must end in {' or '.join(suffixes)}, if it is a file"
                    raise LanguageError(setting.name, "; ".join((reason, *hints)), word)
        return {"kind": self.find(setting.field, word, setting.name).word}

    def walk(self, table: Table) -> Iterator[Setting]:
        """Iterate over all settings of a run, with their values."""
        groups = self.run_defaults(table)[1]
        settings = self._settings(self.complete(table), self.root, (), (), groups)
        next(settings)  # skip the run itself
        return settings

    def complete(self, table: Table) -> Table:
        """Add the defaults that depend on the chosen kinds."""
        run_defaults, groups = self.run_defaults(table)
        run: Table = {"kind": self._run.word}
        usual = self._merge(self.root, run, {**run, **run_defaults}, groups, defaults=True)
        return self._merge(self.root, usual, {**run, **table}, groups, defaults=True)

    def finished(self, table: Table) -> Table:
        """Return `complete(table)` after a check that nothing is missing.

        Raises:
            LanguageError: for a missing required setting, or an unknown group of the problem.
        """
        groups = self.run_defaults(table)[1]
        for path, _, field, value, _ in self.walk(table):
            if value is MISSING:
                about = f" ({field.doc})" if field.doc else ""
                reason = f"is missing{about}; must be {allowed(field, self.words(field))}"
                raise LanguageError(".".join(path), reason)
            # A problem may have tables of its own.
            closed = field.groups and not field.named and not self._has_groups(path)
            if closed and is_by_group(value) and {*value} - {*(groups or ())}:
                reason = f"has groups {', '.join(groups)}" if groups else "has no groups"
                raise LanguageError(".".join(path), reason, value)
        return self.complete(table)

    def resolve(
        self, table: Table, name: str, value: object = MISSING, settings: Sequence[Setting] = ()
    ) -> Setting:
        """Return the setting of a name: a path, or a unique suffix of one. `-`, `_`, `.`, blanks
        and case do not matter.

        Args:
            table: the settings so far, which determine the available settings.
            name: name of the setting.
            value: for error messages.
            settings: those of `walk(table)`, if known.

        Raises:
            LanguageError: if the name is unknown or ambiguous.
        """
        settings = settings or [*self.walk(table)]
        candidates = find_settings(settings, name)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            reason = f"is ambiguous; write {' or '.join(setting.name for setting in candidates)}"
            raise LanguageError(name, reason, value)
        # Perhaps another kind has it, that of an inner part first. A group that shares the value
        # of all groups has no kind of its own to change.
        parts = [part for part in settings if all(part.kinds) and not part.shared]
        for part in sorted(parts, key=lambda part: -len(part.path)):
            kinds = []
            for word in self.words(part.field, packages=False):
                inside = self._settings({"kind": word}, part.field, part.path, part.kinds, None)
                if find_settings([*inside], name):
                    kinds.append(word)
            if kinds:
                others = f"{', '.join(kinds)} {'does' if len(kinds) == 1 else 'do'}"
                reason = f"{part.kind or part.name} does not have it; {others}"
                raise LanguageError(name, reason, value)
        hint = closest(name, [suffix for setting in settings for suffix in setting.suffixes])
        last = dict.fromkeys(setting.path[-1] for setting in settings)
        reason = f"is not a setting; {hint or 'there are ' + ', '.join(last)}"
        raise LanguageError(name, reason, value)

    def assign(self, table: Table, new: Iterable[tuple[str, object]]) -> Table:
        """Add further settings, by name or as tables, to those of a table.

        The order of the added settings does not matter: kinds are chosen first. If a part's kind
        changes, fields that both kinds inherit from the same class keep their values.

        Raises:
            LanguageError: for an unknown name, an invalid value, a setting that is given twice, or
                a number in place of a schedule.
        """
        left = [pair for name, value in new for pair in flattened(name, value)]
        aliases: dict[Path, str] = {}

        # Kinds first, the outermost before the others: they decide which settings there are.
        while True:
            settings = [*self.walk(table)]
            matches = [(find_settings(settings, name), name, value) for name, value in left]
            clear = [(s[0], name, value) for s, name, value in matches if len(s) == 1]
            kinds = [(s, name, value) for s, name, value in clear if chooses_kind(s.field, value)]
            if not kinds:
                break
            first = min(kinds, key=lambda kind: len(kind[0].path))
            table = self._with_values(table, [first], aliases)
            left.remove(first[1:])

        # Then those of the problem: its groups of weights may depend on its number of layers.
        if of_problem := [(s, n, v) for s, n, v in clear if self._has_groups(s.path)]:
            table = self._with_values(table, of_problem, aliases)
            settings = [*self.walk(table)]
        for _, name, value in of_problem:
            left.remove((name, value))
        rest = [(self.resolve(table, *pair, settings), *pair) for pair in left]
        return self._with_values(table, rest, aliases)

    def _with_values(
        self, table: Table, values: list[tuple[Setting, str, object]], aliases: dict[Path, str]
    ) -> Table:
        """Return a table with more settings; `aliases` collects the names that stand for them."""
        for setting, name, value in sorted(values, key=lambda entry: len(entry[0].path)):
            path, kinds, field, old, _ = setting
            if path in aliases:
                raise LanguageError(name, f"is given twice, first as {aliases[path]}", value)
            if chooses_kind(field, value):
                new: Value = self.choice(setting, value)
            else:
                # A number may replace a schedule only together with the part that contains it.
                if is_branch(old) and is_number(value) and path[:-1] not in aliases:
                    kind = self.find(field, old["kind"], setting.name)
                    for inside in (n for n, f in kind.fields.items() if "number" in f.types):
                        reason = f"would replace {kind.word}; did you mean {setting.name}.{inside}?"
                        raise LanguageError(name, reason, value)
                new = check(field, value, setting.name, self.words(field))
            aliases[path] = name
            for part, kind in zip(reversed(path), reversed(kinds), strict=True):
                new = {"kind": kind, part: new} if kind else {part: new}
            table = self._merge(self.root, table, new, self.run_defaults(table)[1])
        return table

    def _has_groups(self, path: Path) -> bool:
        """Return whether a path leads into a part of the run, such as the problem, whose kinds have
        groups of weights."""
        bases = {*self._run.fields[path[0]].bases}
        return any(kind.groups and bases & {*kind.bases} for kind in self.kinds)

    def run_defaults(self, table: Table) -> tuple[Table, Groups]:
        """Return the run defaults and the groups of the kinds that a run's fields choose."""
        defaults: Table = {}
        groups: Groups = ()
        for name, field in self._run.fields.items():
            part = table.get(name, field.default)
            if is_branch(part):
                kind = self.find(field, part["kind"], name)
                defaults |= kind.run_defaults
                if groups == ():
                    groups = None if kind.groups is None else tuple(kind.groups)
                    if groups == () and kind.location not in self._by_location:
                        groups = self._groups(self, field, part)
        return defaults, groups

    def _merge(
        self, field: Field, old: Any, new: Any, groups: Groups, *, defaults: bool = False
    ) -> Any:
        """Merge a value with the parts of the old one, if any, that it does not replace; with
        `defaults`, also with those of fields that have no old value."""
        if field.groups and is_by_group(new):
            # An old value for all groups becomes one for each.
            by_group = old if is_by_group(old) else {}
            if old is not None and not by_group:
                by_group = dict.fromkeys(groups or (), old)
            both = {g: self._merge(field.one, by_group.get(g), v, groups) for g, v in new.items()}
            return {**by_group, **both}
        if not is_branch(new):
            return new
        kind = self.find(field, new["kind"], "kind")
        table: Table = {"kind": kind.word}
        if is_branch(old):
            # Of another kind, only fields that both inherit from the same class remain.
            before = self.find(field, old["kind"], "kind")
            for name in (name for name in old if name in kind.fields):
                if before is kind or before.fields[name].declared in kind.bases:
                    table[name] = old[name]
        for name in (name for name in new if name != "kind"):
            if name not in kind.fields:
                raise LanguageError(name, f"is not a field of {kind.word}")
            inner = kind.fields[name]
            start = table.get(name, inner.default if defaults else None)
            table[name] = self._merge(inner, start, new[name], groups, defaults=defaults)
        return table

    def _settings(
        self,
        value: Any,
        field: Field,
        path: Path,
        kinds: Path,
        groups: Groups,
        shared: bool = False,
    ) -> Iterator[Setting]:
        """Yield a setting, and the settings inside its value."""
        kind = self.find(field, value["kind"], ".".join(path)) if is_branch(value) else None
        # If only the weights know the groups, any name may be one.
        field = field._replace(named=field.named or (field.groups and groups == ()))
        yield Setting(path, kinds, field, {**value, "kind": kind.word} if kind else value, shared)
        if kind:
            for name, inner in kind.fields.items():
                part = value.get(name, MISSING if inner.required else inner.default)
                place = (*path, name), (*kinds, kind.word), groups
                yield from self._settings(part, inner, *place, shared)
        if field.groups:
            split = is_by_group(value)
            names = () if field.named else groups or ()
            parts = dict.fromkeys(names) | value if split else dict.fromkeys(names, value)
            for group, part in parts.items():
                place = (*path, group), (*kinds, ""), groups
                yield from self._settings(part, field.one, *place, shared or not split)


def find_settings(settings: Sequence[Setting], name: str) -> list[Setting]:
    """Return the settings that a name may mean. A full path takes precedence over a suffix, a value
    for all groups over that of one group, and an exact match over a similar one."""
    ranks = [
        ((suffix != setting.name, setting.shared, suffix != name), setting)
        for setting in settings
        # Most settings have another last name, which is faster to compare.
        if normalise(name).endswith(normalise(setting.path[-1]))
        for suffix in setting.suffixes
        if normalise(suffix) == normalise(name)
    ]
    if ranks:
        best = min(rank for rank, _ in ranks)
        return [setting for rank, setting in ranks if rank == best]
    # A group that has no value of its own yet, such as eta.W0.
    head, _, group = name.rpartition(".")
    tables = find_settings(settings, head) if head else []
    if len(tables) == 1 and tables[0].field.named and not is_branch(tables[0].value):
        path, kinds, field, *_ = tables[0]
        return [Setting((*path, group), (*kinds, ""), field.one, None, shared=True)]
    return []


def flattened(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the individual settings of a table, by dotted name."""
    if name.endswith(".kind"):
        yield name.removesuffix(".kind"), {"kind": value}
    elif is_array(value) or not isinstance(value, Mapping):
        yield name, value
    else:
        for part, inside in value.items():
            yield from flattened(f"{name}.{part}", inside)


def chooses_kind(field: Field, value: object) -> bool:
    """Return whether a value chooses a kind, rather than being a number, a word or text."""
    if not field.bases or not isinstance(value, str):
        return bool(field.bases) and is_branch(value)
    if "function" in field.types and ":" in value:
        # Both classes and functions are written as module:Name.
        with contextlib.suppress(LanguageError):
            return isinstance(_import(value, ""), type)
        return False
    other = normalise(value) in ("none", "inf", *map(normalise, field.words))
    return "text" not in field.types and not other


def _import(name: str, path: str) -> object:
    check_module(name, path)
    # This import takes as long as that of JAX.
    from sweeps.language.describe import locate

    return locate(name, path)
