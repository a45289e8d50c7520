import jax
import jax.numpy as jnp
import pytest

from coopjax import compat
from coopjax.policy_engine.key_splits import num_before
from tests.support.models import normal


def splits(num, x, key):
  key, *mine = jax.random.split(key, num)
  return key, x + sum(jax.random.uniform(each, x.shape) for each in mine)


def counted(x, i):
  """A key folded in, of a count that is handed on."""
  mine = jax.random.fold_in(jax.random.key(0), i)
  return i + 1, x * jax.random.uniform(mine, x.shape)


def masked(x, i):
  """What is in front is as large as all else."""
  return i, jnp.where(jnp.arange(x.size) < i, jnp.sin(x), x)


def looked_up(x, i):
  """An index from the end, as `weights[i]` has it, is 4 bytes; so is the count that it is made of, which is kept."""
  return i, x * x[i]


@pytest.mark.parametrize(
  ("turn", "state", "num_turns", "is_before"),
  [
    (lambda x, key: splits(2, x, key), jax.random.key(0), 1000, True),  # one key for another
    (lambda x, key: splits(2, x, key), jax.random.PRNGKey(0), 1000, True),
    (lambda x, key: splits(4, x, key), jax.random.key(0), 6, True),  # two more, of 8 bytes, in each turn
    (lambda x, key: splits(4, x, key), jax.random.key(0), 1000, False),
    (counted, 0, 1000, False),
    (masked, 0, 6, False),
    (looked_up, 0, 6, False),
  ],
)
def test_what_is_small_and_has_no_gradient_runs_before(turn, state, num_turns, is_before):
  def loss(x, state):
    return jax.lax.scan(lambda carry, _: (turn(*carry)[::-1], None), (x, state), None, num_turns)[0][0]

  (scan,) = [
    each for each in jax.make_jaxpr(loss)(normal(0, 64, scale=1.0), state).eqns if each.primitive.name == "scan"
  ]
  (body,) = compat.sub_jaxprs(scan)
  num = num_before(body, len(body.eqns), compat.scan_carries(scan), num_turns)
  before, inside = body.eqns[:num], body.eqns[num:]
  assert bool(before) == is_before
  assert not any("uniform" in str(equation.params.get("name")) for equation in before) and inside


def test_what_the_checkpoint_ends_before_stays_in_it():
  body = jax.make_jaxpr(lambda key: jax.random.split(key))(jax.random.key(0)).jaxpr
  assert num_before(body, 1, body.invars, 4) == 0
