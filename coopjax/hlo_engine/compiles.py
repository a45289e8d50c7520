"""Programs that coopjax plans, seen from outside of their compile: JAX's compilation cache, other processes of a job.

XLA's persistent compilation cache gives a program without asking the hook, so what the hook does is a part of the keys
of what it plans, and a plan that failed or was cut short is not kept. That a program is over its budget is written into
it (`over_budget`), and read where the cache gives it.

Where a program's devices are those of several processes, these agree (`coopjax.job`): one plans the module and hands
it to the others, which prove that it is a plan of theirs; before the first run all compare what they hold.
"""

import collections
import contextlib
import functools
import hashlib
import json
import logging
import math
import re
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax

from coopjax import _core, compat, contexts, job
from coopjax.budget import format_bytes
from coopjax.errors import (
  InvalidProgramError,
  RematNoEffectWarning,
  log,
)
from coopjax.hlo_engine.mark import (
  Mark,
  asked_in,
  held_in,
  is_chosen,
  is_marked,
  is_over_budget,
  marks_in,
  over_budget,
)
from coopjax.hlo_engine.over_budget import (
  Excess,
  Inside,
  Repeated,
  excess_of,
  has_both_passes,
  limit_of,
  limit_of_share,
  planned_anew,
  warn,
)
from coopjax.xla import standing
from coopjax.xla.module import parse_module, predict_memory
from coopjax.xla.module_fields import with_plan_of, without_labels

_log = logging.getLogger("coopjax.hook")
_ATTRIBUTES = re.compile(r', frontend_attributes=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_KEYS = re.compile(rb";key=([0-9a-f]+)")  # of marks; nothing else is read here, where an error would fail a compile
_KEPT_FUNCTIONS = 4096
_KEY = re.compile(r";key=[0-9a-f]*")  # differs between versions of coopjax, which may follow each other


# From a program without a mark, and what it takes, to it as planned where it then takes less.
PlanStep = Callable[[compat.ProgramToCompile, int], jax.stages.Lowered | None]


class EndedError(Exception):
  """Ends a compile of which all that was wanted is known."""


class Compile:
  """One program that coopjax plans, from when JAX asks for it until it is there.

  Attributes:
    keys: of its marks.
    about: what the processes of a job know it by; "" where this process decides alone.
    processes: that take part.
    is_planned: the hook has seen it.
    may_keep: whether it may be put into the persistent compilation cache.
    story: what was done, in a line.
    interrupt: what the user stopped planning with, which XLA turns into an error of its own.
    refused: what there is to say of it if it is over a budget that it has to hold.
    excess: what the hook has to say of it, where that is no error; `hold` knows better, if it has something to go by.
    is_trial: it is compiled to be looked at.
    may_end: at its schedule, where that shows that it is over a budget that no HLO engine sees to.
    has_other_ways: where it is over its budget, its function is planned for less.
    most_flops: that the HLO engine may repeat in it.
    repeated: what that did to it, where it had to repeat more.
  """

  def __init__(self, program: compat.ProgramToCompile, asked: standing.Standing | None):
    self.keys = {key.decode() for key in _KEYS.findall(program.bytecode)}
    self._name, self._held = program.name, held_in(program.bytecode)
    self.processes = () if standing.is_suspended() else job.spanned(program.processes())
    self.about = job.topic("program", _KEY.sub("", program.text()), str(asked)) if self.processes else ""
    self.interrupt: BaseException | None = None
    self.is_planned, self.may_keep, self.story = False, True, "seen by no hook, or taken from JAX's compilation cache"
    self.refused: Excess | None = None
    self.excess: Excess | None = None
    self.is_trial, self.may_end, self.has_other_ways = standing.is_suspended(), False, False
    self.most_flops, self.repeated = math.inf, None

  @property
  def _held_to_bytes(self) -> list[Mark]:
    return [mark for mark in self._held if mark.whole is None]

  def scheduled(self, module_bytes: bytes) -> None:
    """A module that XLA:CPU will assign the predicted buffers to, with nothing in it for the hook to plan.

    Raises:
      EndedError: it is over a budget in bytes that it has to hold, as its executable would show.
    """
    if self.is_trial or self.about or not self.may_end or not self._held_to_bytes:
      return
    with contextlib.suppress(InvalidProgramError):
      memory = predict_memory(module_bytes)
      limit = limit_of(self._held_to_bytes, memory.resident_bytes)
      is_over = memory.temp_bytes > limit[1]
      excess = excess_of(self._name, module_bytes, memory.temp_bytes, *limit) if is_over else None
      if excess is not None and excess.is_refused:
        self.refused = excess
        raise EndedError

  def told(self, repeated: Repeated) -> None:
    """What the HLO engine did.

    Raises:
      EndedError: it repeats too much.
    """
    if repeated.flops > self.most_flops:
      self.repeated = repeated
      raise EndedError

  def planned(self, module_bytes: bytes, plan: Callable[[], tuple[bytes | None, Excess | None]]) -> bytes | None:
    """The module to compile in place of the one that reached the hook, or None to leave it.

    Args:
      module_bytes: as it came.
      plan: plans it: the rewritten bytes if there are any, and what there is to say where they are over the budget.

    Raises:
      EndedError: it is over a budget that it has to hold.
    """
    self.is_planned = True
    if not self.about:
      return self._finished(module_bytes, *plan())

    def decide() -> bytes:
      planned, excess = plan()
      return zlib.compress(json.dumps(excess).encode() + b"\n" + (planned or b""))

    process, decided = job.one_decides(f"{self.about}/module", self.processes, decide)
    self.story = f"planned by process {process}"
    told, _, planned = zlib.decompress(decided).partition(b"\n")
    if planned and process != jax.process_index():
      planned = with_plan_of(module_bytes, planned)
      wrong = _core.verify_transform(*(parse_module(without_labels(each)) for each in (module_bytes, planned)))
      if wrong:
        raise InvalidProgramError(f"the plan of process {process} is for another module: {wrong}")
    excess = json.loads(told)
    return self._finished(module_bytes, planned or None, excess and Excess(*excess))

  def _finished(self, module_bytes: bytes, planned: bytes | None, excess: Excess | None) -> bytes | None:
    """What to compile; where it is over its budget, that is refused, or warned of and written into it."""
    if excess is None:
      return planned
    if excess.is_refused and not self.is_trial:
      self.refused, self.may_keep = excess, False
      raise EndedError
    self.excess = excess
    if not self.keys:
      self.may_keep = False  # the cache would give it without a word
      return planned
    return over_budget(planned or module_bytes)

  def hold(self, program: compat.ProgramToCompile, executable: Any, inside: Mapping[str, Inside]) -> bool:
    """Refuses the compiled program, or warns of it, where it is over what it is held to, or within that as it is.
    Returns whether it is held to anything.

    Args:
      program: as it came.
      executable: of it.
      inside: functions in it, by key of their marks.
    """
    if self.is_trial or not self._held:
      return False
    temp_bytes = compat.temp_bytes_of(executable)
    of_bytes = self._held_to_bytes
    of_share = {mark: mark.whole for mark in self._held if mark.whole is not None}
    limits = [limit_of(of_bytes, compat.resident_bytes_of(executable))] if of_bytes else []
    if of_share and (found := limit_of_share(of_share, program, executable, inside)):
      limits.append(found)
    if not limits:
      return False
    limit = min(limits, key=lambda limit: limit[1:])
    if temp_bytes > limit[1]:
      excess = excess_of(program.name, compat.module_bytes_of(executable), temp_bytes, *limit)
      if excess is not None and excess.is_refused:
        self.refused = excess
      elif excess is not None:
        warn(excess.message)
    elif of_bytes and _are_left(inside, executable):
      warn(without_effect(program.name, temp_bytes, limit[1]), RematNoEffectWarning)
    return True

  def fail(self, error: Exception, *, is_lasting: bool = False) -> None:
    """Planning failed: the program is compiled as it came, and kept only where it would fail again."""
    self.may_keep = is_lasting and not self.about
    self.story = f"left as it came, since {type(error).__name__}: {error}"


class Watcher:
  """What JAX asks about every program (`compat.CompileWatcher`), once it has begun.

  Args:
    install: installs the hook for a platform.
  """

  def __init__(self, install: Callable[[str], None]):
    self._install = install
    self._lock = threading.Lock()
    self._thread = threading.local()  # .compile: that is in progress in it
    self._active: list[Compile] = []
    # By key, as long as may be: JAX keeps traces, and compiles them for other arguments and under other options.
    self._inside: collections.OrderedDict[str, Inside] = collections.OrderedDict()
    self._plan_step: PlanStep | None = None
    # By address: programs that several processes run and that have not run yet. An executable is held until it has.
    self._to_settle: dict[int, tuple[Any, Callable[[], None]]] = {}

  def begin(self) -> None:
    """Has JAX ask from now on."""
    compat.add_to_cache_key("hook", self.cache_key)
    compat.watch_compiles(self)

  def expect(self, key: str, function: Inside) -> None:
    """Has programs with a function planned as a whole if their compile shows that they are over its budget.

    Args:
      key: of the mark that the function has in them.
      function: to be asked about them.
    """
    with self._lock:
      self._inside[key] = function
      self._inside.move_to_end(key)
      while len(self._inside) > _KEPT_FUNCTIONS:
        self._inside.popitem(last=False)

  def plan_steps(self, plan_step: PlanStep) -> None:
    """Has programs without marks planned in this way, where what is asked of all leaves them over their budget."""
    self._plan_step = plan_step

  def around(self, program: compat.ProgramToCompile, *, is_held: bool = True, is_settled: bool = False) -> Any:
    """As of `compat.CompileWatcher`.

    Args:
      program: what is compiled.
      is_held: whether it may be held to a budget that no HLO engine sees to.
      is_settled: nothing that repeats less is looked for.
    """
    asked = standing.current()
    if asked is None and not is_marked(program.bytecode) and not is_chosen(program.bytecode):
      return program.compile()
    if platform := compat.hook_platform(program.platform):  # the mark may come from an exported program
      self._install(platform)
    entered = Compile(program, asked)
    entered.may_end = is_held and platform == "cpu"
    inside = {} if entered.is_trial else self._expected(entered.keys)
    functions = list(inside.values())
    if len(functions) == 1 and not (is_settled or entered.about):
      entered.most_flops, entered.has_other_ways = functions[0].most_flops, platform == "cpu"
    executable = self._compiled(program, entered)
    if entered.repeated is not None:
      (function,) = functions
      lowered = function.in_another_way(program, entered.repeated) if function.is_differentiated(program) else None
      other = lowered and program.replaced(lowered)
      return self.around(other or program, is_held=is_held and other is None, is_settled=True)
    is_told = is_held and entered.refused is None and entered.hold(program, executable, inside)
    if entered.refused is not None:
      compile_program = functools.partial(self.around, is_held=False)
      return planned_anew(program, functions, entered.refused, compile_program)
    if not is_told:
      if entered.excess is not None:
        if not is_settled and (other := self._as_a_step(program, entered, entered.excess)) is not None:
          return self.around(other, is_held=False, is_settled=True)
        warn(entered.excess.message)
      elif not entered.is_planned and entered.keys:
        _warn_if_over_budget(program.name, executable)
    if entered.about:
      self._tell(entered, program, executable)
    return executable

  def _as_a_step(
    self, program: compat.ProgramToCompile, entered: Compile, excess: Excess
  ) -> compat.ProgramToCompile | None:
    """A program that nothing is asked of but what is asked of all, planned as a step; None where that can't be."""
    if self._plan_step is None or entered.keys or entered.about:
      return None
    lowered = self._plan_step(program, excess.smallest_bytes)
    return lowered and program.replaced(lowered)

  def _compiled(self, program: compat.ProgramToCompile, entered: Compile) -> Any:
    """The executable; None where the compile was ended for what the hook found."""
    with self._entered(entered):
      try:
        return program.compile()
      except jax.errors.JaxRuntimeError:
        if entered.interrupt is not None:
          raise entered.interrupt from None
        if entered.refused is None and entered.repeated is None:
          raise
    return None

  def _expected(self, keys: Collection[str]) -> dict[str, Inside]:
    """The functions with marks of these keys that are known."""
    with self._lock:
      found = {key: self._inside[key] for key in sorted(keys) if key in self._inside}
      for key in found:
        self._inside.move_to_end(key)
    return found

  def _tell(self, entered: Compile, program: compat.ProgramToCompile, executable: Any) -> None:
    """Says what this process holds, and has it compared before the first run."""
    if not entered.is_planned:
      job.decline(f"{entered.about}/module", entered.story)
    log(_log, logging.INFO, "%s of processes %s: %s", program.name, list(entered.processes), entered.story)
    digest = digest_of(executable)
    of_all = standing.current()
    asked = asked_in(program.bytecode) or (of_all and of_all.budget) or "no budget in bytes"
    job.tell(entered.about, digest, f"{entered.story} {digest}: {program.name} {entered.about[-8:]} for {asked}")
    settle = lambda: job.agree(entered.about, entered.processes, digest, program.name)
    with self._lock:
      self._to_settle[id(executable)] = executable, settle

  def exported(self, name: str, program: bytes) -> None:
    if is_marked(program):
      log(
        _log,
        logging.WARNING,
        "%s is exported with a mark for coopjax: a process that imports coopjax plans it when it compiles it, others "
        "run it without remat. What engine='policy' decides is in the program itself",
        name,
      )

  def may_keep(self) -> bool:
    entered = getattr(self._thread, "compile", None)
    return entered is None or entered.may_keep

  def before_run(self, executable: Any) -> None:
    if id(executable) in self._to_settle:
      self._to_settle[id(executable)][1]()
      with self._lock:
        self._to_settle.pop(id(executable), None)

  def cache_key(self) -> str:
    entered = getattr(self._thread, "compile", None)
    return "" if entered is None else f"coopjax hook {contexts.code_digest()}"

  def of(self, marks: Collection[Mark]) -> Compile | None:
    """The compile that a module with these marks belongs to: this thread's, or where XLA calls from its own threads,
    one that carries them.
    """
    if (entered := getattr(self._thread, "compile", None)) is not None:
      return entered
    keys = {mark.key for mark in marks}
    return next((each for each in self._active if keys & each.keys), None)

  @contextlib.contextmanager
  def _entered(self, entered: Compile) -> Iterator[None]:
    outer = getattr(self._thread, "compile", None)
    self._thread.compile = entered
    with self._lock:
      self._active.append(entered)
    try:
      yield
    finally:
      self._thread.compile = outer
      with self._lock:
        self._active = [each for each in self._active if each is not entered]


def digest_of(executable: Any) -> str:
  """Of the instructions of a loaded executable in their order; without marks, which name versions."""
  return hashlib.sha256(_ATTRIBUTES.sub("", compat.instructions_of(executable)).encode()).hexdigest()[:16]


def without_effect(name: str, temp_bytes: int, budget_bytes: int) -> str:
  """What to say of a program with a remat that holds its budget, in bytes, as it is."""
  return (
    f"the remat in the program {name} has no effect: it takes {format_bytes(temp_bytes)} of temporaries, within the "
    f"budget of {format_bytes(budget_bytes)} as it is"
  )


def _are_left(inside: Mapping[str, Inside], executable: Any) -> bool:
  """Whether a compiled program has both passes of functions, and all of them are left as they are."""
  are_left = bool(inside) and all(each.is_left for each in inside.values())
  return are_left and has_both_passes(compat.module_bytes_of(executable))


def _warn_if_over_budget(name: str, executable: Any) -> None:
  """Warns of a program from JAX's compilation cache that was over its budget when it was put there."""
  module_bytes = compat.module_bytes_of(executable)
  if is_over_budget(module_bytes):
    budgets = " and ".join(sorted({str(mark.budget) for mark in marks_in(module_bytes)}))
    needed = f"needs {format_bytes(compat.temp_bytes_of(executable))} of temporaries"
    warn(f"the program {name}, from JAX's compilation cache, {needed}, over its budget of {budgets}")
