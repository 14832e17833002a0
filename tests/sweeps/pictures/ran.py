"""What figures print and write, from made-up sweeps in place of training and theory.

`python -m tests.sweeps.pictures.ran` records it in ran.json, after a change on purpose. The
pictures themselves are those of `tests.sweeps.pictures`.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import dynsim
from dynsim import Status
from sweeps.runner.spec import Sweep
from sweeps.studies import qkv, sparse_attention
from sweeps.studies import tables as validate
from sweeps.studies.finite_size import figure as finite_size
from sweeps.studies.finite_size import order
from sweeps.studies.joma import figure as joma
from sweeps.studies.joma import invariant
from sweeps.studies.linear_icl import figure as linear_icl
from sweeps.studies.linear_icl import of_run, plateaus
from sweeps.studies.paper import attention_maps, figure6, figure7, figure10, recall
from sweeps.studies.phase import validity
from sweeps.studies.transitions import collapse, snap
from sweeps.studies.transitions.edge import figure as edge
from sweeps.studies.transitions.scaling import figure as scaling
from sweeps.studies.two_stage import figure as two_stage
from sweeps.studies.two_stage import phase as two_stage_phase
from sweeps.studies.words import figure as words
from sweeps.systems.experiment import experiment
from tests.sweeps.pictures import of_others
from tests.sweeps.pictures.shown import number

RECORD = Path(__file__).with_suffix(".json")
SIZES = {"class": 2, "token": 10, "component": 4, "layer": 1, "prompt": 1, "head": 1, "query": 1}
ENTRIES = {
    "attention": ("class", "token"),
    "B": ("class",),
    "conserved": ("token",),
    "layer_change": ("layer",),
    "layer_entropy": ("layer",),
    "layer_top": ("layer",),
    "learned": ("component",),
    "logits": ("query", "token"),
    "recall": ("threshold",),
    "speed": ("class",),
    "weight": ("token",),
    "z_top_common": ("class",),
    "z_top_distinct": ("class",),
    "z_top_common_std": ("class",),
    "z_top_distinct_std": ("class",),
}
"""Dimensions of what is recorded besides those of the runs and of time."""
THRESHOLDS = np.array([0.1, 0.3, 1.0, 3.0])


def made(sweep: Sweep, **entries: tuple[str, ...]) -> xr.Dataset:
    """Records of the shape of a sweep's, in which each run falls, and its tokens rise, at a time of
    its own; theories are a little apart from training."""
    coords, runs = {}, {}
    for dim in sweep.dims:
        runs[dim.name] = dim.size
        coords |= {name: (dim.name, np.asarray(values)) for name, values in dim.axes.items()}
    shape = tuple(runs.values())
    recorded = sweep.first.steps_recorded(sweep.times)
    # Two-stage runs set their own times.
    steps = np.linspace(0, 100, 21) if isinstance(recorded, int) else np.array(recorded, float)
    # Of runs that are alike but for the theory nothing else differs.
    apart = 0.05 * (np.arange(np.prod(shape)).reshape(*shape, 1) * 0.618 % 1)
    apart = apart + 0.001 * len(sweep.theory)
    switch = steps[-1] * (0.1 + apart)
    fall = 1 / (1 + (steps / switch) ** 4)
    found = {}
    for i, name in enumerate(sweep.names):
        own = {**ENTRIES, **entries}.get(name, ())
        sizes = {**SIZES, "threshold": THRESHOLDS.size}
        each = np.linspace(1, 0.5, int(np.prod([sizes[d] for d in own]))).reshape(
            [sizes[d] for d in own]
        )
        curve = fall if name == "loss" else 0.3 + 0.1 * i + fall * (1 - fall) + (1 - fall) * apart
        values = curve.reshape(*curve.shape, *[1] * len(own)) * each
        found[name] = (*runs, "time", *own), values
    status = np.full(shape, Status.OK)
    if "seed" in runs and runs["seed"] > 1:
        # The last run diverged.
        status.flat[-1] = Status.DIVERGED
    ended = {"status": (tuple(runs), status), "first_bad_step": (tuple(runs), 0 * status - 1)}
    at = {} if sweep.times == "end" else {"time": steps}
    data = xr.Dataset({**found, **ended}, {**coords, **at})
    if "recall" in sweep.names:
        data = data.assign_coords(threshold=THRESHOLDS)
    return data.isel(time=-1, drop=True) if sweep.times == "end" else data


def computed(config: Any) -> dict[str, xr.Dataset]:
    """In place of `sweeps.studies.computed`."""
    return {name: made(sweep) for name, sweep in config.sweeps().items()}


def ran(module: ModuleType, config: Any, **instead: Any) -> list[Any]:
    """What a study prints and writes: lines; arrays by name with their shapes, as one number each;
    reports and tables. `instead` are functions of the module that others stand in for."""
    usual = {"draw": lambda *_, **__: Figure(), "computed": computed}
    instead = {name: each for name, each in usual.items() if hasattr(module, name)} | instead
    text = io.StringIO()
    with contextlib.ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, other in instead.items():
            stack.enter_context(mock.patch.object(module, name, other))
        stack.enter_context(contextlib.redirect_stdout(text))
        paths = module.run(config(out))
        arrays: list[Any] = []
        for path in paths:
            if path.suffix == ".npz":
                with np.load(path) as kept:
                    arrays += [
                        [name, *kept[name].shape, *_numbers(kept[name])] for name in kept.files
                    ]
        reports = [_plain(json.loads(p.read_text())) for p in paths if p.suffix == ".json"]
        tables = [p.read_text().splitlines() for p in paths if p.suffix in (".csv", ".md")]
        named = [path.relative_to(out).as_posix() for path in paths]
    return [named, text.getvalue().splitlines(), arrays, reports, tables]


def _numbers(array: np.ndarray) -> list[Any]:
    """One number of numbers; words as they are."""
    if array.dtype.kind in "biuf":
        return [number(np.asarray(array, float))]
    return [str(each) for each in array.ravel()]


def _plain(report: Any) -> Any:
    """A report without what differs between machines, its numbers to six digits."""
    if isinstance(report, Mapping):
        return {k: _plain(v) for k, v in report.items() if k not in ("environment", "out")}
    if isinstance(report, list):
        return [_plain(each) for each in report]
    return float(f"{report:.6g}") if isinstance(report, float) else report


def _sized(**sizes: int) -> Any:
    """Other sizes of the dimensions of what is recorded."""
    return mock.patch.dict(SIZES, sizes)


def _of_linear_icl() -> list[Any]:
    return ran(linear_icl, lambda out: linear_icl.FigureLinearICL(out=out))


def _of_plateaus() -> list[Any]:
    sizes: dict[str, Any] = {"resolution": 3, "seeds": 3, "head_counts": (1, 4), "steps": 600}

    def found(config: plateaus.LinearICLPlateaus) -> dict[str, xr.Dataset]:
        """Losses that fall from where they start to the last plateau, by way of another one."""
        runs = {}
        for name, sweep in config.sweeps().items():
            runs[name] = one = made(sweep)
            level = of_run(sweep.first)
            one["loss"] = level[1] * (one.loss > 0.6) + (level[0] - level[1]) * one.loss
        return runs

    return ran(plateaus, lambda out: plateaus.LinearICLPlateaus(**sizes, out=out), computed=found)


def _of_joma() -> list[Any]:
    toy = {"time": np.arange(101) / 50, "entropy": np.linspace(2, 1, 101), "end": np.array(0.9)}
    closed = {f"closed/{name}": toy[name][::5] for name in ("time", "entropy")}
    along = np.arange(0, 2000, 50), 1 - 0.001 * np.arange(40)
    with mock.patch.object(joma, "toy_course", return_value={**toy, **closed}):
        return ran(joma, lambda out: joma.FigureJoMA(out=out), invariance=lambda *_: along)


def _of_invariant() -> list[Any]:
    with _sized(query=5):
        return ran(invariant, lambda out: invariant.JoMAInvariant(out=out))


def _of_retrieval() -> list[Any]:
    return ran(
        sparse_attention,
        lambda out: sparse_attention.FigureSparseAttention(out=out),
        noisy=lambda batch: 2.0 * batch,
    )


def _of_finite_size() -> list[Any]:
    errors = order.Errors(*(1 / np.arange(1.0, 19).reshape(3, 3, 2)))
    asked: list[Any] = []

    def second(rules: Mapping[float, Any], batches: Any, **options: Any) -> xr.Dataset:
        """The first order, a little larger, with draws."""
        asked.append([*rules, *batches, *options.values()])
        sweep = finite_size.FiniteSize(rates=tuple(rules)).sweeps()["sgd/spread"]
        found = made(sweep)
        drawn = {f"{n}_std_drawn": 0.1 * found[f"{n}_std"] for n in finite_size.OBSERVABLES}
        return (found * 1.1).assign(status=found.status, **drawn)

    with (
        mock.patch.object(finite_size.order, "against_enumeration", return_value=errors),
        mock.patch.object(finite_size.order, "against_samples", return_value=errors),
        mock.patch.object(finite_size, "LENGTHS", (64, 128, 256)),
        mock.patch.object(finite_size, "SAMPLED_LENGTHS", (8, 16, 32)),
    ):
        config = lambda out: finite_size.FiniteSize(
            seeds=8, steps=30, length=64, draws=16, rules=("adam", "sgd"), out=out
        )
        return ran(finite_size, config, second_order=second) + asked


def _of_attention_maps() -> list[Any]:
    with _sized(token=34):
        return [
            each
            for config in (attention_maps.Figure4, attention_maps.Figure5)
            for each in ran(attention_maps, lambda out, config=config: config(out=out))
        ]


def _of_figure6() -> list[Any]:
    config = lambda out: figure6.Figure6(num_queries=("1,3",), seeds=3, out=out)
    own = lambda out: figure6.Figure6(seeds=2, task=dynsim.SynMedium(1), training=False, out=out)
    return ran(figure6, config) + ran(figure6, own)


def _of_figure7() -> list[Any]:
    with _sized(layer=2, query=35, key=35):
        maps = ("prompt", "head", "layer", "query", "key")
        found = lambda config: {n: made(s, attention=maps) for n, s in config.sweeps().items()}
        return ran(figure7, lambda out: figure7.Figure7(layers=(2,), out=out), computed=found)


def _of_figure10() -> list[Any]:
    return ran(figure10, lambda out: figure10.Figure10(eta=(1.0, 3.0, 2.0), seeds=2, out=out))


def _of_recall() -> list[Any]:
    kinds = {recall.Figure11: {}, recall.Figure12: {"task": dynsim.SynSmall()}}
    found = [ran(recall, lambda out, k=k, o=o: k(seeds=2, out=out, **o)) for k, o in kinds.items()]
    return [each for one in found for each in one]


def _of_validity() -> list[Any]:
    return ran(validity, lambda out: validity.Validity(resolution=5, seeds=2, out=out))


def _of_snap() -> list[Any]:
    return ran(snap, lambda out: snap.Snap(rates=2, seeds=2, steps=100, out=out))


def _of_collapse() -> list[Any]:
    config = lambda out: collapse.Collapse(families=("momentum",), seeds=2, out=out)
    return ran(collapse, config)


def _of_scaling() -> list[Any]:
    config = lambda out: scaling.ScalingOfLayer(
        seeds=12, rate="eta_z:30:80:9", size="length:32,64,128,256", out=out
    )

    def found(config: scaling.ScalingFigure) -> dict[str, xr.Dataset]:
        """Entropies that fall at a rate of each seed, the more sharply the larger the size."""
        runs = made(config.sweeps()["runs"])
        seeds = np.linspace(-1, 1, runs.sizes["seed"])
        above = np.log(runs.eta_z / 50) - xr.DataArray(seeds, dims="seed") / runs.length**0.5
        fall = 1 / (1 + np.exp(-2 * above * runs.length**0.5))
        fall = fall.transpose(*runs.status.dims)
        label = {"long_name": "entropy of attention", "units": "nat"}
        runs["entropy"] = fall.assign_attrs(label)
        return {"runs": runs}

    return ran(scaling, config, computed=found)


def _of_two_stage() -> list[Any]:
    """The experiments that are asked for, and what is kept of them."""
    asked = []

    def runs(training: Any, seeds: int, times: int, out: Path) -> Any:
        asked.append([training.about, seeds, times, out.name])
        return of_others.experiment("two_stage", seeds)[0]

    def ode(runs: Any) -> Any:
        return runs.count

    def predicted(count: int) -> xr.Dataset:
        return of_others.experiment("two_stage", count)[1]

    def tested(found: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, list[Any]]:
        asked.append([*found, *predicted])
        return {"preset": []}

    with (
        mock.patch.object(two_stage.claims, "tested", tested),
        mock.patch.object(two_stage.claims, "table", lambda claims: f"{len(claims)} claims"),
        mock.patch.object(two_stage.claims, "as_records", list),
    ):
        config = lambda out: two_stage.FigureTwoStage(
            experiment("two_stage"), seeds=3, control_seeds=2, out=out
        )
        return ran(two_stage, config, runs=runs, ode=ode, run_sweep=predicted) + asked


def _of_two_stage_phase() -> list[Any]:
    """AUC of Q that is large at little noise and a large shift, with a point that did not end."""

    def found(config: two_stage_phase.TwoStagePhase) -> dict[str, xr.Dataset]:
        runs = {}
        for name, sweep in config.sweeps().items():
            one = made(sweep)
            auc = 0.5 + 0.5 / (1 + (3 * one.tau / one.r**2) ** 8) + 0 * one.status
            auc = auc.transpose(*one.status.dims)
            one = one.assign(auc_Q=auc)
            if "auc_Q_signal" in sweep.names:
                one = one.assign(auc_Q_signal=1.5 - auc)
            runs[name] = one
        return runs

    sizes: dict[str, Any] = {"resolution": 4, "points": 5, "seeds": 2, "eta_time": 150.0}
    config = lambda out: two_stage_phase.TwoStagePhase(**sizes, decay=0.04, r=(1.0, 2.0), out=out)
    return ran(two_stage_phase, config, computed=found)


def _of_qkv() -> list[Any]:
    def errors(config: qkv.FigureQKV, task: Any, width: int) -> dict[str, np.ndarray]:
        values = np.arange(1.0, 7).reshape(2, 3) / width
        return {name: values * (1 + i) for i, name in enumerate(qkv.THEORIES)}

    config = lambda out: qkv.FigureQKV(width=(8, 40), scale=(0.5, 1.0, 2.0), out=out)
    return ran(qkv, config, width_errors=errors)


def _of_words() -> list[Any]:
    """The trainings that are asked for, and what is kept of them."""
    asked = []
    estimate, found = of_others.classes_of_text()

    def estimated(tokens: Any, vocabulary: Any, **options: Any) -> Any:
        asked.append([tokens, vocabulary, options])
        return estimate

    def trained(task: Any, rule: Any, **options: Any) -> Any:
        rates = [float(np.asarray(each)) for each in jax.tree.leaves(rule.eta)]
        asked.append([task is estimate.task, *rates, {n: str(v) for n, v in options.items()}])
        return found

    sizes = {"num_queries": 3, "classes_per_query": 4, "length": 9, "tokens_per_class": 7}
    chosen: dict[str, Any] = {"stop_words": 2, "top": 5, "threshold": 0.7, "steps": 40, "seed": 3}
    rates = {"eta_y": 0.3, "eta_z": 0.2, "scale": 3.0}
    text = lambda config: mock.Mock(train="tokens", vocabulary="words")
    instead = {"corpus": text, "estimate_classes": estimated}
    with mock.patch.object(words, "fates", trained):
        full = lambda out: words.CorpusFigure(**sizes, **chosen, **rates, out=out)
        few = lambda out: words.CorpusFigure(**sizes, **chosen, batch=16, out=out)
        return [*ran(words, full, **instead), *ran(words, few, **instead), *asked]


def _of_edge() -> list[Any]:
    """Weights that swing in training and not in theory; the sharpness rises with the rate."""

    def found(config: edge.Edge) -> dict[str, xr.Dataset]:
        runs = {}
        for name, sweep in config.sweeps().items():
            runs[name] = one = made(sweep, params=("token",))
            swing = np.where(np.arange(one.sizes["time"]) % 2, 0.1, -0.1)
            swing = xr.DataArray(swing * (name == "training"), dims="time")
            if "params" in one:
                one["params"] = one.params + swing
            one["preconditioned_sharpness"] = 9 * one.eta * one.preconditioned_sharpness
            one["status"] = one.status.where(one.eta < 1, Status.DIVERGED)
            one["loss"] = one.loss * one.eta
        return runs

    config = lambda out: edge.Edge(rates=(0.3, 0.2, 1.2), steps=60, resolution=5, out=out)
    mean = lambda problem, run: float(run.preconditioned_sharpness.mean())
    with mock.patch.object(edge, "draw", return_value=Figure()):
        return ran(edge, config, computed=found, sharpness_of_mean=mean)


def _of_validate() -> list[Any]:
    """Tables, of errors that rise with the rates."""
    asked: list[Any] = []

    def errors(flow: str, rule: Any) -> np.ndarray:
        name = "momentum" if rule is validate.MOMENTUM else rule.__name__
        asked.append([flow, name])
        return 0.1 * np.outer(validate.GRID, validate.GRID) * len(flow) / 9 + 0.001

    def of_eq10(K: int, overlap: float) -> validate.Eq10Errors:
        return validate.Eq10Errors(*(overlap * K * np.arange(1.0, 7)))

    instead = {"flow_error": errors, "eq10_errors": of_eq10}
    found = [
        ran(validate, lambda out, what=what: validate.Validate(what, out=out), **instead)
        for what in ("matched", "adam", "overlap")
    ]
    return [each for one in found for each in one] + asked


EXAMPLES: dict[str, Callable[[], list[Any]]] = {
    "linear_icl": _of_linear_icl,
    "linear_icl_plateaus": _of_plateaus,
    "joma": _of_joma,
    "joma_invariant": _of_invariant,
    "sparse_attention": _of_retrieval,
    "finite_size": _of_finite_size,
    "figures 4 and 5": _of_attention_maps,
    "figure 6": _of_figure6,
    "figure 7": _of_figure7,
    "figure 10": _of_figure10,
    "figures 11 and 12": _of_recall,
    "validity": _of_validity,
    "snap": _of_snap,
    "collapse": _of_collapse,
    "scaling": _of_scaling,
    "two_stage": _of_two_stage,
    "two_stage_phase": _of_two_stage_phase,
    "qkv": _of_qkv,
    "words": _of_words,
    "edge": _of_edge,
    "validate": _of_validate,
}


def main() -> None:
    """Record all."""
    lines = []
    for name, example in EXAMPLES.items():
        parts = ",\n".join(f"  {json.dumps(part, ensure_ascii=False)}" for part in example())
        lines.append(f"{json.dumps(name)}: [\n{parts}\n]")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
