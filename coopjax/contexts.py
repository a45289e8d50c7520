"""What JAX's caches tell programs apart by on our account: user contexts, a part of the keys of all those caches.

With each context that comes into being, JAX traces everything once more. So all are made here, at the same moment: when
the first public name that needs one is used.
"""

import jax

standing = jax.make_user_context(None)  # what is asked of every program: `coopjax.xla.standing`
directions = jax.make_user_context(None)  # what a planned step wants of its regions: `coopjax.planning.regions`
one_by_one = jax.make_user_context(False)  # whether what is being traced will run operation by operation
