"""Types that no checker sees are held to the truth here: the C++ door's, and the public names that load lazily."""

import ast
import importlib.machinery
import importlib.util
import inspect
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import coopjax
from coopjax import _core, keywords
from tests.support import ROOT, hlo_hook, programs, typed_use

STUB = ROOT / "coopjax" / "_core.pyi"
PLACEHOLDER = "\\"  # of a default in nanobind's signatures: \0, \1, ...
ROOFLINE = 1e11, 1e10, 1e10, 1e-6  # FLOPs, transcendentals and bytes per second, seconds per op


@pytest.fixture(scope="module")
def stub():
  """_core.pyi, run as a module."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(typing, "type_check_only", lambda cls: cls, raising=False)
    loader = importlib.machinery.SourceFileLoader("core_stub", str(STUB))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("core_stub", loader))
    loader.exec_module(module)
  return module


def names_of(scope):
  """What a module or class of the extension defines."""
  return {name for name in vars(scope) if not name.startswith("_")}


def stub_definitions():
  """What the stub says that the extension has: a name for each function, constant and class, with those in it."""
  found = {}
  for node in ast.parse(STUB.read_text()).body:
    if isinstance(node, ast.FunctionDef):
      found[node.name] = set()
    elif isinstance(node, ast.AnnAssign):
      found[node.target.id] = set()
    elif isinstance(node, ast.ClassDef) and not node.decorator_list:  # the others are for annotations alone
      members = {
        part.name if isinstance(part, ast.FunctionDef) else part.target.id
        for part in node.body
        if isinstance(part, (ast.FunctionDef, ast.AnnAssign))
      }
      found[node.name] = {name for name in members if not name.startswith("_")}
  return found


def test_stub_and_extension_have_the_same_names():
  extension = {
    name: names_of(value) if isinstance(value := getattr(_core, name), type) else set() for name in names_of(_core)
  }
  assert stub_definitions() == extension


def split_at_commas(text):
  """A signature's parameters; the brackets of a type may have commas, too."""
  depth, parts = 0, [""]
  for letter in text:
    depth += (letter in "([") - (letter in ")]")
    if letter == "," and depth == 0:
      parts.append("")
    else:
      parts[-1] += letter
  return [part.strip() for part in parts if part.strip()]


def bound_parameters(fn):
  """(name, kind, default) of a function of the extension; nanobind names those arg0, arg1 that its binding does not."""
  ((text, _, defaults),) = fn.__nb_signature__
  inside = text[text.index("(") + 1 : text.rindex(" -> ")].rstrip()[:-1]
  parts, kind, found = split_at_commas(inside), inspect.Parameter.POSITIONAL_OR_KEYWORD, []
  for part in parts:
    if part == "*":
      kind = inspect.Parameter.KEYWORD_ONLY
    elif part == "/":
      found = [
        (None if name.startswith("arg") else name, inspect.Parameter.POSITIONAL_ONLY, default)
        for name, _, default in found
      ]
    else:
      name, _, default = part.partition(" = ")
      value = defaults[int(default.removeprefix(PLACEHOLDER))] if default else inspect.Parameter.empty
      found.append((name.partition(":")[0], kind, value))
  return found


def stub_parameters(fn):
  return [
    (parameter.name, parameter.kind, parameter.default) for parameter in inspect.signature(fn).parameters.values()
  ]


def callables():
  """Paths of the extension's functions and methods."""
  found = []
  for name in sorted(names_of(_core)):
    value = getattr(_core, name)
    if isinstance(value, type):
      methods = sorted(names_of(value) | {"__init__"})
      found += [f"{name}.{method}" for method in methods if callable(inspect.getattr_static(value, method))]
    elif callable(value):
      found.append(name)
  return found


def member(module, path):
  for name in path.split("."):
    module = getattr(module, name)
  return module


@pytest.mark.parametrize("path", callables())
def test_parameters_are_those_of_the_extension(stub, path):
  bound, stubbed = bound_parameters(member(_core, path)), stub_parameters(member(stub, path))
  if "." in path:  # self, which nanobind counts as positional or as either
    bound, stubbed = bound[1:], stubbed[1:]
  assert len(bound) == len(stubbed)
  for (name, kind, default), expected in zip(bound, stubbed):
    assert (expected[0] if name is None else name, kind, default) == expected


def assert_is(value, kind, where):
  """That a value is what an annotation says: keys of dicts, dtypes of arrays, lengths of tuples."""
  while isinstance(kind, typing.TypeAliasType):
    kind = kind.__value__
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if typing.is_typeddict(kind):
    fields = typing.get_type_hints(kind)
    assert type(value) is dict and list(value) == list(fields), where
    for key, each in fields.items():
      assert_is(value[key], each, f"{where}[{key!r}]")
  elif origin is tuple:
    assert type(value) is tuple, where
    if arguments[-1] is Ellipsis:
      arguments = arguments[:1] * len(value)
    for i, (item, each) in enumerate(zip(value, arguments, strict=True)):
      assert_is(item, each, f"{where}[{i}]")
  elif kind is None:
    assert value is None, where
  elif type(None) in arguments:
    if value is not None:
      assert_is(value, arguments[0], where)
  elif type(value) is np.ndarray:
    assert value.ndim == 1 and kind == NDArray[np.dtype(value.dtype.str).type], where  # longlong is int64, too
  else:
    assert type(value) is kind, (where, type(value), kind)


@pytest.fixture(scope="module")
def modules():
  """A scheduled module whose memory is in a loop's body, and XLA's buffer assignment of it."""

  def loss(weights, x):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return (x**2).sum()

  def accumulated(weights, batches):
    add = lambda total, x: (jax.tree.map(jnp.add, total, jax.grad(loss)(weights, x)), None)
    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), batches)[0]

  captured = []
  with hlo_hook.hook(lambda module: captured.append(bytes(module))):
    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 8, jax.ShapeDtypeStruct((2, 512, 64), jnp.float32)
    compiled = jax.jit(accumulated).lower(*shapes).compile()
  return _core.HloModule(captured[0]), compiled.memory_analysis().serialized_buffer_assignment_proto


def calls(module, proto):
  """Every function that returns something, on something small: (path of the stub, result)."""
  program = programs.forward_backward(4)
  core, order, budget_bytes = program.core, program.schedule, programs.peak_of(program) - 10
  lifetimes = np.array([0, 2], np.int32), np.array([3, 5], np.int32)
  sizes, none = np.array([4, 8], np.int64), np.full(2, -1, np.int64)
  packing = _core.PackingProblem(*lifetimes, sizes, np.ones(2, np.int64), none, none.astype(np.int32), -1)
  fields, op_instruction_ids = _core.read_step_program(module, *ROOFLINE, None, "")
  recompute = {
    "changes": 2,
    "roofline": ROOFLINE,
    "kept_scope": "",
    "searches_order": True,
    "near_smallest": 1.0,
    "max_steps": 500_000_000,
  }
  temp_bytes = _core.predict_memory(module)["temp_bytes"]
  yield "steps_taken", _core.steps_taken()
  yield "count_steps", _core.count_steps(1)
  yield "num_cuts", _core.num_cuts()
  yield "count_cut", _core.count_cut()
  yield "light_fuse", _core.light_fuse(None)
  yield "is_fuse_blown", _core.is_fuse_blown()
  yield "fuse_seconds_left", _core.fuse_seconds_left()
  yield "StepProgram.check", core.check()
  yield "check_schedule", _core.check_schedule(core, order)
  yield "live_bytes", _core.live_bytes(core, order)
  yield "recompute_totals", _core.recompute_totals(core, order)
  yield "lower_bound", _core.lower_bound(core)
  yield "cost_bound", _core.cost_bound(core, budget_bytes)
  yield "cost_unit", _core.cost_unit(core)
  yield "schedule_by_rule", _core.schedule_by_rule(core, 0)
  yield "schedule_for_memory", _core.schedule_for_memory(core)
  yield "plan_peak", _core.plan_peak(core, order, budget_bytes)
  yield "search_neighbourhood", _core.search_neighbourhood(core, order, budget_bytes, max_steps=10_000_000)
  yield "search_exchanges", _core.search_exchanges(core, order, budget_bytes, max_steps=10_000_000)
  yield "plan_coop", _core.plan_coop(core, order, budget_bytes, _core.CoopOptions())
  yield "plan_windows", _core.plan_windows(core, order, np.full(program.num_values, -1), budget_bytes)
  yield "op_predecessors", _core.op_predecessors(core)
  yield "reorder_by_cuts", _core.reorder_by_cuts(core, order)
  yield "plan_segments", _core.plan_segments(core, order, budget_bytes)
  ops = (
    np.array([0, 0, 1], np.int32),
    np.array([0], np.int32),
    np.array([0, 1, 2], np.int32),
    np.arange(2, dtype=np.int32),
  )
  wanted = np.array([1], np.int32)
  yield "save_frontier", _core.save_frontier(np.array([2.0, 3.0]), *ops, np.array([4, 8]), wanted)
  yield "plan_fastsa", _core.plan_fastsa(core, order, budget_bytes, stage1_iterations=100, stage2_iterations=100)
  yield "PackingProblem.check", packing.check()
  yield "PackingProblem.lower_bound", packing.lower_bound()
  yield "PackingProblem.pack_best_fit", packing.pack_best_fit()
  yield "PackingProblem.pack_in_order", packing.pack_in_order(0, True)
  yield "PackingProblem.search", packing.search(effort=1000)
  yield "schedule_buffers", _core.schedule_buffers(core, order, False)
  yield "apply_schedule", _core.apply_schedule(module, op_instruction_ids, fields["schedule"])
  yield "verify_transform", _core.verify_transform(module, module)
  yield "read_step_program", (fields, op_instruction_ids)
  yield "predict_memory", _core.predict_memory(module)
  yield "module_cost", _core.module_cost(module, True)
  yield "parse_buffer_assignment", _core.parse_buffer_assignment(proto, False)
  yield "inspect_module", _core.inspect_module(module)
  yield "remake_costs", _core.remake_costs(core, order)
  found = _core.recompute_order(module, budget_bytes=temp_bytes // 2, planner=None, **recompute)
  assert all(found[rows] for rows in ("inner", "orders", "rounds")) and any(row[-1] for row in found["rounds"])
  yield "recompute_order", found
  yield "least_workspaces", _core.least_workspaces(module)


def test_results_are_what_the_stub_says(stub, modules):
  seen = set()
  for path, result in calls(*modules):
    assert_is(result, inspect.signature(member(stub, path)).return_annotation, path)
    seen.add(path)
  assert seen == {path for path in callables() if not path.endswith("__init__")}


def test_callbacks_are_called_as_the_stub_says(stub, modules):
  """`PlanCallback`'s arguments, with an order that was found and without."""
  arguments, answer = typing.get_args(stub.PlanCallback.__value__)
  seen = set()

  def plan(*given):
    assert_is(given, tuple[*arguments], "arguments")
    fields, order, name, *_ = given
    seen.add(order is None)
    found = fields["schedule"], fields["schedule"] if order is None else order, name or "given"
    assert_is(found, answer, "answer")
    return found

  for searches_order in (False, True):
    _core.recompute_order(
      modules[0],
      changes=2,
      budget_bytes=1000,
      roofline=ROOFLINE,
      kept_scope="",
      planner=plan,
      searches_order=searches_order,
      near_smallest=1.0,
      max_steps=5_000_000,
    )
  assert seen == {False, True}


def test_fields_are_what_the_stub_says(stub, modules):
  for value in (_core.CoopOptions(), modules[0]):
    stubbed = getattr(stub, type(value).__name__)
    kinds = typing.get_type_hints(stubbed) | {
      name: inspect.signature(accessor.fget).return_annotation
      for name, accessor in vars(stubbed).items()
      if isinstance(accessor, property)
    }
    assert set(kinds) == names_of(type(value))
    for name, kind in kinds.items():
      assert_is(getattr(value, name), kind, name)
  assert_is(_core.NUM_ORDER_RULES, typing.get_type_hints(stub)["NUM_ORDER_RULES"], "NUM_ORDER_RULES")


def test_a_type_checker_sees_the_public_names():
  """What coopjax/__init__.py imports for type checkers alone is what it loads when it is asked."""
  tree = ast.parse((ROOT / "coopjax" / "__init__.py").read_text())
  (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
  seen = {}
  for node in block.body:
    assert all(alias.asname == alias.name for alias in node.names)  # without, a name is private to the package
    seen.setdefault(node.module, set()).update(alias.name for alias in node.names)
  assert seen == {home: set(names) for home, names in (coopjax._HOMES | {"coopjax": coopjax._MODULES}).items()}


@pytest.mark.parametrize(
  "remat, keywords",
  [
    (coopjax.remat, keywords.RematKeywords),
    (coopjax.linen.remat, keywords.LinenKeywords),
    (coopjax.nnx.remat, keywords.BlockKeywords),
    (coopjax.equinox.remat, keywords.EquinoxKeywords),
  ],
)
def test_overloads_have_the_keywords_of_the_function(remat, keywords):
  parameters = list(inspect.signature(remat).parameters.values())[1:]
  assert {parameter.name for parameter in parameters} == keywords.__required_keys__ | keywords.__optional_keys__
  assert {
    parameter.name for parameter in parameters if parameter.default is parameter.empty
  } == keywords.__required_keys__


def test_functions_keep_their_signatures():
  """What pyright proves of the file is that; here, that it runs."""
  typed_use.main()
