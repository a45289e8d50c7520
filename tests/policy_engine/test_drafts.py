"""Plans for a TPU by drafts: few compiles of the whole program, and numbers that are the compiler's all the same."""

import functools

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


def loss(weights, x, wrap=lambda layer: layer):
  layer = wrap(lambda x, weight: (x + jnp.sin(jnp.tanh(x @ weight) @ weight.T), None))
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
  assert compiles.count(True) and compiles.count(False) <= 2
  # What the plan says is what its program takes.
  assert temp_bytes_of(compile_trial(*gradient(plan.apply(loss)), targets.resolve(TPU))) == plan.measured.temp_bytes


def test_drafts_are_off_by_much_the_same_whatever_is_saved():
  target = targets.resolve(TPU)
  assert makes_drafts(target) and not makes_drafts(targets.resolve("gpu:h100")) and not makes_drafts(None)
  off = []
  for wrap in (lambda layer: layer, jax.checkpoint):
    program = gradient(functools.partial(loss, wrap=wrap))
    whole, draft = (temp_bytes_of(compile_trial(*program, target, draft=each)) for each in (False, True))
    off.append(draft - whole)
    assert abs(off[-1]) <= 0.25 * whole
  assert abs(off[1] - off[0]) <= 0.1 * whole
