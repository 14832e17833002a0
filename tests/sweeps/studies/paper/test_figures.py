"""The paper's numerical figures: what their arrays must satisfy, and errors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sweeps import cli
from sweeps.studies.paper import closed_forms


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def draw(tmp_path: Path, *arguments: str) -> dict[str, np.ndarray]:
    name = f"fig{arguments[0]}"
    assert cli.main(["figure", *arguments, "--out", str(tmp_path)]) == 0
    assert {path.suffix for path in tmp_path.glob(f"{name}.*")} >= {".png", ".npz"}
    return arrays(tmp_path / f"{name}.npz")


@pytest.mark.full("odes/yz/test_fixed_attention.py::test_lemma_7_bounds_the_discrete_decoder")
def test_figure_8_shows_lemma_7(tmp_path: Path) -> None:
    data = draw(tmp_path, "8", "--steps", "30", "20")
    for M, rates, steps in ((50, [0.1, 0.2, 0.5, 1, 2], 30), (1000, [0.2, 0.5, 1, 2, 4], 20)):
        np.testing.assert_array_equal(data[f"M{M}/eta_y"], rates)
        # Lemma 5 in plain Python.
        h_star = np.zeros((5, steps + 1))
        for row, eta in zip(h_star, rates, strict=True):
            for s in range(steps):
                row[s + 1] = row[s] + eta / (M - 1 + np.exp(M * row[s]))
        np.testing.assert_allclose(data[f"M{M}/h_star"], h_star, rtol=1e-12)
        difference = h_star - data[f"M{M}/h"]
        assert (difference > -1e-15).all()
        assert (difference <= 2 * np.array(rates)[:, None] / M).all()


@pytest.mark.full(
    "odes/formulas/test_growth.py::test_the_bound_at_the_transition_depends_on_the_ratio_of_rates_alone"
)
def test_figure_9_has_one_height_at_the_transition(tmp_path: Path) -> None:
    data = draw(tmp_path, "9")
    for nu, M in ((10, 100), (1, 10_000)):
        t, t0 = data[f"nu{nu}/t"], data[f"nu{nu}/t0"]
        assert (data[f"nu{nu}/B"][:, 0] == 0).all()
        # The largest root x of e^x = (M-1) x puts t0 at 2 x / eta_Y for K = 1.
        root = t0 * nu * np.array([0.5, 1, 2, 4, 8]) / 2
        np.testing.assert_allclose(np.exp(root), (M - 1) * root, rtol=1e-9)
        for curve, snap in zip(data[f"nu{nu}/B"], t0, strict=True):
            # Linear interpolation between 501 times of a curve with B'' ~ 1 / t0^2.
            at_snap = np.interp(snap, t, curve)
            np.testing.assert_allclose(at_snap, data[f"nu{nu}/B_at_t0"], rtol=5e-3)


def test_figure_3_orders_its_bounds_and_rates(tmp_path: Path) -> None:
    data = draw(tmp_path, "3", "--c0", "2", "--f", "0.7")
    np.testing.assert_array_equal(data["upper"][:, 0], 1)
    np.testing.assert_allclose(data["lower"], data["upper"] ** 0.49, rtol=1e-12)
    # At fixed eta_Z a smaller eta_Y snaps later and grows more in the end.
    assert (np.diff(data["t0"]) < 0).all()
    assert (np.diff(data["upper"][:, -1]) < 0).all()


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formulas in place of the paper's, which depend on all that they are given."""

    def bound(t: Any, eta_y: Any, eta_z: Any, K: int, M: int, **options: Any) -> Any:
        assert options["convention"] == "paper"
        extra = options["c0"] + 7 * options.get("printed", 0)
        return t * eta_y**2 + 3 * eta_z + K / M + extra

    def stages(eta_y: Any, K: int, M: int) -> Any:
        return SimpleNamespace(rise_end=K / eta_y, snap=M + K * eta_y)

    def bound_at_snap(K: int, M: int, ratio: float, **options: Any) -> float:
        return bound(0.0, 0.0, ratio, K, M, **options)

    monkeypatch.setattr(closed_forms.growth, "bound", bound)
    monkeypatch.setattr(closed_forms.growth, "bound_at_snap", bound_at_snap)
    monkeypatch.setattr(closed_forms.decoder, "stages", stages)
    monkeypatch.setattr(closed_forms.decoder, "h", lambda s, eta_y, M: s**2 * eta_y / M)
    steps = lambda eta_y, M, steps: np.arange(steps + 1.0)[:, None] * eta_y / M
    monkeypatch.setattr(closed_forms, "h_star", steps)


@pytest.mark.usefixtures("formulas")
def test_closed_forms_are_asked_for_at_all_rates_and_times() -> None:
    three = closed_forms.Figure3(eta_y=(0.2, 3.0), eta_z=0.7, K=4, M=9, end=35, c0=2.5, f=0.3)
    found, t = three.arrays(), np.arange(701) / 20
    np.testing.assert_allclose(found["t"], t)
    for i, eta_y in enumerate((0.2, 3.0)):
        B = t * eta_y**2 + 3 * 0.7 + 4 / 9 + 2.5
        np.testing.assert_allclose(found["upper"][i], np.exp(2 * B), rtol=1e-12)
        np.testing.assert_allclose(found["lower"][i], np.exp(2 * 0.3**2 * B), rtol=1e-12)
        assert (found["t0_prime"][i], found["t0"][i]) == (4 / eta_y, 9 + 4 * eta_y)

    usual = closed_forms.Figure8().arrays()
    for M, rates, last in (
        (50, [0.1, 0.2, 0.5, 1.0, 2.0], 80),
        (1000, [0.2, 0.5, 1.0, 2.0, 4.0], 70),
    ):
        eta, s = np.array(rates)[:, None], np.arange(last + 1)
        np.testing.assert_array_equal(usual[f"M{M}/eta_y"], rates)
        np.testing.assert_array_equal(usual[f"M{M}/s"], s)
        np.testing.assert_allclose(usual[f"M{M}/h"], s**2 * eta / M)
        np.testing.assert_allclose(usual[f"M{M}/h_star"], s * eta / M)

    for printed in (False, True):
        nine = closed_forms.Figure9(K=3, c0=0.5, printed=printed).arrays()
        for nu, M, end in ((10, 100, 5.0), (1, 10_000, 50.0)):
            eta_z, t = np.array([0.5, 1, 2, 4, 8])[:, None], np.linspace(0, end, 501)
            rest = 3 / M + 0.5 + 7 * printed
            np.testing.assert_allclose(nine[f"nu{nu}/t"], t)
            B = t * (nu * eta_z) ** 2 + 3 * eta_z + rest
            np.testing.assert_allclose(nine[f"nu{nu}/B"], B)
            np.testing.assert_allclose(nine[f"nu{nu}/t0"], M + 3 * nu * eta_z[:, 0])
            assert nine[f"nu{nu}/B_at_t0"] == pytest.approx(3 * nu + rest)
    assert closed_forms.Figure9() == closed_forms.Figure9(K=1, c0=1.0, printed=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["3", "--eta-y", "0"], "eta_y = 0.0: must be finite and in (0, inf)"),
        (["3", "--M", "5"], "M = 5: must be an integer >= 10"),
        (["3", "--f", "1.5"], "f = 1.5"),
        (["3", "--f", "0"], "f = 0.0: must be finite and in (0, 1]"),
        (["3", "--K", "2", "--M", "3"], "M = 3: must be an integer >= 4"),
        (["8", "--steps", "0", "5"], "steps = 0"),
        (["9", "--K", "0"], "K = 0: must be an integer >= 1"),
        (["9", "--c0", "0"], "c0 = 0.0: must be finite and in (0, inf)"),
    ],
)
def test_bad_input_is_named_and_nothing_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["figure", *arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
