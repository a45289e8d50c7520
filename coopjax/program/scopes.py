"""Name scopes as text: the ``op_name`` of an instruction, and what of it a user wrote."""

import re

KEPT_SCOPE = "coopkept"  # on what the user's policy saves: the HLO engine does not recompute it
_TRANSFORMED = re.compile(r"(?:jit|pjit|jvp|vjp|transpose|vmap|checkpoint|rematted_computation|shard_map)\((.*)\)$")
_OWN_SCOPE = re.compile(r"coop(?:region)?\d+$")  # what `coopjax.remat` puts around an equation
_PLUMBING = {"", "while", "body", "cond", "checkpoint", "rematted_computation", "closed_call", "eval_jaxpr"}


def layer_of(scope: str, of_arguments: str = "") -> str:
  """The scopes that a user opened (in Flax Linen, the modules' names) down to the first with a number in it, a layer's.
  Where none has one, the layer of the arguments (Equinox and NNX open no scopes), if it is known; else all of them.
  """
  parts = user_scopes(scope)
  numbered = next((i for i, part in enumerate(parts) if re.search(r"\d", part)), None)
  return of_arguments or "/".join(parts) if numbered is None else "/".join(parts[: numbered + 1])


def user_scopes(scope: str) -> list[str]:
  """The parts of an ``op_name`` that a user wrote; the primitive at the end is left out."""
  first = scope.partition(";")[0]  # XLA joins the names of what it merged
  return [piece for part in _split(first)[:-1] for piece in _peeled(part)]


def _peeled(part: str) -> list[str]:
  """A part without the transformations around it; nothing where JAX made it."""
  if match := _TRANSFORMED.match(part):
    is_call = part.startswith(("jit(", "pjit("))
    return [] if is_call else [piece for inner in _split(match[1]) for piece in _peeled(inner)]
  return [] if part in _PLUMBING or _OWN_SCOPE.match(part) else [part]


def _split(scope: str) -> list[str]:
  """At the slashes that stand in no parenthesis."""
  parts, depth = [""], 0
  for character in scope:
    depth += (character == "(") - (character == ")")
    if character == "/" and not depth:
      parts.append("")
    else:
      parts[-1] += character
  return parts
