"""What `dynsim explore` writes, what it leaves out, and what it refuses."""

import base64
import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import cli
from sweeps.commands.views import diagrams, page
from sweeps.commands.views.content import content
from sweeps.runner.store.arrays import MISSING
from sweeps.studies.phase.regions import BY_STATUS
from sweeps.systems.diagrams import Rule

HAS_PLOTLY = importlib.util.find_spec("plotly") is not None
needs_plotly = pytest.mark.skipif(not HAS_PLOTLY, reason="needs plotly of the extra `test`")
DESCENT = "descent, T and batch infinite"
LIBRARY = "/* the library */"


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of what is ours alone, so that their size is known."""
    monkeypatch.setattr(page, "_plotly", lambda: LIBRARY)
    monkeypatch.setattr(page, "check_plotly", lambda: None)


def numbers(text: str, name: str) -> np.ndarray:
    """An array of a page."""
    (found,) = re.findall(rf'data-array="{name}">([^<]*)<', text)
    return np.frombuffer(base64.b64decode(found), "<f4")


@pytest.mark.usefixtures("without_library")
@pytest.mark.more
def test_the_page_has_the_numbers_of_the_store(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "already exists; --overwrite replaces it" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert [each.name for each in out.parent.iterdir()] == ["page.html"]


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "page.pdf"], "out = page.pdf: must end in .html"),
        (["--observables", "los"], "observables = 'los': did you mean 'loss'?"),
        (["--times", "3.5"], "times = 3.5: must be one of 0, 1, 2, 4, 8"),
        (["--where", "eta_z=2"], "where: eta_z = 2: must be one of 0.1, 1, 10"),
        (["--max-megabytes", "0.06"], "max_megabytes = 0.06: one time and one seed of these"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explore", str(stored), *options]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_library")
def test_unfinished_and_damaged_stores(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = shutil.copytree(stored, tmp_path / "store"), tmp_path / "page.html"
    first, second = sorted(store.glob("status/.chunks-*/[01].json"))
    second.unlink()
    arguments = ["explore", str(store), "--out", str(out), "--overwrite"]
    assert cli.main(arguments) == 0
    told = f"{store}: 6 of 12 runs done; the others are blank."
    assert told in capsys.readouterr().err
    assert told in out.read_text()
    before = out.read_text()
    chunk = store / "loss" / "c" / "0" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    assert cli.main(arguments) == 2
    assert "damaged" in capsys.readouterr().err
    assert out.read_text() == before
    first.unlink()
    assert cli.main(arguments) == 2
    assert f"{store}: 0 of 12 runs done; nothing to show yet" in capsys.readouterr().err


def test_sweeps_that_do_not_go_together_are_refused(runs: xr.Dataset) -> None:
    config = json.loads(runs.attrs["config"]) | {"system": "qkv"}
    other = runs.assign_attrs(config=json.dumps(config))
    with pytest.raises(ValueError, match=r"^b: is of the system 'qkv', but a is of 'yz';"):
        content({"a": runs, "b": other})
    with pytest.raises(ValueError, match=r"^eta_z: the sweeps have no value in common$"):
        content({"a": runs, "b": runs.assign_coords(eta_z=[0.2, 2.0, 20.0])})
    with pytest.raises(ValueError, match=r"^time: the sweeps have no recorded time in common$"):
        content({"a": runs, "b": runs.assign_coords(time=runs["time"] + 0.5)})
    with pytest.raises(ValueError, match=r"^b: has no status; must be a dataset of a sweep$"):
        content({"a": runs, "b": runs.drop_vars("status")})
    fewer = content({"a": runs, "b": runs.isel(eta_z=[0, 2])})
    assert fewer.about["notes"] == ["eta_z: 2 of 3 values are common."]
    assert fewer.about["dims"]["eta_z"]["values"] == [0.1, 10.0]


def test_times_that_sweeps_share_are_found_in_each(runs: xr.Dataset, theory: xr.Dataset) -> None:
    found = content({"a": runs.isel(time=[0, 2, 4]), "b": theory}).about
    assert found["times"] == runs["time"].values[[0, 2, 4]].tolist()
    assert [store["at"] for store in found["stores"]] == [[0, 1, 2], [0, 2, 4]]


@pytest.mark.usefixtures("without_library")
@pytest.mark.more
def test_a_phase_diagram_opens_with_its_regions(diagram: Any, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert cli.main(["explore", str(diagram.out), "--out", str(out)]) == 0
    text = out.read_text()
    (found,) = re.findall(r'id="about">(.*?)</script>', text)
    about = json.loads(found)
    assert about["title"] == "Phase diagram of yz: syn-small"
    assert [each["name"] for each in about["stores"]] == ["training", DESCENT]
    (legend,) = [each["region"] for each in about["observables"] if "region" in each]
    assert legend == [[int(code), *words] for code, words in diagram.rule().legend.items()]
    # As the figure counts them.
    training, descent = sweeps.diagrams.maps(diagram).values()
    codes = numbers(text, "0/region").reshape(*training["region"].shape, diagram.seeds, 1)
    share = (codes == training["code"].values).mean(-2)
    np.testing.assert_allclose(share, training["probability"])
    np.testing.assert_array_equal(numbers(text, "1/region"), descent["region"].values.ravel())


def test_runs_at_points_lie_on_the_grid_of_all(diagram: Any) -> None:
    """A refined diagram whose band added a seed: the codes of runs are those of single points."""
    full = sweeps.open(diagram.out / "simulation").load()
    rule = diagram.rule()
    codes = rule.classify(full).transpose("eta_y", "eta_z", "seed").values
    whole = full.stack(point=["eta_y", "eta_z"])

    def part(points: list[int], seeds: list[int]) -> xr.Dataset:
        found = whole.isel(point=points).sel(seed=seeds)
        x, y = (found[name].values for name in ("eta_y", "eta_z"))
        found = found.drop_vars(["point", "eta_y", "eta_z"]).rename_dims(point="eta_y")
        return found.assign_coords(eta_y=x, eta_z=("eta_y", y))

    drawn = {"eta_y": full["eta_y"].values, "eta_z": full["eta_z"].values}
    drawn["region"] = np.full((3, 2), 4)
    parts = [part([0, 5], [0, 1]), part([2], [0, 1]), part([2], [2])]
    found = diagrams.gathered(parts, rule, drawn).transpose("eta_y", "eta_z", "seed", ...)
    here = np.zeros((3, 2, 3), bool)
    for place, seeds in (((0, 0), 2), ((2, 1), 2), ((1, 0), 3)):
        here[place][:seeds] = True
    np.testing.assert_array_equal(found["status"].values != MISSING, here)
    region = found["region"].values
    np.testing.assert_array_equal(region[here], codes[here])
    # Points without a run have the region of the figure once.
    np.testing.assert_array_equal(region[~here.any(-1)], [[4, -1, -1]] * 3)
    entropy = full["entropy"].transpose("eta_y", "eta_z", "seed", "time").values
    np.testing.assert_array_equal(found["entropy"].values[here], entropy[here])
    assert np.isnan(found["entropy"].values[~here]).all()
    told = content({"training": found}).about["notes"]
    assert told == [
        "training: 7 runs at 3 points; the regions of the other 3 are inferred from their "
        "neighbours."
    ]


@pytest.mark.parametrize("at_points", [False, True])
def test_runs_without_seeds_lie_on_the_grid_too(diagram: Any, at_points: bool) -> None:
    one = sweeps.open(diagram.out / "simulation").load().isel(seed=0, drop=True)
    parts = [one]
    if at_points:
        whole = one.stack(point=["eta_y", "eta_z"])
        x, y = (whole[name].values for name in ("eta_y", "eta_z"))
        rest = whole.drop_vars(["point", "eta_y", "eta_z"]).rename_dims(point="eta_y")
        parts = [rest.assign_coords(eta_y=x, eta_z=("eta_y", y))]
    found = diagrams.gathered(parts, diagram.rule(), {})
    assert "seed" not in found.dims
    want = diagram.rule().classify(one).transpose("eta_y", "eta_z").values
    np.testing.assert_array_equal(found["region"].transpose("eta_y", "eta_z").values, want)
    np.testing.assert_array_equal(
        found["entropy"].transpose("eta_y", "eta_z", "time").values,
        one["entropy"].transpose("eta_y", "eta_z", "time").values,
    )


OWN = Rule(
    record=("loss",),
    classify=lambda dataset: (dataset["loss"].isel(time=-1) > 0).astype(int) + 6,
    legend={6: ("low", "#ffffff"), 7: ("high", "#000000")},
)


@pytest.mark.usefixtures("without_library")
def test_lines_and_regions_of_the_figure_are_those_of_the_page(
    diagram: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(diagram.out, tmp_path / "phase")
    noise = {"name": "noise", "text": r"noise: $\sigma(z) = \max(|z|, \sigma_1)$", "right": 0.754}
    noise |= {"colour": "#c2185b", "dashes": "--", "width": 1.5}
    noise |= {"x": [0.1, 10.0, None], "y": [30.0, 31.0, None]}
    (folder / "phase.json").write_text(json.dumps({"lines": [noise]}))
    columns = {"level": [0.5, 0.5, 0.1, 0.5], "of": ["share"] * 3 + ["low"], "piece": [0, 0, 1, 2]}
    columns |= {"x": [1.0, 2.0, 3.0, 4.0], "y": [10.0, 20.0, 30.0, 40.0]}
    table = xr.Dataset({name: ("vertex", values) for name, values in columns.items()})
    table.to_netcdf(folder / "phase-boundary.nc", engine="h5netcdf")
    word = f"{__name__}:OWN"
    (folder / "phase.run.json").write_text(json.dumps({"settings": {"regions": word}}))
    out = tmp_path / "page.html"
    assert cli.main(["explore", str(folder), "--out", str(out)]) == 0
    (found,) = re.findall(r'id="about">(.*?)</script>', out.read_text())
    about = json.loads(found)
    (legend,) = [each["region"] for each in about["observables"] if "region" in each]
    assert legend == [[6, "low", "#ffffff"], [7, "high", "#000000"]]
    lines = {each["name"]: each for each in about["lines"]}
    drawn = lines.pop("noise: σ(z) = max(|z|, σ_1) (75 %)")
    assert (drawn["x"], drawn["y"]) == (noise["x"], noise["y"])
    assert (drawn["axes"], drawn["dash"], drawn["width"]) == (
        ["eta_y", "eta_z"],
        "dash",
        pytest.approx(1.8),
    )
    assert list(lines) == [
        "50 % of the seeds",
        "10 and 90 % of the seeds",
        "95 % confidence interval of the 50 %",
    ]
    assert lines["50 % of the seeds"]["x"] == [1, 2, None]
    assert lines["10 and 90 % of the seeds"]["y"] == [30, None]
    (folder / "phase.run.json").write_text(json.dumps({"settings": {"regions": "no_such:RULE"}}))
    assert cli.main(["explore", str(folder), "--out", str(out), "--overwrite"]) == 0
    assert "no_such:RULE'" in capsys.readouterr().err


def test_one_class_that_stands_for_all_is_the_same_at_each(runs: xr.Dataset) -> None:
    found = content({"a": runs, "b": runs.isel({"class": [0]})})
    assert "class" not in found.datasets["b"].dims
    assert found.datasets["a"].sizes["class"] == 2
    assert found.about["dims"]["class"]["values"] == [0, 1]
    with pytest.raises(ValueError, match=r"^class: sizes differ, 3 and 2$"):
        content({"a": runs, "b": runs.isel({"class": [0, 1, 0]})})


def large(seeds: int, times: int) -> xr.Dataset:
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
def test_a_million_runs_are_thinned_and_it_is_said() -> None:
    found = page.fitted(content({"many": large(100, 20)}), 20)
    sizes = found.datasets["many"].sizes
    runs = 10_000 * sizes["seed"]
    # Four bytes a value and one a status, in base64; nothing is left out in vain.
    assert (4 * runs * sizes["time"] + runs) * 4 / 3 <= 20e6 - 2**17
    assert (8 * runs * sizes["time"] + runs) * 4 / 3 > 20e6 - 2**17
    assert found.datasets["many"]["time"].values[-1] == 1000
    assert found.about["times"] == found.datasets["many"]["time"].values.tolist()
    assert sizes["time"] == 20
    (told,) = found.about["notes"]
    assert f"{sizes['seed']} of 100 seeds" in told
    thinned = page.fitted(content({"many": large(2, 400)}), 20)
    (told,) = thinned.about["notes"]
    assert "100 of 400 times" in told
    assert "--times" in told
    # Evenly spread from the first to the last one.
    places = np.searchsorted(np.geomspace(1, 1000, 400), thinned.about["times"])
    assert (places[0], places[-1], len(places)) == (0, 399, 100)
    assert {*np.diff(places)} == {4, 5}
    # A theory at other times, too, keeps those that it shares with the runs.
    theory = large(1, 20).isel(seed=0, drop=True)
    theory = theory.assign_coords(time=[0.5, *theory["time"].values[1:]])
    both = page.fitted(content({"many": large(100, 20), "theory": theory}), 20)
    assert len(both.about["times"]) == both.datasets["theory"].sizes["time"] < 20
    with pytest.raises(ValueError, match=r"max_megabytes = 0.1: one time and one seed .* 0.198 MB"):
        page.fitted(content({"many": large(100, 20)}), 0.1)


@pytest.mark.usefixtures("without_library")
def test_notebooks_show_the_page_and_no_markup_of_it_gets_out(runs: xr.Dataset) -> None:
    shown = sweeps.explore(runs)._repr_html_()
    assert shown.count("<") == 2
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    assert 'width="100%" height="900"' in shown
    with pytest.raises(ValueError, match="must be of type xarray"):
        sweeps.explore("runs/some")


def test_what_is_no_json_is_written_into_no_page() -> None:
    assert page._inside({"name": "</script>"}) == '{"name": "\\u003c/script>"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        page._inside(np.nan)


def test_what_is_missing_is_said(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'needs plotly: pip install "dynsim\[explore\]"$'):
        sweeps.explore(sweeps.open(stored))


@needs_plotly
def test_plotly_is_inside(runs: xr.Dataset) -> None:
    text = sweeps.explore(runs).html
    assert "plotly.js" in text
    assert not re.search(r'<script[^>]*src="', text)


def test_a_diagram_has_the_axes_and_regions_of_its_figure(tmp_path: Path) -> None:
    assert diagrams._map(tmp_path, "simulation") == {}
    region = np.arange(6).reshape(2, 3)
    saved = {
        "eta_y": np.arange(2.0),
        "eta_z": np.arange(3.0),
        "noise": region,
        "noise/eta_y": np.arange(4.0),
        "descent/region": region + 1,
    }
    np.savez(tmp_path / "phase.npz", **saved)
    axes = {name: saved[name] for name in ("eta_y", "eta_z")}
    found = diagrams._map(tmp_path, "simulation")
    assert found.keys() == axes.keys()
    np.testing.assert_array_equal(found["eta_z"], axes["eta_z"])
    found = diagrams._map(tmp_path, "descent")
    assert found.keys() == {*axes, "region"}
    np.testing.assert_array_equal(found["region"], region + 1)


def small(**attrs: str) -> xr.Dataset:
    """Two rates, which vary together with a length, in falling order; two seeds and three times."""
    loss = np.arange(12.0).reshape(2, 2, 3)
    about = {"long_name": "population loss", "units": "nat"}
    coords = {
        "eta": ("eta", [0.3, 0.1], {"long_name": "rate"}),
        "length": ("eta", [np.inf, 8.0]),
        "seed": [4, 7],
        "time": [0.0, 1.0, 5.0],
    }
    arrays = {
        "first_bad_step": (("eta", "seed"), np.full((2, 2), -1)),
        "status": (("eta", "seed"), np.zeros((2, 2), np.int8)),
        "loss": (("eta", "seed", "time"), loss, about),
        "z": (("eta", "seed", "time", "class"), loss[..., None] * [1.0, 2.0, 3.0, 4.0]),
    }
    return xr.Dataset(arrays, coords, attrs)


def test_axes_that_mean_the_same_are_one_axis_of_the_page() -> None:
    """Another spelling of a rate, and values that differ by rounding: its Python finds them."""
    first = small(python=["runs = small()"])
    rates = first.eta.values * (1 + 2**-52)
    assert not {*rates} & {*first.eta.values}
    config = json.dumps({"axes": ["E.ta", "made in Python"], "zip": []})
    other = small(python=["runs = other"], config=config).rename(eta="E.ta")
    other = other.assign_coords({"E.ta": rates})
    found = content({"a": first, "b": other.assign_attrs(config=config)})
    assert [*found.about["dims"]] == ["eta", "class"]
    assert found.about["dims"]["eta"]["values"] == [0.1, 0.3]
    arrays = found.arrays()
    np.testing.assert_array_equal(arrays["0/loss"], arrays["1/loss"])
    lines = found.about["stores"][1]["python"]
    run: dict[str, Any] = {"small": lambda: first, "other": other}
    exec("\n".join(lines), run)
    assert run["runs"].sel(eta=0.1, seed=4, time=5).loss == first.sel(eta=0.1, seed=4, time=5).loss
    assert found.about["stores"][0]["python"] == ["runs = small()"]


def test_runs_of_a_diagram_are_put_where_their_values_are() -> None:
    """Rates of many decades: a run at a rate that is not in the figure is not drawn next to it."""
    rates, scales = np.geomspace(1e-12, 1, 7), np.array([1.0, 2.0])
    config = json.dumps({"axes": ["eta", "scale", "seed"], "zip": [["eta", "scale"]]})

    def part(at: list[float]) -> xr.Dataset:
        status = (("eta", "seed"), np.zeros((len(at), 1), np.int8))
        coords = {"eta": at, "scale": ("eta", [2.0] * len(at)), "seed": [0]}
        loss = (("eta", "seed"), np.float32(at)[:, None])
        return xr.Dataset({"status": status, "loss": loss}, coords, {"config": config})

    chosen = rates[[0, 1, 5]].tolist()
    found = diagrams.gathered([part(chosen)], BY_STATUS, {"eta": rates, "scale": scales})
    computed = found.status.values[:, 1, 0] == 0
    assert computed.tolist() == [True, True, False, False, False, True, False]
    np.testing.assert_array_equal(found.loss.values[computed, 1, 0], np.float32(chosen))
    with pytest.raises(
        ValueError, match=r"^eta = 5e-12: is none of the 7 values from 1e-12 to 1; "
    ):
        diagrams.gathered([part([5e-12])], BY_STATUS, {"eta": rates, "scale": scales})


def test_what_scripts_are_told_of_sweeps() -> None:
    theory = small(config=json.dumps({"theory": "plain"})).isel(seed=0, drop=True)
    theory = theory.drop_vars("z").assign_coords(time=[0.0, 5.0, 9.0])
    found = content({"a": small(title="rates"), "b": theory})
    about = found.about
    assert (about["title"], about["notes"], about["times"]) == ("rates", [], [0, 5])
    # In increasing order, with what varies together.
    assert about["dims"] == {
        "eta": {
            "label": "rate",
            "values": [0.1, 0.3],
            "together": {"length": [8, "inf"]},
            "axis": True,
        },
        "class": {"label": "class", "values": [0, 1, 2, 3], "together": {}, "axis": False},
    }
    # What every system records comes last.
    assert [each["name"] for each in about["observables"]] == ["loss", "z", "first_bad_step"]
    assert about["observables"][0]["label"] == "population loss (nat)"
    first, second = about["stores"]
    assert (first["name"], first["theory"], first["seeds"]) == ("a", "", [4, 7])
    assert (second["name"], second["theory"], second["seeds"]) == ("b", "plain", [])
    assert (first["at"], second["at"]) == ([0, 2], [0, 1])
    assert first["arrays"]["z"] == {
        "dims": ["eta", "seed", "time", "class"],
        "shape": [2, 2, 3, 4],
    }
    assert second["arrays"]["time"] == {"dims": ["time"], "shape": [3]}
    assert (first["some"], first["recipe"]) == (False, None)
    assert first["python"] == ["# `runs` is the dataset that this page shows."]
    assert about["statuses"][MISSING] == "not computed"
    assert about["statuses"][0] == "OK"
    assert len(about["scale"]) == 9
    # Four bytes a number, and one a status.
    numbers = (4 + 12 + 48 + 3) + (2 + 6 + 3)
    assert found.size() == 4 * numbers + 4 + 2
    assert list(found.arrays())[-1] == "1/time"
    values = found.arrays()["0/loss"].values
    np.testing.assert_array_equal(values, np.arange(12.0).reshape(2, 2, 3)[::-1])


def test_times_and_values_of_a_page_may_be_chosen() -> None:
    found = content({"a": small()}, ("z",), (5.0, 0.0), ("eta=0.3",))
    about = found.about
    assert about["title"] == "a"
    assert [each["name"] for each in about["observables"]] == ["z"]
    assert "eta" not in about["dims"]
    assert about["stores"][0]["python"][1:] == ["runs = runs.sel(eta=0.3)"]
    # Whatever order they are asked in.
    assert (about["times"], about["stores"][0]["at"]) == ([0, 5], [0, 1])
    np.testing.assert_array_equal(found.arrays()["0/time"], [0, 5])
    np.testing.assert_array_equal(found.arrays()["0/z"].isel(seed=1)[..., 1], [6, 10])
    message = r"times = 2: must be one of 0, 1, 5$"
    with pytest.raises(ValueError, match=message):
        content({"a": small()}, times=(2.0,))
    own = small().rename_dims(time="record").drop_vars("time")
    with pytest.raises(ValueError, match="times = 1: the runs have times of their own"):
        content({"a": own}, times=(1.0,))
    assert content({"a": own}).about["times"] == [0, 1, 2]


def test_bytes_of_arrays_are_those_that_scripts_read() -> None:
    values = np.array([1.5, -2.0])
    assert page.packed("loss", values) == np.array([1.5, -2.0], "<f4").tobytes()
    assert page.packed("time", values) == np.array([1.5, -2.0], "<f8").tobytes()
    assert page.packed("status", np.array([1, -1])) == b"\x01\xff"
    assert page.packed("loss", np.array([1e300])) == np.array([np.inf], "<f4").tobytes()
