"""What `dynsim explore` writes, what it leaves out, and what it refuses."""

import base64
import gzip
import json
import re
import shutil

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import cli
from sweeps.commands.views import page
from sweeps.commands.views.content import content
from tests.doors import refuses


@pytest.fixture
def without_library(monkeypatch):
    """Pages of what is ours alone, so that their size is known."""
    monkeypatch.setattr(page, "_packed_plotly", lambda: "")
    monkeypatch.setattr(page, "check_plotly", lambda: None)


def numbers(text, name):
    """An array of a page."""
    (found,) = re.findall(rf'data-array="{name}">([^<]*)<', text)
    return np.frombuffer(base64.b64decode(found), "<f4")


@pytest.mark.usefixtures("without_library")
@pytest.mark.more
def test_the_page_has_the_numbers_of_the_store(stored, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    arguments = ["explore", str(stored), "--out", str(out), "--observables", "loss"]
    assert cli.main(arguments) == 0
    text = out.read_text()
    np.testing.assert_array_equal(
        numbers(text, "0/loss"), sweeps.open(stored)["loss"].values.ravel()
    )
    assert "0/entropy" not in text
    assert "<script>window.harmed" not in text
    # Nothing on it is asked for elsewhere.
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=", text)
    assert cli.main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert [each.name for each in out.parent.iterdir()] == ["page.html"]


def test_plotly_is_in_a_small_page(runs):
    offline = pytest.importorskip("plotly.offline", reason="needs plotly of the extra `test`")
    text = sweeps.explore(runs).html
    assert len(text) < 2.5e6
    (found,) = re.findall(r'id="plotly">([^<]*)<', text)
    assert gzip.decompress(base64.b64decode(found)).decode() == offline.get_plotlyjs()


@pytest.mark.usefixtures("without_library")
def test_unfinished_and_damaged_stores(stored, tmp_path, capsys):
    store, out = shutil.copytree(stored, tmp_path / "store"), tmp_path / "page.html"
    first, second = sorted(store.glob("status/.chunks-*/[01].json"))
    second.unlink()
    arguments = ["explore", str(store), "--out", str(out), "--overwrite"]
    assert cli.main(arguments) == 0
    for text in (capsys.readouterr().err, out.read_text()):
        assert "6 of 12 runs" in text
    before = out.read_text()
    chunk = store / "loss" / "c" / "0" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    assert cli.main(arguments) == 2
    assert "damaged" in capsys.readouterr().err
    assert out.read_text() == before
    first.unlink()
    assert cli.main(arguments) == 2
    assert "0 of 12 runs" in capsys.readouterr().err


def test_sweeps_that_do_not_go_together_are_refused(runs):
    config = json.loads(runs.attrs["config"]) | {"system": "qkv"}
    other = runs.assign_attrs(config=json.dumps(config))
    for changed, named in (
        (other, ("b", "'qkv'", "'yz'")),
        (runs.assign_coords(eta_z=[0.2, 2.0, 20.0]), ("eta_z",)),
        (runs.assign_coords(time=runs["time"] + 0.5), ("time",)),
        (runs.drop_vars("status"), ("b", "status")),
    ):
        refuses(lambda b=changed: content({"a": runs, "b": b}), *named)
    fewer = content({"a": runs, "b": runs.isel(eta_z=[0, 2])})
    assert fewer.about["dims"]["eta_z"]["values"] == [0.1, 10.0]


def large(seeds, times):
    """A sweep of 10 000 runs per seed, all of zeros, which take no memory."""
    shape = (100, 100, seeds)
    coords = {"eta": np.arange(1.0, 101), "width": np.arange(1.0, 101), "seed": np.arange(seeds)}
    zeros = np.broadcast_to(np.float32(0), (*shape, times))
    status = (("eta", "width", "seed"), np.broadcast_to(np.int8(0), shape))
    loss = (("eta", "width", "seed", "time"), zeros)
    coords["time"] = np.geomspace(1, 1000, times)
    return xr.Dataset({"status": status, "loss": loss}, coords)


@pytest.mark.usefixtures("without_library")
@pytest.mark.more
def test_a_million_runs_are_thinned_and_it_is_said():
    found = page.fit(content({"many": large(100, 20)}), 20)
    sizes = found.datasets["many"].sizes
    runs = 10_000 * sizes["seed"]
    # Four bytes a value and one a status, in base64; nothing is left out in vain.
    assert (4 * runs * sizes["time"] + runs) * 4 / 3 <= 20e6 - 2**17
    assert (8 * runs * sizes["time"] + runs) * 4 / 3 > 20e6 - 2**17
    assert found.datasets["many"]["time"].values[-1] == 1000
    assert found.about["times"] == found.datasets["many"]["time"].values.tolist()
    assert sizes["time"] == 20
    thinned = page.fit(content({"many": large(2, 400)}), 20)
    # Evenly spread from the first to the last one.
    places = np.searchsorted(np.geomspace(1, 1000, 400), thinned.about["times"])
    assert (places[0], places[-1], len(places)) == (0, 399, 100)
    assert {*np.diff(places)} == {4, 5}
    # A theory at other times, too, keeps those that it shares with the runs.
    theory = large(1, 20).isel(seed=0, drop=True)
    theory = theory.assign_coords(time=[0.5, *theory["time"].values[1:]])
    both = page.fit(content({"many": large(100, 20), "theory": theory}), 20)
    assert len(both.about["times"]) == both.datasets["theory"].sizes["time"] < 20
    few = content({"many": large(100, 20)})
    refuses(lambda: page.fit(few, 0.1), "max_megabytes = 0.1", "0.198 MB")
