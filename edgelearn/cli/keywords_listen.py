"""Tell enrolled words in a recording or at the microphone: `edgelearn keywords listen`."""

from __future__ import annotations

import argparse
from contextlib import closing, nullcontext

from edgelearn.errors import DataError
from edgelearn.keywords import detector as detection

from .keywords_clips import find_clips
from .keywords_network import LEARNERS, add_network, find_network
from .numbers import number

_AT_ONCE = 8  # clips of a file that are scored together, for speed
_OTHERS = 500  # clips of other words suffice to tell a threshold


def add_listen(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recording", nargs="?", help="a WAV, FLAC or OGG file of any length")
    add("--microphone", nargs="?", const="", metavar="NAME", help="listen to it instead, until Ctrl-C")
    add("--words", required=True, metavar="FILE", help="what `enrol` wrote")
    add("--threshold", type=number(), help="the score a word needs; default: what few clips of other words reach")
    add("--others", metavar="DIR", help="recordings of other words, a subfolder each (default: synthesised words)")
    add(
        "--false-accepts", type=number(0, 1), default=0.01, metavar="SHARE",
        help="of clips of other words (default: 0.01)",
    )  # fmt: skip
    add("--learner", choices=LEARNERS, default="nearest-mean", help="how words are learned (default: %(default)s)")
    add("--hop", type=number(0.001), default=detection.HOP, help="seconds between scores (default: %(default)s)")
    add("--smoothing", type=number(0), default=detection.SMOOTHING, help="seconds that a score is the mean of")
    add("--labels", metavar="FILE", help="what is said, as Audacity writes labels: hits and false alarms are told too")
    add("--refractory", type=number(0), default=detection.REFRACTORY, help="seconds of silence after a word was told")
    add_network(parser)
    parser.set_defaults(act=_listen)


def _listen(options: argparse.Namespace) -> None:
    from edgelearn.data.audio.source import file_blocks, microphone_blocks
    from edgelearn.experiments.keywords.streaming import judge, read_labels
    from edgelearn.keywords import Detector
    from edgelearn.keywords.vocabulary import Vocabulary
    from edgelearn.train.interrupt import on_interrupt

    microphone = options.recording is None
    if microphone == (options.microphone is None):
        raise DataError("Say what to listen to: a recording, or --microphone.")
    vocabulary = Vocabulary.load(options.words)
    labels = read_labels(options.labels) if options.labels else None
    embedder = find_network(options)
    rate, ended = embedder.front_end.rate, []
    blocks = microphone_blocks(rate, options.microphone or None) if microphone else file_blocks(options.recording, rate)
    spotter = _spotter(options.learner, vocabulary, embedder)
    threshold = _threshold(options, spotter, vocabulary) if options.threshold is None else options.threshold
    print(f"Words: {vocabulary}. Threshold: {threshold:.3f}")
    times = options.hop, options.smoothing, options.refractory
    detector = Detector(spotter, vocabulary.words, threshold, *times, 1 if microphone else _AT_ONCE)
    told, samples = [], 0
    if microphone:
        print("Listening. Ctrl-C ends it.")
    with closing(blocks), on_interrupt(lambda: ended.append(True)) if microphone else nullcontext():
        for block in blocks:
            samples += len(block)
            told += _tell(detector.push(block))
            if ended:
                break
    if samples < rate * embedder.seconds:
        raise DataError(
            f"{samples / rate:.2f} s were heard, too short for a score, which is of {embedder.seconds:g} s. "
            f"Give a longer recording, or listen longer."
        )
    told += _tell(detector.finish())
    if labels is not None:
        print(judge(told, [said for said in labels if said.word in vocabulary.words], samples / rate))


def _spotter(name: str, vocabulary, embedder):
    from edgelearn.keywords.learners import Learner, Linear

    spotter = vocabulary.enrol(embedder, Learner.named(name)())
    if spotter.ways == 1 and isinstance(spotter.classifier, Linear):
        raise DataError(
            f"'{name}' tells words from each other, and there is only '{vocabulary.words[0]}': it is as sure of any "
            f"sound. Enrol another word, or learn by 'nearest-mean'."
        )
    return spotter


def _threshold(options: argparse.Namespace, spotter, vocabulary) -> float:
    import numpy as np

    from edgelearn.data.audio.clips import load_clips
    from edgelearn.experiments.keywords.sample import other_words
    from edgelearn.keywords.threshold import threshold_for

    others = find_clips(options.others, other_words, "Other words")
    if not options.others:
        print("  For speech, give recordings of other words with --others.")
    others = others.only([word for word in others.class_names if word not in vocabulary.words])
    others = others.take(np.arange(0, len(others), max(1, len(others) // _OTHERS)))
    front_end = spotter.embedder.front_end
    features = front_end(load_clips(others, rate=front_end.rate, seconds=spotter.embedder.seconds))
    return threshold_for(spotter.knownness(features), options.false_accepts)


def _tell(detections: list) -> list:
    for found in detections:
        print(f"{found.time:10.2f} s  {found.word}  {found.score:.3f}")
    return detections
