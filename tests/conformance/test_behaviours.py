"""`coopjax.remat` does what `jax.checkpoint` does: a table of programs, each a behaviour that users rely on.

Every program (`tests/support/checkpoint_*.py`) is given what wraps a function, and runs under `jax.checkpoint` and
under each engine: the same values, types, structures, counts of traces, or the same type of error.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from tests.support import (
  checkpoint_calls,
  checkpoint_effects,
  checkpoint_errors,
  checkpoint_rules,
  checkpoint_transforms,
  sweeps,
)
from tests.support.checkpoint_common import PROGRAMS

OPTIONS = {"on_infeasible": "best_effort", "effort": "fast"}
ENGINES = {
  "policy": functools.partial(coopjax.remat, engine="policy", budget=0.5, **OPTIONS),
  "hlo": functools.partial(coopjax.remat, engine="hlo", budget=0.5, planner="peak", **OPTIONS),
  "auto": functools.partial(coopjax.remat, budget=1.0, **OPTIONS),
}
# What JAX refuses, or makes nothing sensible of, and coopjax takes: the function without a wrapper says what is right.
BEYOND = set(
  "static_names static_name_positional string_argument function_argument unhashable_callable "
  "non_array_output_eager jet ref_argument_read ref_argument_write_grad ref_closed_over ref_in_scan".split()
)
# "auto" is the HLO engine where that can do it alone: it runs what is about the call, not what is inside.
AUTO = {*vars(checkpoint_calls), *vars(checkpoint_errors)}
# The larger ones of rows that are alike.
SWEPT = set(
  "key_outputs eager_scalars policy_everything hessian_eager jet checkpoint_outside policy_cond_jit_scan_const"
  " policy_scan_jit_const remat_of_scan_inner_jit check_inside_scan check_inside_forward".split()
)
MODULES = (checkpoint_calls, checkpoint_effects, checkpoint_errors, checkpoint_rules, checkpoint_transforms)


def unwrapped(fn, **_):
  return fn


def ran(program, wrap):
  """Structure, and dtype, shape, weak type and value of each leaf; or the error."""
  try:
    leaves, tree = jax.tree.flatten(program(wrap))
  except Exception as error:  # its type is compared
    return error
  return tree, [leaf if isinstance(leaf, str | bool | int) else described(leaf) for leaf in leaves]


def described(leaf):
  if isinstance(leaf, float):
    return jnp.result_type(leaf), (), True, np.asarray(leaf)
  if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    leaf = jax.random.key_data(leaf)
  return leaf.dtype, leaf.shape, bool(getattr(leaf, "weak_type", False)), np.asarray(leaf)


def assert_alike(actual, expected):
  if isinstance(actual, Exception) or isinstance(expected, Exception):
    assert type(actual) is type(expected), repr(actual)
    return
  assert actual[0] == expected[0]
  for a, e in zip(actual[1], expected[1], strict=True):
    if isinstance(e, tuple) and e[0] != jax.dtypes.float0:
      assert a[:-1] == e[:-1]
      np.testing.assert_allclose(a[-1], e[-1], rtol=2e-4, atol=1e-5)
    elif not isinstance(e, tuple):
      assert a == e


def test_programs_are_found():
  assert {name for module in MODULES for name in vars(module)} >= set(PROGRAMS) > BEYOND | SWEPT


@pytest.mark.filterwarnings("ignore::coopjax.BudgetExceededWarning", "ignore::coopjax.RematNoEffectWarning")
@pytest.mark.parametrize("name", sweeps.all_but([name for name in PROGRAMS if name not in SWEPT], PROGRAMS))
def test_does_as_checkpoint_does(name):
  program = PROGRAMS[name]
  expected = ran(program, unwrapped if name in BEYOND else jax.checkpoint)
  if name in BEYOND:
    assert not isinstance(expected, Exception)
  faults = {}
  for engine, wrap in ENGINES.items():
    if engine != "auto" or name in AUTO:
      try:
        assert_alike(ran(program, wrap), expected)
      except AssertionError as error:
        faults[engine] = str(error)
  assert not faults, faults
