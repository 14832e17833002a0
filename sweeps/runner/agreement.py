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
from sweeps.runner.store.records import ProgramRecord, changed_versions, json_values
from sweeps.runner.store.store import Store
from sweeps.runner.work import StaticValues, Work

MAX_RECOMPUTED = 4
"""Maximum number of stored runs to recompute."""
ROUNDING, AMPLIFIED, NUDGE = 64, 16, 4
"""Tolerance: `ROUNDING` units in the last place of the largest value of an array, plus `AMPLIFIED`
times the difference that a change of the numbers by `NUDGE` units makes."""
MAX_TOLERANCE = 1e-3
"""Maximum tolerance: an array in which rounding may grow beyond it is not compared."""
UNKNOWN = "no version and no method of the problem has changed: look at the rule and at `record`"


class OtherProgramError(StoreError):
    """Raised if stored runs at the `chosen` values of static axes belong to the program `known`,
    but this process compiles `mine`. The lines of `why` describe the changes."""

    def __init__(
        self, store: Store, chosen: Mapping[str, Any], known: ProgramRecord, mine: str, *why: str
    ) -> None:
        where = ", ".join(f"{name} = {value}" for name, value in chosen.items())
        programs = f"program {known.program[:SHORT]} -> {mine[:SHORT]}"
        self.chosen, self.known, self.mine = dict(chosen), known, mine
        self.why = (f"{programs}{f' ({where})' if where else ''}", *why)
        super().__init__(f"{store.name}: its runs were computed by different code", *self.why)


@dataclasses.dataclass(eq=False)
class ProgramCheck:
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
        self._programs: dict[StaticValues, str] = {}

    def program(self, chosen: Mapping[str, Any]) -> str:
        """Return the hash of the program for the `chosen` values of static axes. Raises
        `OtherProgramError` if stored runs belong to another program."""
        key = tuple(chosen.items())
        if key not in self._programs:
            self._programs[key] = self._compare(dict(chosen))
        return self._programs[key]

    def compare_all(self) -> tuple[int, list[OtherProgramError]]:
        """Return the number of programs that agree with this process, and errors for the others."""
        others: list[OtherProgramError] = []
        stored = list(self.stored())
        for chosen in stored:
            try:
                self.program(chosen)
            except OtherProgramError as error:
                others.append(error)
        return len(stored) - len(others), others

    def check(self, accept: str | None = None) -> None:
        """Raise `StoreError` if stored runs belong to another program. A user can accept the code
        of this process by passing the name that the error prints."""
        if self.alone:
            # Drop programs that were registered without any stored chunk.
            self.store.programs.keep(self.stored())
        _, others = self.compare_all()
        if not others:
            # The same command may be repeated after its name was accepted.
            if accept and not any(known.decided for known in self.store.programs.all()):
                raise StoreError(
                    f"accept_code = {accept}: no stored run was computed by different code; leave "
                    "it out"
                )
            return
        name = sha("".join(other.mine for other in others))[:SHORT]
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
        for other in others:
            self._register(other.chosen, other.known, other.mine, decided="accepted")
            self._programs[tuple(other.chosen.items())] = other.mine

    def check_worker(self, worker: str, number: int) -> None:
        """Raise `StoreError` if a worker has stored chunk `number` with other code than that of
        this process. All chunks of that code are removed."""
        chosen = self.sweep.static_values(self.store.layout.region(number))
        # There is nothing to compare if the worker reported a chunk that is not stored.
        if tuple(chosen.items()) in self._programs or not self.store.done()[number]:
            return
        try:
            self.program(chosen)
        except OtherProgramError as error:
            # Without the registered program, its chunks do not count.
            self.store.programs.keep(other for other in self.stored() if other != chosen)
            mine = self.identity.program(tuple(chosen.items()))
            self._register(chosen, None, mine, instead_of=error.known.program)
            self.store.chunks.remove_replaced()
            raise StoreError(
                f"{self.store.name}: worker {worker} runs different code from this process, as "
                "when a file was edited after the worker imported it. Its chunks were removed; "
                "restart the workers and run the same command again:",
                *(f"  {line}" for line in error.why),
            ) from None

    def confirm(self, chosen: Mapping[str, Any]) -> None:
        """Raise `OtherProgramError` if another process has since replaced the program."""
        known, mine = self.store.programs.get(chosen), self.program(chosen)
        if known and known.program != mine and not self.store.programs.get(chosen, mine):
            raise OtherProgramError(self.store, chosen, known, mine)

    def stored(self) -> Iterator[dict[str, Any]]:
        """Return the combinations of static values that have stored chunks."""
        return map(dict, self._chunks())

    def _chunks(self) -> dict[StaticValues, list[int]]:
        """Return the stored chunks, grouped by static values."""
        groups: dict[StaticValues, list[int]] = {}
        for number in np.flatnonzero(self.store.done()).tolist():
            chosen = self.sweep.static_values(self.store.layout.region(number))
            groups.setdefault(tuple(chosen.items()), []).append(number)
        return groups

    def _compare(self, chosen: dict[str, Any]) -> str:
        """Return the hash of this process's program if the registered one is equivalent: by its
        text, by a decision of the past, or by its numbers."""
        key = tuple(chosen.items())
        programs = self.store.programs
        known = programs.get(chosen)
        # The records of chunks also name their program, should its own record be lost.
        for number in [] if known else self._chunks().get(key, [])[:1]:
            record = self.store.chunks.record(number)
            if record.program:
                environment = self.store.chunks.environment(record.environment)
                platform = environment["device"].partition(":")[0]
                known = ProgramRecord(
                    self.store.id, json_values(chosen), record.program, platform, record.environment
                )
                if self.writes:
                    programs.put(known)
        if known is None and self.writes:
            mine = self.identity.program(key)
            if self._register(chosen, None, mine):
                return mine
            # Another process was faster.
            known = programs.get(chosen)
        if known is None:
            raise StoreError(f"{self.store.name}: does not say which program computed its runs")
        try:
            mine = self.identity.program(key, known.platform)
        except (ValueError, RuntimeError):
            # Programs with callbacks, as in solvers, cannot be lowered for an absent platform.
            mine = self.identity.program(key)
        if mine == known.program or programs.get(chosen, mine) is not None:
            return mine
        for registered in [known, *programs.all()]:
            theirs = self.store.chunks.environment(registered.environment)
            # Older stores do not have it.
            on_error = self.environment.get(output.ON_ERROR)
            same = theirs.get(output.ON_ERROR, on_error) == on_error
            same &= all(theirs.get(n, "") == self.environment.get(n, "") for n in output.DECISIVE)
            if registered.chosen == json_values(chosen) and same:
                # In the same environment, equal code would have equal text. An option of JAX also
                # changes that of the methods, which are not to blame then.
                options = {name: theirs[name] for name in output.OPTIONS if name in theirs}
                why = changed_versions(options, self.environment) or changed_versions(
                    theirs, self.environment
                )
                why = ", ".join(why) or UNKNOWN
                raise OtherProgramError(self.store, chosen, registered, mine, why)
        try:
            runs, difference = self._recompute(self._chunks().get(key, []))
        except ArithmeticError as error:
            theirs = self.store.chunks.environment(known.environment)
            why = (
                ", ".join(changed_versions(theirs, self.environment)),
                f"compared numerically: {error}",
            )
            raise OtherProgramError(self.store, chosen, known, mine, *why) from None
        self._register(chosen, known, mine, decided="numbers", runs=runs, difference=difference)
        return mine

    def _register(
        self, chosen: dict[str, Any], known: ProgramRecord | None, mine: str, **decision: Any
    ) -> bool:
        """Register the program of this process, or that it is equivalent to a `known` one; return
        False if another process has registered one in the meantime."""
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
        entry = (
            self.store.id,
            json_values(chosen),
            mine,
            platform,
            self.store.register_environment(),
        )
        same = {"same_as": known.program} if known else {}
        return self.store.programs.put(ProgramRecord(*entry, **same, **decision))

    def _recompute(self, chunks: Sequence[int]) -> tuple[int, float]:
        """Recompute some stored runs; return their number and the largest relative difference.
        Raises `ArithmeticError` if they differ, or if none can be compared."""
        epsilon = float(np.finfo(self.sweep.dtype).eps)
        rounding = ROUNDING * epsilon
        if self.sweep.method.adaptive:
            # Another version of a solver takes different steps.
            rtol = self.sweep.rtol or DEFAULT_TOLERANCES[self.sweep.dtype].rtol
            rounding = max(rounding, 10 * rtol)
        largest, runs = 0.0, 0
        for index in self._sample(chunks):
            stored = {
                name: self.store.select(name, [np.array([i]) for i in index], self.store.done())
                for name in self.store.names
                if name != CHECKPOINT
            }
            axes = {
                # A name alone does not define its value.
                axis.name: {axis.labels[i]: axis.values[i]} if axis.named else [axis.labels[i]]
                for dim, i in zip(self.sweep.dims, index, strict=True)
                for axis in dim.members
            }
            run = dataclasses.replace(self.sweep, axes=axes)
            results = []
            # How far rounding errors grow: twice more with all numbers off by a few units.
            for units in (0, NUDGE, -NUDGE):
                with precision(run.dtype):
                    work = Work(run, self.mesh, tile=1, nudge=units * epsilon)
                    region = (slice(0, 1),) * len(index)
                    results.append(work.compute(region, self.store.variables))
            again, *nudged = results
            if (again["status"] != stored["status"]).any():
                raise ArithmeticError("a stored run ends with a different status")
            comparisons = [
                relative_difference(
                    name, values, again[name], [other[name] for other in nudged], rounding
                )
                for name, values in stored.items()
                if name not in ("status", "first_bad_step")
            ]
            decisive = [difference for difference in comparisons if difference is not None]
            runs += bool(decisive)
            largest = max([largest, *decisive])
        if not runs:
            raise ArithmeticError(
                "no stored run can decide: they diverged, or amplify rounding too much"
            )
        return runs, largest

    def _sample(self, chunks: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the indices of a few runs with status OK in the array of all runs: the first and
        the last of a chunk, from the outermost chunks first."""
        remaining = MAX_RECOMPUTED
        for number in dict.fromkeys([*chunks[:1], *chunks[-1:], *chunks[: 4 * MAX_RECOMPUTED]]):
            region = self.store.layout.region(number)
            status = self.store.chunks.read("status", number)
            # Chunks at the end of an axis are padded.
            inside = status[tuple(slice(part.stop - part.start) for part in region)]
            good = np.argwhere(inside == Status.OK)
            for index in good[[0, -1][: min(len(good), remaining, 2)]] if len(good) else ():
                remaining -= 1
                yield tuple(part.start + int(i) for part, i in zip(region, index, strict=True))
            if not remaining:
                return


def relative_difference(
    name: str,
    stored: np.ndarray,
    again: np.ndarray,
    nudged: Sequence[np.ndarray],
    rounding: float,
) -> float | None:
    """Return the largest difference between stored and recomputed values, relative to the largest
    value; None if the `nudged` runs are too far apart for a comparison. Raises `ArithmeticError` if
    the difference exceeds `rounding` and the effect of the nudge."""
    old, new, *others = (np.asarray(values, np.float64) for values in (stored, again, *nudged))
    finite = np.isfinite(new)
    scale = float(np.abs(new[finite]).max(initial=0.0)) or 1.0

    def difference_of(values: np.ndarray) -> float:
        if not np.array_equal(values[~finite], new[~finite], equal_nan=True):
            return np.inf
        gap = np.abs(values - new)[finite].max(initial=0.0) / scale
        return float(gap) if np.isfinite(gap) else np.inf

    tolerance = rounding + AMPLIFIED * max(map(difference_of, others))
    if tolerance > MAX_TOLERANCE:
        return None
    if (difference := difference_of(old)) > tolerance:
        raise ArithmeticError(
            f"{name} of a stored run differs by {difference:.2g} of its largest value; rounding "
            f"explains at most {tolerance:.1g}"
        )
    return difference
