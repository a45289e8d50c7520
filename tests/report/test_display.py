"""Profiles and plans in notebooks: HTML, pictures, data frames, and what is said where a package is missing."""

import dataclasses
import sys

import jax
import pytest

import coopjax
from coopjax import display, errors
from coopjax.planning.decision import Decision
from coopjax.planning.remat_plan import RegionPlan
from coopjax.report import tables
from tests.support import models


@pytest.fixture(scope="module")
def plan():
  loss, *arguments = models.mlp(depth=8, batch=256)
  return coopjax.plan(loss, *arguments, budget=0.6)


@pytest.fixture(scope="module")
def profile():
  loss, weights, x = models.mlp(depth=8, batch=256)
  return coopjax.inspect(jax.jit(jax.grad(loss)).lower(weights, x).compile())


def test_html_shows_the_totals_and_the_largest_and_escapes(plan, profile):
  shown = profile._repr_html_()
  assert "temporaries" in shown and "models.py:" in shown and profile.at_peak()[0].type in shown
  buffer = dataclasses.replace(profile.buffers[0], name="<script>", memory="temporary", start=0, end=99)
  assert "<script>" not in dataclasses.replace(profile, buffers=(buffer,), live_bytes=())._repr_html_()
  many = dataclasses.replace(profile, buffers=(buffer,) * 30, live_bytes=())._repr_html_()
  assert many.count("&lt;script&gt;") == 20 and "and 10 more" in many
  shown = plan._repr_html_()
  assert "recomputed" in shown and "models.py:" in shown and "fits" in shown
  assert "<table></table>" in plan.measured._repr_html_().replace("<tr></tr>", "")  # totals alone


def test_pictures_show_live_bytes_or_totals(plan, profile):
  assert len(profile.plot().patches) == 1
  axes = plan.plot()
  labels = [text.get_text() for text in axes.get_legend().get_texts()]
  assert labels == ["no remat", "planned", "budget"]
  bare = dataclasses.replace(plan, baseline=dataclasses.replace(plan.baseline, live_bytes=()))
  assert len(bare.plot(axes.figure.add_subplot()).containers) == 1
  assert len(dataclasses.replace(profile, live_bytes=()).plot().containers) == 1


def test_frames_have_a_row_for_each(plan, profile):
  buffers, decisions = profile.to_frame(), plan.to_frame()
  assert len(buffers) == len(profile.buffers) and buffers.num_bytes.max() == max(b.num_bytes for b in profile.buffers)
  assert {"source", "layer", "dtype", "cost_s"} <= set(buffers.columns)
  assert len(decisions) == len(plan.decisions) and set(decisions.decision) == {"saved", "recomputed"}
  assert plan.to_dict()["budget_bytes"] == plan.budget_bytes


@pytest.mark.parametrize(
  "package, show, brings", [("pandas", "to_frame", "pandas"), ("matplotlib.pyplot", "plot", "'coopjax\\[cli\\]'")]
)
def test_a_missing_package_is_named(monkeypatch, plan, package, show, brings):
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(coopjax.MissingPackageError, match=f"pip install {brings}"):
    getattr(plan, show)()


def test_no_text_of_the_users_reaches_a_terminal_as_it_is(plan, profile):
  ugly = "esc\x1b[31m\nnext\u202e"
  decision = Decision(ugly, "f32[8]", ugly, ugly, 2**20, "recomputed", 1, 1e-3, "dot_general")
  region = RegionPlan("", ugly, 1, None, 0, 0.0)
  told = dataclasses.replace(plan, name=ugly, rounds=(ugly,), decisions=(decision,), regions=(region,))
  escaped = r"esc\x1b[31m\nnext\u202e"
  assert tables.headline(dataclasses.replace(profile, name=ugly))[0].startswith(f"{escaped}: ")
  assert display.wrapped(ugly) == "esc\\x1b[31m\nnext\\u202e"  # whose lines are lines
  assert told.explain().replace("\n", "").isprintable() and told.headline() in told.explain()
  lines = told.explain().splitlines()
  assert len(lines) == len(dataclasses.replace(told, name="", rounds=("",)).explain().splitlines())
  assert sum(escaped in line for line in lines) == 6  # headline, region, round, row, rung, name that is not saved
  assert escaped in told._repr_html_() and "\x1b" not in told._repr_html_()


def test_errors_and_warnings_show_text_of_the_users_escaped():
  with pytest.raises(coopjax.PolicyNamesError) as caught:
    raise coopjax.PolicyNamesError("one line\nand\x1b[31m another")
  assert str(caught.value) == "one line\nand\\x1b[31m another"
  with pytest.warns(coopjax.CacheWarning, match=r"^a\\x07b$"):
    errors.warn("a\x07b", coopjax.CacheWarning)
