"""Leaves of arguments and results that are no arrays, such as the activation functions in an Equinox module.

JAX refuses them where it traces a function. Hidden, they are a part of the tree's structure, and are passed on as they
are.
"""

import dataclasses
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class NonArray:
  """A leaf that is no array, as a part of the structure."""

  value: Any


def hidden(tree: Any) -> Any:
  """The tree with `NonArray` in place of leaves that are no arrays; itself if it has none."""
  if all(map(_is_array, jax.tree.leaves(tree))):
    return tree
  return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else NonArray(leaf), tree)


def shown(tree: Any) -> Any:
  """The inverse of `hidden`."""
  is_hidden = lambda node: isinstance(node, NonArray)
  if not any(map(is_hidden, jax.tree.leaves(tree, is_leaf=is_hidden))):
    return tree
  return jax.tree.map(lambda leaf: leaf.value if is_hidden(leaf) else leaf, tree, is_leaf=is_hidden)


def _is_array(leaf: Any) -> bool:
  """An array, an abstract one, or a Python scalar: what JAX traces."""
  return (
    (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))
    or hasattr(leaf, "__jax_array__")
    or isinstance(leaf, (bool, int, float, complex, np.generic))
  )
