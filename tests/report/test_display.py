"""Profiles and plans in notebooks: HTML, pictures, data frames, and what is said where a package is missing."""

import dataclasses
import sys

import jax
import pytest

import coopjax
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
