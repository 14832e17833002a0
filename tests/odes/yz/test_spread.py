"""The predicted spread over seeds: noise of batches, runs, and arguments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.yz import finite_length, sampling
from dynsim.yz import model as yz
from odes.yz import spread

TASK = dynsim.syn_small()
Options = dict[str, int | bool | str]


@pytest.mark.usefixtures("x64")
def test_noise_is_that_of_sampled_sequences(optimised: Options) -> None:
    task, length, drawn = TASK.astype("float64"), 128, 20_000
    params = dynsim.initial_weights(TASK, "uniform", jax.random.key(0), "float64")
    # Weights of the size that training reaches, and two directions.
    params = jax.tree.map(lambda x: 10 * x, params)
    directions = [
        dynsim.initial_weights(TASK, "uniform", jax.random.key(k), "float64") for k in (1, 2)
    ]
    context = jnp.asarray(length - 1.0)

    @functools.partial(jax.jit, compiler_options=optimised)
    def along(direction: yz.YZ) -> tuple[finite_length.Expansion, jax.Array]:
        expand = lambda q: finite_length.expand(q, task, context)
        examples = sampling.sample_counts(task, jax.random.key(3), drawn, length, "float64")
        label = task.next_token[examples.classes]
        losses = lambda q: yz.cross_entropy(yz.forward(q, task, examples), label)[0]
        return (
            jax.jvp(expand, (params,), (direction,))[1],
            jax.jvp(losses, (params,), (direction,))[1],
        )

    expansions, slopes = zip(*map(along, directions), strict=True)
    got = spread.covariance(task, context, jax.tree.map(lambda *x: jnp.stack(x), *expansions))
    want = np.cov(np.array(slopes))
    # Entries of a sample covariance miss by sqrt(2/n) = 1 %, times five; the expansion by 1/L.
    scale = np.sqrt(np.outer(np.diag(want), np.diag(want)))
    assert (np.abs(np.asarray(got) - want) < (5 * np.sqrt(2 / drawn) + 0.03) * scale).all()


@pytest.mark.full  # the noise, and what becomes of it, have tests of their own
def test_runs_scatter_as_predicted(optimised: Options) -> None:
    rule, runs, steps = dynsim.momentum(0.3, 0.3), 256, 30
    settings = {"batch": 32, "length": 64}
    record = ["loss", "entropy", "z_top_distinct"]
    keys = jax.random.split(jax.random.key(0), runs)
    train = lambda key: dynsim.simulate(
        TASK, rule, key, steps=steps, times=[steps], record=record, **settings
    )
    # As users compile it: it runs for longer than it compiles.
    trained = jax.jit(jax.vmap(train), compiler_options=optimised)(keys)
    found = spread.solve(TASK, rule, [steps], record=record, **settings)
    assert found.ok
    # The loss scatters further than to first order in 1/T: docs/results/accuracy.md has how far.
    for name in record[1:]:
        runs_of = np.asarray(trained[name], np.float64)[:, 0]
        # Pooled over classes where there are two; sampling error of a standard deviation, four of
        # them, and 3 % for what is of higher order in 1/B and 1/T.
        measured = np.sqrt(runs_of.var(0, ddof=1).mean())
        predicted = np.sqrt((found.std[name][0] ** 2).mean())
        assert abs(predicted / measured - 1) < 4 / np.sqrt(2 * (runs - 1)) + 0.03, name
    mean, error = trained["loss"].mean(), trained["loss"].std() / np.sqrt(runs)
    # The mean by the expansion in 1/T alone; the next order is 1 % here.
    assert abs(found["loss"][0] - mean) < 4 * error + 0.015 * mean


def test_batch_and_length_share_a_program() -> None:
    solve = lambda batch, length: spread.solve(
        TASK, dynsim.sgd(1.0, 1.0), [0, 3], batch=batch, length=length, record="entropy"
    )
    first = solve(128, 128)
    programs = spread._solve._cache_size()
    found = solve(32, 64)
    assert spread._solve._cache_size() == programs
    assert first.covariance.shape == (2, 1, 1)
    np.testing.assert_array_equal(found.std["entropy"][0], 0)
    assert found.std["entropy"][1] > 1.5 * first.std["entropy"][1] > 0
    # Noise falls like 1/B exactly.
    again = solve(512, 128)
    np.testing.assert_allclose(again.std["entropy"], first.std["entropy"] / 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, r"batch = 0\.0: must be finite and in \[1"),
        ({"batch": np.inf}, "batch = inf: must be finite"),
        ({"length": 5}, "length = 5: the theory is an expansion in 1/T"),
        ({"times": [0.5]}, "must be a non-empty list of whole steps"),
        ({"times": []}, "must be a non-empty list of whole steps"),
        ({"times": [3, 2]}, "must increase"),
        ({"record": "losses"}, "record = 'losses'"),
        ({"draws": 0}, "draws = 0: must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_named(changes: dict, message: str) -> None:
    given = {"times": [1], "batch": 2, **changes}
    with pytest.raises(ValueError, match=message):
        spread.drift(TASK, dynsim.sgd(1.0, 1.0), key=jax.random.key(0), **given)
