"""One plan in all processes of a job: one of them decides, the others follow, and no program runs before all agree.

Processes of a `jax.distributed` job talk over the key-value store of its coordination service, which works from inside
a compile, where no collective does. Nothing is ever overwritten there: what was once said of a program holds for the
whole job, so a process that compiles it again, or later than the others, finds its answer and waits for nobody.

- `one_decides`: the first process that can make a plan publishes it. A process waits for those before it, and never for
  those after it unless it can't make a plan itself. Who has waited long enough goes on alone: plans depend on program
  and request alone, so it makes the same one, and two processes that compile in opposite orders are both freed.
- `agree`: before the first run every process says what it holds. All hold the same, or all raise `PlanMismatchError`.

Processes meet under a topic, which programs or requests that differ do not share. So each also says what it came to, as
its first, second, ... of a kind (`come_to`): all run one program, so that is the same in all. Where it is not, and what
another came to is nothing that this one knows of, in whatever order its threads work, it waits a fifth of the time, and
says so under the other's topic, too. It explains what differs, and decides nothing where a topic is shared.

Waiting ends by the service's own clock after ``COOPJAX_AGREEMENT_TIMEOUT_S`` (300) seconds.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from coopjax import compat
from coopjax.errors import PlanMismatchError

_PATIENCE = 0.2  # of the time-out, for one that can plan itself, or whose other is elsewhere
_PLAN = b"plan "  # what else is said is why there is none
_lock = threading.Lock()
_came = dict[tuple[str, tuple[int, ...]], dict[str, int]]()  # by kind and processes: topics, numbered as they came
_told = dict[str, str]()  # topic -> what this process holds


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
    said = _waited_for(f"{about}/{process}", 0 if process == here else wait_s, about, processes, process)
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
  with _lock:
    _told[about] = what
  compat.put_value(f"{about}/holds/{jax.process_index()}", json.dumps([digest, what]).encode())


def come_to(about: str, processes: Sequence[int], what: str) -> None:
  """Says that this process has come to something that it may wait for others at; for what is said if they never come.

  Args:
    about: from `topic`.
    processes: that take part.
    what: a line of text.
  """
  with _lock:
    came = _came.setdefault((_kind(about), tuple(processes)), {})
    came.setdefault(about, len(came))
  place = _place(about, processes)
  assert place is not None  # it was just taken
  compat.put_value(f"{place}/{jax.process_index()}", json.dumps([about, what]).encode())


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
  come_to(about, processes, _told[about])
  first, key = processes[0], f"{about}/verdict"
  if jax.process_index() == first and compat.value_of(key, 0) is None:
    _compare(about, processes)
  verdict = _waited_for(key, 2 * timeout_s(), about, processes, first)
  if verdict is None and (elsewhere := _elsewhere(about, processes, first)):
    verdict = _met(elsewhere[0], _told[about])
    if verdict is not None:
      compat.put_value(key, verdict)  # to those who hold the same as this one
  if verdict is None:
    raise PlanMismatchError(
      f"{name} is not run: process {first} did not say within {2 * timeout_s():g} s whether the plans of "
      f"processes {list(processes)} are the same{_at_a_plan(processes, first)}; {_ADVICE}"
    )
  agreed, told = json.loads(verdict)
  if agreed is None or agreed != digest:
    told = told or f"  process {jax.process_index()} now holds {digest}, and the job agreed on {agreed}"
    raise PlanMismatchError(f"{name} is not run: processes of the job hold different plans:\n{told}\n{_ADVICE}")


_ADVICE = (
  "check that all processes run the same code, versions and flags and have asked the same of coopjax; "
  "docs/many_hosts.md says more"
)


def _compare(about: str, processes: Sequence[int]) -> None:
  """Says which digest all hold, else None and a line for each process; to those who are elsewhere, there, too."""
  held, topics, limit_s = list[tuple[str, str]](), [about], timeout_s()
  for process in processes:
    said = _waited_for(f"{about}/holds/{process}", limit_s, about, processes, process)
    if said is not None:
      held.append(json.loads(said))
    elif elsewhere := _elsewhere(about, processes, process):
      topics.append(elsewhere[0])
      held.append(("", elsewhere[1]))
    else:
      late = f"has not come to this program within {timeout_s():g} s{_at_a_plan(processes, process)}"
      held.append(("", late))
      limit_s = 0.0  # who is late is waited for once, for all
  lines = [f"  process {process}: {what}" for process, (_, what) in zip(processes, held, strict=True)]
  digests = {digest for digest, _ in held}
  verdict = (held[0][0], "") if len(digests) == 1 else (None, "\n".join(lines))
  for each in topics:
    compat.put_value(f"{each}/verdict", json.dumps(verdict).encode())


def _met(about: str, what: str) -> bytes | None:
  """The verdict on another program than this process's, once those who compare there know what it holds."""
  compat.put_value(f"{about}/holds/{jax.process_index()}", json.dumps(["", what]).encode())
  return compat.value_of(f"{about}/verdict", timeout_s())


def _waited_for(key: str, limit_s: float, about: str, processes: Sequence[int], process: int) -> bytes | None:
  """What a process says under a key; not waited for to the end where it has come to something else."""
  soon_s = min(limit_s, _PATIENCE * timeout_s())
  said = compat.value_of(key, soon_s)
  if said is None and limit_s > soon_s and not _elsewhere(about, processes, process):
    said = compat.value_of(key, limit_s - soon_s)
  return said


def _elsewhere(about: str, processes: Sequence[int], process: int) -> tuple[str, str] | None:
  """What a process came to where this one came to a topic, where this one knows nothing of it: a topic, and a line."""
  place = _place(about, processes)
  said = None if place is None else compat.value_of(f"{place}/{process}", 0)
  if said is None:
    return None
  other, what = json.loads(said)
  with _lock:
    is_known = other in _told or other in _came[_kind(about), tuple(processes)]
  return None if is_known else (other, what)


def _at_a_plan(processes: Sequence[int], process: int) -> str:
  """What a process plans in place of the last that this one has planned; "" if that is not known, or the same."""
  with _lock:
    plans = list(_came.get(("plan", tuple(processes)), ()))
  elsewhere = _elsewhere(plans[-1], processes, process) if plans else None
  return f": it was asked for {elsewhere[1]}" if elsewhere else ""


def _place(about: str, processes: Sequence[int]) -> str | None:
  """A key for what processes come to as the n-th of a kind, as this one came to a topic; None if it has not."""
  kind = _kind(about)
  with _lock:
    number = _came.get((kind, tuple(processes)), {}).get(about)
  return None if number is None else topic("came", kind, repr(tuple(processes)), str(number))


def _kind(about: str) -> str:
  return about.split("/")[1]
