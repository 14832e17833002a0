"""The settings of a run: the meaning of names, and how settings combine.

A run is described by a table of the given settings, such as
`{"rule": {"kind": "adam", "eta": 0.1}}`. `sweeps.language.tree` builds objects from it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from sweeps.language.fields import (
    MISSING,
    Field,
    Kind,
    LanguageError,
    Table,
    allowed,
    check,
    check_module,
    closest,
    fold,
    is_array,
    is_branch,
    is_by_group,
    is_number,
    must_be,
)

Path: TypeAlias = tuple[str, ...]
"""The names on the way from a run to a setting."""
Pairs = list[tuple[str, Any]]
"""Ordered pairs of a setting's name and its value."""
Groups: TypeAlias = Path | None
"""Names of the groups of weights: () if only the weights know them, None if there are none."""


class Setting(NamedTuple):
    """A setting of a run.

    Attributes:
        path: path from the run.
        kinds: for each name in the path, the kind that has this field; empty for a group.
        field: the field of its value.
        value: given or default value; `MISSING` if it is required and not given.
        shared: whether this is the value of one group, taken from a value for all groups.
    """

    path: Path
    kinds: Path
    field: Field
    value: Any
    shared: bool

    @property
    def name(self) -> str:
        """The path, joined by dots."""
        return ".".join(self.path)

    @property
    def kind(self) -> str:
        """The word of the chosen kind; empty if the value does not choose one."""
        return self.value["kind"] if is_branch(self.value) else ""

    @property
    def ends(self) -> list[str]:
        """The path and its suffixes."""
        return [".".join(self.path[i:]) for i in range(len(self.path))]


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
            self._by_word.setdefault(fold(kind.word), []).append(kind)
        self._run = self._by_word[fold(root)][0]
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
        named = self._by_word.get(fold(text), [])
        if ":" in text:
            known = self._by_location.get(text) or self._others.get(text)
            named = [known or self._imported(text, path)]
        elif text and not named and (found := self._more(text)):
            named = [found]
        for kind in named:
            if {*field.bases} & {*kind.bases} and not kind.abstract:
                return kind
        words = self.words(field)
        reason = must_be(word, words, f"{allowed(field, words)}, or module:Name of your own")
        if named:
            bases = " or ".join(base.partition(":")[2] for base in field.bases)
            reason = f"is not a kind of {bases}; {reason}"
        raise LanguageError(path, reason, word)

    def _imported(self, word: str, path: str) -> Kind:
        check_module(word, path)
        from sweeps.language.describe import locate

        cls = locate(word, path)
        if not isinstance(cls, type) or not hasattr(cls, "__dataclass_fields__"):
            raise LanguageError(path, "must be a dataclass or an Equinox module", word)
        return self.kind_of(cls)

    def choice(self, setting: Setting, value: Any) -> Table:
        """Return the table for a value that chooses a kind, either a word or a table."""
        word = value["kind"] if is_branch(value) else value
        for kind in self.kinds:
            if kind.endings and {*kind.bases} & {*setting.field.bases}:
                field, endings, *others = kind.endings
                if str(word).endswith(tuple(endings)):
                    return {"kind": kind.word, field: word}
                if re.fullmatch(r"[^:]*\.[a-z]{2,4}", str(word)):
                    reason = f"must end in {' or '.join(endings)}, if it is a file"
                    reason = "; ".join((reason, *others))
                    raise LanguageError(setting.name, reason, word)
        return {"kind": self.find(setting.field, word, setting.name).word}

    def walk(self, given: Table) -> Iterator[Setting]:
        """Iterate over all settings of a run, with their values."""
        groups = self.run_defaults(given)[1]
        settings = self._settings(self.complete(given), self.root, (), (), groups)
        next(settings)  # skip the run itself
        return settings

    def complete(self, given: Table) -> Table:
        """Add the defaults that depend on the chosen kinds to the given settings."""
        run_defaults, groups = self.run_defaults(given)
        run: Table = {"kind": self._run.word}
        table = self._merged(self.root, run, {**run, **run_defaults}, groups, defaults=True)
        return self._merged(self.root, table, {**run, **given}, groups, defaults=True)

    def finished(self, given: Table) -> Table:
        """Return `complete(given)` after a check that nothing is missing.

        Raises:
            LanguageError: for a missing required setting, or an unknown group of the problem.
        """
        groups = self.run_defaults(given)[1]
        for path, _, field, value, _ in self.walk(given):
            if value is MISSING:
                about = f" ({field.doc})" if field.doc else ""
                reason = f"is missing{about}; must be {allowed(field, self.words(field))}"
                raise LanguageError(".".join(path), reason)
            closed = field.groups and groups != () and not field.named
            # A problem may have tables of its own.
            closed = closed and not self._defines_groups(path[0])
            if closed and is_by_group(value) and {*value} - {*(groups or ())}:
                reason = f"has groups {', '.join(groups)}" if groups else "has no groups"
                raise LanguageError(".".join(path), reason, value)
        return self.complete(given)

    def resolve(self, given: Table, name: str, value: object = MISSING) -> Setting:
        """Return the setting of a name: a path, or a unique suffix of one. `-`, `_`, `.`, blanks
        and case do not matter.

        Args:
            given: the settings so far, which determine the available settings.
            name: name of the setting.
            value: for error messages.

        Raises:
            LanguageError: if the name is unknown or ambiguous.
        """
        return self._one(self._names(given), name, value)

    def _one(self, names: "_Names", name: str, value: object) -> Setting:
        """Return the setting of a name; raises as `resolve`."""
        found = names.candidates(name)
        if len(found) == 1:
            return found[0]
        if found:
            reason = f"is ambiguous; write {' or '.join(each.name for each in found)}"
            raise LanguageError(name, reason, value)
        # A setting of all groups has no fields that are missing in a group.
        places = [each for each in names.settings if all(each.kinds)]
        for setting in sorted(places, key=lambda each: -len(each.path)):
            if others := self._kinds_with(setting, name):
                does = "does" if len(others) == 1 else "do"
                now = setting.kind or setting.name
                reason = f"{now} does not have it; {', '.join(others)} {does}"
                raise LanguageError(name, reason, value)
        hint = closest(name, [end for setting in names.settings for end in setting.ends])
        last = dict.fromkeys(setting.path[-1] for setting in names.settings)
        reason = f"is not a setting; {hint or 'there are ' + ', '.join(last)}"
        raise LanguageError(name, reason, value)

    def assign(self, given: Table, new: Iterable[tuple[str, object]]) -> Table:
        """Add further settings, by name or as tables, to the given ones.

        The order of the added settings does not matter: kinds are chosen first. If a part's kind
        changes, fields that both kinds inherit from the same class keep their values.

        Raises:
            LanguageError: for an unknown name, an invalid value, a setting that is given twice, or
                a number in place of a schedule.
        """
        left = [pair for name, value in new for pair in flattened(name, value)]
        seen: dict[Path, str] = {}
        while left:
            names = self._names(given)
            found = [(names.candidates(name), name, value) for name, value in left]
            clear = [(each[0], name, value) for each, name, value in found if len(each) == 1]
            kinds = [each for each in clear if chooses_kind(each[0].field, each[2])]
            if not kinds:
                break
            first = min(kinds, key=lambda each: len(each[0].path))
            left.remove(first[1:])
            given = self._assigned(given, *first, seen)
        # The groups of weights depend on the problem, such as its number of layers.
        names = self._names(given)
        found = [(names.candidates(name), name, value) for name, value in left]
        first = [(s[0], name, value) for s, name, value in found if self._is_of_problem(s)]
        for each in sorted(first, key=lambda each: len(each[0].path)):
            given = self._assigned(given, *each, seen)
        if first:
            names = self._names(given)
        rest = [
            (self._one(names, name, value), name, value)
            for each, name, value in found
            if not self._is_of_problem(each)
        ]
        for each in sorted(rest, key=lambda each: len(each[0].path)):
            given = self._assigned(given, *each, seen)
        return given

    def _assigned(
        self, given: Table, setting: Setting, name: str, value: object, seen: dict[Path, str]
    ) -> Table:
        path, kinds, field, old, _ = setting
        if path in seen:
            raise LanguageError(name, f"is given twice, first as {seen[path]}", value)
        seen[path] = name
        if chooses_kind(field, value):
            new = self.choice(setting, value)
        else:
            if is_branch(old) and is_number(value) and path[:-1] not in seen:
                kind = self.find(field, old["kind"], setting.name)
                for inside in (n for n, f in kind.fields.items() if "number" in f.types):
                    reason = f"would replace {kind.word}; did you mean {setting.name}.{inside}?"
                    raise LanguageError(name, reason, value)
            new = check(field, value, setting.name, self.words(field))
        for part, kind in zip(reversed(path), reversed(kinds), strict=True):
            new = {"kind": kind, part: new} if kind else {part: new}
        return self._merged(self.root, given, new, self.run_defaults(given)[1])

    def _is_of_problem(self, candidates: list[Setting]) -> bool:
        """Return whether a name means one setting, of a part of the run whose kinds have groups."""
        return len(candidates) == 1 and self._defines_groups(candidates[0].path[0])

    def _defines_groups(self, part: str) -> bool:
        """Return whether the kinds of a part of the run have groups of weights."""
        bases = {*self._run.fields[part].bases}
        return any(kind.groups and bases & {*kind.bases} for kind in self.kinds)

    def _names(self, given: Table) -> "_Names":
        return _Names(self.walk(given), open_groups=self.run_defaults(given)[1] == ())

    def _kinds_with(self, setting: Setting, name: str) -> list[str]:
        """Return the words of the kinds that have a setting of this name."""
        words = [] if setting.shared else self.words(setting.field, packages=False)
        place = setting.field, setting.path, setting.kinds, ()
        inside = {word: _Names(self._settings({"kind": word}, *place)) for word in words}
        return [word for word in words if inside[word].candidates(name)]

    def run_defaults(self, given: Table) -> tuple[Table, Groups]:
        """Return the run defaults and the groups of the kinds that a run's fields choose."""
        defaults: Table = {}
        groups: Groups = ()
        for name, field in self._run.fields.items():
            part = given.get(name, field.default)
            if is_branch(part):
                kind = self.find(field, part["kind"], name)
                defaults |= kind.run_defaults
                if groups == ():
                    groups = None if kind.groups is None else tuple(kind.groups)
                    if groups == () and kind.location not in self._by_location:
                        groups = self._groups(self, field, part)
        return defaults, groups

    def _merged(
        self, field: Field, old: Any, new: Any, groups: Groups, *, defaults: bool = False
    ) -> Any:
        """Merge a value with the parts of the old one that it does not replace.

        Args:
            field: field of the values.
            old: the old value; None if there is none.
            new: the value that takes precedence.
            groups: groups into which to split an old value for all groups.
            defaults: whether to merge `new` with defaults if there is no old value.
        """
        if field.groups and is_by_group(new):
            each = old if is_by_group(old) else {}
            if old is not None and not each:
                each = dict.fromkeys(groups or (), old)
            split = {g: self._merged(field.one, each.get(g), v, groups) for g, v in new.items()}
            return {**each, **split}
        if not is_branch(new):
            return new
        kind = self.find(field, new["kind"], "kind")
        kept: dict[str, Any] = {}
        if is_branch(old):
            before = self.find(field, old["kind"], "kind")
            both = [name for name in old if name in kind.fields]
            if before is not kind:
                both = [name for name in both if before.fields[name].declared in kind.bases]
            kept = {name: old[name] for name in both}
        table = {"kind": kind.word, **kept}
        for name in [name for name in new if name != "kind"]:
            if name not in kind.fields:
                raise LanguageError(name, f"is not a field of {kind.word}")
            inner = kind.fields[name]
            start = kept.get(name, inner.default if defaults else None)
            table[name] = self._merged(inner, start, new[name], groups, defaults=defaults)
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
        yield Setting(path, kinds, field, {**value, "kind": kind.word} if kind else value, shared)
        if kind:
            for name, inner in kind.fields.items():
                place = (*path, name), (*kinds, kind.word), groups
                part = value.get(name, MISSING if inner.required else inner.default)
                yield from self._settings(part, inner, *place, shared)
        if field.groups:
            split = is_by_group(value)
            names = () if field.named or not groups else groups
            each = dict.fromkeys(names) | value if split else dict.fromkeys(names, value)
            for group, part in each.items():
                place = (*path, group), (*kinds, ""), groups
                yield from self._settings(part, field.one, *place, shared or not split)


class _Names:
    """Looks up settings by name.

    Args:
        settings: all of them.
        open_groups: whether a group may have any name, because only the weights define them.
    """

    def __init__(self, settings: Iterable[Setting], open_groups: bool = False) -> None:
        self.settings, self._open_groups = list(settings), open_groups
        self._by_end: dict[str, list[tuple[str, Setting]]] = {}
        for setting in self.settings:
            for end in setting.ends:
                self._by_end.setdefault(fold(end), []).append((end, setting))

    def candidates(self, name: str) -> list[Setting]:
        """Return the settings that a name may mean. A full path takes precedence over a suffix, a
        value for all groups over that of one group, and an exact match over a similar one."""
        near = self._by_end.get(fold(name), [])
        ranks = [(end != each.name, each.shared, end != name) for end, each in near]
        if found := [
            each for rank, (_, each) in zip(ranks, near, strict=True) if rank == min(ranks)
        ]:
            return found
        head, _, group = name.rpartition(".")
        tables = self.candidates(head) if head else []
        if len(tables) == 1 and tables[0].field.groups and not is_branch(tables[0].value):
            path, kinds, field, *_ = tables[0]
            if not (self._open_groups or field.named):
                return []
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
        return _is_class(value)
    other = fold(value) in ("none", "inf", *map(fold, field.words))
    return "text" not in field.types and not other


def _is_class(name: str) -> bool:
    """Return whether module:Name is a class and not a function."""
    try:
        check_module(name, "")
        from sweeps.language.describe import locate

        return isinstance(locate(name, ""), type)
    except LanguageError:
        return False
