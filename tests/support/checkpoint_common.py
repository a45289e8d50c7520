"""What the programs of `tests/conformance` share: each takes what wraps a function, and returns what is compared."""

import jax.numpy as jnp
import numpy as np
from jax import lax

X = np.linspace(0.1, 1.2, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-0.5, 0.7, 16, dtype=np.float32).reshape(4, 4)
PROGRAMS = {}


def program(fn):
  """Puts a program into the table."""
  assert fn.__name__ not in PROGRAMS
  PROGRAMS[fn.__name__] = fn
  return fn


def f(x):
  return jnp.sin(jnp.sin(x) @ W).sum()


def deep(x):
  for _ in range(4):
    x = jnp.tanh(x @ W)
  return x


def scanned(body, x):
  return lax.scan(body, x, np.stack([W, W * 2]))
