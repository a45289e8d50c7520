"""The HTML report: one file, all of the profile in it, nothing fetched, nothing that a name could break."""

import html.parser
import json
import re

import jax
import jax.numpy as jnp

import coopjax
from coopjax.cli import main
from coopjax.memory_profile import Buffer, MemoryProfile
from coopjax.report.html import to_html
from tests.support import models
from tests.support.profiles import profile_with


class _Reader(html.parser.HTMLParser):
  """Collects the tags with their attributes, and the text of the data script."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.data, self.title, self._inside = [], "", "", ""
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    attributes = dict(attributes)
    self.tags.append((tag, attributes))
    self._inside = attributes.get("id", tag)

  def handle_data(self, data):
    if self._inside in ("data", "title"):
      setattr(self, self._inside, getattr(self, self._inside) + data)

  def handle_endtag(self, tag):
    self._inside = ""


def compiled_step():
  fn = lambda weight, x: jnp.tanh(jnp.tanh(x @ weight) @ weight).sum()
  return jax.jit(jax.value_and_grad(fn)).lower(jnp.eye(64), jnp.ones((512, 64))).compile()


def test_the_report_holds_the_profile_and_fetches_nothing():
  profile = coopjax.inspect(compiled_step())
  text = to_html(profile, budget_bytes=12345)
  read = _Reader(text)
  data = json.loads(read.data)
  (program,) = data["programs"]
  assert data["budget_bytes"] == 12345
  assert program["temp_bytes"] == profile.temp_bytes and program["live_bytes"] == list(profile.live_bytes)
  sources = [program["texts"][i] for i in program["columns"]["source"]]
  assert sources == [buffer.source for buffer in profile.buffers]
  assert program["columns"]["num_bytes"] == [buffer.num_bytes for buffer in profile.buffers]
  assert not [tag for tag, attributes in read.tags if {"src", "href"} & set(attributes)]
  assert not re.search(r"https?://|@import|url\(", text)


def test_names_cannot_break_the_page():
  name = "</script><script>alert(1)</script>"
  buffer = Buffer(name, "f32[1]", 4, start=0, end=1, source=name, scope=f"{name}/add")
  read = _Reader(to_html(MemoryProfile(4, peak_live_bytes=4, live_bytes=(4,), name=name, buffers=(buffer,))))
  assert [tag for tag, _ in read.tags].count("script") == 2
  assert read.title == f"coopjax: memory of {name}"
  assert json.loads(read.data)["programs"][0]["texts"][0] == name


def test_twenty_thousand_buffers_stay_under_five_megabytes():
  text = to_html(profile_with(20_000))
  assert len(text.encode()) < 5_000_000


def test_before_after_and_the_decisions_of_a_plan(tmp_path, capsys):
  loss, *arguments = models.mlp(depth=8)
  plan = coopjax.plan(loss, *arguments, budget=0.6)
  plan.save(tmp_path / "plan.json")
  for name, fn in (("before", loss), ("after", plan.apply(loss))):
    options = {"xla_dump_to": str(tmp_path / name), "xla_dump_hlo_as_proto": True}
    jax.jit(jax.value_and_grad(fn, argnums=(0, 1))).lower(*arguments).compile(compiler_options=options)
  paths = [str(tmp_path / name) for name in ("before", "after", "plan.json", "report.html")]
  assert main.main(["report", paths[0], paths[1], "--plan", paths[2], "-o", paths[3]]) == 0
  assert paths[3] in capsys.readouterr().out
  data = json.loads(_Reader((tmp_path / "report.html").read_text()).data)
  before, after = data["programs"]
  assert (before["label"], after["label"]) == ("before", "after")
  assert after["temp_bytes"] <= plan.budget_bytes == data["budget_bytes"] < before["temp_bytes"]
  assert [decision["decision"] for decision in data["plan"]["decisions"]] == [d.decision for d in plan.decisions]
