"""What a traced program is known by, in every process."""

import hashlib
import re

from jax.extend import core

from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn

_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_NAMES = re.compile(r"\{('[^{}']*'(?:, '[^{}']*')+)\}")  # a set of mesh axes, in the order of their hashes
_FOLDED = re.compile(r"(random_fold_in \w+) \d+:")  # a module's path as a number, in Flax


def fingerprint_of(traced: TracedFn) -> str:
  """A hash of the traced program that is the same in every process: its text, sets sorted, without object addresses.

  Constants folded into random keys don't count: a plan for one layer's dropout is a plan for another's. Shardings count
  as far as types state them (Explicit axes): of others a trace knows nothing, and a plan must fit the trace.
  """
  text = _text_of(traced.jaxpr)
  if traced.policy is not None:
    text += str([info.id for info in tag_jaxpr(traced.jaxpr, policy=traced.policy)[1] if info.is_kept])
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint_of_step(jaxpr: core.Jaxpr) -> str:
  """The same of all of a step."""
  return hashlib.sha256(_text_of(jaxpr).encode()).hexdigest()[:16]


def _text_of(jaxpr: core.Jaxpr) -> str:
  text = _FOLDED.sub(r"\1 _:", _ADDRESS.sub("", str(jaxpr)))
  return _NAMES.sub(lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
