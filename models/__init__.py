"""Transformers in Flax NNX, with a PartitionSpec at every parameter; `build` finds them by name."""
