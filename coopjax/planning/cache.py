"""Decisions and plans kept on disk, so that a program is planned once per machine and not once per process.

An entry is one small JSON file with a checksum, named by a hash of everything that the decision depends on, the
versions and flags of the compiler included (`Key`). Entries are written aside and renamed, so that processes which
share the directory see the old entry, the new one or none, and have the rights that the umask gives, so that a team can
share it. What can't be read, or was made for another key, is ignored with a `CacheWarning`, and planned anew. The
oldest entries go when the directory holds too many; a hit makes an entry new.

The directory is ``COOPJAX_CACHE_DIR`` (empty: nothing is kept), else ``coopjax`` under ``XDG_CACHE_HOME`` or
``~/.cache``.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax

from coopjax import contexts
from coopjax.errors import CacheWarning, warn
from coopjax.planning import files

FORMAT_VERSION = 2
MAX_ENTRIES = 4096
_OURS = re.compile(r"coopjax-v\d+-[0-9a-f]{32}\.json|\.coopjax-\w+\.tmp")
# Whatever parsing raises on data that somebody else has written: deep nesting, huge numbers, wrong types.
_UNREADABLE = (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
_SETTINGS = (
  "jax_remat3",
  "jax_remat_barrier_no_cotangents",
  "jax_compiler_enable_remat_pass",
  "jax_enable_x64",
  "jax_default_matmul_precision",
  "jax_disable_most_optimizations",
)
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclasses.dataclass(frozen=True)
class Key:
  """What a decision depends on.

  Attributes:
    fingerprint: of the traced program.
    request: what was asked, as text.
    environment: versions, flags and devices, as text.
  """

  fingerprint: str
  request: str
  environment: str

  def digest(self) -> str:
    """Thirty-two hexadecimal digits: the name of the entry."""
    return hashlib.sha256(json.dumps(dataclasses.astuple(self)).encode()).hexdigest()[:32]


def environment() -> str:
  """What besides program and request decides how a program compiles: code, versions, flags, devices. As JSON."""
  device = jax.devices()[0]
  return json.dumps(
    {
      "coopjax": contexts.code_digest(),
      "packages": _package_versions(),
      "settings": {name: str(getattr(jax.config, name, None)) for name in _SETTINGS},
      "variables": {name: os.environ.get(name, "") for name in _VARIABLES},
      "platform": f"{device.platform} {device.client.platform_version}",
      "device": device.device_kind,
      "num_devices": jax.device_count(),
    }
  )


@functools.cache
def _package_versions() -> dict[str, str]:
  versions = {}
  for name in _PACKAGES:
    with contextlib.suppress(metadata.PackageNotFoundError):
      versions[name] = metadata.version(name)
  return versions


def directory() -> pathlib.Path | None:
  """Where entries lie, by the environment of this moment; None where nothing is to be kept."""
  named = os.environ.get("COOPJAX_CACHE_DIR")
  if named is not None:
    return pathlib.Path(named).expanduser() if named else None
  base = os.environ.get("XDG_CACHE_HOME")
  try:
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "coopjax"
  except RuntimeError:  # no home
    return None


def load[T](key: Key, parse: Callable[[dict[str, Any]], T]) -> T | None:
  """The entry under a key; None when there is none that can be read.

  Args:
    key: what it was stored under.
    parse: from the stored fields to what they stand for; where it fails on them, the entry is corrupt.
  """
  if (home := directory()) is None:
    return None
  path = home / _name(key)
  try:
    entry = json.loads(files.read_regular(path))
    if entry["format"] != FORMAT_VERSION or entry["key"] != dataclasses.asdict(key):
      raise ValueError("made for another program or by another version")
    if entry["checksum"] != _checksum(entry["fields"]):
      raise ValueError("its checksum is wrong")
    found = parse(entry["fields"])
  except (FileNotFoundError, NotADirectoryError):  # of the latter, `store` tells
    return None
  except _UNREADABLE as error:
    warn(
      f"ignoring {path}, which is not a decision that coopjax kept for this program: {type(error).__name__}: {error}; "
      "it is planned anew",
      CacheWarning,
    )
    return None
  with contextlib.suppress(OSError):
    os.utime(path)
  return found


def store(key: Key, fields: dict[str, Any]) -> None:
  """Keeps JSON fields under a key; where that is impossible, one warning per directory says so."""
  if (home := directory()) is None:
    return
  entry = {"format": FORMAT_VERSION, "key": dataclasses.asdict(key), "checksum": _checksum(fields), "fields": fields}
  try:
    home.mkdir(parents=True, exist_ok=True)
    files.write_whole(home / _name(key), json.dumps(entry))
    _prune(home)
  except OSError as error:
    _warn_once(home, error)


def _checksum(fields: Any) -> str:
  """Of fields as they are in JSON, or will be."""
  return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _name(key: Key) -> str:
  return f"coopjax-v{FORMAT_VERSION}-{key.digest()}.json"


def _prune(home: pathlib.Path) -> None:
  """Removes the entries used longest ago, if there are too many; another process may be doing the same."""
  with os.scandir(home) as found:
    names = [file.name for file in found if _OURS.fullmatch(file.name)]
  if len(names) <= MAX_ENTRIES:
    return
  ages = []
  for name in names:
    with contextlib.suppress(FileNotFoundError):
      ages.append((os.stat(home / name).st_mtime_ns, name))
  for _, name in sorted(ages)[: len(ages) - MAX_ENTRIES]:
    if name.endswith(".tmp"):  # of a process that was killed while it wrote
      shutil.rmtree(home / name, ignore_errors=True)
      continue
    with contextlib.suppress(FileNotFoundError):
      os.unlink(home / name)


_warned: set[pathlib.Path] = set()
_warned_lock = threading.Lock()


def _warn_once(home: pathlib.Path, error: OSError) -> None:
  with _warned_lock:
    is_known = home in _warned
    _warned.add(home)
  if not is_known:
    reason = "it is no directory" if isinstance(error, FileExistsError | NotADirectoryError) else error
    warn(
      f"can't keep decisions in {home}: {reason}. Every process plans anew; set COOPJAX_CACHE_DIR to a "
      "directory that can be written, or to nothing",
      CacheWarning,
    )
