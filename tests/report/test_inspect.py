"""What `coopjax.inspect` reads, against XLA's own numbers, and what it says of files that it can't read."""

import gzip
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax.errors import DumpError
from coopjax.memory_profile import Buffer
from coopjax.report import dump
from tests.support import models


def mlp(weights, x):
  for i, weight in enumerate(weights):
    with jax.named_scope(f"block_{i}"):
      x = jnp.tanh(x @ weight)  # the line that holds the bytes
  return jnp.mean(x**2)


LINE = f"{__file__}:{mlp.__code__.co_firstlineno + 3}"
WEIGHTS, X = [jnp.eye(64)] * 6, jnp.ones((512, 64))


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
  """The same program, dumped as text and as proto, and compiled."""
  directory = tmp_path_factory.mktemp("dumps")
  lowered = jax.jit(jax.value_and_grad(mlp)).lower(WEIGHTS, X)
  lowered.compile(compiler_options={"xla_dump_to": str(directory / "proto"), "xla_dump_hlo_as_proto": True})
  lowered.compile(compiler_options={"xla_dump_to": str(directory / "text"), "xla_dump_hlo_as_text": True})
  return directory, lowered.compile()


def find(directory, suffix):
  (path,) = (path for path in directory.iterdir() if path.name.endswith(suffix))
  return path


def assert_matches(profile, compiled):
  stats = compiled.memory_analysis()
  assert profile.temp_bytes == stats.temp_size_in_bytes
  assert profile.argument_bytes == stats.argument_size_in_bytes
  assert profile.output_bytes == stats.output_size_in_bytes
  assert profile.alias_bytes == stats.alias_size_in_bytes


def test_totals_are_xlas_in_every_form(dumps):
  directory, compiled = dumps
  proto, text = (
    find(directory / "proto", "after_optimizations.hlo.pb"),
    find(directory / "text", "after_optimizations.txt"),
  )
  assignment = find(directory / "text", "after_optimizations-buffer-assignment.txt")
  for source in (directory / "proto", directory / "text", proto, str(text), assignment, compiled):
    profile = coopjax.inspect(source)
    assert_matches(profile, compiled)
    assert not profile.is_predicted


def test_values_of_loops_are_read_from_text_too(tmp_path):
  loss = lambda weights, x: jnp.mean(jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0])
  lowered = jax.jit(jax.grad(loss)).lower(jnp.ones((4, 64, 64)), jnp.ones((512, 64)))
  found = {}
  for form in ("proto", "text"):
    lowered.compile(compiler_options={"xla_dump_to": str(tmp_path / form), f"xla_dump_hlo_as_{form}": True})
    buffers = coopjax.inspect(tmp_path / form).buffers
    found[form] = {(each.name, each.type, each.num_bytes, each.allocation, each.offset) for each in buffers}
  assert found["text"] == found["proto"] and any(name.startswith("while") for name, *_ in found["text"])


def test_text_without_a_buffer_assignment_is_modelled_and_says_so(dumps, tmp_path):
  directory, compiled = dumps
  alone = shutil.copy(find(directory / "text", "after_optimizations.txt"), tmp_path)
  profile = coopjax.inspect(alone)
  assert profile.is_predicted
  assert_matches(profile, compiled)


def test_buffers_at_the_peak_fill_it_and_name_their_lines(dumps):
  directory, _compiled = dumps
  profile = coopjax.inspect(directory / "proto")
  peak = profile.at_peak()
  assert profile.peak_live_bytes == max(profile.live_bytes) <= profile.temp_bytes
  assert (
    sum(buffer.num_bytes for buffer in peak) >= profile.peak_live_bytes
  )  # more where one takes over another's memory
  residuals = [buffer for buffer in peak if buffer.kind == "residual"]
  assert len(residuals) >= 5 and all(buffer.num_bytes == 512 * 64 * 4 for buffer in residuals)
  assert {buffer.source for buffer in residuals} == {LINE}
  (line, *_), scopes = profile.grouped(peak, "line"), profile.grouped(peak, "layer")
  assert line.key == LINE and line.num_buffers >= 5
  assert {f"block_{i}" for i in range(5)} <= {group.key for group in scopes}


def test_costs_rank_the_bytes_at_the_peak(dumps):
  profile = coopjax.inspect(dumps[1])
  ranked = sorted(
    (buffer for buffer in profile.at_peak() if buffer.cost_rank >= 0), key=lambda buffer: buffer.cost_rank
  )
  assert len(ranked) >= 5
  densities = [buffer.cost_s / buffer.num_bytes for buffer in ranked]
  assert densities == sorted(densities) and densities[0] > 0


def test_a_buffer_lies_where_no_other_does_at_its_time(dumps):
  buffers = [b for b in coopjax.inspect(dumps[1]).temporaries if b.start >= 0]
  for one in buffers:
    for other in buffers:
      apart = one.offset + one.num_bytes <= other.offset or other.offset + other.num_bytes <= one.offset
      handed_over = one.offset == other.offset and (one.end - 1 == other.start or other.end - 1 == one.start)
      assert one is other or apart or handed_over or one.end <= other.start or other.end <= one.start


@pytest.mark.parametrize("share", [0.5])
def test_a_plan_shows_its_compiled_totals(share):
  plan = coopjax.plan(mlp, WEIGHTS, X, budget=share)
  assert coopjax.inspect(plan) is plan.measured


def test_several_modules_are_listed_and_the_largest_is_taken(dumps, tmp_path):
  directory, compiled = dumps
  for path in (directory / "proto").iterdir():
    if path.is_file():
      shutil.copy(path, tmp_path)
  small = jax.jit(lambda x: x * 2 + 1).lower(X)
  small.compile(compiler_options={"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True})
  names = [file.name for file in dump.list_modules(tmp_path)]
  assert len(names) == 2 and names[0].endswith("jit_mlp")
  assert_matches(coopjax.inspect(tmp_path), compiled)
  assert coopjax.inspect(tmp_path, module="lambda").temp_bytes == 0
  with pytest.raises(DumpError, match="no module in .* is called 'train'.*jit_mlp"):
    coopjax.inspect(tmp_path, module="train")


def test_gzip_is_read(dumps, tmp_path):
  directory, compiled = dumps
  texts = (directory / "text").glob("*after_optimizations*.txt")
  for path in (find(directory / "proto", "after_optimizations.hlo.pb"), *texts):
    (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
  for path in tmp_path.glob("*after_optimizations.*.gz"):
    assert_matches(coopjax.inspect(path), compiled)
  assert not coopjax.inspect(tmp_path).is_predicted


def test_damaged_and_foreign_files_are_refused_with_what_was_expected(dumps, tmp_path):
  directory, _ = dumps
  proto = find(directory / "proto", "after_optimizations.hlo.pb").read_bytes()
  text = find(directory / "text", "after_optimizations.txt").read_text()
  before = find(directory / "proto", "before_optimizations.hlo.pb").read_bytes()
  cases = {
    "empty.hlo.pb": b"",
    "cut.hlo.pb": proto[: len(proto) // 2],
    "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "cut.txt": text[: len(text) // 2].encode(),
    "cut_between.txt": text[: text.index("\nENTRY ")].encode(),  # whole computations
    "notes.txt": b"a shopping list\n",
    "cut.gz": gzip.compress(proto)[:-20],
    "unscheduled.hlo.pb": before,
    "x-buffer-assignment.txt": b"BufferAssignment:\n",
  }
  for name, content in cases.items():
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DumpError, match=f"(?s){name}.*expected a directory that --xla_dump_to wrote"):
      coopjax.inspect(tmp_path / name)
  with pytest.raises(DumpError, match="holds no final module.*9 other files"):
    coopjax.inspect(tmp_path)
  with pytest.raises(DumpError, match="does not exist"):
    coopjax.inspect(tmp_path / "nowhere")
  with pytest.raises(DumpError, match="not a function.*jax.jit"):
    coopjax.inspect(mlp)


def test_scopes_lose_what_jax_puts_around_them():
  scope = "jit(step)/transpose(jvp(ResNet))/jvp(while)/body/Block_3/checkpoint/Conv_0/coop12/conv_general_dilated"
  buffer = Buffer("fusion", "f32[8]", 32, scope=scope)
  assert buffer.module_path == "ResNet/Block_3/Conv_0" and buffer.layer == "ResNet/Block_3"
  assert Buffer("fusion", "f32[8]", 32, scope="jit(loss)/jvp(a/b)/tanh").module_path == "a/b"
  assert Buffer("copy", "f32[8]", 32).module_path == ""
  assert Buffer("copy", "f32[8]", 32, scope="jit(loss)/a/transpose;jit(loss)/b/add").module_path == "a"


def test_scopes_in_loops_are_the_users():
  def loss(weights, x):
    def block(x, weight):
      with jax.named_scope("mlp"):
        return jnp.tanh(x @ weight), None

    return jnp.mean(jax.lax.scan(block, x, weights)[0])

  compiled = jax.jit(jax.grad(loss)).lower(jnp.ones((4, 64, 64)), jnp.ones((512, 64))).compile()
  assert {buffer.module_path for buffer in coopjax.inspect(compiled).temporaries} == {"", "mlp"}


@pytest.mark.parametrize("scan", [False, True])
def test_a_decoder_with_and_without_a_loop(scan):
  loss, params, ids = models.gpt(scan=scan)
  compiled = jax.jit(jax.grad(loss)).lower(params, ids).compile()
  profile = coopjax.inspect(compiled)
  assert_matches(profile, compiled)
  assert 0 < profile.peak_live_bytes <= profile.temp_bytes and np.min(profile.live_bytes) >= 0
  assert json.loads(json.dumps(profile.to_dict()))["peak_step"] == profile.peak_step
