"""Layers folded as Haliax folds them, with its checkpoint policy from YAML: one that fits a budget is planned and run.

A `Stacked` module holds the layers of a network in one, each array with an axis for the layers, and folds an input
through them by a scan whose body is under `eqx.filter_checkpoint`. What that keeps says a policy with Haliax's fields:
the carries always, of the block's own values those that are named. The step is planned as it stands, the plan written
as Levanter's YAML, and a job that knows nothing of coopjax reads that and trains.

  python examples/haliax_like.py
  python examples/haliax_like.py --layers 4 --width 32 --batch 64 --steps 3 --budget 0.6
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import yaml
from jax.ad_checkpoint import checkpoint_name

import coopjax


@dataclasses.dataclass(frozen=True)
class ScanPolicy:
  """What a checkpoint around a folded block saves, by the fields of Haliax's policy that are used here."""

  save_block_internals: bool | tuple[str, ...] = False
  offload_block_internals: tuple[str, ...] = ()

  @classmethod
  def from_yaml(cls, text: str) -> "ScanPolicy | None":
    """The policy of ``gradient_checkpointing``; None for no checkpoint at all."""
    asked = yaml.safe_load(text)["gradient_checkpointing"]
    if isinstance(asked, bool):
      return cls() if asked else None
    saved = asked.get("save_block_internals", False)
    return cls(saved if isinstance(saved, bool) else tuple(saved), tuple(asked.get("offload_block_internals", ())))

  def checkpoint(self, block: Callable) -> Callable:
    """A block under it."""
    saved = self.save_block_internals
    if saved is True:
      return eqx.filter_checkpoint(block, policy=jax.checkpoint_policies.everything_saveable)
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
      names_which_can_be_saved=list(saved or ()),
      names_which_can_be_offloaded=list(self.offload_block_internals),
      offload_src="device",
      offload_dst="pinned_host",
    )
    return eqx.filter_checkpoint(block, policy=policy, prevent_cse=False)  # a scan stands around it


class Block(eqx.Module):
  """A normalized gated perceptron, added to its input; what it makes has names."""

  norm: eqx.nn.LayerNorm
  gate: eqx.nn.Linear
  up: eqx.nn.Linear
  down: eqx.nn.Linear

  def __init__(self, width: int, key: jax.Array):
    keys = jax.random.split(key, 3)
    self.norm = eqx.nn.LayerNorm(width)
    self.gate, self.up = (eqx.nn.Linear(width, 4 * width, key=key) for key in keys[:2])
    self.down = eqx.nn.Linear(4 * width, width, key=keys[2])

  def __call__(self, x: jax.Array) -> jax.Array:
    """``[batch, width]`` to the same."""
    y = jax.vmap(self.norm)(x)
    gate, up = (checkpoint_name(jax.vmap(getattr(self, name))(y), name) for name in ("gate", "up"))
    return x + jax.vmap(self.down)(checkpoint_name(jax.nn.silu(gate) * up, "hidden"))


class Stacked(eqx.Module):
  """Blocks of one kind, one on the other."""

  stacked: Block
  policy: ScanPolicy | None = eqx.field(static=True)

  @classmethod
  def of(cls, num_layers: int, width: int, policy: ScanPolicy | None, key: jax.Array) -> "Stacked":
    """New ones."""
    return cls(eqx.filter_vmap(functools.partial(Block, width))(jax.random.split(key, num_layers)), policy)

  def fold(self, x: jax.Array) -> jax.Array:
    """The input after all blocks."""
    arrays, rest = eqx.partition(self.stacked, eqx.is_array)

    def body(x, layer):
      return eqx.combine(layer, rest)(x)

    checkpointed = self.policy.checkpoint(body) if self.policy else body
    return jax.lax.scan(lambda x, layer: (checkpointed(x, layer), None), x, arrays)[0]


def make_step(optimizer: optax.GradientTransformation) -> Callable:
  """The jitted ``(network, state, x) -> (network, state, loss)``."""

  @eqx.filter_value_and_grad
  def value_and_grad(network, x):
    return jnp.mean((network.fold(x) - jnp.roll(x, 1, axis=1)) ** 2)

  @eqx.filter_jit
  def step(network, state, x):
    value, grads = value_and_grad(network, x)
    updates, state = optimizer.update(grads, state, eqx.filter(network, eqx.is_array))
    return eqx.apply_updates(network, updates), state, value

  return step


def losses_of(policy: ScanPolicy | None, arguments: argparse.Namespace, optimizer: Any) -> list[float]:
  """Trains under a policy; this is all that a job with the YAML does."""
  network = Stacked.of(arguments.layers, arguments.width, policy, jax.random.key(0))
  state, step = optimizer.init(eqx.filter(network, eqx.is_array)), make_step(optimizer)
  losses = []
  for number in range(arguments.steps):
    x = jax.random.normal(jax.random.key(number + 1), (arguments.batch, arguments.width))
    network, state, value = step(network, state, x)
    losses.append(float(value))
  return losses


def main() -> None:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  for name, default in {"layers": 8, "width": 128, "batch": 512, "steps": 5}.items():
    parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
  parser.add_argument("--budget", type=float, default=0.6, help="share of the step's temporaries with all saved")
  arguments = parser.parse_args()
  optimizer = optax.adamw(1e-3)
  asked = ScanPolicy.from_yaml("gradient_checkpointing: true")  # keeps the carries alone

  network = Stacked.of(arguments.layers, arguments.width, asked, jax.random.key(0))
  state, x = optimizer.init(eqx.filter(network, eqx.is_array)), jnp.zeros((arguments.batch, arguments.width))
  plan = coopjax.plan(make_step(optimizer), network, state, x, budget=arguments.budget, names_only=True)
  print(plan.headline())
  print(plan.to_haliax())

  policies = {"gradient_checkpointing: true": asked, "planned": ScanPolicy.from_yaml(plan.to_haliax())}
  for name, policy in policies.items():
    print(f"{name}: losses {' '.join(f'{loss:.6f}' for loss in losses_of(policy, arguments, optimizer))}")


if __name__ == "__main__":
  main()
