"""Precision, device and compiler of a computation."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.compiling import CALL, EFFORTS, ENTRY, FULL, TURNS, Cost, available, call_compiled, cost
from dynsim.precision import (
    as_jax_arrays,
    cast,
    compiled_for,
    host,
    on_cpu,
    one_by_one,
    precision,
    to_host,
)
from tests.doors import refuses
from tests.doors.test_dynsim import Line


def state() -> tuple[bool, object, object]:
    """What decides precision and device: x64, precision of products, and the default device."""
    products = jax.config.jax_default_matmul_precision
    return jax.enable_x64.value, products, jax.default_device.value


@pytest.mark.parametrize(
    ("dtype", "platform", "wide", "on_host"),
    [
        ("float32", "tpu", False, False),
        ("float64", "cpu", True, False),
        ("float64", "gpu", True, False),
        # It has no float64.
        ("float64", "tpu", True, True),
    ],
)
def test_a_computation_has_its_precision_and_leaves_that_of_others(
    dtype: Any, platform: Any, wide: bool, on_host: bool
) -> None:
    before = state()
    assert before[0] is False
    with compiled_for(platform), precision(dtype, np.ones(2)):
        assert state() == (wide, "highest", host() if on_host else None)
        assert jnp.asarray(0.1).dtype == dtype
    assert state() == before


@pytest.mark.usefixtures("x64")
def test_a_traced_float64_computation_stays_on_its_device() -> None:
    def inside(x: jax.Array) -> jax.Array:
        with compiled_for("tpu"), precision("float64", x):
            assert state() == (True, "highest", None)
            return 2 * x

    assert jax.eval_shape(inside, 1.0).dtype == "float64"


def test_programs_are_traced_for_the_device_on_which_they_run() -> None:
    assert host() == jax.local_devices(backend="cpu")[0]
    assert on_cpu()
    for device in (host(), "cpu"):
        with jax.default_device(device):
            assert on_cpu()
    with jax.default_device("gpu"):
        assert not on_cpu()
        with compiled_for("cpu"):
            assert on_cpu()
    with compiled_for("tpu"):
        assert not on_cpu()


@pytest.mark.parametrize(("platform", "looped"), [("cpu", True), ("gpu", False)])
def test_a_batch_is_looped_over_on_a_cpu_alone(platform: Any, looped: bool) -> None:
    shapes = []

    def trace(matrix: jax.Array) -> jax.Array:
        shapes.append(matrix.shape)
        return jnp.trace(matrix)

    with compiled_for(platform):
        program = jax.make_jaxpr(jax.vmap(one_by_one(trace)))(np.ones((5, 2, 2)))
        np.testing.assert_allclose(one_by_one(trace)(np.eye(2)), 2)
    assert ("scan" in str(program)) == looped
    assert {*shapes} == {(2, 2)}


def test_numbers_cross_the_border_of_a_computation() -> None:
    """Float64 results leave as arrays of NumPy, unless the session has float64 itself, or something
    is still traced."""
    with precision("float64"):
        for given in (0.1, [0.1], np.float32([0.1]), jnp.asarray(0.1, "float32")):
            found = cast(given, "float64")
            assert isinstance(found, jax.Array)
            assert (found.dtype, found.shape) == ("float64", np.shape(given))
        assert float(cast(0.1, "float64")) == 0.1
        wide, narrow = jnp.asarray(0.1, "float64"), jnp.asarray(3, "int32")
    assert jax.eval_shape(lambda x: cast(x, "int32"), 1.0).dtype == "int32"
    other = object()
    tree = {"a": np.ones(2), "b": np.float32(1.0), "c": 1.0, "d": other}
    found = as_jax_arrays(tree)
    assert [isinstance(found[name], jax.Array) for name in "abcd"] == [True, True, False, False]
    assert found["d"] is other
    found = to_host({"x": wide, "n": narrow})
    assert {type(leaf) for leaf in found.values()} == {np.ndarray}
    assert float(found["x"]) == 0.1
    plain = {"x": jnp.ones(1), "n": jnp.ones(1, "int32")}
    assert to_host(plain) is plain
    with jax.enable_x64(True):
        assert to_host({"x": wide})["x"] is wide
    assert jax.eval_shape(lambda x: to_host((wide, x)), 1.0)[1].shape == ()


CHECKS = {
    "jax_numpy_dtype_promotion": "strict",
    "jax_debug_key_reuse": True,
    "jax_disable_jit": True,
    "jax_transfer_guard": "disallow",
    "jax_numpy_rank_promotion": "raise",
    "jax_check_tracer_leaks": True,
}


@contextlib.contextmanager
def configured(name: str, value: object) -> Iterator[None]:
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


KEY = jax.random.key(0)


def trained(rate: float, **options: Any) -> dynsim.Trajectory:
    rule = dynsim.adamw(rate, decay=0.01) if rate < 1 else dynsim.sgd(rate)
    return dynsim.train(Line(), rule, KEY, batch=4, record="params", **options)


@pytest.mark.parametrize("name", CHECKS)
def test_training_is_the_same_whatever_jax_checks(name: str) -> None:
    want = trained(0.1, steps=5)["params.w"]
    with configured(name, CHECKS[name]):
        got = trained(0.1, steps=5)["params.w"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
def test_an_option_that_stops_at_nan_is_named(name: str) -> None:
    with configured(name, True):
        diverged = lambda: trained(1e9, steps=100)
        refuses(diverged, name, "DIVERGED", error=FloatingPointError)


def test_a_short_program_is_part_of_any_other() -> None:
    """JAX rejects options inside a program, and derivatives of a program with options."""
    one = eqx.filter_jit(lambda x, factor=2.0: jnp.sin(x) * factor)
    np.testing.assert_allclose(
        call_compiled(one, np.ones(3, "f4"), factor=3.0), 3 * np.sin(1), rtol=1e-6
    )
    for within, want in (
        (jax.jit(lambda x: call_compiled(one, x)), 2 * np.sin(1.0)),
        # Nothing that the inner program is given is traced.
        (jax.jit(lambda x: x * call_compiled(one, jnp.ones(()))), 2 * np.sin(1.0)),
        (jax.grad(lambda x: call_compiled(one, x)), 2 * np.cos(1.0)),
        (lambda x: jax.lax.map(lambda y: call_compiled(one, y), x[None])[0], 2 * np.sin(1.0)),
        (lambda x: jax.vmap(lambda y: call_compiled(one, y))(x[None])[0], 2 * np.sin(1.0)),
        (lambda x: jax.eval_shape(lambda y: call_compiled(one, y), x).shape == (), True),
    ):
        np.testing.assert_allclose(within(jnp.ones(())), want, rtol=1e-6)


def test_options_are_those_that_xla_knows_and_the_user_has_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Builds differ: jax 0.12 has one less than 0.10.
    known = {"xla_dump_hlo_as_text": False, "xla_dump_hlo_as_html": False}
    assert available({"xla_cpu_no_such_option": True, "xla_nor_this": "1", **known}) == known
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text=true")
    assert available(known) == {"xla_dump_hlo_as_html": False}


def test_a_loop_of_unknown_length_is_that_of_a_solver() -> None:
    """Seven turns of an inner loop of three operations; the loop within a loop has one turn."""

    def inner(x: jax.Array) -> jax.Array:
        more = jax.lax.while_loop(lambda x: x < 2, lambda x: x + 1, x)
        return jax.lax.scan(lambda x, _: (x * 2 - 1, None), more, length=7)[0]

    outer = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 9, inner, x))
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
