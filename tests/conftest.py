"""What all tests share: kept decisions go into a directory of this run, never into the user's own; fixed seeds."""

import os
import tempfile

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


def pytest_configure(config):
  directory = tempfile.TemporaryDirectory(prefix="coopjax-cache-")  # of each worker: what one plans, another does not skip
  os.environ["COOPJAX_CACHE_DIR"] = directory.name
  config.add_cleanup(directory.cleanup)
