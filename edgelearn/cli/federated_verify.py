"""`edgelearn federated verify`: train a network that verifies users, enrol a voice, accept or reject recordings."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgelearn.errors import DataError

from . import names
from .answer import Answer
from .numbers import number, whole
from .tables import print_table

METHODS = ("feduv", "random", "fedaws", "positives", "fixed", "softmax")
_TASKS = ("synthetic", "arabic", "english", "cifar10")


def add_verify(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a network by users who share no embeddings, and measure it")
    add = train.add_argument
    add("task", choices=_TASKS, nargs="?", default=_TASKS[0], help="whose data (default: %(default)s)")
    add("--method", choices=METHODS, default=METHODS[0], help="what users are told apart by (default: %(default)s)")
    add("--size", type=whole(1), help="bits of a codeword (127, 255, 511), or size of an embedding (default: 127, 128)")
    add("--rounds", type=whole(1), default=300, help="default: %(default)s")
    add("--recordings", type=whole(1), default=12, help="of a user in each round (default: %(default)s)")
    add("--fraction", type=number(least=0.0, most=1.0), default=1.0, help="of the users in each round (default: 1)")
    add("--masked", action="store_true", help="hide each user's change from the server: a demonstration")
    add("--seed", type=whole(0), default=0)
    add("--data", metavar="DIR", help="folder with data sets (default: EDGELEARN_DATA)")
    names.add_device(train)
    add("--out", type=Path, metavar="FILE", help="where to save the network, for `enrol` and `test`")
    train.set_defaults(act=_train)
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
    add("--network", required=True, type=Path, metavar="FILE", help="the network that `train --out` wrote")
    names.add_device(parser)


def _train(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.verification import TASKS, train_verifier
    from edgelearn.experiments.verification.tasks import FRONT_END
    from edgelearn.federated.verification import VerificationSettings, make_method
    from edgelearn.keywords import save_embedder
    from edgelearn.keywords.learners import Embedder

    if options.out is not None and options.task == "cifar10":
        raise DataError("--out is for networks that take voices: leave it out, or train with speakers.")
    task = TASKS[options.task](options.data, options.seed)
    size = len(task.train) if options.method == "softmax" else options.size
    method = make_method(options.method, size)
    settings = VerificationSettings(
        options.rounds, options.recordings, options.fraction, seed=options.seed, masked=options.masked
    )
    print(f"{task.name}: {task.description}", flush=True)

    def progress(number: int) -> None:
        if number % max(1, options.rounds // 10) == 0:
            print(f"round {number} of {options.rounds}", flush=True)

    trained = train_verifier(task, method, settings, options.device, progress)
    report = trained.report
    rows = [
        ("other users", *_shares(report.seen, report.seen_eer)),
        ("people who took no part", *_shares(report.unseen, report.unseen_eer)),
    ]
    print_table(("impostors", "accepted of own at 10 %", "equal error rate"), rows)
    print(f"right user first: {report.accuracy:.1%}; bytes up {trained.up_bytes:,}, down {trained.down_bytes:,}")
    if options.out is not None:
        save_embedder(options.out, Embedder(trained.model.network, dict(trained.model.weights), FRONT_END))
        print(f"Network: {options.out}")
    return Answer({
        "task": options.task, "method": options.method, "accuracy": report.accuracy, "up_bytes": trained.up_bytes,
        "down_bytes": trained.down_bytes, "seen": report.seen, "seen_eer": report.seen_eer, "unseen": report.unseen,
        "unseen_eer": report.unseen_eer, "network": options.out,
    })  # fmt: skip


def _shares(*values: float) -> list[str]:
    return ["-" if value != value else f"{value:.1%}" for value in values]


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
    from edgelearn.keywords import load_embedder

    embedder = load_embedder(options.network, options.device)
    paths = [Path(clip) for clip in options.clips]
    labels, speakers = np.zeros(len(paths), np.int32), np.full(len(paths), "")
    clips = ClipDataset("clips", "folder", "Clips of the command line.", ("voice",), labels, speakers, paths)
    sound = load_clips(clips, rate=embedder.front_end.rate, seconds=embedder.seconds)
    return embedder.embed(embedder.features(sound))
