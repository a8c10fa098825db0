"""Which network hears the words, and how they are learned: what the commands of `edgelearn keywords` share."""

from __future__ import annotations

import argparse

from edgelearn.keywords.learners import MAML, Learner, Neighbours

# Without those that need what no network has here: preparation by meta-training, or a classifier of the user's words
# and other people's clips of them (`personal` has these).
LEARNERS = tuple(sorted(name for name, kind in Learner.registry.items() if not issubclass(kind, MAML | Neighbours)))


def add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--network", metavar="FILE", help="'sample', a BC-ResNet-1 in .npz, or the folder of a run of `train`")
    add("--data", metavar="DIR", help="a folder with data sets and weights (default: EDGELEARN_DATA)")
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")


def find_network(options: argparse.Namespace):
    """The embedder that options ask for; says where it comes from."""
    from edgelearn.experiments.keywords.networks import find_embedder

    embedder, where = find_embedder(options.network, options.data, options.device)
    print(where)
    return embedder
