"""Bad input, as users type it: one line that names the field, exit code 2, nothing written."""

from pathlib import Path

import pytest

from sweeps import cli

SWEEP = """
record = ["loss"]
[run]
steps = 3
[axes]
eta_y = [1.0]
"""

COMMANDS = [
    # Settings that nothing reads.
    ("compare --ratio 2 --eta-y 3", "eta_y = 3.0: ratio = 2.0 says it already"),
    ("compare --K 5", "K = 5: task 'syn-small' does not read it, syn and overlapping do"),
    ("compare --b1 0.5", "b1 = 0.5: optimizer 'sgd' does not read it, adam and adamw do"),
    ("compare --task overlapping --layout paper", "layout = 'paper': task 'overlapping' does not"),
    ("compare qkv --init uniform", "init = 'uniform': the system qkv does not read it"),
    ("compare joma --init uniform", "init = 'uniform': the system joma does not read it"),
    ("compare linear_icl --ratio 0.5", "ratio = 0.5: spectrum 'linear' does not read it"),
    ("compare linear_icl --b2 0.5", "b2 = 0.5: optimizer 'sgd' does not read it"),
    ("compare sparse_attention --b1 0.5", "b1 = 0.5: optimizer 'sgd' does not read it"),
    ("explain --num-queries 7", "num_queries = 7: task 'syn-small' does not read it"),
    ("explain --overlap 0.9", "overlap = 0.9: task 'syn-small' does not read it"),
    ("explain --task syn --K 4 --num-queries 2", "num_queries = 2: K = 4 says it already"),
    ("phase --K 9", "K = 9: task 'syn-small' does not read it"),
    ("phase --ratio 2", "run.ratio = 2.0: eta_y is an axis"),
    ("phase --optimizer adam --momentum 0.9", "momentum = 0.9: optimizer 'adam' does not read it"),
    # Values that cannot be.
    ("compare --eta-y 0", "eta_y = 0: nothing moves"),
    ("compare --ratio 0", "ratio = 0: nothing moves"),
    ("compare --eta-z -1", "eta_z = -1.0: must be finite and in [0, inf)"),
    ("compare --steps 99999999999999999999", "steps = 99999999999999999999: must be an integer <="),
    ("compare --root 4294967296", "root = 4294967296: must be an integer <= 4294967295"),
    ("compare --root -1", "root = -1: must be an integer >= 0"),
    ("compare --seeds 0", "seeds = 0: must be an integer >= 1"),
    ("compare --num-times 5", "compare: has no option --num-times; did you mean --times"),
    ("compare --seed=3", "compare: has no option --seed; did you mean --seeds?"),
    ("compare --task overlap", "task = 'overlap': did you mean 'overlapping'?"),
    ("phase --ratio -1", "ratio = -1.0: must be finite and in [0, inf)"),
    ("figure 3 --end nan", "end = nan: is not a number; must be finite and in"),
    ("figure collapse --seeds 99999999999999999999", "seeds = 99999999999999999999: must be an"),
    ("figure corpus --seed 99999999999999999999", "must be an integer <= 4294967295"),
    ("phase --x T:9:99", "axis = 'T': must be one of eta_y"),
    ("compare --step 3", "compare: has no option --step; did you mean --steps"),
    ("info FILE --magic", "info: has no option --magic; its options are --json"),
    ("compare --steps abc", "steps = 'abc': must be an integer >= 1"),
    ("compare --dtype float16", "dtype = 'float16': must be one of float32, float64"),
    ("compare --batch many", "batch = 'many': must be an integer >= 1, or inf"),
    ("compare --eta-y x", "eta_y = 'x': must be a number, in 1/step"),
    ("compare --optimizer adamm", "optimizer = 'adamm': did you mean 'adam' or 'adamw'?"),
    ("-x", "has no option -x; its options are --help, --version"),
    ("compare --steps", "compare: Missing value for argument '--steps'"),
    ("compare --times 1", "times = 1: must be an integer >= 2"),
    ("compare --batch 1000000000", "batch = 1000000000, length = 128: a step would draw"),
    ("compare --length 2147483648", "length = 2147483648: must be an integer < 2147483648, or inf"),
    ("compare --length 1000000000", "batch = 128, length = 1000000000: a step would draw"),
    ("compare --seeds 100000000", "seeds = 100000000: would take"),
    ("figure trainability --levels 99", "levels = 99: must be an integer <= 12"),
    # What may never end.
    ("sweep /dev/null", "sweep file = /dev/null: must be a file"),
    ("figure corpus --corpus /dev/null", "path = /dev/null: must be a file"),
    ("spectrum --checkpoint /dev/null", "checkpoint = /dev/null: must be a file"),
    ("compare --theories plain plain", "theories = 'plain': is named twice"),
    ("compare --theories", "compare: option --theories needs at least one value"),
    ("compare --theories --json", "compare: option --theories needs at least one value"),
    ("sweep fig4 --set", "sweep: option --set needs at least one value"),
    ("compare --theories Plain", "theory = 'Plain': did you mean 'plain'? It must be one of"),
    ("compare --task syn_small", "task = 'syn_small': did you mean 'syn-small'? It must be"),
    ("compare --lr 1", "compare: has no option --lr; its options are"),
    ("compare --steps 1e3 --eta-y 0", "eta_y = 0: nothing moves"),
    ("compare --steps 2.5", "steps = '2.5': must be an integer >= 1"),
    ("phase --theory nope", "theory = 'nope': did you mean 'none'? It must be one of auto"),
    ("phase --observable Loss", "observable = 'Loss': did you mean 'loss'? It must be one of"),
    ("sweep", "sweep: needs TOML file of the sweep, or the name of a built-in sweep"),
    ("sweep fig4 --reuse nosuch", "reuse = nosuch: nosuch: no such sweep"),
    ("plot FILE --out nothing", "out = nothing: must end in .png, .svg, .pdf"),
    ("plot .", ".: "),
    ("compare --theories magic", "theory = 'magic': must be one of"),
    ("compare --task overlapping --K 100000", "would take 372.5 GiB"),
    ("compare --task magic", "task = 'magic': must be syn-small"),
    ("compare --task magic.npz", "task file magic.npz: no such file"),
    ("compare --task os:getcwd", "task = 'os:getcwd': must stand for a SequenceClasses"),
    ("compare --out FILE", "exists and is no directory"),
    ("compare --out /proc/none", "out = /proc/none: cannot be made"),
    ("compare transformer --theories plain", "theories = 'plain': transformer has none"),
    ("explain --eta-y 0", "eta_y = 0: nothing moves"),
    ("explain --task overlapping --K 1 --overlap 0.2", "K = 1 class overlaps with no other"),
    ("explain --task overlapping --K 0", "K = 0: must be an integer >= 1"),
    ("explain --task overlapping --overlap 1", "overlap = 1.0: must be finite and in [0, 1)"),
    ("explain --task syn --M 3", "M = 3: must be an integer >= 79"),
    ("explain --task syn --K 5", "K = 5: must be a multiple of classes_per_query = 2"),
    ("explain --task syn --num-distinct 0 --num-common 0", "a class needs a token"),
    ("explain --task syn --num-queries 0", "num_queries = 0: must be an integer >= 1"),
    ("explain --length 1", "length = 1: must be an integer >= 2"),
    ("phase --resolution 1", "resolution = 1: must be an integer >= 2"),
    ("phase --resolution 40000", "1600000000 points, at most"),
    ("phase --observable magic", "observable = 'magic': must be one of loss"),
    ("phase --engine magic", "engine = 'magic': must be one of simulation"),
    ("phase --x magic:1:2", "axis = 'magic': must be one of"),
    ("phase --x seed:1:9", "axis = 'seed:1:9': seeds have no order"),
    ("phase --x eta_y", "axis = 'eta_y': must be NAME:FIRST:LAST"),
    ("phase --x eta_y:1:2:x", "axis = 'eta_y:1:2:x': must be NAME:FIRST:LAST"),
    ("phase --x eta_y:0:2", "axis eta_y = 0.0: must be finite and in (0, inf)"),
    ("phase --x eta_y:1:1", "needs two ends"),
    ("phase --x eta_z:1:2 --y eta_z:1:2", "must be different axes"),
    ("phase --steps 1", "steps = 1: must be an integer >= 2"),
    ("phase --refine --probes -1", "probes = -1: must be an integer >= 0"),
    ("phase --refine --tolerance -1", "tolerance = -1.0: must be finite and in (0, 1]"),
    ("phase --tolerance 0.1", "tolerance = 0.1: only refine reads it"),
    ("phase --refine --resolution 33", "resolution = 33: refine starts from 33 values"),
    ("phase --band 0.5 --seeds 8", "band = 0.5: must be finite and in [1, inf)"),
    ("phase --band 2", "seeds = 1: band needs at least 8"),
    ("phase --band 2 --seeds 8 --max-seeds 4", "max_seeds = 4: must be at least"),
    ("phase --band 2 --seeds 8 --engine symmetric", "engine = 'symmetric' has no"),
    ("phase --seeds 0", "seeds = 0: must be an integer >= 1"),
    ("phase --regions magic:rule", "regions = 'magic:rule': cannot be imported"),
    ("figure 3 --eta-y", "figure 3: option --eta-y needs at least one value"),
    ("figure 3 --K 0", "K = 0: must be an integer >= 1"),
    ("figure 3 --K 9 --M 5", "M = 5: must be an integer >= 9"),
    ("figure 6 --seeds 0", "seeds = 0: must be an integer >= 1"),
    ("figure 6 --num-queries 0", "num_queries = '0': must be different integers >= 1"),
    ("figure corpus --scale 0", "scale = 0.0: must be finite and in (0, inf)"),
    ("figure corpus --corpus magic", "magic"),
    ("figure trainability --levels 99", "levels = 99: must be an integer <= 12"),
    ("figure trainability --eta-y 3 1", "eta_y"),
    ("figure optimum --system magic", "system = 'magic': must be one of"),
    ("figure optimum --system two_stage", "axis = 'eta': did you mean"),
    ("figure optimum --along eta:1:2", "along = 'eta:1:2': is the axis of the rate as well"),
    ("figure optimum --rate eta", "axis = 'eta': must be NAME:FIRST:LAST"),
    ("figure optimum --rate eta:1:2:2", "rate = 'eta:1:2:2': has 2 values; needs 3 or more"),
    ("figure optimum --along batch:4:64:2", "along = 'batch:4:64:2': has 2 values; needs 3"),
    ("figure optimum --rules sdg", "axes.optimizer = 'sdg': did you mean 'sgd'"),
    ("figure optimum --set steps", "set = 'run.steps': must be KEY = VALUE in TOML"),
    ("figure optimum --set stepps=3", "run = 'stepps': did you mean 'steps'"),
    ("figure optimum --set batch=8", "run.batch = 8: is an axis as well"),
    ("figure optimum --theory magic", "theory = 'magic': must be one of auto, best, none"),
    ("figure optimum --observable Loss", "record = 'Loss': did you mean 'loss'"),
    ("figure optimum --within 0", "within = 0.0: must be finite and in (0, inf)"),
    ("figure scaling --system magic", "system = 'magic': must be one of"),
    ("figure scaling --size D", "axis = 'D': must be NAME:FIRST:LAST"),
    ("figure scaling --size D:2,x", "size = 'D:2,x': must be NAME:V1,V2,... or"),
    ("figure scaling --size D:2,4", "size = 'D:2,4': needs 3 or more different values"),
    ("figure scaling --size D:2,4,4", "size = 'D:2,4,4': needs 3 or more different values"),
    ("figure scaling --size D:0,4,8", "size D = 0.0: must be finite and in (0, inf)"),
    ("figure scaling --size d:2,4,8", "axis = 'd'"),
    ("figure scaling --size D:2,4.5,8", "axes.D = 4.5"),
    ("figure scaling --size eta:1:2", "is the axis of the size as well"),
    ("figure scaling --rate eta:1:2:4", "rate = 'eta:1:2:4': needs 8 or more different values"),
    ("figure scaling --observable Loss", "record = 'Loss': did you mean 'loss'"),
    ("figure scaling --origin inf", "origin = inf: must be finite"),
    ("figure scaling --engine magic", "engine = 'magic': must be one of"),
    ("figure scaling --set N=8", "run.N = 8: is an axis as well"),
    # Files and folders.
    ("info magic", "magic: no such sweep"),
    ("info FILE", "FILE: holds something other than a sweep"),
    ("plot magic", "magic: no such sweep"),
    ("export magic", "magic: no such sweep"),
    ("check magic", "magic: no such sweep"),
    ("sweep magic", "sweep file magic: no such file"),
    ("sweep FILE", "not readable as TOML"),
    ("sweep fig4 --set run=3", "set = 'run=3': must be a table that says something"),
    ("sweep fig4 --set axes={}", "set = 'axes={}': must be a table that says something"),
    ("sweep fig4 --set run.magic=1", "run = 'magic': must be one of"),
    ("sweep fig4 --set magic=1", "key = 'magic': must be one of"),
    ("sweep fig4 --set record", "set = 'record': must be KEY = VALUE in TOML"),
    ("sweep fig4 --config FILE", "config = "),
    ("sweep fig4 --dask magic", "dask"),
    ("sweep fig4 --chunk 0", "chunk = 0"),
    ("sweep fig4 --tile 0", "tile = 0"),
    # Names.
    ("comapre", "command 'comapre': did you mean 'compare'?"),
    ("figure 99", "figure '99': did you mean '9'?"),
    ("compare magic", "compare 'magic'"),
]
OVERRIDES = [
    ("run.eta_z=[1, 2]", "run.eta_z = [1, 2]: must be one value"),
    ('run.eta_z="0.1"', "run.eta_z = '0.1': must be a number"),
    ("run.eta_z=true", "run.eta_z = True: must be a number"),
    ("run.eta_y=2.0", "run.eta_y = 2.0: is an axis as well"),
    ("run.ratio=2.0", "run.ratio = 2.0: eta_y is an axis"),
    ("run.K=7", "K = 7: task 'syn-small' does not read it"),
    ("run.b1=0.5", "b1 = 0.5: optimizer 'sgd' does not read it"),
    ("run.steps=0", "steps = 0: must be an integer >= 1"),
    ("run.steps=2.5", "steps = 2.5: must be an integer >= 1"),
    ("run.optimizer=SGD", "run.optimizer = 'SGD': did you mean 'sgd'? It must be one of"),
    ("run.momentum=", "set = 'run.momentum=': the file has no run.momentum to remove"),
    ("axes.eta_y=", "axes: needs a table with at least one axis"),
    ("record=[loss, magic]", "record = 'magic': must be one of"),
    ("engine='best'\nrun.clip=1.0", "engine = 'best': no theory describes these runs; theory"),
    ("run.optimizer='SGD'", "run.optimizer = 'SGD': did you mean 'sgd'? It must be one of"),
    ("run.optimiser='sgd'", "run = 'optimiser': did you mean 'optimizer'? It must be one of"),
    ("run.eta_z=nan", "run.eta_z = nan: must be finite and in [0, inf)"),
    ("axes.eta_y=[nan]", "axes.eta_y = nan: "),
    ("run.steps=1e3\nroot=-1", "root = -1: must be an integer >= 0"),
    ("run.optimizer='magic'", "optimizer = 'magic': must be one of sgd, momentum, nesterov"),
    ("run.dtype='float16'", "dtype = 'float16': must be one of float32, float64"),
    ("run.init='magic'", "init = 'magic': must be one of zero, uniform"),
    ("axes.eta_y=3.0", "axes.eta_y = 3.0: must be a list"),
    ("axes.eta_y=[]", "axes.eta_y = []: needs at least one value"),
    ("axes.eta_y=['a']", "axes.eta_y = 'a': must be a number"),
    ("axes.eta_y=[1.0, 1.0]", "eta_y"),
    ("axes.eta_y={linspace=[1, 2]}", "axes.eta_y.linspace = [1, 2]: must be [first, last, number"),
    (
        "axes.eta_y={logspace=[0, 1, 2]}",
        "axes.eta_y.logspace = 0.0: must be finite and in (0, inf)",
    ),
    ("axes.eta_y={logspace=[0.1, 1, 1]}", "logspace = [0.1, 1, 1]: one value cannot be both ends"),
    ("axes.eta_y={linspace=[0, 1, 1]}", "linspace = [0, 1, 1]: one value cannot be both ends"),
    ("axes.eta_y={logspace=[1, 2, 10000000000]}", "would have 10000000000 values"),
    ("axes.seed={range=4294967296}", "would have 4294967296 values"),
    ("axes.seed=[4294967296]", "axes.seed = 4294967296: must be an integer <= 4294967295"),
    ("axes.seed=[0.5]", "axes.seed = 0.5: must be a whole number"),
    ("axes.magic=[1]", "axes = 'magic': must be one of"),
    ("axes.b1=[0.5]", "axes.b1: optimizer 'sgd' does not read it"),
    ("axes.num_queries=[2]", "axes.num_queries: task 'syn-small' does not read it"),
    ("axes.T=[8]", "axes = 'T': must be one of eta_y"),
    ("run.T=8", "run = 'T': must be one of optimizer"),
    ("seed=3", "key = 'seed': must be one of system"),
    ("axes.ratio=[2.0]", "leave one of eta_y and ratio out"),
    ("record='loss'", "record = 'loss': must be names of observables"),
    ("record=[]", "record = []: needs at least one observable"),
    ("record=['loss', 'accuracy', 'loss']", "record = 'loss': is named twice"),
    ("record=['magic']", "record = 'magic': must be one of"),
    ("record=0.5", "record = 0.5: must be names of observables"),
    ("engine='magic'", "engine = 'magic': must be one of simulation"),
    ("system='magic'", "system = 'magic'"),
    ("root=-1", "root = -1: must be an integer >= 0"),
    ("root=4294967296", "root = 4294967296: must be an integer <= 4294967295"),
    ("rtol=1e-3", "rtol = 0.001: engine 'simulation' does not read it"),
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
    assert code == 2
    assert message in captured.err
    assert captured.err.startswith("dynsim: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert len(captured.err) < 600
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("line", "message"), COMMANDS)
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
