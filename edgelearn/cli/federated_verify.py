"""`edgelearn federated verify`: train a network that verifies users, enrol a voice, accept or reject recordings."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgelearn.experiments.verification import FIXED, VerificationConfig
from edgelearn.lab.runs import RunStore

from . import names
from .answer import Answer
from .numbers import number
from .options import add_options
from .tables import print_table
from .training import add_runs, add_runs_folder, train


def add_verify(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("train", help="train a network by users who share no embeddings, and measure it")
    add_options(one, VerificationConfig, skip=FIXED)
    add_runs(one)
    one.set_defaults(act=_train)
    enrol = commands.add_parser("enrol", help="enrol a voice from a few recordings")
    _add_files(enrol, "the user's file to write; it is a secret, and stays with the user")
    enrol.add_argument(
        "--accept", type=number(least=0.01, most=1.0), default=0.9,
        help="share of the user's own recordings to accept (default: %(default)s)",
    )  # fmt: skip
    enrol.set_defaults(act=_enrol)
    test = commands.add_parser("test", help="accept or reject recordings")
    _add_files(test, "the user's file that `enrol` wrote")
    test.set_defaults(act=_test)


def _add_files(parser: argparse.ArgumentParser, user: str) -> None:
    add = parser.add_argument
    add("clips", nargs="+", metavar="CLIP", help="WAV, FLAC or OGG files of about a second")
    add("--user", required=True, type=Path, metavar="FILE", help=user)
    add("--network", required=True, metavar="RUN", help="the run of `train`, by its id or the start of it, or a file")
    add_runs_folder(parser)
    names.add_device(parser)


def _train(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.verification import VerificationExperiment

    answer = train(VerificationExperiment, options)
    if found := answer.record["results"]:
        kinds = {"seen": "other users", "unseen": "people who took no part"}
        rows = [
            (label, f"{found[kind]:.1%}", f"{found[kind + '_eer']:.1%}")
            for kind, label in kinds.items()
            if kind in found
        ]
        print_table(("impostors", "accepted of own at 10 %", "equal error rate"), rows)
    return answer


def _enrol(options: argparse.Namespace) -> Answer:
    from edgelearn.federated.verification import User

    user = User.enrol(_outputs(options), true_positive_rate=options.accept)
    user.save(options.user)
    print(f"{options.user}: enrolled from {len(options.clips)} recordings, accepts from {user.threshold:.3f}")
    return Answer({"user": options.user, "recordings": len(options.clips), "threshold": user.threshold})


def _test(options: argparse.Namespace) -> Answer:
    from edgelearn.federated.verification import User

    user, outputs = User.load(options.user), _outputs(options)
    scores = dict(zip(options.clips, map(float, user.scores(outputs)), strict=True))
    accepted = {clip: score >= user.threshold for clip, score in scores.items()}
    rows = [(clip, f"{score:.3f}", "accepted" if accepted[clip] else "rejected") for clip, score in scores.items()]
    print_table(("recording", "score", "result"), rows)
    return Answer([{"recording": c, "score": score, "accepted": accepted[c]} for c, score in scores.items()])


def _outputs(options: argparse.Namespace):
    """The network's outputs for the clips of the options."""
    import numpy as np

    from edgelearn.data.audio.clips import ClipDataset, load_clips
    from edgelearn.experiments.verification import VOICES
    from edgelearn.keywords import load_embedder

    path = Path(options.network)
    if not path.is_file():
        path = RunStore(options.runs).open(options.network).folder / VOICES
    embedder = load_embedder(path, options.device)
    paths = [Path(clip) for clip in options.clips]
    labels, speakers = np.zeros(len(paths), np.int32), np.full(len(paths), "")
    clips = ClipDataset("clips", "folder", "Clips of the command line.", ("voice",), labels, speakers, paths)
    sound = load_clips(clips, rate=embedder.front_end.rate, seconds=embedder.seconds)
    return embedder.embed(embedder.features(sound))
