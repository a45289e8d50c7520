"""`coopjax.remat` wherever `jax.checkpoint` goes: kinds of functions times transformations.

All transformations of one kind are traced apart and compiled as one program, once under `jax.checkpoint` and once per
engine; then each one's numbers are compared, or the types of error with which both refuse. (What the compiler makes of
it, bytes and recompute, is in `test_transform_bytes`.)
"""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax.planning import choosing
from tests.support import ROOT, sweeps
from tests.support.checks import SQUEEZED, assert_same, flags
from tests.support.transform_kinds import KINDS, X

WRAPPERS = {
  "checkpoint": jax.checkpoint,
  "policy": functools.partial(coopjax.remat, engine="policy", **SQUEEZED),
  "hlo": functools.partial(coopjax.remat, engine="hlo", planner="peak", **SQUEEZED),
}


def floating(tree):
  return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]


def scalar(tree):
  """Depends smoothly on every floating leaf."""
  return sum(jnp.sum(jnp.sin(jnp.real(leaf)) + jnp.imag(leaf)).astype(jnp.float32) for leaf in floating(tree))


def loss(fn, rest):
  return lambda x: scalar(fn(x, *rest))


def outputs(fn, rest):
  return lambda x: floating(fn(x, *rest))


def stacked(x):
  return jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), x)


def tangent(x):
  return jax.tree.map(jnp.cos, x)


def vjp(fn, x, rest):
  outs, pullback = jax.vjp(outputs(fn, rest), x)
  return outs, pullback([jnp.cos(out) for out in outs])


def linearize(fn, x, rest):
  outs, pushforward = jax.linearize(outputs(fn, rest), x)
  return outs, pushforward(tangent(x)), jax.linear_transpose(pushforward, x)([jnp.ones_like(out) for out in outs])


def hessian(fn, x, rest):
  """Forward over reverse, as `jax.hessian` does it, for two tangents at once."""
  gradient = jax.grad(loss(fn, rest))
  return jax.vmap(lambda dx: jax.jvp(gradient, (x,), (dx,))[1])(stacked(tangent(x)))


def scan_over_gradient(fn, x, rest):
  gradient = jax.grad(loss(fn, rest))
  descend = lambda x, _: (jax.tree.map(lambda leaf, g: leaf - 0.1 * jnp.conj(g), x, gradient(x)), None)
  return jax.lax.scan(descend, x, None, length=2)[0]


def gradient_of_scan_over(fn, x, rest):
  step = lambda x, _: (jax.tree.map(lambda leaf: leaf * jnp.cos(loss(fn, rest)(x)), x), None)
  return jax.grad(lambda x: scalar(jax.lax.scan(step, x, None, length=2)[0]))(x)


def make_jaxpr(fn, x, rest):
  closed = jax.make_jaxpr(fn)(x, *rest)
  return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves((x, *rest)))


TRANSFORMS = {
  "call": lambda fn, x, rest: fn(x, *rest),
  "jit": lambda fn, x, rest: jax.jit(fn)(x, *rest),
  "make_jaxpr": make_jaxpr,
  "eval_shape": lambda fn, x, rest: jax.tree.map(
    lambda out: jnp.zeros(out.shape, out.dtype), jax.eval_shape(fn, x, *rest)
  ),
  "grad_of_jit": lambda fn, x, rest: jax.grad(jax.jit(loss(fn, rest)))(x),
  "value_and_grad_aux": lambda fn, x, rest: jax.value_and_grad(
    lambda x: (lambda outs: (scalar(outs), outs))(fn(x, *rest)), has_aux=True
  )(x),
  "grad_of_all": lambda fn, x, rest: jax.grad(
    lambda *args: scalar(fn(*args)), argnums=tuple(range(1 + len(rest))), allow_int=True
  )(x, *rest),
  "vjp": vjp,
  "jvp": lambda fn, x, rest: jax.jvp(outputs(fn, rest), (x,), (tangent(x),)),
  "hessian": hessian,
  "jacfwd": lambda fn, x, rest: jax.jacfwd(loss(fn, rest))(x),
  "jacrev": lambda fn, x, rest: jax.jacrev(loss(fn, rest))(x),
  "linearize": linearize,
  "vmap": lambda fn, x, rest: jax.vmap(outputs(fn, rest))(stacked(x)),
  "grad_of_vmap": lambda fn, x, rest: jax.grad(lambda x: scalar(jax.vmap(outputs(fn, rest))(x)))(stacked(x)),
  "vmap_of_grad": lambda fn, x, rest: jax.vmap(jax.grad(loss(fn, rest)))(stacked(x)),
  "scan_over_gradient": scan_over_gradient,
  "gradient_of_scan_over": gradient_of_scan_over,
  "in_checkpoint": lambda fn, x, rest: jax.grad(loss(jax.checkpoint(fn), rest))(x),
}
# Made of others that run for every kind: these run for kinds with a structure or rules of their own.
COMPOSED = {"jit", "make_jaxpr", "vmap", "grad_of_jit", "value_and_grad_aux", "vjp", "linearize", "jacfwd", "jacrev"}
COMPOSED |= {"grad_of_vmap", "scan_over_gradient"}
COMPOSED_KINDS = set("scan while_loop custom_vjp complex_input".split())
# The largest programs take turns among the other kinds: `tests/conformance` has them of other functions.
IN_TURN = ("hessian", "gradient_of_scan_over", "in_checkpoint")
# A generator of random numbers is a large program, and twice that in a loop: of these kinds, what is made of others.
SPARED = {kind: {"gradient_of_scan_over"} for kind in ("key_residual", "typed_key")}
# What is wrapped is another program: each is planned anew, so these run for some kinds only.
REWRAPPED = {
  "wrapped_twice": lambda wrap, fn, x, rest: jax.grad(loss(wrap(wrap(fn)), rest))(x),
  "wrapped_loss": lambda wrap, fn, x, rest: jax.value_and_grad(wrap(loss(fn, rest)))(x),
  "vmap_before": lambda wrap, fn, x, rest: jax.grad(lambda x: scalar(wrap(jax.vmap(outputs(fn, rest)))(x)))(stacked(x)),
  "closed_over_tracers": lambda wrap, fn, x, rest: jax.grad(lambda x: scalar(wrap(lambda: fn(x, *rest))()))(x),
}
REWRAPPED_KINDS = ("nested_jit", "custom_vjp")
FORWARD = {"call", "jit", "make_jaxpr", "eval_shape", "vmap"}
REFUSED = {  # by JAX's own rules, under any wrapper
  "while_loop": set(TRANSFORMS) - FORWARD - {"jvp", "jacfwd"},
  "while_beside": {"grad_of_all"},
  "custom_vjp": {"jvp", "jacfwd", "hessian", "linearize"},
  "complex_input": {"jacfwd"},
}


def transforms_of(kind):
  """From name to a function of a wrapper, a function of the kind, and its arguments."""
  turn = list(KINDS).index(kind) % len(IN_TURN)
  waiting = set() if kind in COMPOSED_KINDS else {name for i, name in enumerate(IN_TURN) if i != turn}
  applied = {
    name: lambda wrap, fn, x, rest, transform=transform: transform(wrap(fn), x, rest)
    for name, transform in TRANSFORMS.items()
    if (name not in COMPOSED or kind in COMPOSED_KINDS) and name not in SPARED.get(kind, ()) and name not in waiting
  }
  return applied | (REWRAPPED if kind in REWRAPPED_KINDS else {})


@functools.cache
def cells(kind, wrapper, names=None):
  """Per transformation its numbers, or the error it raised."""
  fn, (x, *rest) = KINDS[kind]()
  found, programs = {}, {}
  for name, transform in transforms_of(kind).items():
    if names is None or name in names:
      apply = functools.partial(transform, WRAPPERS[wrapper], fn)
      try:
        programs[name] = jax.make_jaxpr(apply)(x, rest)
        if name in REFUSED.get(kind, ()):  # some rules refuse only when lowered
          jax.jit(apply).lower(x, rest)
      except Exception as error:  # its type is compared
        found[name] = error
  run = lambda *leaves: {
    name: jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *leaves)
    for name, closed in programs.items()
    if name not in found
  }
  # Else XLA rounds what is in bfloat16 where its fusions end, and these end elsewhere where segments do.
  rounds_all = {"xla_allow_excess_precision": False} if kind == "bfloat16" else None
  return found | jax.jit(run, compiler_options=rounds_all)(*jax.tree.leaves((x, rest)))


@pytest.fixture(autouse=True)
def plans_are_made_by_one_compile(monkeypatch):
  """Whatever can be is checkpointed, at the first try: which plan is the best is not the question here."""
  at_once = functools.partial(choosing.search.plan_policy, max_rounds=1)
  monkeypatch.setattr(choosing.search, "plan_policy", at_once)


# Loops, a rule, and what is no matrix of floats. What the other kinds make of a gradient is in `test_transform_bytes`
# and, of smaller functions, in `tests/conformance`.
TELLING = "scan while_loop custom_jvp zero_size integer_arguments pytrees scalars_and_numpy passed_through"
LEFT_AS_IS = pytest.mark.filterwarnings("ignore::coopjax.BudgetExceededWarning", "ignore::coopjax.RematNoEffectWarning")


@LEFT_AS_IS
@pytest.mark.parametrize("kind", sweeps.all_but(TELLING.split(), KINDS))
def test_goes_wherever_checkpoint_goes(kind):
  """One test a kind, which is compiled as one program; it names the transformations that fail."""
  expected, faults = cells(kind, "checkpoint"), {}
  assert {name for name, cell in expected.items() if isinstance(cell, Exception)} == REFUSED.get(kind, set())
  for engine in ("policy", "hlo"):
    for name, actual in cells(kind, engine).items():
      try:
        if isinstance(expected[name], Exception) or isinstance(actual, Exception):
          assert type(actual) is type(expected[name])
        else:
          assert_same(actual, expected[name])
      except AssertionError as error:
        faults[engine, name] = f"{actual!r}: {error}" if isinstance(actual, Exception) else str(error)
  assert not faults, "\n".join(f"{engine} under {name}: {fault}" for (engine, name), fault in faults.items())


FLAG_TRANSFORMS = ("grad_of_all", "hessian", "vmap_of_grad", "in_checkpoint")
FLAG_CASES = [("scan", True), ("custom_jvp", True), ("scan", False)]
FLAG_SWEEPS = [(kind, True) for kind in ("switch", "user_checkpoint", "user_names", "typed_key")]
FLAG_SWEEPS += [("user_checkpoint", False)]


@LEFT_AS_IS
@pytest.mark.parametrize(
  "kind, no_cotangents", [*FLAG_CASES, *(pytest.param(*case, marks=pytest.mark.sweep) for case in FLAG_SWEEPS)]
)
def test_under_the_new_implementation_of_checkpoint(kind, no_cotangents):
  known = cells(kind, "checkpoint")
  names = tuple(name for name in FLAG_TRANSFORMS if name in known)
  with flags(jax_remat3=True, jax_remat_barrier_no_cotangents=no_cotangents):
    actual = cells.__wrapped__(kind, "policy", names)
  assert_same(actual, {name: known[name] for name in names})


@LEFT_AS_IS
def test_static_arguments_with_and_without_a_policy():
  def power(x, n, *, kind="sum"):
    return getattr(jnp, kind)(jnp.tanh(jnp.sin(x) ** n))

  for policy in (None, jax.checkpoint_policies.dots_saveable):
    fitted = coopjax.remat(power, static_argnums=1, static_argnames="kind", policy=policy, **SQUEEZED)
    for kind in ("sum", "max"):
      np.testing.assert_allclose(
        jax.grad(lambda x: fitted(x, 3, kind=kind))(X), jax.grad(lambda x: power(x, 3, kind=kind))(X), rtol=1e-5
      )


def test_a_loop_without_a_gradient_says_why():
  loop = lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x)
  with pytest.warns(coopjax.RematNoEffectWarning, match="Reverse-mode differentiation does not work"):
    out, tangent_out = jax.jit(functools.partial(jax.jvp, coopjax.remat(loop, budget=0.5)))((X,), (X,))
  assert_same((out, tangent_out), jax.jvp(loop, (X,), (X,)))
  with pytest.raises(coopjax.NotDifferentiableError, match="Reverse-mode differentiation does not work"):
    coopjax.plan(loop, X, budget=0.5)


@pytest.mark.parametrize(
  "cases",
  [
    pytest.param(("inside", "scan_inside", "sharded_inputs"), id="some"),
    pytest.param((), id="all", marks=pytest.mark.sweep),
  ],
)
def test_named_axes_and_meshes_of_eight_devices(cases):
  environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-W", "error", "-m", "tests.support.mesh_transforms", *cases],
    env=environment,
    text=True,
    capture_output=True,
    cwd=ROOT,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
