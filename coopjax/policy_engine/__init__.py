"""The policy engine: what to recompute is decided on the jaxpr, before XLA, and carried out by `jax.checkpoint`."""
