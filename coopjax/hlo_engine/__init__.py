"""The HLO engine: plans are made and carried out inside XLA's pipeline, on the scheduled module."""
