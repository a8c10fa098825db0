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

from . import keywords_figures as figures
from . import keywords_training as training
from .keywords_clips import find_clips
from .keywords_listen import add_listen
from .keywords_network import add_network, find_network
from .numbers import number, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    enrol = commands.add_parser("enrol", help="learn a word from a few clips")
    enrol.add_argument("word")
    enrol.add_argument("clips", nargs="+", metavar="CLIP", help="WAV, FLAC or OGG files, of the word alone")
    enrol.add_argument("--into", required=True, metavar="FILE", help="the file of words: made, or added to")
    add_network(enrol)
    enrol.set_defaults(act=_enrol)
    words = commands.add_parser("words", help="what a file of words holds")
    words.add_argument("file")
    words.add_argument("--forget", metavar="WORD", help="take a word out")
    words.set_defaults(act=_words)
    add_listen(commands.add_parser("listen", help="tell words in a recording or at the microphone"))
    compose = commands.add_parser("compose", help="make a long recording of clips, and labels of what is said")
    add = compose.add_argument
    add("recording", type=_wav, help="the WAV file to write; its labels go into a .txt beside it")
    add("--clips", metavar="DIR", help="a subfolder of recordings for each word (default: embedded sample)")
    add("--speaker", help="this speaker's clips alone")
    add("--skip", type=whole(0), default=0, help="the first clips of each word, such as those that are enrolled")
    add("--count", type=whole(1), help="clips of each word (default: all)")
    add(
        "--level", type=number(most=0), default=-45.0,
        help="of the noise, in decibels of full scale, so below 0 (default: %(default)s)",
    )  # fmt: skip
    add("--seed", type=whole(0), default=0)
    compose.set_defaults(act=_compose)
    training.add_train(commands.add_parser("train", help="train a network that words are enrolled with"))
    evaluate = commands.add_parser("evaluate", help="learn from few clips and be tested, in many episodes")
    training.add_evaluate(evaluate)
    add_network(evaluate)
    figures.add_personal(commands.add_parser("personal", help="what a user's own clips are worth"))
    figures.add_check(commands.add_parser("check", help="the published figures: passed, failed or not measured"))


def run(options: argparse.Namespace) -> int:
    return options.act(options) or 0


def _enrol(options: argparse.Namespace) -> None:
    from edgelearn.keywords.vocabulary import Vocabulary, features_of

    embedder = find_network(options)
    there = Path(options.into).exists()
    vocabulary = Vocabulary.load(options.into) if there else Vocabulary.empty(embedder)
    vocabulary = vocabulary.add(options.word, features_of(options.clips, embedder))
    vocabulary.enrol(embedder)  # what can't be learned isn't kept
    vocabulary.save(options.into)
    print(f"{options.into}: {vocabulary}")


def _words(options: argparse.Namespace) -> None:
    from edgelearn.keywords.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(options.file)
    if options.forget is not None:
        vocabulary = vocabulary.without(options.forget)
        vocabulary.save(options.file)
    print(f"{options.file}: {vocabulary}")


def _compose(options: argparse.Namespace) -> None:
    import numpy as np

    from edgelearn.data.audio.synthetic import embedded_words
    from edgelearn.experiments.keywords.streaming import LongRecording, write_labels

    clips = find_clips(options.clips, embedded_words)
    if options.speaker:
        if options.speaker not in (speakers := sorted(set(clips.speakers.tolist()) - {""})):
            raise DataError(
                f"{clips.name} has no speaker '{options.speaker}'. It has {', '.join(speakers) or 'none by name'}."
            )
        clips = clips.take(clips.speakers == options.speaker)
    if options.skip >= (most := max(np.bincount(clips.labels))):
        raise DataError(f"No word has more than {most} clips: --skip {options.skip} leaves none. Skip fewer.")
    last = None if options.count is None else options.skip + options.count
    chosen = [np.flatnonzero(clips.words == word)[options.skip : last] for word in clips.class_names]
    recording = LongRecording(clips.take(np.concatenate(chosen)), seed=options.seed, level=options.level)
    labels = options.recording.with_suffix(".txt")
    recording.write(options.recording)
    write_labels(labels, recording.timeline)
    print(f"{options.recording}, {labels}: {len(recording.timeline)} words in {recording.seconds / 60:.1f} minutes")


def _wav(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".wav":
        raise argparse.ArgumentTypeError(f"'{text}' doesn't end in .wav, and a WAV file is what is written")
    return path
