"""Leaves of arguments and results that are no arrays, such as the activation functions in an Equinox module.

JAX refuses them where it traces a function. Hidden, they are a part of the tree's structure, and are passed on as they
are.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_NUMBERS = (bool, int, float, complex)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class NonArray:
  """A leaf that is no array, as a part of the structure."""

  value: Any


def hidden(tree: Any, *, is_filtered: bool = False) -> Any:
  """The tree with `NonArray` in place of leaves that are no arrays; itself if it has none.

  Numbers and flags of Python are arrays, as for `jax.checkpoint`, but not those in Equinox modules, whose code asks for
  their values; nor any of them where the tree is filtered, as Equinox does it.
  """
  module = getattr(sys.modules.get("equinox"), "Module", ())
  is_module = lambda node: isinstance(node, module)
  hide_numbers = lambda leaf: leaf if _is_array(leaf) and not isinstance(leaf, _NUMBERS) else NonArray(leaf)
  hide = hide_numbers if is_filtered else lambda leaf: leaf if _is_array(leaf) else NonArray(leaf)
  nodes = jax.tree.leaves(tree, is_leaf=is_module)
  if not is_filtered and all(_is_array(node) and not is_module(node) for node in nodes):
    return tree
  return jax.tree.map(
    lambda node: jax.tree.map(hide_numbers, node) if is_module(node) else hide(node), tree, is_leaf=is_module
  )


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


def of_hidden(fn: Callable) -> Callable:
  """The function for arguments and results whose leaves that are no arrays are hidden."""

  @functools.wraps(fn)
  def on_hidden(*args, **kwargs):
    args, kwargs = shown((args, kwargs))
    return hidden(fn(*args, **kwargs))

  return on_hidden
