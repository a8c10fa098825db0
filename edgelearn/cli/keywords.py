"""Words of your own: enrol them from a few clips, detect them in recordings or at the microphone.

`enrol` adds clips to a small file of words, `words` lists its contents, `listen` detects its words, with their times,
`bundle` writes a folder that detects them on another device;
`compose` makes a long recording of clips to try it on. `train` trains a network for enrolment, `evaluate` measures
learners in episodes, `personal` measures how much a user's own clips reduce errors, and `check` holds the published
claims against measurements.
The network is the BC-ResNet of EDGELEARN_DATA, or else a small one of the package, which was trained on synthesised
words; the first line of output says which.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np

from edgelearn.data.audio import ClipDataset
from edgelearn.data.files import skipped_lines
from edgelearn.errors import DataError, UsageError
from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.keywords.episodes import SPEAKERS, WORD_SPLITS
from edgelearn.extensions import import_instance, is_reference
from edgelearn.keywords import Detection, Listener, OtherWords, Vocabulary
from edgelearn.keywords.learners import Embedder, Learner, Linear, Neighbours
from edgelearn.keywords.listener import HOP, REFRACTORY, SMOOTHING

from . import parser as names
from .answer import Answer
from .parser import add_options, number, one_of, whole, written
from .training import add_runs, train


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
    add_train(commands.add_parser("train", help="train a network for enrolment"))
    evaluate = commands.add_parser("evaluate", help="measure learners in episodes of few clips")
    add_evaluate(evaluate)
    add_network(evaluate)
    add_personal(commands.add_parser("personal", help="measure how much a user's own clips reduce errors"))
    add_check(commands.add_parser("check", help="check the published claims: passed, failed or not measured"))


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

    from edgelearn.data.synthetic_words import embedded_words
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


# Without the learner that needs a shared classifier of the words and clips of other people: see `personal`.
LEARNERS = tuple(sorted(set(Learner.registry) - {Neighbours.name}))


def learner(name: str) -> Learner:
    """The learner with this name, or MODULE:CLASS."""
    return import_instance(name, Learner) if is_reference(name) else Learner.named(name)()


def add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="DIR", help="folder with data sets and weights (default: EDGELEARN_DATA)")
    names.add_device(parser)


def add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--network", metavar="FILE", help="'sample', a BC-ResNet-1 in .npz, or the folder of a run of `train`"
    )
    add_data(parser)


def find_network(options: argparse.Namespace) -> Embedder:
    """The embedder of the options. Prints where it comes from."""
    from edgelearn.experiments.keywords.embedding import find_embedder

    embedder, where = find_embedder(options.network, options.data, options.device)
    print(where)
    return embedder


def find_clips(folder: str | None, default: Callable[[], ClipDataset], what: str = "Clips") -> ClipDataset:
    """The clips in `folder`, or those of `default` if it is None. Prints where they come from, and skipped files."""
    from edgelearn.data.audio import load_folder

    clips = load_folder(folder) if folder else default()
    print(f"{what}: {clips.description}", *skipped_lines(clips.skipped), sep="\n")
    return clips


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
    from edgelearn.data import audio
    from edgelearn.train.control import on_interrupt

    ended = []

    def blocks() -> Iterator[np.ndarray]:
        with closing(audio.microphone_blocks(listener.spotter.embedder.front_end.rate, name)) as heard:
            print("Listening. Ctrl-C ends it.")
            for block in heard:
                yield block
                if ended:
                    return

    with on_interrupt(lambda: ended.append(True)):
        yield from listener.listen(blocks())


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
    from edgelearn.data.features import load_features
    from edgelearn.data.synthetic_words import embedded_words
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


ENGLISH = "english"


def add_personal(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what", nargs="*", default=[ENGLISH],
        help="english (the network of EDGELEARN_DATA), or folders of runs of `train`",
    )  # fmt: skip
    add("--shots", type=whole(1), nargs="+", default=[1, 3, 5], help="clips of each word (default: 1 3 5)")
    add("--users", action="store_true", help="print a line for each user, highest error first")
    add_data(parser)
    parser.set_defaults(act=_personal)


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="folders of runs of `train arabic`, for each split and method"
    )
    add_data(parser)
    parser.set_defaults(act=_check)


def _personal(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.keywords.personalisation import (
        english_users,
        personalise_english,
        personalise_run,
        to_table,
        users_table,
    )

    found = []
    for what in options.what:
        if what == ENGLISH:
            reports = personalise_english(english_users(options.data, options.device), options.shots)
        else:
            reports = personalise_run(what, options.shots, options.data, options.device)
        print(what, *(users_table(report) for report in reports if options.users), to_table(reports), sep="\n")
        found += [{"what": what} | asdict(report) for report in reports]
    return Answer(found)


def _check(options: argparse.Namespace) -> Answer:
    from edgelearn.errors import RunError
    from edgelearn.experiments.claims import status
    from edgelearn.experiments.keywords.check import check
    from edgelearn.lab.runs import RunStore

    runs = [RunStore(Path(folder).parent).open(Path(folder).name) for folder in options.runs]
    if unfinished := [run.id for run in runs if run.status != "finished"]:
        raise RunError(f"{unfinished[0]} isn't finished. Finish it: edgelearn keywords train --resume {unfinished[0]}")
    if others := [run.id for run in runs if (run.record["kind"], run.config.get("task")) != ("keywords", "arabic")]:
        raise RunError(f"{others[0]} is not a run of `edgelearn keywords train arabic`: leave it out.")
    found = []
    for claim in check(runs, options.data, options.device):
        print(f"{claim.word}  {claim.claim}: {claim.measured}", flush=True)
        found.append(claim)
    return Answer([asdict(claim) for claim in found], status(found))
