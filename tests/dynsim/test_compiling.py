"""Options of the compiler, seen in what it writes about the programs that it is given."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.compiling import CALL, EFFORTS, ENTRY, FULL, TURNS, Cost, available, called, cost
from dynsim.precision import compiled_for, precision
from odes.yz import eq10


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of programs since the last call that were compiled with the effort "quick", whose
    options are those by which the compiler writes each program to a folder."""
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    monkeypatch.setitem(EFFORTS, "quick", EFFORTS["quick"]._replace(options=options))

    def number() -> int:
        files = list(tmp_path.glob("*before_optimizations.txt"))
        for file in files:
            file.unlink()
        # An empty program tells whether the compiler knows the options.
        return sum(".jit_nothing." not in file.name for file in files)

    return number


SMALL = np.ones(3, np.float32)


def program() -> Any:
    """A new function, which JAX has not compiled."""
    return eqx.filter_jit(lambda x, factor=2.0: jnp.sin(x) * factor)


def test_short_programs_are_compiled_quickly_and_long_ones_for_speed(
    quick: Callable[[], int],
) -> None:
    one = program()
    np.testing.assert_allclose(called(one, SMALL), 2 * np.sin(SMALL), rtol=1e-6)
    assert quick() == 1
    called(one, SMALL + 1)
    assert quick() == 0, "the same program"
    np.testing.assert_allclose(called(one, SMALL, factor=3.0), 3 * np.sin(SMALL), rtol=1e-6)
    assert quick() == 1, "another constant"
    # Each of two operations makes as many entries as it takes to lose what is saved in addition.
    effort, reduced = EFFORTS["quick"], EFFORTS["reduced"]
    most = (effort.saved - reduced.saved) / ((effort.entries - reduced.entries) * ENTRY)
    for share, want in ((0.9, 1), (1.1, 0)):
        called(one, np.ones(round(share * most), np.float32))
        assert quick() == want


def test_a_part_of_a_program_has_the_options_of_the_whole(quick: Callable[[], int]) -> None:
    """JAX rejects options inside a program, and derivatives of a program with options."""
    one = program()
    for within, want in (
        (jax.jit(lambda x: called(one, x)), 2 * np.sin(1.0)),
        # Nothing that the inner program is given is traced.
        (jax.jit(lambda x: x * called(one, jnp.ones(()))), 2 * np.sin(1.0)),
        (jax.grad(lambda x: called(one, x)), 2 * np.cos(1.0)),
        (lambda x: jax.lax.map(lambda y: called(one, y), x[None])[0], 2 * np.sin(1.0)),
        (lambda x: jax.vmap(lambda y: called(one, y))(x[None])[0], 2 * np.sin(1.0)),
        (lambda x: jax.eval_shape(lambda y: called(one, y), x).shape == (), True),
    ):
        np.testing.assert_allclose(within(jnp.ones(())), want, rtol=1e-6)
    assert quick() == 0


def test_options_are_for_cpus(quick: Callable[[], int]) -> None:
    for platform in ("gpu", "tpu"):
        with compiled_for(platform):
            called(program(), SMALL)
    assert quick() == 0
    with compiled_for("cpu"):
        called(program(), SMALL)
    assert quick() == 1


def test_options_that_xla_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Builds differ: jax 0.12 has one less than 0.10.
    known = {"xla_dump_hlo_as_text": False}
    unknown = {"xla_cpu_no_such_option": True, "xla_nor_this": "1"}
    assert available({**unknown, **known}) == known
    assert available(unknown) == {}
    monkeypatch.setitem(EFFORTS, "quick", EFFORTS["quick"]._replace(options=unknown))
    np.testing.assert_allclose(called(program(), SMALL), 2 * np.sin(SMALL), rtol=1e-6)


def test_options_that_the_user_has_set_prevail(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"xla_dump_hlo_as_text": False, "xla_dump_hlo_as_html": False}
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text=true")
    assert available(options) == {"xla_dump_hlo_as_html": False}


def test_a_loop_of_unknown_length_is_that_of_a_solver() -> None:
    """Seven turns of an inner loop of three operations; the loop within a loop has one turn."""

    def inner(x: jax.Array) -> jax.Array:
        more = jax.lax.while_loop(lambda x: x < 2, lambda x: x + 1, x)
        return jax.lax.scan(lambda x, _: (x * 2 - 1, None), more, length=7)[0]

    def outer(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x < 9, inner, x)

    made = jax.make_jaxpr(outer)(1.0).jaxpr
    # A comparison for each while loop, one addition, and two operations of the scan.
    assert cost(made).operations == 1 + (1 + 1) + 2
    for unknown in (1, TURNS):
        calls = unknown * (1 + (1 + 1) + 7 * 2) * CALL
        assert cost(made, unknown).calls == pytest.approx(calls)
        assert cost(made, unknown).entries == pytest.approx(calls / CALL * ENTRY)


@pytest.mark.parametrize(
    ("operations", "calls", "entries"), [(1000, 1.0, 0.0), (1000, 0.0, 1.0), (50, 1.0, 2.0)]
)
def test_the_effort_is_that_by_which_a_program_is_done_first(
    operations: int, calls: float, entries: float
) -> None:
    one = Cost(operations, calls / 1e6, entries / 1e6)

    def longer(effort: str, times: int) -> float:
        """Seconds until it has run so many times, beyond those with full optimisation."""
        _, saved, *lost = EFFORTS[effort]
        return times * np.dot(lost, one[1:]) - saved * operations

    chosen = []
    for times in np.geomspace(1, 1e9, 100).astype(int).tolist():
        chosen.append(one.effort(times))
        assert longer(chosen[-1], times) <= min(longer(each, times) for each in EFFORTS)
    assert list(dict.fromkeys(chosen)) == ["quick", "reduced", FULL]


@pytest.mark.more
def test_one_solve_of_a_theory_is_compiled_quickly(quick: Callable[[], int]) -> None:
    """Eq. 10 takes 4 ms, after 3.5 s of compilation for speed."""
    times = np.linspace(0, 10, 4)
    found = eq10.solve(dynsim.SynSmall(), dynsim.sgd(1.0, 0.125), times)
    assert quick() == 1
    # The same from a program of the user's own.
    with precision("float64"):
        solve = lambda eta: eq10.solve(dynsim.SynSmall(), dynsim.sgd(eta, 0.125), times)
        want = jax.jit(solve)(1.0)
    assert quick() == 0
    for name, values in want.observables.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-9)


@pytest.mark.more
def test_descent_is_compiled_for_how_long_it_runs_and_training_for_speed(
    quick: Callable[[], int],
) -> None:
    layer, key = dynsim.Layer(dynsim.SynSmall(), length=64), jax.random.key(0)
    run = lambda steps, batch: dynsim.train(
        layer, dynsim.sgd(0.1, 0.1), key, steps=steps, batch=batch, record=["loss"]
    )
    run(3, math.inf)
    assert quick() == 1
    run(3, 4)
    assert quick() == 0
