"""The first call of a jitted step traces the user's function and compiles the step once; a second call does neither."""

import re
import subprocess
import sys

import pytest

from tests.support import ROOT

COUNTED = """
import logging
import jax, jax.numpy as jnp
from tests.support import quick
import coopjax

quick.be_quick()
traces, compiled = [], []

class Handler(logging.Handler):
  def emit(self, record):
    if record.getMessage().startswith("Compiling"):
      compiled.append(record.getMessage().split()[1])

logger = logging.getLogger("jax._src.interpreters.pxla")
logger.setLevel(logging.DEBUG)
logger.propagate = False
logger.addHandler(Handler())

X, WEIGHTS = jnp.ones((64, 32)), [jnp.eye(32)] * 4

def layers(x, all_layers):
  traces.append("function")
  for layer in all_layers:
    x = jnp.tanh(layer(x))
  return x

def counted_once(step, expected, name, *args):
  compiled.clear()
  traces.clear()
  jax.block_until_ready(jax.tree.leaves(step(*args)))
  assert traces == expected, traces
  assert [each for each in compiled if "step" in each] == [name] * ("function" in expected), compiled

def counted(step, *args):
  for expected in (["step", "function"], []):
    counted_once(step, expected, "jit(step)", *args)
"""
STEPS = {
  "plain": """
def loss(weights, x):
  return (layers(x, [lambda x, w=w: x @ w for w in weights]) ** 2).mean()

@jax.jit
def step(weights, x):
  traces.append("step")
  grads = jax.grad(coopjax.remat(loss, budget=0.6, engine=ENGINE))(weights, x)
  return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

counted(step, WEIGHTS, X)
""",
  "linen": """
from flax import linen

class Block(linen.Module):
  @linen.compact
  def __call__(self, x):
    return layers(x, [linen.Dense(32) for _ in range(4)])

block = coopjax.linen.remat(Block, budget=0.6, engine=ENGINE)()
variables = block.init(jax.random.key(0), X)

@jax.jit
def step(variables, x):
  traces.append("step")
  return jax.grad(lambda variables: (block.apply(variables, x) ** 2).mean())(variables)

counted(step, variables, X)
""",
  "nnx": """
from flax import nnx

class Model(nnx.Module):
  def __init__(self, rngs):
    self.layers = nnx.List([nnx.Linear(32, 32, rngs=rngs) for _ in range(4)])

  def __call__(self, x):
    return layers(x, self.layers)

@nnx.jit
def step(model, x):
  traces.append("step")
  call = coopjax.nnx.remat(lambda model, x: model(x), budget=0.6, engine=ENGINE)
  return nnx.grad(lambda model, x: (call(model, x) ** 2).mean())(model, x)

counted(step, Model(nnx.Rngs(0)), X)
""",
  "equinox": """
import equinox as eqx

model = [eqx.nn.Linear(32, 32, key=jax.random.key(i)) for i in range(4)]

def loss(model, x):
  return (layers(x, [jax.vmap(layer) for layer in model]) ** 2).mean()

@eqx.filter_jit
def step(model, x):
  traces.append("step")
  return eqx.filter_grad(coopjax.equinox.remat(loss, budget=0.6, engine=ENGINE))(model, x)

counted(step, model, X)
""",
}


README = """
{snippet}
@jax.jit
def step_of_the_readme(weights, x):
  traces.append("step")
  return fitted_step(weights, x)

for expected in (["step", "function"], []):
  counted_once(step_of_the_readme, expected, "jit(step_of_the_readme)", weights, x)
"""


@pytest.mark.parametrize(
  "engine, names",
  [
    ("policy", ("plain", "linen", "nnx", "equinox")),
    ("hlo", ("plain",)),
    pytest.param("hlo", ("linen", "nnx", "equinox"), marks=pytest.mark.sweep),
  ],
)
def test_a_step_is_traced_and_compiled_once(engine, names):
  """In a process of its own: a first touch of coopjax's names inside a trace must not make JAX trace again."""
  (snippet, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
  snippet = snippet.partition("for fn in step")[0]
  changes = {
    'budget="48MiB"': f"budget=0.6, engine={engine!r}",
    "def loss(weights, x):\n": 'def loss(weights, x):\n  traces.append("function")\n',
    "(8192, 256)": "(2048, 256)",
  }
  for old, new in changes.items():
    assert old in snippet
    snippet = snippet.replace(old, new)
  steps = "".join(STEPS[name] for name in names)
  run(f"ENGINE = {engine!r}\n" + COUNTED + steps + README.replace("{snippet}", snippet))


def run(code):
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False)
  assert done.returncode == 0, done.stderr
