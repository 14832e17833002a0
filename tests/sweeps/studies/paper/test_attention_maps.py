"""Figs. 4 and 5: the rates and the tokens that their panels show."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Status
from sweeps.runner.spec import Sweep
from sweeps.studies.paper import attention_maps


def uniform(sweep: Sweep) -> xr.Dataset:
    """Uniform attention of two classes over 34 tokens, in the shape of a sweep."""
    axes, times = {n: list(values) for n, values in sweep.fields.items()}, [0, 1, 2]
    shape = tuple(len(values) for values in axes.values())
    dims = (*axes, "time", "class", "token")
    attention = np.full((*shape, len(times), 2, 34), 1 / 34)
    values = {"attention": (dims, attention), "status": (tuple(axes), np.full(shape, Status.OK))}
    return xr.Dataset(values, {**axes, "time": times, "token": np.arange(34)})


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (attention_maps.Figure4, [("1", "1"), ("10", "1")]),
        (attention_maps.Figure5, [("0.1", "0.1"), ("0.5", "0.5"), ("1", "1")]),
    ],
)
def test_panels_have_the_rates_of_both_groups(
    config: type, rates: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {name: uniform(sweep) for name, sweep in config().sweeps().items()}
    monkeypatch.setattr(attention_maps, "computed", lambda config: found)
    drawn = []
    monkeypatch.setattr(attention_maps.output, "write", lambda *a, **k: drawn.append(k) or [])
    attention_maps.run(config(out=tmp_path))
    titles = [ax.get_title() for ax in drawn[0]["figure"].axes[: len(rates)]]
    shown = [tuple(re.findall(r"= ([\d.]+)", title)) for title in titles]
    assert shown == rates
    np.testing.assert_array_equal(drawn[0]["arrays"]["eta_y"], [float(rate) for rate, _ in rates])
    # The contextual tokens of Syn-Small: ten common ones and ten of each class.
    assert len(drawn[0]["arrays"]["tokens_drawn"]) == 30
    plt.close(drawn[0]["figure"])


@pytest.mark.parametrize(
    ("smallest", "low", "extend"), [(1e-6, 1e-4, "min"), (0.02, 0.02, "neither")]
)
def test_colours_begin_at_the_smallest_attention_or_at_a_ten_thousandth(
    smallest: float, low: float, extend: str
) -> None:
    attention = np.array([0, smallest, 0.3, 0.6])
    assert attention_maps.limits(attention) == (low, 0.6)
    values = (("eta_y", "time", "class", "token"), np.broadcast_to(attention, (1, 3, 1, 4)))
    coords = {"eta_y": [2.0], "time": [0, 1, 2], "token": np.arange(4)}
    data = xr.Dataset({"attention": values}, coords)
    figure = attention_maps.draw({"training": data, "flow": data}, np.arange(4), None)
    (bar,) = (m.colorbar for ax in figure.axes for m in ax.collections if m.colorbar)
    assert bar.extend == extend
    assert (bar.vmin, bar.vmax) == pytest.approx((low, 0.6))
    # The rate of Z is that of Y if it is not given.
    assert "$\\eta_Y = 2$, $\\eta_Z = 2$" in figure.axes[0].get_title()
    plt.close(figure)


def test_a_task_of_ones_own_has_its_first_classes_drawn() -> None:
    task = dynsim.Overlapping(K=8)
    attention = (("eta_y", "time", "class", "token"), np.full((1, 3, 8, 45), 1 / 45))
    coords = {"eta_y": [1.0], "time": [0, 1, 2], "token": np.arange(45)}
    found = dict.fromkeys(("training", "flow"), xr.Dataset({"attention": attention}, coords))
    figure = attention_maps.draw(found, np.arange(45), 1.0)
    assert len(figure.axes) == 2 * attention_maps.MOST_CLASSES + 1
    plt.close(figure)
    for config in (attention_maps.Figure4(task=task), attention_maps.Figure5(task=task)):
        assert {each.first.problem.task for each in config.sweeps().values()} == {task}
