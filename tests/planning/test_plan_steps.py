"""Trainers whose code stays as it is: what they give to `jax.jit` is planned when it is first used."""

import contextlib
import functools
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import coopjax
from coopjax.cli import main
from tests.support import ROOT, hand_rungs
from tests.support.checkpointed_steps import BUDGET, arguments, bytes_of, make_step
from tests.support.checks import assert_close, temp_bytes

plan_by_policy = functools.partial(coopjax.plan_steps, BUDGET, engine="policy")
# A trainer in the manner of the large ones: shapes are lowered and compiled first, real arrays are called with.
TRAINER = """
import sys
import jax
from tests.support.checkpointed_steps import arguments, bytes_of, make_step

if __name__ == "__main__":
  step = make_step()
  state, momentum, x = arguments()
  compiled = step.lower(*jax.eval_shape(lambda: (state, momentum, x))).compile()
  for _ in range(int(sys.argv[1])):
    state, momentum, loss = step(state, momentum, x)
  print("trained", compiled.memory_analysis().temp_size_in_bytes, float(loss).hex())
"""


def test_a_step_is_planned_once_for_shapes_and_arrays():
  plain = make_step()
  expected = plain(*arguments())
  with plan_by_policy() as steps:
    step = make_step()
    assert not steps.plans
    compiled = step.lower(*jax.eval_shape(arguments)).compile()
    outputs = step(*arguments())
    (plan,) = steps.plans
    step(*arguments())
  assert len(steps.plans) == 1 and plan.fits and [region.num_runs for region in plan.regions] == [hand_rungs.LAYERS]
  assert temp_bytes(compiled) == plan.measured.temp_bytes == bytes_of(step) <= BUDGET
  assert_close(outputs, expected)
  assert bytes_of(plain) == bytes_of(make_step()) != plan.measured.temp_bytes  # before and after: the trainer's own


@pytest.mark.sweep
def test_a_step_is_planned_again_for_other_shapes_while_it_lasts():
  with plan_by_policy() as steps:
    step = make_step()
    step.lower(*arguments())
    (stacks,), momentum, x = arguments()
    step.lower([stacks], momentum, x[: len(x) // 2])
    assert len(steps.plans) == 2
  step.lower([stacks], momentum, x[: len(x) // 4])
  assert len(steps.plans) == 2


def test_what_is_no_step_is_left_alone():
  with plan_by_policy() as steps:
    double = jax.jit(lambda x: 2 * x)
    assert float(double(jnp.float32(2.0))) == 4.0 and double.lower(1.0).compile()(1.0) == 2.0
    assert float(jax.grad(double)(1.0)) == 2.0 and jax.vmap(double)(jnp.ones(3)).shape == (3,)
    step = make_step()
    jax.make_jaxpr(lambda *args: step(*args))(*arguments())  # a part of another program
    assert not steps.plans and double.__name__ == "<lambda>" and hasattr(double, "clear_cache")


def test_decorators_methods_and_static_arguments_are_jits():
  with plan_by_policy() as steps:

    class Model:
      @functools.partial(jax.jit, static_argnums=0)
      def scaled(self, x):
        return 3 * x

    @jax.jit(static_argnames="train")
    def gradient(weight, x, train):
      loss = jax.checkpoint(lambda weight: jnp.sum(jnp.tanh(x @ weight) @ weight))
      return jax.grad(loss)(weight) if train else loss(weight)

    assert Model().scaled(1.0) == 3.0
    assert gradient(jnp.eye(8), jnp.ones((4, 8)), train=False).shape == () and not steps.plans
    assert gradient(jnp.eye(8), jnp.ones((4, 8)), train=True).shape == (8, 8) and len(steps.plans) == 1


class OfFlax(nnx.Module):
  def __init__(self):
    self.weights = nnx.Param(WEIGHTS)

  def __call__(self, x):
    return through(jax.checkpoint, x, self.weights[...])


class OfEquinox(eqx.Module):
  weights: jax.Array
  name: str = "static"

  def __call__(self, x):
    return through(eqx.filter_checkpoint, x, self.weights)


WEIGHTS = jnp.stack([jnp.eye(64)] * 6)


def through(checkpoint, x, weights):
  layer = checkpoint(lambda x, weight: jnp.sin(jnp.tanh(x @ weight) @ weight))
  return jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0]


@pytest.mark.parametrize(
  "jit, gradient, make",
  [(nnx.jit, nnx.grad, OfFlax), (eqx.filter_jit, eqx.filter_grad, lambda: OfEquinox(WEIGHTS))],
  ids=("flax", "equinox"),
)
def test_steps_that_libraries_jit(jit, gradient, make):
  step = lambda model, x: gradient(lambda model: jnp.mean(model(x) ** 2))(model)
  expected = jit(step)(make(), jnp.ones((128, 64)))
  with coopjax.plan_steps("700KiB", engine="policy") as steps:
    outputs = jit(lambda model, x: step(model, x))(make(), jnp.ones((128, 64)))
  (plan,) = steps.plans
  assert plan.fits and plan.baseline.temp_bytes > 700 * 1024
  assert_close(jax.tree.leaves(outputs), jax.tree.leaves(expected))


def test_the_inner_of_two_blocks_decides():
  with coopjax.plan_steps("1GiB") as outer, plan_by_policy() as inner:
    assert bytes_of(make_step()) <= BUDGET
  assert len(inner.plans) == 1 and not outer.plans
  assert "coopjax" not in getattr(jax.jit, "__module__", "")


def test_a_budget_that_no_plan_reaches_is_an_error_of_the_first_use():
  with plan_by_policy(), contextlib.ExitStack() as stack:
    stack.enter_context(coopjax.plan_steps(1000, engine="policy"))
    step = make_step()
    with pytest.raises(coopjax.BudgetInfeasibleError):
      step(*arguments())
  with pytest.raises(coopjax.InvalidBudgetError):
    coopjax.plan_steps("much")
  with pytest.raises(ValueError, match="existing="):
    coopjax.plan_steps("1GiB", existing="all")


def test_a_step_that_nothing_can_be_decided_of_runs_as_it_is():
  with plan_by_policy() as steps:
    step = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)))
    with pytest.warns(coopjax.RematNoEffectWarning, match="runs as it is"):
      assert step(jnp.ones(4)).shape == (4,)
  assert not steps.plans


def test_a_trainer_under_the_command_and_by_its_plan(tmp_path):
  trainer, saved = tmp_path / "trainer.py", tmp_path / "plan.json"
  trainer.write_text(TRAINER)
  told = lambda *arguments: subprocess.run(
    [sys.executable, *map(str, arguments)], check=True, capture_output=True, text=True, cwd=ROOT
  )
  command = "-m", "coopjax.cli", "run"
  step, (state, momentum, x) = make_step(), arguments()
  as_it_is = step.lower(state, momentum, x).compile()
  for _ in range(2):
    state, momentum, loss = step(state, momentum, x)
  fitted = told(*command, "--budget", BUDGET, "--engine", "policy", "-o", saved, "--format", "jax", trainer, "2")
  plan = coopjax.RematPlan.load(saved)
  assert f"{hand_rungs.LAYERS} a step" in fitted.stderr and "policy = jax.checkpoint_policies" in fitted.stdout
  by_plan = told(*command, "--plan", saved, trainer, "2").stdout.split()
  assert fitted.stdout.split()[-3:] == by_plan[-3:] and int(by_plan[-2]) == plan.measured.temp_bytes <= BUDGET
  assert float.fromhex(by_plan[-1]) == pytest.approx(float(loss))
  assert temp_bytes(as_it_is) != plan.measured.temp_bytes


def test_errors_of_the_program_are_its_own(tmp_path, capfd, monkeypatch):
  monkeypatch.setattr(sys, "path", sys.path[:])
  monkeypatch.setattr(sys, "argv", sys.argv)
  (tmp_path / "broken.py").write_text("import sys\nraise KeyError(sys.argv)\n")
  monkeypatch.chdir(tmp_path)
  for program in (["broken.py"], ["-m", "broken"]):
    assert main.main(["run", "--budget", "1GiB", *program, "--steps", "3"]) == 1
    told = capfd.readouterr().err
    assert "KeyError" in told and "--steps" in told and "Traceback" in told
    assert told.count('  File "') == 1 and "broken.py" in told  # as Python shows it: no frame of ours
  for program, why in (
    (["none.py"], "none.py does not exist"),
    (["."], "is a directory without a __main__.py"),
    (["-m", "none.such"], "there is no module none to run"),
  ):
    assert main.main(["run", "--budget", "1GiB", *program]) == 2
    told = capfd.readouterr().err
    assert why in told and len(told.splitlines()) == 1


def test_where_no_plan_can_be_written_no_program_is_run(tmp_path, capsys):
  (tmp_path / "trainer.py").write_text("raise KeyError")
  with pytest.raises(SystemExit, match="2"):
    main.main(["run", "--budget", "1GiB", "-o", f"{tmp_path}/no/plan.json", f"{tmp_path}/trainer.py"])
  assert "there is no directory" in capsys.readouterr().err
