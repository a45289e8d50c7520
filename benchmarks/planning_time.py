"""Planning time over compile time: what `coopjax.remat` adds to the first call of a jitted gradient, in CPU seconds.

For the models of the examples and of the benchmarks, small, for trivial programs, and for train steps with an optimizer
in the bytes that a policy around each layer takes in them (`hand_ladder.py`). Each is traced and compiled as it is, the
faster of twice, and with a budget for each engine, once; no row finds what another one planned. "adds" is the
difference, "ratio" that over all of the first call without a budget, "of XLA" over the compile alone, which leaves out
what JAX traces and lowers. "planned in" is what was measured directly: from when a function is to be planned until it
is, and what the hook plans of the user's own module; the rest of "adds" is that a program with repeats is larger to
trace and to compile. "compiles" are those of planning: whole ones and, after the plus, those that end at the schedule;
"modules" is how often the HLO engine planned one.

  python benchmarks/planning_time.py                       # goes on where it stopped
  python benchmarks/planning_time.py --programs "8 products" --engines hlo --again
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["COOPJAX_CACHE_DIR"] = ""  # every plan is made, none is found
sys.path.append(str(pathlib.Path(__file__).parent.parent / "examples"))

import flax_resnet
import gpt
import hand_ladder
import jax
import jax.numpy as jnp
import ladder_programs
import models
import optax
import plan_for_v5e
import reachable_budgets
import scan_llama
import tables
import two_hosts
from jax.sharding import AxisType, NamedSharding

import coopjax
import coopjax.linen
from coopjax.hlo_engine import hook
from coopjax.planning import function_plan

OUT = tables.RESULTS / "planning_time.json"
ENGINES = ("hlo", "auto", "policy")
BUDGETS = (0.5, 0.25)
RUNGS = ("full", "dots_saveable")  # whose bytes are the budgets of steps
WARM_UP = "2 products"
KEY = ("program", "engine", "budget")
COLUMNS = {
  "program": "{program}",
  "engine": "{engine}",
  "budget": "{budget}",
  "trace": "{trace_s:.2f}",
  "compile": "{compile_s:.2f}",
  "adds": "{adds_s:.2f}",
  "planned in": "{planning_s:.2f}",
  "compiles": "{num_compiles}+{num_schedules}",
  "modules": "{num_modules}",
  "ratio": "{ratio:.2f}",
  "of XLA": "{xla_ratio:.2f}",
}
SMALL = ladder_programs.Size(batch=4, length=64, width=64, hidden=176, heads=4, key_heads=2, layers=4)
Wrap = Callable[..., Any]  # of what is under a budget, and the door to take, `coopjax.remat` where none is given
Case = tuple[Any, Sequence[Any]]  # what has a `lower`, and its arguments


_remat = functools.partial(coopjax.remat, on_infeasible="best_effort")


@dataclasses.dataclass(frozen=True)
class _Under:
  """A jitted function that is traced under a mesh."""

  mesh: jax.sharding.Mesh
  jitted: Any

  def lower(self, *arguments: Any) -> jax.stages.Lowered:
    with jax.set_mesh(self.mesh):
      return self.jitted.lower(*arguments)


def _gradient(loss: Callable, arguments: Sequence[Any], wrap: Wrap) -> Case:
  return jax.jit(jax.value_and_grad(wrap(loss))), arguments


def _abstract(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _products(count: int, wrap: Wrap) -> Case:
  def loss(weights, x):
    for weight in weights:
      x = jnp.sin(x @ weight)
    return jnp.sum(x**2)

  square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
  return _gradient(loss, ([square] * count, square), wrap)


def _of_model(make: Callable[[], models.Model], wrap: Wrap) -> Case:
  model = make()
  return _gradient(model.loss, _abstract((model.params, *model.batch)), wrap)


def _of_ladder(name: str, wrap: Wrap) -> Case:
  program = ladder_programs.Program(name, SMALL)
  return _gradient(program.loss(), program.arguments, wrap)


def _step_of_ladder(name: str, wrap: Wrap, rung: ladder_programs.Rung = ladder_programs.PLAIN) -> Case:
  program = ladder_programs.Program(name, SMALL)
  loss, optimizer = wrap(program.loss(rung)), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

  def step(params, state, tokens):
    value, grads = jax.value_and_grad(loss)(params, tokens)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  params, tokens = program.arguments
  return jax.jit(step, donate_argnums=(0, 1)), (params, jax.eval_shape(optimizer.init, params), tokens)


def _of_reachable(name: str, wrap: Wrap) -> Case:
  model = reachable_budgets.MODELS[name]
  return jax.jit(model.step(lambda block: block, wrap)), _abstract(model.arguments())


def _gpt(wrap: Wrap) -> Case:
  config = gpt.GPTConfig(num_layers=4, width=64, context=64, batch_size=4)
  loss, params = gpt.make_loss(config)
  optimizer = optax.adamw(3e-4)
  batch = jax.ShapeDtypeStruct((config.batch_size, config.context + 1), jnp.uint8)
  params = _abstract(params)
  return gpt.make_train_step(wrap(loss), optimizer), (params, jax.eval_shape(optimizer.init, params), batch)


def _resnet(wrap: Wrap) -> Case:
  """A region in each block, as in the example."""
  model, optimizer = flax_resnet.ResNet(flax_resnet.Block, width=16, blocks=2), optax.sgd(0.05, momentum=0.9)
  batch = jax.ShapeDtypeStruct((16, *flax_resnet.SHAPE), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.int32)
  variables = jax.eval_shape(functools.partial(model.init, train=True), jax.random.key(0), batch[0])
  state = variables["params"], variables["batch_stats"], jax.eval_shape(optimizer.init, variables["params"])
  block = wrap(flax_resnet.Block, functools.partial(coopjax.linen.remat, static_argnums=2))
  return flax_resnet.make_step(model.clone(block=block), optimizer), (state, batch)


def _llama(wrap: Wrap) -> Case:
  """On two devices; `remat` in the place of the example's `plan`."""
  model, optimizer = scan_llama.Llama(layers=4, width=64, context=64, batch=4), optax.adamw(1e-3)
  mesh = jax.make_mesh((2, 1), ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:2])
  state = scan_llama.abstract_state(model, optimizer, mesh)
  sharding = NamedSharding(mesh, scan_llama.BATCH)
  tokens = jax.ShapeDtypeStruct((model.batch, model.context + 1), jnp.int32, sharding=sharding)
  step = scan_llama.make_step(wrap(model.loss), optimizer, jax.tree.map(lambda leaf: leaf.sharding, state))
  return _Under(mesh, step), (state, tokens)


def _v5e(wrap: Wrap) -> Case:
  decoder = plan_for_v5e.Decoder(num_layers=6, width=64, num_heads=4, length=64, vocabulary=128, batch_size=4)
  return _gradient(decoder.loss, decoder.shapes, wrap)


def _two_hosts(wrap: Wrap) -> Case:
  """On one of them."""
  weight = jax.ShapeDtypeStruct((two_hosts.WIDTH, two_hosts.WIDTH), jnp.float32)
  x = jax.ShapeDtypeStruct((two_hosts.BATCH, two_hosts.WIDTH), jnp.float32)
  return _gradient(two_hosts.loss, ([weight] * two_hosts.DEPTH, x), wrap)


PROGRAMS: dict[str, Callable[[Wrap], Case]] = {
  "sine": lambda wrap: _gradient(
    lambda x: jnp.sum(jnp.sin(x) ** 2), (jax.ShapeDtypeStruct((256, 256), jnp.float32),), wrap
  ),
  WARM_UP: functools.partial(_products, 2),
  "8 products": functools.partial(_products, 8),
  "train_gpt": _gpt,
  "flax_resnet": _resnet,
  "scan_llama": _llama,
  "plan_for_v5e": _v5e,
  "two_hosts": _two_hosts,
  "decoder": functools.partial(_of_model, lambda: models.decoder(8, 64, 64, 4, vocab_size=128)),
  "ResNet-50": functools.partial(_of_model, lambda: models.resnet50(2, 64)),
  "VGG-16": functools.partial(_of_model, lambda: models.vgg16(2, 32)),
  **{f"ladder {name}": functools.partial(_of_ladder, name) for name in ladder_programs.PROGRAMS},
  **{name: functools.partial(_of_reachable, name) for name in reachable_budgets.MODELS},
}
STEPS = {f"{name} step": functools.partial(_step_of_ladder, name) for name in ladder_programs.PROGRAMS}
PROGRAMS |= STEPS


@dataclasses.dataclass
class Planning:
  """CPU seconds that planning took, and the modules that the HLO engine planned."""

  seconds: float = 0.0
  num_modules: int = 0
  depth: int = 0

  def timed(self, fn: Callable, plans_modules: bool) -> Callable:
    """The function, its time counted unless it is called within another one that is."""

    @functools.wraps(fn)
    def counted(*args, **kwargs):
      start_s = time.process_time()
      self.depth += 1
      self.num_modules += plans_modules
      try:
        return fn(*args, **kwargs)
      finally:
        self.depth -= 1
        if not self.depth:
          self.seconds += time.process_time() - start_s

    return counted


@contextlib.contextmanager
def planning() -> Iterator[Planning]:
  """Counts what is planned inside the block."""
  counted, choose, plan_module = Planning(), function_plan.choose_anew, hook.plan_module
  function_plan.choose_anew = counted.timed(choose, plans_modules=False)
  hook.plan_module = counted.timed(plan_module, plans_modules=True)
  try:
    yield counted
  finally:
    function_plan.choose_anew, hook.plan_module = choose, plan_module


def first_call(case: Case) -> tuple[float, float]:
  """CPU seconds of tracing and lowering, and of compiling."""
  fn, arguments = case
  jax.clear_caches()
  start_s = time.process_time()
  lowered = fn.lower(*arguments)
  traced_s = time.process_time()
  lowered.compile()
  return traced_s - start_s, time.process_time() - traced_s


def as_it_is(name: str) -> tuple[float, float]:
  """A first call without a budget; the first one of a process imports what it needs."""
  return min((first_call(PROGRAMS[name](_same)) for _ in range(2)), key=sum)


def _same(fn: Any, *_: Any) -> Any:
  return fn


def bytes_by_hand(name: str, rung: str) -> int:
  """Temporaries of a step with a policy around each layer."""
  fn, arguments = STEPS[name](_same, ladder_programs.RUNGS[rung])
  return fn.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def label(of: float | str) -> str:
  """Of a budget: a share, or a rung."""
  return of if isinstance(of, str) else f"{of:.0%}"


def measure(name: str, engine: str, of: float | str, plain: tuple[float, float]) -> tables.Row:
  """One row, of a share, or of the bytes of a rung."""
  budget = bytes_by_hand(name, of) if isinstance(of, str) else of
  door = coopjax.remat if isinstance(of, str) else _remat
  case = PROGRAMS[name](lambda fn, remat=door: remat(fn, budget=budget, engine=engine))
  with planning() as counted, hand_ladder.compiling() as compiles:
    first_s = sum(first_call(case))
  trace_s, compile_s = plain
  adds_s = first_s - sum(plain)
  return {
    "program": name,
    "engine": engine,
    "budget": label(of),
    "trace_s": trace_s,
    "compile_s": compile_s,
    "adds_s": adds_s,
    "planning_s": counted.seconds,
    "num_compiles": len(compiles.whole) - 1,  # the user's own
    "num_schedules": len(compiles.scheduled),
    "compiles_s": sum(compiles.whole[:-1]) + sum(compiles.scheduled),
    "num_modules": counted.num_modules,
    "ratio": adds_s / sum(plain),
    "xla_ratio": adds_s / compile_s,
  }


def main() -> None:
  text, details = (__doc__ or "").split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=[name for name in PROGRAMS if name != WARM_UP])
  parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
  parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
  parser.add_argument("--again", action="store_true", help="measure what is there already")
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  arguments = parser.parse_args()
  warnings.simplefilter("ignore")  # of budgets that are out of reach, which take as long to plan
  for engine in ENGINES:
    measure(WARM_UP, engine, 0.5, as_it_is(WARM_UP))  # imports what planning needs
  known = {key_of(row): row for row in tables.read(arguments.out)}
  cells = [
    (name, engine, of)
    for name, engine in itertools.product(arguments.programs, arguments.engines)
    if (name, engine) != ("flax_resnet", "auto")  # a block has one engine
    if not (name in STEPS and engine == "hlo")  # which alone need not reach the bytes
    for of in (RUNGS if name in STEPS else arguments.budgets)
  ]
  rows, plain = [], {}
  with tables.progress() as progress:
    bar = progress.add_task("programs", total=len(cells))
    for name, engine, of in cells:
      key = name, engine, label(of)
      progress.update(bar, description=", ".join(key))
      if arguments.again or key not in known:
        if name not in plain:
          plain[name] = as_it_is(name)
        known[key] = measure(name, engine, of, plain[name])
        tables.write(arguments.out, rows=list(known.values()))
      rows.append(known[key])
      progress.advance(bar)
  console = tables.console()
  console.print(tables.table(rows, COLUMNS, "CPU seconds of the first call"), summary(rows), sep="\n")


def key_of(row: tables.Row) -> tuple[Any, ...]:
  """What tells rows apart."""
  return tuple(row[name] for name in KEY)


def summary(rows: Sequence[tables.Row]) -> str:
  """How many rows keep to their limit: once the first call without a budget."""
  within = sum(row["ratio"] <= 1.0 for row in rows)
  worst = max(rows, key=lambda row: row["ratio"])
  return (
    f"{within} of {len(rows)} add no more than the first call takes without a budget; most, "
    f"{worst['ratio']:.2f} times, {worst['program']} with engine={worst['engine']!r} at {worst['budget']}"
  )


if __name__ == "__main__":
  main()
