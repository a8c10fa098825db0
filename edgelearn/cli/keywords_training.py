"""Train networks for keywords, and say how well they are learned from: `edgelearn keywords train` and `evaluate`."""

from __future__ import annotations

import argparse
from dataclasses import fields

from edgelearn.experiments.keywords.embedding.config import KeywordsConfig
from edgelearn.experiments.keywords.episodes import SPEAKERS


def add_train(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("task", nargs="?", default="sample", help="what it is trained on, such as sample or arabic")
    for field in fields(KeywordsConfig):
        option, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            add(option, action=argparse.BooleanOptionalAction, default=default)
        elif field.name != "task":
            kind = str if default is None else type(default)
            add(option, type=kind, default=default, metavar=kind.__name__.upper(), help=f"default: {default}")
    add("--resume", nargs="?", const="", metavar="RUN", help="go on with an interrupted run, by default the newest")
    add("--runs", metavar="DIR", help="where runs are kept (default: EDGELEARN_RUNS, else ./runs)")
    parser.set_defaults(act=_train)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("clips", nargs="?", metavar="DIR", help="a subfolder of recordings for each word (default: embedded sample)")
    add("--learner", nargs="+", default=["nearest-mean"], help="how words are learned (default: nearest-mean)")
    add("--ways", type=int, default=5, help="words to learn (default: %(default)s)")
    add("--shots", type=int, nargs="+", default=[1, 5], help="clips of each (default: 1 5)")
    add("--queries", type=int, default=5, help="clips of each to recognise (default: %(default)s)")
    add(
        "--unlabelled", type=int, default=0, metavar="N",
        help="more of each, without labels; learners that use them are compared with what they are without",
    )  # fmt: skip
    add("--speakers", nargs="+", choices=SPEAKERS, default=["same"], help="who is recognised, beside who is learned")
    add("--episodes", type=int, default=600, help="default: %(default)s")
    add("--seed", type=int, default=0)
    parser.set_defaults(act=_evaluate)


def find_network(options: argparse.Namespace):
    """The embedder that options ask for; says where it comes from."""
    from edgelearn.experiments.keywords.networks import find_embedder

    embedder, where = find_embedder(options.network, options.data, options.device)
    print(where)
    return embedder


def _train(options: argparse.Namespace) -> int:
    from edgelearn.experiments.keywords.embedding import KeywordsJob
    from edgelearn.runs import RunStore
    from edgelearn.train import ProgressBar

    store = RunStore(options.runs)
    if options.resume is None:
        config = KeywordsConfig(**{field.name: getattr(options, field.name) for field in fields(KeywordsConfig)})
        results = KeywordsJob.start(config, store, [ProgressBar()])
    else:
        results = KeywordsJob.resume(options.resume or store.newest_unfinished("keywords"), store, [ProgressBar()])
    return 0 if results else 130


def _evaluate(options: argparse.Namespace) -> None:
    from edgelearn.data.audio.cache import load_features
    from edgelearn.data.audio.folder import load_folder
    from edgelearn.data.audio.synthetic import embedded_words
    from edgelearn.experiments.keywords.episodes import Episodes
    from edgelearn.experiments.keywords.evaluate import Evaluator, to_table
    from edgelearn.experiments.keywords.learners import Learner
    from edgelearn.experiments.keywords.learners.unlabelled import without

    learners = [Learner.named(name)() for name in options.learner]
    if options.unlabelled:
        learners = list(dict.fromkeys(each for learner in learners for each in (without(learner), learner)))
    dataset = load_folder(options.clips) if options.clips else embedded_words(speakers=4)
    print(dataset.description)
    embedder = find_network(options)
    evaluator = Evaluator(embedder, load_features(dataset, embedder.front_end, embedder.seconds))
    reports = [
        evaluator.run(
            learner,
            Episodes(
                dataset, options.ways, shots, options.queries, None, speakers, options.episodes, options.seed,
                options.unlabelled,
            ),
        )
        for learner in learners for speakers in options.speakers for shots in options.shots
    ]  # fmt: skip
    print(to_table(reports))
