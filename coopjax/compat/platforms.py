"""Platforms: hooks and switches of their compilers, the text of their modules, and what JAX keeps beside a compile."""

# pyright: reportPrivateImportUsage=false
# JAX exports none of what this package is there to touch.

import contextlib
import dataclasses
import logging
from collections.abc import Callable

import jax
from jax._src import cache_key, config
from jax._src.lib import _jax


def hook_platform(backend: str) -> str | None:
  """The platform name under which an HLO hook can be registered for a backend, None where JAX offers no hook.

  Accelerator plugins run hooks from JAX 0.12 on.
  """
  if backend == "cpu":
    return "cpu"
  return {"gpu": "cuda", "tpu": "tpu"}.get(backend) if jax.__version_info__ >= (0, 12) else None


def loaded_hook_platforms() -> list[str]:
  """Platforms whose compilers are loaded and run HLO hooks, present or not, by the names that hooks go by."""
  jax.devices()  # loads the plugins that JAX finds
  names = [hook_platform(backend) for backend in ("cpu", "gpu", "tpu")]
  return [name for name in names if name == "cpu" or (name and _jax.pjrt_plugin_loaded(name))]


def without_xla_remat() -> contextlib.AbstractContextManager:
  """Compiles inside it run without XLA's own rematerialization; passes that the user has disabled stay disabled."""
  return config.enable_remat_opt_pass(False)


def hlo_proto_of_text(text: str) -> bytes:
  """A serialized ``HloModuleProto`` of HLO text, schedule included.

  Raises:
    RuntimeError: jaxlib can't parse it.
  """
  # jaxlib has no public parser, and no stub for this one.
  from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

  return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


@dataclasses.dataclass(frozen=True)
class _WithTexts:
  """A hook of the cache's keys: what the former one says, and texts, in an order that no order of calls decides."""

  former: Callable[[], str]
  texts: dict[str, Callable[[], str]]

  def __call__(self) -> str:
    return self.former() + "".join(self.texts[name]() for name in sorted(self.texts))


def add_to_cache_key(name: str, text: Callable[[], str]) -> None:
  """Has the keys of JAX's persistent compilation cache hash what `text` returns at the time, once per name."""
  if not isinstance(cache_key.custom_hook, _WithTexts):
    cache_key.custom_hook = _WithTexts(cache_key.custom_hook, {})
  cache_key.custom_hook.texts[name] = text


def log_as_jax_does(name: str) -> None:
  """Has a logger, until it is given a level or handlers of its own, obey ``JAX_LOGGING_LEVEL`` as JAX's loggers do."""
  # As a child it follows when the level changes, too; JAX keeps no list of loggers that others could join.
  logging.getLogger(name).parent = logging.getLogger("jax")
