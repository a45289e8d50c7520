"""How fast a device is, as it was measured: in place of the vendor's figures, and a part of the name of a target.

A plan is a function of the program and of what is asked. So what was measured is written down once, and a request that
uses it carries the numbers themselves: ``"cpu@4.1e+11,..."`` is a target in every process, whether the file is there or
not, and plans, marks and keys of caches differ with it.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from coopjax.errors import UnknownTargetError
from coopjax.program.cost import Roofline

FORMAT_VERSION = 1
_SPEEDS = (
  "flops_per_s",
  "transcendentals_per_s",
  "bytes_per_s",
  "op_overhead_s",
  "link_bytes_per_s",
  "host_bytes_per_s",
)


@dataclasses.dataclass(frozen=True)
class SpeedProfile:
  """What :func:`coopjax.calibrate` measured of one device; JSON, versioned, for all who plan for such devices.

  Give the path of a saved one as ``target=``, or ``"tpu:v5e:4x4@speeds.json"`` for another topology.

  Attributes:
    device: target that it was measured on, "cpu" or "tpu:v5e:1x4" for one.
    flops_per_s: floating-point operations per second in a large matrix product.
    transcendentals_per_s: exponentials, hyperbolic tangents and logarithms per second.
    bytes_per_s: bytes read plus written per second by an op whose arrays don't fit the inner caches.
    op_overhead_s: seconds to start an op.
    link_bytes_per_s: bytes per second that a device sends to others while all do.
    host_bytes_per_s: between one device and the host's memory, one direction.
    device_kind: as JAX calls it.
    versions: of JAX and of the platform.

  Example:
    >>> import coopjax, os, tempfile
    >>> profile = coopjax.SpeedProfile("cpu", 3e11, 2e9, 1.5e10, 2e-6, 1e10, 1.5e10)
    >>> profile.target
    'cpu@3e+11,2e+09,1.5e+10,2e-06,1e+10,1.5e+10'
    >>> coopjax.target(profile.target).flops_per_s
    300000000000.0
    >>> path = os.path.join(tempfile.mkdtemp(), "speeds.json")
    >>> profile.save(path)
    >>> coopjax.target(path).name == profile.target
    True
  """

  device: str
  flops_per_s: float
  transcendentals_per_s: float
  bytes_per_s: float
  op_overhead_s: float
  link_bytes_per_s: float
  host_bytes_per_s: float
  device_kind: str = ""
  versions: str = ""

  @property
  def target(self) -> str:
    """What to give as ``target=``: the device with these figures, to three digits."""
    return f"{self.device}@{self.suffix}"

  @property
  def suffix(self) -> str:
    """The figures, as they stand in the name of a target."""
    return ",".join(f"{getattr(self, name):.3g}" for name in _SPEEDS)

  @property
  def roofline(self) -> Roofline:
    """What the models take."""
    return Roofline(*(getattr(self, name) for name in _SPEEDS[:-1]))

  @classmethod
  def from_suffix(cls, device: str, suffix: str) -> "SpeedProfile":
    """The inverse of `suffix`.

    Raises:
      coopjax.UnknownTargetError: it is none.
    """
    try:
      figures: dict[str, Any] = dict(zip(_SPEEDS, map(float, suffix.split(",")), strict=True))
      profile = cls(device, **figures)
      assert profile.roofline and profile.host_bytes_per_s > 0
    except (TypeError, ValueError, AssertionError) as error:
      raise UnknownTargetError(f"target={f'{device}@{suffix}'!r}: no figures that calibrate wrote: {error}") from error
    return profile

  def save(self, path: str | os.PathLike) -> None:
    """Writes the profile as JSON."""
    fields = {"coopjax_speeds": FORMAT_VERSION, **dataclasses.asdict(self)}
    pathlib.Path(path).write_text(json.dumps(fields, indent=2) + "\n")

  @classmethod
  def load(cls, path: str | os.PathLike) -> "SpeedProfile":
    """Reads what :meth:`save` wrote.

    Raises:
      coopjax.UnknownTargetError: it is no profile, or one of another version of the format.
    """
    try:
      fields: dict[str, Any] = json.loads(pathlib.Path(path).read_text())
      version = fields.pop("coopjax_speeds")
      if version != FORMAT_VERSION:
        raise ValueError(f"it has format {version}, and this coopjax reads {FORMAT_VERSION}")
      profile = cls(**fields)
      return cls.from_suffix(profile.device, profile.suffix) and profile
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
      raise UnknownTargetError(f"{path} is no profile that coopjax.calibrate wrote: {error}") from error
