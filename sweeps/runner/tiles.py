"""The functions that a program of a sweep computes: many runs on all local devices.

A tile is a batch of seeds times points (learning rates and other traced numbers); each device works
on one tile at a time. Data and starting weights depend only on the seed, so the points of a tile
share them; tiles also share them if the theory draws them separately. The program does not depend
on the grid or its values.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt8

from dynsim.precision import WITHOUT_FLOAT64, Device, DType
from dynsim.training.recording import recorded_names
from dynsim.training.steps import Checkpoint, as_bytes, from_bytes
from odes.theory import AnyTheory
from sweeps.runner import fit
from sweeps.runner.store import CHECKPOINT
from sweeps.systems.base import names_of
from sweeps.systems.training import Call, names_of_numbers


def mesh(devices: Sequence[Device] | None = None, dtype: DType = "float32") -> Mesh:
    """Return a mesh of one axis over `devices` (default: all local ones), or over the host's CPU
    devices if those do not support `dtype`."""
    found = jax.local_devices() if devices is None else list(devices)
    if dtype == "float64" and found[0].platform in WITHOUT_FLOAT64:
        found = jax.local_devices(backend="cpu")
    return Mesh(np.array(found), ("devices",))


def flat(numbers: PyTree) -> list[Any]:
    """Return the leaves in the order in which programs take them. The order of arguments affects
    the last bit of results, so it must not change with the order of fields."""
    leaves = jax.tree.leaves(numbers)
    return [leaves[i] for i in _order(numbers)]


def unflat(like: PyTree, leaves: Sequence[Any]) -> PyTree:
    """Return a pytree like another one from its `flat` leaves."""
    places = sorted(range(len(leaves)), key=_order(like).__getitem__)
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[i] for i in places])


def _order(numbers: PyTree) -> list[int]:
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

    def tile(arrays: PyTree, seeds: Int[Array, "1 S"], root: Int[Array, ""]) -> PyTree:
        found = jax.lax.map(functools.partial(call.draw, arrays), _keys(seeds[0], root))
        return jax.tree.map(lambda x: x[None], found)

    devices = PartitionSpec("devices")
    return jax.shard_map(
        tile,
        mesh=mesh,
        in_specs=(PartitionSpec(), devices, PartitionSpec()),
        out_specs=devices,
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

    def tile(
        arrays: PyTree,
        numbers: PyTree[Float[Array, "1 P"]],
        seeds: Int[Array, "1 S"],
        root: Int[Array, ""],
        drawn: PyTree,
        states: UInt8[Array, "1 S P N"] | None,
    ) -> dict[str, Array]:
        def run(key: Array, drawn: PyTree, point: PyTree, state: Array | None) -> dict[str, Array]:
            start = call.checkpoint
            if isinstance(start, Checkpoint) and state is not None:
                fresh = call._replace(checkpoint=True)
                like = jax.eval_shape(lambda: fresh.run(point, arrays, key, drawn).checkpoint)
                start = from_bytes(state, like, start.step)
            found = call._replace(checkpoint=start).run(point, arrays, key, drawn)
            recorded = {
                name: jnp.asarray(found[name])
                for asked in names_of(call.record)
                for name in recorded_names(asked, found.observables)
            }
            if isinstance(call.times, int):
                recorded["time"] = jnp.asarray(found.times)
            if call.num_times == 1:
                axis = 1 if call.theory.batched else 0
                recorded = jax.tree.map(lambda x: jnp.squeeze(x, axis), recorded)
            if found.checkpoint is not None:
                recorded[CHECKPOINT] = as_bytes(found.checkpoint)
            return {
                **recorded,
                "status": jnp.asarray(found.status, jnp.int8),
                "first_bad_step": jnp.asarray(found.first_bad_step),
            }

        one_seed = run if call.theory.batched else _over_points(run, call.theory.trains)
        points = jax.tree.map(lambda x: x[0], numbers)
        shared, begun = jax.tree.map(lambda x: x[0], (drawn, states))
        each = _keys(seeds[0], root), shared, begun
        in_turn = mesh.devices.flat[0].platform == "cpu"
        found = over_seeds(one_seed, points, each, in_turn=in_turn)
        return jax.tree.map(lambda x: x[None], found)

    devices = PartitionSpec("devices")
    return jax.shard_map(
        tile,
        mesh=mesh,
        in_specs=(PartitionSpec(), devices, devices, PartitionSpec(), devices, devices),
        out_specs=devices,
        check_vma=False,
    )(arrays, numbers, seeds, root, drawn, states)


def _over_points(
    run: Callable[..., dict[str, Array]], trains: bool
) -> Callable[..., dict[str, Array]]:
    """Map `run`, with arguments (key, shared, point, state), over all points of one seed. A single
    point of a theory is not batched: tracing takes half the time, and its branches stay branches. A
    single point of training is batched, because that affects its rounding."""
    batch = jax.vmap(run, (None, None, 0, 0))

    def one_seed(
        key: Array, shared: PyTree, points: PyTree, states: Array | None
    ) -> dict[str, Array]:
        if trains or any(len(values) > 1 for values in jax.tree.leaves(points)):
            return batch(key, shared, points, states)
        found = run(key, shared, *jax.tree.map(lambda x: x[0], (points, states)))
        return jax.tree.map(lambda x: x[None], found)

    return one_seed


def _keys(seeds: Int[Array, " S"], root: Int[Array, ""]) -> PRNGKeyArray:
    # Threefry by name: results must not depend on the user's default generator.
    base = jax.random.key(root, impl="threefry2x32")
    return jax.vmap(functools.partial(jax.random.fold_in, base))(seeds)


def tile_shape(num_seeds: int, num_points: int, size: int) -> tuple[int, int]:
    """Return the seeds and points of a tile of at most `size` runs, for a grid of `num_seeds` times
    `num_points`. They are powers of two, so that grids of almost any size share a program."""

    def power(limit: int, wanted: int) -> int:
        return 2 ** min((wanted - 1).bit_length(), limit.bit_length() - 1)

    points = power(size, num_points)
    return power(max(size // points, 1), num_seeds), points


def default_tile(memory: int, theory: AnyTheory, device: Device) -> int:
    """Return the number of runs per tile before any program has been measured. `memory` is an
    estimate of bytes per run.

    On a CPU small tiles stay in the cache. An accelerator needs many runs to be busy; if they
    exceed its memory, measurements shrink the tile later (`sweeps.runner.fit`).
    """
    if device.platform == "cpu":
        return theory.at_once
    available = fit.memory_of(device)
    fits = fit.MOST_RUNS if available is None else max(available // memory, 1)
    return 2 ** (min(fits, fit.MOST_RUNS).bit_length() - 1)


def over_seeds(
    one_seed: Callable[..., dict[str, Array]],
    points: PyTree,
    each: tuple[Array, PyTree, PyTree],
    *,
    in_turn: bool,
) -> dict[str, Array]:
    """Map `one_seed`, with arguments (key, shared, points, begun), over all seeds, whose keys,
    shared arrays and states are `each`. `in_turn` runs one seed after another, for CPUs: branches
    on data stay branches, and the runs of one seed stay in the cache."""
    if in_turn:
        return jax.lax.map(lambda seed: one_seed(seed[0], seed[1], points, seed[2]), each)
    key, shared, begun = each
    return jax.vmap(one_seed, (0, 0, None, 0))(key, shared, points, begun)
