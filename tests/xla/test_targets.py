"""Hardware that is not there: names and messages without its compilers; with them (marked) plans, bytes, gradients."""

import dataclasses
import functools
import importlib
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies

import coopjax
from coopjax import compat
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.xla import targets
from coopjax.xla.compile import OversizedProgram, compile_abstract, compile_trial, measure
from tests.support import ROOT, models
from tests.support.checks import temp_bytes

needs_compilers = pytest.mark.targets
GIB = 2**30
SMALL = [
  "--num-layers",
  "6",
  "--width",
  "64",
  "--num-heads",
  "2",
  "--length",
  "64",
  "--vocabulary",
  "128",
  "--budget",
  "0.7",
]
LARGER = [
  "--num-layers",
  "4",
  "--width",
  "256",
  "--num-heads",
  "2",
  "--length",
  "256",
  "--vocabulary",
  "512",
  "--batch-size",
  "64",
  "--budget",
  "0.5",
]


def loss(weights, x):
  x, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)
  return jnp.mean(x**2)


def shapes(rows, depth=8, width=256, sharding=None):
  """Every layer of `loss` keeps ``rows * width * 4`` bytes."""
  return (
    jax.ShapeDtypeStruct((depth, width, width), jnp.float32),
    jax.ShapeDtypeStruct((rows, width), jnp.float32, sharding=sharding),
  )


def program(fn, args):
  return fn_and_gradient(differentiable(trace(fn, args)))


def chain():
  """A straight chain of eight layers, 256 KiB each, whose sizes alone are used."""
  fn, *args = models.mlp(depth=8)
  return fn, *jax.eval_shape(lambda: args)


@pytest.mark.parametrize(
  "name, nearest",
  [
    ("h100", "gpu:h100"),
    ("tpu:v5e", "tpu:v5e:2x2"),
    ("gpu:h1000", "gpu:h100"),
    ("TPU:V6:2x2", "tpu:v6e:2x2"),
    ("tpu", "tpu:v2:2x2"),
    ("cuda", None),
  ],
)
def test_an_unknown_name_lists_those_known_and_suggests_the_nearest(name, nearest):
  for refused in (
    functools.partial(coopjax.remat, loss, budget=0.5, target=name),
    functools.partial(coopjax.plan, loss, *shapes(8), budget=0.5, target=name),
  ):
    with pytest.raises(coopjax.UnknownTargetError, match=name) as caught:
      refused()
    assert all(known in str(caught.value) for known in ("gpu:a100", "gpu:h200", "tpu:v5p:2x2x1", "cpu"))
    assert nearest is None or f"Did you mean {nearest!r}" in str(caught.value)


@pytest.mark.parametrize("name, extra", [("gpu:h100", "gpu-target"), ("tpu:v5e:2x2", "tpu-target")])
def test_a_missing_wheel_names_the_extra_that_brings_it(monkeypatch, name, extra):
  monkeypatch.setattr(targets, "_is_installed", lambda module: False)
  with pytest.raises(coopjax.MissingWheelError, match=rf"pip install 'coopjax\[{extra}\]'"):
    coopjax.remat(loss, budget=0.5, target=name)
  with pytest.raises(ImportError, match=name):
    dataclasses.replace(targets.resolve(name), memory_bytes=1).load()


def test_targets_are_described_without_their_compilers():
  eight, one = targets.resolve("gpu:h100:8"), targets.resolve(" GPU:H100 ")
  assert (eight.num_devices, one.num_devices, one.name) == (8, 1, "gpu:h100")
  assert targets.resolve("tpu:v4:2x2x1").num_devices == 8 and targets.resolve("tpu:v5e:16x16").num_devices == 256
  slow, fast = targets.resolve("gpu:a100"), targets.resolve("gpu:h200")
  assert slow.flops_per_s < fast.flops_per_s and one.memory_bytes < fast.memory_bytes
  for target in (one, slow, fast, targets.resolve("tpu:v5e:2x2"), targets.running()):
    assert target.host_bytes_per_s <= target.bytes_per_s < target.flops_per_s


def test_the_cpu_as_a_target_is_the_cpu():
  fn, *args = models.mlp(depth=6, batch=256)
  named, default = (coopjax.plan(fn, *args, budget=0.5, target=target) for target in ("cpu", None))
  assert named.target == "cpu" and default.target is None and named.fits
  assert dataclasses.replace(named, target=None) == default
  assert targets.resolve("cpu").is_running


def test_a_plan_of_the_hlo_engine_for_other_hardware_says_that_it_does_nothing_here():
  fn, *args = models.mlp(depth=6, batch=256)
  plan = dataclasses.replace(coopjax.plan(fn, *args, budget=0.5, engine="hlo"), target="gpu:h100")
  with pytest.warns(coopjax.RematNoEffectWarning, match="gpu:h100.*engine='policy'"):
    plan.apply(fn)(*args)


@needs_compilers
def test_every_named_target_has_its_devices():
  for name in targets.NAMES:
    target = targets.resolve(name)
    assert len(target.devices) >= target.num_devices and target.devices[0].platform == target.platform
  with pytest.raises(coopjax.UnknownTargetError, match="no such topology"):
    targets.resolve("tpu:v5e:3x5").load()


@needs_compilers
@pytest.mark.parametrize("name", ["tpu:v5e:4x4", "tpu:v5p:2x2x1"])
def test_a_topology_that_a_trainer_asked_for_itself_is_the_target(name):
  targets.resolve(name).load()  # libtpu, without what it looks for on a TPU's host
  devices = topologies.get_topology_desc(name.removeprefix("tpu:"), platform="tpu").devices
  mesh = jax.sharding.Mesh(np.array(devices), ("data",))
  spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  one = jax.sharding.SingleDeviceSharding(devices[1])
  target = targets.resolve(targets.of_arguments(jax.ShapeDtypeStruct((16, 8), "float32", sharding=spread)))
  assert target.name == name and len(devices) == target.num_devices
  assert target.moved([spread, one, None]) == [spread, one, None]
  loss = lambda weight, x: jnp.mean(jax.checkpoint(jnp.tanh)(x @ weight) ** 2)
  shapes = [jax.ShapeDtypeStruct((512, 512), "float32", sharding=spread)] * 2
  with coopjax.plan_steps("1GiB") as steps:
    fitted = jax.jit(jax.grad(loss), in_shardings=(spread, spread)).lower(*shapes).compile()
  (plan,) = steps.plans
  assert (plan.target, plan.num_devices) == (name, len(devices)) and plan.measured.temp_bytes == temp_bytes(fitted)


@needs_compilers
@pytest.mark.parametrize("name", ["gpu:a100", "gpu:h100", "gpu:h200"])
def test_a_gpu_plan_is_what_the_compiled_program_takes(name):
  fn, *args = chain()
  plan = coopjax.plan(fn, *args, budget=0.7, target=name)
  assert plan.engine == ("policy" if compat.hook_platform("gpu") is None else "hlo") and plan.target == name
  assert plan.fits and plan.measured.temp_bytes <= plan.budget_bytes == int(0.7 * plan.baseline.temp_bytes)
  assert plan.measured.peak_live_bytes <= plan.measured.temp_bytes
  assert [decision for decision in plan.decisions if decision.decision == "recomputed"]
  assert coopjax.RematPlan.from_json(plan.to_json()).target == name


@needs_compilers
def test_for_a_schedule_a_gpu_that_is_not_there_tunes_no_kernels_and_it_takes_the_same(monkeypatch):
  options, compile_lowered = [], jax.stages.Lowered.compile

  def compiling(lowered, compiler_options=None):
    options.append(compiler_options or {})
    return compile_lowered(lowered, compiler_options)

  monkeypatch.setattr(jax.stages.Lowered, "compile", compiling)
  gpu, args = targets.resolve("gpu:h100"), shapes(2**12)
  untuned, whole = (compile_trial(*program(loss, args), gpu, to_schedule=to_schedule) for to_schedule in (True, False))
  assert ["xla_gpu_autotune_level" in each for each in options] == [True, False]
  assert measure(untuned).temp_bytes == measure(whole).temp_bytes


@needs_compilers
def test_a_tpu_plan_is_carried_out_on_the_cpu_by_the_policy_engine():
  plan = coopjax.plan(loss, *shapes(2**18), budget=0.6, target="tpu:v5e:2x2")
  assert plan.engine == "policy" and plan.fits and plan.measured.temp_bytes <= 0.6 * plan.baseline.temp_bytes
  assert plan.baseline.temp_bytes > 2 * GIB
  decided = program(plan.apply(loss), shapes(2**18))
  compiled = compile_abstract(*decided, targets.resolve("tpu:v5e:2x2"))
  assert compiled.memory_analysis().temp_size_in_bytes == plan.measured.temp_bytes
  assert "rematted_computation" in compiled.as_text()


@needs_compilers
@pytest.mark.parametrize("name, rows", [("gpu:h100", 2**12), ("tpu:v5e:2x2", 2**18)])
def test_remat_for_a_target_runs_here_with_the_same_gradients(name, rows):
  fitted = coopjax.remat(loss, budget=0.6, target=name)
  step, args = jax.jit(jax.value_and_grad(fitted)), shapes(rows)
  assert "rematted_computation" in step.lower(*args).as_text(debug_info=True)
  if rows == 2**12:  # the other is too large to be run in a test
    weights, x = jax.random.normal(jax.random.key(0), args[0].shape) / 16, jnp.ones(args[1].shape)
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8),
      step(weights, x),
      jax.jit(jax.value_and_grad(loss))(weights, x),
    )


@needs_compilers
def test_what_does_not_fit_is_planned_all_the_same():
  args, target = shapes(2**21, depth=16), targets.resolve("tpu:v5e:2x2")  # 16 residuals of 2 GiB, 15.75 GiB of memory
  baseline = compile_trial(*program(loss, args), target)
  assert isinstance(baseline, OversizedProgram) and measure(baseline).temp_bytes > 16 * GIB
  with pytest.raises(coopjax.CompileMemoryError, match="loss_and_gradient.*tpu:v5e:2x2.*15.75 GiB") as caught:
    compile_abstract(*program(loss, args), target)
  assert caught.value.memory_bytes == target.memory_bytes and "smaller budget or batch" in caught.value.__notes__[0]
  body = lambda x, weight: (jnp.tanh(x @ weight), None)
  block = lambda x, weights: jax.lax.scan(body, x, weights)
  deep = lambda weights, x: jnp.mean(jax.lax.scan(block, x, weights.reshape(4, 4, 256, 256))[0] ** 2)
  plan = coopjax.plan(deep, *shapes(2**20, depth=16), budget=coopjax.Budget.total("15GiB"), target=target.name)
  assert plan.fits and plan.measured.total_bytes <= 15 * GIB < target.memory_bytes < plan.baseline.total_bytes


@needs_compilers
def test_turns_of_a_loop_are_counted_where_xla_does_not_write_them_down():
  def profile_of(num_layers):
    weights = jax.ShapeDtypeStruct((num_layers, 512, 512), "bfloat16")
    loss = lambda weights, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()
    x = jax.ShapeDtypeStruct((1024, 512), "bfloat16")
    target = targets.resolve("tpu:v5e:2x2")
    return measure(compile_trial(*fn_and_gradient(differentiable(trace(loss, (weights, x)))), target), target)

  few, many = profile_of(4), profile_of(16)
  products = 3 * 2 * 1024 * 512 * 512  # of a layer, with its gradient
  assert 16 * products <= many.flops <= 1.2 * 16 * products
  assert 3 < many.flops / few.flops < 5 and 2 < many.modelled_s / few.modelled_s < 6


@needs_compilers
def test_xla_does_not_rematerialize_while_we_plan():
  fn, *args = models.mlp(depth=8, width=512, batch=8)
  args = jax.eval_shape(lambda: args)[0], jax.ShapeDtypeStruct((2**20, 512), jnp.float32)  # residuals of 2 GiB
  target = targets.resolve("tpu:v5e:2x2")
  fn, avals = program(fn, args)
  avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=target.sharding) for aval in avals]
  by_xla, ours = measure(jax.jit(fn).lower(*avals).compile()), measure(compile_trial(fn, avals, target))
  assert by_xla.total_bytes < target.memory_bytes < ours.total_bytes


@needs_compilers
def test_a_gpu_program_larger_than_the_gpu_is_refused():
  args = shapes(2**24)  # 16 GiB each
  assert measure(compile_trial(*program(loss, args), targets.resolve("gpu:h100"))).temp_bytes > 79 * GIB
  with pytest.raises(coopjax.CompileMemoryError, match="gpu:h100.*79.10 GiB.*arguments, outputs and temporaries take"):
    compile_abstract(*program(loss, args), targets.resolve("gpu:h100"))


@needs_compilers
def test_sharded_programs_are_planned_per_device_of_the_target():
  mesh = jax.sharding.AbstractMesh((4,), ("data",), (jax.sharding.AxisType.Auto,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  four = coopjax.plan(loss, *shapes(2**12, sharding=sharding), budget=0.7, target="gpu:h100:4", engine="policy")
  one = measure(compile_trial(*program(loss, shapes(2**12)), targets.resolve("gpu:h100")))
  assert four.fits and four.baseline.temp_bytes < 0.3 * one.temp_bytes
  with pytest.raises(coopjax.UnknownTargetError, match="has 1 devices.*mesh of 4"):
    coopjax.plan(loss, *shapes(2**12, sharding=sharding), budget=0.7, target="gpu:h100")


@needs_compilers
def test_the_hlo_engine_is_refused_where_it_can_not_work(monkeypatch):
  monkeypatch.setattr(compat, "hook_platform", lambda backend: None)
  with pytest.raises(ValueError, match="engine='hlo'.*no HLO hook on tpu"):
    coopjax.plan(loss, *shapes(2**18), budget=0.6, target="tpu:v5e:2x2", engine="hlo")


@pytest.mark.parametrize(
  "arguments",
  [
    pytest.param(["--target", "cpu", *SMALL], id="cpu", marks=pytest.mark.sweep),
    pytest.param(["--target", "tpu:v5e:2x2", *LARGER], id="tpu", marks=needs_compilers),
  ],
)
def test_the_example_shows_before_and_after_and_what_is_recomputed(arguments):
  done = subprocess.run(
    [sys.executable, "-m", "tests.support.quick", str(ROOT / "examples" / "plan_for_v5e.py"), *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert "no remat" in done.stdout and "held with" in done.stdout and arguments[1] in done.stdout
  recomputed = done.stdout.partition("\nrecomputed: ")[2]
  assert "plan_for_v5e.py:" in recomputed and "(Decoder.block)" in recomputed


@pytest.mark.sweep
def test_the_benchmark_measures_and_joins_what_was_measured(monkeypatch, tmp_path):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  backends, path = importlib.import_module("backends"), tmp_path / "backends.json"
  kept, replaced = (
    {
      "target": "cpu",
      "form": "unrolled",
      "dtype": "f32",
      "variant": variant,
      "budget": None,
      "size": [2, 16, 16, 2, 2, 32],
    }
    for variant in ("an older one", "no remat")
  )
  path.write_text(json.dumps({"rows": [kept, replaced]}))
  monkeypatch.setattr(
    sys,
    "argv",
    [
      "backends.py",
      "--targets",
      "cpu",
      "--forms",
      "unrolled",
      "--dtypes",
      "f32",
      "--budgets",
      "0.7",
      "--size",
      "2",
      "16",
      "16",
      "2",
      "2",
      "32",
      "--out",
      str(path),
      "--again",
    ],
  )
  backends.main()
  rows = {row["variant"]: row for row in json.loads(path.read_text())["rows"]}
  assert kept in rows.values() and replaced not in rows.values()
  plain, fitted, peer = rows["no remat"], rows["coopjax 70%"], rows["jax.checkpoint per layer"]
  assert fitted["within_budget"] == (fitted["temp_bytes"] <= fitted["budget"]) and peer["recomputed_flops"] > 0
  assert fitted["budget"] == int(0.7 * plain["temp_bytes"])
