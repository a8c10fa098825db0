"""`edgelearn keywords train` and `evaluate`: train networks for enrolment, and measure learners in episodes."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.keywords.episodes import SPEAKERS, WORD_SPLITS

from .answer import Answer
from .keywords_common import LEARNERS, find_clips, find_network, learner
from .names import one_of
from .numbers import whole
from .options import add_options
from .training import add_runs, train


def add_train(parser: argparse.ArgumentParser) -> None:
    add_options(parser, KeywordsConfig)
    add_runs(parser)
    parser.set_defaults(act=_train)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("clips", nargs="?", metavar="DIR", help="a subfolder of recordings for each word (default: embedded sample)")
    add(
        "--learner", nargs="+", type=one_of(LEARNERS, "learner"), default=["nearest-mean"], metavar="NAME",
        help=f"how words are learned: {', '.join(LEARNERS)}, or MODULE:CLASS (default: nearest-mean)",
    )  # fmt: skip
    add("--num-classes", type=whole(1), default=5, help="words of an episode (default: %(default)s)")
    add("--shots", type=whole(1), nargs="+", default=[1, 5], help="clips of each word to enrol (default: 1 5)")
    add("--queries", type=whole(1), default=5, help="clips of each word to classify (default: %(default)s)")
    add(
        "--unlabelled", type=whole(0), default=0, metavar="N",
        help="clips of each word without labels; learners that use them are compared with those that don't",
    )  # fmt: skip
    add(
        "--speakers", nargs="+", choices=SPEAKERS, default=["same"],
        help="who is tested: who was enrolled, somebody else, or anybody (default: same)",
    )  # fmt: skip
    add(
        "--split", choices=WORD_SPLITS,
        help="a published split of Speech Commands: its test words and unknown words, by the testing speakers",
    )  # fmt: skip
    add("--episodes", type=whole(2), default=600, help="number of episodes (default: %(default)s)")
    add("--seed", type=whole(0), default=0)
    parser.set_defaults(act=_evaluate)


def _train(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.keywords.embedding import KeywordsExperiment

    return train(KeywordsExperiment, options)


def _evaluate(options: argparse.Namespace) -> Answer:
    from edgelearn.data.audio.cache import load_features
    from edgelearn.data.audio.synthetic import embedded_words
    from edgelearn.experiments.keywords.episodes import Episodes, Evaluator, part_of, to_table
    from edgelearn.keywords.learners import supervised

    learners = [learner(name) for name in options.learner]
    if options.unlabelled:
        learners = list(dict.fromkeys(each for learner in learners for each in (supervised(learner), learner)))
    dataset = find_clips(options.clips, lambda: embedded_words(speakers=4))
    unknown_words: tuple[str, ...] = ()
    if options.split:
        split = WORD_SPLITS[options.split]
        dataset, unknown_words = part_of(dataset, "testing", (*split.test, *split.unknown)), split.unknown
        print(f"  {options.split}: {dataset.description}")
    every = [
        Episodes(
            dataset, options.num_classes, shots, options.queries, None, speakers, options.episodes, options.seed,
            options.unlabelled, unknown_words,
        )
        for speakers in options.speakers for shots in options.shots
    ]  # fmt: skip
    embedder = find_network(options)
    evaluator = Evaluator(embedder, load_features(dataset, embedder.front_end, embedder.seconds))
    reports = [evaluator.run(learner, episodes) for learner in learners for episodes in every]
    print(to_table(reports))
    return Answer([
        {"learner": r.learner.to_dict(), "num_classes": r.episodes.num_classes, "shots": r.episodes.shots,
         "speakers": r.episodes.speakers, "episodes": len(r.episodes),
         "measures": {name: asdict(value) for name, value in r.measures.items()}}
        for r in reports
    ])  # fmt: skip
