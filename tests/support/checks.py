"""What tests look at in a compiled program and in its results: bytes, instructions, equal numbers, equal bits."""

import contextlib

import jax
import numpy as np

# No plan reaches one byte: the policy engine checkpoints whatever it can, the HLO engine recomputes whatever it can.
SQUEEZED = {"budget": 1, "on_infeasible": "best_effort", "effort": "fast"}


def compile_step(fn, *args):
  return jax.jit(jax.value_and_grad(fn)).lower(*args).compile()


def temp_bytes(compiled):
  return compiled.memory_analysis().temp_size_in_bytes


def num_instructions(compiled, opcode):
  return compiled.as_text().count(f" {opcode}(")


def num_dots(compiled):
  return num_instructions(compiled, "dot")


def assert_same_bits(actual, expected):
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(e))
    assert np.asarray(a).tobytes() == np.asarray(e).tobytes()  # a zero's sign, what a NaN carries


def assert_close(actual, expected, rtol=2e-4, atol=2e-6):
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=atol)


def assert_same(actual, expected, rtol=2e-4, atol=2e-5):
  """Structures, dtypes and shapes are the same, numbers are close."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    assert a.dtype == e.dtype and a.shape == e.shape
    if e.dtype != jax.dtypes.float0:
      np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=atol)


@contextlib.contextmanager
def flags(**values):
  """Sets flags of JAX that are off by default."""
  for name, value in values.items():
    jax.config.update(name, value)
  try:
    yield
  finally:
    for name in values:
      jax.config.update(name, False)
