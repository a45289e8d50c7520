"""The only package that touches private JAX modules or depends on the version of JAX.

This is the list of all that is taken from there. The rest of the project says ``compat.name`` and sees plain functions
over ``jax.extend.core`` types. Supported: JAX 0.11.2 and newer.
"""

from coopjax.compat.jaxprs import (
  SourceLine, as_policies_see, at_call_site, bind, call_body, dce, has_ordered_effects, inlined, is_plain_jit,
  map_sub_jaxprs, may_repeat, name_scopes, open_constants, rebuild, relabel, scan_carries, scan_slices, short_type,
  source_line, sub_jaxprs,
)
from coopjax.compat.meshes import (
  axes_in_scope, bind_axes, is_on_one_device, manual_axes, stated_sharding, vary,
)
from coopjax.compat.platforms import (
  add_to_cache_key, hlo_proto_of_text, hook_platform, loaded_hook_platforms, log_as_jax_does, without_xla_remat,
)
from coopjax.compat.traces import (
  has_backward_outside, is_batched, is_eager, no_trace, pinned_checkpoint,
)

__all__ = [
  "SourceLine", "as_policies_see", "at_call_site", "bind", "call_body", "dce", "has_ordered_effects", "inlined",
  "is_plain_jit", "map_sub_jaxprs", "may_repeat", "name_scopes", "open_constants", "rebuild", "relabel",
  "scan_carries", "scan_slices", "short_type", "source_line", "sub_jaxprs",
  "axes_in_scope", "bind_axes", "is_on_one_device", "manual_axes", "stated_sharding", "vary",
  "add_to_cache_key", "hlo_proto_of_text", "hook_platform", "loaded_hook_platforms", "log_as_jax_does",
  "without_xla_remat",
  "has_backward_outside", "is_batched", "is_eager", "no_trace", "pinned_checkpoint",
]
