"""What nobody should write into a sweep, a command line or a Python call, and all that people do.

Every configuration ends in a sweep that is checked, or in a `ValueError` of ours; nothing compiles.
`make fuzz` tries them for long and prints what came of it:
`python -m tests.sweeps.fuzz MINUTES SEED`.
"""

import collections
import contextlib
import dataclasses
import decimal
import faulthandler
import io
import json
import operator
import random
import resource
import sys
import time
import traceback
from pathlib import Path

import hypothesis
import numpy as np
from hypothesis import strategies as st

import dynsim
import odes
import sweeps
from sweeps import cli
from sweeps.commands.table import COMMANDS, OF_PROBLEM, CommandOptions
from sweeps.language.fields import LanguageError, is_number
from sweeps.runner.config import config_of
from sweeps.runner.spec import Sweep, from_table
from sweeps.systems import registry
from sweeps.systems.experiment import experiment
from sweeps.systems.kinds import language

SETTINGS = {
    name: list(language().walk(language().assign({}, [("problem", name)])))
    for name in registry.BUILT_IN
}
"""Settings of the runs of each problem, as they are by default."""
THEORIES = {name: tuple(registry.theories(registry.system(name))) for name in SETTINGS}
READ = {
    name: [each.name for each in settings if is_number(each.value) and not each.shared]
    for name, settings in SETTINGS.items()
}
"""Axes of numbers."""
CHOSEN = {
    name: {
        each.name: [*each.field.words, *language().words(each.field)]
        for each in settings
        if each.path not in (("problem",), ("dtype",)) and not each.shared
    }
    for name, settings in SETTINGS.items()
}
"""Words by setting, where it has some."""
NUMBERS = (0, 1, 2, 3, 5, -1, 64, 10**6, 2**31, 2**32, 2**63, 10**20, 10**400)
FLOATS = (0.0, 0.1, 0.5, 1.0, 2.5, -1.0, 1 - 1e-9, 1e-300, 1e39, 1e308, float("inf"), float("nan"))
WORDS = ("", "a", "inf", "0.1", "false", "end", "loss", "simulation", "plain", "syn", "seed", "T")
NAMES = ("x" * 300, "x" * 300 + ".npz", "\0", "\0.csv", "/dev/null", ".", "a:b")
"""Of files that there cannot be."""


def deep(levels):
    """A list in a list in a list ..."""
    found = []
    for _ in range(levels):
        found = [found]
    return found


plain = st.one_of(
    *map(st.sampled_from, (NUMBERS, FLOATS, WORDS, NAMES)),
    st.sampled_from((40, 400)).map(deep),
    *(st.booleans(), st.text(max_size=4), st.integers(), st.floats()),
)
few = st.dictionaries(st.sampled_from(WORDS), plain, max_size=2)
value = st.one_of(plain, st.lists(plain, max_size=3), few)
"""What TOML can give for anything."""
ODD = [np.int64(3), np.float32(0.1), np.array(0.5), np.array([0.1, 0.2]), np.bool_(True)]
ODD += [decimal.Decimal("0.1"), 1 + 2j, b"x", object(), {1}, range(3), min]
python = st.one_of(
    *(value, st.none(), st.sampled_from(ODD)),
    plain.filter(lambda x: isinstance(x, int | float) and abs(x) < 2**63).map(np.float64),
)
"""What Python can give besides."""
spaced = st.one_of(
    st.builds(
        lambda kind, a, b, n: {kind: [a, b, n]},
        st.sampled_from(("linspace", "logspace", "range", "magic")),
        plain,
        plain,
        st.sampled_from(NUMBERS),
    ),
    plain.map(lambda n: {"range": n}),
)


def names_of(problem):
    """Settings of a run, by their paths and the ends of these, and some that there are not."""
    ends = dict.fromkeys(end for each in SETTINGS[problem] for end in each.suffixes)
    return (*ends, "T", "lr", "magic")


right = st.lists(st.sampled_from((2, 4, 16)), min_size=1, max_size=3, unique=True)
seldom, often = st.integers(0, 3).map(lambda n: n == 0), st.integers(0, 2).map(lambda n: n == 0)
problems = st.sampled_from(tuple(SETTINGS))
time_points = st.sampled_from(("end", 5, [0, 1], [1, 0]))
keys = st.sampled_from((*(each.name for each in dataclasses.fields(Sweep)), "seed", "magic"))


def parts_of(problem, given):
    """Axes, wrong axes, settings and theories that a sweep is drawn from, `given` where anything
    goes: made once, as making them takes longer than drawing."""
    every = st.sampled_from(names_of(problem))
    numbers = st.dictionaries(st.sampled_from(READ[problem]), right, min_size=1, max_size=2)
    words = (
        st.fixed_dictionaries({name: st.lists(st.sampled_from(each), min_size=1, unique=True)})
        for name, each in CHOSEN[problem].items()
        if each
    )
    return (
        st.builds(operator.or_, numbers, st.one_of(st.just({}), *words)),
        st.dictionaries(every, st.one_of(spaced, given), max_size=2),
        st.dictionaries(every, given, max_size=2),
        st.sampled_from(THEORIES[problem]),
    )


def tables(given=value):
    """A sweep as TOML gives it: mostly right, and wrong in a few places."""
    parts = {name: parts_of(name, given) for name in SETTINGS}

    @st.composite
    def table(draw):
        problem = draw(problems)
        axes, wrong_axes, run, theory = parts[problem]
        made = {"axes": draw(wrong_axes if draw(seldom) else axes), "run": {"problem": problem}}
        if draw(often):
            made["run"] |= draw(run)
        made["record"] = ["loss"]
        if draw(seldom):
            made["theory"] = draw(theory)
        if draw(seldom):
            made["times"] = draw(time_points)
        if draw(often):
            made[draw(keys)] = draw(given)
        return made

    return table()


in_python = {
    name: st.dictionaries(st.sampled_from(names_of(name)), python, min_size=1, max_size=2)
    for name in SETTINGS
}


@st.composite
def runs(draw):
    """A run in Python, wrong in a setting or two."""
    problem = draw(problems)
    return {"problem": problem, **draw(in_python[problem])}


WORDS_OF_COMMANDS = (
    *((name, "") for name in COMMANDS),
    *((name, problem) for name in OF_PROBLEM for problem in registry.BUILT_IN),
)


def options_of(name, problem):
    """Options of a command, and settings of its runs, and some that there are not."""
    options = CommandOptions.of(name, problem)
    settings = names_of(problem or "yz") if options.has_run else ()
    return (*options.fields, *settings, "magic", "num_times")


OPTIONS = {
    each: st.lists(st.sampled_from(options_of(*each)), max_size=2) for each in WORDS_OF_COMMANDS
}
behind = st.lists(
    st.one_of(
        st.sampled_from(NUMBERS[:-1]).map(str),
        st.sampled_from(FLOATS).map(str),
        st.sampled_from(WORDS),
        st.text("abc01-=.é", max_size=4),
    ),
    max_size=2,
)


@st.composite
def lines(draw):
    """A command line with an option or two."""
    name, problem = draw(st.sampled_from(WORDS_OF_COMMANDS))
    words = [*name.split(), *problem.split()]
    for option in draw(OPTIONS[name, problem]):
        words.append(f"--{option.replace('_', '-')}")
        words += draw(behind)
    return words


class RefusedError(Exception):
    """A command line that was refused in a line of ours."""


def try_table(table):
    """Decode and check a table."""
    from_table(table).check()


def try_run(settings):
    """Check a run and a sweep over seeds of it; what is stored of it is JSON."""
    sweep = Sweep(experiment(**settings), {"seed": [0]}, record=("loss",))
    sweep.check()
    json.dumps(config_of(sweep))


def try_line(words):
    """Parse a command line; help and refusals are no failures."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            cli.parse(words)
    except SystemExit as stop:
        if not stop.code:
            return
        text = said.getvalue()
        if text.startswith("dynsim: ") and text.count("\n") == 1:
            raise RefusedError(text) from None
        raise


ROOMS = [Path(each.__file__).parent for each in (dynsim, odes, sweeps)]
SLOW = 10.0
"""Seconds of computing after which an answer counts as slow."""
MOST_MEMORY = 8 * 2**30
"""Bytes of addresses, of which JAX takes some."""
BYTES = 2000
"""Of chance behind an input: more than any takes."""
CLASSES = {
    "sweep files": (tables(), try_table),
    "sweeps in Python": (tables(python), try_table),
    "runs in Python": (runs(), try_run),
    "command lines": (lines(), try_line),
}
"""Classes of input: how they are drawn, and what tries one."""


def ours(error):
    """Whether an error is a `ValueError` that this project raises itself."""
    if type(error) not in (ValueError, LanguageError):
        return isinstance(error, RefusedError)
    raised = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return any(room in raised.parents for room in ROOMS)


def tried(name):
    """What tries an input of a class, and counts: how many were accepted, refused, or ended
    otherwise, and by what."""
    attempt = CLASSES[name][1]
    found = collections.Counter()

    def every(given):
        began = time.process_time()
        try:
            attempt(given)
            found["accepted"] += 1
        except (Exception, SystemExit) as error:
            if ours(error):
                found["refused"] += 1
                return
            found["not ours"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} at {where.filename.split('/')[-1]}:{where.lineno}"
            found[f"{place} ({str(error)[:60]!r}) by {repr(given)[:500]}"] += 1
        finally:
            seconds = time.process_time() - began
            if seconds > SLOW:
                found["slow"] += 1
                found[f"slow at {seconds:.0f} s by {repr(given)[:500]}"] += 1

    return every, found


SETTLED = hypothesis.settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.generate,),
)


def count(name, examples):
    """Try `examples` inputs of a class, always the same ones."""
    every, found = tried(name)
    settings = hypothesis.settings(SETTLED, max_examples=examples)
    settings(hypothesis.given(CLASSES[name][0])(every))()
    return found


def main(minutes, seed=0):
    """Try inputs of all classes for so long, each for as long as the others; print a line for
    each class, and what was bad."""
    faulthandler.enable()
    # What takes all memory ends in an error, not with the process.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.RLIM_INFINITY))
    heads, chance = ("accepted", "refused", "not ours", "slow"), random.Random(seed)
    print(f"{'class of input':<20}{'tried':>10}" + "".join(f"{each:>10}" for each in heads))
    bad = False
    for name, (drawn, _) in CLASSES.items():
        every, found = tried(name)
        # Inputs from bytes by chance: without hypothesis' own search, several times as many.
        once = SETTLED(hypothesis.given(drawn)(every)).hypothesis.fuzz_one_input
        ends = time.monotonic() + 60 * minutes / len(CLASSES)
        while time.monotonic() < ends:
            once(chance.randbytes(BYTES))
        numbers = [found[each] for each in heads]
        shown = "".join(f"{each:>10}" for each in (sum(numbers[:3]), *numbers))
        print(f"{name:<20}{shown}", flush=True)
        for key in (key for key in found if " at " in key):
            print(f"  {key}", flush=True)
            bad = True
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:])))
