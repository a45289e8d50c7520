"""Functions in a user's files, and the shapes to call them with: what the command line plans.

A shapes file is JSON: the positional arguments as a list, or an object with ``args`` and ``kwargs``. Arrays are text,
dtype and shape as reports print them; objects and lists are pytrees of them; numbers, booleans and null are passed on.

  {"args": [{"embed": "f32[512,64]", "blocks": ["bf16[64,64]", "bf16[64,64]"]}, "s32[8,128]"], "kwargs": {"scale": 0.5}}
"""

import functools
import importlib
import importlib.util
import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from coopjax.errors import UserFunctionError

_ARRAY = re.compile(r"\s*(\w+)\s*\[([\d,\s]*)\]\s*")
_SHORT = {
  "pred": "bool",
  "bf16": "bfloat16",
  "f16": "float16",
  "f32": "float32",
  "f64": "float64",
  "c64": "complex64",
  "c128": "complex128",
  **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
  **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def load_function(name: str) -> Callable:
  """The function that ``path/to/module.py:function`` or ``package.module:function`` names.

  Raises:
    coopjax.UserFunctionError: no such file or function, or the module can't be imported.
  """
  where, colon, attribute = name.rpartition(":")
  if not colon or not where or not attribute:
    raise UserFunctionError(f"{name!r} names no function: expected path/module.py:function or package.module:function")
  module = _module(where)
  function = module
  for part in attribute.split("."):
    function = getattr(function, part, None)
  if not callable(function):
    known = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
    raise UserFunctionError(f"{where} has no function {attribute!r}; it has {', '.join(known[:12]) or 'none'}")
  return function


def load_arguments(function: str, shapes: str | None, maker: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
  """``(args, kwargs)`` for a function: from a shapes file, or from a function that returns them.

  Args:
    function: as for `load_function`; where `maker` names no file, it stands beside it.
    shapes: path of a shapes file.
    maker: a function without arguments that returns the positional arguments as a tuple or list (arrays or
      ``jax.ShapeDtypeStruct``), or a single one.

  Raises:
    coopjax.UserFunctionError: they can't be had.
  """
  if shapes is not None:
    return _read_shapes(pathlib.Path(shapes))
  assert maker is not None  # one of the two is given
  made = load_beside(function, maker)()
  return (tuple(made) if isinstance(made, (tuple, list)) else (made,)), {}


def _module(where: str) -> Any:
  path = pathlib.Path(where)
  if path.suffix == ".py" and not path.is_file():
    raise UserFunctionError(f"{where} does not exist")
  try:
    if path.suffix != ".py":
      return importlib.import_module(where)
    sys.path.insert(0, str(path.resolve().parent))  # as when Python runs the file
    return _loaded(path.resolve())
  except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may end in an exit
    raise UserFunctionError(f"{where} can't be imported: {type(error).__name__}: {error}") from error


def _loaded(path: pathlib.Path) -> Any:
  """The module of a file, loaded once: under the file's name, or where another module has that one, under its path."""
  name = path.stem
  if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
    name = str(path.with_suffix(""))
  if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
      raise ImportError("no loader takes it")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
      spec.loader.exec_module(sys.modules[name])
    except BaseException:
      del sys.modules[name]  # half of it: the next who asks gets the same error
      raise
  return sys.modules[name]


def load_beside(function: str, name: str) -> Callable:
  """As `load_function`; a name without a file stands beside the function. What it raises is a `UserFunctionError`."""
  name = name if ":" in name else f"{function.rpartition(':')[0]}:{name}"
  fn = load_function(name)

  @functools.wraps(fn)
  def called(*args):
    try:
      return fn(*args)
    except (Exception, SystemExit) as error:
      raise UserFunctionError(f"{name} failed: {type(error).__name__}: {error}{_if_elsewhere()}") from error

  return called


def _if_elsewhere() -> str:
  """What to do where no op can run: under a mesh of devices that are not here JAX fails without saying so."""
  mesh = jax.sharding.get_mesh()
  if mesh.empty or set(mesh.devices.flat) <= set(jax.devices()):
    return ""
  return "; no op runs on the mesh's devices, which are not here: make arguments under jax.eval_shape"


def _read_shapes(path: pathlib.Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
  try:
    read = json.loads(path.read_text())
  except ValueError as error:
    raise UserFunctionError(f"{path} is not JSON: {error}") from error
  fields: dict[str, Any] = {"args": read} if isinstance(read, list) else read
  is_object = isinstance(fields, dict) and set(fields) <= {"args", "kwargs"}
  args, kwargs = (fields.get("args", []), fields.get("kwargs", {})) if is_object else (None, None)
  if not isinstance(args, list) or not isinstance(kwargs, dict):
    raise UserFunctionError(
      f"{path}: expected a list of arguments, or an object with a list args, an object kwargs and nothing else"
    )
  parse = lambda value: jax.tree.map(lambda leaf: _leaf(leaf, path), value)
  return tuple(map(parse, args)), {key: parse(value) for key, value in kwargs.items()}


def _leaf(value: Any, path: pathlib.Path) -> Any:
  if not isinstance(value, str):
    return value
  no_array = UserFunctionError(f"{path}: {value!r} is no array: expected dtype and shape, 'f32[8,128]' for one")
  match = _ARRAY.fullmatch(value)
  if match is None:
    raise no_array
  try:
    dtype = jnp.dtype(_SHORT.get(match[1], match[1]))
    shape = tuple(int(size) for size in match[2].split(",") if size.strip())
  except TypeError as error:
    raise no_array from error
  return jax.ShapeDtypeStruct(shape, dtype)
