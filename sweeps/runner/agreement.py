"""Checks that stored runs belong to the program that this process compiles.

Only then is a store resumed, reused or returned. Programs with equal text agree. Different versions
of libraries, devices and processors lower the same code to different text; then a few stored runs
are recomputed and their numbers are compared. The tolerance for rounding is measured with runs
whose numbers are changed by a few units in the last place.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from dynsim import Status
from dynsim.precision import precision
from odes.solver.tolerances import DEFAULT_TOLERANCES
from sweeps import output
from sweeps.runner.program.identity import Identity
from sweeps.runner.store import CHECKPOINT, SHORT, Report, StoreError, sha
from sweeps.runner.store.records import Registered, differences, plain
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

FEW = 4
"""Maximum number of stored runs to recompute."""
ROUNDING, CARRIED = 64, 16
"""Tolerance in units in the last place of the largest value of an array, plus `CARRIED` times the
difference that a change of the numbers by `NUDGE` units makes."""
NUDGE = 4
UNKNOWN = "no version and no method of the problem has changed: look at the rule and at `record`"
LARGEST = 1e-3
"""Maximum tolerance: an array in which rounding may grow beyond it is not compared."""


class OtherProgramError(StoreError):
    """Raised if stored runs at the `chosen` values of static axes belong to the program `known`,
    but this process compiles `mine`. The lines of `why` describe the changes."""

    def __init__(
        self, store: Store, chosen: Mapping[str, Any], known: Registered, mine: str, *why: str
    ) -> None:
        where = ", ".join(f"{name} = {value}" for name, value in chosen.items())
        programs = f"program {known.program[:SHORT]} -> {mine[:SHORT]}"
        self.chosen, self.known, self.mine = dict(chosen), known, mine
        self.why = (f"{programs}{f' ({where})' if where else ''}", *why)
        super().__init__(f"{store.name}: its runs were computed by different code", *self.why)


@dataclasses.dataclass(eq=False)
class Agreement:
    """Compares the programs of a store with those of this process, on its devices and in its
    environment. `alone`: whether no other process can be computing runs of the store. `writes`:
    whether programs and decisions are recorded; a reused store is only read. `report` is called
    with a line for each decision that does not follow from equal text."""

    store: Store
    identity: Identity
    mesh: Mesh
    environment: Mapping[str, str]
    _: dataclasses.KW_ONLY
    alone: bool = True
    writes: bool = True
    report: Report | None = None

    def __post_init__(self) -> None:
        self.sweep = self.identity.sweep
        self._found: dict[tuple[tuple[str, Any], ...], str] = {}

    def of(self, chosen: Mapping[str, Any]) -> str:
        """Return the hash of the program for the `chosen` values of static axes. Raises
        `OtherProgramError` if stored runs belong to another program."""
        key = tuple(chosen.items())
        if key not in self._found:
            self._found[key] = self._agreed(dict(chosen))
        return self._found[key]

    def knows(self, chosen: Mapping[str, Any]) -> bool:
        """Return whether the program at these values has been compared."""
        return tuple(chosen.items()) in self._found

    def compared(self) -> tuple[int, list[OtherProgramError]]:
        """Return the number of programs that agree with this process, and errors for the others."""
        others: list[OtherProgramError] = []
        stored = list(self.stored())
        for chosen in stored:
            try:
                self.of(chosen)
            except OtherProgramError as error:
                others.append(error)
        return len(stored) - len(others), others

    def check(self, accept: str | None = None) -> None:
        """Raise `StoreError` if stored runs belong to another program. A user can accept the code
        of this process by passing the name that the error prints."""
        if self.alone:
            # Drop programs that were registered without any stored chunk.
            self.store.programs.keep(self.stored())
        _, others = self.compared()
        if not others:
            # The same command may be repeated after its name was accepted.
            if accept and not any(each.decided for each in self.store.programs.all()):
                raise StoreError(
                    f"accept_code = {accept}: no stored run was computed by different code; leave "
                    "it out"
                )
            return
        name = sha("".join(each.mine for each in others))[:SHORT]
        if accept != name:
            more = f"  and {len(others) - 1} more" if len(others) > 1 else ""
            raise StoreError(
                f"{self.store.name}: the stored runs were computed by different code",
                *(f"  {line}" for line in others[0].why),
                *filter(None, [more, accept and f"  accept_code = {accept}: the name is {name}"]),
                "Nothing was written. To resume, undo the change. To keep both "
                "results, choose another folder; --reuse copies the runs whose program is the "
                "same. If you know that both versions compute the same numbers, accept this one by "
                f"name: --accept-code {name} (in Python: accept_code={name!r}).",
            )
        for each in others:
            self._note(each.chosen, each.known, each.mine, decided="accepted")
            self._found[tuple(each.chosen.items())] = each.mine

    def replace(self, found: OtherProgramError) -> None:
        """Register the program of this process instead of a worker's, whose chunks are removed."""
        self.store.programs.keep(c for c in self.stored() if c != found.chosen)
        mine = self.identity.program(tuple(found.chosen.items()))
        self._note(found.chosen, None, mine, instead_of=found.known.program)
        self.store.chunks.take_back()

    def confirm(self, chosen: Mapping[str, Any]) -> None:
        """Raise `OtherProgramError` if another process has since replaced the program."""
        known, mine = self.store.programs.get(chosen), self.of(chosen)
        if known and known.program != mine and not self.store.programs.get(chosen, mine):
            raise OtherProgramError(self.store, chosen, known, mine)

    def stored(self) -> Iterator[dict[str, Any]]:
        """Return the combinations of static values that have stored chunks."""
        return map(dict, self._chunks())

    def _chunks(self) -> dict[tuple[tuple[str, Any], ...], list[int]]:
        """Return the stored chunks, grouped by static values."""
        found: dict[tuple[tuple[str, Any], ...], list[int]] = {}
        for number in np.flatnonzero(self.store.done()).tolist():
            chosen = self.sweep.static_values(self.store.layout.region(number))
            found.setdefault(tuple(chosen.items()), []).append(number)
        return found

    def _agreed(self, chosen: dict[str, Any]) -> str:
        programs = self.store.programs
        known = programs.get(chosen) or self._of_a_chunk(chosen)
        if known is None and self.writes:
            mine = self.identity.program(tuple(chosen.items()))
            if self._note(chosen, None, mine):
                return mine
            known = programs.get(chosen)
        if known is None:
            raise StoreError(f"{self.store.name}: does not say which program computed its runs")
        try:
            mine = self.identity.program(tuple(chosen.items()), known.platform)
        except (ValueError, RuntimeError):
            # Programs with callbacks, as in solvers, cannot be lowered for an absent platform.
            mine = self.identity.program(tuple(chosen.items()))
        if mine == known.program or programs.get(chosen, mine) is not None:
            return mine
        for each in [known, *programs.all()]:
            theirs = self.store.chunks.environment(each.environment)
            # Older stores do not have it.
            on_error = self.environment.get(output.ON_ERROR)
            same = theirs.get(output.ON_ERROR, on_error) == on_error
            same &= all(theirs.get(n, "") == self.environment.get(n, "") for n in output.DECISIVE)
            if each.chosen == plain(chosen) and same:
                # In the same environment, equal code would have equal text. An option of JAX also
                # changes that of the methods, which are not to blame then.
                options = {name: theirs[name] for name in output.OPTIONS if name in theirs}
                why = differences(options, self.environment) or differences(
                    theirs, self.environment
                )
                why = ", ".join(why) or UNKNOWN
                raise OtherProgramError(self.store, chosen, each, mine, why)
        try:
            chunks = self._chunks().get(tuple(chosen.items()), [])
            runs, difference = self._by_numbers(chunks)
        except ArithmeticError as error:
            theirs = self.store.chunks.environment(known.environment)
            why = ", ".join(differences(theirs, self.environment)), f"compared numerically: {error}"
            raise OtherProgramError(self.store, chosen, known, mine, *why) from None
        self._note(chosen, known, mine, decided="numbers", runs=runs, difference=difference)
        return mine

    def _of_a_chunk(self, chosen: dict[str, Any]) -> Registered | None:
        """Recover the lost program record of a combination from its first chunk."""
        for number in self._chunks().get(tuple(chosen.items()), [])[:1]:
            record = self.store.chunks.record(number)
            if record.program:
                made = self.store.chunks.environment(record.environment)
                platform = made["device"].partition(":")[0]
                known = Registered(
                    self.store.id, plain(chosen), record.program, platform, record.environment
                )
                if self.writes:
                    self.store.programs.put(known)
                return known
        return None

    def _note(
        self, chosen: dict[str, Any], known: Registered | None, mine: str, **decision: Any
    ) -> bool:
        """Register the program of this process, or that it is equivalent to a `known` one."""
        if known is not None and self.report:
            how = (
                f"{decision['runs']} stored runs, recomputed, agree to within "
                f"{decision['difference']:.1g} of the largest value"
                if decision["decided"] == "numbers"
                else "you accepted it by name"
            )
            pair = f"{known.program[:SHORT]} -> {mine[:SHORT]}"
            self.report(f"{self.store.name}: resuming with a different program ({pair}): {how}")
        if not self.writes:
            return True
        self.store.check()
        platform = self.identity.platform if known is None else known.platform
        about = (self.store.id, plain(chosen), mine, platform, self.store.noted())
        same = {"same_as": known.program} if known else {}
        return self.store.programs.put(Registered(*about, **same, **decision))

    def _by_numbers(self, chunks: Sequence[int]) -> tuple[int, float]:
        """Recompute some stored runs; return their number and the largest relative difference.
        Raises `ArithmeticError` if they differ, or if none can be compared."""
        largest, runs = 0.0, 0
        for cell in self._cells(chunks):
            stored = {
                name: self.store.select(name, [np.array([i]) for i in cell], self.store.done())
                for name in self.store.names
                if name != CHECKPOINT
            }
            again, *nudged = (self._again(cell, sign * NUDGE) for sign in (0, 1, -1))
            if (again["status"] != stored["status"]).any():
                raise ArithmeticError("a stored run ends with a different status")
            found = [
                compared(name, values, again[name], [each[name] for each in nudged], self._rounding)
                for name, values in stored.items()
                if name not in ("status", "first_bad_step")
            ]
            decided = [each for each in found if each is not None]
            runs += bool(decided)
            largest = max([largest, *decided])
        if not runs:
            raise ArithmeticError(
                "no stored run can decide: they diverged, or amplify rounding too much"
            )
        return runs, largest

    @property
    def _rounding(self) -> float:
        """The relative tolerance for rounding."""
        own = ROUNDING * float(np.finfo(self.sweep.dtype).eps)
        if not self.sweep.method.adaptive:
            return own
        # Another version of a solver takes different steps.
        return max(own, 10 * (self.sweep.rtol or DEFAULT_TOLERANCES[self.sweep.dtype].rtol))

    def _cells(self, chunks: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the indices of a few runs with status OK in the array of all runs."""
        left = FEW
        for number in dict.fromkeys([*chunks[:1], *chunks[-1:], *chunks[: 4 * FEW]]):
            region = self.store.layout.region(number)
            status = self.store.chunks.read("status", number)
            inside = status[tuple(slice(part.stop - part.start) for part in region)]
            good = np.argwhere(inside == Status.OK)
            for cell in good[[0, -1][: min(len(good), left, 2)]] if len(good) else ():
                left -= 1
                yield tuple(part.start + int(i) for part, i in zip(region, cell, strict=True))
            if not left:
                return

    def _again(self, cell: tuple[int, ...], nudge: int) -> dict[str, np.ndarray]:
        """Return the arrays of a run whose numbers are changed by `nudge` units in the last
        place."""
        axes = {
            # A name alone does not define its value.
            axis.name: {axis.labels[i]: axis.values[i]} if axis.named else [axis.labels[i]]
            for dim, i in zip(self.sweep.dims, cell, strict=True)
            for axis in dim.members
        }
        one = dataclasses.replace(self.sweep, axes=axes)
        with precision(one.dtype):
            change = nudge * float(np.finfo(one.dtype).eps)
            work = Work(one, self.mesh, tile=1, nudge=change)
            return work.compute((slice(0, 1),) * len(cell), self.store.variables)


def compared(
    name: str,
    stored: np.ndarray,
    again: np.ndarray,
    nudged: Sequence[np.ndarray],
    rounding: float,
) -> float | None:
    """Return the largest difference between stored and recomputed values, relative to the largest
    value; None if the `nudged` runs are too far apart for a comparison. Raises `ArithmeticError` if
    the difference exceeds `rounding` and the effect of the nudge."""
    old, new, *others = (np.asarray(each, np.float64) for each in (stored, again, *nudged))
    finite = np.isfinite(new)
    scale = float(np.abs(new[finite]).max(initial=0.0)) or 1.0

    def apart(one: np.ndarray) -> float:
        if not np.array_equal(one[~finite], new[~finite], equal_nan=True):
            return np.inf
        gap = np.abs(one - new)[finite].max(initial=0.0) / scale
        return float(gap) if np.isfinite(gap) else np.inf

    allowed = rounding + CARRIED * max(map(apart, others))
    if allowed > LARGEST:
        return None
    if (difference := apart(old)) > allowed:
        raise ArithmeticError(
            f"{name} of a stored run differs by {difference:.2g} of its largest value; rounding "
            f"explains at most {allowed:.1g}"
        )
    return difference
