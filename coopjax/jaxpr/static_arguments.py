"""Arguments of a call sorted by parameter: which are traced, and which are static."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclasses.dataclass(frozen=True)
class StaticArguments:
  """The static parameters of a function, however a call spells them: by position or by name.

  Attributes:
    name: of the function, for messages.
    signature: of the function.
    names: of its static parameters.
  """

  name: str
  signature: inspect.Signature
  names: frozenset[str]

  @classmethod
  def of(
    cls,
    fn: Callable,
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
  ) -> "StaticArguments":
    """Static parameters by number, negative ones from the end, and by name.

    Raises:
      ValueError: a number or a name that is none of the parameters.
    """
    name, signature = getattr(fn, "__qualname__", type(fn).__name__), inspect.signature(fn)
    positional = [p.name for p in signature.parameters.values() if p.kind in _POSITIONAL]
    known = [p.name for p in signature.parameters.values() if p.kind not in _VARIADIC]
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
    if outside := [number for number in numbers if not -len(positional) <= number < len(positional)]:
      counted = ", ".join(f"{i} {parameter}" for i, parameter in enumerate(positional))
      raise ValueError(f"static_argnums={outside[0]}: {name} has the positional parameters {counted or 'none'}")
    if unknown := sorted(names - set(known)):
      raise ValueError(f"static_argnames={unknown[0]!r}: {name} has the parameters {', '.join(known) or 'none'}")
    return cls(name, signature, frozenset(names | {positional[number] for number in numbers}))

  def split(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[inspect.BoundArguments, dict[str, Any]]:
    """The call's arguments, and those of them that are traced, by parameter name."""
    bound = self.signature.bind(*args, **kwargs)
    return bound, {name: value for name, value in bound.arguments.items() if name not in self.names}

  def merge(self, bound: inspect.BoundArguments, traced: dict[str, Any]) -> inspect.BoundArguments:
    """The call's arguments with other values in place of the traced ones."""
    merged = {name: traced.get(name, value) for name, value in bound.arguments.items()}
    return inspect.BoundArguments(self.signature, merged)
