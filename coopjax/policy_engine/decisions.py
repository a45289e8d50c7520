"""What the policy engine decides, as data: the regions of a function, each in segments, and what every segment keeps.

Found by `search`, carried out by `rewrite`, kept as JSON. Nothing here needs JAX.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# (position of the equation, index of its output), or the user's name for what its derivative's rule makes inside.
Value = tuple[int, int | str]


def in_order(values: Iterable[Value]) -> tuple[Value, ...]:
  """Values by position, those with a name of their own last."""
  return tuple(sorted(values, key=lambda value: (value[0], isinstance(value[1], str), value[1])))


@dataclasses.dataclass(frozen=True)
class Segment:
  """Positions ``[start, stop)`` of a region.

  Attributes:
    is_wrapped: runs under `jax.checkpoint`; otherwise as the user wrote it.
    saved: the values that the checkpoint keeps besides its inputs.
    offloaded: those that it keeps in the host's memory: made in the segment, before it, or (position -1) carried into
      the step of a scan.
    inner: the pieces that it runs in, in order and without gaps, if it is not one piece: what passes between those
      under checkpoints of their own is there only while this segment is repeated, at the cost of one more forward run.
  """

  start: int
  stop: int
  is_wrapped: bool = False
  saved: tuple[Value, ...] = ()
  offloaded: tuple[Value, ...] = ()
  inner: tuple["Segment", ...] = ()

  @property
  def leaves(self) -> Iterator[tuple["Segment", bool]]:
    """The segment itself, or what its pieces come to, each with whether it is repeated: it or one around it is
    wrapped.
    """
    if not self.inner:
      yield self, self.is_wrapped
    for piece in self.inner:
      for leaf, is_repeated in piece.leaves:
        yield leaf, self.is_wrapped or is_repeated


def merged(segments: Sequence[Segment]) -> tuple[Segment, ...]:
  """Neighbours that are not wrapped become one."""
  found: list[Segment] = []
  for segment in segments:
    if found and not found[-1].is_wrapped and not segment.is_wrapped:
      found[-1] = Segment(found[-1].start, segment.stop)
    else:
      found.append(segment)
  return tuple(found)


@dataclasses.dataclass(frozen=True)
class Region:
  """How one region is carried out.

  Attributes:
    equation_id: the scan whose body it is, by the id of `tags.tag_jaxpr`; None for what stands outside of scans.
    segments: of the region's equations, in order and without gaps.
    is_looped: a loop of the user's runs it, turn by turn, so that what it keeps is stacked as by a scan's body.
    has_barrier: what its checkpoints repeat, XLA may not move out of the loop and keep, where no turn changes it.
    group_size: turns of the scan that lie in one more checkpoint (`groups`).
    is_peeled: the last of a group has no checkpoint of its own.
    policy: what a policy saves by name (`by_hand.policy_of`), where a person would say so: the region is carried out as
      the user wrote it, in one checkpoint with this policy, to the same bytes as by hand. What that comes to is `saved`
      of its one segment. None: in segments.
  """

  equation_id: int | None
  segments: tuple[Segment, ...]
  is_looped: bool = False
  has_barrier: bool = False
  group_size: int = 1
  is_peeled: bool = False
  policy: tuple[str, ...] | None = None

  @property
  def scan_id(self) -> int:
    """`equation_id` of a region that is a scan's body."""
    assert self.equation_id is not None, "what stands outside of scans is no scan's body"
    return self.equation_id

  @property
  def leaves(self) -> Iterator[tuple[Segment, bool]]:
    """As of `Segment`."""
    for segment in self.segments:
      yield from segment.leaves


@dataclasses.dataclass(frozen=True)
class PolicyDecisions:
  """What the policy engine does to a function; a region that is not named stays as the user wrote it.

  Frozen, hashable and, through `dataclasses.asdict`, JSON.

  Attributes:
    regions: each once.
    home: where the region lies that is no scan's body, by the id of its first equation: 0 is the top of the jaxpr.
  """

  regions: tuple[Region, ...] = ()
  home: int = 0

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> "PolicyDecisions":
    """The inverse of `dataclasses.asdict`, whether or not it went through JSON."""

    def values(entries):
      return tuple((int(position), index if isinstance(index, str) else int(index)) for position, index in entries)

    def segment(entry):
      return Segment(
        int(entry["start"]),
        int(entry["stop"]),
        bool(entry["is_wrapped"]),
        values(entry["saved"]),
        values(entry["offloaded"]),
        tuple(map(segment, entry["inner"])),
      )

    def region(entry):
      marks = (entry.get(name, False) for name in ("is_looped", "has_barrier"))
      policy = entry.get("policy")
      return Region(
        entry["equation_id"],
        tuple(map(segment, entry["segments"])),
        *marks,
        group_size=(group_size := int(entry.get("group_size", 1))),
        is_peeled=bool(entry.get("is_peeled", group_size > 1)),  # as all groups were
        policy=None if policy is None else tuple(map(str, policy)),
      )

    return cls(tuple(map(region, fields["regions"])), int(fields.get("home", 0)))

  @property
  def top(self) -> Region | None:
    """The decisions for what stands outside of scans, at `home`, if there are any."""
    return next((region for region in self.regions if region.equation_id is None), None)

  @property
  def scan_bodies(self) -> tuple[Region, ...]:
    """The regions that are bodies of scans."""
    return tuple(region for region in self.regions if region.equation_id is not None)

  def digest(self) -> str:
    """Eight hexadecimal digits that name these decisions."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()[:8]
