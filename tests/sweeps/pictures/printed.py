"""What studies print, from made-up data: lines of text."""

import dataclasses
from collections.abc import Callable
from unittest import mock

import numpy as np
import xarray as xr

from dynsim.two_stage.observables import RankCurves
from sweeps.studies import qkv, sparse_attention
from sweeps.studies.finite_size import figure, order
from sweeps.studies.finite_size import figure as finite_size
from sweeps.studies.joma import figure as joma
from sweeps.studies.joma import invariant
from sweeps.studies.joma.figure import ACTIVATIONS, RATE, dense_lines, error_lines, toy_lines
from sweeps.studies.linear_icl import figure as linear_icl
from sweeps.studies.linear_icl import plateaus
from sweeps.studies.optimum import figure as optimum
from sweeps.studies.transitions.scaling.figure import in_words
from sweeps.studies.two_stage import claims, finite
from tests.sweeps.pictures import of_others
from tests.sweeps.pictures.of_systems import fallen


def of_joma() -> list[str]:
    time = np.geomspace(1, 2000, 100)
    along = {kind: (time, 1 - 0.02 * i * time / 2000) for i, kind in enumerate(joma.SEQUENCES, 1)}
    fall = np.abs(np.linspace(-1, 3, 101)) + 0.5
    names = ("time", "entropy", "closed/time", "closed/entropy", "end")
    times = RATE * np.arange(101)
    course = dict(zip(names, (times, fall, times[::7], fall[::7], np.array(1.7)), strict=True))
    dense, dims = np.linspace(0, 1, 12).reshape(2, 6), ("seed", "time")
    curves = {"entropy": (dims, np.abs(dense - 0.4)), "loss": (dims, 1 - dense)}
    coords = {"seed": [0, 1], "time": 10.0 * np.arange(6)}
    run = xr.Dataset({**curves, "status": ("seed", [0, 0])}, coords)
    z = np.arange(48.0).reshape(2, 2, 6, 1, 2)
    moved = ("temperature", *dims, "query", "token")
    some = run.expand_dims(temperature=[0.5, 2.0]).assign(
        logits=(moved, z), conserved=((*dims, "token"), np.sin(z[0, :, :, 0]))
    )
    found = {f"entropy/{a}": some for a in ACTIVATIONS} | {"dense/softmax-relu/32": run}
    return [
        *joma.invariance_lines(along),
        *toy_lines(course),
        *dense_lines(found),
        *error_lines(found),
    ]


def of_invariant() -> list[str]:
    config = invariant.JoMAInvariant()
    axes = {
        "temperature": list(config.temperatures),
        "num_common": list(config.common),
        "classes_per_query": list(config.classes),
    }
    shape = [len(each) for each in axes.values()]
    errors = xr.DataArray(np.geomspace(1e-3, 3, np.prod(shape)).reshape(shape), axes)
    of_queries = xr.DataArray([0.01, 0.3], {"num_queries": [1, 3]})
    sums = {kind: {"sum": of_queries, "own": 2 * of_queries} for kind in invariant.KINDS}
    maps = {"relu": errors, "tanh": errors / 2}
    return [*invariant.map_lines(maps), *invariant.query_lines(sums)]


def of_retrieval() -> list[str]:
    config = sparse_attention.FigureSparseAttention()
    found = {name: fallen(sweep) for name, sweep in config.sweeps().items()}
    for rule in sparse_attention.RULES:
        for T, d in sparse_attention.LADDERS:
            run = found[f"{rule}/{T}-{d}"]
            found[f"{rule}/{T}-{d}"] = run.assign_coords(time=run.time * T**0.9 * d**0.6)
    with mock.patch.object(sparse_attention, "noisy", lambda batch: 2.0 * batch):
        exponents = sparse_attention.exponent_lines(found, 32)
    lines = [*sparse_attention.length_lines(found), *sparse_attention.copies_lines(found)]
    return [*lines, *exponents]


def of_regression() -> list[str]:
    found = {name: fallen(sweep) for name, sweep in linear_icl.FigureLinearICL().sweeps().items()}
    found["network/simulation"] = found["network/simulation"] * 1.01
    escapes = linear_icl.escape_table(found, 0.5, np.linspace(1, 0.1, 5))
    return [*escapes, linear_icl.same_line(found)]


def of_finite_size() -> list[str]:
    lengths = np.array(figure.SAMPLED_LENGTHS, float)[:, None] * np.array([1.0, 2.0])
    syn = order.Errors(1 / lengths, 5 / lengths**2, 1e-3 / lengths)
    slopes = {name: {"infinite": -0.98, "finite": -1.97} for name in order.RECORD}
    ratios, means = {}, {}
    for place, (name, rule) in enumerate(figure.RULES.items()):
        axes = {"eta_z": list(rule.rates), "batch": list(figure.BATCHES)}
        values = 0.9 + 0.01 * np.arange(6.0).reshape(3, 2) + place
        each = {o: (("eta_z", "batch"), values + i) for i, o in enumerate(finite_size.OBSERVABLES)}
        errors = {f"{o}_error": (("eta_z", "batch"), values / 10) for o in finite_size.OBSERVABLES}
        ratios[name] = xr.Dataset({**each, **errors}, axes)
        names = ("first", "second", "error")
        means[name] = xr.Dataset(dict.fromkeys(names, (("eta_z", "batch"), values / 50)), axes)
    lines = figure.order_lines(slopes, syn)
    return [*lines, *figure.ratio_lines(ratios, "first"), *figure.mean_lines(means)]


def of_two_stage_finite() -> list[str]:
    lengths = np.array(finite.LENGTHS, float)
    errors = (1 / lengths, 3 / lengths**2, 2 / lengths**2, 0.01 / lengths**2)
    found = {
        "K1, end": finite.Remainder(*errors),
        "K2, end": finite.Remainder(*errors[:3], errors[0]),
    }
    variances = np.geomspace(1e-3, 1, 21).reshape(3, 7)
    return [*finite.length_lines(found), *finite.batch_lines(variances, variances[:, :2], 0.4)]


def of_plateaus() -> list[str]:
    axes = {"scale": [0.02, 0.1, 1.0], "ratio": [0.5, 1.0], "seed": [0, 1]}
    place = np.indices((3, 2, 2)).sum(0)
    lines = plateaus.table(
        xr.DataArray(place % 3 == 0, axes), xr.DataArray(0.3 * place - 0.5, axes)
    )
    heads_of = {"heads": [1, 3], **axes}
    rest = np.arange(24.0).reshape(2, 3, 2, 2)
    level = xr.DataArray(
        [[1.0, 0.6, 0.3], [1.0, 0.5, 0.1]], {"ratio": [0.5, 1.0]}, ("ratio", "plateau")
    )

    def read(scale: float) -> xr.Dataset:
        values = {
            "plateaus": np.round(rest / 8 * scale),
            "escape": 1 + scale * rest,
            "end": 0.6 - rest / 60,
        }
        arrays = {n: xr.DataArray(each, heads_of) for n, each in values.items()}
        return xr.Dataset({**arrays, "level": level})

    both = {"heads/simulation": read(1.0), "heads/scalar": read(0.8)}
    return [*lines, *plateaus.table_by_heads(both, 2)]


def of_claims() -> list[str]:
    runs, prediction = of_others.experiment("two_stage")
    K1, K2 = runs["K1"] + 0.01, runs["K2"]
    more = {"K1": K1, "K1_signal": K1 - 0.1, "K2_signal": K2 + 0.2}
    runs = dataclasses.replace(runs, values={**runs.values, **more})
    rank = np.arange(4) / 4
    kept = dict.fromkeys(("K1", "K2", "auc_Q"), 0.4 + rank / 3)
    curves = RankCurves(np.ones(4), np.arange(4) % 2, kept, kept)
    with mock.patch.object(claims, "truncations", return_value=curves):
        found = claims.tested(
            dict.fromkeys(("preset", "joint", "forever"), runs),
            dict.fromkeys(("preset", "joint"), prediction),
        )
    return [line for each in found.values() for line in claims.table(each).splitlines()]


def of_scaling() -> list[str]:
    lines = []
    for drift, linear in ((0.0, False), (0.0, True), (0.9, False)):
        found, values = of_others.scaled(drift, linear)
        lines += in_words(found, values, linear)
    return lines


def of_optimum() -> list[str]:
    _, trained, predicted, laws = of_others.optimal(6)
    lines = optimum.table(trained, predicted, "batch")
    return [*lines, *optimum.verdicts(trained, predicted, laws, "batch")]


def of_factors() -> list[str]:
    config = qkv.FigureQKV()
    shape = (2, len(config.width), len(config.scale))
    errors = np.geomspace(1e-3, 3, 40)[: np.prod(shape)].reshape(shape)
    return qkv.table(
        config, {name: (i + 1) * errors for i, name in enumerate(qkv.THEORIES)}
    ).splitlines()


EXAMPLES: dict[str, Callable[[], list[str]]] = {
    "joma": of_joma,
    "joma_invariant": of_invariant,
    "sparse_attention": of_retrieval,
    "linear_icl": of_regression,
    "finite_size": of_finite_size,
    "two_stage_finite": of_two_stage_finite,
    "linear_icl_plateaus": of_plateaus,
    "two_stage": of_claims,
    "scaling": of_scaling,
    "optimum": of_optimum,
    "qkv": of_factors,
}
