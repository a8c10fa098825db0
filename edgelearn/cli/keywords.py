"""Words of your own: enrol them from a few clips, detect them in recordings or at the microphone.

`enrol` adds clips to a small file of words, `words` lists its contents, `listen` detects its words, with their times,
`bundle` writes a folder that detects them on another device; `enrol-speaker` and `speakers` say who is speaking;
`compose` makes a long recording of clips to try it on. `train` trains a network for enrolment, `evaluate` measures
learners in episodes, `people` and `voices` test networks on the people
whom `train people` and `train voices` leave out, `personal` measures how much a
user's own clips reduce errors, and `check` holds the published claims against measurements.
The network is the BC-ResNet of EDGELEARN_DATA, or else one of the package, which was trained on recordings of people;
the first line of output says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data.audio import ClipDataset
from edgelearn.data.files import skipped_lines
from edgelearn.display import plural
from edgelearn.errors import DataError, RunError, UsageError
from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.keywords.episodes import SPEAKERS, WORD_SPLITS
from edgelearn.extensions import import_instance, is_reference
from edgelearn.keywords import Listener, OtherWords, Vocabulary
from edgelearn.keywords.learners import Embedder, Learner, Linear, Neighbours
from edgelearn.keywords.listener import HOP, REFRACTORY, SMOOTHING
from edgelearn.lab.runs import RunStore

from .answer import Answer, log, show
from .memory import CLAIMS
from .models import WRITTEN
from .parser import DEVICE, MARKDOWN, RESUME, RUNS, argument, command, setting, writable
from .training import TRAINING, train

# Without the learner that needs a shared classifier of the words and clips of other people: see `personal`.
LEARNERS = tuple(sorted(set(Learner.registry) - {Neighbours.name}))
OTHERS = 500  # clips of other words that suffice for a threshold
ENGLISH = "english"
WORDS = {"file": "of words", "words": "number of clips by word"}
NETWORK = setting(
    None,
    "people or sample, the package's; a BC-ResNet-1 in .npz; the folder of a run of `train`; or a file",
    metavar="FILE",
)
VOICES = setting(
    "speakers", "speakers, the package's; the folder of a run of `train voices`; or a file", metavar="FILE"
)
DATA = setting(None, "folder with data sets and weights (default: EDGELEARN_DATA)", metavar="DIR")
SEED = setting(0, minimum=0)
LEARNER = {"choices": LEARNERS, "extensible": True, "metavar": "NAME"}


def find_learner(name: str) -> Learner:
    """The learner with this name, or MODULE:CLASS."""
    return import_instance(name, Learner) if is_reference(name) else Learner.named(name)()


def find_network(network: str | None, data: str | None, device: str | None) -> Embedder:
    """The embedder of the options. Prints where it comes from."""
    from edgelearn.experiments.keywords.embedding import find_embedder

    embedder, where = find_embedder(network, data, device)
    print(where)
    return embedder


def find_clips(folder: str | None, default: Callable[[], ClipDataset], what: str = "Clips") -> ClipDataset:
    """The clips in `folder`, or those of `default` if it is None. Prints where they come from, and skipped files."""
    from edgelearn.data.audio import load_folder

    clips = load_folder(folder) if folder else default()
    print(f"{what}: {clips.description}", *skipped_lines(clips.skipped), sep="\n")
    return clips


def _words_in(file: str, vocabulary: Vocabulary) -> dict[str, Any]:
    print(f"{file}: {vocabulary}")
    return {"file": file, "words": {word: vocabulary.count(word) for word in vocabulary.words}}


@command("keywords enrol", "learn a word from a few clips", one=WORDS)
def enrol(
    word: str = argument(),
    clips: tuple[str, ...] = argument(help="WAV, FLAC or OGG files, of the word alone", metavar="CLIP"),
    into: str = setting(help="the file of words to create or extend", metavar="FILE"),
    network: str | None = NETWORK,
    data: str | None = DATA,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn.keywords.vocabulary import file_features

    embedder = find_network(network, data, device)
    vocabulary = Vocabulary.load(into) if Path(into).exists() else Vocabulary.empty(embedder)
    vocabulary = vocabulary.add(word, file_features(clips, embedder))
    vocabulary.enrol(embedder)  # check that the words can be learned before they are saved
    vocabulary.save(into)
    return _words_in(into, vocabulary)


@command("keywords words", "list the words in a file", one=WORDS)
def list_words(
    file: str = argument(), forget: str | None = setting(None, "remove a word", metavar="WORD")
) -> dict[str, Any]:
    vocabulary = Vocabulary.load(file)
    if forget is not None:
        vocabulary = vocabulary.without(forget)
        vocabulary.save(file)
    return _words_in(file, vocabulary)


@command("keywords listen", "detect words in a recording or at the microphone", one={
    "words": "enrolled", "threshold": "score", "detections": "time (s), word, score",
})  # fmt: skip
def listen(
    recording: str | None = argument(None, "a WAV, FLAC or OGG file of any length"),
    microphone: str | None = setting(None, "listen to it instead, until Ctrl-C", const="", metavar="NAME"),
    words: str = setting(help="the file of words that `enrol` wrote", metavar="FILE"),
    threshold: float | None = setting(None, "score needed for a detection (default: set by clips of other words)"),
    others: str | None = setting(
        None, "recordings of other words, a subfolder each (default: synthesised words)", metavar="DIR"
    ),
    false_accepts: float = setting(
        0.01, "share of clips of other words that the threshold may accept", minimum=0, maximum=1, metavar="SHARE"
    ),
    surroundings: tuple[str, ...] = setting(
        (), "recordings of where it will listen, without the words: they set the threshold", metavar="FILE"
    ),
    false_accepts_per_hour: float | None = setting(
        None, "that the threshold may make in the surroundings (default: 1)", minimum=0, metavar="NUMBER"
    ),
    learner: str = setting("nearest-mean", "how words are learned", **LEARNER),
    hop: float = setting(HOP, "seconds between scores", minimum=0.001),
    smoothing: float = setting(SMOOTHING, "seconds over which scores are averaged", minimum=0),
    refractory: float = setting(REFRACTORY, "seconds without detections after one", minimum=0),
    labels: str | None = setting(
        None, "the spoken words, as Audacity writes labels: report hits and false alarms", metavar="FILE"
    ),
    network: str | None = NETWORK,
    data: str | None = DATA,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn.experiments.keywords.streaming import evaluate_detections, read_labels

    if (recording is None) == (microphone is None):
        raise UsageError("Give either a recording or --microphone.")
    if false_accepts_per_hour is not None and not surroundings:
        raise UsageError("--false-accepts-per-hour needs a recording of where it will listen: give --surroundings.")
    if surroundings and (threshold is not None or others is not None):
        raise UsageError("--surroundings sets the threshold: leave --threshold and --others out.")
    per_hour = 1.0 if false_accepts_per_hour is None else false_accepts_per_hour
    vocabulary = Vocabulary.load(words)
    spoken = read_labels(labels) if labels else None
    embedder = find_network(network, data, device)
    listener = Listener(
        embedder, vocabulary, find_learner(learner), inf if surroundings else threshold,
        _others(others, vocabulary, embedder) if threshold is None and not surroundings else None, false_accepts, hop,
        smoothing, refractory,
    )  # fmt: skip
    if len(vocabulary.words) == 1 and isinstance(listener.spotter.classifier, Linear):
        raise DataError(
            f"'{learner}' distinguishes words from each other, and there is only '{vocabulary.words[0]}': "
            f"every sound would get the same score. Enrol another word, or learn by 'nearest-mean'."
        )
    if surroundings:
        print(_heard(listener.calibrate_by_files(surroundings, per_hour), per_hour))
    print(f"Words: {vocabulary}. Threshold: {listener.threshold:.3f}")
    if recording is None:
        detected = _until_interrupted(listener, embedder, microphone)
    else:
        detected = listener.listen_to_file(recording)
    detections = []
    for detection in detected:
        print(f"{detection.time:10.2f} s  {detection.word}  {detection.score:.3f}")
        detections.append(detection)
    if spoken is not None:
        timeline = [each for each in spoken if each.word in vocabulary.words]
        print(evaluate_detections(detections, timeline, listener.seconds))
    return {"words": vocabulary.words, "threshold": listener.threshold, "detections": detections}


def _heard(seconds: float, per_hour: float) -> str:
    """A sentence on surroundings that were heard for so many seconds, and what they say of a rate."""
    hours, text = seconds / 3600, f"Surroundings: {seconds / 60:.1f} minutes, {per_hour:g} false accepts an hour."
    if not 0 < per_hour * hours < 1:
        return text
    return (
        f"{text} None are allowed in so short a recording, and it shows no more, at 95 % confidence, than that there "
        f"are fewer than {3 / hours:.0f} an hour: record {1 / per_hour:.1f} hours or more."
    )


def _others(folder: str | None, vocabulary: Vocabulary, embedder: Embedder) -> OtherWords:
    from edgelearn.keywords.files import other_words

    clips = find_clips(folder, other_words, "Other words")
    if not folder:
        print("  For speech, give recordings of other words with --others.")
    clips = clips.only([word for word in clips.class_names if word not in vocabulary.words])
    return OtherWords.load(clips.take(np.arange(0, len(clips), max(1, len(clips) // OTHERS))), embedder)


def _until_interrupted(listener: Any, embedder: Embedder, name: str | None) -> Iterator[Any]:
    """Yield the detections of a listener at the microphone, until Ctrl-C."""
    from edgelearn.data import audio
    from edgelearn.train.control import on_interrupt

    ended = []

    def blocks() -> Iterator[np.ndarray]:
        with closing(audio.microphone_blocks(embedder.front_end.rate, name or None)) as heard:
            print("Listening. Ctrl-C ends it.")
            for block in heard:
                yield block
                if ended:
                    return

    with on_interrupt(lambda: ended.append(True)):
        yield from listener.listen(blocks())


@command("keywords enrol-speaker", "learn a speaker's voice from about ten seconds", one=WORDS)
def enrol_speaker(
    name: str = argument(),
    recordings: tuple[str, ...] = argument(help="WAV, FLAC or OGG files of the speaker alone", metavar="RECORDING"),
    into: str = setting(help="the file of speakers to create or extend", metavar="FILE"),
    network: str = VOICES,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn.data.audio import decode
    from edgelearn.keywords.speakers import windows

    embedder = find_network(network, None, device)
    speakers = Vocabulary.load(into) if Path(into).exists() else Vocabulary.empty(embedder)
    heard = [windows(decode(Path(file), file, embedder.front_end.rate), embedder) for file in recordings]
    speakers = speakers.add(name, np.concatenate(heard))
    speakers.enrol(embedder)  # check that they can be learned before they are saved
    speakers.save(into)
    return _words_in(into, speakers)


@command("keywords speakers", "say who speaks in a recording or at the microphone, second by second", one={
    "windows": "time of the end (s), speaker, score", "errors": "windows named wrongly, with --labels",
})  # fmt: skip
def speakers(
    recording: str | None = argument(None, "a WAV, FLAC or OGG file of any length"),
    microphone: str | None = setting(None, "listen to it instead, until Ctrl-C", const="", metavar="NAME"),
    enrolled: str = setting(help="the file of speakers that `enrol-speaker` wrote", metavar="FILE"),
    labels: str | None = setting(
        None,
        "who speaks when, as Audacity writes labels: windows named wrongly are counted, and all are learned",
        metavar="FILE",
    ),
    into: str | None = setting(None, "the file to write the speakers to, with the learned windows", metavar="FILE"),
    threshold: float = setting(-1.0, "score below which a window is nobody's", minimum=-1, maximum=1),
    hop: float = setting(0.5, "seconds between windows", minimum=0.001),
    network: str = VOICES,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn.experiments.keywords.streaming import read_labels
    from edgelearn.keywords.speakers import SpeakerListener

    if (recording is None) == (microphone is None):
        raise UsageError("Give either a recording or --microphone.")
    embedder, spoken = find_network(network, None, device), read_labels(labels) if labels else []
    listener = SpeakerListener(embedder, Vocabulary.load(enrolled), hop=hop, threshold=threshold)
    print(f"Speakers: {listener.speakers}")
    heard = listener.listen_to_file(recording) if recording else _until_interrupted(listener, embedder, microphone)
    found, errors = [], 0
    for window in heard:
        middle = window.time - embedder.seconds / 2
        truth = next((each.word for each in spoken if each.start <= middle < each.end), None)
        found.append(window)
        print(f"{window.time:10.2f} s  {window.speaker or '-'}  {window.score:.3f}")
        if truth is not None:
            listener.learn(truth)
            if truth != window.speaker:
                errors += 1
                print(f"{'':10}    corrected: {truth}")
    if labels:
        print(f"{errors} of {plural(len(found), 'window')} were named wrongly")
    if into:
        listener.speakers.save(into)
    return {"windows": found, "errors": errors}


@command("keywords bundle", "write the words and their network for another device", one={
    "folder": "the bundle", "words": "enrolled", "network": "its file",
} | WRITTEN)  # fmt: skip
def bundle(
    words: str = argument(help="the file of words that `enrol` wrote", metavar="FILE"),
    folder: Path = argument(help="the folder to write", check=writable),
    format: str = setting("tflite", "of the network", choices=("tflite", "onnx")),  # noqa: A002
    threshold: float | None = setting(None, "score needed for a detection, for the application"),
    int8: bool = setting(False, "integers, with ranges of the enrolled clips", group="types"),
    full_integer: bool = setting(False, "integers alone, for microcontrollers (tflite)", group="types"),
    float16: bool = setting(False, "weights in float16", group="types"),
    network: str | None = NETWORK,
    data: str | None = DATA,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn.keywords import save_bundle

    vocabulary = Vocabulary.load(words)
    spotter = vocabulary.enrol(find_network(network, data, device))
    examples = vocabulary.features if int8 or full_integer else None
    types = {"int8": int8, "full_integer": full_integer, "float16": float16}
    made = save_bundle(folder, spotter, vocabulary.words, threshold, format, examples, **types)
    print(f"{folder}: {vocabulary}", made, sep="\n")
    found = {"folder": folder, "words": vocabulary.words, "network": made.path}
    return found | {name: getattr(made, name) for name in WRITTEN}


def is_wav(path: Path) -> None:
    """Raises UsageError for what is no WAV file that can be written."""
    writable(path)
    if path.suffix.lower() != ".wav":
        raise UsageError(f"'{path}' doesn't end in .wav")


@command("keywords compose", "make a long recording of clips, with labels of the spoken words", one={
    "recording, labels": "files", "seconds": "length", "words": "word, start and end in seconds, in order",
})  # fmt: skip
def compose(
    recording: Path = argument(help="the WAV file to write; labels go into a .txt file of the same name", check=is_wav),
    clips: str | None = setting(
        None, "a subfolder of recordings for each word (default: embedded sample)", metavar="DIR"
    ),
    speaker: str | None = setting(None, "use the clips of this speaker alone"),
    skip: int = setting(0, "clips of each word to leave out, such as enrolled ones", minimum=0),
    count: int | None = setting(None, "clips of each word (default: all)", minimum=1),
    level: float = setting(-45.0, "level of the noise in decibels of full scale, at most 0", maximum=0),
    seed: int = SEED,
) -> dict[str, Any]:
    from edgelearn.data.synthetic_words import embedded_words
    from edgelearn.experiments.keywords.streaming import LongRecording, write_labels

    found = find_clips(clips, embedded_words)
    if speaker:
        if speaker not in (speakers := sorted(set(found.speakers.tolist()) - {""})):
            raise DataError(f"{found.name} has no speaker '{speaker}'. It has {', '.join(speakers) or 'none by name'}.")
        found = found.take(found.speakers == speaker)
    if skip >= (most := max(np.bincount(found.labels))):
        raise DataError(f"No word has more than {most} clips: --skip {skip} leaves none. Skip fewer.")
    last = None if count is None else skip + count
    chosen = [np.flatnonzero(found.words == word)[skip:last] for word in found.class_names]
    made = LongRecording(found.take(np.concatenate(chosen)), seed=seed, level=level)
    labels = recording.with_suffix(".txt")
    made.write(recording)
    write_labels(labels, made.timeline)
    print(f"{recording}, {labels}: {plural(len(made.timeline), 'word')} in {made.seconds / 60:.1f} minutes")
    return {"recording": recording, "labels": labels, "seconds": made.seconds, "words": made.timeline}


@command("keywords train", "train a network for enrolment", one=TRAINING)
def train_one(config: KeywordsConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    from edgelearn.experiments.keywords.embedding import KeywordsExperiment

    return train(KeywordsExperiment, config, runs, resume)


@command("keywords evaluate", "measure learners in episodes of few clips", many={
    "learner": "name and settings", "num_classes, shots, speakers, episodes": "of the episodes",
    "measures": "by name: mean, margin (95 %) and count",
})  # fmt: skip
def evaluate(
    clips: str | None = argument(
        None, "a subfolder of recordings for each word (default: embedded sample)", metavar="DIR"
    ),
    learner: tuple[str, ...] = setting(("nearest-mean",), "how words are learned", **LEARNER),
    num_classes: int = setting(5, "words of an episode", minimum=1),
    shots: tuple[int, ...] = setting((1, 5), "clips of each word to enrol", minimum=1),
    queries: int = setting(5, "clips of each word to classify", minimum=1),
    unlabelled: int = setting(
        0, "clips of each word without labels; learners that use them are compared with those that don't", minimum=0,
        metavar="N",
    ),
    speakers: tuple[str, ...] = setting(
        ("same",), "who is tested: who was enrolled, somebody else, or anybody", choices=SPEAKERS
    ),
    split: str | None = setting(
        None, "a published split of Speech Commands: its test words and unknown words, by the testing speakers",
        choices=tuple(WORD_SPLITS),
    ),
    episodes: int = setting(600, "number of episodes", minimum=2),
    seed: int = SEED,
    network: str | None = NETWORK,
    data: str | None = DATA,
    device: str | None = DEVICE,
) -> list[Any]:  # fmt: skip
    from edgelearn.data.features import load_features
    from edgelearn.data.synthetic_words import embedded_words
    from edgelearn.experiments.keywords.episodes import Episodes, Evaluator, part_of, to_table
    from edgelearn.keywords.learners import supervised

    learners = [find_learner(name) for name in learner]
    if unlabelled:
        learners = list(dict.fromkeys(each for one in learners for each in (supervised(one), one)))
    dataset = find_clips(clips, lambda: embedded_words(speakers=4))
    unknown_words: tuple[str, ...] = ()
    if split:
        chosen = WORD_SPLITS[split]
        dataset, unknown_words = part_of(dataset, "testing", (*chosen.test, *chosen.unknown)), chosen.unknown
        print(f"  {split}: {dataset.description}")
    every = [
        Episodes(dataset, num_classes, count, queries, None, who, episodes, seed, unlabelled, unknown_words)
        for who in speakers for count in shots
    ]  # fmt: skip
    embedder = find_network(network, data, device)
    evaluator = Evaluator(embedder, load_features(dataset, embedder.front_end, embedder.seconds))
    reports = [evaluator.run(each, of) for each in learners for of in every]
    show(to_table(reports))
    return [
        {"learner": r.learner.to_dict(), "num_classes": r.episodes.num_classes, "shots": r.episodes.shots,
         "speakers": r.episodes.speakers, "episodes": len(r.episodes), "measures": r.measures}
        for r in reports
    ]  # fmt: skip


@command("keywords personal", "measure how much a user's own clips reduce errors", many={
    "what": "english, or a run", "learner": "settings as text", "shots": "clips of each word",
    "users": "a result each: errors and false accepts before and after, bytes, seconds",
})  # fmt: skip
def personal(
    what: tuple[str, ...] = argument(
        (ENGLISH,), "english (the network of EDGELEARN_DATA), or folders of runs of `train`"
    ),
    shots: tuple[int, ...] = setting((1, 3, 5), "clips of each word", minimum=1),
    users: bool = setting(False, "print a line for each user, highest error first"),
    data: str | None = DATA,
    device: str | None = DEVICE,
) -> list[Any]:
    from edgelearn.experiments.keywords.personalisation import (
        english_users,
        personalise_english,
        personalise_run,
        to_table,
        users_table,
    )

    found = []
    for name in what:
        if name == ENGLISH:
            reports = personalise_english(english_users(data, device), shots)
        else:
            reports = personalise_run(name, shots, data, device)
        print(name)
        for each in [*(users_table(report) for report in reports if users), to_table(reports)]:
            show(each)
        found += [{"what": name} | asdict(report) for report in reports]
    return found


@command("keywords people", "test a network on the people and words that `train people` leaves out", many={
    "language, num_classes, shots, speakers": "of the episodes", "accuracy, auroc": "mean, margin (95 %) and count",
})  # fmt: skip
def people(
    network: str | None = NETWORK,
    validation: bool = setting(False, "on the part that settings are chosen by"),
    episodes: int = setting(1000, "number of episodes of each kind", minimum=2),
    data: str | None = DATA,
    device: str | None = DEVICE,
    markdown: bool = MARKDOWN,
) -> list[Any]:
    from edgelearn.experiments.keywords.people import measure_people, to_table

    found = measure_people(find_network(network, data, device), data, validation, episodes)
    show(to_table(found), markdown)
    return list(found)


@command("keywords voices", "test who is speaking on the people that `train voices` leaves out", many={
    "language, speakers": "of the windows", "at_once, before, after, corrected": "mean, margin (95 %) and count",
})  # fmt: skip
def voices(
    network: str = VOICES,
    validation: bool = setting(False, "on the part that settings are chosen by"),
    draws: int = setting(50, "of five speakers and their windows", minimum=2),
    data: str | None = DATA,
    device: str | None = DEVICE,
    markdown: bool = MARKDOWN,
) -> list[Any]:
    from edgelearn.experiments.keywords.people import measure_speakers, to_table

    found = measure_speakers(find_network(network, data, device), data, validation, draws)
    show(to_table(found), markdown)
    return list(found)


@command("keywords false-accepts", "hits against false accepts, by how the threshold was set", many={
    "way": "how it was set", "threshold": "score", "hits, occurrences": "words detected and spoken",
    "false_accepts, hours": "in recordings without them", "seed": "number",
})  # fmt: skip
def false_accepts(
    words: tuple[str, ...] = setting(("left", "stop"), "of Speech Commands", metavar="WORD"),
    seeds: tuple[int, ...] = setting((0, 1, 2), minimum=0),
    data: str | None = DATA,
    markdown: bool = MARKDOWN,
) -> list[Any]:
    from edgelearn.experiments.keywords.streaming import measure, table

    found = [each for seed in seeds for each in measure(words, seed, data, log)]
    show(table(found), markdown)
    return list(found)


@command("keywords check", "check the published claims: passed, failed or not measured", many=CLAIMS)
def check(
    runs: tuple[str, ...] = argument((), "folders of runs of `train arabic`, for each split and method", metavar="RUN"),
    data: str | None = DATA,
    device: str | None = DEVICE,
) -> Answer:
    from edgelearn.experiments.keywords import check

    found = [RunStore(Path(folder).parent).open(Path(folder).name) for folder in runs]
    if unfinished := [run.id for run in found if run.status != "finished"]:
        raise RunError(f"{unfinished[0]} isn't finished. Finish it: edgelearn keywords train --resume {unfinished[0]}")
    if others := [run.id for run in found if (run.record["kind"], run.config.get("task")) != ("keywords", "arabic")]:
        raise RunError(f"{others[0]} is not a run of `edgelearn keywords train arabic`: leave it out.")
    checked = check.check(
        found, data, device, lambda each: print(f"{each.word}  {each.claim}: {each.measured}", flush=True)
    )
    return Answer(checked.verdicts, checked.status)
