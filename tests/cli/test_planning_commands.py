"""The commands that plan, as a user runs them, and completion by a shell."""

import json
import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.cli import main, user_functions
from coopjax.planners.auto import AutoPlanner, Incumbent
from tests.support import programs

SCRIPT = """
import jax
import jax.numpy as jnp

def loss(weights, x, scale=1.0):
  for weight in weights:
    x = jnp.tanh(x @ weight) * scale
  return jnp.mean(x**2)

def make_args():
  return args_for(512)

def args_for(batch):
  return [jnp.eye(64)] * 6, jax.ShapeDtypeStruct((batch, 64), jnp.float32)

def spread_args():
  spread = lambda shape, spec: jax.ShapeDtypeStruct(
    shape, "float32", sharding=jax.sharding.NamedSharding(jax.sharding.get_mesh(), spec)
  )
  P = jax.sharding.PartitionSpec
  return [spread((64, 64), P())] * 6, spread((512, 64), P("data"))

def broken():
  raise KeyError("weights")

def odd(weights, x):
  return jnp.mean(x @ weights[0].T[1:])

def exiting():
  raise SystemExit(3)

def scanned_step(weights, x):
  loss = lambda weight, x: jnp.mean(jax.lax.scan(lambda x, _: (jnp.tanh(x @ weight), None), x, length=6)[0])
  return jax.tree.map(lambda weight: weight - jax.grad(loss)(weight, x), weights[0])

def talking_args():
  print("arguments are made")
  return make_args()
"""
SHAPES = {"args": [["f32[64, 64]"] * 6, "float32[512,64]"], "kwargs": {"scale": 2.0}}


@pytest.fixture
def script(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", sys.path[:])
  (tmp_path / "fit_me.py").write_text(SCRIPT)
  (tmp_path / "shapes.json").write_text(json.dumps(SHAPES))
  yield tmp_path / "fit_me.py"
  sys.modules.pop("fit_me", None)


def run(capsys, *arguments):
  status = main.main([str(argument) for argument in arguments])
  return status, *capsys.readouterr()


def test_plan_shows_and_saves_what_holds_the_budget(script, capsys):
  saved = script.with_name("plan.json")
  status, out, err = run(capsys, "plan", f"{script}:loss", "--args", "make_args", "--budget", "50%", "-o", saved)
  plan = coopjax.RematPlan.load(saved)
  assert status == 0 and out.strip() == plan.explain() and not err  # no bars where there is no terminal
  assert plan.measured.temp_bytes <= plan.budget_bytes == plan.baseline.temp_bytes // 2
  fitted = plan.apply(user_functions.load_function(f"{script}:loss"))
  compiled = jax.jit(jax.value_and_grad(fitted, argnums=(0, 1))).lower([jnp.eye(64)] * 6, jnp.ones((512, 64))).compile()
  assert compiled.memory_analysis().temp_size_in_bytes == plan.measured.temp_bytes


def test_plan_takes_a_shapes_file_and_prints_json(script, capsys):
  shapes = script.with_name("shapes.json")
  status, out, _ = run(
    capsys, "plan", f"{script}:loss", "--shapes", shapes, "--planner", "peak", "--budget", "1MiB", "--total", "--json"
  )
  plan = coopjax.RematPlan.from_json(out)
  assert status == 0 and plan.budget == coopjax.Budget.total("1MiB") and plan.measured.total_bytes <= 2**20


def test_what_the_users_code_prints_is_no_part_of_the_result(script, capsys):
  asked = "plan", f"{script}:loss", "--args", "talking_args", "--planner", "peak", "--engine", "hlo", "--budget", "1MiB"
  status, out, err = run(capsys, *asked, "--json")
  assert status == 0 and err == "arguments are made\n" and json.loads(out)["name"] == "loss"


def test_a_warning_that_is_of_no_line_of_the_users_names_none(script):
  kept = script.with_name("shapes.json")  # a file
  asked = "plan", f"{script}:loss", "--args", "make_args", "--budget", "50%", "--planner", "peak"
  done = subprocess.run(
    [sys.executable, "-m", "coopjax", *asked],
    env={**os.environ, "COOPJAX_CACHE_DIR": str(kept)},
    check=True,
    text=True,
    capture_output=True,
  )
  (warning,) = (line for line in done.stderr.splitlines() if "CacheWarning" in line)
  assert warning.startswith(f"coopjax: CacheWarning: can't keep decisions in {kept}: it is no directory.")


def test_a_budget_out_of_reach_is_one(script, capsys):
  common = "plan", f"{script}:loss", "--args", "make_args", "--engine", "hlo", "--planner", "peak", "--budget", "1KiB"
  status, out, _ = run(capsys, *common)
  assert status == 1 and "OVER BUDGET" in out and "fit_me.py:7" in out and "or --best-effort" in out
  status, out, _ = run(capsys, *common, "--best-effort", "--json")
  plan = json.loads(out)
  assert status == 1 and plan["measured"]["temp_bytes"] < plan["baseline"]["temp_bytes"]
  status, out, _ = run(capsys, *common, "--json")
  assert status == 1 and json.loads(out)["smallest_bytes"] > json.loads(out)["budget_bytes"] == 1024


def test_values_may_go_to_the_host_where_there_is_one(script, capsys):
  common = "plan", f"{script}:loss", "--args", "make_args", "--budget", "50%", "--offload"
  status, _, err = run(capsys, *common, "--engine", "policy")
  assert status == 2 and "nowhere to offload" in err
  with pytest.raises(SystemExit):
    run(capsys, *common[:-1], "--offload-at-most", "40%")
  assert "offload='40%': True, False, or the most" in capsys.readouterr().err
  with pytest.warns(coopjax.HostOffloadWarning, match="planned without host offload"):
    status, out, _ = run(capsys, *common, "--json")
  assert status == 0 and json.loads(out)["measured"]["host_bytes"] == 0


def test_a_step_out_of_reach_says_what_to_wrap(script, capsys):
  common = "plan", f"{script}:scanned_step", "--args", "make_args", "--budget", "1KiB"
  status, out, _ = run(capsys, *common, "--engine", "hlo")
  assert status == 1 and "wrap the body of the scan" in out and "try a larger budget" in out
  status, out, _ = run(capsys, *common)  # which has been done
  assert status == 1 and "wrap" not in out and "try a larger budget" in out


def test_frontier_prints_a_table_and_draws(script, capsys):
  common = "frontier", f"{script}:loss", "--args", "make_args", "--budget", "60%", "50%", "--planner", "peak"
  status, out, _ = run(capsys, *common, "-o", script.with_name("frontier.png"))
  assert status == 0 and "no remat" in out and "60%" in out and "checkpoint per layer: " in out
  assert script.with_name("frontier.png").read_bytes().startswith(b"\x89PNG")
  status, out, _ = run(capsys, *common, "--json", "-o", script.with_name("frontier.json"))
  assert json.loads(out) == json.loads(script.with_name("frontier.json").read_text())
  assert len(coopjax.Frontier.from_dict(json.loads(out)).points) == 2


@pytest.mark.parametrize(
  "arguments, message",
  [
    (("nowhere.py:loss", "--args", "make_args"), "nowhere.py does not exist"),
    (("{script}:los", "--args", "make_args"), "it has args_for, broken, exiting, loss, make_args, odd, scanned_step"),
    (("{script}", "--args", "make_args"), "names no function"),
    (("{script}:loss", "--args", "broken"), "KeyError: 'weights'"),
    (("{script}:loss", "--args", "exiting"), "SystemExit: 3"),
    (("{script}:loss", "--shapes", "{directory}/number.json"), "expected a list of arguments"),
    (("{script}:odd", "--args", "make_args"), "fit_me.py:27: TypeError: dot_general requires"),
    (("{script}:loss", "--shapes", "{script}"), "is not JSON"),
    (("{script}:loss", "--shapes", "{directory}/odd.json"), "'f32[8' is no array"),
    (("{script}:loss", "--args", "make_args", "--planner", "best"), "unknown planner 'best'"),
    (("{script}:loss", "--args", "make_args", "--target", "gpu:h1000"), "Did you mean 'gpu:h100'"),
  ],
)
def test_what_can_not_be_planned_is_two(script, capsys, arguments, message):
  script.with_name("odd.json").write_text('["f32[8"]')
  script.with_name("number.json").write_text('{"args": 8}')
  filled = [argument.format(script=script, directory=script.parent) for argument in arguments]
  status, _, err = run(capsys, "plan", *filled, "--budget", "0.5")
  assert status == 2 and message in err


def test_errors_of_users_code_are_lines_and_a_traceback_on_demand(script):
  asked = "plan", f"{script}:odd", "--args", "make_args", "--budget", "0.5"
  with pytest.raises(TypeError, match="dot_general"):
    main.main(["--traceback", *asked])


def test_an_error_with_control_characters_reaches_no_terminal(script, capsys):
  loud = script.with_name("loud.py")
  loud.write_text("def loss():\n  raise RuntimeError('\\x1b[31mred\\nor not')")
  (none := script.with_name("none.json")).write_text("[]")
  for asked in (f"{script}:loss", "--args", f"{loud}:loss"), (f"{loud}:loss", "--shapes", none):
    status, _, err = run(capsys, "plan", *asked, "--budget", "0.5")
    assert status == 2 and "RuntimeError: \\x1b[31mred\nor not" in err


def test_files_of_one_name_are_two_modules(script, tmp_path, monkeypatch):
  for name, value in (("one", 1), ("two", 2)):
    (tmp_path / name).mkdir()
    (tmp_path / name / "json.py").write_text(f"def number(): return {value}")
  numbers = [user_functions.load_function(f"{tmp_path}/{name}/json.py:number") for name in ("one", "two", "one")]
  assert [number() for number in numbers] == [1, 2, 1] and numbers[0] is numbers[2]
  assert user_functions.load_function(f"{script}:loss").__module__ == "fit_me"


def test_a_picture_without_its_extra_is_told_before_anything_is_planned(script, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  asked = "frontier", f"{script}:broken", "--args", "make_args"
  status, out, err = run(capsys, *asked, "-o", "frontier.svg")
  assert status == 2 and not out and "pip install 'coopjax[cli]'" in err


def test_shapes_are_pytrees_of_arrays(script):
  shapes = script.with_name("shapes.json")
  shapes.write_text('[{"a": ["bf16[2,3]", "s32[]"], "b": 3}, null]')
  (first, second), kwargs = user_functions.load_arguments("", str(shapes), None)
  assert first == {"a": [jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.int32)], "b": 3}
  assert second is None and kwargs == {}
  shapes.write_text('{"arguments": []}')
  with pytest.raises(coopjax.UserFunctionError, match="a list args"):
    user_functions.load_arguments("", str(shapes), None)


def test_incumbents_are_told_with_bound_and_gap(caplog):
  program = programs.forward_backward(12)
  with caplog.at_level(logging.DEBUG, "coopjax.planners"):
    result = AutoPlanner().plan(program, int(0.6 * programs.peak_of(program)))
  told = [record.args[0] for record in caplog.records if isinstance(record.args[0], Incumbent)]
  assert told and told[-1].overhead == pytest.approx(result.overhead(program))
  assert [each.overhead for each in told] == sorted((each.overhead for each in told), reverse=True)
  assert all(each.least_overhead <= each.overhead + 1e-12 for each in told) and "gap" in str(told[0])


@pytest.mark.parametrize(
  "typed, offered",
  [
    ("coopjax ins", ["inspect"]),
    ("coopjax inspect --group-by li", ["line"]),
    ("coopjax completion b", ["bash"]),
    ("coopjax plan --eng", ["--engine"]),
  ],
)
def test_a_shell_gets_completions(tmp_path, typed, offered):
  environment = {
    **os.environ,
    "_ARGCOMPLETE": "1",
    "_ARGCOMPLETE_IFS": "\n",
    "COMP_LINE": typed,
    "COMP_TYPE": "9",
    "COMP_POINT": str(len(typed)),
    "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out"),
  }
  subprocess.run([sys.executable, "-m", "coopjax.cli"], env=environment, check=True)
  assert sorted(word.strip() for word in (tmp_path / "out").read_text().split("\n")) == offered


def test_a_shell_gets_no_traceback_where_nothing_completes(monkeypatch, capsys):
  monkeypatch.setenv("_ARGCOMPLETE", "1")
  monkeypatch.setitem(sys.modules, "argcomplete", None)
  with pytest.raises(SystemExit, match="1"):
    main.main([])
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", main.SHELLS)
def test_completion_is_a_script_for_the_shell(capsys, shell):
  status, out, _ = run(capsys, "completion", shell)
  assert status == 0 and "coopjax" in out
  if shell == "bash":
    subprocess.run(["bash", "-c", f"{out}\ncomplete -p coopjax"], check=True, stdout=subprocess.DEVNULL)


def test_fit_prints_what_fits_and_saves_the_largest_plan(script, capsys):
  saved = script.with_name("largest.json")
  asked = "fit", f"{script}:loss", "--args-for-batch", "args_for", "--effort", "fast", "--engine", "hlo"
  status, out, _ = run(capsys, *asked, "--budget", "600KiB", "--batches", "256", "512", "-o", saved)
  assert status == 0 and "loss: what fits" in out and "largest: a batch of 512" in out
  assert coopjax.RematPlan.load(saved).fits
  status, out, _ = run(capsys, *asked, "--budget", "8KiB", "--batches", "512", "--json")
  fields = json.loads(out)
  assert status == 1 and fields["largest"] is None and not fields["points"][0]["fits"]


def test_calibrate_saves_a_profile_that_is_a_target(script, capsys):
  status, printed, _ = run(capsys, "calibrate", "--repeats", 1, "-o", script.parent / "speeds.json")
  assert status == 0 and "flops_per_s" in printed
  profile = coopjax.SpeedProfile.load(script.parent / "speeds.json")
  assert profile.target in printed


def test_what_a_mesh_is_asked_for_is_set_where_arguments_are_made(script, capsys):
  asked = "plan", f"{script}:loss", "--args", "spread_args", "--budget", "50%", "--json", "--effort", "fast"
  status, printed, _ = run(capsys, *asked, "--mesh", "data=1,model=1")
  assert status == 0 and json.loads(printed)["measured"]["temp_bytes"] > 0
  assert run(capsys, *asked)[0] == 2  # there, the arguments ask for the mesh
  status, _, err = run(capsys, *asked, "--mesh", f"data={2 * jax.device_count()}")
  assert status == 2 and "name a larger topology" in err
  told = "coopjax: a mesh with axes data, data: each needs a name of its own\n"
  assert run(capsys, *asked, "--mesh", "data=1,data=1") == (2, "", told)  # XLA would end the process
  with pytest.raises(SystemExit):
    run(capsys, *asked, "--mesh", "data:4")
  assert "is no mesh" in capsys.readouterr().err


@pytest.mark.targets
def test_a_mesh_of_a_target_is_planned_for_one_of_its_devices(script, capsys):
  asked = "plan", f"{script}:loss", "--args", "spread_args", "--budget", "8MiB", "--json", "--target", "tpu:v5e:2x2"
  status, printed, _ = run(capsys, *asked, "--mesh", "data=4")
  plan = json.loads(printed)
  assert status == 0 and plan["mesh"] == "data=4" and plan["target"] == "tpu:v5e:2x2"
  one_device = 512 // 4 * 64 * 4
  assert plan["baseline"]["argument_bytes"] < 6 * 64 * 64 * 8 + 2 * one_device


@pytest.mark.targets
def test_arguments_that_are_made_on_devices_that_are_not_here_are_told_how(script, capsys):
  asked = "plan", f"{script}:loss", "--args", "make_args", "--budget", "8MiB", "--target", "tpu:v5e:2x2"
  status, out, err = run(capsys, *asked, "--mesh", "data=4")
  assert (
    (status, out) == (2, "") and "not here: make arguments under jax.eval_shape" in err and len(err.splitlines()) == 1
  )
