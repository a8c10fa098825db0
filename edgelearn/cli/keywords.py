"""Words of your own: enrol them from a few clips, detect them in recordings or at the microphone.

`enrol` adds clips to a small file of words, `words` lists its contents, `listen` detects its words, with their times,
`bundle` writes a folder that detects them on another device;
`compose` makes a long recording of clips to try it on. `train` trains a network for enrolment, `evaluate` measures
learners in episodes, `personal` measures how much a user's own clips reduce errors, and `check` holds the published
claims against measurements.
The network is the BC-ResNet of EDGELEARN_DATA, or else a small one of the package, which was trained on synthesised
words; the first line of output says which."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgelearn.errors import DataError

from . import keywords_figures as figures
from . import keywords_training as training
from .answer import Answer
from .files import written
from .keywords_common import add_network, find_clips, find_network
from .keywords_listen import add_listen
from .numbers import number, whole

if TYPE_CHECKING:
    from edgelearn.keywords.vocabulary import Vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    enrol = commands.add_parser("enrol", help="learn a word from a few clips")
    enrol.add_argument("word")
    enrol.add_argument("clips", nargs="+", metavar="CLIP", help="WAV, FLAC or OGG files, of the word alone")
    enrol.add_argument("--into", required=True, metavar="FILE", help="the file of words to create or extend")
    add_network(enrol)
    enrol.set_defaults(act=_enrol)
    words = commands.add_parser("words", help="list the words in a file")
    words.add_argument("file")
    words.add_argument("--forget", metavar="WORD", help="remove a word")
    words.set_defaults(act=_words)
    add_listen(commands.add_parser("listen", help="detect words in a recording or at the microphone"))
    bundle = commands.add_parser("bundle", help="write the words and their network for another device")
    bundle.add_argument("words", metavar="FILE", help="the file of words that `enrol` wrote")
    bundle.add_argument("folder", type=written, help="the folder to write")
    bundle.add_argument(
        "--format", choices=("tflite", "onnx"), default="tflite", help="of the network (default: tflite)"
    )
    bundle.add_argument("--threshold", type=number(), help="score needed for a detection, for the application")
    types = bundle.add_mutually_exclusive_group()
    types.add_argument("--int8", action="store_true", help="integers, with ranges of the enrolled clips")
    types.add_argument("--full-integer", action="store_true", help="integers alone, for microcontrollers (tflite)")
    types.add_argument("--float16", action="store_true", help="weights in float16")
    add_network(bundle)
    bundle.set_defaults(act=_bundle)
    compose = commands.add_parser("compose", help="make a long recording of clips, with labels of the spoken words")
    add = compose.add_argument
    add("recording", type=_wav, help="the WAV file to write; labels go into a .txt file of the same name")
    add("--clips", metavar="DIR", help="a subfolder of recordings for each word (default: embedded sample)")
    add("--speaker", help="use the clips of this speaker alone")
    add(
        "--skip",
        type=whole(0),
        default=0,
        help="clips of each word to leave out, such as enrolled ones",
    )
    add("--count", type=whole(1), help="clips of each word (default: all)")
    add(
        "--level", type=number(most=0), default=-45.0,
        help="level of the noise in decibels of full scale, at most 0 (default: %(default)s)",
    )  # fmt: skip
    add("--seed", type=whole(0), default=0)
    compose.set_defaults(act=_compose)
    training.add_train(commands.add_parser("train", help="train a network for enrolment"))
    evaluate = commands.add_parser("evaluate", help="measure learners in episodes of few clips")
    training.add_evaluate(evaluate)
    add_network(evaluate)
    figures.add_personal(commands.add_parser("personal", help="measure how much a user's own clips reduce errors"))
    figures.add_check(commands.add_parser("check", help="check the published claims: passed, failed or not measured"))


def run(options: argparse.Namespace) -> Answer:
    return options.act(options)


def _enrol(options: argparse.Namespace) -> Answer:
    from edgelearn.keywords.vocabulary import Vocabulary, file_features

    embedder = find_network(options)
    exists = Path(options.into).exists()
    vocabulary = Vocabulary.load(options.into) if exists else Vocabulary.empty(embedder)
    vocabulary = vocabulary.add(options.word, file_features(options.clips, embedder))
    vocabulary.enrol(embedder)  # check that the words can be learned before they are saved
    vocabulary.save(options.into)
    print(f"{options.into}: {vocabulary}")
    return _words_in(options.into, vocabulary)


def _words(options: argparse.Namespace) -> Answer:
    from edgelearn.keywords.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(options.file)
    if options.forget is not None:
        vocabulary = vocabulary.without(options.forget)
        vocabulary.save(options.file)
    print(f"{options.file}: {vocabulary}")
    return _words_in(options.file, vocabulary)


def _bundle(options: argparse.Namespace) -> Answer:
    from edgelearn.keywords import Vocabulary, save_bundle

    vocabulary = Vocabulary.load(options.words)
    spotter = vocabulary.enrol(find_network(options))
    types = {"int8": options.int8, "full_integer": options.full_integer, "float16": options.float16}
    examples = vocabulary.features if options.int8 or options.full_integer else None
    made = save_bundle(
        options.folder, spotter, vocabulary.words, options.threshold, options.format, examples, **types
    )  # fmt: skip
    print(f"{options.folder}: {vocabulary}", made, sep="\n")
    found = {"folder": options.folder, "words": vocabulary.words, "network": made.path, "bytes": made.bytes}
    return Answer(found | {"types": made.types, "float32": made.float32})


def _words_in(file: str, vocabulary: Vocabulary) -> Answer:
    return Answer({"file": file, "words": {word: vocabulary.count(word) for word in vocabulary.words}})


def _compose(options: argparse.Namespace) -> Answer:
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
    words = [asdict(spoken) for spoken in recording.timeline]
    return Answer({"recording": options.recording, "labels": labels, "seconds": recording.seconds, "words": words})


def _wav(text: str) -> Path:
    path = written(text)
    if path.suffix.lower() != ".wav":
        raise argparse.ArgumentTypeError(f"'{text}' doesn't end in .wav")
    return path
