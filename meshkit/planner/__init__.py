"""Which mesh for this model on this cluster: estimates of time and memory, without JAX."""
