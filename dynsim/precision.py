"""The precision in which a computation runs, and the device it runs on.

Theory defaults to float64 and simulation to float32, regardless of the global `jax_enable_x64`.
Matrix products run at "highest", because accelerators otherwise round float32 inputs to TF32 or
bfloat16, which is visible in trajectories. Where the default device has no float64, computations
that need it run on the host's CPU.

Gathering, scattering and branches save arithmetic on a CPU, but cost an accelerator more time than
they save. Such code calls `on_cpu` while it is traced and keeps the result in a static argument, so
that one process can hold programs of both kinds.
"""

import contextlib
import os
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
"""An array outside compiled code: a JAX array, or a NumPy one from the user or from `to_host`."""
Number = AnyArray | np.number | float | int
"""A real number or an array of them. `ArrayLike` would also allow bools and complex numbers."""
AnyReal = Real[Number, "*#P"]
"""A number that may be traced, or an array with one number per run."""
AnyNotNegative = Annotated[AnyReal, at.Ge(0)]
AnyPositive = Annotated[AnyReal, at.Gt(0)]
AnyDecay = Annotated[AnyReal, at.Ge(0), at.Lt(1)]
# JAX's devices come from a compiled library without types.
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]
DType = Literal["float32", "float64"]
Result = TypeVar("Result")


WITHOUT_FLOAT64 = ("tpu",)
"""Platforms without float64."""
ON_ERROR = os.environ.get("EQX_ON_ERROR", "raise")
"""How Equinox reports bad arguments, on which programs of theories depend. It reads the variable
when it is imported, as here; the command line sets it before."""
REQUIRED = {
    "jax_numpy_dtype_promotion": (jax.numpy_dtype_promotion, "standard"),
    "jax_debug_key_reuse": (jax.debug_key_reuse, False),
    "jax_disable_jit": (jax.disable_jit, False),
    "jax_transfer_guard": (jax.transfer_guard, "allow"),
}
"""Options of JAX that code of dynsim needs, and their values."""
_TARGET: ContextVar[str | None] = ContextVar("dynsim_target", default=None)


_PROCESS: set[int] = set()
"""The process that has used JAX; another one only after a fork."""


def check_process() -> None:
    """Raise `RuntimeError` in a process that was forked from one that has used JAX, which would
    wait for threads that a fork does not copy."""
    if _PROCESS and os.getpid() not in _PROCESS:
        raise RuntimeError(
            "this process was forked from one in which JAX runs, and would hang; start it with "
            "multiprocessing.get_context('spawn')"
        )


@contextlib.contextmanager
def compiled_for(platform: str) -> Iterator[None]:
    """Trace the enclosed programs for `platform`, such as "cpu", "gpu" or "tpu", instead of for the
    default device."""
    # A context variable: threads may compile for different platforms at once.
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)


def on_cpu() -> bool:
    """Return whether the program that is being traced will run on a CPU."""
    return _platform() == "cpu"


def _platform() -> str:
    chosen = jax.default_device.value
    # The default device may be a device or the name of a platform.
    default = getattr(chosen, "platform", chosen)
    return _TARGET.get() or default or jax.default_backend()


@contextlib.contextmanager
def precision(dtype: str, *inputs: Any) -> Iterator[None]:
    """Run the enclosed entry point in `dtype`, compiled, and with the usual rules of JAX: code of
    dynsim promotes types and uses keys again on purpose.

    Args:
        dtype: "float32" or "float64"; float64 is enabled only within the block.
        inputs: the arguments of the entry point, searched for tracers.

    Raises:
        ValueError: for another dtype; or for float64 inside a JAX transformation while
            `jax_enable_x64` is off: the precision of the caller's trace cannot be raised from
            within, so float64 would be lost silently.
        RuntimeError: from `check_process`.
        FloatingPointError: if the user's JAX stops at NaN or infinities, naming its option.
    """
    checks.choice("dtype", dtype, ("float32", "float64"))
    check_process()
    _PROCESS.add(os.getpid())
    # A trace of the caller has its precision from outside.
    if dtype == "float64" and not jax.enable_x64.value and checks.is_traced(inputs):
        raise ValueError(
            "dtype = 'float64': inside jit, vmap or grad this needs "
            "jax.config.update('jax_enable_x64', True) beforehand; or pass dtype='float32'"
        )
    with contextlib.ExitStack() as stack, _name_debug_options():
        stack.enter_context(jax.default_matmul_precision("highest"))
        for name, (option, value) in REQUIRED.items():
            # Reading an option takes less time than entering its context.
            if getattr(jax.config, name) not in (None, value):
                stack.enter_context(option(value))
        if dtype == "float64":
            stack.enter_context(jax.enable_x64(True))
            # A TPU would compute in float32 without a word.
            if _platform() in WITHOUT_FLOAT64 and not checks.is_traced(inputs):
                stack.enter_context(jax.default_device(host()))
        yield


@contextlib.contextmanager
def _name_debug_options() -> Iterator[None]:
    try:
        yield
    except FloatingPointError as error:
        debug = ("jax_debug_nans", "jax_debug_infs")
        names = [name for name in debug if jax.config.values[name]]
        # JAX names the option itself in some messages.
        if not names or names[0] in str(error):
            raise
        raise FloatingPointError(
            f"{' and '.join(names)}: JAX stops at the first NaN or infinity ({error}); without it, "
            "a run that diverges ends with the status DIVERGED"
        ) from error


def one_by_one(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function of arrays that calls LAPACK such that `jax.vmap` loops over it on a CPU.

    On a CPU, jaxlib 0.10 and 0.11 split a batch among the threads that run everything else, and
    wait for them. If several CPU devices have such a batch, they can deadlock.
    """
    # Optional arguments would be taken for arrays.
    looped = jax.custom_batching.sequential_vmap(lambda *args: function(*args))
    return lambda *args: looped(*args) if on_cpu() else function(*args)


def host() -> Device:
    """Return the host's CPU, which is available next to any accelerator."""
    return jax.local_devices(backend="cpu")[0]


def cast(value: Number | Sequence[Number], dtype: DTypeLike) -> Array:
    """Return `value` as an array of `dtype`, for entry points.

    NumPy casts concrete values, because JAX would compile a program for every shape.
    """
    traced = value if isinstance(value, jax.Array) else np.asarray(value, dtype)
    return jnp.asarray(traced, dtype)


def as_jax_arrays(tree: Result) -> Result:
    """Convert the NumPy arrays of a tree to JAX arrays, for arguments of a program in `precision`.

    A program would convert them itself, but if x64 is switched on and off within one process,
    JAX 0.12 sometimes reuses an earlier float64 array of the same NumPy array.
    """
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, tree
    )


def to_host(result: Result) -> Result:
    """Return a result from within `precision`.

    If the caller's JAX runs in float32, float64 results leave as NumPy arrays, because any further
    JAX operation would round them silently.
    """
    wide = any(getattr(leaf, "dtype", None) == "float64" for leaf in jax.tree.leaves(result))
    if wide and not jax.enable_x64.value and not checks.is_traced(result):
        return jax.device_get(result)
    return result
