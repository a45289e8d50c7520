"""A callback in XLA's pipeline for the length of a ``with`` block."""

import contextlib

from jax.extend import xla as jax_xla

_NAME = "coopjax_test"
_STAGE = jax_xla.PipelineStage.POST_SCHEDULER


@contextlib.contextmanager
def hook(callback):
  """Hands every module that XLA:CPU compiles inside the block to ``callback``, after scheduling."""
  jax_xla.register_hlo_module_transformation(callback, name=_NAME, stage=_STAGE, platforms="cpu")
  try:
    yield
  finally:
    assert jax_xla.clear_hlo_module_transformation(_NAME, stage=_STAGE, platforms="cpu")
