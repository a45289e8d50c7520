"""Steps whose regions stand under the user's own `jax.checkpoint`: planned in place of what they say, or as told."""

import dataclasses
import functools
import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax.budget import format_bytes
from coopjax.planning import steps
from coopjax.planning.choice import Choice
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.division import Division
from tests.support import ROOT, hand_rungs, models
from tests.support.checkpointed_steps import (
  BUDGET,
  arguments,
  bytes_of,
  flops_of,
  make_step,
  plain_flops,
  planned,
  saving,
)
from tests.support.checks import assert_close, assert_same_bits, flags, num_dots, temp_bytes

plan_by_policy = functools.partial(coopjax.plan, engine="policy")


def test_replaced_at_the_hands_bytes_and_no_more_is_repeated():
  step = make_step(saving(*hand_rungs.RUNGS["with_context"]))
  by_hand, repeated = bytes_of(step), flops_of(step) - plain_flops()
  plan = plan_by_policy(step, *arguments(), budget=by_hand)
  applied = plan.apply(step)
  assert bytes_of(applied) == plan.measured.temp_bytes <= by_hand
  assert flops_of(applied) - plain_flops() <= repeated
  assert [region.num_runs for region in plan.regions] == [hand_rungs.LAYERS]


def masked_layer(x, weights):
  """With calls in it, of `jnp.tril`, `jnp.where` and `jax.nn.silu`."""
  mixed = checkpoint_name(jnp.where(jnp.tril(jnp.ones((64, 64), bool)), x @ weights["query"], 0.0), "mixed")
  up = checkpoint_name(jax.nn.silu(mixed) @ weights["up"], "up")
  return x + checkpoint_name(jax.nn.silu(up), "gate") @ weights["down"]


@pytest.mark.parametrize(
  "names, is_scanned",
  [
    ((), True),
    (("mixed",), False),
    (("gate", "mixed"), True),
    *(
      pytest.param(*case, marks=pytest.mark.sweep)
      for case in [((), False), (("mixed",), True), (("gate", "mixed"), False)]
    ),
    *(pytest.param(("mixed", "up"), is_scanned, marks=pytest.mark.sweep) for is_scanned in (True, False)),
  ],
)
def test_a_policy_by_hand_is_carried_out_as_written(names, is_scanned):
  """Calls inside a layer stay calls: what is opened up, XLA fuses otherwise, to other bytes than by hand."""

  def make_step(policy=None):
    wrapped = jax.checkpoint(masked_layer, policy=policy, prevent_cse=not is_scanned)
    return jax.jit(lambda stacks, x: jax.grad(hand_rungs.loss)(stacks, x, wrapped))

  args = hand_rungs.arguments(1) if is_scanned else hand_rungs.unrolled_arguments()
  found = steps.find_step(make_step(), args, {})
  division = Division(found.members, only_scans=False)
  policies = {each.decisions[0].decisions.regions[0].policy: each for each in division.found if each.is_by_hand}
  (share,) = policies[names].decisions
  assert PolicyDecisions.from_json(json.loads(json.dumps(dataclasses.asdict(share.decisions)))) == share.decisions
  ours = found.program((Choice(decisions=share.decisions),)).lower().compile()
  by_hand = make_step(saving(*names)).lower(*args).compile()
  assert temp_bytes(ours) == temp_bytes(by_hand) and num_dots(ours) == num_dots(by_hand)
  assert "rematted_computation" in ours.as_text()
  assert_same_bits(ours(*args), by_hand(*args))


def test_replaced_inside_the_loop_with_gradients_as_they_were():
  step, plain = make_step(), make_step(wrap=None)
  applied = planned().apply(step)
  compiled, reference = (each.lower(*arguments()).compile() for each in (applied, plain))
  assert num_dots(compiled) > num_dots(reference) and "rematted_computation" in compiled.as_text()
  assert temp_bytes(compiled) == planned().measured.temp_bytes <= BUDGET < temp_bytes(reference)
  assert_close(compiled(*arguments()), reference(*arguments()))


@pytest.mark.sweep
def test_where_everything_fits_checkpoints_are_dropped_without_a_warning():
  step = make_step()
  plan = plan_by_policy(step, *arguments(), budget="1GiB")
  assert plan.engine == "none" and plan.fits and plan.names[0].keeps_all
  assert bytes_of(plan.apply(step)) == plan.baseline.temp_bytes > BUDGET
  assert flops_of(plan.apply(step)) == plain_flops()


@pytest.mark.sweep
def test_kept_checkpoints_are_the_users():
  step = make_step(saving("query", "up"))
  with pytest.warns(coopjax.RematNoEffectWarning, match="within the budget of 4.77 MiB as it is"):
    plan = coopjax.plan(step, *arguments(), budget=5_000_000, existing="keep", effort="fast")
  assert plan.baseline.temp_bytes == plan.measured.temp_bytes == bytes_of(step) == bytes_of(plan.apply(step))
  advice = "train_step has none but those that existing='keep' leaves alone: existing='replace' has them planned"
  with pytest.raises(coopjax.NoRegionsError, match=advice):
    plan_by_policy(step, *arguments(), budget=1_000_000, existing="keep")
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(step, *arguments(), budget=0.01, existing="keep", effort="fast")
  (told,) = (note for note in caught.value.__notes__ if "HLO engine alone" in note)
  assert told.endswith(advice) and caught.value.budget_bytes == int(0.01 * bytes_of(step))
  asked = f"within the budget of {format_bytes(caught.value.budget_bytes)}, 0.01 of the un-rematerialized temporaries"
  assert asked in str(caught.value)


@pytest.mark.sweep
def test_at_least_what_a_policy_saves():
  step = make_step(saving("query"))
  plan = plan_by_policy(step, *arguments(), budget=BUDGET, existing="at_least")
  (names,) = plan.names
  assert "query" in names.saved and plan.existing == "at_least"
  assert bytes_of(plan.apply(step)) == plan.measured.temp_bytes <= BUDGET
  assert planned().recompute_flops <= plan.recompute_flops


@pytest.mark.sweep
def test_a_saved_plan_is_carried_out_in_another_process_on_unchanged_code(tmp_path):
  step, path = make_step(), tmp_path / "plan.json"
  plan = planned()
  plan.save(path)
  code = (
    "import sys, coopjax\n"
    "from tests.support.checkpointed_steps import bytes_of, make_step\n"
    f"with coopjax.enable(plan=coopjax.RematPlan.load({str(path)!r})):\n"
    "  enabled = bytes_of(make_step())\n"
    "print(enabled, bytes_of(make_step()))\n"
  )
  found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
  assert list(map(int, found.split())) == [plan.measured.temp_bytes, bytes_of(step)]


def test_an_enabled_plan_leaves_evaluations_alone_and_refuses_other_steps():
  step = make_step()
  plan = planned()
  (stacks,), _, x = arguments()
  other = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), stacks)
  loss = functools.partial(hand_rungs.loss, wrapped=jax.checkpoint(hand_rungs.layer))
  expected = jax.jit(loss)([other], x)
  with coopjax.enable(plan=plan):
    assert bytes_of(make_step()) == plan.measured.temp_bytes
    assert_close(jax.jit(lambda *args: loss(*args))([other], x), expected)
    with pytest.raises(coopjax.PlanMismatchError, match="train_step has no remat region layer"):
      jax.jit(jax.grad(lambda *args: loss(*args)))([other], x)
  with pytest.raises(TypeError, match="either budget= or plan="):
    coopjax.enable("1GiB", plan=plan)
  with pytest.raises(coopjax.PlanMismatchError, match="train_step has no remat region layer"):
    plan.apply(step)([other], arguments()[1], x)


WIDTH, DEPTH = 64, 3
X = models.normal(1, 256, WIDTH)


def linen_loss():
  class Block(linen.Module):
    @linen.compact
    def __call__(self, x):
      return x + linen.Dense(WIDTH)(jnp.sin(linen.Dense(4 * WIDTH)(x)))

  class Model(linen.Module):
    @linen.compact
    def __call__(self, x):
      for _ in range(DEPTH):
        x = linen.remat(Block)()(x)
      return jnp.mean(x**2)

  model = Model()
  return model.init(jax.random.key(0), X), model.apply


def nnx_loss():
  class Block(nnx.Module):
    def __init__(self, rngs):
      self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    @nnx.remat
    def __call__(self, x):
      return x + self.down(jnp.sin(self.up(x)))

  graph, params = nnx.split(nnx.List([Block(nnx.Rngs(i)) for i in range(DEPTH)]))

  def loss(params, x):
    for block in nnx.merge(graph, params):
      x = block(x)
    return jnp.mean(x**2)

  return params, loss


def equinox_loss():
  blocks = [eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jnp.sin, key=jax.random.key(i)) for i in range(DEPTH)]
  arrays, static = eqx.partition(blocks, eqx.is_array)

  def loss(arrays, x):
    for block in eqx.combine(arrays, static):
      x = x + eqx.filter_checkpoint(lambda block, x: jax.vmap(block)(x))(block, x)
    return jnp.mean(x**2)

  return arrays, loss


def nested_loss():
  block = jax.checkpoint(lambda x, w: x + jnp.sin(x @ w[0]) @ w[1])
  weights = [(models.normal(i, WIDTH, 4 * WIDTH), models.normal(i, 4 * WIDTH, WIDTH)) for i in range(DEPTH)]

  @functools.partial(jax.checkpoint, static_argnums=2)
  def blocks(x, weights, count):
    for w in weights[:count]:
      x = block(x, w)
    return x

  return weights, lambda weights, x: jnp.mean(blocks(x, weights, DEPTH) ** 2)


@pytest.mark.parametrize(
  "library, num_regions",
  [
    (linen_loss, None),
    pytest.param(nnx_loss, 1, marks=pytest.mark.sweep),
    pytest.param(equinox_loss, 1, marks=pytest.mark.sweep),
    (nested_loss, 1),
  ],
)
def test_what_libraries_wrap_is_a_region(library, num_regions):
  params, loss = library()

  @jax.jit
  def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value

  plan = plan_by_policy(step, params, X, budget=0.7)
  assert plan.fits and bytes_of(plan.apply(step), params, X) == plan.measured.temp_bytes < plan.baseline.temp_bytes
  assert [region.num_runs for region in plan.regions] == [1 if library is nested_loss else DEPTH]
  assert_close(plan.apply(step)(params, X), step(params, X))


def test_the_newer_form_of_checkpoints_is_heard():
  flops = flops_of(planned().apply(make_step()))
  with flags(jax_remat3=True):
    found = steps.find_step(make_step(), arguments(), {})
    assert found is not None and [member.num_runs for member in found.members] == [hand_rungs.LAYERS]
    assert flops_of(planned().apply(make_step())) == flops


def test_what_is_none_is_refused():
  with pytest.raises(ValueError, match="existing='drop': one of replace, keep, at_least"):
    coopjax.plan(make_step(), *arguments(), budget=0.5, existing="drop")
