"""Trains a Flax Linen ResNet with BatchNorm, its blocks with and without a memory budget, and compares.

The data has CIFAR's shape (32x32x3, ten classes) and is made up: every class has a pattern, and the images are noise on
top of one. Runs: no remat; ``flax.linen.remat`` around every block; ``coopjax.linen.remat`` with a share of what each
block keeps for its backward pass; and the same decorator with ``engine="hlo"``, where the share is of the whole
training step, planned inside XLA. There the losses are owed to the bit, elsewhere within rounding.

  python examples/flax_resnet.py
  python examples/flax_resnet.py --width 16 --blocks 1 --batch-size 32 --steps 3
"""

import argparse
import dataclasses
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import coopjax.linen

MIB = 2**20
SHAPE, CLASSES = (32, 32, 3), 10
Conv = functools.partial(nn.Conv, use_bias=False, kernel_init=nn.initializers.he_uniform())


class Block(nn.Module):
  """Two 3x3 convolutions and a shortcut."""

  features: int
  strides: int = 1

  @nn.compact
  def __call__(self, x, train):
    norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
    y = Conv(self.features, (3, 3), self.strides)(x)
    y = nn.relu(norm()(y))
    y = norm()(Conv(self.features, (3, 3))(y))
    if x.shape != y.shape:
      x = norm()(Conv(self.features, (1, 1), self.strides)(x))
    return nn.relu(x + y)


class ResNet(nn.Module):
  """Three stages of blocks; `block` is the class that they are of."""

  block: Any
  width: int
  blocks: int

  @nn.compact
  def __call__(self, x, train):
    x = Conv(self.width, (3, 3))(x)
    for stage in range(3):
      for i in range(self.blocks):
        strides = 2 if stage and not i else 1
        x = self.block(self.width * 2**stage, strides, name=f"stage{stage}_block{i}")(x, train)
    return nn.Dense(CLASSES)(x.mean((1, 2)))


@dataclasses.dataclass
class Run:
  """One way to train, and what was measured."""

  name: str
  block: Callable
  share: float | None = None  # of the plain step's temporaries that this run may take
  is_exact: bool = False
  temp_bytes: int = 0
  step: Callable | None = None
  state: Any = None
  losses: list[float] = dataclasses.field(default_factory=list)
  seconds: list[float] = dataclasses.field(default_factory=list)

  def compile(self, model: ResNet, optimizer: optax.GradientTransformation, state: tuple, batch: tuple) -> None:
    """Compiles the training step of a model with this run's blocks."""
    self.state = jax.tree.map(jnp.copy, state)
    self.step = make_step(model.clone(block=self.block), optimizer).lower(self.state, batch).compile()
    self.temp_bytes = self.step.memory_analysis().temp_size_in_bytes

  def train(self, batch: tuple) -> None:
    """One step."""
    start = time.perf_counter()
    self.state, loss = self.step(self.state, batch)
    self.losses.append(float(loss))
    self.seconds.append(time.perf_counter() - start)


def make_step(model: nn.Module, optimizer: optax.GradientTransformation) -> Callable:
  """The jitted ``(state, batch) -> (state, loss)``; the state is donated."""

  def loss_fn(params, batch_stats, images, labels):
    variables = {"params": params, "batch_stats": batch_stats}
    logits, updates = model.apply(variables, images, True, mutable=["batch_stats"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updates["batch_stats"]

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, batch):
    params, batch_stats, moments = state
    (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch_stats, *batch)
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), batch_stats, moments), loss

  return step


def make_batch(seed: int, batch_size: int) -> tuple[jax.Array, jax.Array]:
  """Images ``[batch, 32, 32, 3]`` and labels ``[batch]``."""
  labels_key, noise_key = jax.random.split(jax.random.key(seed))
  patterns = jax.random.normal(jax.random.key(1234), (CLASSES, *SHAPE))
  labels = jax.random.randint(labels_key, (batch_size,), 0, CLASSES)
  return patterns[labels] + jax.random.normal(noise_key, (batch_size, *SHAPE)), labels


def make_runs() -> list[Run]:
  """The first is what the others are compared with. In all of them, ``train`` (argument 2) is static."""
  fitted = functools.partial(coopjax.linen.remat, Block, static_argnums=2)
  runs = [Run("no remat", Block), Run("flax.linen.remat", nn.remat(Block, static_argnums=2))]
  runs += [Run("blocks keep 50%", fitted(budget=0.5))]
  runs += [Run("step in 40%", fitted(budget=0.4, engine="hlo"), 0.4, is_exact=True)]
  return runs


def compare(runs: list[Run]) -> list[str]:
  """Prints the table; what a run promised and did not hold."""
  plain, faults = runs[0], []
  print(f"{'run':>18} {'temp MiB':>9} {'step s':>7} {'time':>6}  loss after {len(plain.losses)} steps")
  for run in runs:
    same = run.losses == plain.losses
    step_s = [statistics.median(r.seconds[1:]) for r in (run, plain)]
    print(
      f"{run.name:>18} {run.temp_bytes / MIB:9.1f} {step_s[0]:7.3f} {step_s[0] / step_s[1]:5.2f}x  "
      f"{run.losses[-1]:.9f}{' (same bits)' if same else ''}"
    )
    if run.share is not None and run.temp_bytes > run.share * plain.temp_bytes:
      faults.append(f"{run.name}: {run.temp_bytes} bytes of temporaries, over {run.share:.0%} of {plain.temp_bytes}")
    close = all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(run.losses, plain.losses, strict=True))
    if not (same if run.is_exact else close):
      faults.append(f"{run.name}: the losses differ from those without remat: {run.losses} {plain.losses}")
  return faults


def main() -> None:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--width", type=int, default=32, help="channels of the first stage")
  parser.add_argument("--blocks", type=int, default=3, help="blocks of each of the three stages")
  parser.add_argument("--batch-size", type=int, default=64)
  parser.add_argument("--steps", type=int, default=6, help="training steps of each run; the first is not timed")
  arguments = parser.parse_args()
  if arguments.steps < 2:
    parser.error("--steps must be at least 2: the first step is not timed")
  optimizer = optax.sgd(0.05, momentum=0.9)
  model, batch = ResNet(Block, arguments.width, arguments.blocks), make_batch(0, arguments.batch_size)
  variables = jax.jit(functools.partial(model.init, train=True))(jax.random.key(0), batch[0])
  state = (variables["params"], variables["batch_stats"], optimizer.init(variables["params"]))
  runs = make_runs()
  for run in runs:
    start = time.perf_counter()
    run.compile(model, optimizer, state, batch)
    print(
      f"{run.name}: {run.temp_bytes / MIB:.1f} MiB of temporaries, compiled in {time.perf_counter() - start:.1f} s",
      flush=True,
    )
  for step in range(arguments.steps):
    batch = make_batch(step, arguments.batch_size)
    for run in runs:
      run.train(batch)
  faults = compare(runs)
  sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
  main()
