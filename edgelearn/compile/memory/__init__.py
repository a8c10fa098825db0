"""Activation memory: store, recompute, invert, offload or compress what the backward pass needs."""
