"""Federated learning: many clients, one model, every byte counted.

`run` trains a federation, `tasks` lists what can be trained, `rounds` shows what happened in the rounds of a run,
`compare` puts runs side by side, `personal` enrols new users on top of a run, `deploy` runs a federation on Flower's
processes, `check` kills these and compares.
`verify` trains a network that tells users apart, enrols a voice, and accepts or rejects recordings.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from edgelearn.experiments.federated.experiment import ENGINES, FederatedConfig
from edgelearn.experiments.verification import FIXED, VerificationConfig
from edgelearn.lab.runs import RunStore

from . import parser as names
from .answer import Answer, print_table
from .parser import add_options, number, read_config, whole, written
from .training import add_runs, add_runs_folder, train

CHECK_ROUNDS, CHECK_CLIENTS = 5, 4  # of `check`, where the options say nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("run", help="one federation")
    add_options(one, FederatedConfig)
    add_runs(one)
    one.set_defaults(act=_run)
    commands.add_parser("tasks", help="the tasks to train").set_defaults(act=_tasks)
    add_verify(commands.add_parser("verify", help="networks that accept their user's voice and no other"))
    rounds = commands.add_parser("rounds", help="who was aggregated in each round of a run, and how many bytes")
    rounds.add_argument("name", metavar="RUN", help="the run's id or the start of it")
    add_runs_folder(rounds)
    rounds.set_defaults(act=_rounds)
    compare = commands.add_parser("compare", help="accuracy and bytes of runs, side by side")
    compare.add_argument("names", nargs="+", metavar="RUN", help="ids or the starts of them")
    compare.add_argument("--chart", metavar="PNG", type=written, help="draw accuracy over bytes there")
    compare.add_argument("--markdown", action="store_true", help="the table in Markdown")
    add_runs_folder(compare)
    compare.set_defaults(act=_compare)
    check = commands.add_parser(
        "check", help="the same bits from every engine, whatever is killed: claims, measured here"
    )
    add_options(check, FederatedConfig, skip=("engine", "seed"))
    add = check.add_argument
    add("--engines", nargs="+", choices=ENGINES, default=["local", "deployed"], help="(default: local deployed)")
    add("--seeds", nargs="+", type=whole(0), default=[0, 1, 2], help="(default: 0 1 2)")
    add("--kills", type=whole(0), default=5, help="processes to kill at random moments (default: 5)")
    add_runs_folder(check)
    check.set_defaults(act=_check)
    personal = commands.add_parser("personal", help="enrol new users on top of a federation of keywords")
    personal.add_argument("name", metavar="RUN", help="a finished run, by its id or the start of it")
    personal.add_argument("--folds", type=whole(2), default=5, help="parts of a user's clips (default: %(default)s)")
    personal.add_argument("--least", type=whole(2), default=10, help="clips that a user has (default: %(default)s)")
    personal.add_argument("--markdown", action="store_true", help="the table in Markdown")
    add_runs_folder(personal)
    names.add_device(personal)
    personal.set_defaults(act=_personal)
    deploy = commands.add_parser("deploy", help="`run` with the engine deployed: SuperLink and SuperNodes of Flower")
    add_options(deploy, FederatedConfig, skip=("engine",))
    add_runs_folder(deploy)
    deploy.set_defaults(act=_run, engine="deployed", resume=None)  # `run --resume` continues it


def run(options: argparse.Namespace) -> Answer:
    return options.act(options)


def _run(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.federated import FederatedExperiment

    return train(FederatedExperiment, options)


def _tasks(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.federated import TASKS

    rows = [(name, str(k.clients), str(k.rounds), k.partition, k.title) for name, k in TASKS.items()]
    print_table(("task", "clients", "rounds", "partition", "description"), rows)
    return Answer([dict(zip(("task", "clients", "rounds", "partition", "title"), row, strict=True)) for row in rows])


def _rounds(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.federated import read_rounds

    rows, found = [], read_rounds(RunStore(options.runs).open(options.name))
    for each in found:
        reasons = "; ".join(f"{client}: {why}" for client, why in each["left_out"].items())
        sizes = (f"{each[way][what]:,}" for way in ("down", "up") for what in ("payload", "total"))
        rows.append((str(each["round"]), str(len(each["clients"])), *sizes, reasons))
    print_table(("round", "clients", "payload down", "bytes down", "payload up", "bytes up", "left out"), rows)
    return Answer(list(found))


def _compare(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.federated import plot_bytes, report

    store = RunStore(options.runs)
    runs = [store.open(name) for name in options.names]
    print_table(report.HEADER, report.cells(runs), options.markdown)
    if options.chart:
        plot_bytes(runs, options.chart)
    return Answer([{"run": each.id, "status": each.status, "results": each.record.get("results")} for each in runs])


def _check(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import claims
    from edgelearn.experiments.federated import FederatedExperiment
    from edgelearn.experiments.federated.check import check
    from edgelearn.experiments.federated.deployment import require_flower

    config = read_config(FederatedConfig, options)
    config = replace(config, rounds=config.rounds or CHECK_ROUNDS, clients=config.clients or CHECK_CLIENTS)
    for engine in options.engines:
        if engine != "local":
            require_flower(engine)
    with ExitStack() as stack:
        folder = options.runs or stack.enter_context(
            TemporaryDirectory(prefix="edgelearn-check-", ignore_cleanup_errors=True)
        )
        checked = []
        for each in check(
            FederatedExperiment, config, options.engines, options.seeds, options.kills, Path(folder), print
        ):
            checked.append(each)
            print(f"  {each.word}: {each.measured}")
    print_table(claims.HEADER, claims.cells(checked))
    return Answer([asdict(each) for each in checked], claims.status(checked))


def _personal(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.federated import personalise

    run = RunStore(options.runs).open(options.name)
    found = personalise(run, options.folds, options.least, device=options.device)
    labels = {"before": "before training", "rounds": "after the rounds", "enrolment": "after the user's enrolment"}
    rows = [(label, f"{found.mean(s):.1%}", f"{found.worst_tenth(s):.1%}") for s, label in labels.items()]
    print(f"{len(found.users)} users who took no part, {found.tested.sum():,} clips")
    print_table(("error", "mean of users", "worst tenth"), rows, options.markdown)
    return Answer({
        "run": run.id, "users": list(found.users), "tested": found.tested.tolist(),
        "errors": {stage: errors.tolist() for stage, errors in found.errors.items()},
    })  # fmt: skip


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

    from edgelearn.data.audio import ClipDataset, load_clips
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
