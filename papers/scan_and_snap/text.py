"""Training of transformers on text, for Figs. 7 and 10."""

import textwrap
from pathlib import Path

import numpy as np
import xarray as xr
from scipy import stats

import dynsim
import sweeps

RUN = {"problem": "transformer", "clip": 0.5}
"""Settings of the runs. Without clipping SGD diverges at learning rates above 2."""
INTERVALS = 20
"""Number of equally long intervals between records, so that changes over them are comparable."""
SIGNIFICANT = 2.0
"""Distance of a slope from zero, in standard errors, at which it counts as a trend."""


def model_of(run):
    """The transformer of a run; an error for a run of another problem."""
    if not isinstance(run.problem, dynsim.LanguageModel):
        raise ValueError(f"problem = {run.about}: must be a dynsim.LanguageModel")
    return run.problem


def training(run, axes, record):
    """Training over `axes`, with records evenly spaced over the steps."""
    model_of(run)
    if (run.steps or 0) < INTERVALS:
        raise ValueError(f"steps = {run.steps}: must be an integer >= {INTERVALS}")
    times = np.linspace(0, run.steps, INTERVALS + 1).astype(int).tolist()
    return sweeps.Sweep(run, axes, record=record, times=times)


def describe(run):
    """The text, the update rule and the sizes, except the number of layers, in two lines."""
    model, rule = run.problem, run.rule.build()
    rare = "words seen less than {} times <unk>"
    match model.corpus:
        case dynsim.TextFolder() as folder:
            splits = f"{Path(folder.path).name}: trained on {folder.train}, held out "
            splits += f"{folder.held_out}, {rare.format(folder.min_count)}"
        case dynsim.TextFile() as file:
            splits = f"{Path(file.path).name}: first 90 % for training, next 5 % held out, "
            splits += rare.format(file.min_count)
        case dynsim.SyntheticText():
            splits = "generated text: first 90 % for training, next 5 % held out"
        case _:
            splits = run.about
    clip = "not clipped" if rule.clip is None else f"clipped to norm {rule.clip:g}"
    return (
        f"{splits}\n{rule.name}, gradient {clip}, {run.steps} steps of {run.batch} windows of "
        f"{model.length} tokens, heads: {model.heads}, width {model.width}, MLP {model.mlp}"
    )


def ended_well(data, run, layers):
    """The seeds that ended well; an error if there are none."""
    well = data.isel(seed=np.flatnonzero(data.status == dynsim.Status.OK))
    if not well.sizes["seed"]:
        raise ValueError(
            f"eta = {run.setting('eta')}, clip = {run.setting('clip')}: every run with {layers} "
            f"layer(s) diverged, from step {int(data.first_bad_step.min())} on; clip the gradient, "
            "or lower eta"
        )
    return well


def measures(data, uniform):
    """How sparse and how frozen each layer is at the end, as means over the seeds.

    `entropy_share` is the entropy over that of `uniform` attention, `keys` its exponential, the
    effective number of keys. `change` is the attention that moved over the last interval between
    records, `change_share` the same over the largest of all intervals: near 0 if attention is
    frozen, near 1 if it moves as fast as ever.
    """
    mean = data.mean("seed").astype(float)
    start, end = mean.isel(time=0, drop=True), mean.isel(time=-1, drop=True)
    columns = {
        "entropy_start": start.layer_entropy,
        "entropy": end.layer_entropy,
        "entropy_share": end.layer_entropy / uniform,
        "keys": np.exp(end.layer_entropy),
        "top": end.layer_top,
        "change": end.layer_change,
        "change_share": end.layer_change / mean.layer_change[1:].max("time"),
    }
    return xr.Dataset(columns).to_dataframe().to_dict("records")


def prompt(model):
    """Tokens of the prompt in the held-out text, and its words in lines, with the position before
    every fifth."""
    corpus = model.corpus.read()
    tokens = corpus.held_out[model.prompt :][: model.length]
    words = [word.replace("$", r"\$") for word in corpus.words(tokens)]
    shown = [f"[{i}] {word}" if i % 5 == 0 else word for i, word in enumerate(words)]
    return tokens, textwrap.fill("prompt: " + " ".join(shown), 100)


def line(rates, entropy):
    """Least squares through the runs (rate, seed) that ended well, at least three at two rates."""
    x, y = np.repeat(rates, entropy.shape[1]), entropy.ravel().astype(float)
    x, y = x[~np.isnan(y)], y[~np.isnan(y)]
    known = len(y) > 2 and np.ptp(x)
    fit = stats.linregress(x, y) if known else np.full(5, np.nan)
    slope, intercept, _, _, error = map(float, fit)
    fit = {"slope": slope, "standard_error": error, "intercept": intercept, "runs": len(y)}
    return fit | {"falls": slope + SIGNIFICANT * error < 0}


def trend(fit):
    """The slope in words."""
    slope, error = fit["slope"], fit["standard_error"]
    rises = "rises" if slope - SIGNIFICANT * error > 0 else "inconclusive"
    return f"slope {slope:.4f} ± {error:.4f}, {'falls' if fit['falls'] else rises}"
