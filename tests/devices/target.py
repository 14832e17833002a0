"""Descriptions of absent devices for XLA's compilers."""

import importlib.util
import os
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

# The compiler needs a full description of a GPU; a TPU's name is enough. Sizes in bytes.
_H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  l2_cache_size: 52428800
  device_memory_size: 84929347584
  memory_bandwidth: 3352320000000
}
platform_name: "CUDA"
runtime_version { major: 12 minor: 9 }
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Target(NamedTuple):
    """A device to compile for.

    Attributes:
        mesh: mesh of one such device.
        platforms: platforms to lower for, if they cannot be inferred from the device.
        options: options of the compiler.
    """

    mesh: Mesh
    platforms: tuple[str, ...] | None = None
    options: dict[str, str | bool] | None = None

    def compile(self, traced: jax.stages.Traced) -> jax.stages.Compiled:
        return traced.lower(lowering_platforms=self.platforms).compile(self.options)


def v5e() -> Target:
    _require("libtpu", "check-tpu")
    # Otherwise its library queries the network for the type of machine.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    found = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return Target(_mesh(found))


def h100() -> Target:
    """An NVIDIA H100."""
    _require("jax_plugins.xla_cuda12", "check-gpu")
    nvcc = _require("nvidia.cuda_nvcc", "check-gpu")
    from jax._src import xla_bridge

    known = xla_bridge.canonicalize_platform
    # JAX needs a running GPU to resolve "gpu" to "cuda".
    xla_bridge.canonicalize_platform = lambda name: (
        "cuda" if name in ("gpu", "cuda") else known(name)
    )
    found = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=_H100, topology="1x1x1"
    )
    (folder,) = nvcc.submodule_search_locations or ("",)
    # Autotuning needs a device as well.
    options: dict[str, str | bool] = {
        "xla_gpu_cuda_data_dir": folder,
        "xla_gpu_autotune_level": "0",
    }
    return Target(_mesh(found), ("cuda",), options)


TARGETS: dict[str, Callable[[], Target]] = {"tpu-v5e": v5e, "h100": h100}
"""Devices by name."""


def _mesh(topology: Any) -> Mesh:
    return Mesh(np.array(topology.devices[:1]), ("devices",))


def _require(package: str, extra: str) -> ModuleSpec:
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ValueError(f"needs {package}: pip install 'dynsim[{extra}]'")
    return found
