"""The jaxpr side: tracing, tags, segments, and the policy engine from plan to compiled bytes.

Gradients are compared with the original's, compiled temporaries with the budget, and the dots of the optimized HLO
are counted: a plan that recomputes must have more of them.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import re

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
import numpy as np
import pytest

from coopjax.errors import NotDifferentiableError, PlanMismatchError
from coopjax.jaxpr.policy import plan_policy
from coopjax.jaxpr.residuals import ForwardGraph, forward_graph
from coopjax.jaxpr.rewrite import PolicyDecisions, Region, describe, rewrite
from coopjax.jaxpr.segments import Segment, bytes_between, cut, save_curve
from coopjax.jaxpr.tags import parse_tag, tag_jaxpr, tagged_fn
from coopjax.jaxpr.trace import fn_and_gradient, split_arguments, trace
from coopjax.xla.compile import compile_abstract
from tests import models


def temp_bytes(compiled):
  return compiled.memory_analysis().temp_size_in_bytes


def num_dots(compiled):
  return compiled.as_text().count(" dot(")


def assert_close(actual, expected):
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=2e-4, atol=2e-6)


def call_with(traced, flat_fn):
  """The user's function with another flat function inside."""
  return lambda *args: traced.call(jax.tree.leaves(args), flat_fn)


# --- models -----------------------------------------------------------------------------------------------------


@jax.custom_vjp
def scaled_norm(x):
  return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _norm_forward(x):
  scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
  return x * scale, (x, scale)


def _norm_backward(residuals, ct):
  x, scale = residuals
  return (scale * (ct - x * scale**2 * (x * ct).mean(-1, keepdims=True)),)


scaled_norm.defvjp(_norm_forward, _norm_backward)


@jax.jit
def gated(x, up, gate):
  return jax.nn.silu(x @ gate) * jax.nn.relu(x @ up)


def block(weights, x, num_heads=2):
  """Attention and a gated MLP: nested jits, custom_jvp (silu, relu, softmax) and custom_vjp (the norm)."""
  batch, length, width = x.shape
  q, k, v = (part.reshape(batch, length, num_heads, -1).transpose(0, 2, 1, 3)
             for part in jnp.split(scaled_norm(x) @ weights["qkv"], 3, -1))
  scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), q @ k.transpose(0, 1, 3, 2) * 0.2, -1e9)
  mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
  x = x + mixed @ weights["out"]
  return x + gated(scaled_norm(x), weights["up"], weights["gate"]) @ weights["down"]


def decoder(depth=4, width=64, batch=8, length=64, form="unrolled"):
  """``(loss, params, ids)``; `form` is unrolled, scan or by_hand (a checkpoint around each block)."""
  blocks = [
    {"qkv": models.normal(5 * i, width, 3 * width), "out": models.normal(5 * i + 1, width, width),
     "up": models.normal(5 * i + 2, width, 2 * width), "gate": models.normal(5 * i + 3, width, 2 * width),
     "down": models.normal(5 * i + 4, 2 * width, width)} for i in range(depth)]
  params = {"embed": models.normal(99, models.VOCABULARY, width), "blocks": blocks}
  if form == "scan":
    params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)

  def loss(params, ids):
    x = params["embed"][ids]
    if form == "scan":
      x, _ = jax.lax.scan(lambda x, weights: (block(weights, x), None), x, params["blocks"])
    else:
      run = jax.checkpoint(block) if form == "by_hand" else block
      for weights in params["blocks"]:
        x = run(weights, x)
    return models.cross_entropy(x @ params["embed"].T, jnp.roll(ids, -1, 1))

  return loss, params, jax.random.randint(jax.random.key(7), (batch, length), 0, models.VOCABULARY)


def checkpointed_mlp(depth=24, width=64, batch=1024):
  """An MLP whose user already checkpoints pairs of layers and names a value in each."""
  def pair(first, second, x):
    return jnp.tanh(checkpoint_name(jnp.tanh(x @ first), "hidden") @ second)

  def loss(weights, x):
    for first, second in zip(weights[::2], weights[1::2], strict=True):
      x = jax.checkpoint(pair)(first, second, x)
    return jnp.mean(x**2)

  return loss, *models.mlp(depth, width, batch)[1:]


MODELS = {
  "mlp": functools.partial(models.mlp, depth=16), "unrolled": decoder, "scan": functools.partial(decoder, form="scan"),
  "checkpoint": checkpointed_mlp,
}


# --- tracing ----------------------------------------------------------------------------------------------------


class Affine:

  def __init__(self, weight):
    self.weight = weight

  def apply(self, x, scale, mode="double", bias=None):
    y = self.weight @ x * scale
    return {"y": 2 * y if mode == "double" else y, "bias": bias, "count": jnp.arange(3)}


def test_trace_covers_what_a_call_can_carry():
  model = Affine(jnp.eye(4))
  args, kwargs = (jnp.ones(4), 3.0), {"mode": "double", "bias": None}
  traced = trace(model.apply, args, kwargs, static_argnames="mode")
  split = split_arguments(model.apply, args, kwargs, static_argnames="mode")
  assert_close(traced.call(split.leaves), model.apply(*args, **kwargs))
  assert traced.name == "apply" and traced.in_names == ("closure[0]", "args[0]", "args[1]")
  assert [aval.weak_type for aval in traced.in_avals] == [False, False, True]  # a Python scalar stays weak
  assert traced.is_differentiable == (False, True, True)  # a concrete constant has no gradient
  assert trace(model.apply, (jax.ShapeDtypeStruct((4,), jnp.float32), 3.0)).in_avals == traced.in_avals
  by_position = trace(model.apply, (*args, "single"), static_argnums=2)
  assert_close(by_position.call(split.leaves), model.apply(*args, "single"))


def test_closed_over_tracers_become_inputs():
  seen = []

  def outer(weight, x):
    traced = trace(lambda x: jnp.sum(jnp.sin(weight @ x)), (x,))
    fn, avals = fn_and_gradient(traced)
    seen.append((traced.is_differentiable, temp_bytes(compile_abstract(fn, avals))))  # while `outer` is traced
    return traced.call([x], tagged_fn(traced))

  weight, x = models.normal(0, 8, 8), jnp.ones(8)
  actual = jax.jit(jax.grad(outer))(weight, x)
  assert_close(actual, jax.grad(lambda w, x: jnp.sum(jnp.sin(w @ x)))(weight, x))
  assert seen[0][0] == (True, True)


def test_fn_and_gradient_takes_cotangents_of_arrays_only():
  def fn(x, n, key):
    y = jnp.sin(x) * n + jax.random.normal(key, x.shape)
    return y.sum(), y, n + 1

  x, n, key = jnp.ones((3, 2)), 4, jax.random.key(0)
  with_gradient, avals = fn_and_gradient(trace(fn, (x, n, key)))
  assert [aval.shape for aval in avals] == [(3, 2), (), (), (3, 2)]
  (total, y, successor), (gradient,) = with_gradient(x, n, key, 2 * jnp.ones_like(x))
  assert_close((total, y, successor), fn(x, n, key))
  assert_close(gradient, 3 * 4 * jnp.cos(x))  # one from the sum, two from the array's cotangent


@pytest.mark.parametrize(("fn", "args"), [
  (lambda n: n + 1, (3,)), (lambda: jnp.float32(1.0), ()), (lambda x: jnp.argmax(x), (np.ones(4, np.float32),)),
])
def test_nothing_to_differentiate(fn, args):
  with pytest.raises(NotDifferentiableError, match="floating-point"):
    fn_and_gradient(trace(fn, args))


# --- tags and marks ---------------------------------------------------------------------------------------------


def busy(weights, x):
  """A scan over a user's checkpoint, a branch, custom rules and plain code."""
  def body(x, weight):
    return jax.checkpoint(lambda x: jax.nn.gelu(scaled_norm(jax.nn.silu(x)) @ weight))(x), None

  x, _ = jax.lax.scan(body, x, weights)
  x = jax.lax.cond(x.sum() > 0, lambda x: scaled_norm(x) @ weights[0], jnp.exp, x)
  return jnp.sum(scaled_norm(jax.nn.relu(x @ weights[1])))


BUSY_ARGS = (models.normal(1, 3, 32, 32), jnp.ones((32, 32)))


@pytest.mark.parametrize("remat3", [False, True])
def test_tags_and_marks_reach_the_compiled_program(remat3):
  jax.config.update("jax_remat3", remat3)
  try:
    traced = trace(busy, BUSY_ARGS)
    _, table = tag_jaxpr(traced.jaxpr)
    plain, avals = fn_and_gradient(traced)
    # Twice from one trace: JAX remembers the trace of a custom rule together with the first mark.
    for mark in ("first", "second"):
      tagged, _ = fn_and_gradient(traced, tagged_fn(traced, mark))
      compiled = compile_abstract(tagged, avals)
      lines = [line for line in compiled.as_text().splitlines() if "op_name=" in line]
      marked = [line for line in lines if f'coopjax="{mark}"' in line]
      assert not [line for line in lines if "coopjax=" in line and line not in marked]
      tags = [parse_tag(re.search(r'op_name="([^"]*)"', line)[1]) for line in marked]
      primitives = {table[tag.equation_id].primitive for tag in tags}
      assert {"dot_general", "custom_vjp_call", "custom_jvp_call"} <= primitives
      assert {tag.is_backward for tag in tags} == {False, True} and any(tag.is_recomputed for tag in tags)
      dots = [line for line in lines if " dot(" in line]
      assert dots and all(line in marked for line in dots)
      assert_bits(compiled(*BUSY_ARGS), jax.jit(plain)(*BUSY_ARGS))
  finally:
    jax.config.update("jax_remat3", False)


def assert_bits(actual, expected):
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(e))


def test_the_table_knows_source_lines_and_nesting():
  traced = trace(busy, BUSY_ARGS)
  jaxpr, table = tag_jaxpr(traced.jaxpr)
  lines, first = inspect.getsourcelines(busy)
  scan = next(info for info in table if info.primitive == "scan")
  assert scan.source.file == __file__ and lines[scan.source.line - first].strip().startswith("x, _ = jax.lax.scan")
  assert any(info.parent_id == scan.id for info in table)
  assert [info.id for info in table] == list(range(len(table)))
  assert len([info for info in table if info.parent_id is None]) == len(jaxpr.eqns)


def test_a_cached_jit_of_jax_gets_the_line_of_each_call():
  def loss(x):
    x = jnp.where(x > 0, jnp.sin(x), x)
    return jnp.where(x > 1, jnp.cos(x), x).sum()

  start = inspect.getsourcelines(loss)[1]
  traced = trace(loss, (jnp.ones(8),))
  for jaxpr in (traced.jaxpr, traced.inlined):
    lines = {info.source.line for info in tag_jaxpr(jaxpr)[1] if info.primitive == "select_n"}
    assert lines == {start + 1, start + 2}


# --- residuals and segments -------------------------------------------------------------------------------------


def mlp_graph(depth=4, width=8, batch=16):
  loss, weights, x = models.mlp(depth, width, batch)
  traced = trace(loss, (weights, x))
  return forward_graph(traced.jaxpr, traced.is_differentiable)


def test_residuals_of_an_mlp():
  # dot, tanh per layer; then square, sum, divide. Each tanh keeps its output (16 x 8 floats = 512 bytes), which
  # also serves the next dot; 1 - y^2 is made from it where it is read.
  graph = mlp_graph()
  assert graph.residual_bytes().tolist() == [0, 512] * 4 + [0, 0, 0]
  # Layers 1 and 2 repeated from layer 0's output: two dots of 2*16*8*8 and two tanh of 8*16*8 FLOPs; the rule of
  # tanh also makes 1 - y^2 (16*8 each).
  assert repeated_flops(graph, 2, 6) == 2 * 2048 + 2 * 1024 + 2 * 128
  # Keeping the first dot's output spares that dot alone: tanh reads its own result.
  saved = graph.named.index((2, 0))
  assert repeated_flops(graph, 2, 6, [saved]) == 2048 + 2 * 1024 + 2 * 128


def repeated_flops(graph, start, stop, saved=()):
  """The obvious version: walk back from the residuals, stop at what is saved or comes from outside."""
  inside = lambda value: start <= graph.value_position[value] < stop and value not in saved
  needed = set(filter(inside, graph.residuals))
  flops = 0.0
  for position in reversed(range(start, stop)):
    for op in reversed(graph.ops[position]):
      if needed & set(op.outputs):
        flops += op.flops
        needed |= set(filter(inside, op.inputs))
  return flops


def random_graph(rng, num):
  """A region whose position i makes value i; crossing values and residual bytes at random."""
  sizes = tuple(int(s) for s in rng.integers(1, 9, num))
  crossing = tuple((i, int(rng.integers(i + 1, num)), sizes[i]) for i in range(num - 1))
  residuals = frozenset(int(i) for i in np.flatnonzero(rng.random(num) < 0.7))
  return ForwardGraph(
    ops=((),) * num, value_bytes=sizes, value_root=tuple(range(num)), value_position=tuple(range(num)),
    named=(None,) * num, residuals=residuals, kept_roots=residuals, crossing=crossing, flops=(1.0,) * num)


@pytest.mark.parametrize("seed", range(20))
def test_cut_finds_the_fewest_bytes_between_segments(seed):
  graph = random_graph(np.random.default_rng(seed), 9)
  alone = frozenset({4}) if seed % 2 else frozenset()
  residuals = graph.residual_bytes()

  def largest(bounds):
    return max(residuals[a:b].sum() for a, b in zip(bounds, bounds[1:], strict=False))

  every = [(0, *inner, 9) for k in range(9) for inner in itertools.combinations(range(1, 9), k)]
  every = [bounds for bounds in every if all({p, p + 1} <= set(bounds) for p in alone)]
  found = cut(graph, alone)
  assert found
  for bounds in found:
    assert bounds in every
    best = min(bytes_between(graph, other).sum() for other in every if largest(other) <= largest(bounds))
    assert bytes_between(graph, bounds).sum() == best


def test_save_curve_spares_what_it_says_and_ends_with_nothing_repeated():
  loss, params, ids = decoder(depth=2)
  traced = trace(loss, (params, ids))
  graph = forward_graph(traced.jaxpr, traced.is_differentiable)
  curve = save_curve(graph, 0, graph.num_positions)
  assert curve[0].saved == () and curve[0].flops == repeated_flops(graph, 0, graph.num_positions)
  assert not curve[-1].is_wrapped and curve[-1].flops == 0
  for a, b in zip(curve, curve[1:], strict=False):
    assert a.saved_bytes < b.saved_bytes and a.flops > b.flops
  for point in curve[:-1]:
    saved = [graph.named.index(value) for value in point.saved]
    assert repeated_flops(graph, 0, graph.num_positions, saved) == pytest.approx(point.flops)
    assert sum(graph.value_bytes[value] for value in saved) == point.saved_bytes


# --- the policy engine ------------------------------------------------------------------------------------------


@functools.cache
def baseline(form):
  loss, *args = MODELS[form]()
  traced = trace(loss, args)
  fn, avals = fn_and_gradient(traced)
  return loss, tuple(args), traced, compile_abstract(fn, avals)


@pytest.mark.parametrize(("form", "share"), [
  ("mlp", 0.75), ("mlp", 0.5), ("unrolled", 0.6), ("unrolled", 0.3), ("scan", 0.6), ("scan", 0.35),
  ("checkpoint", 0.75)])
def test_a_plan_holds_its_budget_with_the_same_gradients(form, share):
  loss, args, traced, plain = baseline(form)
  budget = int(share * temp_bytes(plain))
  plan = plan_policy(traced, budget, compile_abstract, temp_bytes(plain))
  assert plan.is_feasible and plan.temp_bytes <= budget and 1 <= len(plan.rounds) <= 6
  assert plan.smallest_bytes <= plan.temp_bytes
  assert 0 < plan.recompute_flops < 1.5 * plan.forward_flops
  fn, avals = fn_and_gradient(traced, rewrite(traced, plan.decisions))
  compiled = compile_abstract(fn, avals)
  assert temp_bytes(compiled) == plan.temp_bytes
  assert "rematted_computation" in compiled.as_text()
  if share < 0.6:  # above, repeating elementwise work is enough
    assert num_dots(compiled) > num_dots(plain)
  # As the user calls it, with the gradients that were planned for: an output more is scratch space for XLA.
  with_gradient = functools.partial(jax.value_and_grad, argnums=(0, 1) if traced.is_differentiable[-1] else 0)
  step = jax.jit(with_gradient(call_with(traced, rewrite(traced, plan.decisions))))
  assert temp_bytes(step.lower(*args).compile()) <= budget
  assert_close(step(*args), jax.jit(with_gradient(loss))(*args))


def test_less_recompute_than_a_checkpoint_around_every_block_at_fewer_bytes():
  loss, args, traced, plain = baseline("unrolled")
  by_hand_loss, *_ = decoder(form="by_hand")
  by_hand = jax.jit(jax.value_and_grad(by_hand_loss)).lower(*args).compile()
  plan = plan_policy(traced, temp_bytes(by_hand), compile_abstract, temp_bytes(plain))
  fn, avals = fn_and_gradient(traced, rewrite(traced, plan.decisions))
  compiled = compile_abstract(fn, avals)
  assert plan.is_feasible and temp_bytes(compiled) <= temp_bytes(by_hand)
  assert compiled.cost_analysis()["flops"] < by_hand.cost_analysis()["flops"]


def test_nested_scans_and_only_scans():
  def loss(weights, x):
    def inner(x, weight):
      return jnp.tanh(x @ weight), None

    def outer(x, _):
      x, _ = jax.lax.scan(inner, x, weights)
      return jax.nn.gelu(x), None

    x, _ = jax.lax.scan(outer, jnp.sin(x), None, length=4)
    return jnp.mean(jnp.cos(x) ** 2)

  args = (models.normal(3, 4, 32, 32), models.normal(4, 256, 32))
  traced = trace(loss, args)
  fn, avals = fn_and_gradient(traced)
  plain = compile_abstract(fn, avals)
  plan = plan_policy(traced, int(0.6 * temp_bytes(plain)), compile_abstract, temp_bytes(plain), only_scans=True)
  assert plan.is_feasible and all(region.equation_id is not None for region in plan.decisions.regions)
  rewritten = call_with(traced, rewrite(traced, plan.decisions))
  assert_close(jax.jit(jax.value_and_grad(rewritten))(*args), jax.jit(jax.value_and_grad(loss))(*args))


def test_fits_as_it_is_and_out_of_reach():
  _, _, traced, plain = baseline("mlp")
  roomy = plan_policy(traced, temp_bytes(plain), compile_abstract, temp_bytes(plain))
  assert roomy.is_feasible and roomy.decisions == PolicyDecisions() and not roomy.rounds
  tight = plan_policy(traced, 1000, compile_abstract, temp_bytes(plain))
  assert not tight.is_feasible and 1000 < tight.smallest_bytes < temp_bytes(plain)
  assert tight.temp_bytes == tight.smallest_bytes


def mlp_decisions(traced):
  """Three wrapped segments of three layers, one saved value, and the rest as it is."""
  return PolicyDecisions((Region(None, (
    Segment(0, 6, True), Segment(6, 12, True, ((8, 0),)), Segment(12, 18, True),
    Segment(18, len(traced.jaxpr.eqns)))),))


@pytest.mark.parametrize("no_cotangents", [False, True])
@pytest.mark.parametrize("remat3", [False, True])
def test_holds_under_every_implementation_of_checkpoint(remat3, no_cotangents):
  loss, *args = models.mlp()
  jax.config.update("jax_remat3", remat3)
  jax.config.update("jax_remat_barrier_no_cotangents", no_cotangents)
  try:
    traced = trace(loss, args)
    plain = compile_abstract(*fn_and_gradient(traced))
    fn, avals = fn_and_gradient(traced, rewrite(traced, mlp_decisions(traced), mark="m"))
    compiled = compile_abstract(fn, avals)
    # 12 layers keep 12 outputs; segments keep 3 boundaries, one saved value and 3 outputs at a time, the rest too.
    assert temp_bytes(compiled) <= 0.85 * temp_bytes(plain)
    # Layers 0-2, 3, 5, 6-8 are repeated; that of the saved dot is not.
    assert num_dots(compiled) == num_dots(plain) + 8
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
  assert "coopjax/jaxpr/rewrite.py" not in text
  recomputed = [line for line in text.splitlines() if "rematted_computation" in line and " dot(" in line]
  assert recomputed and all('coopjax="m"' in line for line in recomputed)
  ids = {parse_tag(re.search(r'op_name="([^"]*)"', line)[1]).equation_id for line in recomputed}
  assert ids <= {0, 2, 4, 6, 10, 12, 14, 16}


def test_transformations_compose():
  loss, weights, x = models.mlp(depth=12, width=16, batch=32)
  traced = trace(loss, (weights, x))
  fn = call_with(traced, rewrite(traced, mlp_decisions(traced)))
  tangents = jax.tree.map(jnp.ones_like, (weights, x))
  for transform in (
      lambda f: f(weights, x),
      lambda f: jax.jit(f)(weights, x),
      lambda f: jax.value_and_grad(f, argnums=(0, 1))(weights, x),
      lambda f: jax.jvp(f, (weights, x), tangents),
      lambda f: jax.jvp(jax.grad(f), (weights, x), tangents),
      lambda f: jax.vmap(jax.jit(jax.grad(f)), in_axes=(None, 0))(weights, jnp.stack([x, 2 * x])),
      lambda f: jax.grad(lambda w: jax.vmap(lambda x: f(w, x))(jnp.stack([x, -x])).sum())(weights),
      lambda f: jax.lax.scan(
        lambda w, _: (jax.tree.map(jnp.subtract, w, jax.grad(f)(w, x)), None), weights, None, 2)[0],
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
  assert all(__file__ in value.source or models.__file__ in value.source for value in described)


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
