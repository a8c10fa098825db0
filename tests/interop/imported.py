"""What imported networks compute, by the float64 references of their ops."""

import numpy as np


def infer(made, x):
    """The output of a ModelFile's or a Translation's network for `x`, in the network's order of axes."""
    found = dict.fromkeys(made.network.inputs, np.float64(x))
    for node in made.network.nodes.values():
        own = {
            p.role: np.float64(made.weights[p.name]) for p in made.network.parameters.values() if p.layer == node.owner
        }
        found[node.name] = node.op.reference_forward([found[name] for name in node.inputs], own)
        assert found[node.name].shape[1:] == node.shape
    return found[made.network.output.name]


def channels_last(x):
    """An image of (n, channels, height, width) as networks here have it; others as they are."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


def distance(ours, theirs):
    return np.abs(ours - theirs).max() / np.abs(theirs).max()
