"""What happens beside a call does it no harm: a log handler that fails, an interrupt, budgets and names of any kind."""

import importlib.metadata
import logging
import re

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.hlo_engine import hook
from tests.support import models
from tests.support.checks import assert_close

MLP, WEIGHTS, X = models.mlp(depth=4)


def gradient(budget, **options):
  """Compiled anew: each test has a budget of its own."""
  return jax.jit(jax.grad(coopjax.remat(MLP, budget=budget, **options)))(WEIGHTS, X)


@pytest.mark.parametrize("engine", ["policy", "hlo", "auto"])
def test_a_log_handler_that_fails(engine):
  class Failing(logging.Handler):
    num_records = 0

    def emit(self, record):
      Failing.num_records += 1
      raise RuntimeError("no")

  handler, logger = Failing(), logging.getLogger("coopjax.hook")
  logger.addHandler(handler)
  logger.setLevel(logging.DEBUG)
  try:
    assert_close(gradient(0.61, engine=engine), jax.grad(MLP)(WEIGHTS, X))
  finally:
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
  assert Failing.num_records or engine == "policy"


@pytest.mark.parametrize("engine, budget", [("auto", 0.62), ("hlo", 0.63)], ids=["while traced", "while compiled"])
def test_an_interrupt_is_one_and_the_next_call_works(engine, budget, monkeypatch):
  plan_module, calls = hook.plan_module, []

  def interrupted(*args, **kwargs):
    calls.append(engine)
    if len(calls) == 1:
      raise KeyboardInterrupt
    return plan_module(*args, **kwargs)

  monkeypatch.setattr(hook, "plan_module", interrupted)
  with pytest.raises(KeyboardInterrupt):
    gradient(budget, engine=engine)
  assert_close(gradient(budget, engine=engine), jax.grad(MLP)(WEIGHTS, X))


@pytest.mark.filterwarnings("ignore::coopjax.RematNoEffectWarning")
@pytest.mark.parametrize("engine", ["policy", "hlo", "auto"])
def test_a_budget_beyond_all_bounds(engine):
  assert_close(gradient(10**30, engine=engine), jax.grad(MLP)(WEIGHTS, X))


def test_control_characters_in_names_are_told_escaped():
  def loss(x):
    return jnp.sin(x).astype(int)

  loss.__name__ = "\x1b[31mloss"
  with pytest.raises(coopjax.NotDifferentiableError, match=re.escape(r"\x1b[31mloss")) as caught:
    coopjax.plan(loss, jnp.ones(4), budget=0.5)
  assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
  "version, error, message", [("0.11.1", None, "0.11.1.*jax>=0.11.2"), ("0.19.0", "gone", "jax<0.13")]
)
def test_a_jax_that_is_not_known_is_one_clear_error(version, error, message, monkeypatch):
  monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
  if error:

    def import_module(name):
      raise ImportError(f"cannot import name {error!r}")

    monkeypatch.setattr(coopjax.importlib, "import_module", import_module)
  with pytest.raises(ImportError, match=f"made for JAX.*{message}"):
    coopjax._watch()
