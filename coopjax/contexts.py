"""What caches tell programs apart by on our account: user contexts, a part of the keys of all of JAX's, and our code.

With each context that comes into being, JAX traces everything once more. So all are made here, at the same moment: when
the first public name that needs one is used.
"""

import functools
import hashlib
import pathlib

import jax

import coopjax
from coopjax import _core

standing = jax.make_user_context(None)  # what is asked of every program: `coopjax.xla.standing`
directions = jax.make_user_context(None)  # what a planned step wants of its regions: `coopjax.planning.regions`
one_by_one = jax.make_user_context(False)  # whether what is being traced will run operation by operation
in_region = jax.make_user_context(False)  # whether what is being traced is a part of a remat region


@functools.cache
def code_digest() -> str:
  """Of this package's files: a change to a planner makes a new version, released or not."""
  digest = hashlib.sha256()
  for path in (*sorted(pathlib.Path(coopjax.__file__).parent.rglob("*.py")), pathlib.Path(_core.__file__)):
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]
