"""Times a device: matrix products, elementwise ops, passes over memory, copies to the host, collectives.

Each figure is the best of several runs of one compiled program, long enough that starting it does not count. It is the
only place where a clock decides a number that planners read, and that number is then a part of what is asked of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from coopjax import progress
from coopjax.program.stopwatch import Stopwatch
from coopjax.xla import targets
from coopjax.xla.speeds import SpeedProfile

_LARGE = {"cpu": (512, 1024), "gpu": (4096, 8192), "tpu": (4096, 8192)}  # sides of matrices
_ELEMENTS = {"cpu": 2**21, "gpu": 2**26, "tpu": 2**26}  # float32
_PRODUCTS, _PASSES, _CHAIN = 4, 8, (16, 144)


def calibrate(*, repeats: int = 5) -> SpeedProfile:
  """Measures the device that is here: what its models of time say is then what it does, not what its data sheet says.

  Plans stay functions of the program and of what is asked: nothing uses a profile that is not named. Save it where all
  processes and colleagues find it, and give its path, or its ``target``, as ``target=`` of :func:`coopjax.plan`,
  :func:`coopjax.remat`, :func:`coopjax.fit` and on the command line.

  Let nothing else run meanwhile; it takes seconds. With one device there is no link to measure: the vendor's stays.

  Args:
    repeats: runs of each program, of which the fastest counts.

  Raises:
    ValueError: fewer than one.

  Example:
    >>> import coopjax
    >>> profile = coopjax.calibrate(repeats=1)
    >>> profile.device, profile.flops_per_s > 1e9
    ('cpu', True)
  """
  if repeats < 1:
    raise ValueError(f"repeats={repeats}: a program runs at least once")
  here, best = targets.running(), functools.partial(_best_s, repeats)
  with progress.shown("timing this device"):
    overhead_s = _overhead_s(best)
    return SpeedProfile(
      here.name,
      flops_per_s=_flops_per_s(best, here.platform),
      transcendentals_per_s=_transcendentals_per_s(best, _ELEMENTS[here.platform]),
      bytes_per_s=_bytes_per_s(best, _ELEMENTS[here.platform]),
      op_overhead_s=overhead_s,
      link_bytes_per_s=_link_bytes_per_s(best, _ELEMENTS[here.platform]) or here.roofline.link_bytes_per_s,
      host_bytes_per_s=_host_bytes_per_s(best, _ELEMENTS[here.platform]),
      device_kind=jax.devices()[0].device_kind,
      versions=f"jax {jax.__version__}, {jax.devices()[0].client.platform_version.partition(chr(10))[0]}",
    )


type _Best = Callable[[Callable, Sequence[Any]], float]


def _best_s(repeats: int, fn: Callable, args: Sequence[Any]) -> float:
  """Seconds of the fastest of several runs, after one that does not count."""
  jax.block_until_ready(fn(*args))
  runs = []
  for _ in range(repeats):
    stopwatch = Stopwatch()
    jax.block_until_ready(fn(*args))
    runs.append(stopwatch.seconds)
  return max(min(runs), 1e-9)


def _flops_per_s(best: _Best, platform: str) -> float:
  """The median over sizes."""
  dtype, rates = jnp.float32 if platform == "cpu" else jnp.bfloat16, []

  @jax.jit
  def products(a):
    b = a
    for _ in range(_PRODUCTS):
      b = a @ b
    return b

  for side in _LARGE[platform]:
    matrix = jnp.full((side, side), 1 / side, dtype)
    rates.append(_PRODUCTS * 2 * side**3 / best(products, (matrix,)))
  return sorted(rates)[len(rates) // 2]


def _transcendentals_per_s(best: _Best, elements: int) -> float:
  @jax.jit
  def chained(x):
    for _ in range(_PASSES):
      x = jnp.tanh(jnp.exp(-x))
    return x

  return 2 * _PASSES * elements / best(chained, (jnp.full((elements,), 0.5),))


def _bytes_per_s(best: _Best, elements: int) -> float:
  @jax.jit
  def passes(x):
    for _ in range(_PASSES):
      x = jax.lax.optimization_barrier(jnp.roll(x, 1) * 0.5)  # one op each, which reads and writes
    return x

  return _PASSES * 2 * 4 * elements / best(passes, (jnp.ones((elements,)),))


def _overhead_s(best: _Best) -> float:
  """The slope of chains of products of small matrices over their lengths."""
  small, times = jnp.eye(4) * 0.5, []
  for length in _CHAIN:

    @jax.jit
    def chain(a, length=length):
      b = a
      for _ in range(length):
        b = jnp.sort(a @ b)
      return b

    times.append(best(chain, (small,)))
  return max(times[1] - times[0], 0.0) / (2 * (_CHAIN[1] - _CHAIN[0]))


def _host_bytes_per_s(best: _Best, elements: int) -> float:
  """There and back; half of it is one direction."""
  array = jnp.ones((elements,))

  def there_and_back(x):
    host = jax.block_until_ready(jax.device_put(x, jax.memory.Space.Host))
    return jax.device_put(host, jax.memory.Space.Device)

  return 2 * 4 * elements / best(there_and_back, (array,))


def _link_bytes_per_s(best: _Best, elements: int) -> float | None:
  """Of an all-reduce, in which each device sends nearly twice what it has; None with one device."""
  num_devices = jax.local_device_count()
  if num_devices == 1:
    return None
  mesh = jax.make_mesh((num_devices,), ("all",), (jax.sharding.AxisType.Auto,), devices=jax.local_devices())
  elements = elements // num_devices * num_devices
  array = jax.device_put(jnp.ones((elements,)), NamedSharding(mesh, P("all")))
  reduce = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=P("all"), out_specs=P()))
  sent_bytes = 2 * (num_devices - 1) / num_devices * 4 * elements / num_devices
  return sent_bytes / best(reduce, (array,))
