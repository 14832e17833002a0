"""Precision and device of a computation, and how its arguments and results cross their border."""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim.precision import (
    cast,
    compiled_for,
    host,
    on_cpu,
    one_by_one,
    placed,
    precision,
    to_host,
)


def state() -> tuple[bool, object, object]:
    """What decides precision and device: x64, precision of products, and the default device."""
    products = jax.config.jax_default_matmul_precision
    return jax.enable_x64.value, products, jax.default_device.value


@pytest.mark.parametrize(
    ("dtype", "platform", "wide", "device"),
    [
        ("float32", "tpu", False, None),
        ("float64", "cpu", True, None),
        ("float64", "gpu", True, None),
        # It has no float64.
        ("float64", "tpu", True, "host"),
    ],
)
def test_a_computation_has_its_precision_and_leaves_that_of_others(
    dtype: str, platform: str, wide: bool, device: str | None
) -> None:
    before = state()
    assert before[0] is False
    with compiled_for(platform), precision(dtype, np.ones(2)):
        assert state() == (wide, "highest", host() if device else None)
        assert jnp.asarray(0.1).dtype == dtype
    assert state() == before


@pytest.mark.usefixtures("x64")
def test_a_traced_float64_computation_stays_on_its_device() -> None:
    def inside(x: jax.Array) -> jax.Array:
        with compiled_for("tpu"), precision("float64", x):
            assert state() == (True, "highest", None)
            return 2 * x

    assert jax.eval_shape(inside, 1.0).dtype == "float64"


def test_float64_inside_of_a_float32_trace_is_an_error() -> None:
    def inside(x: jax.Array) -> jax.Array:
        with precision("float64", 1.0, {"x": x}):
            return x

    with pytest.raises(ValueError, match="dtype = 'float64': inside jit, vmap or grad this needs"):
        jax.eval_shape(inside, 1.0)
    with pytest.raises(ValueError, match="dtype = 'float16': must be one of"), precision("float16"):
        pass


@contextlib.contextmanager
def default(device: object) -> Iterator[None]:
    with jax.default_device(device):
        yield


def test_programs_are_traced_for_the_device_on_which_they_run() -> None:
    assert host() == jax.local_devices(backend="cpu")[0]
    assert on_cpu()
    for device in (host(), "cpu"):
        with default(device):
            assert on_cpu()
    with default("gpu"):
        assert not on_cpu()
        with compiled_for("cpu"):
            assert on_cpu()
        assert not on_cpu()
    with compiled_for("tpu"):
        assert not on_cpu()


@pytest.mark.parametrize(("platform", "looped"), [("cpu", True), ("gpu", False)])
def test_a_batch_is_looped_over_on_a_cpu_alone(platform: str, looped: bool) -> None:
    shapes = []

    def trace(matrix: jax.Array) -> jax.Array:
        shapes.append(matrix.shape)
        return jnp.trace(matrix)

    with compiled_for(platform):
        program = jax.make_jaxpr(jax.vmap(one_by_one(trace)))(np.ones((5, 2, 2)))
        np.testing.assert_allclose(one_by_one(trace)(np.eye(2)), 2)
    assert ("scan" in str(program)) == looped
    assert {*shapes} == {(2, 2)}


def test_numbers_become_arrays_of_the_precision() -> None:
    with precision("float64"):
        for given in (0.1, [0.1], np.float32([0.1]), jnp.asarray(0.1, "float32")):
            found = cast(given, "float64")
            assert isinstance(found, jax.Array)
            assert (found.dtype, found.shape) == ("float64", np.shape(given))
        assert float(cast(0.1, "float64")) == 0.1
    assert jax.eval_shape(lambda x: cast(x, "int32"), 1.0).dtype == "int32"


def test_arrays_of_numpy_are_placed_and_nothing_else_is_touched() -> None:
    other = object()
    tree = {"a": np.ones(2), "b": np.float32(1.0), "c": 1.0, "d": other}
    found = placed(tree)
    assert [isinstance(found[name], jax.Array) for name in "abcd"] == [True, True, False, False]
    assert found["d"] is other
    np.testing.assert_array_equal(found["a"], tree["a"])


def test_float64_results_leave_as_arrays_of_numpy() -> None:
    """Unless the session has float64 itself, or something is still traced."""
    with precision("float64"):
        wide, narrow = jnp.asarray(0.1, "float64"), jnp.asarray(3, "int32")
    found = to_host({"x": wide, "n": narrow})
    assert {type(leaf) for leaf in found.values()} == {np.ndarray}
    assert float(found["x"]) == 0.1
    plain = {"x": jnp.ones(1), "n": jnp.ones(1, "int32")}
    assert to_host(plain) is plain
    with jax.enable_x64(True):
        assert to_host({"x": wide})["x"] is wide
    assert jax.eval_shape(lambda x: to_host((wide, x)), 1.0)[1].shape == ()


class Line(dynsim.Problem):
    """(w . x)^2 for normal x."""

    def init(self, key: PRNGKeyArray) -> Array:
        return jax.random.normal(key, (3,))

    def draw(self, key: PRNGKeyArray, batch: int) -> Array:
        return jax.random.normal(key, (batch, 3))

    def loss(self, params: Array, data: Array) -> Array:
        return jnp.mean((data @ params) ** 2)


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


@pytest.mark.parametrize("name", CHECKS)
def test_training_is_the_same_whatever_jax_checks(name: str) -> None:
    def last() -> np.ndarray:
        rule = dynsim.adamw(0.1, decay=0.01)
        found = dynsim.train(Line(), rule, key, steps=5, batch=4, record="params")
        return np.asarray(found["params"])

    key = jax.random.key(0)
    want = last()
    with configured(name, CHECKS[name]):
        got = last()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
def test_an_option_that_stops_at_nan_is_named(name: str) -> None:
    key = jax.random.key(0)
    with configured(name, True), pytest.raises(FloatingPointError, match=f"^{name}: .* DIVERGED$"):
        dynsim.train(Line(), dynsim.sgd(1e9), key, steps=100, batch=4)
