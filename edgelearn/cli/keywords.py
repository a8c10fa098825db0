"""Words of your own: enrol them from a few clips, hear them in recordings or at the microphone.

`enrol` adds clips to a small file of words, `words` shows what is in it, `listen` tells words of it with their times;
`compose` makes a long recording of clips to try it on. `train` makes a network that words are enrolled with, `evaluate`
says in episodes how well one is learned from, `personal` what a user's own clips are worth, and `check` holds all
figures that are to be reached against what is there.
The network is the BC-ResNet of EDGELEARN_DATA, or else a small one of the package, which was trained on synthesised
words; the first line of output says which."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgelearn.errors import DataError
from edgelearn.experiments.keywords.streaming import detector as detection

from . import keywords_figures as figures
from . import keywords_training as training

_AT_ONCE = 8  # clips of a file that are scored together, for speed
_OTHERS = 500  # clips of other words suffice to tell a threshold


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    enrol = commands.add_parser("enrol", help="learn a word from a few clips")
    enrol.add_argument("word")
    enrol.add_argument("clips", nargs="+", metavar="CLIP", help="WAV, FLAC or OGG files, of the word alone")
    enrol.add_argument("--into", required=True, metavar="FILE", help="the file of words: made, or added to")
    _add_network(enrol)
    enrol.set_defaults(act=_enrol)
    words = commands.add_parser("words", help="what a file of words holds")
    words.add_argument("file")
    words.add_argument("--forget", metavar="WORD", help="take a word out")
    words.set_defaults(act=_words)
    listen = commands.add_parser("listen", help="tell words in a recording or at the microphone")
    add = listen.add_argument
    add("recording", nargs="?", help="a WAV, FLAC or OGG file of any length")
    add("--microphone", nargs="?", const="", metavar="NAME", help="listen to it instead, until Ctrl-C")
    add("--words", required=True, metavar="FILE", help="what `enrol` wrote")
    add("--threshold", type=float, help="the score a word needs; default: what few clips of other words reach")
    add("--others", metavar="DIR", help="recordings of other words, a subfolder each (default: synthesised words)")
    add("--false-accepts", type=float, default=0.01, metavar="SHARE", help="of clips of other words (default: 0.01)")
    add("--learner", default="nearest-mean", help="how words are learned (default: %(default)s)")
    add("--hop", type=float, default=detection.HOP, help="seconds between scores (default: %(default)s)")
    add("--smoothing", type=float, default=detection.SMOOTHING, help="seconds that a score is the mean of")
    add("--labels", metavar="FILE", help="what is said, as Audacity writes labels: hits and false alarms are told too")
    add("--refractory", type=float, default=detection.REFRACTORY, help="seconds of silence after a word was told")
    _add_network(listen)
    listen.set_defaults(act=_listen)
    compose = commands.add_parser("compose", help="make a long recording of clips, and labels of what is said")
    add = compose.add_argument
    add("recording", help="the WAV file to write; its labels go into a .txt beside it")
    add("--clips", metavar="DIR", help="a subfolder of recordings for each word (default: embedded sample)")
    add("--speaker", help="this speaker's clips alone")
    add("--skip", type=int, default=0, help="the first clips of each word, such as those that are enrolled")
    add("--count", type=int, help="clips of each word (default: all)")
    add("--level", type=float, default=-45.0, help="of the noise, in decibels below full scale (default: %(default)s)")
    add("--seed", type=int, default=0)
    compose.set_defaults(act=_compose)
    training.add_train(commands.add_parser("train", help="train a network that words are enrolled with"))
    evaluate = commands.add_parser("evaluate", help="learn from few clips and be tested, in many episodes")
    training.add_evaluate(evaluate)
    _add_network(evaluate)
    figures.add_personal(commands.add_parser("personal", help="what a user's own clips are worth"))
    figures.add_check(commands.add_parser("check", help="the figures to reach, point by point: pass, fail or open"))


def _add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--network", metavar="FILE", help="'sample', a BC-ResNet-1 in .npz, or the folder of a run of `train`")
    add("--data", metavar="DIR", help="a folder with data sets and weights (default: EDGELEARN_DATA)")
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")


def run(options: argparse.Namespace) -> int:
    return options.act(options) or 0


def _enrol(options: argparse.Namespace) -> None:
    from edgelearn.data.audio.clips import ClipDataset, load_clips
    from edgelearn.experiments.keywords.vocabulary import Vocabulary

    embedder = training.find_network(options)
    clips = [Path(clip) for clip in options.clips]
    there = Path(options.into).exists()
    vocabulary = Vocabulary.load(options.into) if there else Vocabulary.empty(embedder)
    recordings = ClipDataset(
        "clips", "folder", f"{len(clips)} clips", (options.word,), [0] * len(clips), [""] * len(clips), clips
    )
    front_end = embedder.front_end
    features = front_end(load_clips(recordings, rate=front_end.rate, seconds=embedder.seconds))
    vocabulary = vocabulary.add(options.word, features)
    vocabulary.enrol(embedder)  # what can't be learned isn't kept
    vocabulary.save(options.into)
    print(f"{options.into}: {_summary(vocabulary)}")


def _words(options: argparse.Namespace) -> None:
    from edgelearn.experiments.keywords.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(options.file)
    if options.forget is not None:
        vocabulary = vocabulary.without(options.forget)
        vocabulary.save(options.file)
    print(f"{options.file}: {_summary(vocabulary)}")


def _summary(vocabulary) -> str:
    return ", ".join(f"{word} ({vocabulary.count(word)} clips)" for word in vocabulary.words) or "no words"


def _listen(options: argparse.Namespace) -> None:
    from edgelearn.data.audio.source import file_blocks, microphone_blocks
    from edgelearn.experiments.keywords.learners import Learner
    from edgelearn.experiments.keywords.streaming import Detector, judge, read_labels
    from edgelearn.experiments.keywords.vocabulary import Vocabulary

    if (options.recording is None) == (options.microphone is None):
        raise DataError("Say what to listen to: a recording, or --microphone.")
    vocabulary = Vocabulary.load(options.words)
    embedder = training.find_network(options)
    spotter = vocabulary.enrol(embedder, Learner.named(options.learner)())
    threshold = _threshold(options, spotter, vocabulary) if options.threshold is None else options.threshold
    print(f"Words: {_summary(vocabulary)}. Threshold: {threshold:.3f}")
    times = options.hop, options.smoothing, options.refractory
    at_once = 1 if options.recording is None else _AT_ONCE
    detector = Detector(spotter, vocabulary.words, threshold, *times, at_once)
    labels = read_labels(options.labels) if options.labels else None
    rate = embedder.front_end.rate
    if options.recording is not None:
        blocks = file_blocks(options.recording, rate)
    else:
        blocks = microphone_blocks(rate, options.microphone or None)
        print("Listening. Ctrl-C ends it.")
    told, samples = [], 0
    for block in blocks:
        samples += len(block)
        told += _tell(detector.push(block))
    told += _tell(detector.finish())
    if labels is not None:
        print(judge(told, [said for said in labels if said.word in vocabulary.words], samples / rate))


def _compose(options: argparse.Namespace) -> None:
    import numpy as np

    from edgelearn.data.audio.folder import load_folder
    from edgelearn.data.audio.synthetic import embedded_words
    from edgelearn.experiments.keywords.streaming import LongRecording, write_labels

    clips = load_folder(options.clips) if options.clips else embedded_words()
    if options.speaker:
        clips = clips.take(clips.speakers == options.speaker)
    last = None if options.count is None else options.skip + options.count
    chosen = [np.flatnonzero(clips.words == word)[options.skip : last] for word in clips.class_names]
    recording = LongRecording(clips.take(np.concatenate(chosen)), seed=options.seed, level=options.level)
    labels = Path(options.recording).with_suffix(".txt")
    recording.write(options.recording)
    write_labels(labels, recording.timeline)
    print(f"{options.recording}, {labels}: {len(recording.timeline)} words in {recording.seconds / 60:.1f} minutes")


def _threshold(options: argparse.Namespace, spotter, vocabulary) -> float:
    import numpy as np

    from edgelearn.data.audio.clips import load_clips
    from edgelearn.data.audio.folder import load_folder
    from edgelearn.experiments.keywords.sample import other_words
    from edgelearn.experiments.keywords.threshold import threshold_for

    others = load_folder(options.others) if options.others else other_words()
    others = others.only([word for word in others.class_names if word not in vocabulary.words])
    others = others.take(np.arange(0, len(others), max(1, len(others) // _OTHERS)))
    front_end = spotter.embedder.front_end
    features = front_end(load_clips(others, rate=front_end.rate, seconds=spotter.embedder.seconds))
    hint = "" if options.others else " For speech, give recordings of other words with --others."
    print(f"Other words: {others.description}{hint}")
    return threshold_for(spotter.knownness(features), options.false_accepts)


def _tell(detections: list) -> list:
    for found in detections:
        print(f"{found.time:10.2f} s  {found.word}  {found.score:.3f}")
    return detections
