"""One plan in all processes of a job: one of them decides, the others follow, and no program runs before all agree.

Processes of a `jax.distributed` job talk over the key-value store of its coordination service, which works from inside
a compile, where no collective does. Nothing is ever overwritten there: what was once said of a program holds for the
whole job, so a process that compiles it again, or later than the others, finds its answer and waits for nobody.

- `one_decides`: the first process that can make a plan publishes it. A process waits for those before it, and never for
  those after it unless it can't make a plan itself. Who has waited long enough goes on alone: plans depend on program
  and request alone, so it makes the same one, and two processes that compile in opposite orders are both freed.
- `agree`: before the first run every process says what it holds. All hold the same, or all raise `PlanMismatchError`.

Waiting ends by the service's own clock after ``COOPJAX_AGREEMENT_TIMEOUT_S`` (300) seconds.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from coopjax import compat
from coopjax.errors import PlanMismatchError

_PATIENCE = 0.2  # of the time-out, for one that can plan itself
_PLAN = b"plan "  # what else is said is why there is none


def timeout_s() -> float:
  """Seconds that a process waits for another at most.

  Raises:
    ValueError: ``COOPJAX_AGREEMENT_TIMEOUT_S`` is not a positive number.
  """
  text = os.environ.get("COOPJAX_AGREEMENT_TIMEOUT_S", "300")
  try:
    seconds = float(text)
  except ValueError:
    seconds = 0.0
  if not 0 < seconds < 1e6:
    raise ValueError(f"COOPJAX_AGREEMENT_TIMEOUT_S={text!r}: seconds, more than 0")
  return seconds


def spanned(processes: Iterable[int]) -> tuple[int, ...]:
  """Those that have to agree, of the processes of a program's devices, ascending; () if it is one process's own."""
  found = tuple(sorted(set(processes)))
  return found if len(found) > 1 and compat.is_job() and jax.process_index() in found else ()


def spanned_by(shardings: Iterable[Any]) -> tuple[int, ...]:
  """As `spanned`, of values that lie like this, some of them nowhere: None.

  A trace knows a mesh without its devices: one as large as the job is taken for all of it, others for none.
  """
  if not compat.is_job():
    return ()
  found = set[int]()
  for sharding in shardings:
    mesh = getattr(sharding, "mesh", None)
    if isinstance(mesh, jax.sharding.AbstractMesh):
      if mesh.size == jax.device_count():
        found.update(device.process_index for device in jax.devices())
    elif sharding is not None:
      found.update(device.process_index for device in sharding.device_set)
  return spanned(found)


def topic(kind: str, *parts: str) -> str:
  """A key of the store, the same in every process, from what tells one program and request from others."""
  return f"coopjax/{kind}/{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"


def one_decides(
  about: str, processes: Sequence[int], decide: Callable[[], bytes], *, patience: float = _PATIENCE
) -> tuple[int, bytes]:
  """What the first process that can decide has decided.

  Args:
    about: from `topic`.
    processes: that take part, this one among them, in ascending order.
    decide: makes the decision; called where no process before this one has made it.
    patience: share of the time-out after which a process that is not the first makes the decision for itself.

  Returns:
    Whose decision it is, and the decision.

  Raises:
    Exception: what `decide` raised, if no other process has decided either.
  """
  error, here = None, jax.process_index()
  for process in processes:
    wait_s = timeout_s() * (1 if error else patience)
    said = compat.value_of(f"{about}/{process}", 0 if process == here else wait_s)
    if said is None and error is None:  # it is this one's turn, or one before it is late
      try:
        process, said = here, _PLAN + decide()
      except Exception as raised:
        error, said = raised, f"{type(raised).__name__}: {raised}".encode()
      compat.put_value(f"{about}/{here}", said)
    if said is not None and said.startswith(_PLAN):
      return process, said[len(_PLAN) :]
  raise error or PlanMismatchError(f"no process of {list(processes)} could make a plan")


def decline(about: str, why: str) -> None:
  """Says that this process will not decide."""
  compat.put_value(f"{about}/{jax.process_index()}", why.encode())


def tell(about: str, digest: str, what: str) -> None:
  """Says what this process holds, a digest and a line of text; for `agree`."""
  compat.put_value(f"{about}/holds/{jax.process_index()}", json.dumps([digest, what]).encode())


def agree(about: str, processes: Sequence[int], digest: str, name: str) -> None:
  """Returns when all processes are known to hold the same; the first one compares.

  Args:
    about: from `topic`, what all have told of with `tell`.
    processes: that take part.
    digest: what this process holds.
    name: of the program, for the error.

  Raises:
    PlanMismatchError: they hold different plans, or one has said nothing in time.
  """
  key = f"{about}/verdict"
  if jax.process_index() == processes[0] and compat.value_of(key, 0) is None:
    compat.put_value(key, json.dumps(_compared(about, processes)).encode())
  verdict = compat.value_of(key, 2 * timeout_s())
  if verdict is None:
    raise PlanMismatchError(
      f"{name} is not run: process {processes[0]} did not say within {2 * timeout_s():g} s whether the plans of "
      f"processes {list(processes)} are the same; {_ADVICE}"
    )
  agreed, told = json.loads(verdict)
  if agreed is None or agreed != digest:
    told = told or f"  process {jax.process_index()} now holds {digest}, and the job agreed on {agreed}"
    raise PlanMismatchError(f"{name} is not run: processes of the job hold different plans:\n{told}\n{_ADVICE}")


_ADVICE = (
  "check that all processes run the same code, versions and flags and have asked the same of coopjax; "
  "docs/many_hosts.md says more"
)


def _compared(about: str, processes: Sequence[int]) -> tuple[str | None, str]:
  """The digest that all hold, else None and a line for each process. Who is late is waited for once, for all."""
  held, limit_s = list[tuple[str, str]](), timeout_s()
  for process in processes:
    said = compat.value_of(f"{about}/holds/{process}", limit_s)
    if said is None:
      limit_s = 0.0
    digest, what = ("", f"has not come to this program within {timeout_s():g} s") if said is None else json.loads(said)
    held.append((digest, what))
  if len({digest for digest, _ in held}) == 1:
    return held[0][0], ""
  lines = [f"  process {process}: {what} {digest}".rstrip() for process, (digest, what) in zip(processes, held)]
  return None, "\n".join(lines)
