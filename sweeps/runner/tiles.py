"""The functions that a program of a sweep computes: many runs on all local devices.

A tile is a batch of seeds times points (learning rates and other traced numbers); each device works
on one tile at a time. Data and starting weights depend only on the seed, so the points of a tile
share them; tiles also share them if the theory draws them separately. The program does not depend
on the grid or its values.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt8

from dynsim.precision import WITHOUT_FLOAT64, Device, DType
from dynsim.training.checkpoint import Checkpoint, as_bytes, from_bytes
from dynsim.training.recording import recorded_names
from sweeps.runner.store import CHECKPOINT
from sweeps.systems.base import names_of
from sweeps.systems.training import Call, names_of_numbers


def mesh(devices: Sequence[Device] | None = None, dtype: DType = "float32") -> Mesh:
    """Return a mesh of one axis over `devices` (default: all local ones), or over the host's CPU
    devices if those do not support `dtype`."""
    devices = jax.local_devices() if devices is None else list(devices)
    if dtype == "float64" and devices[0].platform in WITHOUT_FLOAT64:
        devices = jax.local_devices(backend="cpu")
    return Mesh(np.array(devices), ("devices",))


def flat(numbers: PyTree) -> list[ArrayLike]:
    """Return the leaves in the order in which programs take them. The order of arguments affects
    the last bit of results, so it must not change with the order of fields."""
    leaves = jax.tree.leaves(numbers)
    return [leaves[i] for i in _order(numbers)]


def unflat(like: PyTree, leaves: Sequence[ArrayLike]) -> PyTree:
    """Return a pytree with the structure of `like` and the given leaves, ordered as by `flat`."""
    inverse = sorted(range(len(leaves)), key=_order(like).__getitem__)
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[i] for i in inverse])


def _order(numbers: PyTree) -> list[int]:
    """Return the permutation that sorts the leaves by name."""
    names = names_of_numbers(numbers)
    return sorted(range(len(names)), key=names.__getitem__)


@functools.partial(jax.jit, static_argnames=("call", "mesh"))
def draw_tiles(
    arrays: PyTree,
    seeds: Int[Array, "D S"],
    root: Int[Array, ""],
    *,
    call: Call,
    mesh: Mesh,
) -> PyTree:
    """Draw the shared data of each seed's runs on each device, (D, S, ...); see `run_tiles`."""

    def draw_tile(arrays: PyTree, seeds: Int[Array, "1 S"], root: Int[Array, ""]) -> PyTree:
        drawn = jax.lax.map(functools.partial(call.draw, arrays), _keys(seeds[0], root))
        return jax.tree.map(lambda x: x[None], drawn)

    sharded, replicated = PartitionSpec("devices"), PartitionSpec()
    return jax.shard_map(
        draw_tile,
        mesh=mesh,
        in_specs=(replicated, sharded, replicated),
        out_specs=sharded,
        check_vma=False,
    )(arrays, seeds, root)


@functools.partial(jax.jit, static_argnames=("call", "mesh"))
def run_tiles(
    arrays: PyTree,
    numbers: PyTree[Float[Array, "D P"]],
    seeds: Int[Array, "D S"],
    root: Int[Array, ""],
    drawn: PyTree,
    states: UInt8[Array, "D S P N"] | None = None,
    *,
    call: Call,
    mesh: Mesh,
) -> dict[str, Array]:
    """Run one tile on each of the D devices of `mesh`: S seeds at P points of traced `numbers`. A
    run uses the key fold_in(key(root), seed). `drawn` is the result of `draw_tiles` for these
    seeds. Runs start from `states`, given as bytes, or from step 0.

    Returns:
        (D, S, P, ...) recorded observables by name, `status` and `first_bad_step`, the `time` of
        recording if each run chooses it, and the `checkpoint` if it is kept. If several times are
        recorded, they are the first of the remaining axes.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"

    def run_seed(
        arrays: PyTree, key: Array, drawn: PyTree, points: PyTree, states: Array | None
    ) -> dict[str, Array]:
        run = functools.partial(_run, call, arrays)
        if call.theory.batched:
            return run(key, drawn, points, states)
        several = any(len(values) > 1 for values in jax.tree.leaves(points))
        # A batch of one rounds in another way than a single run, so training is always batched.
        if several or call.theory.trains:
            return jax.vmap(run, (None, None, 0, 0))(key, drawn, points, states)
        # A single solve of a theory is not: it traces twice as fast, and `lax.cond` stays a branch.
        result = run(key, drawn, *jax.tree.map(lambda x: x[0], (points, states)))
        return jax.tree.map(lambda x: x[None], result)

    def run_tile(
        arrays: PyTree,
        numbers: PyTree[Float[Array, "1 P"]],
        seeds: Int[Array, "1 S"],
        root: Int[Array, ""],
        drawn: PyTree,
        states: UInt8[Array, "1 S P N"] | None,
    ) -> dict[str, Array]:
        # A device sees its part of the arrays, whose axis of devices has length 1.
        points, drawn, states = jax.tree.map(lambda x: x[0], (numbers, drawn, states))
        per_seed = _keys(seeds[0], root), drawn, states
        one_seed = functools.partial(run_seed, arrays)
        results = over_seeds(one_seed, points, per_seed, in_turn=on_cpu)
        return jax.tree.map(lambda x: x[None], results)

    sharded, replicated = PartitionSpec("devices"), PartitionSpec()
    return jax.shard_map(
        run_tile,
        mesh=mesh,
        in_specs=(replicated, sharded, sharded, replicated, sharded, sharded),
        out_specs=sharded,
        # The check would require that loops of users and solvers mark their carries as varying.
        check_vma=False,
    )(arrays, numbers, seeds, root, drawn, states)


def _run(
    call: Call, arrays: PyTree, key: Array, drawn: PyTree, point: PyTree, state: Array | None
) -> dict[str, Array]:
    """Compute one run, or the runs of one seed if the theory batches them itself."""
    start = call.checkpoint
    if isinstance(start, Checkpoint) and state is not None:
        # A checkpoint restores from bytes into the structure with which a fresh run ends.
        fresh = call._replace(checkpoint=True)
        like = jax.eval_shape(lambda: fresh.run(point, arrays, key, drawn).checkpoint)
        start = from_bytes(state, like, start.step)
    result = call._replace(checkpoint=start).run(point, arrays, key, drawn)
    recorded = {
        name: jnp.asarray(result[name])
        for entry in names_of(call.record)
        for name in recorded_names(entry, result.observables)
    }
    if isinstance(call.times, int):
        recorded["time"] = jnp.asarray(result.times)
    if call.num_times == 1:
        time_axis = 1 if call.theory.batched else 0
        recorded = jax.tree.map(lambda x: jnp.squeeze(x, time_axis), recorded)
    if result.checkpoint is not None:
        recorded[CHECKPOINT] = as_bytes(result.checkpoint)
    return {
        **recorded,
        "status": jnp.asarray(result.status, jnp.int8),
        "first_bad_step": jnp.asarray(result.first_bad_step),
    }


def over_seeds(
    one_seed: Callable[[Array, PyTree, PyTree, Array | None], dict[str, Array]],
    points: PyTree,
    per_seed: tuple[Array, PyTree, Array | None],
    *,
    in_turn: bool,
) -> dict[str, Array]:
    """Map `one_seed`, with arguments (key, drawn, points, states), over all seeds, whose keys,
    drawn data and states are `per_seed`. `in_turn` runs one seed after another, for CPUs: branches
    on data stay branches, and the runs of one seed stay in the cache."""
    if in_turn:
        return jax.lax.map(lambda seed: one_seed(seed[0], seed[1], points, seed[2]), per_seed)
    key, drawn, states = per_seed
    return jax.vmap(one_seed, (0, 0, None, 0))(key, drawn, points, states)


def _keys(seeds: Int[Array, " S"], root: Int[Array, ""]) -> PRNGKeyArray:
    # Threefry by name: results must not depend on the user's default generator.
    base = jax.random.key(root, impl="threefry2x32")
    return jax.vmap(functools.partial(jax.random.fold_in, base))(seeds)
