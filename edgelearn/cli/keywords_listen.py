"""`edgelearn keywords listen`: detect enrolled words in a recording or at the microphone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict

import numpy as np

from edgelearn.errors import DataError, UsageError
from edgelearn.keywords import Detection, Listener, OtherWords, Vocabulary
from edgelearn.keywords.learners import Embedder, Linear
from edgelearn.keywords.listener import HOP, REFRACTORY, SMOOTHING

from .answer import Answer
from .keywords_common import LEARNERS, add_network, find_clips, find_network, learner
from .names import one_of
from .numbers import number

_OTHERS = 500  # clips of other words that suffice for a threshold


def add_listen(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recording", nargs="?", help="a WAV, FLAC or OGG file of any length")
    add("--microphone", nargs="?", const="", metavar="NAME", help="listen to it instead, until Ctrl-C")
    add("--words", required=True, metavar="FILE", help="the file of words that `enrol` wrote")
    add("--threshold", type=number(), help="score needed for a detection (default: set by clips of other words)")
    add("--others", metavar="DIR", help="recordings of other words, a subfolder each (default: synthesised words)")
    add(
        "--false-accepts", type=number(0, 1), default=0.01, metavar="SHARE",
        help="share of clips of other words that the threshold may accept (default: %(default)s)",
    )  # fmt: skip
    add(
        "--learner", type=one_of(LEARNERS, "learner"), default="nearest-mean", metavar="NAME",
        help=f"how words are learned: {', '.join(LEARNERS)}, or MODULE:CLASS (default: %(default)s)",
    )  # fmt: skip
    add("--hop", type=number(0.001), default=HOP, help="seconds between scores (default: %(default)s)")
    add(
        "--smoothing", type=number(0), default=SMOOTHING,
        help="seconds over which scores are averaged (default: %(default)s)",
    )  # fmt: skip
    add(
        "--refractory", type=number(0), default=REFRACTORY,
        help="seconds without detections after one (default: %(default)s)",
    )  # fmt: skip
    add("--labels", metavar="FILE", help="the spoken words, as Audacity writes labels: report hits and false alarms")
    add_network(parser)
    parser.set_defaults(act=_listen)


def _listen(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.keywords.streaming import evaluate_detections, read_labels

    if (options.recording is None) == (options.microphone is None):
        raise UsageError("Give either a recording or --microphone.")
    vocabulary = Vocabulary.load(options.words)
    labels = read_labels(options.labels) if options.labels else None
    listener = _listener(options, vocabulary, find_network(options))
    print(f"Words: {vocabulary}. Threshold: {listener.threshold:.3f}")
    if options.recording is None:
        detected = _listen_until_interrupted(listener, options.microphone or None)
    else:
        detected = listener.listen_to_file(options.recording)
    detections = []
    for detection in detected:
        print(f"{detection.time:10.2f} s  {detection.word}  {detection.score:.3f}")
        detections.append(detection)
    if labels is not None:
        timeline = [spoken for spoken in labels if spoken.word in vocabulary.words]
        print(evaluate_detections(detections, timeline, listener.seconds))
    heard = [asdict(detection) for detection in detections]
    return Answer({"words": vocabulary.words, "threshold": listener.threshold, "detections": heard})


def _listener(options: argparse.Namespace, vocabulary: Vocabulary, embedder: Embedder) -> Listener:
    others = _others(options, vocabulary, embedder) if options.threshold is None else None
    listener = Listener(
        embedder, vocabulary, learner(options.learner), options.threshold, others, options.false_accepts,
        options.hop, options.smoothing, options.refractory,
    )  # fmt: skip
    if len(vocabulary.words) == 1 and isinstance(listener.spotter.classifier, Linear):
        raise DataError(
            f"'{options.learner}' distinguishes words from each other, and there is only '{vocabulary.words[0]}': "
            f"every sound would get the same score. Enrol another word, or learn by 'nearest-mean'."
        )
    return listener


def _others(options: argparse.Namespace, vocabulary: Vocabulary, embedder: Embedder) -> OtherWords:
    from edgelearn.keywords.files import other_words

    clips = find_clips(options.others, other_words, "Other words")
    if not options.others:
        print("  For speech, give recordings of other words with --others.")
    clips = clips.only([word for word in clips.class_names if word not in vocabulary.words])
    return OtherWords.load(clips.take(np.arange(0, len(clips), max(1, len(clips) // _OTHERS))), embedder)


def _listen_until_interrupted(listener: Listener, name: str | None) -> Iterator[Detection]:
    from edgelearn.data.audio import source
    from edgelearn.train.interrupt import on_interrupt

    ended = []

    def blocks() -> Iterator[np.ndarray]:
        with closing(source.microphone_blocks(listener.spotter.embedder.front_end.rate, name)) as heard:
            print("Listening. Ctrl-C ends it.")
            for block in heard:
                yield block
                if ended:
                    return

    with on_interrupt(lambda: ended.append(True)):
        yield from listener.listen(blocks())
