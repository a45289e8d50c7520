"""A jaxpr as data: traced, tagged, priced, placed on devices."""
