"""Planners: a `StepProgram` and a budget in, a schedule out. Nothing here needs JAX."""
