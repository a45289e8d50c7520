"""What is read from dumps of the examples' models is what XLA says of them, to the byte: CPU, H100 and TPU v5e.

XLA's own figures are the executable's `memory_analysis` and the report of memory usage that stands in the dump.
On a TPU the two differ: see docs/reading_a_dump.md.
"""

import functools
import importlib
import re

import jax
import jax.numpy as jnp
import optax
import pytest

import coopjax
from coopjax.report import dump
from coopjax.xla import targets
from tests.support import ROOT

TARGETS = ["cpu", *(pytest.param(name, marks=pytest.mark.targets) for name in ("gpu:h100", "tpu:v5e:2x2"))]


def gpt_step():
  gpt = importlib.import_module("gpt")
  config = gpt.GPTConfig(num_layers=2, width=64, num_heads=2, context=64, batch_size=2)
  loss, params = gpt.make_loss(config)
  optimizer = optax.adamw(1e-3)
  batch = jax.ShapeDtypeStruct((config.batch_size, config.context + 1), jnp.uint8)
  return gpt.make_train_step(loss, optimizer), (params, optimizer.init(params), batch)


def resnet_step():
  resnet = importlib.import_module("flax_resnet")
  model, optimizer = resnet.ResNet(resnet.Block, width=8, blocks=1), optax.sgd(0.1)
  images, labels = jax.ShapeDtypeStruct((8, *resnet.SHAPE), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.int32)
  variables = jax.eval_shape(functools.partial(model.init, train=True), jax.random.key(0), images)
  params, batch_stats = variables["params"], variables["batch_stats"]
  state = params, batch_stats, jax.eval_shape(optimizer.init, params)
  return resnet.make_step(model, optimizer), (state, (images, labels))


@pytest.fixture(params=[gpt_step, resnet_step], ids=["gpt", "resnet"])
def step(request, monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "examples")
  return request.param()


def reported_bytes(directory):
  """The total that XLA's own report of memory usage gives for the device's main memory."""
  (report,) = directory.glob("*after_optimizations-memory-usage-report.txt")
  return int(re.match(r"Memory Space: default \(color=0\)\nTotal bytes: (\d+)", report.read_text())[1])


def not_in_totals(found):
  """Bytes of constants and of what computations called per element hold: in XLA's report, not in a program's totals."""
  return sum(
    each.bytes for each in found.assignment.allocations if not each.color and (each.is_constant or each.is_thread_local)
  )


@pytest.mark.parametrize("target", TARGETS)
def test_totals_are_xlas(step, target, tmp_path):
  fn, arguments = step
  device = targets.resolve(target)
  arguments = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device.sharding), arguments
  )
  lowered = fn.lower(*arguments)
  for form, options in (("text", {"xla_dump_hlo_as_text": True}), ("proto", {"xla_dump_hlo_as_proto": True})):
    directory = tmp_path / form
    stats = lowered.compile(compiler_options={"xla_dump_to": str(directory), **options}).memory_analysis()
    profile, found = coopjax.inspect(directory), dump.read(directory)
    assert profile.argument_bytes == stats.argument_size_in_bytes and not profile.is_predicted
    assert profile.output_bytes == stats.output_size_in_bytes and profile.alias_bytes == stats.alias_size_in_bytes > 0
    if device.platform != "tpu":
      assert profile.temp_bytes == stats.temp_size_in_bytes
    if form == "text":
      assert profile.total_bytes + not_in_totals(found) == reported_bytes(directory)
    else:
      assert profile.total_bytes == coopjax.inspect(tmp_path / "text").total_bytes
    assert profile.temp_bytes > 0 and any(buffer.source for buffer in profile.at_peak())
