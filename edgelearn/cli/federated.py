"""Federated learning: many clients, one model, every byte counted.

`run` trains a federation, `tasks` lists what can be trained, `rounds` shows what happened in the rounds of a run,
`compare` puts runs side by side, `personal` enrols new users on top of a run, `deploy` runs a federation on Flower's
processes, `check` kills these and compares; `gateway` runs one with clients that connect over sockets, such as bundles
in C.
`verify` trains a network that tells users apart, enrols a voice, and accepts or rejects recordings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.experiments.claims import check_claims
from edgelearn.experiments.config import setting
from edgelearn.experiments.federated.attack import COMPARED
from edgelearn.experiments.federated.experiment import ENGINES, GATEWAY, TASKS, FederatedConfig, FederatedExperiment
from edgelearn.experiments.verification import FIXED, VerificationConfig
from edgelearn.federated import MIXINGS, STRATEGIES
from edgelearn.lab.runs import RunStore
from edgelearn.tables import Table

from .answer import Answer, show
from .memory import CLAIMS
from .parser import DEVICE, MARKDOWN, RESUME, RUNS, RUNS_FOLDER, argument, command, png
from .training import TRAINING, train

CHECK_ROUNDS, CHECK_CLIENTS = 5, 4  # of `check`, where the options say nothing
COLUMNS = ("task", "clients", "rounds", "partition", "title")


@command("federated run", "one federation", one=TRAINING)
def run_one(config: FederatedConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(FederatedExperiment, config, runs, resume)


@command("federated tasks", "the tasks to train", many={
    "task, partition, title": "names", "clients, rounds": "numbers",
})  # fmt: skip
def tasks() -> list[Any]:
    rows = [(name, str(k.clients), str(k.rounds), k.partition, k.title) for name, k in TASKS.items()]
    show(Table((*COLUMNS[:-1], "description"), rows))
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


@command("federated verify train", "train a network by users who share no embeddings, and measure it", one=TRAINING | {
    "results": "as of `federated run`, and seen, unseen: share of one's own accepted where 10 % of other users, or "
    "of outsiders, are; seen_eer, unseen_eer: equal error rates; null after an interrupt",
}, skip=FIXED)  # fmt: skip
def verify_train(config: VerificationConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    from edgelearn.experiments.verification import VerificationExperiment

    answer = train(VerificationExperiment, config, runs, resume)
    if found := answer.record["results"]:
        kinds = {"seen": "other users", "unseen": "people who took no part"}
        rows = [
            (label, f"{found[kind]:.1%}", f"{found[kind + '_eer']:.1%}")
            for kind, label in kinds.items()
            if kind in found
        ]
        show(Table(("impostors", "accepted of own at 10 %", "equal error rate"), rows))
    return answer


CLIPS = argument(help="WAV, FLAC or OGG files of about a second", metavar="CLIP")
VOICES_OF = setting(help="the run of `train`, by its id or the start of it, or a file", metavar="RUN")


@command("federated verify enrol", "enrol a voice from a few recordings", one={
    "user": "the file", "recordings": "number", "threshold": "score",
})  # fmt: skip
def verify_enrol(
    clips: tuple[str, ...] = CLIPS,
    user: Path = setting(help="the user's file to write; it is a secret, and stays with the user", metavar="FILE"),
    network: str = VOICES_OF,
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
    accept: float = setting(0.9, "share of the user's own recordings to accept", minimum=0.01, maximum=1.0),
) -> dict[str, Any]:
    from edgelearn.federated.verification import User

    enrolled = User.enrol(_outputs(clips, network, runs, device), true_positive_rate=accept)
    enrolled.save(user)
    print(f"{user}: enrolled from {plural(len(clips), 'recording')}, accepts from {enrolled.threshold:.3f}")
    return {"user": user, "recordings": len(clips), "threshold": enrolled.threshold}


@command("federated verify test", "accept or reject recordings", many={
    "recording": "file", "score": "number", "accepted": "true or false",
})  # fmt: skip
def verify_test(
    clips: tuple[str, ...] = CLIPS,
    user: Path = setting(help="the user's file that `enrol` wrote", metavar="FILE"),
    network: str = VOICES_OF,
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> list[Any]:
    from edgelearn.federated.verification import User

    known, outputs = User.load(user), _outputs(clips, network, runs, device)
    scores = dict(zip(clips, map(float, known.scores(outputs)), strict=True))
    found = [{"recording": clip, "score": each, "accepted": each >= known.threshold} for clip, each in scores.items()]
    rows = [(r["recording"], f"{r['score']:.3f}", "accepted" if r["accepted"] else "rejected") for r in found]
    show(Table(("recording", "score", "result"), rows))
    return found


def _outputs(files: tuple[str, ...], network: str, runs: RunStore, device: str | None) -> Any:
    """The network's outputs for clips."""
    from edgelearn.data.audio import ClipDataset, load_clips
    from edgelearn.experiments.verification import VOICES
    from edgelearn.keywords import load_embedder

    path = Path(network)
    if not path.is_file():
        path = runs.open(network).folder / VOICES
    embedder = load_embedder(path, device)
    labels, speakers = np.zeros(len(files), np.int32), np.full(len(files), "")
    paths = [Path(file) for file in files]
    clips = ClipDataset("clips", "folder", "Clips of the command line.", ("voice",), labels, speakers, paths)
    sound = load_clips(clips, rate=embedder.front_end.rate, seconds=embedder.seconds)
    return embedder.embed(embedder.features(sound))


@command("federated rounds", "who was aggregated in each round of a run, and how many bytes", many={
    "round": "number", "clients": "those aggregated: client, examples, metrics and bytes",
    "left_out": "reasons by client", "down, up": "bytes of all messages: payload and total",
})  # fmt: skip
def rounds(
    name: str = argument(help="the run's id or the start of it", metavar="RUN"), runs: RunStore = RUNS
) -> list[Any]:
    from edgelearn.experiments.federated import read_rounds

    rows, found = [], read_rounds(runs.open(name))
    for each in found:
        reasons = "; ".join(f"{client}: {why}" for client, why in each["left_out"].items())
        sizes = (f"{each[way][what]:,}" for way in ("down", "up") for what in ("payload", "total"))
        rows.append((str(each["round"]), str(len(each["clients"])), *sizes, reasons))
    header = ("round", "clients", "payload down", "bytes down", "payload up", "bytes up", "left out")
    show(Table(header, rows))
    return list(found)


@command("federated compare", "accuracy and bytes of runs, side by side", many={
    "run": "id", "status": "of the run", "results": "of the run, or null",
})  # fmt: skip
def compare(
    names: tuple[str, ...] = argument(help="ids or the starts of them", metavar="RUN"),
    chart: Path | None = png("draw accuracy over bytes there"),
    markdown: bool = MARKDOWN,
    runs: RunStore = RUNS,
) -> list[Any]:
    from edgelearn.experiments.federated import plot_bytes, report

    chosen = [runs.open(name) for name in names]
    show(report.table(chosen), markdown)
    if chart:
        plot_bytes(chosen, chart)
    return [{"run": each.id, "status": each.status, "results": each.record.get("results")} for each in chosen]


@command(
    "federated check", "the same bits from every engine, whatever is killed: claims, measured here", many=CLAIMS,
    skip=("engine", "seed"),
)  # fmt: skip
def check(
    config: FederatedConfig,
    engines: tuple[str, ...] = setting(("local", "deployed"), choices=[each for each in ENGINES if each != GATEWAY]),
    seeds: tuple[int, ...] = setting((0, 1, 2), minimum=0),
    kills: int = setting(5, "processes to kill at random moments", minimum=0),
    runs: str | None = RUNS_FOLDER,
) -> Answer:
    from edgelearn.experiments.federated import check
    from edgelearn.experiments.federated.deployment import require_flower

    config = replace(config, rounds=config.rounds or CHECK_ROUNDS, clients=config.clients or CHECK_CLIENTS)
    for engine in engines:
        if engine != "local":
            require_flower(engine)
    with ExitStack() as stack:
        folder = runs or stack.enter_context(TemporaryDirectory(prefix="edgelearn-check-", ignore_cleanup_errors=True))
        federations = check.Federations(FederatedExperiment, config, seeds, Path(folder), print)
        found = check_claims(
            check.claims(engines, seeds, kills),
            lambda: federations,
            lambda each: print(f"  {each.word}: {each.measured}"),
        )
    show(found.table())
    return Answer(found.verdicts, found.status)


@command("federated attack", "what bad clients do, for each strategy that withstands them", many={
    "strategy, attack": "names", "bad": "clients of ten that attack", "accuracy": "mean over the seeds",
})  # fmt: skip
def attack(
    seeds: tuple[int, ...] = setting((0, 1, 2), minimum=0),
    rounds: int = setting(60, minimum=1),
    bad: tuple[int, ...] = setting((0, 1, 2, 3), "numbers of bad clients", minimum=0, maximum=9),
    strategies: tuple[str, ...] = setting(COMPARED, choices=tuple(STRATEGIES)),
    mixing: str = setting("none", "of updates before they are combined", choices=MIXINGS),
    largest_share: float | None = setting(None, "of the weight that a client may have", above=0, maximum=1),
    speakers: bool = setting(False, "divide the clips by speaker"),
    markdown: bool = MARKDOWN,
) -> list[Any]:
    from edgelearn.experiments.federated.attack import compare, table

    found = compare(seeds, rounds, strategies, bad, speakers, mixing, largest_share)
    show(table(found), markdown)
    return list(found)


@command("federated personal", "enrol new users on top of a federation of keywords", one={
    "run": "id", "users": "names", "tested": "clips of each user",
    "errors": "of each user, before training, after the rounds, and after the user's enrolment",
})  # fmt: skip
def personal(
    name: str = argument(help="a finished run, by its id or the start of it", metavar="RUN"),
    folds: int = setting(5, "parts of a user's clips", minimum=2),
    least: int = setting(10, "clips that a user has", minimum=2),
    markdown: bool = MARKDOWN,
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn.experiments.federated import personalise

    run = runs.open(name)
    found = personalise(run, folds, least, device=device)
    labels = {"before": "before training", "rounds": "after the rounds", "enrolment": "after the user's enrolment"}
    rows = [(label, f"{found.mean(s):.1%}", f"{found.worst_tenth(s):.1%}") for s, label in labels.items()]
    print(f"{len(found.users)} users who took no part, {plural(found.tested.sum(), 'clip')}")
    show(Table(("error", "mean of users", "worst tenth"), rows), markdown)
    return {"run": run.id, "users": found.users, "tested": found.tested, "errors": found.errors}


@command(
    "federated deploy", "`run` with the engine deployed: SuperLink and SuperNodes of Flower", one=TRAINING,
    fixed={"engine": "deployed"},
)  # fmt: skip
def deploy(config: FederatedConfig, runs: RunStore = RUNS) -> Answer:  # `run --resume` continues it
    return train(FederatedExperiment, config, runs, None)


@command(
    "federated gateway", "`run` with clients that connect over sockets, such as bundles in C", one=TRAINING,
    fixed={"engine": GATEWAY},
)  # fmt: skip
def gateway(config: FederatedConfig, runs: RunStore = RUNS) -> Answer:  # `run --resume` continues it
    return train(FederatedExperiment, config, runs, None)
