"""coopjax as users write it, for a type checker: ``make lint`` fails where a signature is lost on the way.

Every ``assert_type`` is a test of the checker's, which does nothing when the file runs. Names that are read from
``coopjax`` itself, not from the modules that they live in, are part of what is tested.
"""

from typing import TYPE_CHECKING, assert_type

import jax
import jax.numpy as jnp
from flax import linen, nnx

import coopjax


def loss(weights: list[jax.Array], x: jax.Array, *, scale: float = 1.0) -> jax.Array:
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return scale * (x**2).sum()


@coopjax.remat(budget=0.5)
def decorated(weights: list[jax.Array], x: jax.Array, *, scale: float = 1.0) -> jax.Array:
  return loss(weights, x, scale=scale)


class LinenBlock(linen.Module):
  width: int

  @linen.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    return linen.tanh(linen.Dense(self.width)(x))


@coopjax.linen.remat(budget="1 MiB")
class DecoratedLinenBlock(LinenBlock):
  pass


class NnxBlock(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.layer = nnx.Linear(32, 32, rngs=rngs)

  @coopjax.nnx.remat(budget=0)
  def __call__(self, x: jax.Array) -> jax.Array:
    return nnx.tanh(self.layer(x))


def functions() -> None:
  weights, x = [jnp.eye(64)] * 4, jnp.ones((128, 64))
  wrapped = coopjax.remat(loss, budget="25%", engine="hlo")
  assert_type(wrapped(weights, x, scale=2.0), jax.Array)
  assert_type(decorated(weights, x), jax.Array)
  if TYPE_CHECKING:  # what a checker must refuse: an ignore that nothing needs is an error, too
    wrapped(weights)  # pyright: ignore[reportCallIssue]  # x is missing
    decorated(weights, x, scale="2")  # pyright: ignore[reportArgumentType]  # scale is a float
    coopjax.remat(loss, budgets=0.5)  # pyright: ignore[reportCallIssue]  # it is budget=
    coopjax.linen.remat(LinenBlock)  # pyright: ignore[reportCallIssue]  # it needs budget=
    coopjax.remats(loss, budget=0.5)  # pyright: ignore[reportAttributeAccessIssue]  # there is no such name

  def predict(weight: jax.Array, /, *xs: jax.Array) -> tuple[jax.Array, int]:
    return sum((weight * x for x in xs), jnp.zeros(())), len(xs)

  remat = coopjax.remat(predict, budget=coopjax.Budget("1 GiB", is_total=False))
  assert_type(remat(x, x), tuple[jax.Array, int])


def modules() -> None:
  lifted = coopjax.linen.remat(LinenBlock, budget=0.5)
  assert_type(lifted(width=32), LinenBlock)
  assert_type(DecoratedLinenBlock(width=32), DecoratedLinenBlock)
  block = NnxBlock(nnx.Rngs(0))
  assert_type(block(jnp.ones((8, 32))), jax.Array)
  if TYPE_CHECKING:
    block()  # pyright: ignore[reportCallIssue]  # x is missing: a method is bound, decorated or not

  def apply(block: NnxBlock, x: jax.Array) -> jax.Array:
    return block(x)

  assert_type(coopjax.nnx.remat(apply, budget=0.5)(block, jnp.ones((8, 32))), jax.Array)


def plans() -> None:
  weights, x = [jnp.eye(64)] * 4, jnp.ones((128, 64))
  plan = coopjax.plan(loss, weights, x, budget=0.9)
  assert_type(plan, coopjax.RematPlan)
  assert_type(plan.measured.temp_bytes, int)
  with coopjax.enable(coopjax.Budget.total("1 GiB")):
    coopjax.disable()


def main() -> None:
  functions()
  modules()
  plans()
