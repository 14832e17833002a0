"""Flips single bits, and deletes files, anywhere in a store, and looks at it in all ways that there
are. `python -m tests.sweeps.runner.store.damage 1000` prints the counts and fails on a fault that
nobody sees."""

import collections
import contextlib
import io
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import sweeps
from sweeps import StoreError, Sweep, experiment
from sweeps.commands import reading
from sweeps.commands.views import plot
from sweeps.runner.store import RECORDS

SWEEP = Sweep(
    experiment(length=8, batch=4),
    {"eta_y": [0.5, 1.0, 2.5, 7.0], "steps": [2, 3], "seed": [0, 7]},
    record=("entropy", "loss"),
    times=2,
    title="for damage",
)
CHUNK = 2
WAYS = ("open", "info", "check", "export", "plot", "resume")


class Damage:
    """A store, and what it looked like when it was whole."""

    def __init__(self, folder: Path, ways: tuple[str, ...] = WAYS) -> None:
        self.out, self.picture, self.file = folder / "s", folder / "p.png", folder / "s.nc"
        sweeps.run(SWEEP, self.out, chunk=CHUNK)
        self.ways = ways
        self.files = self.contents()
        self.keys = sorted(key for key, value in self.files.items() if value)
        self.whole = {way: self.look(way) for way in ways}

    def contents(self) -> dict[str, bytes]:
        """All files of the store."""
        every = (path for path in self.out.rglob("*") if path.is_file())
        return {str(path.relative_to(self.out)): path.read_bytes() for path in every}

    def look(self, way: str) -> Any:
        """What somebody sees who looks at the store in a way."""
        where = str(self.out)
        match way:
            case "open":
                return sweeps.open(self.out).load()
            case "resume":
                return sweeps.run(SWEEP, self.out).load()
            case "info":
                return printed(lambda: reading.info(reading.Info(where)))
            case "check":
                return printed(lambda: reading.check(reading.Check(where)))
            case "export":
                reading.export(reading.Export(where, self.file, overwrite=True))
                return xr.load_dataset(self.file, engine="h5netcdf")
        shown = plot.Plot(where, "eta_y", "loss", "steps", (), self.picture)
        plot.run(shown)
        with np.load(self.picture.with_suffix(".npz")) as found:
            return dict(found)

    def seen(self, key: str, way: str) -> str:
        """What somebody sees now that the file `key` has been damaged: "error" that names the file,
        "same" as before, or what must not be."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found = self.look(way)
        except StoreError as error:
            return "error" if key in str(error) else f"NAMELESS {way} {key}: {error}"
        except Exception as error:
            return f"STRANGE {way} {key}: {type(error).__name__}: {error}"
        return "same" if same(found, self.whole[way]) else f"SILENT {way} {key}"

    @contextlib.contextmanager
    def damaged(self, key: str, change: Callable[[bytes], bytes] | None) -> Iterator[None]:
        """The store with a file changed, or deleted by None."""
        path = self.out / key
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(self.files[key]))
        yield
        # A chunk that was computed anew has another record, which says how long that took.
        for other, value in self.contents().items():
            if value != self.files.get(other):
                (self.out / other).unlink()
        for other, value in self.files.items():
            if not (self.out / other).exists():
                (self.out / other).write_bytes(value)


def printed(act: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as lines:
        act()
    return lines.getvalue()


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, xr.Dataset):
        return found.identical(wanted)
    if isinstance(wanted, dict):
        return all(np.array_equal(found[name], wanted[name], equal_nan=True) for name in wanted)
    return found == wanted


def flip(bit: int) -> Callable[[bytes], bytes]:
    def change(good: bytes) -> bytes:
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        return bytes(bad)

    return change


def flips(damage: Damage, number: int, seed: int = 0) -> collections.Counter[str]:
    """What is seen of so many flips, each in a file and at a place in it by chance."""
    chance, counts = random.Random(seed), collections.Counter()
    for _ in range(number):
        key = chance.choice(damage.keys)
        bit = chance.randrange(8 * (damage.out / key).stat().st_size)
        with damage.damaged(key, flip(bit)):
            counts.update(f"{way}: {damage.seen(key, way)}" for way in damage.ways)
    return counts


def deletions(damage: Damage, keys: list[str]) -> collections.Counter[str]:
    """What is seen of files that are gone. A chunk without a record is one that has not been
    computed, which `open` shows; and a sweep that goes on makes a chunk anew."""
    counts = collections.Counter()
    for key in keys:
        for way in damage.ways:
            with damage.damaged(key, None):
                told = damage.seen(key, way)
                if key.startswith(RECORDS) and told == f"SILENT {way} {key}":
                    status = sweeps.open(damage.out).status
                    told = "not computed" if (status == -1).sum() == CHUNK else told
            counts[f"{way}: {told}"] += 1
    return counts


def main(number: int) -> int:
    """Print the counts; 1 if anything was not seen."""
    with tempfile.TemporaryDirectory() as folder:
        damage = Damage(Path(folder))
        found = {
            f"{number} flips": flips(damage, number),
            f"{len(damage.keys)} deletions": deletions(damage, damage.keys),
        }
    for what, counts in found.items():
        print(what)
        for told, times in sorted(counts.items()):
            print(f"  {times:6d}  {told}")
    seen = {each.split(": ")[1] for counts in found.values() for each in counts}
    return int(not seen <= {"error", "same", "not computed"})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
