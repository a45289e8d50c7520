"""Decisions carried out: under every implementation of `jax.checkpoint` and every transformation, with their
sources.
"""

import dataclasses
import inspect
import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from coopjax import compat
from coopjax.errors import PlanMismatchError
from coopjax.jaxpr.tags import parse_tag
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.candidates import BY_HAND, Candidates
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.description import describe
from coopjax.policy_engine.likeness import likeness
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.search import plan_policy
from coopjax.xla.compile import compile_abstract
from tests.support import models, policy_models
from tests.support.checks import assert_close, num_dots, temp_bytes
from tests.support.policy_models import baseline, call_with


def mlp_decisions(traced):
  """Three wrapped segments of three layers, one saved value, and the rest as it is."""
  return PolicyDecisions(
    (
      Region(
        None,
        (
          Segment(0, 6, True),
          Segment(6, 12, True, ((8, 0),)),
          Segment(12, 18, True),
          Segment(18, len(traced.jaxpr.eqns)),
        ),
      ),
    )
  )


def nested_decisions(traced):
  """The same three segments, a checkpoint around the first two, and one around all."""
  first_two = Segment(0, 12, True, inner=(Segment(0, 6, True), Segment(6, 12)))
  return PolicyDecisions(
    (Region(None, (Segment(0, 18, True, inner=(first_two, Segment(12, 18))), Segment(18, len(traced.jaxpr.eqns)))),)
  )


@pytest.mark.parametrize("no_cotangents", [False, True])
@pytest.mark.parametrize("remat3", [False, True])
# 12 layers keep 12 outputs; segments keep 3 boundaries, one saved value and 3 outputs at a time, the rest too. Layers
# 0-2, 3, 5, 6-8 are repeated; that of the saved dot is not. Nested, 3 outputs at a time, but layers 3-5 twice more, 0-2
# thrice.
@pytest.mark.parametrize(("decide", "share", "more_dots"), [(mlp_decisions, 0.85, 8), (nested_decisions, 0.72, 18)])
def test_holds_under_every_implementation_of_checkpoint(decide, share, more_dots, remat3, no_cotangents):
  loss, *args = models.mlp()
  jax.config.update("jax_remat3", remat3)
  jax.config.update("jax_remat_barrier_no_cotangents", no_cotangents)
  try:
    traced = trace(loss, args)
    plain = compile_abstract(*fn_and_gradient(traced))
    fn, avals = fn_and_gradient(traced, rewrite(traced, decide(traced), mark="m"))
    compiled = compile_abstract(fn, avals)
    assert temp_bytes(compiled) <= share * temp_bytes(plain)
    assert num_dots(compiled) == num_dots(plain) + more_dots
    assert_close(compiled(*jax.tree.leaves(args)), plain(*jax.tree.leaves(args)))
  finally:
    jax.config.update("jax_remat3", False)
    jax.config.update("jax_remat_barrier_no_cotangents", False)


def test_source_lines_tags_and_mark_survive_the_rewrite():
  loss, *args = models.mlp()
  traced = trace(loss, args)
  fn, avals = fn_and_gradient(traced, rewrite(traced, mlp_decisions(traced), mark="m"))
  text = compile_abstract(fn, avals).as_text()
  lines, first = inspect.getsourcelines(models.mlp)
  tanh_line = first + next(i for i, line in enumerate(lines) if "jnp.tanh" in line)
  assert models.__file__ in text and re.search(rf"line={tanh_line}\b", text)
  assert "coopjax/policy_engine/rewrite.py" not in text
  recomputed = [line for line in text.splitlines() if "rematted_computation" in line and " dot(" in line]
  assert recomputed and all('coopjax="m"' in line for line in recomputed)
  ids = {parse_tag(re.search(r'op_name="([^"]*)"', line)[1]).equation_id for line in recomputed}
  assert ids <= {0, 2, 4, 6, 10, 12, 14, 16}


# The first and the third segment are alike; nested, no two checkpoints are.
@pytest.mark.parametrize(("decide", "num_spared"), [(mlp_decisions, 6), (nested_decisions, 0)])
def test_alike_segments_are_traced_once_to_the_same_program(decide, num_spared, monkeypatch):
  loss, *args = models.mlp()
  traced = trace(loss, args)
  bind, bound = compat.bind, []
  monkeypatch.setattr(compat, "bind", lambda equation, values: [bound.append(equation), bind(equation, values)][1])

  def compiled(alike):
    bound.clear()
    program = compile_abstract(*fn_and_gradient(traced, rewrite(traced, decide(traced), alike=alike)))
    unsaid = re.sub(
      r", metadata=\{[^}]*\}|, backend_config=\{.*\}|^FileNames[^%]*", "", program.as_text(), flags=re.MULTILINE
    )
    return unsaid, temp_bytes(program), len(bound)

  kept = {}
  (apart, apart_bytes, num_apart), *shared = compiled(None), compiled(kept), compiled(kept)
  assert all(program == apart and num_bytes == apart_bytes for program, num_bytes, _ in shared)
  # Another rewrite finds what the first one kept: only what is under no checkpoint is bound anew.
  assert [num for *_, num in shared] == [num_apart - num_spared, 9]


def test_segments_that_differ_are_no_alike():
  loss, *args = models.mlp()
  jaxpr = trace(loss, args).inlined
  same, saving, shifted = Segment(6, 12, True), Segment(6, 12, True, ((8, 0),)), Segment(7, 13, True)

  def of(segment):
    made = [var for equation in jaxpr.eqns[segment.start : segment.stop] for var in equation.outvars]
    read = [atom for equation in jaxpr.eqns[segment.start : segment.stop] for atom in equation.invars]
    invars = dict.fromkeys(atom for atom in read if isinstance(atom, core.Var) and atom not in made)
    return likeness(jaxpr, segment, list(invars), made[-1:])

  assert of(same) == of(Segment(12, 18, True)) != of(saving)
  assert of(shifted) != of(same) != of(dataclasses.replace(same, inner=(Segment(6, 9, True), Segment(9, 12))))


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_no_turn_changes_goes_into_a_loop_as_people_hand_it_to_a_layer(is_seen):
  """In the order in which it is a model's, not that in which a layer reads it; but effects may name inputs by place."""
  weights = {
    name: jax.random.normal(jax.random.key(place), (8, 8)) for place, name in enumerate(("down", "gate", "up"))
  }

  def loss(weights, x):
    def turn(x, _):
      if is_seen:
        jax.debug.callback(lambda x: None, x)
      return jnp.tanh(x @ weights["up"]) @ weights["down"] + x @ weights["gate"], None

    return jnp.sum(jax.lax.scan(turn, x, length=3)[0])

  args = weights, jnp.ones((4, 8))
  traced = trace(loss, args)
  found = Candidates(differentiable(traced), only_scans=False, planner=BY_HAND).found
  of_loop = next(each for each in found if each.has_loops and each.is_bare)
  rewritten = rewrite(traced, of_loop.decisions)
  jaxpr = jax.make_jaxpr(rewritten)(*jax.tree.leaves(args)).jaxpr
  (scan,) = (equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
  down, gate, up, _ = jaxpr.invars
  assert scan.invars[:3] == ([up, down, gate] if is_seen else [down, gate, up])
  assert_close(jax.grad(call_with(traced, rewritten))(*args), jax.grad(loss)(*args))


@pytest.mark.parametrize("decide", [pytest.param(mlp_decisions, marks=pytest.mark.sweep), nested_decisions])
def test_transformations_compose(decide):
  loss, weights, x = models.mlp(depth=12, width=16, batch=32)
  traced = trace(loss, (weights, x))
  fn = call_with(traced, rewrite(traced, decide(traced)))
  tangents = jax.tree.map(jnp.ones_like, (weights, x))
  for transform in (
    lambda f: f(weights, x),
    lambda f: jax.jit(f)(weights, x),
    lambda f: jax.value_and_grad(f, argnums=(0, 1))(weights, x),
    lambda f: jax.jvp(f, (weights, x), tangents),
    lambda f: jax.jvp(jax.grad(f), (weights, x), tangents),
    lambda f: jax.vmap(jax.jit(jax.grad(f)), in_axes=(None, 0))(weights, jnp.stack([x, 2 * x])),
    lambda f: jax.grad(lambda w: jax.vmap(lambda x: f(w, x))(jnp.stack([x, -x])).sum())(weights),
    lambda f: jax.lax.scan(lambda w, _: (jax.tree.map(jnp.subtract, w, jax.grad(f)(w, x)), None), weights, None, 2)[0],
    lambda f: jax.grad(jax.checkpoint(f))(weights, x),
  ):
    assert_close(transform(fn), transform(loss))


def test_decisions_are_described_with_their_source():
  _, _, traced, plain = baseline("scan")
  plan = plan_policy(traced, int(0.6 * temp_bytes(plain)), compile_abstract, temp_bytes(plain), max_rounds=1)
  described = describe(traced, plan.decisions)
  saved = [value for value in described if value.decision == "saved"]
  assert len(saved) == sum(len(segment.saved) for region in plan.decisions.regions for segment in region.segments)
  scores = next(value for value in described if value.type == "float32[8,2,64,64]")
  assert scores.num_bytes == 4 * 8 * 2 * 64 * 64 * 4  # of all four steps
  assert all(policy_models.__file__ in value.source or models.__file__ in value.source for value in described)


def test_decisions_are_values():
  _, _, traced, _ = baseline("mlp")
  decisions = mlp_decisions(traced)
  text = json.dumps(dataclasses.asdict(decisions))
  assert PolicyDecisions.from_json(json.loads(text)) == decisions
  assert hash(PolicyDecisions.from_json(json.loads(text))) == hash(decisions)
  with pytest.raises(PlanMismatchError, match="segments end"):
    rewrite(traced, PolicyDecisions((Region(None, (Segment(0, 3, True),)),)))(*traced.consts, *baseline("mlp")[1])
  with pytest.raises(PlanMismatchError, match="scan"):
    rewrite(traced, PolicyDecisions((Region(2, (Segment(0, 3, True),)),)))
