"""Traces have one form exactly where JAX lowers them to one text."""

import functools
import itertools
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.runner.program import traces

X = np.ones((3, 3), np.float32)
A = np.arange(9, dtype=np.float32).reshape(3, 3)


def of(value):
    return lambda x: x * value


def looped(turns):
    return lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=turns)[0]


def inner(function):
    return lambda x: jax.jit(lambda y: function(y) + 1)(x)


def named(name):
    return lambda x: {name: x + 1}


PROGRAMS = {
    "two": of(2.0),
    "zero": of(0.0),
    "minus zero": of(-0.0),
    "one zero": lambda x: x[0, 0] * 0.0,
    "one minus zero": lambda x: x[0, 0] * -0.0,
    "array": of(A),
    "transposed array": of(A.T),
    "of jax": of(jnp.asarray(A)),
    "three turns": looped(3),
    "four turns": looped(4),
    "inner sine": inner(jnp.sin),
    "inner turns": inner(looped(3)),
    "relu": jax.nn.relu,
    "relu of relu": lambda x: jax.nn.relu(jax.nn.relu(x)),
    "first": named("first"),
    "second": named("second"),
    "order": lambda x: jnp.sin(x) - jnp.cos(x),
    "other order": lambda x: jnp.cos(x) - jnp.sin(x),
    "product": lambda x: x @ x,
    "exact product": lambda x: jnp.dot(x, x, precision="highest"),
    "transposed": lambda x: x.T @ x,
    "branch": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "other branch": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
    "drawn": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "drawn otherwise": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "slope": jax.grad(lambda x: jax.nn.gelu(x).sum()),
}


def traced(name):
    """A trace that JAX has not seen."""
    return jax.jit(lambda x: PROGRAMS[name](x)).trace(X)


@functools.cache
def found(name):
    made = traced(name)
    return traces.jaxpr_fingerprint(made), made.lower().as_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_traced_again_has_the_same_form(name):
    form, _ = found(name)
    assert form is not None
    again = traces.jaxpr_fingerprint(traced(name))
    assert (again, hash(again)) == (form, hash(form))


def test_programs_of_one_form_have_one_text():
    for one, other in itertools.combinations(PROGRAMS, 2):
        (form, text), (form_2, text_2) = found(one), found(other)
        assert (form == form_2) <= (text == text_2), (one, other)
    assert len({found(name)[0] for name in PROGRAMS}) > len(PROGRAMS) - 3


def test_options_of_jax_that_are_read_later_belong_to_the_form():
    """Random bits are made in another way where arrays are divided among devices."""
    with jax.threefry_partitionable(not jax.config.values["jax_threefry_partitionable"]):
        other = traced("drawn")
    assert traces.jaxpr_fingerprint(other) != found("drawn")[0]


SQUARE = np.random.default_rng(0).normal(size=(5, 4, 4)).astype("float32")
POSITIVE = SQUARE @ SQUARE.swapaxes(1, 2) + np.eye(4, dtype="float32")
CALLS = {
    "svd": lambda x: jnp.linalg.svd(x),
    "eigh": lambda x: jnp.linalg.eigh(x),
    "eigenvalues": lambda x: jnp.linalg.eigvals(x),
    "qr": lambda x: jnp.linalg.qr(x),
    "cholesky": lambda x: jnp.linalg.cholesky(x),
    "inverse": lambda x: jnp.linalg.inv(x),
    "solve": lambda x: jnp.linalg.solve(x, x[0]),
    "schur": lambda x: jax.scipy.linalg.schur(x),
    "hessenberg": lambda x: jax.scipy.linalg.hessenberg(x),
    "tridiagonal": lambda x: jax.lax.linalg.tridiagonal_solve(x[0], 9 + x[1], x[2], x[:, :2]),
    "products": lambda x: jax.lax.linalg.householder_product(x, x[0]),
    "gradient": jax.grad(lambda x: jnp.linalg.slogdet(x)[1]),
    "in a scan": lambda x: jax.lax.scan(lambda c, _: (jnp.linalg.qr(c)[0], None), x, None, 3)[0],
    "in a loop": lambda x: jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.linalg.inv(c[1])), (0, x)
    )[1],
    "in a branch": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.linalg.inv, jnp.linalg.pinv, x),
    "in a function": lambda x: jax.jit(lambda y: jnp.linalg.cholesky(y).sum())(x),
    "in a checkpoint": jax.grad(jax.checkpoint(lambda x: jnp.linalg.slogdet(x)[1])),
    "of a user's batch": lambda x: jnp.linalg.svd(x[:, None] * x[None], compute_uv=False),
}


def matrices_per_call(program):
    """The number of matrices in each call of LAPACK, from the text of a program."""
    lines = [line for line in program.as_text().splitlines() if "custom_call @lapack_" in line]
    shapes = [re.findall(r"tensor<([\dx]+)x", line) for line in lines]
    return [max(math.prod(map(int, s.split("x")[:-2])) for s in line) for line in shapes]


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_lapack_gets_one_matrix_and_returns_the_same(name):
    batch = jax.vmap(CALLS[name])
    traced = jax.jit(batch).trace(POSITIVE)
    one = traces.unbatch_lapack(traced, POSITIVE)
    before, after = (matrices_per_call(each.lower()) for each in (traced, one))
    assert max(before) > 1
    assert max(after) == 1
    found, other = one.lower().compile()(POSITIVE), traced.lower().compile()(POSITIVE)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sine", "one matrix", "fft"])
def test_programs_that_call_lapack_for_one_matrix_at_most_stay(name):
    functions = {"sine": jnp.sin, "one matrix": lambda x: jnp.linalg.inv(x[0]), "fft": jnp.fft.fft}
    traced = jax.jit(functions[name]).trace(POSITIVE)
    assert traces.unbatch_lapack(traced, POSITIVE) is traced


def test_all_operations_of_lapack_are_known():
    found = {each.name for name, each in vars(jax.lax.linalg).items() if name.endswith("_p")}
    assert found - traces.LAPACK == {"lu_pivots_to_permutation"}


WAITS = """
import jax, jax.numpy as jnp, numpy as np
import dynsim, sweeps

class Matrices(dynsim.Problem):
    def init(self, key):
        return jnp.linalg.qr(jax.random.normal(key, (40, 40)))[0]

    def draw(self, key, batch):
        factor = jnp.linalg.cholesky(jnp.eye(40) + jnp.ones((40, 40)) / 40)
        return jax.random.normal(key, (batch, 40)) @ factor.T

    def loss(self, params, x):
        return jnp.mean(x * jnp.linalg.solve(jnp.eye(40) + params @ params.T, x.T).T)

    def observables(self):
        blocks = lambda self, params: jnp.linalg.norm(params.reshape(4, 10, 40), 2, (1, 2))
        return {"blocks": blocks, "weights": lambda self, params: params}

jax.config.update("jax_num_cpu_devices", 2)
run = sweeps.Experiment(Matrices(), dynsim.sgd(0.1), steps=10, batch=4)
axes = {"eta": {"linspace": [0.01, 1.0, 16]}, "seed": {"range": 4}}
found = sweeps.run(sweeps.Sweep(run, axes, record=["blocks", "weights"], times=6), progress=False)
blocks = found.weights.values.reshape(*found.blocks.shape, 10, 40)
np.testing.assert_allclose(found.blocks, np.linalg.norm(blocks, 2, (-2, -1)), rtol=1e-4)
"""


@pytest.mark.more
def test_runs_that_call_lapack_on_two_devices_do_not_wait_for_each_other():
    """Without loops they do for ever in jaxlib 0.10; here it takes seconds."""
    ran = subprocess.run(
        [sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr


@jax.jit
def first_of(x, y):
    return jnp.sin(x), x + y


READERS = {
    "neither": (lambda x, y: jnp.ones(3), [False, False]),
    "one": (lambda x, y: (x * y, x + 1)[1], [True, False]),
    "a result of a function": (lambda x, y: first_of(x, y)[0], [True, False]),
    "both results of it": (first_of, [True, True]),
    "a function within one": (inner(lambda x: first_of(x, A)[0]), [True]),
    "its own derivative": (lambda x, y: (jax.nn.relu(y), jax.nn.relu(x))[1], [True, False]),
    "computed again": (jax.checkpoint(lambda x, y: first_of(x, y)[0]), [True, False]),
    "a key": (lambda x, y: jax.random.normal(jax.random.key(0), x.shape) + y, [False, True]),
    "of the shape": (lambda x, y: jnp.zeros_like(x) + y, [False, True]),
    "a callback": (lambda x, y: (jax.debug.callback(print, x), y)[1], [True, True]),
    "turns": (lambda x, y: jax.lax.fori_loop(0, 3, lambda _, z: z + y, x), [True, True]),
}


@pytest.mark.parametrize("name", READERS)
def test_arguments_that_no_result_depends_on_are_those_that_jax_drops(name):
    function, want = READERS[name]
    made = jax.jit(lambda *given: function(*given)).trace(*[X, A][: len(want)])
    assert traces.reads(made) == want
    # Arguments of the lowered program, each with its type.
    (head,) = re.findall(r"func.func public @main\((.*?)\) ->", made.lower().as_text())
    assert head.count("%arg") == sum(want)


def test_what_loops_and_branches_take_counts_as_read():
    def looped(x, y):
        return jax.lax.scan(lambda c, _: ((c[0] + 1, c[1] * 2), None), (x, y), None, 3)[0][0]

    def chosen(x, y):
        return jax.lax.cond(x[0, 0] > 0, lambda x, y: x, lambda x, y: x + 1, x, y)

    for function in (looped, chosen):
        assert traces.reads(jax.jit(function).trace(X, A)) == [True, True]
