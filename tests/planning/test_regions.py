"""Regions: what is remembered of the directions that were followed."""

from coopjax.planning import regions


def test_the_directions_used_latest_are_known(monkeypatch):
  monkeypatch.setattr(regions, "_KEPT_DIGESTS", 3)
  met = regions._Met()
  for digest in "abc":
    met.note(digest)
  assert "a" in met  # asked for: used
  met.note("d")
  assert "b" not in met and all(digest in met for digest in "acd")
