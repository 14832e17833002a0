"""Does the default test suite notice a single wrong sign, factor, boundary or index?

Draws mutations of the source by a seed, runs two minutes of the default tests that execute the
mutated line, nearest first, and prints how many were killed, by folder:

    make mutants                     # 200 mutations, seed 0
    make mutants COUNT=50 SEED=3
    make mutants MUTATE=odes/joma    # of one folder

Each meets the tests of `make test` first, and then those of `make test-more`. Results go to
out/mutants, and a run that was interrupted continues from them. Mutations that no test could notice
are listed in `.ci/equivalent.csv`, each with the reason, and counted apart.
mutmut leaves out decorated functions, here the jitted ones, and cosmic-ray runs the whole suite for
each mutation; hence this script.
"""

import argparse
import collections
import concurrent.futures
import csv
import functools
import hashlib
import itertools
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from coverage import CoverageData
from mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out" / "mutants"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m"]
LEVELS = {"test": "not full and not more", "test-more": "more and not full"}
ROOMS = ("dynsim", "odes", "sweeps", "papers")
READS = "tests/test_architecture.py"
"""Tests that read all of the source, which coverage does not see."""
# Python recognises compiled files by second and size, which a mutation may leave as they were.
ENVIRONMENT = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}


class Selection:
    """Which test files execute a line, and how long they take."""

    def __init__(self, tests: str) -> None:
        files = [*self._python(*ROOMS, "tests"), ROOT / "pyproject.toml"]
        content = tests.encode() + b"".join(file.read_bytes() for file in files)
        self.digest = hashlib.sha256(content).hexdigest()[:16]
        self.data, junit = OUT / f"{self.digest}.coverage", OUT / f"{self.digest}.xml"
        if not (self.data.exists() and junit.exists()):
            self._measure(tests, junit)
        self.coverage = CoverageData(str(self.data))
        self.coverage.read()
        self.seconds: collections.Counter[str] = collections.Counter()
        for case in ElementTree.parse(junit).iter("testcase"):
            # A file that is skipped as a whole has no name there.
            if name := case.attrib["classname"]:
                self.seconds[self._file(name)] += float(case.attrib["time"])

    def _measure(self, tests: str, junit: Path) -> None:
        print(f"measuring which lines the default tests of {tests} execute", flush=True)
        OUT.mkdir(parents=True, exist_ok=True)
        rooms = [f"--cov={room}" for room in ROOMS]
        new = junit.with_suffix(".new")
        done = subprocess.run(
            [
                *PYTEST,
                "not full",
                tests,
                *rooms,
                "--cov-context=test",
                "--cov-report=",
                f"--junitxml={new}",
            ],
            cwd=ROOT,
            env=ENVIRONMENT | {"COVERAGE_FILE": str(self.data)},
        )
        # A test may fail because of the measurement alone, which takes a quarter of an hour: go on.
        # One that fails without it would notice each mutation, with its name in every line.
        if done.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            raise SystemExit(f"pytest ended with {done.returncode}")
        new.replace(junit)

    @staticmethod
    def _python(*folders: str) -> list[Path]:
        return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))

    @staticmethod
    def _file(classname: str) -> str:
        """Path of the file of a test, which may be in a class: `tests.odes.test_a.TestB`."""
        parts = classname.split(".")
        last = max(i for i, part in enumerate(parts) if part.startswith("test_"))
        return "/".join(parts[: last + 1]) + ".py"

    def files(self, mutation: Mutation, first: str, seconds: float) -> list[str]:
        """Test files for a mutation, for so many seconds but at least one: the one named `first`,
        then those in the folder that mirrors the mutation's, then the quickest. A program that JAX
        has compiled runs no Python, so a test may depend on a line that an earlier test of its file
        executed: whole files are selected."""
        by_line = self.coverage.contexts_by_lineno(str(ROOT / mutation.path))
        lines = range(mutation.first, mutation.line + 1)
        contexts = {context for line in lines for context in by_line.get(line, ())}
        if contexts == {""}:
            # What runs on import belongs to no test: every user of the module may notice.
            contexts = {context for each in by_line.values() for context in each}
        found = {context.split("::")[0] for context in contexts - {""}}
        own = Path(mutation.path)

        def order(file: str) -> tuple[bool, bool, bool, float]:
            test = Path(file)
            folder = test.relative_to("tests").parent.is_relative_to(own.parent)
            return file != first, test.stem != f"test_{own.stem}", not folder, self.seconds[file]

        ordered = sorted(found, key=order)
        until = itertools.accumulate(self.seconds[file] for file in ordered)
        within = [file for file, end in zip(ordered, until, strict=True) if end <= seconds]
        return within or ordered[:1]


def trial(
    mutation: Mutation, tree: Path, files: list[str], limit: float
) -> tuple[str, str] | tuple[None, None]:
    """The level and the test that fails when the mutation is in the copy of the project at `tree`,
    or None twice."""
    path = tree / mutation.path
    source = path.read_text()
    path.write_text(mutation.applied(source))
    try:
        for level, marks in LEVELS.items():
            done = subprocess.run(
                [*PYTEST, marks, "-n0", "-x", "-rfE", "--tb=no", *files],
                cwd=tree,
                env=ENVIRONMENT | {"PYTHONPATH": str(tree)},
                timeout=limit,
                capture_output=True,
                text=True,
            )
            if done.returncode == pytest.ExitCode.USAGE_ERROR:
                raise RuntimeError(done.stdout + done.stderr)
            if done.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
                return level, named[1] if named else f"(pytest ended with {done.returncode})"
    except subprocess.TimeoutExpired:
        return level, f"(not done after {limit:.0f} s)"
    finally:
        path.write_text(source)
    return None, None


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Reasons of the mutations that no test could notice."""
    with (Path(__file__).parent / "equivalent.csv").open(newline="") as rows:
        return {(e["path"], e["line"], e["old"], e["new"]): e["why"] for e in csv.DictReader(rows)}


def key(mutation: Mutation) -> tuple[str, str, str, str]:
    """What identifies a mutation when lines move."""
    return mutation.path, mutation.context, mutation.old, mutation.new


def rank(seed: int, mutation: Mutation) -> bytes:
    """Place of a mutation in the draw of a seed, which changes elsewhere in the source leave as it
    is."""
    return hashlib.sha256(repr((seed, *key(mutation), mutation.column)).encode()).digest()


def copied(folder: Path) -> Path:
    """A copy of the project as it is on disk, without what git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Try the drawn mutations; each result is printed and kept as it arrives."""
    places = [ROOT / place for place in args.mutate]
    sources = sorted({f for p in places for f in ([p] if p.is_file() else p.rglob("*.py"))})
    every = [m for path in sources for m in mutations(path, str(path.relative_to(ROOT)))]
    drawn = sorted(every, key=functools.partial(rank, args.seed))[: args.count]
    selection, known = Selection(args.tests), equivalents()
    kept = OUT / f"seed-{args.seed}.json"
    old = json.loads(kept.read_text()) if kept.exists() else {"results": []}
    # The test that killed a mutation the last time is likely to do so again.
    before = {tuple(result["key"]): result["killed_by"] or "" for result in old["results"]}
    state = selection.digest, args.seconds
    results = old["results"] if old.get("state") == [*state] else []
    done_before = {tuple(result["key"]) for result in results}
    with tempfile.TemporaryDirectory() as scratch:
        trees: queue.Queue[Path] = queue.Queue()
        for i in range(args.jobs):
            trees.put(copied(Path(scratch, str(i))))

        def tried(mutation: Mutation) -> dict[str, Any]:
            found = {
                "key": key(mutation),
                "mutation": str(mutation),
                "killed_by": None,
                "level": None,
            }
            if why := known.get(key(mutation)):
                return found | {"outcome": "equivalent", "why": why}
            first = before.get(key(mutation), "").split("::")[0]
            files = selection.files(mutation, first, args.seconds)
            limit = 300 + 5 * sum(selection.seconds[file] for file in files)
            tree, began = trees.get(), time.monotonic()
            try:
                level, by = trial(mutation, tree, [*files, READS], limit)
            finally:
                trees.put(tree)
            outcome = "killed" if by else "survived"
            seconds = round(time.monotonic() - began)
            if not by and not files:
                found |= {"why": "no default test executes this line"}
            return found | {
                "outcome": outcome,
                "level": level,
                "killed_by": by,
                "seconds": seconds,
            }

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            left = [m for m in drawn if key(m) not in done_before]
            for done in concurrent.futures.as_completed([pool.submit(tried, m) for m in left]):
                results.append(result := done.result())
                note = result.get("why") or result["killed_by"] or ""
                print(f"{result['outcome']:>10}  {result['mutation']}  {note}", flush=True)
                kept.write_text(json.dumps({"state": state, "results": results}, indent=1))
    return results


def report(results: list[dict[str, Any]]) -> None:
    """Noticed by `make test`, only by `make test-more`, and by neither, by folder."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        folder = str(Path(result["key"][0]).parent)
        for name in (folder, "all"):
            counts[name][result["level"] or result["outcome"]] += 1
    columns = (*LEVELS, "survived", "equivalent")
    titles = "".join(f"{column:>12}" for column in columns)
    print(f"\n{'folder':<28}{titles}{'by test':>10}{'by check':>10}")
    for folder in sorted(counts, key=lambda name: (name == "all", name)):
        count = counts[folder]
        quick, more, survived, _ = numbers = [count[column] for column in columns]
        line = "".join(f"{number:>12}" for number in numbers)
        if all_of := quick + more + survived:
            line += f"{quick / all_of:>10.0%}{(quick + more) / all_of:>10.0%}"
        print(f"{folder:<28}{line}")
    for result in results:
        if result["outcome"] == "survived":
            print(f"survived  {result['mutation']}\n          {result['key'][1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mutate", nargs="*", default=["dynsim", "odes", "sweeps/runner", "papers"])
    parser.add_argument("--count", type=int, default=200, help="mutations to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutations at once")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for each, the nearest")
    parser.add_argument("--tests", default="tests", help="folder of the tests to judge")
    report(run(parser.parse_args()))
