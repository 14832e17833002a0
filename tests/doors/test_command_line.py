"""Bad input to `dynsim COMMAND`, and to the tools that commands and notebooks share."""

import errno
import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from safetensors.numpy import save_file

import sweeps
from papers import cui, gromov, saad_solla
from papers.scan_and_snap.collapse import Collapse
from papers.scan_and_snap.corpus import Corpus
from papers.scan_and_snap.figure10 import Figure10
from papers.scan_and_snap.snap import Snap
from papers.trainability import Trainability
from sweeps import cli
from sweeps.commands import reading
from sweeps.studies.options import axis
from sweeps.studies.phase.plane import Phase
from sweeps.studies.scaling import scaling
from sweeps.studies.spectrum.figure import Spectrum
from sweeps.studies.spectrum.weights import tensors
from sweeps.systems.experiment import experiment
from tests.doors import refuses

MOST = "2147483647"
NAMED = "NAME:FIRST:LAST"
LONG = "n" * 260
ROWS = [
    # Commands, options and settings that there are not, and those of other kinds.
    ("comapre", "comapre", "compare"),
    ("collapse", "collapse", "figure collapse"),
    ("figure two-stag", "two-stag", "two_stage"),
    ("figure xyzzy", "xyzzy", "3, 4, 5"),
    ("figure --out x", "--out"),
    ("-x", "-x", "--help"),
    ("--bogus", "--bogus"),
    ("compare magic", "problem", "magic", "yz, qkv, two_stage"),
    ("compare plain", "plain", "yz"),
    ("compare --step 3", "step = 3", "steps"),
    ("info FILE --magic", "magic", "path, json"),
    ("compare --ratio 2 --eta-y 3", "ratio = 2", "rule.eta"),
    ("compare --K 5", "K = 5", "syn-small", "overlapping"),
    ("compare qkv --start uniform", "start", "uniform", "qkv", "yz"),
    ("phase --x T:9:99", "T:9:99", "problem, task"),
    # Values.
    ("compare --eta-y x", "rule.eta.Y", "x", "[0, inf)"),
    ("compare --eta 1e400", "rule.eta = inf", "[0, inf)"),
    ("compare --eta dynsim.schedules:Cosine", "rule.eta.peak"),
    ("compare --steps 0", "steps = 0", f"from 1 to {MOST}"),
    ("compare --steps -x", "steps", "-x", "integer"),
    ("compare --root 4294967296", "root = 4294967296", "0 to 4294967295"),
    ("compare --root -1", "root = -1", "0 to 4294967295"),
    ("compare --seeds 0", "seeds = 0", "1 to 16777216"),
    ("compare --seeds 16777217", "seeds = 16777217", "1 to 16777216"),
    ("compare --seed=3", "seed = 3", "0 to 7"),
    ("compare --times 1", "times = 1", "2 to 1048576"),
    ("compare --batch many", "batch", "many", "inf"),
    ("compare --batch 1000000000", "batch = 1000000000", "length = 128"),
    ("compare --length 1", "length = 1", f"2 to {MOST}"),
    ("compare --batch inf --length 9", "length = 9", "1/T"),
    ("compare --length 16 --theories plain-finite-t", "length = 16", "1/T"),
    ("compare --rtol 0", "rtol = 0", "[1e-13, 1)"),
    ("compare --problem saxe --theories sde --rtol 1e-5", "rtol", "sde"),
    ("compare --rule adamm", "rule", "adamm", "sgd,"),
    ("compare --task magic", "problem.task", "magic", "syn-small"),
    ("compare --task magic.txt", "problem.task", "magic.txt", ".npz or .csv", "estimate_classes"),
    ("compare --task os:getcwd", "os:getcwd", "dataclass"),
    ("compare --task overlapping --K 100000", "372.5 GiB"),
    ("compare --theories eq11", "theories", "eq11", "eq10"),
    ("compare --theories plain plain", "theories", "plain", "twice"),
    ("compare --theories theorem4", "theorem4"),
    ("compare --theories matched", "matched", "optimizer = sgd"),
    ("compare saxe --layers 0", "layers = 0"),
    ("compare --json=maybe", "json", "maybe", "true or false"),
    ("compare --json maybe", "maybe", "--"),
    ("compare --theories", "--theories"),
    ("compare --steps", "--steps", "integer"),
    ("compare --seeds 5 --seeds 6", "seeds = 6", "twice"),
    ("compare --=3", "--=3"),
    ("compare --out FILE", "FILE"),
    ("compare --out /proc/none", "/proc/none"),
    ("explain --eta-y 0", "eta_y = 0"),
    ("explain --eta ratio --ratio 0", "ratio = 0"),
    ("explain --start uniform", "start", "uniform", "zero"),
    ("explain --task overlapping --K 0", "K = 0", "1 to"),
    ("explain --task syn --M 3", "M = 3", ">= 79"),
    ("explain saxe --clip 1", "clip = 1.0"),
    # Files and stores.
    ("sweep", "file"),
    ("sweep /dev/null", "/dev/null"),
    ("sweep FILE", "TOML"),
    ("sweep fig4 --reuse nosuch", "reuse = nosuch"),
    ("sweep fig4 --set", "--set"),
    ("sweep fig4 --set run=3", "run=3", "table"),
    ("sweep fig4 --set run.magic=1", "magic = 1", "problem, task"),
    ("sweep fig4 --set run.momentum=", "run.momentum="),
    ("sweep fig4 --config FILE", "config"),
    ("sweep fig4 --dask magic", "dask"),
    ("sweep fig4 --patience 9", "patience = 9", "--distributed"),
    # A hundred million runs, where nobody can be asked.
    ("sweep fig4 --set axes.eta_y={linspace=[0.1,1,16000]} axes.seed={range=16000}", "--yes"),
    ("info magic", "magic"),
    ("info FILE", "FILE"),
    ("plot magic", "magic"),
    ("plot FILE --out nothing", "out = nothing", ".png, .svg, .pdf"),
    ("plot a --y eta", "y = 'eta'", "heatmap"),
    ("plot a --view heatmap --hue eta", "hue = 'eta'", "lines"),
    ("explore", "--serve"),
    ("explore a --port 80", "port = 80", "--serve"),
    ("explore a --serve --out b.html", "b.html", "--serve"),
    ("explore --steps 5", "--serve"),
    ("explore --serve --task overlapping --M 9", "M = 9", "overlapping"),
    ("schema --out none/x.json", "none/x.json"),
    ("spectrum --split 3", "checkpoint"),
    ("spectrum --checkpoint /dev/null", "/dev/null"),
    # What the operating system refuses, and keys that would take gigabytes.
    (f"sweep {LONG}", LONG, "shorter name"),
    (f"plot FILE --out {LONG}.png", LONG, "shorter name"),
    (f"schema --out {LONG}/x.json", LONG, "shorter name"),
    (f"sweep fig4 --set {'a.' * 40}a=1", "parts", "32"),
    # Planes and figures.
    ("phase --against nope", "against", "nope", "auto"),
    ("phase --observable Loss", "observable", "Loss", "loss"),
    ("phase yz --theory plian", "theory", "plian", "plain"),
    ("phase --x eta_y", "x = 'eta_y'", NAMED),
    ("phase --x eta_y:0:2", "eta_y = 0", "(0, inf)"),
    ("phase --x eta_y:1:1", "two ends"),
    ("phase --x seed:1:9", "seed:1:9"),
    ("phase --x eta_z:1:2 --y eta_z:1:2", "different"),
    ("phase saxe", "saxe", "axes"),
    ("phase --resolution 1", "resolution = 1", "from 2"),
    ("phase --resolution 40000", "1600000000"),
    ("phase --refine --probes -1", "probes = -1", "from 0"),
    ("phase --refine --tolerance -1", "tolerance = -1", "(0, 1]"),
    ("phase --refine --resolution 33", "resolution = 33"),
    ("phase --tolerance 0.1", "tolerance = 0.1", "--refine"),
    ("phase --probes 9", "probes = 9", "--refine"),
    ("phase --band 0.5 --seeds 8", "band = 0.5", "[1, inf)"),
    ("phase --band 2", "seeds = 1", "at least 8"),
    ("phase --band 2 --seeds 8 --max-seeds 4", "max_seeds = 4", "at least"),
    ("phase --band 2 --seeds 8 --theory symmetric", "symmetric"),
    ("phase --seeds 0", "seeds = 0", ">= 1"),
    ("phase --regions magic:rule", "regions", "magic:rule"),
    ("validity --x eta:1:2 --y eta:1:2", "y = 'eta:1:2'", "x"),
    ("figure qkv --eta-y nan", "eta_y = nan", "(0, inf)"),
    ("figure 6 --num-queries 1,0", "num_queries[1] = 0", ">= 1"),
    ("figure 9 --style /nowhere", "style", "/nowhere"),
    ("figure 9 --style FILE.mplstyle", "format = 'jpg'", "png, svg, pdf"),
    ("figure 9 --format pdf --out a/b.svg", "format = 'pdf'", "a/b.svg"),
    ("figure corpus --corpus magic", "magic"),
    ("figure trainability --levels 13", "levels = 13", "3 to 12"),
    ("figure trainability --eta-y 3 1", "eta_y"),
    ("figure optimum --problem two_stage", "rate", "eta:1e-3:30", "annealed", "sgd"),
    ("figure optimum --along eta:1:2", "along", "eta:1:2", "rate"),
    ("figure optimum --rate eta:1:2:2", "rate", "eta:1:2:2", "3 or more"),
    ("figure optimum --along batch:4:64:2", "along", "batch:4:64:2", "3"),
    ("figure optimum --rules sdg", "rule", "sdg", "sgd"),
    ("figure scaling --size D", "size = 'D'", "NAME:V1,V2"),
    ("figure scaling --size D:2,4.5,8", "problem.D = 4.5", "1 to 1048576"),
    ("figure scaling --size eta:1:2", "rate", "size"),
    ("figure scaling --rate eta:1:2:4", "eta:1:2:4", "8 or more"),
    ("figure scaling --origin inf", "origin = inf", "(-inf, inf)"),
    ("figure edge --momentum 0.9", "momentum", "sgd"),
    # What was typed does not reach the terminal as it is.
    ("--\x1b[31m", r"\x1b[31m"),
    ("sweep \x1b[31m.toml", r"\x1b[31m"),
    ("compare --task \x1b[31m", r"\x1b[31m"),
]


@pytest.mark.parametrize(("line", "named"), [(line, named) for line, *named in ROWS])
@pytest.mark.more
def test_error_is_one_line_with_field_value_and_what_is_allowed(
    line, named, tmp_path, monkeypatch, capsys
):
    """The exit code is 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("no sweep")
    (tmp_path / "FILE.mplstyle").write_text("savefig.format: jpg\n")
    try:
        code = cli.main(line.split(" "))
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr()
    # Some commands say what they do before they import what knows the error.
    *_, error = told.err.splitlines()
    assert (code, told.out) == (2, "")
    assert error.startswith("dynsim")
    assert error.isprintable()
    assert not [words for words in named if words not in error], error
    assert len(error) < 600
    assert {each.name for each in tmp_path.iterdir()} == {"FILE", "FILE.mplstyle"}


RATES = np.geomspace(0.01, 10, 16)
GOOD = xr.Dataset(
    {"status": ("eta", np.zeros(16, int)), "loss": ("eta", RATES), "xi": ("eta", RATES)},
    {"eta": RATES},
).assign(learned=(("eta", "row"), np.ones((16, 2))))
WORDS = GOOD[["status", "loss"]].isel(eta=[0, 1]).assign_coords(eta=["sgd", "adam"])
EQUAL = GOOD.assign_coords(eta=0.1 + 1e-10 * np.arange(16)).assign(loss=GOOD.loss.astype("f4"))
BATCH = np.array([8.0, 16, 32])
FOUND = xr.Dataset(
    dict.fromkeys(("best", "lower", "upper"), ("batch", BATCH))
    | {"shape": ("batch", 0 * BATCH), "place": ("batch", np.zeros(3, int))}
    | {"resampled": (("draw", "batch"), np.ones((0, 3)))},
    {"batch": BATCH},
    {"over": "eta", "within": 0.01},
)
SIZES, X = np.array([8.0, 16, 32]), np.linspace(-6, 6, 49)
SCALED = {"x": X, "sizes": SIZES, "values": np.ones((3, 49, 2))}
RUN, ZOOM = experiment(steps=4), "eta_y:1:1.00001:1000"
TOOLS = [
    (lambda: saad_solla.Committee(N=2, K=3), ("K = 3", "N = 2")),
    (lambda: cui.Attention(omega=1.1), ("omega = 1.1", "[0, 1]")),
    (lambda: gromov.ModularAddition(fraction=1.0), ("fraction = 1.0", "(0, 1)")),
    (lambda: sweeps.best(GOOD.drop_vars("status")), ("dataset", "status")),
    (lambda: sweeps.best(GOOD, over="etaa"), ("over", "etaa", "eta")),
    (lambda: sweeps.best(WORDS, over="eta"), ("over", "eta", "words")),
    (lambda: sweeps.best(GOOD.isel(eta=[0, 4])), ("over", "eta", "0.01", "3")),
    (
        lambda: sweeps.best(GOOD.assign_coords(eta=np.r_[RATES[:-1], np.inf])),
        ("over", "finite and different"),
    ),
    (lambda: sweeps.best(EQUAL), ("over", "eta", "float32")),
    (lambda: sweeps.best(GOOD, observable="learned"), ("learned", "row")),
    (lambda: sweeps.best(GOOD[["status", "xi"]]), ("observable", "xi")),
    (lambda: sweeps.best(GOOD, within=0.0), ("within = 0.0",)),
    (lambda: sweeps.transfer(xr.Dataset(), "batch"), ("best",)),
    (lambda: sweeps.transfer(FOUND, "bach"), ("along", "bach", "batch")),
    (lambda: sweeps.transfer(FOUND.assign_coords(batch=list("abc")), "batch"), ("words",)),
    (lambda: sweeps.transfer(FOUND.assign_coords(batch=BATCH - 8), "batch"), ("batch = 0",)),
    (lambda: sweeps.transfer(FOUND.assign(best=-FOUND.best), "batch"), ("eta = -32",)),
    (lambda: scaling(**SCALED | {"values": np.ones((3, 49))}), ("values", "(3, 49)")),
    (lambda: scaling(**SCALED | {"x": X.round()}), ("x", "8 or more")),
    (
        lambda: scaling(**SCALED | {"sizes": SIZES[:2], "values": np.ones((2, 49, 2))}),
        ("sizes", "3 or more"),
    ),
    (lambda: scaling(**SCALED, level=0.5), ("level = 0.5", "(0, 0.5)")),
    (lambda: scaling(**SCALED, draws=1), ("draws = 1", ">= 2")),
    (lambda: axis("eta_y:1:4:1", 9, RUN), ("eta_y:1:4:1", NAMED)),
    (lambda: axis("eta_y:1:a", 9, RUN), ("eta_y:1:a", NAMED)),
    (lambda: axis("momentum:0:inf:lin", 9, RUN), ("momentum = inf", "finite")),
    (lambda: axis("eta_y:1:2:16777217", 9, RUN), ("at most 16777216",)),
    (
        lambda: [
            each.check() for each in Phase(RUN, ZOOM, "eta_z:1:2", against="none").sweeps().values()
        ],
        ("eta_y", "float32", "1000"),
    ),
    (
        lambda: Phase(RUN, "eta_y:1:1.000001:99", "eta_z:1:1.000001", refine=True).axes(),
        ("float32", "9 and 9"),
    ),
    (lambda: sweeps.compare(setps=5), ("setps = 5", "steps")),
    (lambda: Collapse(families=("bad",)).computed(), ("families",)),
    (lambda: Corpus(corpus=Path("nowhere")).draw({}), ("path = nowhere",)),
    (lambda: Snap(rates=1).computed(), ("rates = 1",)),
    (lambda: Snap(steps=9).computed(), ("steps = 9", ">= 10")),
    (lambda: Trainability(eta_z=(2.0, 2.0)).save(), ("eta_z", "increase")),
    (lambda: Figure10(RUN).sweeps(), ("problem = yz", "LanguageModel")),
    (lambda: Figure10(experiment("transformer", steps=10)).sweeps(), ("steps = 10", ">= 20")),
    (lambda: Figure10(experiment("transformer"), eta=(2.0, 2.0)).sweeps(), ("eta", "two")),
]


@pytest.mark.parametrize(("call", "named"), TOOLS)
def test_tools_name_field_value_and_what_is_allowed(call, named):
    refuses(call, *named)


@pytest.mark.parametrize(
    ("shape", "options", "named"),
    [
        # Square blocks, and fewer heads of keys and values than of queries: 4 + 1 + 1.
        ((24, 8), {}, ("split = 3", "(24, 8)")),
        ((24, 24), {}, ("rows or columns",)),
        ((12, 8), {"heads": 1}, ("rows or columns",)),
        ((8, 24), {"heads": 5}, ("3 * 5", "columns")),
        ((8, 8), {"fused": "rows", "heads": 1}, ("split = 3", "rows")),
        ((8, 24), {"split": 1, "heads": 2}, ("heads = 2",)),
        ((8, 24), {"pattern": ("*.nope",)}, ("pattern", "*.nope", "1")),
    ],
)
def test_a_layout_of_weights_that_nothing_tells_is_an_error(shape, options, named, tmp_path):
    save_file({"A": np.ones(shape)}, tmp_path / "a.safetensors")
    refuses(
        lambda: Spectrum(tmp_path / "a.safetensors", **({"split": 3} | options)).matrices(), *named
    )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.safetensors", b"", "0 bytes"),
        ("text.safetensors", b"this is not a tensor of any kind", "cannot be read"),
        ("cut.safetensors", None, "cannot be read"),
        ("list.json", b"[]", "weight_map"),
        ("broken.json", b"{", "weight_map"),
        ("away.json", b'{"weight_map": {"a": "../x.safetensors"}}', "../x"),
        ("lost.json", b'{"weight_map": {"a": "x.safetensors"}}', "x.safetensors"),
        ("stale.json", b'{"weight_map": {"b": "whole.safetensors"}}', "'b'"),
    ],
)
def test_files_that_are_no_weights_are_errors(name, content, told, tmp_path):
    save_file({"a": np.eye(4)}, tmp_path / "whole.safetensors")
    cut = (tmp_path / "whole.safetensors").read_bytes()[:-5]
    (tmp_path / name).write_bytes(cut if content is None else content)
    refuses(lambda: tensors(tmp_path / name), name, told)


def test_what_files_and_libraries_say_does_not_reach_the_terminal_as_it_is(
    tmp_path, monkeypatch, capfd
):
    names = {"a\x1b[2J\nb": np.eye(4), "c\x07": np.ones(3), "d\u202e": np.eye(4)}
    save_file(names, tmp_path / "a.safetensors")
    command = ["spectrum", "--checkpoint", str(tmp_path / "a.safetensors")]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    told = "".join(capfd.readouterr())
    assert all(line.isprintable() for line in told.split("\n"))
    assert "\nb" not in told
    noise = lambda config: print("x\x1b[2J", file=sys.stderr) or print("y\x07")
    monkeypatch.setattr(reading, "check", noise)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert capfd.readouterr() == ("y\\x07\n", "x\\x1b[2J\n")


def test_a_full_disk_is_one_line_with_the_file_and_what_to_do(tmp_path, monkeypatch, capsys):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened = Path.open
    full = lambda path, mode="r", *a, **k: Full() if mode == "wb" else opened(path, mode, *a, **k)
    monkeypatch.setattr(Path, "open", full)
    assert cli.main(["schema", "--out", str(tmp_path / "x.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not [words for words in (str(tmp_path / "x.json"), "space") if words not in line]
    assert "Errno" not in line
