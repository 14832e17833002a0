"""In which precision a computation runs, and for which device.

Theory defaults to float64 and simulation to float32, regardless of the global `jax_enable_x64`.
Matrix products run at "highest", because accelerators otherwise round float32 inputs to TF32 or
bfloat16, which is visible in trajectories. Where the default device has no float64, computations
that need it run on the host's CPU.

Gathering, scattering and branches save arithmetic on a CPU, but cost an accelerator more time than
they save. Such code asks `on_cpu` when it is traced, and keeps the answer in a static argument, so
that one process can have programs of both kinds.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import annotated_types as at
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Real

from dynsim import checks

AnyArray = Array | np.ndarray
"""An array outside of compiled code: JAX's, or NumPy's where a user or `to_host` made it one."""
Number = AnyArray | np.number | float | int
"""What one can compute with: arrays, and numbers that are none. `ArrayLike` holds bools and complex
numbers as well."""
AnyNotNegative = Annotated[Real[Number, "*#P"], at.Ge(0)]
"""A number that may be traced, or an array of those of many runs."""
AnyPositive = Annotated[Real[Number, "*#P"], at.Gt(0)]
AnyDecay = Annotated[Real[Number, "*#P"], at.Ge(0), at.Lt(1)]
# JAX's devices come from a compiled library without types.
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]
DType = Literal["float32", "float64"]
Result = TypeVar("Result")


WITHOUT_FLOAT64 = ("tpu",)
"""Platforms that do not compute in float64."""
_TARGET: ContextVar[str | None] = ContextVar("dynsim_target", default=None)


@contextlib.contextmanager
def compiled_for(platform: str) -> Iterator[None]:
    """Trace the enclosed programs for `platform`, such as "cpu", "gpu" or "tpu", instead of for the
    default device."""
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)


def on_cpu() -> bool:
    """Whether the program that is being traced will run on a CPU."""
    return _platform() == "cpu"


def _platform() -> str:
    chosen = jax.default_device.value
    default = getattr(chosen, "platform", chosen)
    return _TARGET.get() or default or jax.default_backend()


@contextlib.contextmanager
def precision(dtype: str, *inputs: Any) -> Iterator[None]:
    """Run the enclosed entry point in `dtype`.

    Args:
        dtype: "float32" or "float64". The latter is enabled for the enclosed block alone.
        inputs: the arguments of the entry point, searched for tracers.

    Raises:
        ValueError: for another dtype; or for float64 asked for inside a JAX transformation
            while `jax_enable_x64` is off, where the precision of the caller's trace cannot
            be raised from within and would be silently lost.
    """
    checks.choice("dtype", dtype, ("float32", "float64"))
    if dtype == "float64" and not jax.enable_x64.value and checks.is_traced(inputs):
        raise ValueError(
            "dtype = 'float64': inside jit, vmap or grad this needs "
            "jax.config.update('jax_enable_x64', True) beforehand; or pass dtype='float32'"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.default_matmul_precision("highest"))
        if dtype == "float64":
            stack.enter_context(jax.enable_x64(True))
            if _platform() in WITHOUT_FLOAT64 and not checks.is_traced(inputs):
                stack.enter_context(jax.default_device(host()))
        yield


def one_by_one(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function of arrays that calls LAPACK, for which `jax.vmap` on a CPU makes a loop.

    There jaxlib 0.10 and 0.11 split a batch among the threads that compute everything else, and
    wait for them. Where each of several CPU devices has such a batch, all can wait for each other.
    """
    # Optional arguments would be taken for arrays.
    looped = jax.custom_batching.sequential_vmap(lambda *args: function(*args))
    return lambda *args: looped(*args) if on_cpu() else function(*args)


def host() -> Device:
    """The host's CPU, which exists next to any accelerator."""
    return jax.local_devices(backend="cpu")[0]


def cast(value: Number | Sequence[Number], dtype: DTypeLike) -> Array:
    """`value` as an array of `dtype`, for entry points.

    NumPy casts what is concrete, where JAX would compile a program for every shape that it meets.
    """
    traced = value if isinstance(value, jax.Array) else np.asarray(value, dtype)
    return jnp.asarray(traced, dtype)


def placed(tree: Result) -> Result:
    """The NumPy arrays of a tree as JAX's, for arguments of a program inside of `precision`.

    A program would do so itself, but where x64 goes on and off in one process, JAX 0.12 sometimes
    hands it the float64 array that it made of the same NumPy array before.
    """

    def of(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

    return jax.tree.map(of, tree)


def to_host(result: Result) -> Result:
    """Hand a result out of `precision`.

    Where the caller's JAX is in float32, float64 results leave as NumPy arrays: any further
    JAX operation would round them silently.
    """
    wide = any(getattr(leaf, "dtype", None) == "float64" for leaf in jax.tree.leaves(result))
    if wide and not jax.enable_x64.value and not checks.is_traced(result):
        return jax.device_get(result)
    return result
