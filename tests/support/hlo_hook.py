"""A callback in XLA's pipeline for the length of a ``with`` block."""

import contextlib

from jax.extend import xla as jax_xla

from coopjax.hlo_engine import hook as ours

_NAME = "coopjax_test"
_STAGE = jax_xla.PipelineStage.POST_SCHEDULER


@contextlib.contextmanager
def hook(callback, name=_NAME):
  """Hands every module that XLA:CPU compiles inside the block to ``callback``, after scheduling."""
  jax_xla.register_hlo_module_transformation(callback, name=name, stage=_STAGE, platforms="cpu")
  try:
    yield
  finally:
    assert jax_xla.clear_hlo_module_transformation(name, stage=_STAGE, platforms="cpu")


@contextlib.contextmanager
def before_ours(callback):
  """As `hook`, but coopjax gets what it hands back: callbacks run in the order in which they were registered."""
  jax_xla.clear_hlo_module_transformation("coopjax", stage=_STAGE, platforms="cpu")
  ours._hook._platforms.discard("cpu")
  with hook(callback):
    yield
