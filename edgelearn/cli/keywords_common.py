"""Options and look-ups that the commands of `edgelearn keywords` share: networks, learners and clips."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.subfolders import skipped_lines
from edgelearn.extensions import import_instance, is_reference
from edgelearn.keywords.learners import Embedder, Learner, Neighbours

from . import names

# Without the learner that needs a shared classifier of the words and clips of other people: see `personal`.
LEARNERS = tuple(sorted(set(Learner.registry) - {Neighbours.name}))


def learner(name: str) -> Learner:
    """The learner with this name, or MODULE:CLASS."""
    return import_instance(name, Learner) if is_reference(name) else Learner.named(name)()


def add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="DIR", help="folder with data sets and weights (default: EDGELEARN_DATA)")
    names.add_device(parser)


def add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--network", metavar="FILE", help="'sample', a BC-ResNet-1 in .npz, or the folder of a run of `train`"
    )
    add_data(parser)


def find_network(options: argparse.Namespace) -> Embedder:
    """The embedder of the options. Prints where it comes from."""
    from edgelearn.experiments.keywords.embedding import find_embedder

    embedder, where = find_embedder(options.network, options.data, options.device)
    print(where)
    return embedder


def find_clips(folder: str | None, default: Callable[[], ClipDataset], what: str = "Clips") -> ClipDataset:
    """The clips in `folder`, or those of `default` if it is None. Prints where they come from, and skipped files."""
    from edgelearn.data.audio.folder import load_folder

    clips = load_folder(folder) if folder else default()
    print(f"{what}: {clips.description}", *skipped_lines(clips.skipped), sep="\n")
    return clips
