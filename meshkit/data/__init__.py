"""Tokens on disk and on devices: token files, their preparation, the Grain loader, n-gram baselines."""
