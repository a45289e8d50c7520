"""Plans as policies over names, for programs that never import coopjax: as JAX, MaxText and Haliax want them.

Data and text alone: `region_names` reads the names off a plan's decisions while it is made.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

from coopjax.errors import PolicyNamesError, printable


@dataclasses.dataclass(frozen=True)
class RegionNames:
  """What a plan does to the values that have names in one remat region of a step.

  Attributes:
    region: the name of its function.
    saved: names of values that are kept on the device.
    offloaded: that are kept in the host's memory.
    recomputed: the other names in the region.
    beyond: what the plan does besides and a policy over names can't say, a line each; () if that is all.
    keeps_all: the region runs without a checkpoint.
  """

  region: str
  saved: tuple[str, ...] = ()
  offloaded: tuple[str, ...] = ()
  recomputed: tuple[str, ...] = ()
  beyond: tuple[str, ...] = ()
  keeps_all: bool = False

  @classmethod
  def from_fields(cls, fields: dict) -> "RegionNames":
    """The inverse of `dataclasses.asdict`, through JSON."""
    lists = {key: tuple(fields.get(key, ())) for key in ("saved", "offloaded", "recomputed", "beyond")}
    return cls(fields.get("region", ""), **lists, keeps_all=bool(fields.get("keeps_all")))


HLO_ENGINE = "the HLO engine orders and repeats compiled instructions, which no policy asks for"
NOT_KNOWN = RegionNames("")
_PLAIN = re.compile(r"[^\W\d][\w./-]*")  # what YAML reads as it stands, but for its words
_YAML_WORDS = frozenset("y yes n no on off true false null".split())  # in any case; booleans, and nothing


def agreed(names: Sequence[RegionNames]) -> tuple[RegionNames, ...]:
  """Of regions under one policy: what that says of all their names. A region that does not need a name takes the same
  under either answer.
  """
  saved, offloaded = ({name for each in names for name in getattr(each, kind)} for kind in ("saved", "offloaded"))
  told = []
  for each in names:
    everywhere = *each.saved, *each.offloaded, *each.recomputed
    kept = {
      "saved": tuple(name for name in everywhere if name in saved),
      "offloaded": tuple(name for name in everywhere if name in offloaded),
      "recomputed": tuple(name for name in everywhere if name not in saved and name not in offloaded),
    }
    told.append(dataclasses.replace(each, **kept))
  return tuple(told)


def the_one(names: Sequence[RegionNames], region: str | None = None) -> RegionNames:
  """What one policy has to say for all regions, or for those of one name.

  Raises:
    PolicyNamesError: there is none, or regions want different things of one name.
  """
  chosen = [each for each in names if region in (None, each.region)]
  if not chosen:
    known = ", ".join(dict.fromkeys(each.region for each in names)) or "none: coopjax.plan a step with jax.checkpoint"
    raise PolicyNamesError(f"no region{'' if region is None else ' ' + region} in the plan; it has {known}")
  for kind, other in (("saved", "recomputed"), ("saved", "offloaded"), ("offloaded", "recomputed")):
    for one in chosen:
      for two in chosen:
        if both := set(getattr(one, kind)) & set(getattr(two, other)):
          raise PolicyNamesError(
            f"{printable(min(both))} is {kind} in {one.region} and {other} in {two.region}: no policy says both. Ask "
            "for one with region=, or plan with names_only=True, which finds one policy for all"
          )
  if len({each.keeps_all for each in chosen}) > 1:
    raise PolicyNamesError("some regions run without a checkpoint, others under one: ask for a policy with region=")
  merged = {
    field: tuple(dict.fromkeys(value for each in chosen for value in getattr(each, field)))
    for field in ("saved", "offloaded", "recomputed", "beyond")
  }
  return RegionNames(region or chosen[0].region, **merged, keeps_all=chosen[0].keeps_all)


def checkpoint_policy(names: RegionNames) -> Callable:
  """As a policy of `jax.checkpoint`."""
  import jax  # here, so that plans can be read and shown without JAX

  from coopjax.jaxpr import user_policy

  if names.keeps_all:
    return jax.checkpoint_policies.everything_saveable
  if not names.offloaded:
    return jax.checkpoint_policies.save_only_these_names(*names.saved)
  return user_policy.over_names(names.saved, names.offloaded)


def to_jax(names: RegionNames) -> str:
  """As an expression."""
  if names.keeps_all:
    return _with_comments(names, "policy = jax.checkpoint_policies.everything_saveable")
  if not names.offloaded:
    return _with_comments(
      names, f"policy = jax.checkpoint_policies.save_only_these_names({_listed(names.saved, _quoted)})"
    )
  return _with_comments(
    names,
    "policy = jax.checkpoint_policies.save_and_offload_only_these_names(",
    f"  names_which_can_be_saved=[{_listed(names.saved, _quoted)}],",
    f"  names_which_can_be_offloaded=[{_listed(names.offloaded, _quoted)}],",
    '  offload_src="device",',
    '  offload_dst="pinned_host",',
    ")",
  )


def to_maxtext(names: RegionNames) -> str:
  """As lines of a MaxText configuration."""
  if names.keeps_all:
    raise PolicyNamesError(f"{names.region} fits without a checkpoint, and MaxText has no remat_policy that says so")
  where = dict.fromkeys(names.saved, "device") | dict.fromkeys(names.offloaded, "offload")
  everywhere = *names.saved, *names.offloaded, *names.recomputed
  lines = [f"{_as_yaml(name)}: '{where.get(name, 'remat')}'" for name in everywhere]
  return _with_comments(names, "remat_policy: 'custom'", *lines)


def to_haliax(names: RegionNames) -> str:
  """As a `ScanCheckpointPolicy` in Levanter's YAML; Python takes the same fields."""
  if names.keeps_all:
    return _with_comments(names, "gradient_checkpointing: false")
  lines = ["gradient_checkpointing:", "  save_carries: true"]
  lines.append(f"  save_block_internals: {f'[{_listed(names.saved, _as_yaml)}]' if names.saved else 'false'}")
  if names.offloaded:
    lines.append(f"  offload_block_internals: [{_listed(names.offloaded, _as_yaml)}]")
  return _with_comments(names, *lines)


def _with_comments(names: RegionNames, *lines: str) -> str:
  if not names.beyond:
    return "\n".join(lines)
  told = [
    "# Names can't say all that the plan does; coopjax.plan(..., names_only=True) is the best that they can. Left:"
  ]
  return "\n".join([*told, *(f"#   {printable(line)}" for line in names.beyond), *lines])


def _listed(names: Sequence[str], written: Callable[[str], str]) -> str:
  return ", ".join(map(written, names))


def _quoted(name: str) -> str:
  """As a string of Python's, and of YAML's: they have these escapes in common."""
  escaped = name.replace("\\", "\\\\").replace('"', '\\"')
  return f'"{printable(escaped)}"'


def _as_yaml(name: str) -> str:
  """As a key or an item of a list that YAML reads as this string."""
  return name if _PLAIN.fullmatch(name) and name.lower() not in _YAML_WORDS else _quoted(name)
