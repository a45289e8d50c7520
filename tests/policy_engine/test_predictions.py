"""What trials let expect of scan bodies: the errors of those alike, and their slope where estimates show one."""

import types

import numpy as np
import pytest

from coopjax.policy_engine.expected_gain import ExpectedGain
from coopjax.policy_engine.forecast import Forecast
from coopjax.policy_engine.predictions import HloEngineShare, Trial, expected_flops, predicted_bytes


class Known(types.SimpleNamespace):
  """A candidate, as far as it is looked at; known by itself."""

  __hash__ = object.__hash__


def body(estimated, *saved, loops=(0,)):
  return Known(
    estimated_bytes=float(estimated),
    has_loops=True,
    loops=loops,
    traits=frozenset((0, i, 0) for i in saved),
    is_grouped=False,
  )


def tried(*pairs):
  return [Trial(body(estimated, i), compiled, None) for i, (estimated, compiled) in enumerate(pairs)]


@pytest.mark.parametrize("slope", [1 / 8, 1.0, 2.0])  # a device's part, the same, stacks that count twice
def test_errors_that_grow_with_the_bytes_go_on_growing(slope):
  trials = tried((800, slope * 800 + 50), (1200, slope * 1200 + 50))
  for estimated in (600, 1000, 1600):
    wanted = slope * estimated + 50
    assert (
      abs(predicted_bytes(body(estimated, 9), trials, 1.0) - wanted)
      <= 0.25 * abs(1 - slope) * abs(estimated - 1000) + 1
    )


def test_estimates_that_lie_together_show_no_slope():
  trials = tried((1000, 900), (1001, 930))
  assert predicted_bytes(body(1500, 9), trials, 1.0) == pytest.approx(1500 - 85.5, abs=10)


def test_bodies_alike_count_more():
  trials = [Trial(body(100, 1, 2, 3), 100, None), Trial(body(100, 7), 160, None)]
  assert predicted_bytes(body(100, 1, 2), trials, 1.0) < 115 < 145 < predicted_bytes(body(100, 7), trials, 1.0)


def test_more_estimated_bytes_are_more_bytes():
  trials = tried((1000, 900), (2000, 500))
  found = [predicted_bytes(body(estimated, 9), trials, 1.0) for estimated in np.linspace(500, 3000, 10)]
  assert found == sorted(found)


def test_programs_that_leave_another_scan_as_it_is_say_nothing():
  trials = [Trial(body(100, 1, 2, loops=(0, 5)), 90, None), Trial(body(100, 1, 3), 180, None)]
  assert predicted_bytes(body(100, 1, 3, loops=(0, 5)), trials, 1.0) == pytest.approx(90)


def straight(estimated, num_segments, kin=None):
  return Known(
    estimated_bytes=float(estimated),
    has_loops=False,
    num_segments=num_segments,
    kin=kin,
    traits=frozenset(),
    is_grouped=False,
  )


def test_a_segmentation_without_kin_goes_by_all_that_was_tried():
  """The U-Net of three trials at 70%: a plan of a third less was taken for too large, and not tried."""
  kin = "last"
  trials = [
    Trial(straight(estimated, count, kin), compiled, None)
    for estimated, count, kin, compiled in ((896, 2, None, 1152), (576, 4, kin, 704), (704, 4, kin, 704))
  ]
  assert predicted_bytes(straight(768, 2), trials, 1.0) == pytest.approx(704 + 448 / 3)
  assert predicted_bytes(straight(768, 4, kin), trials, 1.0) == 704 + 64


def test_what_segments_take_whatever_they_save_is_learnt():
  """A GPT's eight segments: a third less estimated, and nothing less compiled."""
  trials = [Trial(straight(1796, 8), 2191, None), Trial(straight(1481, 8), 2150, None)]
  assert predicted_bytes(straight(1043, 8), trials, 1.0) == 2150
  assert predicted_bytes(straight(1043, 8, kin="in groups"), trials, 1.0) == 2150
  assert predicted_bytes(straight(1043, 29), trials, 1.0) == pytest.approx(2150 - (1481 - 1043))
  falling = [trials[0], Trial(straight(1481, 8), 1950, None)]
  assert predicted_bytes(straight(1043, 8), falling, 1.0) == pytest.approx(1950 - (1481 - 1043))


def test_what_takes_next_to_nothing_of_its_estimate_does_so_in_proportion():
  # A decoder in a TPU's vector memory, in MiB; by errors alone, others would take all that estimates add.
  trials = tried((69.7, 3.8), (77.6, 2.76))
  assert predicted_bytes(body(79.6, 9), trials, 1.0) == pytest.approx(79.6 * 2.76 / 77.6)
  assert predicted_bytes(body(60.0, 9), trials, 1.0) == pytest.approx(60.0 * 3.8 / 69.7)


def candidate(estimated, saved, flops):
  return Known(**vars(body(estimated, saved)), flops=flops, kin=None)


def test_what_the_hlo_engine_repeats_is_as_much_as_where_it_had_nearly_as_many_bytes_to_spare():
  trials = [  # one took what it was estimated to, without help
    Trial(candidate(1200, 0, 5.0), 1000, HloEngineShare(1200, 40.0)),
    Trial(candidate(1400, 1, 3.0), 1000, HloEngineShare(1400, 80.0)),
    Trial(candidate(900, 2, 50.0), 900, HloEngineShare(900, 0.0)),
  ]
  expected = lambda trials, *args: expected_flops(trials, 1000, lambda each: each.estimated_bytes)(candidate(*args))
  assert expected(trials, 1350, 3, 4.0) == pytest.approx(4.0 + 80.0 * 350 / 400)
  assert expected(trials, 1900, 3, 4.0) == 84.0  # at least
  assert expected(trials, 950, 3, 30.0) == 30.0
  assert expected(trials[2:], 1300, 3, 4.0) == 4.0
  alone = HloEngineShare(2400, 180.0)
  with_alone = lambda *args: expected_flops(trials, 1000, lambda each: each.estimated_bytes, alone)(candidate(*args))
  assert with_alone(1350, 3, 4.0) == pytest.approx(4.0 + 80.0 * 350 / 400)
  assert with_alone(1900, 3, 4.0) == pytest.approx(4.0 + 80.0 + 100.0 * 500 / 1000)


def test_what_scan_bodies_are_expected_to_gain_is_less_the_less_likely_they_fit_and_the_oftener_help_spoilt_it():
  best = Trial(candidate(1100, 0, 35.0), 1000, HloEngineShare(1100, 5.0))
  spoilt = [Trial(candidate(1200 + i, 1 + i, 10.0), 1000, HloEngineShare(1200 + i, 90.0)) for i in range(3)]
  gain = lambda trials, each, over=(0.0, 50.0), surprise=1.0: ExpectedGain(
    trials, best, 40.0, 1000, lambda each: each.estimated_bytes, lambda _: over, surprise
  )(each)
  like_best, more = candidate(1050, 9, 20.0), candidate(1300, 9, 20.0)
  assert gain([best], like_best) == pytest.approx((40.0 - 20.0 - 5.0 / 2) / 2)
  assert gain([best], more, over=(-500.0, 50.0)) > 0.9 * 15.0  # fits for sure, with the help that there was
  assert 0 < gain([best], more, over=(150.0, 50.0)) < 0.1 * 15.0  # hardly, but it may
  assert gain([best], more, over=(150.0, 50.0), surprise=0.2) == 0.0  # predictions held
  assert gain([best], more, over=(500.0, 50.0)) == 0.0
  assert gain([best, *spoilt], like_best) == gain([best], like_best)
  assert gain([best, *spoilt], more) == pytest.approx(gain([best], more) * 2 / 5)


def test_the_better_predictions_held_the_less_others_are_doubted():
  def told(*off_bytes):
    forecast = Forecast(types.SimpleNamespace(baseline_bytes=2000.0, is_spread=False, found=[]), 1000, 2000)
    forecast.record(Trial(candidate(800, 0, 50.0), 900, None))
    for i, off in enumerate(off_bytes, 1):
      tried = candidate(900 + i, i, 50.0 - i)
      forecast.record(Trial(tried, round(forecast.bytes_of(tried) + off), None))
    return forecast.doubted_bytes(candidate(1200, 9, 10.0)), forecast.surprise

  untold, is_surprised = told()
  assert is_surprised == 1.0
  held, is_surprised = told(2, -3, 2, 1)
  assert held < untold / 2 and is_surprised == 1 / 5
  # What was wild is doubted as before.
  wild, is_surprised = told(300, -400, 350, -300)
  assert wild >= untold and is_surprised == 1.0
