"""What people do without a budget: `jax.checkpoint` around all of a function, under a policy, or around each layer."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning.choice import Choice
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.scan import find_scans
from coopjax.program.scopes import layer_of

DOTS = "dots_with_no_batch_dims_saveable"
NO_LAYERS = "no scan over layers, and no name scopes with numbers (block_0, block_1, ...) around equal parts"


@dataclasses.dataclass(frozen=True)
class Checkpointed:
  """One `jax.checkpoint` around the whole function, under a policy of that name if one is given."""

  policy: str = ""

  def flat_fn(self, traced: TracedFn) -> Callable[..., Sequence[Any]]:
    """In place of ``traced.evaluate``."""
    policy = getattr(jax.checkpoint_policies, self.policy) if self.policy else None
    return jax.checkpoint(traced.evaluate, policy=policy)


def per_layer(traced: TracedFn) -> Choice | None:
  """A `jax.checkpoint` around each layer: the body of each scan, and each block that name scopes tell of.

  Of blocks, the family is taken (``Block_0``, ``Block_1``, ...) that most equations belong to.

  Returns:
    How to carry the function out; None if it shows no layers.
  """
  jaxpr, table = tag_jaxpr(traced.inlined)
  regions = [region for scan in find_scans(jaxpr, table) for region in scan.barest()]
  if segments := _blocks(traced.inlined):
    regions.insert(0, Region(None, segments))
  return Choice(decisions=PolicyDecisions(tuple(regions))) if regions else None


def _blocks(jaxpr: core.Jaxpr) -> tuple[Segment, ...]:
  """The segments of the largest family of blocks, with what is between them; none where there are not two blocks."""
  layers = [_layer(equation) for equation in jaxpr.eqns]
  sizes = collections.Counter(family for family, _ in layers if family)
  largest = max(sizes, key=sizes.__getitem__, default=None)
  names = [name if family == largest else None for family, name in layers]
  if largest is None or len(set(names) - {None}) < 2:
    return ()
  runs = [(name, len(list(run))) for name, run in itertools.groupby(names)]
  stops = list(itertools.accumulate(length for _, length in runs))
  return tuple(
    Segment(stop - length, stop, is_wrapped=name is not None) for (name, length), stop in zip(runs, stops, strict=True)
  )


def _layer(equation: Any) -> tuple[str, str]:
  """The family of the block that an equation stands in, "encoder/block_" for one, and its name; empty where in none."""
  name = layer_of(f"{compat.name_scopes(equation)}/{equation.primitive.name}")
  family = re.sub(r"\d+", "", name)
  return (family, name) if family != name else ("", "")
