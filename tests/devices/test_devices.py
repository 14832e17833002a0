"""Programs export for every platform without calls to the host, and need the planned memory."""

import os
import subprocess
import sys

import jax
import pytest

from dynsim.precision import compiled_for, precision
from sweeps.runner import fit, tiles
from sweeps.runner.program import jobs
from sweeps.systems import kinds, registry
from tests.devices import check, hlo, measure, parts, programs

MODULE = """HloModule jit_step, is_scheduled=true

%inner (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4] get-tuple-element(%p), index=1
  %one = f32[4]{0} fusion(%x), kind=kLoop, calls=%add
  %c = f32[4]{0} call(%one), to_apply=%called
  %chosen = f32[4]{0} conditional(%i, %c), branch_computations={%called}
  %known = (s32[], f32[4]) while(%p), body=%small, backend_config={"known_trip_count":{"n":"3"}}
  %asked = (s32[], f32[4]) while(%p), body=%small
  ROOT %out = (s32[], f32[4]) tuple(%i, %chosen)
}

%called (y: f32[4]) -> f32[4] {
  %y = f32[4] parameter(0)
  ROOT %two = f32[4]{0} custom-call(%y), custom_call_target="xla_ffi_python_gpu_callback"
}

%small (q: (s32[], f32[4])) -> (s32[], f32[4]) {
  ROOT %q = (s32[], f32[4]) parameter(0)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4] parameter(0)
  %loop = (s32[], f32[4]) while(%a), condition=%cond, body=%inner
  ROOT %r = f32[4]{0} get-tuple-element(%loop), index=1
}
"""


def test_kernels_and_questions_of_a_step_are_counted():
    found = hlo.read(MODULE)
    # A fusion, and the host call in the called computation; loops are counted separately.
    assert found == hlo.Program(hlo.Loop(kernels=2, conditionals=1, open_ended=1), callbacks=1)
    assert hlo.read("ENTRY %main (a: f32[4]) -> f32[4] {\n}") == hlo.Program(None, 0)


PARTS = """
import threading

def prepare():
    pass

def part(small, works):
    yield f"small: {small}"
    works()

PARTS = {
    "hangs": lambda small: part(small, threading.Event().wait),
    "fails": lambda small: part(small, lambda: 1 / 0),
    "works": lambda small: part(small, lambda: None),
}
"""


def test_a_part_that_hangs_tells_where_and_the_others_run(tmp_path, monkeypatch, capfd):
    (tmp_path / "made_up.py").write_text(PARTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    budgets = {"hangs": 0.1, "unwanted": 60, "fails": 60, "works": 60}
    monkeypatch.setattr(measure, "BUDGETS", budgets)
    measure.measure(("works", "fails", "hangs"), small=True, module="made_up")
    out, errors = capfd.readouterr()
    names = [line.split(",")[0] for line in out.splitlines() if "at most" in line]
    assert names == ["hangs", "fails", "works"]
    assert out.count("small: True") == 3
    assert "in wait" in errors
    assert "ZeroDivisionError" in errors
    measure.measure(("works",), minutes=0, module="made_up")
    assert "no time left: works" in capfd.readouterr().out


def test_every_part_has_a_budget():
    assert [*parts.PARTS] == [*measure.BUDGETS]


def test_a_device_agrees_with_its_host(capsys):
    check.present(["joma"], ["erf"])
    assert "joma erf" in capsys.readouterr().out


@pytest.mark.parametrize("system", kinds.BUILT_IN)
@pytest.mark.more
def test_every_theory_has_a_run_to_compile(system):
    theories = {case.theory for case in programs.cases((system,))}
    assert theories == set(registry.theories(registry.system(system)))


def test_no_step_of_an_accelerator_asks_its_host():
    """The program for an accelerator, compiled for this machine's CPU."""
    case = next(programs.cases(("yz",)))
    assert case.theory == "simulation"
    job = programs.job(case, tiles.mesh(jax.devices()[:1]))
    with compiled_for("gpu"), precision("float32"):
        # Only the theory's part: with a mesh of CPU devices it would be written for a CPU.
        numbers = jax.tree.map(lambda _: 0.1, job.numbers)
        train = jax.jit(lambda key: job.call.run(numbers, job.arrays, key))
        compiled = train.lower(jax.random.key(0)).compile()
    step = hlo.read(compiled.as_text() or "").step
    assert step is not None
    assert step.kernels > 5
    assert (step.conditionals, step.open_ended) == (0, 0)


EXPORT = """
import functools
import jax, numpy as np
from dynsim.precision import compiled_for, precision
from sweeps.runner import tiles
from tests.devices import programs

wanted = {wanted}
for case in programs.cases(tuple(wanted)):
    if case.theory not in wanted[case.system]:
        continue
    with precision(case.sweep.dtype), compiled_for("gpu"):
        job = programs.job(case, tiles.mesh(jax.devices()[:1]))
        known = {{"call": job.call, "mesh": job.mesh}}
        numbers = jax.tree.map(lambda _: np.zeros((1, 2), job.call.dtype), job.numbers)
        seeds, root, drawn = np.zeros((1, 1), np.uint32), np.uint32(0), None
        if job.call.draws:
            draw = functools.partial(tiles.draw_tiles, **known)
            drawn = jax.eval_shape(draw, job.arrays, seeds, root)
        exported = jax.export.export(tiles.run_tiles, platforms=("cpu", "cuda", "tpu"))(
            job.arrays, numbers, seeds, root, drawn, **known
        )
        assert "callback" not in exported.mlir_module(), case
        print(case.system, case.theory, case.note, *exported.platforms)
"""


@pytest.mark.full("test_no_step_of_an_accelerator_asks_its_host")
def test_a_program_of_each_kind_is_exported_for_every_platform():
    """In a process that starts like the command line, where solvers do not call the host."""
    wanted = {"yz": ("simulation", "plain"), "two_stage": ("simulation",)}
    found = subprocess.run(
        [sys.executable, "-c", EXPORT.format(wanted=wanted)],
        env={**os.environ, "EQX_ON_ERROR": "nan"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    # Training of both with the sharpness as well, and of one with AdamW.
    lines = found.stdout.splitlines()
    assert len(lines) == 3 + 3
    assert all(line.endswith("cpu cuda tpu") for line in lines)


# Traced numbers stand in fields for floats where a problem is made from another.
@pytest.mark.usefixtures("unchecked")
# As in a sweep: a tile for a CPU, whose points share the draws of a seed.
@pytest.mark.parametrize(
    ("system", "theory"),
    [
        ("yz", "fixed_attention"),
        *(
            pytest.param(system, theory, marks=pytest.mark.full)  # compiles for long
            for system, theory in (
                *(("yz", name) for name in ("simulation", "plain", "lemma3", "theorem4")),
                *(("two_stage", name) for name in ("simulation", "ode")),
                *((name, "plain") for name in ("linear_icl", "sparse_attention", "joma")),
            )
        ),
    ],
)
def test_a_sweep_plans_what_the_program_takes(system, theory):
    case = next(case for case in programs.cases((system,)) if case.theory == theory)
    tile = case.sweep.method.at_once
    with precision(case.sweep.dtype):
        job = programs.job(case, tiles.mesh())._replace(tile=(1, tile))
        needed = fit.needed(jobs.trace(job)[1].program.lower().compile()) / tile
    planned = case.sweep.runs({}).bytes_per_run
    reduced = (system, theory) in {("linear_icl", "plain"), ("sparse_attention", "plain")}
    assert needed / 2.5 <= planned
    assert reduced or planned <= 2.5 * needed
