"""The command `dynsim`: theory and simulation of attention's training dynamics."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import tyro

from sweeps import output
from sweeps.benchmarks import command as bench
from sweeps.commands import plot
from sweeps.commands.explain import Explain, explain, text
from sweeps.commands.sweep import Export, Info, SweepCommand, run_export, run_info, run_sweep
from sweeps.compare import yz as compare_yz
from sweeps.compare.ladder import Ladder
from sweeps.compare.ladder import run as run_ladder
from sweeps.compare.settings import Compare
from sweeps.runner.run import Interrupted
from sweeps.studies.paper import (
    attention_maps,
    figure3,
    figure6,
    figure7,
    figure8,
    figure9,
    figure10,
    recall,
)
from sweeps.studies.phase import validity
from sweeps.studies.phase.figure import Phase
from sweeps.studies.phase.figure import run as run_phase
from sweeps.studies.qkv import figure as factorised
from sweeps.studies.spectrum import figure as spectrum
from sweeps.studies.tables.validate import Validate, validate
from sweeps.studies.trainability import figure as trainability
from sweeps.studies.transitions import collapse, snap
from sweeps.studies.two_stage import compare as two_stage_compare
from sweeps.studies.two_stage import figure as two_stage
from sweeps.studies.two_stage import phase as two_stage_phase
from sweeps.studies.two_stage.compare import CompareTwoStage
from sweeps.studies.words import figure as corpus

Figure = (
    Annotated[figure3.Figure3, tyro.conf.subcommand("3")]
    | Annotated[attention_maps.Figure4, tyro.conf.subcommand("4")]
    | Annotated[attention_maps.Figure5, tyro.conf.subcommand("5")]
    | Annotated[figure6.Figure6, tyro.conf.subcommand("6")]
    | Annotated[figure7.Figure7, tyro.conf.subcommand("7")]
    | Annotated[figure8.Figure8, tyro.conf.subcommand("8")]
    | Annotated[figure9.Figure9, tyro.conf.subcommand("9")]
    | Annotated[figure10.Figure10, tyro.conf.subcommand("10")]
    | Annotated[recall.Figure11, tyro.conf.subcommand("11")]
    | Annotated[recall.Figure12, tyro.conf.subcommand("12")]
    | Annotated[validity.Validity, tyro.conf.subcommand("validity")]
    | Annotated[Phase, tyro.conf.subcommand("phase")]
    | Annotated[Ladder, tyro.conf.subcommand("ladder")]
    | Annotated[trainability.Trainability, tyro.conf.subcommand("trainability")]
    | Annotated[collapse.Collapse, tyro.conf.subcommand("collapse")]
    | Annotated[snap.Snap, tyro.conf.subcommand("snap")]
    | Annotated[factorised.Factorised, tyro.conf.subcommand("factorised")]
    | Annotated[corpus.CorpusFigure, tyro.conf.subcommand("corpus")]
    | Annotated[two_stage.FigureTwoStage, tyro.conf.subcommand("two-stage")]
    | Annotated[two_stage_phase.TwoStagePhase, tyro.conf.subcommand("two-stage-phase")]
    | Annotated[spectrum.Spectrum, tyro.conf.subcommand("spectrum")]
)
Command = (
    Compare
    | CompareTwoStage
    | Explain
    | Figure
    | Validate
    | SweepCommand
    | Info
    | plot.Plot
    | Export
    | Phase
    | spectrum.Spectrum
    | bench.Bench
)


def run_explain(config: Explain) -> None:
    """Run `dynsim explain`."""
    found = explain(config)
    if config.json:
        print(json.dumps(output.as_json(dataclasses.asdict(found)), indent=2))
    else:
        print(text(config, found))


def run_validate(config: Validate) -> None:
    """Run `dynsim validate`."""
    lines, paths = validate(config)
    print(lines)
    _print_paths(paths)


RUNNERS: dict[type, Callable[[Any], list[Path] | None]] = {
    Compare: compare_yz.run,
    CompareTwoStage: two_stage_compare.run,
    Explain: run_explain,
    Validate: run_validate,
    figure3.Figure3: figure3.run,
    attention_maps.Figure4: attention_maps.run,
    attention_maps.Figure5: attention_maps.run,
    figure6.Figure6: figure6.run,
    recall.Figure11: recall.run,
    recall.Figure12: recall.run,
    figure7.Figure7: figure7.run,
    figure8.Figure8: figure8.run,
    figure9.Figure9: figure9.run,
    figure10.Figure10: figure10.run,
    corpus.CorpusFigure: corpus.run,
    factorised.Factorised: factorised.run,
    Ladder: run_ladder,
    trainability.Trainability: trainability.run,
    collapse.Collapse: collapse.run,
    snap.Snap: snap.run,
    two_stage.FigureTwoStage: two_stage.run,
    two_stage_phase.TwoStagePhase: two_stage_phase.run,
    spectrum.Spectrum: spectrum.run,
    SweepCommand: run_sweep,
    Info: run_info,
    plot.Plot: plot.run,
    Export: run_export,
    Phase: run_phase,
    validity.Validity: validity.run,
    bench.Bench: bench.run,
}


def parse(arguments: Sequence[str] | None = None) -> Command:
    """The settings that a command line asks for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {
        "compare": CompareTwoStage if _task(given) in ("two-stage", "prompts") else Compare,
        "explain": Explain,
        "figure": Figure,
        "validate": Validate,
        "sweep": SweepCommand,
        "info": Info,
        "plot": plot.Plot,
        "export": Export,
        "phase": Phase,
        "spectrum": spectrum.Spectrum,
        "bench": bench.Bench,
    }
    return tyro.extras.subcommand_cli_from_dict(
        commands, args=given, prog="dynsim", description=__doc__
    )


def _task(arguments: Sequence[str]) -> str | None:
    """What the option --task says: the system, and with it the other options, follow from it."""
    for word, following in itertools.pairwise([*arguments, ""]):
        if word == "--task":
            return following
        if word.startswith("--task="):
            return word.removeprefix("--task=")
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it. Returns 0, or 2 when the input is bad."""
    mpl.use("Agg")
    config = parse(arguments)
    try:
        paths = RUNNERS[type(config)](config)
    except (ValueError, OSError) as error:
        print(f"dynsim: {error}", file=sys.stderr)
        return 2
    except Interrupted:
        return 130
    if paths:
        _print_paths(paths)
    return 0


def _print_paths(paths: list[Path]) -> None:
    print("\nwrote " + ", ".join(map(str, paths)))
