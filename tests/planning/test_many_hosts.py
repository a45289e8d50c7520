"""Jobs of several processes: one plan in all of them, or one error in all of them, in bounded time."""

import pytest

from tests.support.jobs import Job

MODEL = """
  import hashlib, threading
  from coopjax.errors import PlanMismatchError
  from coopjax.hlo_engine import compiles
  from tests.support import quick

  quick.be_quick()

  def model(number):
    '''Small whole numbers: their sums are exact, in whatever order processes add them up.'''
    rng = np.random.default_rng(number)
    weights = [put(rng.integers(-1, 2, (32, 32))) for _ in range(6)]
    def loss(weights, x):
      for weight in weights:
        x = jnp.clip(x @ weight, -2, 2)
      return jnp.sum(x)
    return loss, weights, put(rng.integers(-1, 2, (1024 + 64 * number, 32)), P("data"))

  def step_of(loss):
    return jax.jit(lambda weights, x: jax.value_and_grad(loss)(weights, x))

  def digest(compiled):
    return compiles.digest_of(compiled.runtime_executable()), compiled.as_text().count("coop_remat")

  def bits(values):
    shards = [np.asarray(each.addressable_shards[0].data) for each in jax.tree.leaves(values)]
    return hashlib.sha256(b"".join(each.tobytes() for each in shards)).hexdigest()

  def run(number, budget=0.7, **options):
    '''Module and bits of a planned step, and of the same without a plan; or the error.'''
    loss, weights, x = model(number)
    planned = step_of(coopjax.remat(loss, budget=budget, on_infeasible="best_effort", **options))
    try:
      compiled = planned.lower(weights, x).compile()
      found = bits(compiled(weights, x))
    except PlanMismatchError as error:
      return str(error)
    return digest(compiled), found == bits(step_of(loss)(weights, x)), found

  def failing(*_, **__):
    raise MemoryError("no room to plan")
"""

# One program for each way that things can go.
TWO = (
  MODEL
  + """
  plan_module, choose_anew, make_plan = hook.plan_module, function_plan.choose_anew, function_plan.plan_function

  story["hlo"] = run(5, engine="hlo")
  story["policy"] = run(6, engine="policy")

  for failed in range(num_processes):
    if rank == failed:
      hook.plan_module = function_plan.choose_anew = failing
    story[f"process {failed} fails"] = run(7 + failed, engine="hlo")
    hook.plan_module, function_plan.choose_anew = plan_module, choose_anew

  # Both compile before either runs; then one runs first what the other compiles first.
  def other_order(numbers, is_lazy):
    models = [model(number) for number in numbers]
    steps = [(step_of(coopjax.remat(loss, budget=0.7, engine="hlo")), *arguments) for loss, *arguments in models]
    compiled = {}
    for i in reversed(range(len(steps))) if rank else range(len(steps)):
      step, weights, x = steps[i]
      if rank or not is_lazy:
        compiled[i] = step.lower(weights, x).compile()
    for i, (step, weights, x) in enumerate(steps):
      compiled.setdefault(i, step)(weights, x)
    return [digest(step.lower(weights, x).compile()) for step, weights, x in steps]

  story["other order"] = other_order((9, 10), False)
  os.environ["COOPJAX_AGREEMENT_TIMEOUT_S"] = "30"  # a fifth of that, and they are freed
  story["other order, lazily"] = other_order((11, 12), True)
  del os.environ["COOPJAX_AGREEMENT_TIMEOUT_S"]

  # In threads; programs of the process's own wait for nobody.
  loss, weights, x = model(13)
  own = [np.asarray(weight.addressable_shards[0].data) for weight in weights], np.ones(x.shape, np.float32)
  if rank == 0:
    story["own"] = digest(step_of(coopjax.remat(loss, budget=0.7, engine="hlo")).lower(*own).compile())[1] > 0
  found = {}
  steps = {share: step_of(coopjax.remat(loss, budget=share, engine="hlo")) for share in (0.9, 0.7)}
  compile_one = lambda share: found.update({share: digest(steps[share].lower(weights, x).compile())})
  threads = [threading.Thread(target=compile_one, args=(share,)) for share in sorted(steps, reverse=bool(rank))]
  for thread in threads: thread.start()
  for thread in threads: thread.join()
  story["threads"] = [found[0.7], found[0.9]]

  with coopjax.enable(0.8, planner="peak"):
    loss, weights, x = model(14)
    compiled = step_of(loss).lower(weights, x).compile()
    compiled(weights, x)
    story["enable"] = digest(compiled)

  # One process plans, the others follow; the same of an error.
  calls = []
  function_plan.choose_anew = lambda *args, **kwargs: calls.append(1) or choose_anew(*args, **kwargs)
  shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=each.sharding) for each in (*weights, x)]
  plan = coopjax.plan(loss, shapes[:-1], shapes[-1], budget=0.8, engine="hlo")
  step = step_of(plan.apply(loss))
  story["plan"] = plan.to_json(), digest(step.lower(weights, x).compile())
  step(weights, x)
  try:
    coopjax.plan(loss, shapes[:-1], shapes[-1], budget="1 KiB")
  except coopjax.BudgetInfeasibleError as error:
    story["infeasible"] = str(error), error.smallest_bytes, error.largest, error.__notes__
  story["num_planned"] = len(calls)

  # What can't be applied ends the same everywhere.
  if rank == 1:
    compiles.with_plan_of = failing
  story["cannot follow"] = run(15, engine="hlo")
"""
)

FOUR = (
  MODEL
  + """
  if rank == 1:
    hook.plan_module = function_plan.choose_anew = failing
  story["hlo"] = run(5, engine="hlo")
  story["policy"] = run(6, engine="policy")
"""
)

CACHED = (
  MODEL
  + """
  hits = []
  jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
  loss, weights, x = model(5)
  step = step_of(coopjax.remat(loss, budget=0.7, engine="hlo"))
  compiled = step.lower(weights, x).compile()
  compiled(weights, x)
  story.update(hits=sum(hits) > 0, module=digest(compiled))
"""
)


# Programs that are nothing but what processes say of them.
MEETINGS = """
  import threading, time
  from coopjax import job
  from coopjax.errors import PlanMismatchError

  def told(name):
    about = job.topic("program", name)
    job.tell(about, "digest", f"holds {name}")
    return about

  def agreed(about, name):
    begun = time.monotonic()
    try:
      job.agree(about, range(num_processes), "digest", name)
    except PlanMismatchError as error:
      return str(error), time.monotonic() - begun < job.timeout_s()
    return "agreed"

  # Told of in time, two programs are run first in opposite orders, by threads.
  names = ("a", "b") if rank else ("b", "a")
  topics = {name: told(name) for name in names}
  found = {}
  for name in names:
    thread = threading.Thread(target=lambda name: found.update({name: agreed(topics[name], name)}), args=(name,))
    thread.start()
    thread.join(3)  # more than processes wait for one that is elsewhere
  while len(found) < 2: time.sleep(0.1)
  story["other order"] = found

  if rank == 1:
    time.sleep(3)
  story["late"] = agreed(told("c"), "c")

  own = told("d" if rank == 0 else "e")
  story["different"] = agreed(own, "step")
  story["again"] = agreed(own, "step")

  about = job.topic("plan", f"for {rank}")
  job.come_to(about, range(num_processes), f"a plan for {rank}")
  begun = time.monotonic()
  job.one_decides(about, range(num_processes), lambda: b"", patience=1)
  story["plan"] = time.monotonic() - begun < job.timeout_s()
  if rank == 0:
    story["absent"] = agreed(told("f"), "step")
  else:
    time.sleep(12)
"""

DIFFERENT = (
  MODEL
  + """
  loss, weights, x = model(6)
  shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=each.sharding) for each in (*weights, x)]
  plan = coopjax.plan(loss, shapes[:-1], shapes[-1], budget=0.9 if rank else 0.7, engine="hlo")
  try:
    step_of(plan.apply(loss))(weights, x)
  except PlanMismatchError as error:
    story["plan"] = str(error)
"""
)

ALONE = (
  MODEL
  + """
  for num_devices in (4, 8):
    mesh = jax.make_mesh((num_devices,), ("data",), axis_types=mesh.axis_types, devices=jax.devices()[:num_devices])
    story[num_devices] = {engine: run(number, engine=engine) for engine, number in (("hlo", 5), ("policy", 6))}
"""
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """What one process compiles for the devices that two have, and for those of four."""
  (story,) = Job(tmp_path_factory.mktemp("alone"), ALONE, [{}]).stories(300)
  return story


def test_two_processes(tmp_path, alone):
  first, second = Job(tmp_path, TWO, [{}] * 2).stories(300)
  assert first.pop("own")
  assert (first.pop("num_planned"), second.pop("num_planned")) == (2, 0)
  mismatch = first.pop("cannot follow")
  assert mismatch == second.pop("cannot follow")
  assert "process 0: planned by process 0" in mismatch
  assert "process 1: left as it came, since MemoryError: no room to plan" in mismatch
  assert first == second
  assert {engine: first[engine] for engine in ("hlo", "policy")} == alone["4"]
  for name in ("hlo", "process 0 fails", "process 1 fails"):
    assert len(first[name]) == 3, first[name]  # no error's text
    (_, num_recomputed), is_same, _ = first[name]
    assert num_recomputed and is_same, name
  assert all(num_recomputed for _, num_recomputed in first["threads"] + first["other order"])
  assert "no plan brings loss" in first["infeasible"][0]


def test_four_processes_one_starved_one_without_a_cache_one_that_cannot_plan(tmp_path, alone):
  environments = [{"COOPJAX_CACHE_DIR": str(tmp_path / f"kept{rank}")} for rank in range(4)]
  environments[2]["COOPJAX_CACHE_DIR"] = ""
  stories = Job(tmp_path, FOUR, environments, starved=3).stories(300)
  assert all(story == alone["8"] for story in stories)
  (_, num_recomputed), is_same, _ = stories[0]["hlo"]
  assert num_recomputed and is_same


def test_processes_that_come_to_different_programs_are_told_of_both(tmp_path):
  stories = Job(tmp_path, MEETINGS, [{"COOPJAX_AGREEMENT_TIMEOUT_S": "10"}] * 3).stories(120)
  absent = stories[0].pop("absent")
  assert absent[0].count("has not come to this program within 10 s: it was asked for a plan for ") == 2
  assert "process 1: has not come to this program within 10 s: it was asked for a plan for 1\n" in absent[0]
  told = "\n  process 0: holds d\n  process 1: holds e\n  process 2: holds e\n"
  for story in stories:
    assert story["other order"] == {"a": "agreed", "b": "agreed"} and story["late"] == "agreed"
    for message, is_soon in (story["different"], story["again"]):
      assert told in message and is_soon
    assert story["plan"]


@pytest.mark.sweep
def test_processes_that_ask_for_different_budgets_are_told_of_both(tmp_path):
  first, second = Job(tmp_path, DIFFERENT, [{"COOPJAX_AGREEMENT_TIMEOUT_S": "30"}] * 2).stories(300)
  assert first == second
  lines = [line for line in first["plan"].splitlines() if line.startswith("  process ")]
  for rank, (line, share) in enumerate(zip(lines, (0.7, 0.9), strict=True)):
    assert line.startswith(f"  process {rank}: planned by process {rank} ")
    assert line.endswith(f" for {share} of the un-rematerialized temporaries")


def test_a_process_that_finds_the_program_in_jaxs_cache(tmp_path):
  """Process 0 alone writes there: at the second start it finds what the other compiles."""
  environments = [
    {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / f"programs{rank}"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    for rank in range(2)
  ]
  once = Job(tmp_path, CACHED, environments).stories(300)
  again = Job(tmp_path, CACHED, environments).stories(300)
  assert [story["hits"] for story in once + again] == [False, False, True, False]
  assert len({tuple(story["module"]) for story in once + again}) == 1
