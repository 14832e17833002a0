"""Build a release and check it; upload nothing.

    python .ci/release.py [VERSION] [--date YYYY-MM-DD] [--out out/release]

With a VERSION, the files that state version and date are written first. Then the source archive and
the wheel are built, the wheel is checked in an empty environment of each Python, and the text of
the tag is printed, which is the changelog's section.
"""

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.13")
PACKAGES = {"dynsim", "odes", "sweeps", "papers"}
COMMANDS = (
    ["python", "-c", "import dynsim, odes, sweeps, papers.saxe"],
    ["dynsim", "--version"],
    ["dynsim", "explain", "saxe", "--steps", "50"],
    ["dynsim", "compare", "--steps", "20", "--seeds", "2", "--theories", "best"],
)
"""What the wheel has to do in an empty environment, in a folder without a clone."""
STATED = {
    "pyproject.toml": r'(?m)^(version = ")[^"]+(")$',
    "CITATION.cff": r"(?m)^(version: )\S+()$",
    "README.md": r"(Version )[\d.]+(,)",
    "docs/reference/cite.md": r"(Version )[\d.]+(,)",
}
"""Where a version stands: what is in front of it and behind it."""


def write_version(root: Path, version: str, date: str) -> None:
    """Write version and date where they are stated, and name the changelog's first section."""
    for name, pattern in STATED.items():
        path = root / name
        text, count = re.subn(pattern, rf"\g<1>{version}\g<2>", path.read_text())
        if count != 1:
            sys.exit(f"{name}: states the version {count} times, not once")
        if name == "CITATION.cff":
            text = re.sub(r"(?m)^date-released: .*\n", "", text)
            text = re.sub(r"(?m)^(version: .*\n)", rf'\g<1>date-released: "{date}"\n', text)
        path.write_text(text)
    path = root / "CHANGELOG.md"
    text = path.read_text()
    if not re.search(rf"(?m)^## {re.escape(version)}( |$)", text):
        path.write_text(
            text.replace("## Unreleased\n", f"## Unreleased\n\n## {version} ({date})\n", 1)
        )


def section(changelog: str, version: str) -> str:
    """The changelog's lines about a version, without the heading; empty if there are none."""
    found = re.search(
        rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    return found[1].strip() if found else ""


def misplaced(names: list[str]) -> list[str]:
    """Files of a wheel that belong to no package and are no metadata."""
    return [
        name for name in names if name.split("/")[0] not in PACKAGES and ".dist-info/" not in name
    ]


def interpreters() -> Iterator[tuple[str, str | None]]:
    """Each version of Python with its command, or None if it is not installed."""
    for version in PYTHONS:
        command = shutil.which(f"python{version}")
        # A command that a version manager has put there may stand for no Python.
        runs = command and subprocess.run([command, "-c", ""], capture_output=True).returncode == 0
        yield version, command if runs else None


def check(wheel: Path, python: str) -> None:
    """Install the wheel into an empty environment, and run it in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "env"
        subprocess.run([python, "-m", "venv", environment], check=True)
        pip = [environment / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", wheel.resolve()], check=True)
        for command, *words in COMMANDS:
            run = [environment / "bin" / command, *words]
            subprocess.run(run, check=True, cwd=folder, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default="")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release")
    asked = parser.parse_args()
    if asked.version:
        write_version(ROOT, asked.version, asked.date)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    notes = section((ROOT / "CHANGELOG.md").read_text(), version)
    if not notes:
        sys.exit(f"CHANGELOG.md: has no section {version!r}")
    shutil.rmtree(asked.out, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", asked.out, ROOT], check=True)
    (wheel,) = asked.out.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    if wrong := misplaced(names):
        sys.exit(f"{wheel.name}: has files of no package: {', '.join(wrong)}")
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")
    for number, python in interpreters():
        if python is None:
            print(f"Python {number}: skipped, not installed")
            continue
        check(wheel, python)
        print(f"Python {number}: the wheel works in an empty environment")
    tag = asked.out / "tag.txt"
    tag.write_text(f"dynsim {version}\n\n{notes}\n")
    print(f"\n{tag.read_text()}")
    print(f"To release, review and commit, then: git tag --annotate v{version} --file {tag}")


if __name__ == "__main__":
    main()
