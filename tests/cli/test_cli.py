"""The command line, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax import display
from coopjax.cli import main
from coopjax.memory_profile import GROUP_KEYS
from coopjax.report import tables
from tests.support import ROOT


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
  directory = tmp_path_factory.mktemp("dump")
  fn = lambda weight, x: jnp.tanh(jnp.tanh(x @ weight) @ weight).sum()
  lowered = jax.jit(jax.value_and_grad(fn)).lower(jnp.eye(64), jnp.ones((512, 64)))
  options = {"xla_dump_to": str(directory), "xla_dump_hlo_as_proto": True}
  return directory, lowered.compile(compiler_options=options).memory_analysis()


def run(capsys, *arguments):
  status = main.main([str(argument) for argument in arguments])
  return status, *capsys.readouterr()


def test_inspect_shows_totals_and_the_buffers_at_the_peak(dumped, capsys):
  directory, stats = dumped
  status, out, _ = run(capsys, "inspect", directory, "--units", "B")
  assert status == 0
  assert f"temporaries {stats.temp_size_in_bytes:,} B" in out
  assert f"{__file__}:" in out and "f32[512,64]" in out


@pytest.mark.parametrize("by", GROUP_KEYS)
def test_inspect_groups(dumped, capsys, by):
  status, out, _ = run(capsys, "inspect", dumped[0], "--group-by", by)
  assert status == 0 and all(column in out for column in tables.GROUP_COLUMNS)


@pytest.mark.parametrize("sort", tables.SORTS)
def test_inspect_sorts_and_cuts(dumped, capsys, sort):
  status, out, _ = run(capsys, "inspect", dumped[0], "--sort", sort, "--top", 1)
  assert status == 0 and "more (--top)" in out


def test_inspect_as_json_holds_every_buffer(dumped, capsys):
  directory, stats = dumped
  status, out, _ = run(capsys, "inspect", directory, "--json")
  fields = json.loads(out)
  assert status == 0 and fields["temp_bytes"] == stats.temp_size_in_bytes
  assert {"num_bytes", "offset", "start", "source", "cost_s"} <= set(fields["buffers"][0])


def test_check_is_a_gate(dumped, capsys):
  directory, stats = dumped
  total = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
  assert run(capsys, "check", directory, "--budget", total)[0] == 0
  status, out, _ = run(capsys, "check", directory, "--budget", total - 1)
  assert status == 1 and "OVER BUDGET by 1 B" in out and __file__ in out
  assert run(capsys, "check", directory, "--budget", stats.temp_size_in_bytes, "--temp")[0] == 0
  status, out, _ = run(capsys, "check", directory, "--budget", stats.temp_size_in_bytes - 1, "--temp", "--json")
  assert status == 1 and json.loads(out)["taken_bytes"] == stats.temp_size_in_bytes


def test_diff_shows_what_changed_line_by_line(dumped, capsys, tmp_path):
  directory, stats = dumped
  lowered = jax.jit(lambda x: jnp.tanh(x).sum()).lower(jnp.ones((512, 64)))
  small = lowered.compile(
    compiler_options={"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True}
  ).memory_analysis()
  status, out, _ = run(capsys, "diff", directory, tmp_path, "--units", "B")
  change = small.temp_size_in_bytes - stats.temp_size_in_bytes
  (temp,) = (line for line in out.splitlines() if line.endswith("  temp"))
  assert status == 0 and f"{change:,} B" in temp
  assert f"{__file__}:" in out
  status, out, _ = run(capsys, "diff", directory, directory)
  assert status == 0 and len(out.splitlines()) == 7 and "+" not in out


def test_explain_and_diff_read_saved_plans(dumped, capsys, tmp_path):
  def loss(weight, x):
    return jnp.tanh(jnp.tanh(jnp.tanh(x @ weight) @ weight) @ weight).sum()

  plan = coopjax.plan(loss, jnp.eye(64), jnp.ones((512, 64)), budget=0.9)
  plan.save(tmp_path / "plan.json")
  status, out, _ = run(capsys, "explain", tmp_path / "plan.json")
  assert status == 0 and out.strip() == plan.explain()
  status, out, _ = run(capsys, "diff", dumped[0], tmp_path / "plan.json", "--units", "B")
  assert status == 0 and f"{plan.measured.temp_bytes:,} B" in out


@pytest.mark.parametrize(
  "arguments, message",
  [
    (("explain", "pyproject.toml"), "not a coopjax plan"),
    (("diff", "nowhere", "nowhere"), "nowhere does not exist"),
    (("inspect", "nowhere"), "nowhere does not exist"),
    (("check", "nowhere", "--budget", "1GiB"), "does not exist"),
    (("check", ".", "--budget", "12 bananas"), "12 bananas"),
    (("check", ".", "--budget", "0.5"), "0.5"),
    (("check", ".", "--budget", "50%"), "50% is a share"),
    (("check", ".", "--budget", "fits"), "fits is what a device leaves a program, and a dump names none"),
    (("inspect", ".", "--top", "0"), "'0'"),
    (("inspect", ".", "--group-by", "mood"), "mood"),
  ],
)
def test_bad_input_is_two(capsys, arguments, message):
  try:
    status = main.main(list(arguments))
  except SystemExit as ended:
    status = ended.code
  told = capsys.readouterr().err
  assert status == 2 and message in told and "Traceback" not in told


def test_arguments_go_by_their_names(dumped, capsys):
  status, out, _ = run(capsys, "inspect", dumped[0], "--arguments", "--units", "B")
  rows = [line.split() for line in out.splitlines() if line.endswith(("weight", "x"))]
  assert status == 0 and [row[-2:] for row in rows] == [["f32[512,64]", "x"], ["f32[64,64]", "weight"]]
  status, out, _ = run(capsys, "inspect", dumped[0], "--arguments", "--group-by", "argument")
  assert status == 0 and out.splitlines()[-1].split()[-1] == "weight"


@pytest.mark.parametrize("command", [("inspect",), ("inspect", "--group-by", "line"), ("diff",)])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_take_the_width_of_the_terminal(dumped, capsys, monkeypatch, command, width):
  monkeypatch.setenv("COLUMNS", str(width))
  paths = [dumped[0]] * (1 + (command[0] == "diff"))
  status, out, _ = run(capsys, command[0], *paths, *command[1:])
  assert status == 0 and max(map(len, out.splitlines())) <= width
  if command[0] == "inspect":
    assert "test_cli.py:" in out


def test_a_reader_that_stops_early_is_no_error(dumped):
  command = [sys.executable, "-m", "coopjax.cli", "inspect", str(dumped[0]), "--json"]
  with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
    process.stdout.read(40)
    process.stdout.close()
    assert not process.stderr.read() and process.wait() == 0


def test_an_interrupt_is_one_line(monkeypatch, capsys):
  def interrupted(path):
    raise KeyboardInterrupt

  monkeypatch.setattr(coopjax.RematPlan, "load", interrupted)
  assert run(capsys, "explain", "plan.json") == (130, "", "coopjax: interrupted\n")


def test_help_has_examples(capsys):
  with pytest.raises(SystemExit):
    main.main(["--help"])
  assert "xla_dump_to" in capsys.readouterr().out


def test_the_package_runs_as_the_command():
  done = subprocess.run([sys.executable, "-m", "coopjax", "--version"], capture_output=True, text=True)
  assert done.stdout == f"coopjax {coopjax.__version__}\n"


def test_narrow_tables_keep_the_telling_end(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  stack = f"{tmp_path}/train.py:12 (block) < {tmp_path}/train.py:40 (<module>)"
  rows = [
    ("saved", f"{tmp_path}/train.py:12 (Block.__call__)"),
    ("saved", stack),
    ("kept", "state[0].mu['layers']['up']"),
  ]
  wide = display.text_table(("decision", "line"), rows, 1000)
  assert str(tmp_path) in wide and "Block.__call__" in wide
  narrow = [line.split(maxsplit=1)[1] for line in display.text_table(("decision", "line"), rows, 36).splitlines()[1:]]
  assert narrow == ["train.py:12", "train.py:12 (block) < tr..", "..te[0].mu['layers']['up']"]


def test_an_empty_line_stands_between_totals_and_rows_at_every_width(dumped, capsys, monkeypatch):
  for width in ("80", ""):
    monkeypatch.setenv("COLUMNS", width)
    lines = run(capsys, "inspect", dumped[0])[1].splitlines()
    (head,) = (i for i, line in enumerate(lines) if line.startswith("bytes"))
    assert lines[head - 1] == ""


@pytest.fixture
def interruptible():
  """Also where whatever runs these tests ignores interrupts."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_callback_swallows_comes_again(monkeypatch, capsys):
  class Collected:
    def __del__(self):  # what is raised in here is told and dropped
      signal.raise_signal(signal.SIGINT)

  def load(path):
    Collected()
    time.sleep(5)

  monkeypatch.setattr(coopjax.RematPlan, "load", load)
  assert run(capsys, "explain", "plan.json") == (130, "", "coopjax: interrupted\n")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_comes_as_another_error_is_one_line(monkeypatch, capsys):
  def load(path):
    try:
      signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
      raise RuntimeError("INTERNAL: a callback failed") from error

  monkeypatch.setattr(coopjax.RematPlan, "load", load)
  assert run(capsys, "explain", "plan.json") == (130, "", "coopjax: interrupted\n")


@pytest.mark.usefixtures("interruptible")
def test_ignored_interrupts_stay_ignored(monkeypatch, capsys):
  monkeypatch.setattr(coopjax.RematPlan, "load", lambda path: signal.raise_signal(signal.SIGINT))
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  assert run(capsys, "explain", "plan.json")[0] == 2  # what was loaded is no plan
  assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_where_nothing_can_be_written_is_told_before_anything_is_read(capsys, tmp_path):
  for name, told in ((tmp_path / "no" / "report.html", "there is no directory"), (tmp_path, "can't be written")):
    with pytest.raises(SystemExit, match="2"):
      run(capsys, "report", "nowhere", "-o", name)
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told_without_numbers(capsys):
  assert run(capsys, "explain", "nowhere.json") == (2, "", "coopjax: nowhere.json: No such file or directory\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_can_not_be_written_is_told_without_numbers(dumped, tmp_path, unbuffered):
  limited = ["bash", "-c", 'ulimit -f 0; exec "$@" > "$0"', str(tmp_path / "out")]
  command = [sys.executable, "-m", "coopjax.cli", "inspect", str(dumped[0])]
  environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
  done = subprocess.run([*limited, *command], stderr=subprocess.PIPE, text=True, env=environment)
  assert (done.returncode, done.stderr) == (2, "coopjax: File too large\n")


def test_a_file_that_is_no_text_is_named(dumped, capsys, tmp_path):
  path, directory = tmp_path / "plan.json", dumped[0]
  path.write_bytes(b"\xff\xfe\x00\x80")
  asked = ("explain", path), ("diff", directory, path), ("report", directory, "--plan", path, "-o", tmp_path / "o.html")
  for command in (*asked, ("run", "--plan", path, "train.py")):
    status, out, err = run(capsys, *command)
    assert status == 2 and not out and err.startswith(f"coopjax: {path}: not a coopjax plan") and err.count("\n") == 1


def test_an_interrupt_while_jax_is_loaded_is_one_line(tmp_path):
  # In place of JAX something that is interrupted while it is imported.
  (tmp_path / "jax").mkdir()
  (tmp_path / "jax" / "__init__.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
  environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
  command = [sys.executable, "-m", "coopjax", "--help"]
  done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
  assert (done.returncode, done.stdout, done.stderr) == (130, "", "coopjax: interrupted\n")
