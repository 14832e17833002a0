"""The figures of Scan and Snap, and helpers shared by those of transformers on text."""

from pathlib import Path

from dynsim import LanguageModel, SyntheticText, TextFile, TextFolder, checks
from sweeps.systems.experiment import Experiment

CLIPPED = {"problem": "transformer", "clip": 0.5}
"""The run of these figures. Without clipping SGD diverges at learning rates above 2."""


def transformer(run: Experiment) -> LanguageModel:
    """Return the transformer of a run; `ValueError` for a run of another problem."""
    checks.kind("problem", run.problem, LanguageModel)
    assert isinstance(run.problem, LanguageModel)
    return run.problem


def describe(run: Experiment) -> str:
    """Describe splits, optimiser and sizes, except the number of layers, in two lines."""
    model, rule = transformer(run), run.rule.build()
    match model.corpus:
        case TextFolder() as folder:
            splits = f"{Path(folder.path).name}: trained on {folder.train}, held out "
            splits += f"{folder.held_out}, words seen less than {folder.min_count} times <unk>"
        case TextFile() as file:
            splits = f"{Path(file.path).name}: first 90 % for training, next 5 % held out, words "
            splits += f"seen less than {file.min_count} times <unk>"
        case SyntheticText():
            splits = "generated text: first 90 % for training, next 5 % held out"
        case other:
            splits = type(other).__name__
    clip = "not clipped" if rule.clip is None else f"clipped to norm {rule.clip:g}"
    return (
        f"{splits}\n{rule.name}, gradient {clip}, {run.steps} steps of {run.batch} windows of "
        f"{model.length} tokens, heads: {model.heads}, width {model.width}, MLP {model.mlp}"
    )
