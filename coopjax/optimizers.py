"""Optimizer state in the host's memory, brought to the device piece by piece while an update needs it.

Adam holds two moments a parameter, which nothing reads between two updates: two thirds of what lies on a device before
the first activation. An update is traced, and its state split into groups whose results are made together (the moments
of one parameter). A group that is elementwise over a stack of layers runs as a loop over the stack: a layer's
moments come in, are updated and go out, and its update takes the place of its gradient. Any other group comes in whole,
one after the other. What an update makes of gradients alone (a global norm, say) is made before, on the device.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr.fusion import is_elementwise
from coopjax.jaxpr.inline import inline_settled

_HOST_KIND = "pinned_host"
_STACKED_NDIM = 3  # matrices, one on the other: what a scan over layers makes of its parameters


def offload_state[T](optimizer: T) -> T:
  """An optimizer of optax whose state lies in the host's memory (``pinned_host``), on a CPU, GPU or TPU.

  The state goes in and out by layer where the update is elementwise and parameters are stacked (arrays of three or more
  axes, as a scan over layers has them, whose first axis is not split over devices), else by parameter. A transformation
  that mixes all states (clipping what Adam has made by its global norm) needs all of them on the device at once.
  Numbers without axes, such as counts, stay on the device.

  A jitted step gives the state back where it came from if the jit says nothing of it, and where `out_shardings` say, if
  it does: give it, and `jax.ShapeDtypeStruct`s that stand for the state, the shardings of :func:`state_on_host`.

  Args:
    optimizer: what has ``init(params)`` and ``update(updates, state, params)``, such as ``optax.adamw(1e-3)`` or an
      ``optax.MultiSteps`` of it.

  Returns:
    One of the same kind, whose ``init`` puts the state there and whose ``update`` leaves it there.

  Raises:
    AttributeError: it has not both of these, or others can't take their place (a class with ``__slots__``).

  Example:
    >>> import jax, jax.numpy as jnp, optax, coopjax
    >>> params = {"layers": jnp.ones((4, 64, 64)), "norm": jnp.ones(64)}
    >>> optimizer = coopjax.offload_state(optax.adamw(1e-3))
    >>> state = optimizer.init(params)
    >>> state[0].mu["layers"].sharding.memory_kind
    'pinned_host'
    >>> grads = jax.tree.map(jnp.ones_like, params)
    >>> updates, state = jax.jit(optimizer.update, donate_argnums=(0, 1))(grads, state, params)
    >>> state[0].mu["layers"].sharding.memory_kind
    'pinned_host'
  """
  made: Any = optimizer
  init_on_device, update_on_device = made.init, made.update

  def init(params):
    return state_on_host(init_on_device(params))

  def update(updates, state, params=None, **extra):
    return _streamed(update_on_device, updates, state, params, extra)

  if hasattr(optimizer, "_replace"):
    return made._replace(init=init, update=update)
  offloaded = copy.copy(optimizer)  # with all else that it has: `MultiSteps.has_updated` for one
  for name, method in (("init", init), ("update", update)):
    object.__setattr__(offloaded, name, method)  # a frozen dataclass refuses to have it set by itself
  return offloaded


def state_on_host[T](state: T) -> T:
  """The state of an optimizer with all that has axes in the host's memory, as :func:`offload_state` has it.

  Args:
    state: a pytree of arrays, or of ``jax.ShapeDtypeStruct``s, whose shardings then say so.

  Example:
    >>> import jax, coopjax
    >>> place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    >>> coopjax.state_on_host([jax.ShapeDtypeStruct((8, 8), "float32", sharding=place)])[0].sharding.memory_kind
    'pinned_host'
  """
  return jax.tree.map(lambda leaf: _to_host(leaf) if _moves(leaf) else leaf, state)


def _moves(leaf: Any) -> bool:
  is_array = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
  return is_array and len(leaf.shape) > 0 and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _shape(atom: Any) -> tuple[int, ...]:
  return atom.aval.shape


def _to_host(leaf: Any) -> Any:
  if not isinstance(leaf, jax.ShapeDtypeStruct):
    return jax.device_put(leaf, jax.memory.Space.Host)
  if leaf.sharding is None:
    raise ValueError(f"{leaf}: a shape lies on the host if its sharding says so, and it has none")
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(_HOST_KIND))


def _to_device(value: Any) -> Any:
  return jax.device_put(value, jax.memory.Space.Device)


def _streamed(update: Callable, updates: Any, state: Any, params: Any, extra: dict[str, Any]) -> Any:
  """What an optimizer's update returns, its state moved in and out."""
  leaves, tree = jax.tree.flatten((updates, state, params, extra))
  num_updates, num_states = len(jax.tree.leaves(updates)), len(jax.tree.leaves(state))
  hosts = [i for i in range(num_updates, num_updates + num_states) if _moves(leaves[i])]
  is_array = [isinstance(leaf, jax.Array) or hasattr(leaf, "__array__") for leaf in leaves]
  out_trees = []

  def flat(*arrays):
    given = iter(arrays)
    filled = [next(given) if ok else leaf for ok, leaf in zip(is_array, leaves, strict=True)]
    for i in hosts:
      filled[i] = _to_device(filled[i])
    updates, state, params, extra = jax.tree.unflatten(tree, filled)
    out, out_tree = jax.tree.flatten(update(updates, state, params, **extra))
    out_trees.append(out_tree)
    return out

  arrays = [leaf for leaf, ok in zip(leaves, is_array, strict=True) if ok]
  jaxpr = compat.dce(inline_settled(jax.make_jaxpr(flat)(*arrays).jaxpr))
  places = {i: sum(is_array[:i]) for i in hosts}
  num_new_updates = out_trees[0].children()[0].num_leaves  # fewer than gradients where some are None
  values = _Update(jaxpr, arrays, frozenset(places.values()), num_new_updates).run()
  return jax.tree.unflatten(out_trees[0], values)


class _Result(NamedTuple):
  """What an update returns in one place. One value may be returned as an update and as a state.

  Attributes:
    atom: a variable of the jaxpr or a constant.
    is_state: the place is a new state's, not an update's.
  """

  atom: Any
  is_state: bool

  def placed(self, value: Any) -> Any:
    """A new state leaves the device at once; an update stays."""
    return _to_host(value) if self.is_state and _moves(value) else value


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
  """Results that are made from the same states.

  Attributes:
    results: of the update.
    arrivals: states, on the device.
    equations: positions of those that make the results.
    whole: values that these read, made before.
    is_stacked: each layer of a stack is made from the same layer of all that is read.
  """

  results: tuple[_Result, ...]
  arrivals: tuple[core.Var, ...]
  equations: frozenset[int]
  whole: tuple[core.Var, ...]
  is_stacked: bool


class _Update:
  """One update as a jaxpr, evaluated group by group.

  Args:
    jaxpr: from all arrays that it takes to all that it returns, updates first.
    inputs: for it.
    hosts: of these, the states that come from the host; the jaxpr puts each on the device.
    num_updates: how many outputs are updates.
  """

  def __init__(self, jaxpr: core.Jaxpr, inputs: Sequence[Any], hosts: frozenset[int], num_updates: int):
    self._jaxpr = jaxpr
    self._results = [_Result(atom, place >= num_updates) for place, atom in enumerate(jaxpr.outvars)]
    self._env: dict[Any, Any] = dict(compat.environment(jaxpr, inputs))
    on_host = {jaxpr.invars[i] for i in hosts}
    self._state_of: dict[Any, Any] = {
      equation.outvars[0]: source
      for equation in jaxpr.eqns
      if equation.primitive.name == "device_put" and isinstance(source := equation.invars[0], core.Var)
      if source in on_host
    }
    self._maker = {var: i for i, equation in enumerate(jaxpr.eqns) for var in equation.outvars}
    self._reads: dict[core.Var, frozenset[core.Var]] = {var: frozenset([var]) for var in self._state_of}
    for equation in jaxpr.eqns:
      read = frozenset[core.Var]().union(*(self._states(atom) for atom in equation.invars))
      self._reads |= {var: read for var in equation.outvars if var not in self._state_of}

  def run(self) -> list[Any]:
    """All that the update returns."""
    groups = self._groups()
    before = [atom for atom in self._jaxpr.outvars if isinstance(atom, core.Var) and not self._states(atom)]
    needed = self._equations_for([*before, *(var for group in groups for var in group.whole)])
    for i in sorted(needed):
      self._evaluate(i, self._env)
    self._run_effects(needed.union(*(group.equations for group in groups)))
    made: dict[_Result, Any] = {}
    finished: Any = None
    for group in groups:
      of_group = self._run_stacked(group) if group.is_stacked else self._run_whole(group, finished)
      made |= of_group
      finished = finished if group.is_stacked else next(iter(of_group.values()))
    return [result.placed(self._value(result, made)) for result in self._results]

  def _run_effects(self, others: set[int]) -> None:
    """What nothing is made from, but somebody sees: prints and callbacks."""
    for i, equation in enumerate(self._jaxpr.eqns):
      if not equation.effects or i in others:
        continue
      read = [atom for atom in equation.invars if isinstance(atom, core.Var)]
      states = frozenset[core.Var]().union(*map(self._states, read))
      env = self._env | {var: _to_device(self._env[self._state_of[var]]) for var in states}
      for each in sorted({*self._equations_for(read), i}):
        self._evaluate(each, env)

  def _states(self, atom: Any) -> frozenset[core.Var]:
    """That a value depends on."""
    return self._reads.get(atom, frozenset()) if isinstance(atom, core.Var) else frozenset()

  def _value(self, result: _Result, made: dict[_Result, Any]) -> Any:
    if isinstance(result.atom, core.Literal):
      return jnp.asarray(result.atom.val)
    if result.atom in self._state_of:  # as it was: in a state's place it has not left the host
      state = self._env[self._state_of[result.atom]]
      return state if result.is_state else _to_device(state)
    return made[result] if result in made else self._env[result.atom]

  def _evaluate(self, i: int, env: dict[core.Var, Any]) -> None:
    equation = self._jaxpr.eqns[i]
    values = [atom.val if isinstance(atom, core.Literal) else env[atom] for atom in equation.invars]
    env.update(zip(equation.outvars, compat.bind(equation, values), strict=True))

  def _equations_for(self, variables: Sequence[core.Var]) -> set[int]:
    """Those that these values take, up to states."""
    return self._reached(variables, lambda _: True)[0]

  def _reached(self, variables: Sequence[core.Var], is_inside: Callable[[int], bool]) -> tuple[set[int], set[core.Var]]:
    """Equations that lead to values, as far as they are inside, and the values that these read from outside."""
    equations, outside, left = set[int](), set[core.Var](), list(variables)
    while left:
      var = left.pop()
      i = self._maker.get(var)
      if var in self._state_of or i in equations:
        continue
      if i is None or not is_inside(i):
        outside.add(var)
        continue
      equations.add(i)
      left += [atom for atom in self._jaxpr.eqns[i].invars if isinstance(atom, core.Var)]
    return equations, outside

  def _groups(self) -> list[_Group]:
    """The results that depend on states, split as finely as their states allow; in the order of the results."""
    made = [result for result in self._results if self._states(result.atom) and result.atom not in self._state_of]
    merged: list[tuple[set[core.Var], list[_Result]]] = []
    for result in dict.fromkeys(made):
      states, members = set(self._states(result.atom)), [result]
      for other in [each for each in merged if each[0] & states]:
        merged.remove(other)
        states, members = states | other[0], other[1] + members
      merged.append((states, members))
    order = {var: i for i, var in enumerate(self._state_of)}
    return [self._group(tuple(members), tuple(sorted(states, key=order.__getitem__))) for states, members in merged]

  def _group(self, results: tuple[_Result, ...], arrivals: tuple[core.Var, ...]) -> _Group:
    shape = _shape(arrivals[0])
    outputs = [result.atom for result in results]
    if len(shape) >= _STACKED_NDIM and {_shape(var) for var in (*outputs, *arrivals)} == {shape}:
      equations, whole = self._reached(outputs, lambda i: self._is_elementwise(i, shape))
      if not any(map(self._states, whole)):
        return _Group(results, arrivals, frozenset(equations), self._in_order(whole), True)
    equations, whole = self._reached(outputs, lambda i: any(map(self._states, self._jaxpr.eqns[i].invars)))
    return _Group(results, arrivals, frozenset(equations), self._in_order(whole), False)

  def _in_order(self, variables: set[core.Var]) -> tuple[core.Var, ...]:
    inputs = {var: i - len(self._env) for i, var in enumerate(self._env)}
    return tuple(sorted(variables, key=lambda var: self._maker.get(var, inputs.get(var, 0))))

  def _is_elementwise(self, i: int, shape: tuple[int, ...]) -> bool:
    equation = self._jaxpr.eqns[i]
    shapes = {_shape(atom) for atom in equation.invars}
    return (
      is_elementwise(equation.primitive.name)
      and shapes <= {shape, ()}
      and {_shape(var) for var in equation.outvars} == {shape}
    )

  def _run_whole(self, group: _Group, finished: Any) -> dict[_Result, Any]:
    """The group's states come in together, once what was made before them is `finished`."""
    env = {var: self._env[var] for var in group.whole}
    states = [_to_host(self._env[self._state_of[var]]) for var in group.arrivals]
    if finished is not None:
      states, _ = jax.lax.optimization_barrier((states, finished))
    env |= {var: _to_device(state) for var, state in zip(group.arrivals, states, strict=True)}
    for i in sorted(group.equations):
      self._evaluate(i, env)
    return {result: env[result.atom] for result in group.results}

  def _run_stacked(self, group: _Group) -> dict[_Result, Any]:
    """The group's states come in layer by layer, and go back where they were; updates take the place of gradients."""
    shape = _shape(group.arrivals[0])
    sliced = [var for var in group.whole if _shape(var) == shape]
    numbers = {var: self._env[var] for var in group.whole if _shape(var) != shape}
    in_place = self._in_place(group, sliced)
    stacked = [result for result in group.results if result not in in_place.values()]
    read = [var for var in (*sliced, *group.arrivals) if var not in in_place]

    def turn(carry, slices):
      layer, kept = carry
      env = numbers | dict(zip(read, slices, strict=True))
      env |= {var: jax.lax.dynamic_index_in_dim(kept[n], layer, 0, keepdims=False) for n, var in enumerate(in_place)}
      env |= {var: _to_device(env[var]) for var in group.arrivals}
      for i in sorted(group.equations):
        self._evaluate(i, env)
      kept = [
        jax.lax.dynamic_update_index_in_dim(array, result.placed(env[result.atom]), layer, 0)
        for array, result in zip(kept, in_place.values(), strict=True)
      ]
      return (layer + 1, kept), [result.placed(env[result.atom]) for result in stacked]

    arrays = {var: self._env[var] for var in sliced}
    arrays |= {var: _to_host(self._env[self._state_of[var]]) for var in group.arrivals}
    start = jnp.zeros((), jnp.int32), [arrays[var] for var in in_place]
    (_, kept), rest = jax.lax.scan(turn, start, [arrays[var] for var in read], shape[0])
    return dict(zip(in_place.values(), kept, strict=True)) | dict(zip(stacked, rest, strict=True))

  def _in_place(self, group: _Group, sliced: Sequence[core.Var]) -> dict[core.Var, _Result]:
    """Results by what they take the memory of: updates that of gradients, new states that of old ones."""
    arrival_of = {state: var for var, state in self._state_of.items()}
    found = {}
    for taken, result in zip(self._jaxpr.invars, self._results):
      taken = arrival_of.get(taken, taken)
      places = group.arrivals if result.is_state else sliced  # on the host, or on the device
      if result in group.results and taken in places and result.atom.aval == taken.aval:
        found[taken] = result
    return found
