"""Bad input, as users type it: one line that names the field, exit code 2, nothing written."""

from pathlib import Path

import pytest

from sweeps import cli
from sweeps.commands.line import AT_ONCE

SWEEP = """
record = ["loss"]
[run]
problem = "yz"
steps = 3
[axes]
eta_y = [1.0]
"""

COMMANDS = [
    ("compare --ratio 2 --eta-y 3", "ratio = 2: rule.eta does not have it; ratio does"),
    ("compare --K 5", "K = 5: syn-small does not have it; overlapping does"),
    ("compare --b1 0.5", "b1 = 0.5: sgd does not have it; adam, adamw do"),
    (
        "compare --task overlapping --layout paper",
        "layout = 'paper': overlapping does not have it; syn-small,",
    ),
    ("compare qkv --start uniform", "start = 'uniform': qkv does not have it; yz does"),
    ("compare joma --start uniform", "start = 'uniform': joma does not have it; yz does"),
    (
        "compare linear_icl --ratio 0.5",
        "ratio = 0.5: linear-spectrum does not have it; geometric does",
    ),
    ("compare linear_icl --b2 0.5", "b2 = 0.5: sgd does not have it; adam, adamw, rmsprop do"),
    ("compare sparse_attention --b1 0.5", "b1 = 0.5: sgd does not have it; adam, adamw do"),
    ("explain --num-queries 7", "num-queries = 7: syn-small does not have it; syn-medium, syn do"),
    ("explain --overlap 0.9", "overlap = 0.9: syn-small does not have it; overlapping does"),
    ("explain --task syn --K 4 --num-queries 2", "K = 4: syn does not have it; overlapping does"),
    ("phase --K 9", "K = 9: syn-small does not have it; overlapping does"),
    ("phase --ratio 2", "ratio = 2: rule.eta does not have it; ratio does"),
    ("phase --rule adam --momentum 0.9", "momentum = 0.9: adam does not have it; sgd, sign do"),
    ("compare --ratio 0", "ratio = 0: rule.eta does not have it; ratio does"),
    ("compare --eta-z -1", "rule.eta.Z = -1: must be a number in [0, inf), in 1/step"),
    (
        "compare --steps 99999999999999999999",
        "steps = 99999999999999999999: must be an integer from 1 to",
    ),
    ("compare --root 4294967296", "root = 4294967296: must be an integer from 0 to 4294967295"),
    ("compare --root -1", "root = -1: must be an integer from 0 to 4294967295"),
    ("compare --seeds 0", "seeds = 0: must be an integer from 1 to 16777216"),
    ("compare --num-times 5", "num-times = 5: is not a setting; did you mean times?"),
    ("compare --seed=3", "seed = 3: the runs of a comparison have the seeds 0 to 7; choose"),
    (
        "compare --task overlap",
        "problem.task = 'overlap': did you mean overlapping? It must be one of",
    ),
    ("phase --ratio -1", "ratio = -1: rule.eta does not have it; ratio does"),
    ("figure 3 --c0 nan", "c0 = nan: must be a number in (0, inf); nan is not"),
    ("figure snap --seeds 99999999999999999999", "range = 99999999999999999999: must be an"),
    ("phase --x T:9:99", "x = 'T:9:99': is not a setting; there are problem, task, layout,"),
    ("compare --step 3", "step = 3: is not a setting; did you mean steps?"),
    ("info FILE --magic", "magic: is not a setting; there are path, json"),
    ("compare --steps abc", "steps = 'abc': must be an integer from 1 to 2147483647, or none"),
    (
        "compare --dtype float16",
        "dtype = 'float16': did you mean float64 or float32? It must be one of",
    ),
    ("compare --batch many", "batch = 'many': must be an integer from 1 to 2147483647, or inf"),
    ("compare --eta-y x", "rule.eta.Y = 'x': must be a number in [0, inf), in 1/step"),
    ("compare --rule adamm", "rule = 'adamm': did you mean adam or adamw? It must be one of sgd,"),
    ("-x", "has no option -x; its options are --help, --version"),
    ("compare --steps", "option --steps needs a value, an integer from 1 to 2147483647, or none"),
    ("compare --times 1", "times = 1: must be an integer from 2 to 1048576"),
    ("compare --batch 1000000000", "batch = 1000000000, length = 128: a step would draw"),
    (
        "compare --length 2147483647",
        "batch = 128, length = 2147483647: a step would draw 274877906816",
    ),
    ("compare --length 2147483648", "must be an integer from 2 to 2147483647, or inf"),
    ("compare --length 1000000000", "batch = 128, length = 1000000000: a step would draw"),
    ("compare --seeds 100000000", "seeds = 100000000: must be an integer from 1 to 16777216"),
    ("figure trainability --levels 99", "levels = 99: must be an integer from 3 to 12"),
    ("sweep /dev/null", "sweep file /dev/null: must be a file"),
    ("figure corpus --corpus /dev/null", "path = /dev/null: must be a file"),
    ("spectrum --split 3", "checkpoint: is missing"),
    ("validity --x eta:1:2 --y eta:1:2", "y = 'eta:1:2': is also the axis x"),
    ("spectrum --checkpoint /dev/null", "checkpoint = /dev/null: must be a file"),
    ("compare --theories plain plain", "theories = 'plain': is named twice"),
    ("compare --theories", "option --theories needs at least one value"),
    ("compare --theories --json", "option --theories needs at least one value"),
    ("sweep fig4 --set", "option --set needs at least one value"),
    ("compare --theories Plain", "theories = 'Plain': did you mean plain? It must be one of"),
    ("compare --steps 2.5", "steps = 2.5: must be an integer from 1 to 2147483647, or none"),
    ("phase --against nope", "against = 'nope': did you mean none? It must be one of auto"),
    ("phase --observable Loss", "observable = 'Loss': did you mean loss? It must be one of"),
    ("sweep", "file: is missing (TOML file of the sweep, or the name of a built-in"),
    ("sweep fig4 --reuse nosuch", "reuse = nosuch: nosuch: no such sweep"),
    ("plot FILE --out nothing", "out = nothing: must end in .png, .svg, .pdf"),
    ("plot .", ".: "),
    ("compare --theories magic", "theories = 'magic': must be one of"),
    ("phase yz --theory plian", "theory = 'plian': did you mean plain? It must be one of sim"),
    ("compare --task overlapping --K 100000", "would take 372.5 GiB"),
    ("compare --task magic", "problem.task = 'magic': must be one of syn-small, syn-medium, syn,"),
    ("compare --task magic.npz", "task file magic.npz: no such file"),
    (
        "compare --task os:getcwd",
        "problem.task = 'os:getcwd': must be a dataclass or an Equinox module",
    ),
    ("compare --out FILE", "exists and is not a folder"),
    ("compare --out /proc/none", "out = /proc/none: cannot be made"),
    (
        "compare transformer --theories plain",
        "theories = 'plain': must be one of best, all, linear-noise",
    ),
    ("explain --eta-y 0", "eta_y = 0: nothing moves"),
    (
        "explain --task overlapping --K 0",
        "problem.task.K = 0: must be an integer from 1 to 2147483647",
    ),
    (
        "explain --task overlapping --overlap 1",
        "problem.task.overlap = 1: must be a number in [0, 1)",
    ),
    ("explain --task syn --M 3", "M = 3: must be an integer >= 79"),
    ("explain --task syn --num-distinct 0 --num-common 0", "a class needs at least one token"),
    (
        "explain --task syn --num-queries 0",
        "problem.task.num_queries = 0: must be an integer from 1 to 2147483647",
    ),
    ("explain --length 1", "length = 1: must be an integer from 2"),
    ("phase --resolution 1", "resolution = 1: must be an integer from 2"),
    ("phase --resolution 40000", "1600000000 points, at most"),
    ("phase --observable magic", "observable = 'magic': must be one of loss"),
    ("phase --theory magic", "theory = 'magic': must be one of simulation"),
    ("phase --x magic:1:2", "x = 'magic:1:2': is not a setting; there are problem, task,"),
    ("phase --x seed:1:9", "axis = 'seed:1:9': seeds have no order"),
    ("phase --x eta_y", "x = 'eta_y': must be NAME:FIRST:LAST"),
    ("phase --x eta_y:1:2:x", "x = 'eta_y:1:2:x': must be NAME:FIRST:LAST"),
    ("phase --x eta_y:0:2", "axis eta_y = 0.0: must be finite and in (0, inf)"),
    ("phase --x eta_y:1:1", "needs two ends"),
    ("phase --x eta_z:1:2 --y eta_z:1:2", "must be different axes"),
    ("phase --steps 1", "steps = 1: must be an integer >= 2"),
    ("phase --refine --probes -1", "probes = -1: must be an integer from 0 to 2147483647"),
    ("phase --refine --tolerance -1", "tolerance = -1: must be a number in (0, 1], or none"),
    ("phase --tolerance 0.1", "tolerance = 0.1: has no effect without --refine"),
    ("phase --refine --resolution 33", "at resolution = 33: have 33 and 33 values"),
    (
        "phase --refine --x K:10:20 --y length:8:12 --task overlapping",
        "'length:8:12' at resolution = 64: have 11 and 5 values",
    ),
    ("phase --band 0.5 --seeds 8", "band = 0.5: must be a number in [1, inf), or none"),
    ("phase --band 2", "seeds = 1: band needs at least 8"),
    ("phase --band 2 --seeds 8 --max-seeds 4", "max_seeds = 4: must be at least"),
    ("phase --band 2 --seeds 8 --theory symmetric", "theory = 'symmetric' has no"),
    ("phase --seeds 0", "seeds = 0: must be an integer >= 1"),
    ("phase --regions magic:rule", "regions = 'magic:rule': cannot be imported"),
    ("figure 3 --eta-y", "option --eta-y needs at least one value"),
    ("figure 9 --K 0", "K = 0: must be an integer >= 1"),
    ("figure 3 --f 0", "f = 0: must be a number in (0, 1]"),
    ("figure 6 --seeds 0", "seeds = 0: must be an integer >= 1"),
    ("figure 6 --num-queries 1,0", "num_queries[1] = 0: must be an integer >= 1"),
    ("figure corpus --corpus magic", "magic"),
    ("figure trainability --levels 99", "levels = 99: must be an integer from 3 to 12"),
    ("figure trainability --eta-y 3 1", "eta_y"),
    (
        "figure optimum --problem magic",
        "problem = 'magic': must be one of yz, qkv, two_stage, two_stage-fast,",
    ),
    (
        "figure optimum --problem two_stage",
        "rate = 'eta:1e-3:30': annealed does not have it; sgd, adam, adamw,",
    ),
    ("figure optimum --along eta:1:2", "along = 'eta:1:2': is also the axis of the rate"),
    ("figure optimum --rate eta", "rate = 'eta': must be NAME:FIRST:LAST"),
    ("figure optimum --rate eta:1:2:2", "rate = 'eta:1:2:2': has 2 values; needs 3 or more"),
    ("figure optimum --along batch:4:64:2", "along = 'batch:4:64:2': has 2 values; needs 3"),
    (
        "figure optimum --rules sdg",
        "axes.rule = 'sdg': must be one of sgd, adam, adamw, rmsprop, sign,",
    ),
    ("figure optimum --observable Loss", "observable = 'Loss': did you mean loss?"),
    (
        "figure scaling --problem magic",
        "problem = 'magic': must be one of yz, qkv, two_stage, two_stage-fast,",
    ),
    ("figure scaling --size D", "size = 'D': must be NAME:V1,V2,... or NAME:FIRST:LAST"),
    ("figure scaling --size D:2,x", "axis = 'D:2,x': must be NAME:V1,V2,... or"),
    ("figure scaling --size D:2,4", "size = 'D:2,4': needs 3 or more different values"),
    ("figure scaling --size D:2,4,4", "size = 'D:2,4,4': needs 3 or more different values"),
    ("figure scaling --size D:0,4,8", "axis D = 0.0: must be finite and in (0, inf)"),
    (
        "figure scaling --size D:2,4.5,8",
        "axes.problem.D = 4.5: must be an integer from 1 to 1048576",
    ),
    ("figure scaling --size eta:1:2", "is also the axis of the size"),
    ("figure scaling --rate eta:1:2:4", "rate = 'eta:1:2:4': needs 8 or more different values"),
    ("figure scaling --observable Loss", "observable = 'Loss': did you mean loss?"),
    ("figure scaling --origin inf", "origin = inf: must be a number in (-inf, inf)"),
    ("figure scaling --theory magic", "theory = 'magic': must be one of"),
    ("info magic", "magic: no such sweep"),
    ("info FILE", "FILE: holds something other than a sweep"),
    ("plot magic", "magic: no such sweep"),
    ("export magic", "magic: no such sweep"),
    ("check magic", "magic: no such sweep"),
    ("sweep magic", "sweep file magic: no such file"),
    ("sweep FILE", "not readable as TOML"),
    ("sweep fig4 --set run=3", "set = 'run=3': must be a non-empty table"),
    ("sweep fig4 --set axes={}", "set = 'axes={}': must be a non-empty table"),
    (
        "sweep fig4 --set run.magic=1",
        "magic = 1: is not a setting; there are problem, task, layout,",
    ),
    ("sweep fig4 --set magic=1", "key = 'magic': must be one of"),
    ("sweep fig4 --set record", "set = 'record': must be KEY = VALUE in TOML"),
    ("sweep fig4 --config FILE", "config = "),
    ("sweep fig4 --dask magic", "dask"),
    ("sweep fig4 --chunk 0", "chunk = 0"),
    ("sweep fig4 --tile 0", "tile = 0"),
    ("schema --out none/x.json", "out = none/x.json: the folder none does not exist"),
    ("comapre", "command 'comapre': did you mean compare? It must be compare, explain,"),
    ("figure 99", "figure '99': must be 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, catapult,"),
    ("compare magic", "problem = 'magic': must be one of yz, qkv, two_stage, two_stage-fast,"),
]
OVERRIDES = [
    ("run.eta_z=[1, 2]", "rule.eta.Z = [1, 2]: must be a number in [0, inf), in 1/step"),
    ('run.eta_z="0.1"', "rule.eta.Z = '0.1': must be a number in [0, inf), in 1/step"),
    ("run.eta_z=true", "rule.eta.Z = True: must be a number in [0, inf), in 1/step"),
    ("run.eta_y=2.0", "rule.eta.Y = 2.0: is also an axis"),
    ("run.ratio=2.0", "ratio = 2.0: rule.eta does not have it; ratio does"),
    ("run.K=7", "K = 7: syn-small does not have it; overlapping does"),
    ("run.b1=0.5", "b1 = 0.5: sgd does not have it; adam, adamw do"),
    ("run.steps=0", "steps = 0: must be an integer from 1 to 2147483647, or none"),
    ("run.steps=2.5", "steps = 2.5: must be an integer from 1 to 2147483647, or none"),
    ("run.momentum=", "set = 'run.momentum=': the file has no run.momentum to remove"),
    ("axes.eta_y=", "axes: needs a table with at least one axis"),
    ("record=[loss, magic]", "record = 'magic': must be one of"),
    ("theory='best'\nrun.clip=1.0", "theory = 'best': no theory describes these runs; theory"),
    (
        "run.optimiser='sgd'",
        "optimiser = 'sgd': is not a setting; there are problem, task, layout,",
    ),
    ("run.eta_z=nan", "rule.eta.Z = nan: must be a number in [0, inf), in 1/step"),
    ("axes.eta_y=[nan]", "axes.rule.eta.Y = nan: must be a number in [0, inf), in 1/step"),
    ("run.steps=1e3\nroot=-1", "root = -1: must be an integer >= 0"),
    ("run.rule='magic'", "rule = 'magic': must be one of sgd, adam, adamw, rmsprop, sign,"),
    (
        "run.dtype='float16'",
        "dtype = 'float16': did you mean float64 or float32? It must be one of",
    ),
    ("run.start='magic'", "problem.start = 'magic': must be one of zero, uniform"),
    ("axes.eta_y=3.0", "axes.eta_y = 3.0: must be a list"),
    ("axes.eta_y=[]", "axes.eta_y = []: is empty; needs at least one value"),
    ("axes.eta_y=['a']", "rule.eta.Y = 'a': must be a number in [0, inf), in 1/step"),
    ("axes.eta_y=[1.0, 1.0]", "axes.rule.eta.Y = 1.0: is given twice"),
    ("axes.eta_y={linspace=[1, 2]}", "axes.eta_y.linspace = [1, 2]: must be [first, last, number"),
    ("axes.eta_y={logspace=[0, 1, 2]}", "axes.eta_y.logspace = 0: must be a number in (0, inf)"),
    (
        "axes.eta_y={logspace=[0.1, 1, 1]}",
        "axes.eta_y.logspace = 1: must be an integer from 2 to 16777216",
    ),
    (
        "axes.eta_y={linspace=[0, 1, 1]}",
        "axes.eta_y.linspace = 1: must be an integer from 2 to 16777216",
    ),
    (
        "axes.eta_y={logspace=[1, 2, 10000000000]}",
        "axes.eta_y.logspace = 10000000000: must be an integer from 2 to",
    ),
    (
        "axes.seed={range=4294967296}",
        "axes.seed.range = 4294967296: must be an integer from 0 to 16777216",
    ),
    ("axes.seed=[4294967296]", "axes.seed = 4294967296: must be an integer from 0 to 4294967295"),
    ("axes.seed=[0.5]", "axes.seed = 0.5: must be an integer from 0 to 4294967295"),
    ("axes.magic=[1]", "axes.magic = 1: is not a setting; there are problem, task, layout,"),
    ("axes.b1=[0.5]", "axes.b1 = 0.5: sgd does not have it; adam, adamw do"),
    (
        "axes.num_queries=[2]",
        "axes.num_queries = 2: syn-small does not have it; syn-medium, syn do",
    ),
    ("axes.T=[8]", "axes.T = 8: is not a setting; there are problem, task, layout,"),
    ("run.T=8", "T = 8: is not a setting; there are problem, task, layout, length,"),
    ("seed=3", "key = 'seed': must be one of run, axes, theory, record, times, zip,"),
    ("axes.ratio=[2.0]", "axes.ratio = 2.0: rule.eta does not have it; ratio does"),
    ("record=[]", "record = []: needs at least one observable"),
    ("record=['loss', 'accuracy', 'loss']", "record = 'loss': is named twice"),
    ("record=['magic']", "record = 'magic': must be one of"),
    ("record=0.5", "record = 0.5: must be names of observables"),
    ("theory='magic'", "theory = 'magic': must be one of simulation"),
    ("system='magic'", "key = 'system': must be one of run, axes, theory, record, times, zip,"),
    ("root=-1", "root = -1: must be an integer >= 0"),
    ("root=4294967296", "root = 4294967296: must be an integer <= 4294967295"),
    ("rtol=1e-3", "rtol = 0.001: theory 'simulation' does not use it"),
    ("times=[5]", "times"),
    ("times=['a']", "times = "),
    ("times=0", "times"),
    ("zip=[['eta_y', 'magic']]", "zip = 'magic': must be one of eta_y"),
    ("zip=3", "zip = 3: must be a list of lists of axes"),
]


def refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    error = captured.err
    if words[0] in AT_ONCE and error.startswith(f"{words[0]}: "):
        # What it does comes before what it has to import to see the error.
        error = error.partition("\n")[2]
    assert code == 2
    assert message in error
    assert error.startswith("dynsim: ")
    assert error.count("\n") == 1
    assert captured.out == ""
    assert len(error) < 600
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("line", "message"), COMMANDS)
@pytest.mark.more
def test_bad_command_lines_are_named(
    line: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("no sweep")
    refused(line.split(), message, tmp_path, capsys)


@pytest.mark.parametrize(("override", "message"), OVERRIDES)
def test_bad_sweep_files_are_named(
    override: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SWEEP)
    refused(["sweep", "mine.toml", "--set", override], message, tmp_path, capsys)
