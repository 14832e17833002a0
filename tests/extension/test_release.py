"""What `make release` writes and checks, without building: .ci/release.py."""

import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
assert SPEC is not None
assert SPEC.loader is not None
release = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(release)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that state a version."""
    for name in (*release.STATED, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_version_is_written_wherever_it_is_stated(clone: Path) -> None:
    before = (clone / "CHANGELOG.md").read_text()
    unreleased = before.partition("## Unreleased\n")[2].partition("\n## ")[0].strip()
    # Twice, as after a build that failed.
    for _ in range(2):
        release.write_version(clone, "7.8.9", "2031-02-03")
    assert 'version = "7.8.9"\n' in (clone / "pyproject.toml").read_text()
    citation = (clone / "CITATION.cff").read_text()
    assert 'version: 7.8.9\ndate-released: "2031-02-03"\n' in citation
    assert citation.count("date-released") == 1
    for name in ("README.md", "docs/reference/cite.md"):
        assert "Version 7.8.9," in (clone / name).read_text()
    after = (clone / "CHANGELOG.md").read_text()
    assert after.count("## 7.8.9 (2031-02-03)") == 1
    assert release.section(after, "7.8.9") == unreleased
    assert release.section(after, "7.8") == ""


def test_a_file_that_states_no_version_stops_a_release(clone: Path) -> None:
    (clone / "README.md").write_text("dynsim")
    with pytest.raises(SystemExit, match=r"README.md: states the version 0 times"):
        release.write_version(clone, "7.8.9", "2031-02-03")


def test_files_of_a_wheel_that_belong_to_no_package_are_found() -> None:
    names = ["dynsim/yz/model.py", "dynsim-0.2.0.dist-info/METADATA", "tests/conftest.py"]
    assert release.misplaced(names) == ["tests/conftest.py"]
