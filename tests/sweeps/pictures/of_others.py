"""Pictures of other systems and of weights and words, from made-up data."""

import functools
from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import dynsim
from dynsim import Status, Trajectory
from dynsim.classes.corpus import Estimate
from dynsim.training.recording import PRECONDITIONED
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.observables import RankCurves
from sweeps.studies import qkv
from sweeps.studies.finite_size import figure as finite_size
from sweeps.studies.finite_size import order
from sweeps.studies.optimum import figure as optimum_figure
from sweeps.studies.optimum.best import best, transfer
from sweeps.studies.phase.refinement import Lattice, Refinement
from sweeps.studies.spectrum import checkpoint as singular
from sweeps.studies.spectrum import figure as spectrum
from sweeps.studies.spectrum.checkpoint import Decomposed, Record
from sweeps.studies.trainability import figure as trainability
from sweeps.studies.transitions.edge import figure
from sweeps.studies.transitions.scaling.analysis import Scaling, scaling
from sweeps.studies.transitions.scaling.figure import draw
from sweeps.studies.transitions.scaling.laws import Collapse
from sweeps.studies.two_stage import figure as two_stage
from sweeps.studies.two_stage import finite, phase
from sweeps.studies.two_stage.claims import Runs
from sweeps.studies.words import figure as words
from sweeps.studies.words.fates import RULES, THEORIES, Fates, Score
from sweeps.systems.experiment import experiment as described


def curves(count: int, steps: np.ndarray, switch: float) -> dict[str, np.ndarray]:
    """P is learned in the first stage, Q in the second."""
    first, second = np.exp(-steps / (switch / 3)), np.exp(-np.maximum(steps - switch, 0) / switch)
    scale = (1 + 0.03 * np.arange(count))[:, None]
    found = {
        "K1": 0.69 * first,
        "K2": 0.35 + 0.35 * second,
        "J": 0.35 + 0.5 * second,
        "accuracy_P": 1 - 0.5 * first,
        "accuracy_Q": 0.75 - 0.25 * second,
        "best_accuracy_Q": 0.99 - 0.4 * second,
        "auc_Q": 1 - 0.5 * second,
        "W_trace": 3 * (1 - first),
        "V_trace_abs": 5 * (1 - second),
        "W_norm": 4 - first,
        "V_norm": 6 - second,
        **{f"{block}_signal_norm": 3.5 - first for block in "WV"},
        **{f"{block}_noise_norm": 1 + first for block in "WV"},
    }
    return {name: values * scale for name, values in found.items()}


def dataset(values: dict[str, np.ndarray], steps: np.ndarray) -> xr.Dataset:
    """Runs over `seed` that recorded at these steps."""
    count = len(next(iter(values.values())))
    status = np.zeros(count, int)
    times = np.broadcast_to(steps, (count, steps.size))
    return Trajectory(times, values, None, status, status - 1, "").to_xarray(("seed",))


def experiment(problem: str, count: int = 3) -> tuple[Runs, xr.Dataset]:
    """Runs of two-stage training, and a theory of them."""
    training = described(problem)
    first, second = Annealing.of(training.rule).steps
    steps = np.unique(np.r_[0, np.geomspace(1, float(first + second), 40).astype(int), int(first)])
    eta_time = steps * 0.02
    runs = Runs(training, steps.astype(float), eta_time, curves(count, steps, float(first)), 0)
    solved = {name: runs.values[name][:1] * 1.02 for name in dynsim.Prompts.COMPARED}
    return runs, dataset(solved, steps)


def two_stages(problem: str) -> Figure:
    names = ("preset", "joint", *two_stage.CONTROLS)
    made = {n: experiment("two_stage-joint" if n == "joint" else problem) for n in names}
    found, predicted = ({n: each[i] for n, each in made.items()} for i in (0, 1))
    return two_stage.draw(found, predicted)


def two_stage_finite() -> Figure:
    lengths = np.array(finite.LENGTHS, float)
    found = {
        f"{loss}, {moment}": finite.Remainder(
            size / lengths, size / lengths**2, size / lengths**2, 0.01 / lengths**2
        )
        for moment in finite.MOMENTS[1:]
        for loss, size in (("K1", 1.0), ("K2", 3.0))
    }
    return finite.draw(found)


def two_stage_plane() -> Figure:
    config = phase.TwoStagePhase()

    def plane(number: int) -> xr.DataArray:
        axes = {name: np.geomspace(*getattr(config, name), number) for name in ("tau", "r")}
        tau, r = axes.values()
        return xr.DataArray(0.5 + 0.5 / (1 + (3 * tau[:, None] / r**2) ** 8), axes)

    r = np.geomspace(*config.r, 50)
    lines = {"r": r, "infinite_time": r**2 / 3, "finite_time": r**2 / 3.5}
    return phase.draw(config, plane(25), plane(6), lines)


def checkpoint(names: Sequence[str], square: bool) -> Figure:
    """Random matrices with a few directions more."""
    rng = np.random.default_rng(0)
    records = []
    for place, name in enumerate(names):
        shape = (40, 40) if square else (40, 60 + 20 * (place % 3))
        weights = rng.normal(size=shape)
        weights[0] += 3 + place
        sigma = np.linalg.svd(weights, compute_uv=False)
        own = singular.numbers(sigma)
        null = singular.null(own.frobenius, *shape, None)
        records.append(
            Decomposed(
                name, shape, None, "float32", "ok", sigma, numbers=own, null_sigma=null,
                null=singular.numbers(null), edge=singular.edge(own.frobenius, *shape, None),
                spikes=1, trace=float(np.trace(weights)) if square else None,
            )
        )  # fmt: skip
    return spectrum.draw_checkpoint(records)


def mixed_checkpoint() -> Figure:
    """A square matrix, one that is not, a product, a zero matrix and one with an infinite entry."""
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(12, 5)), rng.normal(size=(5, 12))
    named = {
        "h.0.W": (rng.normal(size=(12, 12)) + 1, None),
        "h.1.W": (rng.normal(size=(12, 30)), None),
        "Q @ K": (factors[0] @ factors[1], 5),
        "h.2.W": (np.zeros((7, 7)), None),
    }
    records: list[Record] = []
    for name, (matrix, inner) in named.items():
        sigma, (m, n) = np.linalg.svd(matrix, compute_uv=False), matrix.shape
        own = singular.numbers(sigma)
        null = singular.null(own.frobenius, m, n, inner)
        status = "ok" if matrix.any() else "zero"
        trace = float(np.trace(matrix)) if m == n else None
        records.append(
            Decomposed(
                name, (m, n), inner, "float32", status, sigma, trace, numbers=own, null_sigma=null,
                null=singular.numbers(null), edge=singular.edge(own.frobenius, m, n, inner),
                spikes=0,
            )
        )  # fmt: skip
    records.insert(1, Record("h.3.W", (4, 4), None, "float32", "not finite", np.empty(0)))
    return spectrum.draw_checkpoint(records)


def truncated(count: int) -> Figure:
    """Singular values that fall, and what is kept and dropped with them, each at its own speed."""

    def curve(run: int, stage: int) -> RankCurves:
        rank = np.arange(15) / 14
        named = ("K1", "K2", "accuracy_P", "auc_Q", "best_accuracy_Q")
        kept = {n: 0.5 + 0.4 * rank**i + 0.01 * run * stage for i, n in enumerate(named, 1)}
        dropped = {name: 1.2 - values for name, values in kept.items()}
        block = (np.arange(14) + stage) // 3 % 2
        return RankCurves(np.exp(-np.arange(14) / (2 + stage + run)), block, kept, dropped)  # pyright: ignore

    stages = {f"stage {stage}": [curve(i, stage) for i in range(count)] for stage in (1, 2)}
    return spectrum.draw("default", stages)


def trained_plane(levels: int, size: float = 0.1, lines: bool = False) -> Figure:
    """A boundary that is an ellipse off the middle, inside of which runs train, and both edges.
    Losses vary on either side of 1, and are not finite in a corner."""
    config = trainability.Trainability(levels=levels)
    side = config.cells * 2**levels

    def measure(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = ((points / side - (0.6, 0.35)) ** 2) @ (1.0, 2.0)
        far = np.where(away < 0.3, 20 * away, np.nan)
        return (away < size).astype(int), np.where(away < size, 0.02 + 9 * away, far)

    found = Refinement(Lattice((side, side), (config.cells, config.cells), levels), measure)
    fit = (levels - 1, levels) if levels == 2 else (1, levels - 1)
    dimension = trainability.box_dimension(found.levels(), fit)
    rates = config.axes(config.cells)
    up, across = (np.log(values / values[5]) for values in rates.values())
    edges = {
        "edge-start": xr.DataArray(up[:, None] + 0.2 * across, rates),
        "edge": xr.DataArray(up[:, None] + 0.5 * across + 1, rates),
    }
    return trainability.draw(config, found, dimension, fit, edges if lines else {})


def optimal(number: int) -> tuple[xr.Dataset, xr.Dataset, dict[str, xr.Dataset], xr.Dataset]:
    """Three rules over a batch: one grows up to where most runs diverge, one is best at the end of
    the rates, and one transfers."""
    rules, eta = ("sgd", "momentum", "adam"), np.geomspace(1e-3, 30, 23)
    batch = 2 ** np.arange(2, 2 + number)
    middle = np.stack([0.05 * batch**0.5, 100.0 + 0 * batch, 0.01 * batch**0.01])
    away = np.log(eta / middle[..., None])[..., None] + 0.2 * np.linspace(-1, 1, 4)
    dims = ("rule", "batch", "eta", "seed")
    status = np.where(away > 2.5, Status.DIVERGED, Status.OK)
    label = {"long_name": "mean loss of the last 20 steps over that of the first", "units": "1"}
    dataset = xr.Dataset(
        {"status": (dims, status), "loss": (dims, np.exp(0.1 * away**2), label)},
        {"rule": list(rules), "batch": batch, "eta": eta, "seed": range(4)},
    )
    dataset["eta"].attrs = {"long_name": "learning rate of Z", "units": "1/step"}
    trained = best(dataset)
    predicted = {rule: trained.sel(rule=[rule]).isel(batch=-1) for rule in rules}
    return dataset, trained, predicted, transfer(trained, "batch")


def optimum(number: int) -> Figure:
    theory, title = "descent, T infinite, batch infinite", "yz: steps = 100, mean of 4 seeds"
    return optimum_figure.draw(*optimal(number), theory, title)


def scaled(drift: float, linear: bool) -> tuple[Scaling, xr.DataArray]:
    """Five sizes, whose steps narrow, and move as a power of the size if there is a drift."""
    rate = np.linspace(0.1, 5, 41) if linear else np.geomspace(0.05, 3000 if drift else 30, 61)
    sizes, seeds = 2 ** np.arange(2, 7), np.random.default_rng(0).logistic(size=30)
    x = rate if linear else np.log(rate)
    step = 1.5 + drift * np.log(sizes / 4)
    above = x[:, None] - step[:, None, None] > seeds * sizes[:, None, None] ** -0.5
    label = {"long_name": "share of runs that diverge", "units": "1"}
    values = xr.DataArray(
        above.astype(float), {"K": sizes, "eta_z": rate, "seed": range(30)}, attrs=label
    )
    values["eta_z"].attrs = {"long_name": "learning rate of Z", "units": "1/step"}
    found = scaling(x, sizes, values.values, draws=4)
    # That of a search in steps, which rounding may turn, is made up as well.
    collapse = found.collapse and Collapse(1.5, 0.52, 0.11, (0.01, 0.03, 0.02), 0.7 + drift)
    return found._replace(collapse=collapse), values


def steps(drift: float, linear: bool) -> Figure:
    found, values = scaled(drift, linear)
    title = "yz: task = overlapping, steps = 100, 30 seeds. " + found.verdict.capitalize()
    return draw(found, values, linear, title)


def edge(mapped: bool) -> Figure:
    """Five rates, of which the last diverges; with maps of all regions."""
    times, rates = np.arange(100), [0.1, 0.3, 0.4, 0.5, 0.6]
    swing = np.where(times % 2, 1.1, 0.9) * np.ones((5, 1))
    coords = {"eta": rates, "time": times}
    arrays = dict.fromkeys(("loss", PRECONDITIONED), (("eta", "time"), swing))
    run = xr.Dataset({**arrays, "status": ("eta", [0, 0, 0, 0, 1])}, coords)
    plane = np.arange(36).reshape(6, 6) % 4
    axes = {"scale": np.geomspace(0.3, 3, 6), "eta": np.geomspace(0.1, 2, 6)}
    maps = xr.Dataset(dict.fromkeys(("theory", "training"), (("scale", "eta"), plane)), axes)
    names = ("training", "flow", "central")
    losses = dict.fromkeys(names, "loss")
    found = dict.fromkeys(names, run)
    return figure.draw(found, losses, maps if mapped else None, "linear_icl")


def classes_of_text() -> tuple[Estimate, Fates]:
    """Two queries of three classes, twelve words each, and what became of these."""
    K, M, S = 6, 40, 20
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(M), K)
    task = dynsim.sequence_classes(probs, [0, 0, 0, 1, 1, 1])
    vocabulary = ("the", "of", "captain", "$", "hospital", "<unk>", "representatives", "ship")
    text = tuple(f"{vocabulary[i % 8]}{i // 8 or ''}" for i in range(M))
    some = np.zeros(K)
    estimate = Estimate(task, text, np.arange(M), np.full(K, 9), some, some, 0.9, 35)
    z = rng.normal(size=(S, K, M)).cumsum(0)
    top = probs >= np.sort(probs)[:, -12:].min(1, keepdims=True)
    names = (*RULES, *THEORIES)
    signs = {name: np.sign(z + rng.normal(size=z.shape)).astype(np.int8) for name in names}
    rising = np.linspace(0.6, 1, S)
    base = np.full(S, 0.6)
    scores = {
        name: Score(rising - 0.02 * i, rising, base, base, np.ones((S, K)), 1.0)
        for i, name in enumerate(names)
    }
    times = np.geomspace(2, 1000, S)
    return estimate, Fates(times, z, rising, rising, 0, {}, {}, signs, top, scores)


def fates() -> Figure:
    return words.draw(*classes_of_text())


def finite_sizes() -> Figure:
    def errors(lengths: Sequence[int], reference: float) -> order.Errors:
        T = np.array(lengths, float)[:, None] * np.array([1.0, 2.0])
        return order.Errors(1 / T, 5 / T**2, np.full_like(T, reference))

    ratios = {}
    for name, rule in finite_size.RULES.items():
        values = np.ones((3, 2))
        ratios[name] = xr.Dataset(
            {f"{o}{end}": (("eta_z", "batch"), values * size)
             for o in finite_size.OBSERVABLES for end, size in (("", 0.9), ("_error", 0.05))},
            {"eta_z": list(rule.rates), "batch": list(finite_size.BATCHES)},
        )  # fmt: skip
    return finite_size.draw(
        errors(finite_size.LENGTHS, 0.0), errors(finite_size.SAMPLED_LENGTHS, 1e-4), ratios, ratios
    )


def factors() -> Figure:
    """Errors from a permille to several hundred percent, one of which is not known."""
    config = qkv.FigureQKV()
    plain, own = np.geomspace(1e-3, 5, 80).reshape(2, 2, 4, 5)
    own[1, 2, 3] = np.nan
    return qkv.draw(config, {"plain": plain, "factors": own}, 34)


SHORT = ("W_Q", "W_K", "W_V")
NAMED = tuple(f"h.{i}.{name}.weight" for i in range(spectrum.NAMED // 4) for name in "abcd")
"""As many as have a name of their own."""
LONG = tuple(f"transformer.h.{i}.attn.c_attn.weight[{j}]" for i in range(4) for j in range(3))
EXAMPLES = {
    "two_stage": functools.partial(two_stages, "two_stage"),
    "two_stage_finite": two_stage_finite,
    "two_stage_phase": two_stage_plane,
    "spectrum": functools.partial(truncated, 3),
    "spectrum, one": functools.partial(truncated, 1),
    "spectrum, mixed": mixed_checkpoint,
    "spectrum, three": functools.partial(checkpoint, SHORT, square=True),
    "spectrum, shapes": functools.partial(checkpoint, LONG[:4], square=False),
    "spectrum, named": functools.partial(checkpoint, NAMED, square=True),
    "spectrum, many": functools.partial(checkpoint, LONG, square=True),
    "trainability": functools.partial(trained_plane, 4, lines=True),
    "trainability, two": functools.partial(trained_plane, 2),
    "trainability, none": functools.partial(trained_plane, 2, size=0.0),
    "optimum": functools.partial(optimum, 6),
    "optimum, many": functools.partial(optimum, 12),
    "scaling": functools.partial(steps, 0.0, linear=False),
    "scaling, linear": functools.partial(steps, 0.0, linear=True),
    "scaling, moving": functools.partial(steps, 0.9, linear=False),
    "scaling, level": functools.partial(steps, 99.0, linear=False),
    "edge": functools.partial(edge, mapped=True),
    "edge, curves": functools.partial(edge, mapped=False),
    "corpus": fates,
    "finite_size": finite_sizes,
    "qkv": factors,
}
