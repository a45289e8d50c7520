"""The arguments of one call, flat: which leaves are traced, and which are static or no arrays."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import compat
from coopjax.jaxpr import non_arrays


@dataclasses.dataclass(frozen=True, eq=False)
class SplitArguments:
  """Arguments of one call with the static ones taken out.

  Attributes:
    leaves: of the dynamic ``(args, kwargs)`` that are arrays; others are hidden in the tree.
    in_tree: theirs.
    static: ``(position or name, value)`` of every static argument, sorted by `str` of the first.
    is_filtered: all leaves that are no arrays are static, in results, too.
    paths: of the leaves, where the function knows others than this tree has.
  """

  leaves: tuple[Any, ...]
  in_tree: Any
  static: tuple[tuple[int | str, Any], ...]
  is_filtered: bool = False
  paths: Sequence[str] | None = None

  def merged(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """``(args, kwargs)`` of the user's function with other leaves."""
    args, kwargs = non_arrays.shown(jax.tree.unflatten(self.in_tree, leaves))
    args, kwargs = list(args), dict(kwargs)
    positional = [(key, value) for key, value in self.static if isinstance(key, int)]
    for key, value in sorted(positional, key=lambda kv: kv[0]):
      args.insert(key, value)
    kwargs.update({key: value for key, value in self.static if isinstance(key, str)})
    return args, kwargs

  def names(self) -> list[str]:
    """A readable path per leaf, "kwargs['w']" for one."""
    if self.paths is not None:
      return list(self.paths)
    args, kwargs = jax.tree.unflatten(self.in_tree, range(len(self.leaves)))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]]
    if len(paths) != len(self.leaves):  # views of references are several leaves here, and one there
      return [f"leaves[{i}]" for i in range(len(self.leaves))]
    return [("args" if path[0].idx == 0 else "kwargs") + jax.tree_util.keystr(path[1:]) for path in paths]


def split_arguments(
  fn: Callable,
  args: Sequence[Any],
  kwargs: dict[str, Any],
  *,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
  is_filtered: bool = False,
) -> SplitArguments:
  """Takes the static arguments out of a call, with the rules of `jax.jit`: a name also covers its position.

  Where the call is filtered, all that is no array is static, as in Equinox.

  Raises:
    TypeError: a number is none.
    ValueError: a number is none of the positional arguments, nor of the parameters.
  """
  numbers = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)
  names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
  if numbers or names:
    positions = _positions(fn)
    _check_numbers(numbers, len(args), len(positions))
    numbers = {number % len(args) if -len(args) <= number < 0 else number for number in numbers}
    names |= {name for name, position in positions.items() if position in numbers}
    numbers |= {positions[name] for name in names if name in positions}
  static = [(i, value) for i, value in enumerate(args) if i in numbers]
  static += [(name, value) for name, value in kwargs.items() if name in names]
  dynamic_args = tuple(value for i, value in enumerate(args) if i not in numbers)
  dynamic_kwargs = {name: value for name, value in kwargs.items() if name not in names}
  leaves, in_tree = compat.flatten(non_arrays.hidden((dynamic_args, dynamic_kwargs), is_filtered=is_filtered))
  return SplitArguments(tuple(leaves), in_tree, tuple(sorted(static, key=lambda item: str(item[0]))), is_filtered)


def _check_numbers(numbers: set[Any], num_args: int, num_parameters: int) -> None:
  """Numbers count the arguments that were given; one beyond them may be of a parameter that was given by its name."""
  for number in numbers:
    if not isinstance(number, int):
      raise TypeError(f"static_argnums={number!r}: positions of arguments are integers")
    if not -num_args <= number < max(num_args, num_parameters):
      raise ValueError(f"static_argnums={number}, and there are {num_args} positional arguments")


def _positions(fn: Callable) -> dict[str, int]:
  """Parameter name to position; empty where the function has no signature."""
  try:
    parameters = inspect.signature(fn).parameters.values()
  except (TypeError, ValueError):
    return {}
  positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
  return {p.name: i for i, p in enumerate(parameters) if p.kind in positional}
