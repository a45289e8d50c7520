"""What XLA:GPU asks of a device that it compiles for without having it."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Gpu:
  """Facts of one kind; those that all these devices share stand in `config`."""

  device_name: str
  capability: int  # major version
  cores: int  # streaming multiprocessors
  lanes_per_core: int
  clock_ghz: float
  shared_memory_kib: int  # per core; a block can opt in to one KiB less
  l2_mib: int

  def config(self, memory_bytes: int, bytes_per_s: float) -> str:
    """The device's ``GpuTargetConfigProto`` as text: with so much memory, of such a bandwidth."""
    fields: dict[str, Any] = {
      "threads_per_block_limit": 1024,
      "threads_per_warp": 32,
      "threads_per_core_limit": 2048,
      "shared_memory_per_block": 48 * 1024,
      "shared_memory_per_core": self.shared_memory_kib * 1024,
      "shared_memory_per_block_optin": (self.shared_memory_kib - 1) * 1024,
      "registers_per_core_limit": 65536,
      "registers_per_block_limit": 65536,
      "block_dim_limit_x": 2**31 - 1,
      "block_dim_limit_y": 65535,
      "block_dim_limit_z": 65535,
      "core_count": self.cores,
      "fpus_per_core": self.lanes_per_core,
      "clock_rate_ghz": self.clock_ghz,
      "memory_bandwidth": int(bytes_per_s),
      "l2_cache_size": self.l2_mib * 2**20,
      "device_memory_size": memory_bytes,
    }
    info = " ".join(f"{key}: {value}" for key, value in fields.items())
    return (
      f"gpu_device_info {{ {info} cuda_compute_capability {{ major: {self.capability} }} }} "
      f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} '
      f'runtime_version {{ major: 12 minor: 8 }} device_description_str: "{self.device_name}"'
    )
