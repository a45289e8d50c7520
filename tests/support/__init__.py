"""What tests share: models, programs, oracles, and where the checkout lies."""

import pathlib

ROOT = pathlib.Path(__file__).parent.parent.parent
