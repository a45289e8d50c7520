"""What a scan stacks for its backward pass has the line and scope of what makes it."""

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.report import tables


def block(x, weights):
  with jax.named_scope("mlp"):
    up = jnp.sin(x @ weights["up"])
    return x + up @ weights["down"], None


def loss(weights, x):
  return jnp.mean(jax.lax.scan(block, x, weights)[0] ** 2)


def line_of(text):
  with open(__file__) as file:
    return f"{__file__}:{next(number for number, line in enumerate(file, 1) if text in line)}"


@pytest.mark.parametrize("form", ["compiled", "proto", "text"])
def test_stacked_residuals_have_the_line_that_makes_them(form, tmp_path):
  weights = {"up": jnp.ones((4, 64, 256)), "down": jnp.ones((4, 256, 64))}
  lowered = jax.jit(jax.grad(loss)).lower(weights, jnp.ones((512, 64)))
  if form == "compiled":
    profile = coopjax.inspect(lowered.compile())
  else:
    lowered.compile(compiler_options={"xla_dump_to": str(tmp_path), f"xla_dump_hlo_as_{form}": True})
    profile = coopjax.inspect(tmp_path)
  stacks = [buffer for buffer in profile.at_peak() if buffer.type == "f32[4,512,256]"]
  assert stacks and all(buffer.source == line_of("jnp.sin(") for buffer in stacks)
  assert {buffer.layer for buffer in stacks} == {"mlp"} and all("(block)" in buffer.frames[0] for buffer in stacks)
  assert {buffer.argument for buffer in profile.arguments} == {"weights['up']", "weights['down']", "x"}


def test_what_a_loops_body_is_called_with_has_the_layer_and_is_no_argument():
  weights = {"up": jnp.ones((4, 64, 256)), "down": jnp.ones((4, 256, 64))}
  profile = coopjax.inspect(jax.jit(jax.grad(loss)).lower(weights, jnp.ones((512, 64))).compile())
  of_sine = [buffer for buffer in profile.buffers if buffer.source == line_of("jnp.sin(")]
  in_body = [buffer for buffer in of_sine if buffer.op == "parameter" and buffer.type == "f32[4,512,256]"]
  assert in_body and {buffer.layer for buffer in in_body} == {"mlp"} and not any(b.argument for b in in_body)
  (row,) = tables.group_rows(profile, in_body, "layer")
  assert row[1] == f"{sum(buffer.num_bytes for buffer in in_body) / profile.peak_live_bytes:.1%}"  # of the peak


def test_what_a_loop_carries_unchanged_keeps_the_line_of_the_scan():
  jax.clear_caches()  # JAX 0.11 gives all stacks the line of the process's first scan
  scanned = lambda weights, x: jnp.mean(jax.lax.scan(lambda x, w: (x * w, None), x, weights)[0])
  profile = coopjax.inspect(jax.jit(jax.grad(scanned)).lower(jnp.ones(4), jnp.ones((512, 256))).compile())
  (stack,) = (buffer for buffer in profile.at_peak() if buffer.type == "f32[4,512,256]")
  assert stack.source == line_of("scanned = lambda")


def test_frames_around_a_trace_in_a_trace_are_told_once():
  def loss(weights, x):
    layer = jax.checkpoint(lambda x, weight: jnp.tanh(x @ weight))
    return jnp.sum(jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0])

  step = jax.jit(lambda weights, x: jax.grad(loss)(weights, x))
  compiled = step.lower(jnp.ones((4, 64, 64)), jnp.ones((256, 64))).compile()
  stacks = {tuple(filter(lambda frame: __file__ in frame, b.frames)) for b in coopjax.inspect(compiled).buffers}
  assert max(map(len, stacks)) == 5 and all(len(set(frames)) == len(frames) for frames in stacks)
