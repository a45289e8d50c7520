"""Tracing, and the tags and marks that equations carry into the compiled program."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax.errors import NotDifferentiableError
from coopjax.jaxpr.arguments import split_arguments
from coopjax.jaxpr.tags import Tag, parse_tag, tag_jaxpr, tagged_fn
from coopjax.jaxpr.trace import fn_and_gradient, trace
from coopjax.xla.compile import compile_abstract
from tests.support import models
from tests.support.checks import assert_close, assert_same_bits, temp_bytes
from tests.support.policy_models import scaled_norm


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
  assert seen[0][0] == (True, False)  # what `outer` is differentiated by


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


@pytest.mark.parametrize(
  ("fn", "args"),
  [
    (lambda n: n + 1, (3,)),
    (lambda: jnp.float32(1.0), ()),
    (lambda x: jnp.argmax(x), (np.ones(4, np.float32),)),
  ],
)
def test_nothing_to_differentiate(fn, args):
  with pytest.raises(NotDifferentiableError, match="floating-point"):
    fn_and_gradient(trace(fn, args))


def busy(weights, x):
  """A scan over a user's checkpoint, a branch, custom rules and plain code."""

  def body(x, weight):
    return jax.checkpoint(lambda x: jax.nn.gelu(scaled_norm(jax.nn.silu(x)) @ weight))(x), None

  x, _ = jax.lax.scan(body, x, weights)
  x = jax.lax.cond(x.sum() > 0, lambda x: scaled_norm(x) @ weights[0], jnp.exp, x)
  return jnp.sum(scaled_norm(jax.nn.relu(x @ weights[1])))


BUSY_ARGS = (models.normal(1, 3, 32, 32), jnp.ones((32, 32)))


@pytest.mark.parametrize("remat3", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_tags_and_marks_reach_the_compiled_program(remat3):
  jax.config.update("jax_remat3", remat3)
  try:
    traced = trace(busy, BUSY_ARGS)
    _, table = tag_jaxpr(traced.jaxpr)
    plain, avals = fn_and_gradient(traced)
    # Twice from one trace: JAX remembers the trace of a custom rule together with the first mark.
    for mark in ("first", "second"):
      tagged, _ = fn_and_gradient(traced, tagged_fn(traced, mark))
      compiled = jax.jit(tagged).lower(*avals).compile()  # as a user compiles: its bits are compared
      lines = [line for line in compiled.as_text().splitlines() if "op_name=" in line]
      marked = [line for line in lines if f'coopjax="{mark}"' in line]
      assert not [line for line in lines if "coopjax=" in line and line not in marked]
      tags = [parse_tag(re.search(r'op_name="([^"]*)"', line)[1]) for line in marked]
      primitives = {table[tag.equation_id].primitive for tag in tags}
      assert {"dot_general", "custom_vjp_call", "custom_jvp_call"} <= primitives
      assert {tag.is_backward for tag in tags} == {False, True} and any(tag.is_recomputed for tag in tags)
      dots = [line for line in lines if " dot(" in line]
      assert dots and all(line in marked for line in dots)
      assert_same_bits(compiled(*BUSY_ARGS), jax.jit(plain)(*BUSY_ARGS))
  finally:
    jax.config.update("jax_remat3", False)


def test_of_a_name_made_of_many_the_tag_is_that_of_what_runs_last():
  backward = [f"transpose(jvp(coop{i}))/dot_general" for i in (31, 12, 40)]
  forward = [f"jvp(coop{i})/reduce_sum" for i in (3, 50)]
  tag_of = lambda parts: parse_tag(f"jit(f)/({':'.join(parts)})")
  assert tag_of([forward[1], *backward]) == parse_tag(backward[1]) == Tag(12, is_backward=True, is_recomputed=False)
  assert tag_of(forward) == Tag(50, is_backward=False, is_recomputed=False) == tag_of([*forward, "sharding"])
  assert parse_tag("jit(f)/(copy:copy)") is None
  # A colon of the user's is none of XLA's.
  assert parse_tag("jit(f)/jvp(coop3)/layer:1/coop7/mul") == Tag(7, is_backward=False, is_recomputed=False)


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


@pytest.mark.parametrize(
  "call, what",
  [
    (lambda fn, x: jax.jit(coopjax.remat(fn, budget=0.5))(x, True), r"leaves\[1\] is args\[1\] of scaled"),
    (
      lambda fn, x: jax.jit(coopjax.remat(fn, budget=0.5))(x, is_large=True),
      r"leaves\[1\] is kwargs\['is_large'\] of scaled",
    ),
    (lambda fn, x: coopjax.plan(fn, x, True, budget=0.5), "arguments of scaled"),
  ],
)
def test_flags_that_are_not_static_are_explained(call, what):
  def scaled(x, is_large):
    return (3.0 * x if is_large else x).sum()

  with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
    call(scaled, jnp.ones(4))
  (note,) = [note for note in caught.value.__notes__ if "static_argnums" in note]
  assert re.search(what, note) and "functools.partial" in note
