"""``python -m coopjax``: the command line without its script."""

import sys

from coopjax.cli.main import main

sys.exit(main())
