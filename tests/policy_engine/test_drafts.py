"""Plans for a TPU by drafts: few compiles of the whole program, and numbers that are the compiler's all the same."""

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.planning import trials
from coopjax.xla import targets
from coopjax.xla.compile import (
  OversizedProgram,
  compile_abstract,
  compile_trial,
  makes_drafts,
  measure,
  temp_bytes_of,
)
from coopjax.xla.device_budget import fitting_bytes

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

  def counting(*args, draft_above=None):
    made.append(draft_above is not None)
    return compile_trial(*args, draft_above=draft_above)

  monkeypatch.setattr(trials, "compile_trial", counting)
  return made


def test_one_trial_is_the_whole_program(compiles):
  share = 0.5
  plan = coopjax.plan(loss, WEIGHTS, X, budget=share, engine="policy", target=TPU)
  assert plan.fits and plan.measured.temp_bytes <= plan.budget_bytes == int(share * plan.baseline.temp_bytes)
  assert compiles.count(True) >= 1 and compiles.count(False) == 1
  # What the plan says is what its program takes.
  assert temp_bytes_of(compile_trial(*gradient(plan.apply(loss)), targets.resolve(TPU))) == plan.measured.temp_bytes


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_a_draft_says_what_the_program_takes(policy):
  layer = jax.checkpoint(lambda x, weight: (x + jnp.sin(jnp.tanh(x @ weight) @ weight.T), None), policy=policy)
  program = gradient(lambda weights, x: jnp.mean(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2))
  target = targets.resolve(TPU)
  compiled = compile_trial(*program, target)
  drafted = compile_trial(*program, target, draft_above=measure(compiled).resident_bytes)
  assert isinstance(drafted, OversizedProgram) and not isinstance(compiled, OversizedProgram)
  predicted = temp_bytes_of(drafted.as_analysed())
  assert predicted == pytest.approx(temp_bytes_of(compiled), rel=0.005)
  # Of the stacks of a scan the memory analysis says twice what the buffer assignment holds.
  held = measure(compiled, target, as_allocated=True)
  assert temp_bytes_of(drafted.as_allocated(target)) == pytest.approx(held.temp_bytes, rel=0.005)
  assert held.temp_bytes < 0.9 * predicted


def test_what_fits_is_what_xla_allocates():
  x = jax.ShapeDtypeStruct((6 * 2**17, 512), jnp.bfloat16)  # 768 MiB; 21 of them fill the device
  target = targets.resolve(TPU)
  plan = coopjax.plan(loss, WEIGHTS, x, budget="fits", engine="policy", target=TPU)
  assert plan.fits and plan.measured.total_bytes <= fitting_bytes(target)
  compiled = compile_abstract(*fn_and_gradient(differentiable(trace(plan.apply(loss), (WEIGHTS, x)))), target)
  assert measure(compiled, target, as_allocated=True).total_bytes == plan.measured.total_bytes
  # As the memory analysis has it, less could be saved.
  other = coopjax.plan(
    loss, WEIGHTS, x, budget=coopjax.Budget.total(fitting_bytes(target)), engine="policy", target=TPU
  )
  assert other.fits and plan.recompute_flops < other.recompute_flops


def test_targets_whose_compiles_are_cheap_make_none():
  assert makes_drafts(targets.resolve(TPU))
  assert not makes_drafts(targets.resolve("gpu:h100")) and not makes_drafts(None)
