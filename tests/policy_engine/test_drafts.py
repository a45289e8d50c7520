"""Plans for a TPU by drafts: few compiles of the whole program, and numbers that are the compiler's all the same."""

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.planning import trials
from coopjax.xla import targets
from coopjax.xla.compile import compile_trial, makes_drafts, temp_bytes_of

pytestmark = pytest.mark.targets
TPU = "tpu:v5e:2x2"
WEIGHTS = jax.ShapeDtypeStruct((8, 512, 512), jnp.bfloat16)
X = jax.ShapeDtypeStruct((2**16, 512), jnp.bfloat16)  # 64 MiB: a stack of them does not fit vector memory


def loss(weights, x):
  layer = lambda x, weight: (x + jnp.sin(jnp.tanh(x @ weight) @ weight.T), None)
  return jnp.mean(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2)


def gradient(loss):
  return fn_and_gradient(differentiable(trace(loss, (WEIGHTS, X))))


@pytest.fixture
def compiles(monkeypatch):
  """Whether each of a plan's trials was a draft."""
  made = []

  def counting(*args, draft=False):
    made.append(draft)
    return compile_trial(*args, draft=draft)

  monkeypatch.setattr(trials, "compile_trial", counting)
  return made


def test_two_trials_are_whole_programs(compiles):
  share = 0.5
  plan = coopjax.plan(loss, WEIGHTS, X, budget=share, engine="policy", target=TPU)
  assert plan.fits and plan.measured.temp_bytes <= plan.budget_bytes == int(share * plan.baseline.temp_bytes)
  # The first draft, of the program as it is, says that they are near.
  assert compiles.count(True) >= 2 and compiles.count(False) <= 2
  # What the plan says is what its program takes.
  assert temp_bytes_of(compile_trial(*gradient(plan.apply(loss)), targets.resolve(TPU))) == plan.measured.temp_bytes


def test_targets_whose_compiles_are_cheap_make_none():
  assert makes_drafts(targets.resolve(TPU))
  assert not makes_drafts(targets.resolve("gpu:h100")) and not makes_drafts(None)
