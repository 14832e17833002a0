"""Several processes, on one machine or many, that share the work and the store of a sweep.

Processes divide the chunks among themselves by number and never talk to each other about
results. `jax.distributed` only tells each who it is, and lets accelerators of several hosts
start together.
"""

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
from concurrent.futures import Future

import jax

from dynsim import checks

HEARTBEAT = 30
"""Seconds after which a process that died may be started again and is accepted back."""
ABORT = 60
"""Seconds that JAX may try at least: long after we have given up, and ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """How to find the other processes; left alone, there are none.

    Attributes:
        distributed: let jax.distributed detect the cluster (Slurm, Open MPI, TPU pods).
        coordinator: host:port on which process 0 listens, if jax.distributed cannot detect the
            cluster. Processes with a given number do not need jax.distributed.
        processes: number of processes.
        process: index of this process, from 0.
        patience: seconds to wait for the other processes.
    """

    distributed: bool = False
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    patience: int = 300

    def connect(self) -> tuple[int, int]:
        """Number of this process and of all processes. Call it before anything runs in JAX.

        Raises:
            ValueError: when the numbers are incomplete or do not fit, or nobody is found.
        """
        if (self.processes is None) != (self.process is None) and not self.distributed:
            raise ValueError(
                f"processes = {self.processes}, process = {self.process}: needs both of them, or "
                "distributed"
            )
        if self.processes is not None:
            checks.integer("processes", self.processes, 1)
        if self.process is not None:
            checks.integer("process", self.process, 0)
            if self.processes is not None and self.process >= self.processes:
                raise ValueError(
                    f"process = {self.process}: must be below processes = {self.processes}"
                )
        if self.coordinator is None and not self.distributed:
            if self.process is None or self.processes is None:
                return 0, 1
            return self.process, self.processes
        checks.integer("patience", self.patience, 1)
        # A process that died must not take the others with it: they have chunks of their own.
        jax.config.update("jax_enable_recoverability", True)
        found: Future[None] = Future()

        def find() -> None:
            try:
                jax.distributed.initialize(
                    self.coordinator,
                    self.processes,
                    self.process,
                    # When its own time is over it aborts the process, with a trace of C++.
                    initialization_timeout=2 * self.patience + ABORT,
                    heartbeat_timeout_seconds=HEARTBEAT,
                )
                found.set_result(None)
            except Exception as error:
                found.set_exception(error)

        threading.Thread(target=find, daemon=True, name="dynsim-find").start()
        try:
            found.result(self.patience)
        except TimeoutError:
            atexit.register(_leave)
            where = self.coordinator or "the cluster"
            raise ValueError(
                f"distributed: the processes did not find each other at {where} within patience = "
                f"{self.patience} s"
            ) from None
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"distributed: the processes did not find each other ({error})"
            ) from None
        return jax.process_index(), jax.process_count()


def _leave() -> None:
    """End without the traces of the thread that still tries."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)


def use_all_cores() -> None:
    """Make one CPU device per core, unless the user has chosen a number already.

    A training run is too small to keep several cores busy, several runs are not. To be called
    before anything runs in JAX; it does nothing to accelerators.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    # jax defines its options when it is imported, where no type checker sees them.
    if jax.config.jax_num_cpu_devices == -1:  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.suppress(RuntimeError):  # JAX is running, so the choice has been made
            # Not every system says which cores this process may use.
            known = hasattr(os, "sched_getaffinity")
            cores = len(os.sched_getaffinity(0)) if known else os.cpu_count()
            jax.config.update("jax_num_cpu_devices", cores or 1)
