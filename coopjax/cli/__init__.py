"""The command line: ``coopjax`` and ``python -m coopjax.cli``."""
