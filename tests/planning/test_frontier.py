"""Frontiers: every point's bytes are a compiled program's, budgets hold, more memory never costs more."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.planning import baseline, by_hand
from coopjax.planning.trials import Trials
from coopjax.xla import targets
from coopjax.xla.compile import compile_abstract, measure
from tests.support import models


def loss(weights, x):
  for i, weight in enumerate(weights):
    with jax.named_scope(f"block_{i}"):
      x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


WEIGHTS, X = [models.normal(i, 64, 64) for i in range(6)], models.normal(99, 256, 64)


def compiled(fn):
  return jax.jit(jax.value_and_grad(fn, argnums=(0, 1))).lower(WEIGHTS, X).compile()


@pytest.fixture(scope="module")
def captures():
  return []


@pytest.fixture(scope="module")
def found(captures):
  patch = pytest.MonkeyPatch()
  for name in ("capture", "observe"):
    original = getattr(baseline.hook, name)
    patch.setattr(baseline.hook, name, lambda *args, original=original: captures.append(1) or original(*args))
  yield coopjax.frontier(loss, WEIGHTS, X)
  patch.undo()


def test_points_are_monotone_hold_their_budgets_and_end_at_the_least(found):
  temps, extra = ([getattr(point, name) for point in found.points] for name in ("temp_bytes", "extra_compute"))
  assert temps == sorted(temps, reverse=True) and extra == sorted(extra) and len(set(temps)) >= 3
  assert all(point.temp_bytes <= point.budget_bytes for point in found.points)
  assert found.points[-1].name == "least" and "out of reach" in dict(found.omitted).popitem()[1]


def test_the_program_is_captured_once_for_all_budgets(found, captures):
  assert len(found.points) >= 4 and len(captures) == 1


def test_a_point_is_a_compiled_program_with_the_same_gradients(found):
  plain = compiled(loss)
  point = next(point for point in found.points if point.name == "50%")
  fitted = compiled(point.plan.apply(loss))
  assert fitted.memory_analysis().temp_size_in_bytes == point.temp_bytes <= point.budget_bytes
  assert point.budget_bytes == plain.memory_analysis().temp_size_in_bytes // 2
  dots = lambda program: program.as_text().count(" dot(")
  assert point.recompute_flops > 0 and dots(fitted) > dots(plain)
  jax.tree.map(np.testing.assert_array_equal, fitted(WEIGHTS, X), plain(WEIGHTS, X))


def test_references_are_what_a_user_would_write(found):
  def layered(weights, x):
    for weight in weights:
      x = jax.checkpoint(lambda x, weight: jnp.tanh(x @ weight))(x, weight)
    return jnp.mean(x**2)

  dots = jax.checkpoint(loss, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
  written = {
    "no remat": loss,
    "checkpoint": jax.checkpoint(loss),
    "dots saveable": dots,
    "checkpoint per layer": layered,
  }
  assert [point.name for point in found.references] == list(written)
  for point, fn in zip(found.references, written.values(), strict=True):
    assert point.temp_bytes == compiled(fn).memory_analysis().temp_size_in_bytes, point.name
  plain, whole, *_ = found.references
  assert plain.extra_compute == 0 < whole.extra_compute and whole.recompute_flops > 0


def test_layers_are_scans_and_the_largest_family_of_numbered_scopes():
  def nested(weights, x):
    with jax.named_scope("stem_0"):
      x = x * 2.0
    for i, weight in enumerate(weights):
      with jax.named_scope(f"encoder/block_{i}"):
        for part in range(2):
          with jax.named_scope(f"dense_{part}"):
            x = jnp.tanh(x @ weight)
    return x.sum()

  (region,) = by_hand.per_layer(trace(nested, (WEIGHTS, X))).decisions.regions
  assert [segment.is_wrapped for segment in region.segments] == [False] + [True] * len(WEIGHTS) + [False]
  scanned, params, ids = models.gpt(scan=True)
  (region,) = by_hand.per_layer(trace(scanned, (params, ids))).decisions.regions
  assert region.equation_id is not None and all(segment.is_wrapped for segment in region.segments)
  unnamed, *arguments = models.mlp(depth=3)
  assert by_hand.per_layer(trace(unnamed, arguments)) is None


def test_a_step_is_divided_between_its_regions_within_totals():
  optimizer = optax.sgd(0.1)

  @jax.jit
  def step(weights, state, x):
    value, grads = jax.value_and_grad(coopjax.remat(loss, budget=0.5))(weights, x)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(weights, updates), state, value

  arguments = WEIGHTS, optimizer.init(WEIGHTS), X
  plain = coopjax.frontier(step, *arguments, budgets=[1.0])
  total = coopjax.Budget.total(plain.points[0].total_bytes - 2**17)
  (point,) = coopjax.frontier(step, *arguments, budgets=[total], planner="peak").points
  assert point.total_bytes <= total.limit_bytes and "in total" in point.name
  fitted = point.plan.apply(step).lower(*arguments).compile()
  assert fitted.memory_analysis().temp_size_in_bytes == point.temp_bytes
  assert [reference.name for reference in plain.references][-1] == "checkpoint per layer"


@pytest.mark.sweep
def test_a_point_is_what_plan_gives_and_repeats_no_more_than_what_is_done_by_hand():
  def loss(stack, x):
    layer = jax.checkpoint(lambda x, weight: x + jax.nn.gelu(x @ weight) @ weight.T, prevent_cse=False)
    return jnp.mean(jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, stack)[0] ** 2)

  step, arguments = jax.jit(jax.value_and_grad(loss)), (models.normal(0, 4, 64, 256), X)
  found = coopjax.frontier(step, *arguments, budgets=[1.0, 0.75, 0.5, 0.3], effort="fast")
  layers = next(point for point in found.references if point.name == "checkpoint per layer")
  assert not found.omitted and layers.recompute_flops > 0
  assert layers.extra_compute == pytest.approx(
    layers.recompute_flops / flops_of(found.points[0].plan.apply(step), arguments)
  )
  assert len({point.temp_bytes for point in found.points}) > 2
  for point in found.points:
    alone = coopjax.plan(step, *arguments, budget=point.budget_bytes, effort="fast")
    assert point.recompute_flops <= alone.recompute_flops and point.extra_compute <= alone.overhead
    assert (point.recompute_flops, point.extra_compute) == (point.plan.recompute_flops, point.plan.overhead)
    for other in (*found.references, *found.points):
      assert other.temp_bytes > point.budget_bytes or point.recompute_flops <= other.recompute_flops + 1


def flops_of(step, arguments):
  return cost.jaxpr_flops(compat.dce(jax.make_jaxpr(step)(*arguments)))


def test_no_two_points_of_a_step_compile_the_same(monkeypatch):
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")  # nothing is kept
  compiles, compile_trial = [], Trials.compile

  def counted(self, program, *args, whole=False, **options):
    compiles.append((program.directions.digest, whole))
    return compile_trial(self, program, *args, whole=whole, **options)

  monkeypatch.setattr(Trials, "compile", counted)
  layer = jax.checkpoint(lambda x, weight: jnp.sin(jnp.tanh(x @ weight) @ weight))
  scanned = lambda weights, x: jnp.mean(jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2)
  step, arguments = jax.jit(jax.grad(scanned)), (jnp.stack(WEIGHTS), X)
  points = coopjax.frontier(step, *arguments, budgets=[0.6, 1000], engine="policy").points
  assert [point.name for point in points] == ["60%", "least"] and len(set(compiles)) == len(compiles)
  alone = [coopjax.plan(step, *arguments, budget=point.budget_bytes, engine="policy") for point in points]
  assert [plan.regions for plan in alone] == [point.plan.regions for point in points]  # and bytes, for the whole step
  assert [plan.measured.temp_bytes for plan in alone] == [point.temp_bytes for point in points]


def test_what_is_shown_and_kept(found, tmp_path):
  table = found.table()
  assert all(point.name in table for point in (*found.points, *found.references)) and "out of reach" in table
  assert max(map(len, found.table(60).splitlines())) <= 60 < max(map(len, table.splitlines()))
  again = coopjax.Frontier.from_dict(json.loads(json.dumps(found.to_dict())))
  assert again == found and again.points[0].plan is None
  assert "<table>" in found._repr_html_() and "dots saveable" in found._repr_html_()
  axes = found.plot()
  assert {text.get_text() for text in axes.texts} >= {"50%"} and len(axes.get_lines()) == 5
  axes.figure.savefig(tmp_path / "frontier.svg")
  assert len(found.to_frame()) == len(found.points) + len(found.references)


def test_what_is_no_frontier_is_refused():
  with pytest.raises(ValueError, match="at least one budget"):
    coopjax.frontier(loss, WEIGHTS, X, budgets=[])
  with pytest.raises(coopjax.InvalidBudgetError):
    coopjax.frontier(loss, WEIGHTS, X, budgets=[2.0])
  damaged = {"coopjax_frontier": 1, "name": "loss", "target": None, "points": [{"name": "50%", "temp_bytes": "few"}]}
  for fields, message in (
    ({}, "not a coopjax frontier"),
    ({"coopjax_frontier": 9}, "format 9"),
    (damaged, r"points\[0\]\.temp_bytes is 'few', not a whole number"),
  ):
    with pytest.raises(coopjax.InvalidPlanError, match=message):
      coopjax.Frontier.from_dict(fields)


@pytest.mark.targets
@pytest.mark.parametrize("target", ["gpu:h100", "tpu:v5e:2x2"])
def test_hardware_that_is_not_there(target):
  shapes = jax.eval_shape(lambda: WEIGHTS), jax.ShapeDtypeStruct((2**18, 64), jnp.float32)
  found = coopjax.frontier(loss, *shapes, budgets=[0.7], planner="peak", target=target)
  (point,), (plain, *_, layered) = found.points, found.references
  assert point.temp_bytes <= point.budget_bytes == int(0.7 * plain.temp_bytes) and found.target == target
  # Seconds may be fewer: what is not saved is not moved.
  assert plain.extra_compute == 0 and point.recompute_flops > 0 < layered.recompute_flops
  assert layered.name == "checkpoint per layer" and not found.omitted
  assert found.is_drafted == point.plan.is_drafted == target.startswith("tpu")
  assert ("drafted" in found.table()) == ("drafted" in point.plan.explain()) == found.is_drafted
  assert coopjax.Frontier.from_dict(found.to_dict()).is_drafted == found.is_drafted
  if found.is_drafted:  # within a percent of what the executable says
    fitted = fn_and_gradient(differentiable(trace(point.plan.apply(loss), shapes)))
    measured = measure(compile_abstract(*fitted, targets.resolve(target)))
    assert point.temp_bytes == pytest.approx(measured.temp_bytes, rel=0.01)


def test_a_step_keeps_its_checkpoints_or_is_planned_by_its_names_alone_as_by_plan():
  def layer(x, weight):
    return jnp.tanh(checkpoint_name(jnp.sin(x @ weight), "sine") @ weight), None

  def step_under(policy):
    loss = lambda stack, x: jnp.mean(jax.lax.scan(jax.checkpoint(layer, policy=policy), x, stack)[0] ** 2)
    return jax.jit(jax.value_and_grad(loss))

  arguments = models.normal(0, 6, 64, 64), X
  bytes_of = lambda step: step.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
  bare, named = step_under(None), step_under(jax.checkpoint_policies.save_only_these_names("sine"))
  found = coopjax.frontier(bare, *arguments, budgets=[1.0], existing="keep")
  assert found.points[0].temp_bytes == bytes_of(bare) and not found.points[0].recompute_flops
  found = coopjax.frontier(bare, *arguments, budgets=[bytes_of(named)], names_only=True)
  assert found.points[0].temp_bytes <= bytes_of(named)
  assert found.points[0].plan.to_jax() == 'policy = jax.checkpoint_policies.save_only_these_names("sine")'
  with pytest.raises(ValueError, match="existing='all'"):
    coopjax.frontier(bare, *arguments, existing="all")
