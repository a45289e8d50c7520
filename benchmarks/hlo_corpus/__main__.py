"""Writes modules of the corpus; ``--help`` names them."""

import argparse
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import hlo_corpus

parser = argparse.ArgumentParser(prog="python -m benchmarks.hlo_corpus", description="Captures scheduled modules.")
parser.add_argument("directory", type=pathlib.Path)
parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(hlo_corpus.PROGRAMS)}; all by default")
options = parser.parse_args()
if unknown := set(options.names) - set(hlo_corpus.PROGRAMS):
  parser.error(f"no program is named {', '.join(sorted(unknown))}")
hlo_corpus.use_virtual_devices()
options.directory.mkdir(parents=True, exist_ok=True)
for name in options.names or hlo_corpus.PROGRAMS:
  module = hlo_corpus.capture(name)
  (options.directory / f"{name}.pb").write_bytes(module)
  print(f"{name:36} {len(module):9,} bytes")
