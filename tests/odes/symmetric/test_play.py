"""The page "Play with it" of the documentation in a real browser, Chromium, from disk: its flow in
JavaScript against `odes.symmetric`, and what a reader sees of it."""

from pathlib import Path

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


def drawn(rng, D, momentum):
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


def predicted(settings):
    """The curves (N, S, ...) of settings of the same D, in one program, by `odes.symmetric`."""
    column = {name: jnp.asarray([each[name] for each in settings], float) for name in settings[0]}
    (D,) = {each["D"] for each in settings}
    inert = bool(settings[0]["momentum"])

    def one(numbers, at):
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

    at = jnp.asarray([[0.0, *np.geomspace(1, each["steps"], POINTS - 1)] for each in settings])
    found = jax.jit(jax.vmap(one))(column, at)
    return {name: np.asarray(values) for name, values in found.items()}


def difference(screen, settings, theory):
    """The largest difference between the two, relative to the largest value of each curve."""
    worst = 0.0
    assert theory["ok"].all()
    names = ("loss", "speed", "entropy", "distinct", "common")
    for n, setting in enumerate(settings):
        rates = {"etaY": setting["eta_y"], "etaZ": setting["eta_z"]}
        rates["momentum"] = setting["momentum"]
        times = [0.0, *np.geomspace(1, setting["steps"], POINTS - 1)]
        found = screen.run("return symmetricFlow.solve(...arguments)", setting, rates, times)
        assert found["ok"], setting
        for name, theirs in zip(CURVES, names, strict=True):
            if name != "attention_common" or setting["C"]:
                values = np.array(found[theirs])
                wanted = theory[name][n].T.reshape(values.shape)
                off = np.abs(values - wanted).max() / (np.abs(wanted).max() or 1.0)
                worst = max(worst, float(off))
    return worst


@pytest.fixture(scope="module")
def screen(tmp_path_factory):
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


FULL = pytest.mark.full("test_its_flow_is_that_of_odes_symmetric")


@pytest.mark.parametrize(
    ("D", "momentum", "number"),
    [
        (10, False, 4),
        (10, True, 2),
        *(pytest.param(D, False, 40, marks=FULL) for D in (1, 3, 10, 30)),
        *(pytest.param(D, True, 10, marks=FULL) for D in (1, 3, 10, 30)),
    ],
)
def test_its_flow_is_that_of_odes_symmetric(screen, D, momentum, number):
    screen.open(screen.path.as_uri())
    rng = np.random.default_rng(number + momentum)
    settings = [drawn(rng, D, momentum) for _ in range(number)]
    settings = settings if momentum or D != 10 else [DEFAULT, *settings]
    wanted = predicted(settings)
    assert difference(screen, settings, wanted) < CLOSE
    if settings[0] is DEFAULT:
        # What the page shows has three digits of the same.
        rows = "return [...document.querySelectorAll('#play table tr')]"
        rows += ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        screen.until(lambda: screen.run(rows))
        head, *_, last = screen.run(rows)
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


@pytest.mark.parametrize(
    ("width", "dark"),
    [pytest.param(1200, False, marks=pytest.mark.full("test_everybody_can_use_it")), (400, True)],
)
def test_everybody_can_use_it(screen, width, dark):
    screen.open(screen.path.as_uri(), width, dark)
    screen.until(lambda: screen.run("return document.querySelector('#play table tr') !== null"))
    screen.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert screen.run("return document.documentElement.scrollWidth") <= width
    described = "return [...document.querySelectorAll('#play svg')].map((e) => e.ariaLabel)"
    assert all("from " in text for text in screen.run(described))
    assert screen.errors() == []
    assert screen.barriers() == []
