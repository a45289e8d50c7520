"""The processes of a `jax.distributed` job, and the key-value store of its coordination service."""

# pyright: reportPrivateImportUsage=false

import jax
from jax._src import distributed


def is_job() -> bool:
  """Whether this process is one of several that share a coordination service."""
  return distributed.global_state.client is not None and (distributed.global_state.num_processes or 1) > 1


def put_value(key: str, value: bytes) -> None:
  """Writes a key of the store; one that is there already stays as it is."""
  client = distributed.global_state.client
  assert client is not None  # of a job
  try:
    client.key_value_set_bytes(key, value)
  except jax.errors.JaxRuntimeError as error:
    if "ALREADY_EXISTS" not in str(error):
      raise


def value_of(key: str, timeout_s: float) -> bytes | None:
  """A key of the store, waited for: None if nobody has written it when the time is over, by the service's own clock."""
  client = distributed.global_state.client
  assert client is not None
  try:
    if timeout_s <= 0:
      return client.key_value_try_get_bytes(key)
    return client.blocking_key_value_get_bytes(key, max(int(1000 * timeout_s), 1))
  except jax.errors.JaxRuntimeError as error:
    if any(status in str(error) for status in ("DEADLINE_EXCEEDED", "NOT_FOUND")):
      return None
    raise
