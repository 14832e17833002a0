"""A sweep file of a stored sweep describes its runs."""

import json
from pathlib import Path

import xarray as xr

from sweeps import Sweep, experiment
from sweeps.commands.views.content import recipe
from sweeps.runner.config import config_of
from sweeps.runner.spec import load

RULES = [{"kind": "adamw", "decay": 0.1}, "adam"]


def test_the_file_of_all_runs_is_the_sweep_again(tmp_path: Path) -> None:
    run = experiment(task="overlapping", eta=0.1, steps=5, length="inf")
    axes = {"rule": RULES, "overlap": [0.1, 0.2], "batch": [8, 9]}
    sweep = Sweep(run, axes, record=("loss",), times=3, zip=(("overlap", "batch"),))
    config = config_of(sweep)
    coords = {
        name: ("rule" if name == "rule" else "overlap", values)
        for name, values in config["axes"].items()
    }
    found = recipe(xr.Dataset(coords=coords, attrs={"config": json.dumps(config)}))
    assert found is not None
    values = (f"{n} = [{', '.join(axis['values'])}]" for n, axis in found["axes"].items())
    lines = [*found["head"], f"zip = {json.dumps(found['zip'])}", "[axes]", *values, *found["run"]]
    (tmp_path / "cell.toml").write_text("\n".join(lines))
    assert config_of(load(tmp_path / "cell.toml")) == config
