"""Plans as policies over names: pasted into the step, the bytes are the plan's; what names can't say is told."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import yaml
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax.planning import policy_names
from coopjax.planning.policy_names import RegionNames
from tests.support import hand_rungs
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

NAMES = ("query", "key", "value", "context", "out", "up")


def test_pasted_into_the_step_the_policy_is_the_plan():
  plan = planned(names_only=True)
  pasted = make_step(plan.checkpoint_policy())
  assert bytes_of(pasted) == plan.measured.temp_bytes == bytes_of(plan.apply(make_step())) <= BUDGET
  assert flops_of(pasted) == flops_of(plan.apply(make_step())) > plain_flops()
  (names,) = plan.names
  assert names.region == "layer" and not names.beyond and {*names.saved, *names.recomputed} == {*NAMES}


def test_it_is_the_best_that_names_can_say():
  """Of all 64 sets of names, none that holds the budget repeats less; the larger ones take more in this program."""
  plan = planned(names_only=True)
  repeated = flops_of(make_step(plan.checkpoint_policy()))
  for names in ({"query", "up", "context"}, {"out", "up"}, {"query", "key", "value"}, {"context", "key", "up"}):
    step = make_step(saving(*names))
    assert flops_of(step) >= repeated or bytes_of(step) > BUDGET


def encoder_layer(x, weights):
  x = x + jnp.tanh(checkpoint_name(x @ weights["query"], "mixed")) @ weights["key"]
  return x + checkpoint_name(x @ weights["out"], "out")


def decoder_layer(x, weights):
  up = checkpoint_name(x @ weights["up"], "up")
  return x + jnp.tanh(checkpoint_name(jax.nn.silu(up) @ weights["down"], "out"))


def test_one_policy_saves_names_of_several_stacks_of_layers():
  """Which share no name, or share one that only one of them needs."""

  def make_step(policy=jax.checkpoint_policies.nothing_saveable):
    encoder, decoder = (jax.checkpoint(f, policy=policy, prevent_cse=False) for f in (encoder_layer, decoder_layer))

    def loss(stacks, x):
      x, _ = jax.lax.scan(lambda x, weights: (encoder(x, weights), None), x, stacks[0])
      x, _ = jax.lax.scan(lambda x, weights: (decoder(x, weights), None), x, stacks[1])
      return (x**2).mean()

    return jax.jit(lambda stacks, x: jax.grad(loss)(stacks, x))

  args, best = hand_rungs.arguments(2), saving("mixed", "out", "up")
  budget = bytes_of(make_step(best), *args)
  plan = coopjax.plan(make_step(), *args, budget=budget, names_only=True)
  encoder, decoder = plan.names
  assert set(encoder.saved) == {"mixed", "out"} and set(decoder.saved) == {"out", "up"}
  pasted = make_step(plan.checkpoint_policy())
  assert bytes_of(pasted, *args) == plan.measured.temp_bytes <= budget
  assert flops_of(pasted, *args) == flops_of(make_step(best), *args)


@pytest.mark.sweep
def test_what_names_cannot_say_is_listed_with_its_worth():
  share, asked = 0.55, {"engine": "policy"}
  plan = coopjax.plan(make_step(), *arguments(), budget=share, **asked)
  (names,) = plan.names
  assert any("saved without a name: float32[4,4,64,1] of " in line for line in names.beyond)
  assert "what has no name spares " in names.beyond[-1]
  assert "# Names can't say all" in plan.to_jax() and "names_only=True" in plan.to_maxtext()
  named = coopjax.plan(make_step(), *arguments(), budget=share, names_only=True, **asked)
  assert plan.recompute_flops <= named.recompute_flops


def test_names_of_what_loops_inside_a_region_save():
  args = hand_rungs.arguments(1)
  step = lambda stacks, x: jax.grad(jax.checkpoint(hand_rungs.loss))(stacks, x)
  plan = coopjax.plan(jax.jit(step), *args, budget=0.4, engine="policy")
  (region,), (names,) = plan.regions[0].policy.regions, plan.names
  equations = jax.make_jaxpr(hand_rungs.layer)(args[1], jax.tree.map(lambda leaf: leaf[0], args[0][0])).jaxpr.eqns
  kept = {equation.params["name"] for equation in equations if equation.primitive.name == "name"} - {*names.recomputed}
  assert region.equation_id is not None and set(names.saved) == kept != set()
  num_unnamed = sum("saved without a name" in line for line in names.beyond)
  assert len(names.saved) + num_unnamed == sum(len(leaf.saved) for leaf, _ in region.leaves)


def test_the_policy_survives_a_file(tmp_path):
  plan = planned(names_only=True)
  plan.save(tmp_path / "plan.json")
  loaded = coopjax.RematPlan.load(tmp_path / "plan.json")
  assert loaded == plan and loaded.names == plan.names
  assert bytes_of(make_step(loaded.checkpoint_policy())) == plan.measured.temp_bytes


SAVED = RegionNames("layer", saved=("out",), recomputed=("up",))
OFFLOADED = RegionNames("layer", saved=("out",), offloaded=("context",), recomputed=("up",))


def test_checkpoints_that_are_kept_say_nothing_of_names():
  with pytest.warns(coopjax.RematNoEffectWarning):
    plan = planned(budget=1.0, existing="keep", engine="auto")
  assert plan.engine == "none" and plan.names == ()
  with pytest.raises(coopjax.PolicyNamesError, match="no region in the plan"):
    plan.to_jax()


def test_formats():
  assert policy_names.to_jax(SAVED) == 'policy = jax.checkpoint_policies.save_only_these_names("out")'
  assert policy_names.to_maxtext(OFFLOADED).splitlines() == [
    "remat_policy: 'custom'",
    "out: 'device'",
    "context: 'offload'",
    "up: 'remat'",
  ]
  assert policy_names.to_haliax(OFFLOADED).splitlines() == [
    "gradient_checkpointing:",
    "  save_carries: true",
    "  save_block_internals: [out]",
    "  offload_block_internals: [context]",
  ]
  told = eval(policy_names.to_jax(OFFLOADED).removeprefix("policy = "), {"jax": jax})
  equation = jax.make_jaxpr(lambda x: checkpoint_name(x, "context"))(1.0).eqns[0]
  for policy in (told, policy_names.checkpoint_policy(OFFLOADED)):
    assert policy(equation.primitive, **equation.params).dst == "pinned_host"


@pytest.mark.parametrize(
  "name",
  [
    'a"b',
    "it's",
    r"c:\new",
    "x: y",
    "- d",
    "up #c",
    "a, b]",
    "esc\x1b[31m",
    "new\nline",
    "\x85\ud800",
    "null",
    "On",
    "1",
    "",
  ],
)
def test_any_name_is_read_back_from_what_is_written(name):
  saved, offloaded = RegionNames("layer", saved=(name,)), RegionNames("layer", saved=("out",), offloaded=(name,))
  assert yaml.safe_load(policy_names.to_maxtext(saved)) == {"remat_policy": "custom", name: "device"}
  read = yaml.safe_load(policy_names.to_haliax(offloaded))["gradient_checkpointing"]
  assert read == {"save_carries": True, "save_block_internals": ["out"], "offload_block_internals": [name]}
  equation = jax.make_jaxpr(lambda x: checkpoint_name(x, name))(1.0).eqns[0]
  for names in (saved, offloaded):
    written = policy_names.to_jax(names)
    policy = eval(written.removeprefix("policy = "), {"jax": jax})
    assert policy(equation.primitive, **equation.params) and written.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["größe", "mlp/up.0", "attention-out", "_x1", "nothing"])
def test_usual_names_stand_bare_in_yaml(name):
  assert f"\n{name}: 'device'" in policy_names.to_maxtext(RegionNames("layer", saved=(name,)))
  assert f"[{name}]" in policy_names.to_haliax(RegionNames("layer", saved=(name,)))


def test_what_is_told_of_a_plan_stays_in_comments():
  told = policy_names.to_jax(dataclasses.replace(SAVED, beyond=("saved without a name, of my\nfile.py",)))
  assert r"#   saved without a name, of my\nfile.py" in told.splitlines()


def test_regions_that_disagree_have_policies_of_their_own():
  other = dataclasses.replace(SAVED, region="head", saved=(), recomputed=("out",))
  with pytest.raises(coopjax.PolicyNamesError, match="out is saved in layer and recomputed in head"):
    policy_names.the_one([SAVED, other])
  assert policy_names.the_one([SAVED, other], "head") == other
  with pytest.raises(coopjax.PolicyNamesError, match="no region tail in the plan; it has layer, head"):
    policy_names.the_one([SAVED, other], "tail")
  with pytest.raises(coopjax.PolicyNamesError, match="MaxText has no remat_policy that says so"):
    policy_names.to_maxtext(RegionNames("layer", keeps_all=True))


def test_names_only_asks_for_checkpoints_around_one_piece():
  with pytest.raises(ValueError, match="engine='hlo' does not make"):
    coopjax.plan(make_step(), *arguments(), budget=0.5, engine="hlo", names_only=True)

  @jax.jit
  def step(stacks, x):
    return jax.grad(jax.checkpoint(hand_rungs.loss))(stacks, x)

  stacks, _, x = arguments()
  with pytest.raises(coopjax.PolicyNamesError, match="loss has a loop inside"):
    coopjax.plan(step, stacks, x, budget=0.5, names_only=True)
