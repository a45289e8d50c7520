"""The GPT of the demo beside the same GPT in PyTorch, whose compiler takes an `activation_memory_budget`.

Both frameworks train the model of examples/gpt.py, the same operations, weights and batches, with AdamW, in float32.
A run is a process of its own; all take one step in turn, so that a busy machine slows all alike. coopjax's budgets are
shares of the temporaries without one; PyTorch's are shares of the activations that it would save at 1 (0 repeats the
forward pass as a whole). "peak" is the resident memory that a step adds to what the process holds between steps,
measured for both alike (PyTorch's heap is trimmed between steps); "saved" are the bytes that PyTorch's forward pass
hands to its backward pass, and "temp" the compiler's temporaries of the JAX step. A time is over the same framework's
without a budget, seconds stand beside.

PyTorch runs in an interpreter of its own, which needs torch and numpy: `make bench` makes one.

  python benchmarks/torch_peer.py --torch build/torch/bin/python
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MIB = 2**20
COLUMNS = {
  "run": "{name}",
  "temp\nMiB": "{temp_mib:.0f}",
  "saved\nMiB": "{saved_mib:.0f}",
  "peak\nMiB": "{peak_mib:.0f}",
  "step\ns": "{step_s:.2f}",
  "step\ntime": "{time_ratio:.2f}x",
  "compile\ns": "{compile_s:.0f}",
  "first\nloss": "{first_loss:.6f}",
  "last\nloss": "{last_loss:.6f}",
}


# --- PyTorch's side, in an interpreter that has no JAX ----------------------------------------------------------


def make_model(torch, weights: dict, num_heads: int):
  """The loss of weights by their path in the JAX model, tokens in; and the parameters, in the order of the weights."""
  functional = torch.nn.functional
  params = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in weights.items()}
  num_layers = 1 + max(int(name.split("/")[1]) for name in params if name.startswith("blocks/"))

  def linear(x, name):
    return x @ params[f"{name}/kernel"] + params[f"{name}/bias"]

  def norm(x, name):
    return functional.layer_norm(x, x.shape[-1:], params[f"{name}/scale"], params[f"{name}/bias"], eps=1e-6)

  def block(x, name):
    batch, context, width = x.shape
    heads = linear(norm(x, f"{name}/attention_norm"), f"{name}/query_key_value")
    query, key, value = heads.reshape(batch, context, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) * (width // num_heads) ** -0.5
    is_later = torch.ones(context, context, dtype=torch.bool, device=x.device).triu(1)
    mixed = torch.softmax(scores.masked_fill(is_later, -1e30), -1) @ value
    x = x + linear(mixed.transpose(1, 2).reshape(batch, context, width), f"{name}/attention_out")
    up = functional.gelu(linear(norm(x, f"{name}/mlp_norm"), f"{name}/mlp_up"), approximate="tanh")
    return x + linear(up, f"{name}/mlp_down")

  def loss(tokens, is_checkpointed):
    embedding = params["token_embedding/embedding"]
    x = embedding[tokens[:, :-1]] + params["position_embedding/embedding"]
    for index in range(num_layers):
      name = f"blocks/{index}"
      if is_checkpointed:
        x = torch.utils.checkpoint.checkpoint(block, x, name, use_reentrant=False)
      else:
        x = block(x, name)
    logits = norm(x, "final_norm") @ embedding.T
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))

  return loss, list(params.values())


def work(kind: str, given: pathlib.Path) -> None:
  """One run in PyTorch: compiles, reports, then trains one step for every line on standard input."""
  import ctypes

  import numpy as np
  import torch
  import torch._functorch.config
  import torch.utils.checkpoint

  arrays = dict(np.load(given))
  batches, num_heads = arrays.pop("batches"), int(arrays.pop("num_heads"))
  loss, params = make_model(torch, arrays, num_heads)
  is_checkpointed = kind == "checkpoint"
  torch._functorch.config.activation_memory_budget = 1.0 if is_checkpointed else float(kind)
  compiled = torch.compile(lambda tokens: loss(tokens, is_checkpointed))
  optimizer = torch.optim.AdamW(params, lr=3e-4, weight_decay=1e-4, fused=True)
  own, saved = {param.untyped_storage().data_ptr() for param in params}, {}

  def count(tensor):
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in own:
      saved[storage.data_ptr()] = storage.nbytes()
    return tensor

  tokens = [torch.from_numpy(batch.astype(np.int64)) for batch in batches]
  start = time.perf_counter()
  compiled(tokens[0]).backward()
  seconds = time.perf_counter() - start
  optimizer.zero_grad()
  with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
    value = compiled(tokens[0])
  del value
  trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)  # glibc's keeps what was freed
  trim(0)
  print(json.dumps({"compile_s": seconds, "saved_mib": sum(saved.values()) / MIB}), flush=True)
  for index, _ in enumerate(sys.stdin):
    start = time.perf_counter()
    value = compiled(tokens[index])
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    seconds = time.perf_counter() - start
    trim(0)
    print(json.dumps({"loss": value.item(), "step_s": seconds}), flush=True)


# --- all runs, side by side -------------------------------------------------------------------------------------


class Run:
  """One process, what it reported, and what its steps added to its resident memory."""

  def __init__(self, name: str, command: list[str], environment: dict[str, str], stack: contextlib.ExitStack):
    self.name, self.steps, self.peaks = name, [], []
    self.process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    stack.enter_context(self.process)
    stack.callback(self.process.terminate)
    self.compiled = self._read()

  def step(self) -> None:
    """Trains one step."""
    held = self._memory("VmRSS")
    (self._proc / "clear_refs").write_text("5")  # forgets the peak so far
    self.process.stdin.write("step\n")
    self.process.stdin.flush()
    self.steps.append(self._read())
    self.peaks.append(self._memory("VmHWM") - held)

  def row(self, plain: "Run") -> dict:
    """What was measured; the first step, which warms up, is not timed."""
    temp = self.compiled.get("temp_bytes")
    return {
      "name": self.name,
      "temp_mib": None if temp is None else temp / MIB,
      "saved_mib": self.compiled.get("saved_mib"),
      "peak_mib": max(self.peaks[1:]) / MIB,
      "step_s": self._step_s,
      "time_ratio": self._step_s / plain._step_s,
      "compile_s": self.compiled["compile_s"],
      "first_loss": self.steps[0]["loss"],
      "last_loss": self.steps[-1]["loss"],
    }

  @property
  def _step_s(self) -> float:
    return statistics.median(step["step_s"] for step in self.steps[1:])

  @property
  def _proc(self) -> pathlib.Path:
    return pathlib.Path("/proc", str(self.process.pid))

  def _memory(self, field: str) -> int:
    lines = (self._proc / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

  def _read(self) -> dict:
    line = self.process.stdout.readline()
    if not line:
      raise SystemExit(f"The run {self.name!r} ended early (exit code {self.process.wait()}).")
    return json.loads(line)


def give(config, num_steps: int, path: pathlib.Path) -> None:
  """Writes the model's weights, by path, and the batches: what PyTorch's runs start from."""
  import gpt
  import jax
  import numpy as np

  params = gpt.make_loss(config)[1]
  leaves = jax.tree_util.tree_leaves_with_path(params)
  name = lambda path: "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path).removesuffix(
    "/value"
  )
  batches = gpt.batches(gpt.read_corpus(), config)
  np.savez(
    path,
    batches=np.stack([next(batches) for _ in range(num_steps)]),
    num_heads=config.num_heads,
    **{name(path): np.asarray(value) for path, value in leaves},
  )


def main() -> None:
  if len(sys.argv) == 4 and sys.argv[1] == "--worker":
    return work(sys.argv[2], pathlib.Path(sys.argv[3]))
  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  sys.path.insert(0, str(HERE.parent / "examples"))
  import gpt
  import tables

  summary, details = (__doc__ or "").split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--torch", required=True, metavar="PYTHON", help="an interpreter with torch and numpy")
  parser.add_argument("--steps", type=int, default=6, help="training steps of each run; the first is not timed")
  parser.add_argument("--layers", type=int, default=gpt.GPTConfig.num_layers)
  parser.add_argument("--budgets", nargs="*", default=["0.5", "0.25", "0.12"], metavar="B")
  parser.add_argument("--out", type=pathlib.Path, default=tables.RESULTS / "torch_peer.json")
  arguments = parser.parse_args()
  config = gpt.GPTConfig(num_layers=arguments.layers)
  example = [sys.executable, str(HERE.parent / "examples" / "train_gpt.py"), "--num-layers", str(arguments.layers)]
  torch = [arguments.torch, str(HERE / "torch_peer.py"), "--worker"]
  runs: dict[str, list[Run]] = {"jax": [], "torch": []}
  with contextlib.ExitStack() as stack:
    given = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "given.npz"
    give(config, arguments.steps, given)
    for budget in ("none", *arguments.budgets):
      name = "JAX" if budget == "none" else f"JAX, coopjax {float(budget):.0%}"
      runs["jax"].append(Run(name, [*example, "--worker", budget], dict(os.environ), stack))
    for kind in ("1.0", *arguments.budgets, "0.0", "checkpoint"):
      name = "PyTorch, checkpoint per block" if kind == "checkpoint" else f"PyTorch, budget {float(kind):.0%}"
      runs["torch"].append(Run(name, [*torch, kind, str(given)], dict(os.environ), stack))
    for _ in range(arguments.steps):
      for run in (*runs["jax"], *runs["torch"]):
        run.step()
    rows = [run.row(of_framework[0]) for of_framework in runs.values() for run in of_framework]
  version = subprocess.run(
    [arguments.torch, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
  ).stdout.strip()
  tables.console().print(tables.table(rows, COLUMNS))
  tables.write(arguments.out, torch=version, steps=arguments.steps, layers=arguments.layers, rows=rows)
  print(f"wrote {arguments.out}")


if __name__ == "__main__":
  main()
