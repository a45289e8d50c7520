"""The same bits: random programs under ``engine="hlo"`` against the same programs as they are.

A program is made from its seed alone: values that are read many times, nested jits, custom derivative rules, loops,
branches, reductions, some of it in bfloat16. It is differentiated by a subset of its arguments, which take turns, and
every fourth program in one other way (forward, twice, batched), too, as it is and with `coopjax.remat`. What XLA is
given has to be the same text but for marks. Then it is compiled and run at a budget of 1.0, which asks for nothing, and
of 0.7, at which programs recompute and are ordered as far as that goes (``on_infeasible="best_effort"``): every result
has to have the same bits. The first 500 programs are compared as text by every subset and in the other way.

  python benchmarks/random_bits.py              # 10,000 programs, some three hours of CPU; goes on where it stopped
  python benchmarks/random_bits.py --programs 20 --fresh
"""

import argparse
import collections
import dataclasses
import functools
import hashlib
import itertools
import multiprocessing
import os
import pathlib
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("COOPJAX_CACHE_DIR", "")  # what one run decides, the next one decides again

import jax
import jax.numpy as jnp
import numpy as np
import tables

import coopjax

OUT = tables.RESULTS / "random_bits.json"
BUDGETS = (1.0, 0.7)
BLOCK = 20  # programs a row, written as soon as it is done
SIZE = 37
ARGUMENTS = 3
IN_EVERY_WAY = 500  # programs
AS_TEXT = "as text"
COLUMNS = {
  "compared": "{how}",
  "way": "{way}",
  "runs": "{runs}",
  "differing": "{differing}",
  "with fewer bytes": "{smaller}",
}
_MARK = r"mhlo\.frontend_attributes = \{[^{}]*\}"
_ATTRIBUTES = re.compile(f"{_MARK}, |(?:, )?{_MARK}")
_EMPTY = re.compile(r" (?:attributes )?\{\}")
_FUNCTION, _CALLED = re.compile(r"@(\w+)"), re.compile(r"call @(\w+)")
_MODULE_NAME = re.compile(r"@jit_\w+")


@jax.custom_jvp
def _ruled(x):
  return jnp.sin(x) * x


@_ruled.defjvp
def _(primals, tangents):
  (x,), (dx,) = primals, tangents
  slope = jnp.add(dx, 0.0)
  return _ruled(x), jnp.cos(x) * x * slope + jnp.sin(x) * (slope + 0.25 * dx) - 0.25 * jnp.sin(x) * slope


@jax.custom_vjp
def _ruled_back(x, y):
  return x * jnp.tanh(y)


_ruled_back.defvjp(
  lambda x, y: (_ruled_back(x, y), (x, jnp.tanh(y))),
  lambda kept, g: (g * kept[1], g * kept[0] * (1.0 - kept[1] ** 2)),
)


@jax.jit
def _jitted(x, y):
  z = x + y
  return jnp.sin(z) * x + z, jnp.where(y > 0, z, jnp.sin(y))


def _scanned(x, y):
  def turn(carry, row):
    carry = jnp.tanh(carry + row * y)
    return carry, carry * row

  carry, rows = jax.lax.scan(turn, x, jnp.stack([y, x, x + y]))
  return carry + rows.sum(0)


def _branched(x, y):
  return jax.lax.cond(x[0] > 0, lambda x, y: jnp.sin(x) * y + x, lambda x, y: x - jnp.cos(y), x, y)


def _normed(x):
  centered = x - jnp.mean(x)
  return centered * jax.lax.rsqrt(jnp.mean(centered**2) + 0.1)


def _multiplied(x, y):
  rows = jnp.outer(x, y) * 0.1
  return jnp.tanh(rows @ x + y)


def _rounded(x):
  return (jnp.sin(x.astype(jnp.bfloat16)) * x.astype(jnp.bfloat16)).astype(jnp.float32)


UNARY: dict[str, Callable] = {
  "sin": jnp.sin,
  "tanh": jnp.tanh,
  "erf": jax.scipy.special.erf,
  "square": jnp.square,
  "exp": lambda x: jnp.exp(-jnp.abs(x)),
  "relu": jax.nn.relu,
  "silu": jax.nn.silu,
  "gelu": jax.nn.gelu,
  "softplus": jax.nn.softplus,
  "softmax": jax.nn.softmax,
  "logsumexp": lambda x: x - jax.nn.logsumexp(x),
  "normed": _normed,
  "cumsum": lambda x: 0.2 * jnp.cumsum(x),
  "roll": lambda x: jnp.roll(x, 3),
  "ruled": _ruled,
  "rounded": _rounded,
  "clip": lambda x: jnp.clip(x, -1.0, 1.5),
  "checkpoint": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) * x)),
}
BINARY: dict[str, Callable] = {
  "add": jnp.add,
  "subtract": jnp.subtract,
  "multiply": jnp.multiply,
  "operator +": lambda x, y: x + y,
  "operator *": lambda x, y: x * y,
  "divide": lambda x, y: x / (1.0 + y * y),
  "maximum": jnp.maximum,
  "where": lambda x, y: jnp.where(x > y, x, jnp.sin(y)),
  "hypot": lambda x, y: jnp.sqrt(x * x + y * y + 1.0),
  "jitted": lambda x, y: _jitted(x, y)[0] - 0.5 * _jitted(x, y)[1],
  "ruled back": _ruled_back,
  "scanned": _scanned,
  "branched": _branched,
  "multiplied": _multiplied,
}


@dataclasses.dataclass(frozen=True)
class RandomProgram:
  """A scalar function of `ARGUMENTS` vectors.

  Attributes:
    seed: it is made from.
    steps: names of operations with their operands: arguments first, then results of earlier steps.
    read: the values whose means are summed.
  """

  seed: int
  steps: tuple[tuple[str, tuple[int, ...]], ...]
  read: tuple[int, ...]

  @classmethod
  def of(cls, seed: int) -> "RandomProgram":
    rng = random.Random(seed)
    steps = []
    for number in range(rng.randint(2, 6)):
      table = rng.choice((UNARY, BINARY))
      operands = [rng.randrange(ARGUMENTS + number) for _ in range(1 if table is UNARY else 2)]
      steps.append((rng.choice(list(table)), tuple(operands)))
    num_values = ARGUMENTS + len(steps)
    read = [rng.randrange(num_values) for _ in range(rng.randint(2, 4))]
    return cls(seed, tuple(steps), (*read, num_values - 1))

  def __call__(self, *arguments: jax.Array) -> jax.Array:
    values = list(arguments)
    for name, operands in self.steps:
      operation = UNARY.get(name) or BINARY[name]
      values.append(operation(*(values[operand] for operand in operands)))
    return sum((jnp.sin(values[value]).mean() for value in self.read), start=jnp.float32(0.0))

  __name__ = "random_program"

  def arguments(self) -> list[np.ndarray]:
    """Of the function."""
    rng = np.random.default_rng(self.seed)
    return [rng.normal(size=SIZE).astype(np.float32) for _ in range(ARGUMENTS)]


def _gradient(fn: Callable, wrt: tuple[int, ...]) -> Callable:
  return jax.value_and_grad(fn, wrt)


def _forward_over_reverse(fn: Callable, wrt: tuple[int, ...]) -> Callable:
  def product(*arguments):
    def gradient(*chosen):
      return jax.grad(fn, wrt)(*_replaced(arguments, wrt, chosen))

    chosen = tuple(arguments[i] for i in wrt)
    return jax.jvp(gradient, chosen, tuple(map(jnp.cos, chosen)))

  return product


def _reverse_over_forward(fn: Callable, wrt: tuple[int, ...]) -> Callable:
  def directional(*arguments):
    moved = lambda *chosen: fn(*_replaced(arguments, wrt, chosen))
    chosen = tuple(arguments[i] for i in wrt)
    return jax.jvp(moved, chosen, tuple(map(jnp.ones_like, chosen)))[1]

  return jax.grad(directional, wrt)


def _reverse_over_reverse(fn: Callable, wrt: tuple[int, ...]) -> Callable:
  def steepness(*arguments):
    return sum(jnp.sum(jnp.sin(gradient)) for gradient in jax.grad(fn, wrt)(*arguments))

  return jax.grad(steepness, wrt)


def _batched(fn: Callable, wrt: tuple[int, ...]) -> Callable:
  gradient = jax.vmap(jax.grad(fn, wrt), in_axes=(0, None, 0))
  return lambda x, y, z: gradient(jnp.stack([x, 0.5 * x]), y, jnp.stack([z, -z]))


def _forward(fn: Callable, wrt: tuple[int, ...]) -> Callable:
  del wrt
  return fn


WAYS: dict[str, Callable[[Callable, tuple[int, ...]], Callable]] = {
  "gradient": _gradient,
  "forward": _forward,
  "batched gradient": _batched,
  "forward over reverse": _forward_over_reverse,
  "reverse over forward": _reverse_over_forward,
  "reverse over reverse": _reverse_over_reverse,
}
FORWARD_MODE = ("forward over reverse", "reverse over forward")


def _replaced(arguments: Sequence[Any], wrt: tuple[int, ...], chosen: Sequence[Any]) -> list[Any]:
  replaced = list(arguments)
  for i, value in zip(wrt, chosen, strict=True):
    replaced[i] = value
  return replaced


def subsets() -> list[tuple[int, ...]]:
  """Of the arguments, without the empty one."""
  return [chosen for size in range(1, ARGUMENTS + 1) for chosen in itertools.combinations(range(ARGUMENTS), size)]


@dataclasses.dataclass(frozen=True)
class Run:
  """A program as it is and with `coopjax.remat`, differentiated alike.

  Attributes:
    seed: of the program.
    way: of differentiating, one of `WAYS`.
    wrt: the arguments it is differentiated by.
    how: "as text": what XLA is given is the same but for marks, and so it is at every budget. Else, compiled and run at
      a budget: "bits at 0.7".
    is_same: the text, or all results.
    is_smaller: it was compiled, and has fewer temporaries than the program as it is.
  """

  seed: int
  way: str
  wrt: tuple[int, ...]
  how: str
  is_same: bool
  is_smaller: bool = False


def cases(seed: int) -> list[tuple[str, tuple[int, ...], bool]]:
  """``(way, arguments, whether it is compiled)``: the gradient by some subsets, and it may be one other way by one."""
  program, all_subsets = RandomProgram.of(seed), subsets()
  has_forward_mode = "ruled back" not in dict(program.steps)  # a `custom_vjp` has none
  others = [way for way in list(WAYS)[1:] if has_forward_mode or way not in FORWARD_MODE]
  compiled, is_first, is_fourth = all_subsets[seed % len(all_subsets)], seed < IN_EVERY_WAY, seed % 4 == 0
  found = [("gradient", wrt, wrt == compiled) for wrt in (all_subsets if is_first else [compiled])]
  rng = random.Random(f"way {seed}")
  other = (rng.choice(others), rng.choice(all_subsets), is_fourth)
  return [*found, other] if is_first or is_fourth else found


def runs(seed: int) -> Iterator[Run]:
  """All of one program."""
  program = RandomProgram.of(seed)
  arguments = program.arguments()
  for way, wrt, is_compiled in cases(seed):
    plain = jax.jit(WAYS[way](program, wrt)).lower(*arguments)
    planned = jax.jit(WAYS[way](within(program, BUDGETS[0]), wrt)).lower(*arguments)
    yield Run(seed, way, wrt, AS_TEXT, unmarked(plain.as_text()) == unmarked(planned.as_text()))
    if not is_compiled:
      continue
    expected, plain_bytes = _executed(plain, arguments)
    for budget in BUDGETS:
      if budget != BUDGETS[0]:
        planned = jax.jit(WAYS[way](within(program, budget), wrt)).lower(*arguments)
      actual, num_bytes = _executed(planned, arguments)
      yield Run(seed, way, wrt, f"bits at {budget}", actual == expected, num_bytes < plain_bytes)


def within(program: RandomProgram, budget: float) -> Callable:
  """The program with `coopjax.remat`."""
  return coopjax.remat(program, budget=budget, engine="hlo", on_infeasible="best_effort", effort="fast")


def unmarked(text: str) -> str:
  """A program's text without frontend attributes, each function with a digest of what it is in place of its name.

  Under a mark, each call of a nested jit has a function of its own, whose lines are those of the call.
  """
  head, *functions = _EMPTY.sub("", _ATTRIBUTES.sub("", text)).split("func.func ")
  bodies = {_FUNCTION.findall(function)[0]: function for function in functions}

  @functools.cache
  def digest(name: str) -> str:
    return hashlib.sha256(_resolved(bodies[name], digest).encode()).hexdigest()[:16]

  return _MODULE_NAME.sub("", head) + _resolved(bodies["main"], digest)


def _resolved(function: str, digest: Callable[[str], str]) -> str:
  body = _FUNCTION.sub("", function, count=1).rstrip("} \n")  # the last one's ends with the module's, too
  return _CALLED.sub(lambda found: f"call {digest(found[1])}", body)


def _executed(lowered: jax.stages.Lowered, arguments: Sequence[np.ndarray]) -> tuple[list[bytes], int]:
  """The bits of all results, and the compiled program's temporaries."""
  compiled = lowered.compile()
  bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(compiled(*arguments))]
  memory = compiled.memory_analysis()
  assert memory is not None  # a CPU's compiler says
  return bits, memory.temp_size_in_bytes


def block(first: int, num_programs: int) -> list[tables.Row]:
  """Runs some programs: a row per way of differentiating and of comparing, with what differed."""
  warnings.simplefilter("ignore")
  found = collections.defaultdict[tuple[str, str], list[Run]](list)
  for seed in range(first, first + num_programs):
    for run in runs(seed):
      found[run.way, run.how].append(run)
  return [
    {
      "first": first,
      "way": way,
      "how": how,
      "runs": len(made),
      "differing": sum(not run.is_same for run in made),
      "smaller": sum(run.is_smaller for run in made),
      "differing_runs": [[run.seed, list(run.wrt)] for run in made if not run.is_same],
    }
    for (way, how), made in found.items()
  ]


def summed(rows: Sequence[tables.Row]) -> list[tables.Row]:
  """The rows of all blocks together, by ways of comparing and of differentiating."""
  total: dict[tuple[str, str], tables.Row] = {}
  for row in rows:
    into = total.setdefault((row["how"], row["way"]), {"way": row["way"], "how": row["how"]})
    for name in ("runs", "differing", "smaller"):
      into[name] = into.get(name, 0) + row[name]
  return [total[key] for key in sorted(total, key=lambda key: (key[0], list(WAYS).index(key[1])))]


def main() -> None:
  text, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--programs", type=int, default=10_000)
  parser.add_argument("--fresh", action="store_true", help="forget the rows that are there")
  parser.add_argument("--jobs", type=int, default=1, help="processes that run programs (1)")
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  arguments = parser.parse_args()
  rows = [] if arguments.fresh else tables.read(arguments.out)
  firsts = sorted({*range(0, arguments.programs, BLOCK)} - {row["first"] for row in rows})
  pool = multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=10)  # JAX keeps a lot
  run = functools.partial(block, num_programs=BLOCK)
  with pool, tables.progress() as progress:
    bar = progress.add_task("programs", total=BLOCK * len(firsts))
    for made in pool.imap_unordered(run, firsts):
      rows += made
      tables.write(arguments.out, totals=summed(rows), rows=sorted(rows, key=lambda row: row["first"]))
      progress.advance(bar, BLOCK)
  console, totals = tables.console(), summed(rows)
  console.print(tables.table(totals, COLUMNS, "programs under the HLO engine"))
  num_runs, differing = (sum(row[name] for row in totals) for name in ("runs", "differing"))
  console.print(f"{num_runs} runs, {differing} differ")
  sys.exit(differing > 0)


if __name__ == "__main__":
  main()
