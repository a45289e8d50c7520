"""The hook in XLA's pipeline: nothing that reaches it, and no fault of ours, may fail or change a user's compile."""

import logging
import random
import threading

import jax
import jax.numpy as jnp

import coopjax
from coopjax import _core
from coopjax.hlo_engine import hook, module_plan
from coopjax.hlo_engine.mark import Mark
from coopjax.xla.compile import module_of
from coopjax.xla.module import parse_module
from tests.support.checks import compile_step, temp_bytes
from tests.support.hlo_hook import before_ours
from tests.support.hlo_hook import hook as other_hook
from tests.support.scheduled import GPT, MLP, plain, sequence, step_of


def test_programs_compiled_in_threads_are_all_planned(outcomes):
  loss, weights, x = MLP
  found = {}

  def compile_one(scale):
    found[scale] = temp_bytes(compile_step(lambda weights, x: loss(weights, scale * x), weights, x))

  with coopjax.enable(0.6):
    threads = [threading.Thread(target=compile_one, args=(scale,)) for scale in range(2, 6)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert len(found) == len(outcomes) == 4 and all(each.fits and each.result.num_recomputed for each in outcomes)
  assert sorted(found.values()) == sorted(each.predicted.temp_bytes for each in outcomes)


def test_garbage_leaves_the_compile_standing(caplog):
  caplog.set_level(logging.INFO, "coopjax")
  module = module_of(plain("mlp"))
  mark = Mark(coopjax.Budget.parse(0.5)).to_text().encode()
  chance = random.Random(0)
  broken = [
    b"",
    b"\x00" * 100,
    chance.randbytes(1000),
    b"coopjax-mark(nonsense)",
    b"coopjax-mark(share=x;\xff)",
    mark,
    mark + module,
    module[: len(module) // 2],
  ]
  for _ in range(60):
    at = chance.randrange(len(module))
    broken.append(module[:at] + chance.randbytes(chance.randrange(1, 9)) + module[at + chance.randrange(9) :])
  with coopjax.enable(0.5):
    for garbage in broken:
      caplog.clear()
      handed_back = hook._hook._callback("cpu", garbage)
      assert len(caplog.records) >= 1
      if handed_back is not None:  # bytes that hit a constant or a name: still a program, and proved to be the same one
        assert not _core.verify_transform(parse_module(garbage), parse_module(handed_back))
    assert all(hook._hook._callback("cpu", garbage) is None for garbage in broken[:8])


def test_no_fault_of_ours_fails_a_compile(monkeypatch, caplog):
  def fail(*_, **__):
    raise MemoryError("not enough for a plan")

  monkeypatch.setattr(hook, "plan_module", fail)
  with coopjax.enable(0.5):
    assert temp_bytes(compile_step(*MLP)) == temp_bytes(plain("mlp"))
  assert "not enough for a plan" in caplog.text and "compiled as it came" in caplog.text


def test_a_warning_that_is_an_error_is_logged(caplog):  # pytest makes them errors
  with coopjax.enable("1 KiB"):
    assert temp_bytes(compile_step(*MLP)) < temp_bytes(plain("mlp"))
  assert "over its budget of 1.00 KiB" in caplog.text


def test_small_programs_keep_their_order_without_a_search(monkeypatch, outcomes):
  def search(*_, **__):
    raise AssertionError("an order was searched")

  monkeypatch.setattr(module_plan, "recompute_order", search)
  coopjax.enable()
  for fn in (lambda x: x + 1, lambda x: jax.nn.softmax(x @ x), jnp.sort, jax.grad(lambda x: jnp.tanh(x @ x).sum())):
    jax.jit(fn).lower(jnp.ones((8, 8))).compile()
  assert len(outcomes) >= 4
  assert {(each.module_bytes, each.reason) for each in outcomes} == {(None, "there is little to gain")}


def test_one_line_per_program_at_the_level_that_jax_logs_at(caplog):
  log = logging.getLogger("coopjax.hook")
  with coopjax.enable(0.5):
    compile_step(*MLP)
    assert not caplog.records and not log.isEnabledFor(logging.INFO)
    jax.config.update("jax_logging_level", "INFO")
    try:
      compile_step(*MLP)
      jax.jit(lambda x: x + 1)(1.0)
    finally:
      jax.config.update("jax_logging_level", None)
      logging.getLogger("jax").setLevel(logging.NOTSET)  # JAX leaves the level where it was
  lines = [record.getMessage() for record in caplog.records if record.name == log.name]
  assert [record.levelname for record in caplog.records if record.name == log.name] == ["INFO"] * 2
  assert lines[0].startswith("jit_loss: temporaries 1.12 MiB, budget 576.00 KiB, now ") and "recomputed" in lines[0]
  assert "temporaries 0 B" in lines[1] and "left as it came" in lines[1]
  assert not log.isEnabledFor(logging.INFO)


def test_other_users_and_disabled_passes_stay_in_force():
  loss, params, ids = GPT
  seen = []
  with (
    before_ours(lambda module: seen.append(("before", sequence(module)))),
    coopjax.enable(),
    other_hook(lambda module: seen.append(("after", sequence(module))), name="after"),
  ):
    ordered = compile_step(loss, params, ids)
  (_, came), (_, left) = (entry for entry in seen if len(entry[1]) > 50)
  assert came == sequence(module_of(plain())) and left == sequence(module_of(ordered)) != came
  options = {"xla_disable_hlo_passes": "fusion"}
  compile_unfused = lambda: step_of(loss).lower(params, ids).compile(options)
  unfused = compile_unfused()
  with coopjax.enable():
    both = compile_unfused()
  assert sorted(sequence(module_of(both))) == sorted(sequence(module_of(unfused))) != sorted(came)
  assert temp_bytes(both) < temp_bytes(unfused)
