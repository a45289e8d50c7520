"""Equinox: what `equinox.filter_checkpoint` runs, `coopjax.remat` (but for flags of a call) and its own remat run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from tests.support import sweeps

KEY, X = jax.random.key(0), jnp.asarray(np.random.default_rng(0).normal(size=(5, 8)), "float32")
OPTIONS = {"budget": 0.5, "on_infeasible": "best_effort", "effort": "fast"}


class Block(eqx.Module):
  """With leaves of every kind."""

  linear: eqx.nn.Linear
  dropout: eqx.nn.Dropout
  activation: object
  scale: float
  times: int
  is_residual: bool
  name: str

  def __call__(self, x, key=None, *, inference=None):
    y = jax.vmap(self.linear)(x)
    for _ in range(self.times):
      y = self.activation(y)
    y = self.dropout(y, key=key, inference=inference) * self.scale
    return x + y if self.is_residual else y


BLOCK = Block(eqx.nn.Linear(8, 8, key=KEY), eqx.nn.Dropout(0.5), jax.nn.gelu, 0.5, 2, True, "block")
ATTENTION = eqx.nn.MultiheadAttention(2, 8, key=KEY)


def batch_norm(remat):
  def loss(model, state, x):
    outs, state = jax.vmap(remat(model), axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
    return outs.sum(), state

  model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, "batch", mode="batch")
  return eqx.filter_grad(loss, has_aux=True)(model, state, X)[0]


def gradient_of(model, loss):
  return lambda remat: eqx.filter_grad(lambda model, x: remat(loss)(model, x))(model, X)


PROGRAMS = {
  "attention": gradient_of(ATTENTION, lambda model, x: model(x, x, x).sum()),
  "module": lambda remat: eqx.filter_grad(lambda model: remat(model)(X, X, X).sum())(ATTENTION),
  "unbound": lambda remat: eqx.filter_grad(lambda m: remat(Block.__call__)(m, X, KEY).sum())(BLOCK),
  "bound": lambda remat: eqx.filter_grad(lambda model: remat(model.__call__)(X, KEY).sum())(BLOCK),
  "leaves": gradient_of(BLOCK, lambda model, x: model(x, KEY).sum()),
  "inference_mode": gradient_of(eqx.nn.inference_mode(BLOCK), lambda model, x: model(x).sum()),
  "returned": lambda remat: remat(lambda model, x: (model, model(x, KEY)))(BLOCK, X)[1],
  "batch_norm": batch_norm,
}
FILTERED = {
  "flag": lambda remat: eqx.filter_grad(lambda m: remat(lambda m, x, f: m(x, KEY, inference=f).sum())(m, X, True))(
    BLOCK
  ),
  "keyword": lambda remat: eqx.filter_grad(lambda m: remat(m)(X, KEY, inference=True).sum())(BLOCK),
  "result": lambda remat: remat(lambda x: (x, True, "name", None))(X)[:1],
}


@pytest.mark.filterwarnings("ignore::coopjax.BudgetExceededWarning")
@pytest.mark.parametrize(
  "name", sweeps.all_but(["bound", "inference_mode", "batch_norm", *FILTERED], [*PROGRAMS, *FILTERED])
)
def test_runs_as_under_filter_checkpoint(name):
  program, remats = PROGRAMS.get(name), {"equinox": coopjax.equinox.remat}
  if program is not None:
    remats["plain"] = coopjax.remat
  program = program or FILTERED[name]
  expected = eqx.filter_jit(lambda: program(eqx.filter_checkpoint))()
  for remat in remats.values():
    for engine in ("policy", "hlo"):
      actual = eqx.filter_jit(lambda: program(lambda fn: remat(fn, engine=engine, **OPTIONS)))()
      assert eqx.tree_equal(actual, expected, rtol=1e-3, atol=1e-5)


def test_static_results_stay_what_they_are():
  fitted = coopjax.equinox.remat(lambda x, flag: (jnp.sin(x), flag, len(x.shape)), budget=0.5)
  assert fitted(X, True)[1:] == (True, 2) and isinstance(fitted(X, False)[1], bool)


@pytest.mark.sweep
def test_runs_outside_of_jit():
  loss = lambda model, x: model(x, KEY).sum()
  actual = eqx.filter_grad(coopjax.equinox.remat(loss, engine="hlo", **OPTIONS))(BLOCK, X)
  assert eqx.tree_equal(actual, eqx.filter_grad(loss)(BLOCK, X), rtol=1e-3, atol=1e-5)
