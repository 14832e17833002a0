"""The page "Play with it" of the documentation in a real browser, Chromium, from disk: its flow in
JavaScript against `odes.symmetric`, and what a reader sees of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from odes import symmetric

screens = pytest.importorskip(
    "tests.sweeps.commands.views.screen",
    reason="needs selenium of the extra `test`",
    exc_type=ModuleNotFoundError,
)
Keys, Screen = screens.Keys, screens.Screen

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.skipif(
        not (screens.CHROMIUM and screens.DRIVER),
        reason="needs chromium and chromedriver (Debian: chromium-driver)",
    ),
]

DOCS = Path(__file__).parents[3] / "docs"
STATIC = DOCS / "tools" / "static" / "play"
BLOCK = "```{raw} html\n"
CURVES = ("loss", "speed", "entropy", "attention_distinct", "attention_common")
POINTS = 41
# Relative to the largest value of a curve. The page integrates with rtol 1e-7 and atol 1e-9, odes
# with a tenth of these: errors add up to some of these tolerances over a run.
CLOSE = 3e-6

DEFAULT = {"D": 10, "C": 10, "rarest": 0.1, "weight": 1.0, "Q": 2, "K": 2, "M": 34}
DEFAULT |= {"eta_y": 1.0, "eta_z": 1.0, "momentum": 0.0, "steps": 1000.0}
"""What the page starts from: Syn-Small."""


def drawn(rng: np.random.Generator, D: int, momentum: bool) -> dict[str, Any]:
    """A random setting within the reach of the sliders."""
    Q, classes, C = (int(rng.integers(low, high)) for low, high in ((1, 10), (1, 6), (0, 30)))
    K = Q * classes
    return {
        "D": D,
        "C": C,
        "rarest": float(rng.uniform(0.1, 1)),
        "weight": float(10 ** rng.uniform(-1, 1)),
        "Q": Q,
        "K": K,
        "M": int(10 ** rng.uniform(0, 2) * (C + K * D + Q + K)),
        "eta_y": float(10 ** rng.uniform(-1, 1)),
        "eta_z": float(10 ** rng.uniform(-2, 1)),
        "momentum": float(rng.choice([0.9, 0.95, 0.99])) if momentum else 0.0,
        "steps": float(10 ** rng.uniform(1, 4 if momentum else 5)),
    }


def times(steps: float) -> list[float]:
    return [0.0, *np.geomspace(1, steps, POINTS - 1)]


def predicted(settings: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The curves (N, S, ...) of settings of the same D, in one program, by `odes.symmetric`."""
    column = {name: jnp.asarray([each[name] for each in settings], float) for name in settings[0]}
    (D,) = {each["D"] for each in settings}
    inert = bool(settings[0]["momentum"])

    def one(numbers: dict[str, jax.Array], at: jax.Array) -> dict[str, jax.Array]:
        # One token stands for all common ones, which it has copies of: none at all, where C is 0.
        C, weights = numbers["C"], jnp.linspace(numbers["rarest"], 1, D)
        rho = jnp.where(C > 0, numbers["weight"], 0)[None]
        total = weights.sum() + C * rho
        sizes = (numbers[name] for name in ("K", "M", "Q"))
        task = symmetric.SymmetricTask(weights / total, rho / total, *sizes, rho_copies=C[None])
        rates = numbers["eta_y"], numbers["eta_z"]
        rule = dynsim.sgd(*rates, momentum=numbers["momentum"]) if inert else dynsim.sgd(*rates)
        run = symmetric.solve(task, rule, at, record=CURVES)
        return {"ok": run.ok, **run.observables}

    at = jnp.asarray([times(each["steps"]) for each in settings])
    found = jax.jit(jax.vmap(one))(column, at)
    return {name: np.asarray(values) for name, values in found.items()}


def in_browser(screen: Any, setting: dict[str, Any]) -> dict[str, np.ndarray]:
    """The same of one setting, by the page's script."""
    rates = {"etaY": setting["eta_y"], "etaZ": setting["eta_z"], "momentum": setting["momentum"]}
    solve = "return symmetricFlow.solve(...arguments)"
    found = screen.run(solve, setting, rates, times(setting["steps"]))
    assert found["ok"], setting
    curves = (np.array(found[name]) for name in ("loss", "speed", "entropy", "distinct", "common"))
    return dict(zip(CURVES, curves, strict=True))


def difference(screen: Any, settings: list[dict[str, Any]], theory: dict[str, np.ndarray]) -> float:
    """The largest difference between the two, relative to the largest value of each curve."""
    worst = 0.0
    assert theory["ok"].all()
    for n, setting in enumerate(settings):
        for name, ours in in_browser(screen, setting).items():
            if name == "attention_common" and not setting["C"]:
                continue
            wanted = theory[name][n].T.reshape(ours.shape)
            scale = np.abs(wanted).max() or 1.0
            worst = max(worst, float(np.abs(ours - wanted).max() / scale))
    return worst


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser, and in `path` the part of the page that its scripts fill."""
    folder = tmp_path_factory.mktemp("play")
    text = (DOCS / "play.md").read_text()
    body = text.split(BLOCK)[1].split("```")[0].replace("_static/play", STATIC.as_uri())
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += '<meta name="color-scheme" content="light dark"><title>Play with it</title>'
    head += "<style>body { background: Canvas }</style>"
    page = f'<!doctype html><html lang="en"><head>{head}</head><body><main><h1>Play with it</h1>'
    with screens.opened(folder / "profile") as found:
        found.path = folder / "page.html"
        found.path.write_text(f"{page}{body}</main></body></html>")
        yield found


def rows(screen: Any) -> list[list[str]]:
    script = "return [...document.querySelectorAll('#play table tr')]"
    return screen.run(f"{script}.map((row) => [...row.cells].map((cell) => cell.textContent))")


def test_its_flow_is_that_of_odes_symmetric(screen: Any) -> None:
    screen.open(screen.path.as_uri())
    rng = np.random.default_rng(0)
    settings = [DEFAULT, *(drawn(rng, 10, False) for _ in range(4))]
    wanted = predicted(settings)
    assert difference(screen, settings, wanted) < CLOSE
    # What the page shows has three digits of the same.
    screen.until(lambda: rows(screen))
    head, *_, last = rows(screen)
    shown = dict(zip(head, map(float, last), strict=True))
    for name, value in (
        ("step", 1000.0),
        *((name, wanted[name][0, -1]) for name in ("loss", "entropy")),
        ("speed", wanted["speed"][0, -1, 0]),
        ("rarest distinct token", wanted["attention_distinct"][0, -1, 0]),
        ("most frequent distinct token", wanted["attention_distinct"][0, -1, -1]),
        ("each common token", wanted["attention_common"][0, -1, 0]),
    ):
        assert shown[name] == pytest.approx(float(value), rel=5e-3), name


def test_its_flow_of_momentum_is_that_of_odes_symmetric(screen: Any) -> None:
    screen.open(screen.path.as_uri())
    rng = np.random.default_rng(1)
    settings = [drawn(rng, 10, True) for _ in range(2)]
    assert difference(screen, settings, predicted(settings)) < CLOSE


@pytest.mark.full("test_its_flow_is_that_of_odes_symmetric")
def test_its_flow_is_that_of_odes_symmetric_at_200_settings(screen: Any) -> None:
    screen.open(screen.path.as_uri())
    rng = np.random.default_rng(2)
    for D in (1, 3, 10, 30):
        for momentum, number in ((False, 40), (True, 10)):
            settings = [drawn(rng, D, momentum) for _ in range(number)]
            assert difference(screen, settings, predicted(settings)) < CLOSE


def test_its_program_solves_what_it_draws(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keyboard moves a slider; words, and the program in Python, follow."""
    screen.open(screen.path.as_uri())
    before = screen.until(lambda: screen.run("return document.querySelector('.says').textContent"))
    assert "peaks at step 6.98" in before
    screen.slide("play-etaZ", Keys.ARROW_LEFT)
    screen.slide("play-steps", Keys.HOME)
    words = lambda: screen.run("return document.querySelector('.says').textContent")
    screen.until(lambda: "At step 10 " in words())
    given: list[Any] = []
    monkeypatch.setattr(symmetric, "solve", lambda *every, **_: given.extend(every))
    program = screen.run("return document.querySelector('#play pre').textContent")
    exec(program.removesuffix("print(run)"), {})
    task, rule, at = given
    small = symmetric.symmetric_task(dynsim.SynSmall().build())
    for name in ("K", "M", "num_queries"):
        assert getattr(task, name) == getattr(small, name)
    np.testing.assert_allclose(task.p, small.p, rtol=1e-12)
    np.testing.assert_allclose(task.rho, small.rho, rtol=1e-12)
    assert rule == dynsim.sgd(1, 0.89)
    assert at[-1] == 10
    assert screen.errors() == []


@pytest.mark.parametrize(
    ("width", "dark"),
    [pytest.param(1200, False, marks=pytest.mark.full("test_everybody_can_use_it")), (400, True)],
)
def test_everybody_can_use_it(screen: Any, width: int, dark: bool) -> None:
    screen.open(screen.path.as_uri(), width, dark)
    screen.until(lambda: rows(screen))
    screen.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert screen.run("return document.documentElement.scrollWidth") <= width
    described = "return [...document.querySelectorAll('#play svg')].map((e) => e.ariaLabel)"
    assert all("from " in text for text in screen.run(described))
    assert screen.errors() == []
    assert screen.barriers() == []
