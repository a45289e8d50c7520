"""A module of MaxText, run as it is, with what it compiles noted; `maxtext_client` starts it, with coopjax or without.

Notes of the last program that the module compiled ahead of time, which is its training step: bytes by the compiler, and
FLOPs in the compiled module, loops with their length, where coopjax can read it. That is asked when the module is done:
in a process without coopjax nothing of it is there while the job runs.

  python benchmarks/maxtext_job.py NOTES.json maxtext.trainers.pre_train.train base.yml remat_policy=full ...
  coopjax run --budget 150MiB benchmarks/maxtext_job.py NOTES.json maxtext.trainers.pre_train.train base.yml ...
"""

import json
import pathlib
import runpy
import sys
import time

import jax


def main(notes: str, module: str, *arguments: str) -> None:
  compiled, seconds = [], []
  compile_ahead = jax.stages.Lowered.compile

  def noted(lowered, *args, **kwargs):
    start_s = time.perf_counter()
    compiled[:] = [compile_ahead(lowered, *args, **kwargs)]
    seconds[:] = [time.perf_counter() - start_s]
    return compiled[0]

  jax.stages.Lowered.compile = noted
  started_s, sys.argv = time.perf_counter(), [module, *arguments]
  try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  except SystemExit as end:
    if end.code:
      raise
  had_coopjax, job_s = "coopjax" in sys.modules, time.perf_counter() - started_s
  jax.stages.Lowered.compile = compile_ahead

  from coopjax.xla.compile import measure

  profile = measure(compiled[0])
  fields = {"temp_bytes": profile.temp_bytes, "total_bytes": profile.total_bytes, "flops": profile.flops or None}
  fields |= {"had_coopjax": had_coopjax, "compile_s": seconds[0], "job_s": job_s}
  pathlib.Path(notes).write_text(json.dumps(fields))


if __name__ == "__main__":
  main(*sys.argv[1:])
