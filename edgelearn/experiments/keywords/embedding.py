"""Training of embeddings on some words and speakers, tested in episodes of other ones; and where to find embedders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic, records
from edgelearn.data.audio import ClipDataset, load_clips, load_folder
from edgelearn.data.draws import AddNoise, Reverberate, Shift, SpecAugment, Speed, synthetic_noises
from edgelearn.data.features import BC_RESNET, FrontEnd, load_features
from edgelearn.data.files import skipped_lines
from edgelearn.data.speech_commands import load_named
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.data.tfds import data_folder
from edgelearn.device import Device
from edgelearn.display import plural
from edgelearn.errors import DataError, FormatError, RunError, UsageError
from edgelearn.experiments.config import DATA, Config, device_setting, epochs_setting, seed_setting, setting
from edgelearn.experiments.experiment import Experiment, Training
from edgelearn.graph import Network
from edgelearn.interop import safetensors, state_dict
from edgelearn.keywords import learners
from edgelearn.keywords.files import load_embedder, people_embedder, sample_embedder, speaker_embedder
from edgelearn.keywords.learners import (
    DISTANCES,
    DummyGenerator,
    DummyPrototypes,
    Embedder,
    Learner,
    NearestMean,
    trainable_part,
)
from edgelearn.lab.runs import Run, figures
from edgelearn.models import bcresnet, ds_cnn, ds_resnet
from edgelearn.models.keywords import SIZES
from edgelearn.ops import AdamW, Concatenate, Dense, Loss, Prototypical, ReLU, SoftmaxCrossEntropy
from edgelearn.ops.tensor import Shape
from edgelearn.statistics import Interval, interval, student_t
from edgelearn.train import CosineDecay, Model

from .episodes import ARABIC, ENGLISH, Episodes, EvaluationReport, Evaluator, hold_out, to_table
from .people import TaskData, by_word, people, voices

METHODS = ("classify", "prototypical", "dummy-prototypes")
NETWORKS = ("ds-resnet", "bcresnet", "ds-cnn-s", "ds-cnn-m", "ds-cnn-l")
PARTS = tuple(part for part in learners.PARTS if part != "head")


@dataclass(frozen=True)
class KeywordsConfig(Config):
    """Training of an embedding of words, tested on other words and speakers. The fields describe themselves.

    The method "classify" trains with a linear classifier, which is discarded afterwards. "prototypical" and
    "dummy-prototypes" train in episodes of `num_classes` words, with `shots` clips of each to enrol and `queries` to
    classify, and with dummy prototypes as many clips of other words to reject (see `ops.Prototypical`). A mini-batch is
    one episode then, and an epoch has about as many clips as the data.

    Raises ConfigError for an invalid value, RunError for settings that need others.
    """

    task: str = setting(
        "sample", "data to train on: sample, arabic, people (both languages), voices (who speaks), the last two with "
        "-validation added, or a folder of recordings, a subfolder for each word", positional=True,
    )  # fmt: skip
    method: str = setting(
        "classify", "by a classifier of all words, or in episodes, without or with dummy prototypes", choices=METHODS
    )
    network: str = setting("ds-resnet", "network of the embedding", choices=NETWORKS)
    width: float = setting(1.0, "multiplies the network's channels", above=0)
    size: int = setting(128, "values of an embedding of ds-resnet; other networks' depend on their width", minimum=1)
    parts: int = setting(4, "parts of a clip whose order an embedding of ds-resnet keeps", minimum=1)
    english: bool = setting(True, "train on English clips, too")
    reversed: bool = setting(True, "train on clips played backwards, too, as words of their own")
    shift: float = setting(0.1, "largest random shift of a clip, as a share of its length", minimum=0, maximum=0.5)
    noise: float = setting(0.5, "probability with which noise is mixed in", minimum=0, maximum=1)
    speed: float = setting(0.0, "largest random change of a clip's speed, as a share", minimum=0, maximum=0.5)
    reverberation: float = setting(0.0, "probability with which a clip is put into a room", minimum=0, maximum=1)
    mask: bool = setting(True, "mask random frequencies and times (SpecAugment)")
    num_classes: int = setting(16, "words of a training episode", minimum=1)
    shots: int = setting(3, "clips of each word to enrol", minimum=1)
    queries: int = setting(6, "clips of each word to classify", minimum=1)
    distance: str = setting("euclidean", "distance between embeddings, in episodes", choices=DISTANCES)
    scale: float = setting(0.1, "multiplies distances before the softmax, in episodes", above=0)
    dummy_prototypes: int = setting(3, "number of prototypes of words that aren't enrolled", minimum=1)
    dummy_temperature: float = setting(10.0, "divides the distances to dummy prototypes in training", above=0)
    part: str = setting("all", "part of the embedding of --start that is trained", choices=PARTS)
    frozen: bool = setting(False, "train dummy prototypes alone and keep the embedding of --start")
    epochs: int = epochs_setting(40, "passes over the clips")
    batch_size: int = setting(128, "clips of an update, unless in episodes", minimum=1)
    learning_rate: float = setting(3e-3, "highest learning rate of AdamW; it falls along a cosine", above=0)
    weight_decay: float = setting(0.02, "weight decay of AdamW", minimum=0)
    label_smoothing: float = setting(0.1, "label smoothing of the classifier", minimum=0, maximum=1)
    whitening: float | None = setting(
        None, "at the end, make embeddings of one word vary more alike in all directions; this share of their "
        "covariance counts as even (default: leave them)", above=0, maximum=1,
    )  # fmt: skip
    start: str | None = setting(
        None, "initial weights of the embedding (safetensors), such as those of a run", metavar="FILE"
    )
    episodes: int = setting(1000, "test episodes of each kind; intervals need at least 2", minimum=2)
    data: str | None = setting(None, DATA, metavar="DIR")
    seed: int = seed_setting()
    device: str | None = device_setting()

    def __post_init__(self) -> None:
        self.check()
        if self.part != "all" and not self.start:
            raise RunError(f"part='{self.part}' trains a part of a trained embedding: give its weights by start.")
        if self.frozen and not (self.start and self.method == "dummy-prototypes"):
            raise RunError("frozen trains dummy prototypes alone: give method='dummy-prototypes' and start.")

    @property
    def episodic(self) -> bool:
        """True if a mini-batch is an episode."""
        return self.method != "classify"


HELD_WORDS, HELD_SPEAKERS = 8, 6  # of Ghandoura et al.'s 24 words and 24 speakers


def arabic(config: KeywordsConfig) -> TaskData:
    """Train on 16 Arabic words by 18 speakers, and English clips unless disabled; test 8 words by 6 speakers."""
    split = hold_out(load_named(ARABIC, config.data), HELD_WORDS, HELD_SPEAKERS, config.seed)
    return TaskData((split.train, *_english(config)), split.test)


def folder(config: KeywordsConfig) -> TaskData:
    """Train on a folder of recordings, and English clips unless disabled; a third of the words (at least three) by a
    quarter of the speakers (at least two) are held out, the same shares as of the Arabic ones."""
    clips = load_folder(config.task)
    words, speakers = len(clips.class_names), len(np.unique(clips.speakers))
    split = hold_out(clips, max(3, words // 3), max(2, speakers // 4), config.seed)
    return TaskData((split.train, *_english(config)), split.test)


def _english(config: KeywordsConfig) -> tuple[ClipDataset, ...]:
    if not config.english:
        return ()
    try:
        return (by_word(load_named(ENGLISH, config.data)),)
    except DataError as error:
        raise DataError(f"{error} Or train without English clips: --no-english.") from error


def sample(config: KeywordsConfig) -> TaskData:
    """Train and test on words that the package synthesises."""
    split = hold_out(embedded_words(), 4, 4, config.seed)
    return TaskData((split.train,), split.test)


TASKS: dict[str, Callable[[KeywordsConfig], TaskData]] = {
    "arabic": arabic, "sample": sample,
    "people": lambda config: people(config.data), "people-validation": lambda config: people(config.data, True),
    "voices": lambda config: voices(config.data), "voices-validation": lambda config: voices(config.data, True),
}  # fmt: skip


def load_task(config: KeywordsConfig) -> TaskData:
    """Load the clips of `config.task`. Raises UsageError if it is neither a task nor a folder, DataError if its clips
    are missing."""
    if config.task in TASKS:
        return TASKS[config.task](config)
    if not Path(config.task).is_dir():
        raise UsageError(f"There is no task or folder of recordings '{config.task}'. Tasks: {', '.join(TASKS)}.")
    return folder(config)


FRONT_END: FrontEnd = BC_RESNET
SECONDS = 1.0
_DS_CNN = "ds-cnn-"
DUMMY_LAYERS = "dummies_dense", "dummies"  # generate dummy prototypes


def make_network(config: KeywordsConfig) -> Network:
    """The embedding network of a configuration, for features of one second by FRONT_END."""
    frames, bands = FRONT_END.shape(round(FRONT_END.rate * SECONDS))
    if config.network == "bcresnet":
        return bcresnet((bands, frames, 1), config.width, classes=None)
    if config.network.startswith(_DS_CNN):
        size = SIZES[config.network.removeprefix(_DS_CNN).upper()]
        return ds_cnn((frames, bands, 1), replace(size, filters=round(config.width * size.filters)), classes=None)
    return ds_resnet((frames, bands, 1), config.width, config.size, config.parts)


def add_head(network: Network, config: KeywordsConfig, words: int) -> Loss:
    """Add the layers that the method trains with after the embedding. Returns the loss. `words`: number of classes."""
    if config.method == "classify":
        network.add("classifier", Dense(words))
        return SoftmaxCrossEntropy(config.label_smoothing)
    dummies = config.dummy_prototypes if config.method == "dummy-prototypes" else 0
    if dummies:
        add_dummies(network, dummies)
    return Prototypical(
        config.num_classes, config.shots, config.distance, config.scale, dummies, config.dummy_temperature
    )


def add_dummies(network: Network, dummies: int) -> None:
    """Add the layers from which `ops.Prototypical` generates dummy prototypes."""
    embedding, (size,) = network.output.name, network.output.shape
    network.add(DUMMY_LAYERS[0], Dense(size))
    network.add("dummies_relu", ReLU())
    network.add(DUMMY_LAYERS[1], Dense(dummies * size))
    network.add("with_dummies", Concatenate(), embedding, DUMMY_LAYERS[1])


_EPISODES = 35  # keeps this random stream of a seed apart from others
_LARGEST = 32767
_BATCH = 512  # clips whose features are computed together


@dataclass(frozen=True, eq=False)
class Recordings:
    """Clips of one or more data sets in memory.

    Arguments:
    - `clips`: int16 (n, samples).
    - `labels`: int32 (n,); the words of each set are numbered after those of the sets before it.
    - `speakers`: int32 (n,).
    """

    clips: np.ndarray
    labels: np.ndarray
    speakers: np.ndarray

    def __len__(self) -> int:
        return len(self.clips)

    def floats(self, numbers: np.ndarray) -> np.ndarray:
        """Clips by index: float32 (n, samples)."""
        return self.clips[numbers].astype(np.float32) / _LARGEST

    def computed(self, function: Callable[[np.ndarray], np.ndarray], count: int | None = None) -> np.ndarray:
        """What `function` makes of the first `count` clips (default: all), _BATCH or fewer at a time."""
        count = len(self) if count is None else count
        parts = np.array_split(np.arange(count), -(-count // _BATCH))
        return np.concatenate([function(self.floats(part)) for part in parts])

    @property
    def words(self) -> int:
        """Number of words."""
        return int(self.labels.max()) + 1

    @classmethod
    def load(cls, datasets: tuple[ClipDataset, ...], rate: int, seconds: float) -> Recordings:
        """Read the clips of `datasets`, at `rate` and `seconds` long. Raises DataError for one that can't be read."""
        clips, labels, speakers, words = [], [], [], 0
        for number, dataset in enumerate(datasets):
            sound = load_clips(dataset, None, rate, seconds).clip(-1, 1)  # resampling and decoding may exceed 1
            clips.append((sound * _LARGEST).astype(np.int16))
            labels.append(dataset.labels + words)
            speakers += [f"{number} {name}" for name in dataset.speakers.tolist()]
            words += len(dataset.class_names)
        numbers = np.unique(speakers, return_inverse=True)[1].astype(np.int32)
        return cls(np.concatenate(clips), np.concatenate(labels), numbers)

    def with_reversed(self) -> Recordings:
        """A copy with all clips played backwards as well, as words of their own."""
        return Recordings(
            np.concatenate([self.clips, self.clips[:, ::-1]]),
            np.concatenate([self.labels, self.labels + self.words]),
            np.concatenate([self.speakers, self.speakers]),
        )


@dataclass(frozen=True, eq=False)
class ClipSource:
    """A source of augmented examples.

    Arguments:
    - `recordings`: the clips.
    - `examples`: maps clips float32 (n, samples) to inputs of the network.
    - `example_shape`: shape of an input.
    - `augment`: functions of (clips, indices, epoch), applied to the samples; see `data.audio.augment`.
    - `mask`: the same, applied to the features; None for none.
    - `order`: maps an epoch to the clip of each example (default: every clip is one example).
    - `epoch`: current epoch, from 0.
    """

    recordings: Recordings
    examples: Callable[[np.ndarray], np.ndarray]
    example_shape: Shape
    augment: tuple[Callable, ...] = ()
    mask: Callable | None = None
    order: Callable[[int], np.ndarray] | None = None
    epoch: int = 0

    @property
    def shape(self) -> Shape:
        return (len(self), *self.example_shape)

    def __len__(self) -> int:
        return len(self._clips)

    @cached_property
    def _clips(self) -> np.ndarray:
        return np.arange(len(self.recordings)) if self.order is None else self.order(self.epoch)

    @cached_property
    def _inputs(self) -> np.ndarray:
        """Inputs of the network for all clips, if these aren't augmented."""
        return self.recordings.computed(self.examples)

    def at_epoch(self, epoch: int) -> ClipSource:
        """The same source in another epoch."""
        other = replace(self, epoch=epoch)
        if not self.augment:
            other.__dict__["_inputs"] = self._inputs
        return other

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        if self.augment:
            parts = np.array_split(indices, max(1, len(indices) // _TOGETHER))
            x = np.concatenate(list(_pool().map(self._augmented, parts)))
        else:
            x = self._inputs[self._clips[indices]]
        if self.mask is not None:
            x = self.mask(x[..., 0], indices, self.epoch)[..., None]
        return x

    def _augmented(self, indices: np.ndarray) -> np.ndarray:
        clips = self.recordings.floats(self._clips[indices])
        for augment in self.augment:
            clips = augment(clips, indices, self.epoch)
        return self.examples(clips)


_TOGETHER = 16  # clips that a thread augments


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="edgelearn-clips")


def augmentations(config: KeywordsConfig, bands_first: bool) -> tuple[tuple[Callable, ...], Callable | None]:
    """The arguments `augment` and `mask` of ClipSource."""
    clips: list[Callable] = [Speed(config.seed, config.speed)] if config.speed else []
    if config.shift:
        clips.append(Shift(config.seed, config.shift))
    if config.reverberation:
        clips.append(Reverberate(config.seed, config.reverberation))
    if config.noise:
        clips.append(AddNoise(config.seed, synthetic_noises(config.seed), config.noise))
    mask = SpecAugment(config.seed) if config.mask else None
    if mask is None or not bands_first:
        return tuple(clips), mask

    def transposed(x: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        return mask(x.transpose(0, 2, 1), indices, epoch).transpose(0, 2, 1)  # its axes are (frames, bands)

    return tuple(clips), transposed


@dataclass(frozen=True, eq=False)
class EpisodeOrder:
    """Clips of the episodes of an epoch. Speakers are mixed, so that the embedding ignores who speaks.

    Arguments:
    - `recordings`: the clips.
    - `num_classes`: words of an episode; its clips are the support, word after word, then the queries likewise.
    - `shots`, `queries`: clips of each word.
    - `unknown`: append as many queries of other words.
    - `count`: episodes in an epoch.
    - `seed`: seed of the draws.

    Raises DataError if too few words have enough clips.
    """

    recordings: Recordings
    num_classes: int
    shots: int
    queries: int
    unknown: bool
    count: int
    seed: int

    def __post_init__(self) -> None:
        if len(self._by_word) < self.num_classes + self.unknown:
            raise DataError(
                f"{len(self._by_word)} words have {self.shots + self.queries} clips or more: too few for episodes of "
                f"{self.num_classes} words{' and others to reject' if self.unknown else ''}. Ask for fewer classes, "
                f"shots or queries."
            )

    @classmethod
    def of(cls, config: KeywordsConfig, recordings: Recordings) -> EpisodeOrder:
        """Episodes of a configuration, with about as many clips in an epoch as the data has."""
        unknown = config.method == "dummy-prototypes"
        order = cls(recordings, config.num_classes, config.shots, config.queries, unknown, 1, config.seed)
        return replace(order, count=max(1, len(recordings) // order.size))

    @property
    def size(self) -> int:
        return self.num_classes * (self.shots + self.queries * (1 + self.unknown))

    @property
    def labels(self) -> np.ndarray:
        """Labels of an episode for `ops.Prototypical`: int32 (size,)."""
        words = np.arange(self.num_classes, dtype=np.int32)
        unknown = np.full(self.num_classes * self.queries * self.unknown, self.num_classes, np.int32)
        return np.concatenate([np.repeat(words, self.shots), np.repeat(words, self.queries), unknown])

    def __call__(self, epoch: int) -> np.ndarray:
        """Indices of clips: (count * size,)."""
        rng = np.random.default_rng([self.seed, _EPISODES, epoch])
        return np.concatenate([self._episode(rng) for _ in range(self.count)])

    @cached_property
    def _by_word(self) -> list[np.ndarray]:
        """Clips of each word that has enough of them."""
        words = [np.flatnonzero(self.recordings.labels == word) for word in range(self.recordings.words)]
        return [clips for clips in words if len(clips) >= self.shots + self.queries]

    def _episode(self, rng: np.random.Generator) -> np.ndarray:
        words = [self._by_word[number] for number in rng.permutation(len(self._by_word))]
        draws = [rng.permutation(clips)[: self.shots + self.queries] for clips in words[: self.num_classes]]
        parts = [draw[: self.shots] for draw in draws] + [draw[self.shots :] for draw in draws]
        if self.unknown:
            others = words[self.num_classes :]
            parts.append(
                np.array([rng.choice(others[k % len(others)]) for k in range(self.num_classes * self.queries)])
            )
        return np.concatenate(parts)


WEIGHTS = "weights.safetensors"  # of the embedding and of the layers it was trained with
COMMAND = "edgelearn keywords train"


def read_start(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the weights `names` from a file. Raises FormatError if it lacks one."""
    stored = safetensors.read_weights(path)
    if missing := [name for name in names if name not in stored]:
        raise FormatError(
            f"{path} has no {missing[0]!r}, which this embedding has. Give the weights of a run of "
            f"`{COMMAND}` with the same --network."
        )
    return {name: stored[name] for name in names}


WHITENING = "whitening"  # layer


def whitening(embeddings: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """The kernel (d, d) of a layer after which embeddings of one word vary alike in all directions: directions in which
    speakers and takes differ count less (Hatch, Kajarekar and Stolcke 2006, "Within-class covariance normalization for
    SVM-based speaker recognition").

    Arguments:
    - `embeddings`: (n, d), and `labels`: (n,), their words.
    - `share`: of the covariance that is replaced by an even one of the same trace, from 0 to 1.
    """
    x, (words, numbers) = np.asarray(embeddings, np.float64), np.unique(labels, return_inverse=True)
    means = np.stack([x[numbers == word].mean(0) for word in range(len(words))])
    spread = x - means[numbers]
    covariance = spread.T @ spread / len(x)
    even = np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return np.linalg.cholesky(np.linalg.inv((1 - share) * covariance + share * even)).astype(np.float32)


def make_embedder(config: KeywordsConfig, weights: dict[str, np.ndarray]) -> Embedder:
    """An embedder of a trained network, with its layer of whitening and its generator of dummy prototypes, if any, and
    without the classifier of the training words."""
    network = make_network(config)
    if f"{WHITENING}/kernel" in weights:
        network.add(WHITENING, Dense(*network.output.shape, use_bias=False))
    own = {name: weights[name] for name in network.parameters}
    dummies = None
    if config.method == "dummy-prototypes":
        first, second = DUMMY_LAYERS
        dummies = DummyGenerator(
            weights[f"{first}/kernel"], weights[f"{first}/bias"], weights[f"{second}/kernel"],
            weights[f"{second}/bias"], config.distance, config.scale, config.dummy_temperature,
        )  # fmt: skip
    return Embedder(network, own, FRONT_END, SECONDS, None, config.device, dummies)


def read_run(folder: Path) -> tuple[KeywordsConfig, dict]:
    """Read configuration and weights from the folder of a finished run. Raises FormatError for another folder."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise FormatError(
            f"{folder} has no trained network, {WEIGHTS}. Give the folder of a run of `{COMMAND}`; one "
            f"that was interrupted is finished with --resume {folder.name}."
        )
    weights, metadata = safetensors.read_weights(path), safetensors.read_metadata(path)
    if "config" not in metadata:
        raise FormatError(f"{path} has no configuration. Give the folder of a run of `{COMMAND}`.")
    try:
        return KeywordsConfig.from_dict(records.parse(metadata["config"], dict)), weights
    except (records.RecordError, TypeError) as error:
        raise FormatError(f"{path}: its configuration is damaged ({error}). Restore it from a backup.") from None


EPISODES = 50  # of each speaker, with one clip of a word
DUMMY_TEMPERATURES = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0)


def select_dummy_temperature(
    embedder: Embedder, trained: ClipDataset, features: np.ndarray, temperatures: Sequence[float] = DUMMY_TEMPERATURES
) -> DummyPrototypes:
    """Select the temperature by AUROC on the words and speakers that were trained with, by the one-standard-error rule
    (Breiman, Friedman, Olshen and Stone 1984, "Classification and Regression Trees").

    The largest temperature comes closest to prototypes without dummies. The largest whose AUROC is within a standard
    error, over speakers, of the best is selected.

    Arguments:
    - `embedder`: has dummy prototypes.
    - `trained`: clips that it was trained with.
    - `features`: features of these clips (n, frames, bands).
    - `temperatures`: ascending candidates.
    """
    learners = [DummyPrototypes(dummy_temperature) for dummy_temperature in temperatures]
    by_speaker = np.array([
        [evaluator.run(learner, episodes).measures["auroc"].mean for learner in learners]
        for evaluator, episodes in _speakers(embedder, trained, features)
    ])  # fmt: skip
    return learners[one_standard_error([interval(values) for values in by_speaker.T])]


def _speakers(embedder: Embedder, trained: ClipDataset, features: np.ndarray) -> Iterator[tuple[Evaluator, Episodes]]:
    num_classes = min(NUM_CLASSES, len(trained.class_names) - 1)
    for speaker in np.unique(trained.speakers):
        own = trained.speakers == speaker
        yield Evaluator(embedder, features[own]), Episodes(trained.take(own), num_classes, 1, 5, None, "same", EPISODES)


def one_standard_error(results: Sequence[Interval]) -> int:
    """Index of the last result that is at most the best one's standard error below the best."""
    best = max(results, key=lambda each: each.mean)
    error = best.margin / student_t(0.95, best.count - 1)
    return int(np.flatnonzero([each.mean >= best.mean - error for each in results])[-1])


PROTOCOLS = (("same", 1), ("same", 5), ("other", 1), ("other", 5))  # speakers, shots
ANY_PROTOCOLS = (("any", 1), ("any", 10))  # of clips without speakers
NUM_CLASSES = 5


def protocols(config: KeywordsConfig, clips: ClipDataset) -> dict[tuple[str, int], Episodes | DataError]:
    """Test episodes of each of PROTOCOLS (of clips without speakers: ANY_PROTOCOLS), or the error if the clips don't
    suffice."""
    found: dict[tuple[str, int], Episodes | DataError] = {}
    named = np.any(clips.speakers != "")
    for speakers, shots in PROTOCOLS if named else ANY_PROTOCOLS:
        num_classes, queries = min(NUM_CLASSES, len(clips.class_names) - 1), min(5, 10 - shots) if named else 5
        try:
            found[speakers, shots] = Episodes(clips, num_classes, shots, queries, None, speakers, config.episodes)
        except DataError as problem:
            found[speakers, shots] = problem
    return found


def load_keywords(config: KeywordsConfig, clips: TaskData | None = None) -> Training:
    """Load the training of an embedding; its `task` is the clips. `clips`: to train on and to test with (default: those
    of `config.task`)."""
    clips = clips or load_task(config)
    recordings = Recordings.load(clips.train, FRONT_END.rate, SECONDS)
    if config.reversed:
        recordings = recordings.with_reversed()
    network = make_network(config)
    embedding, trainable = tuple(network.parameters), trainable_part(network, config.part)
    loss = add_head(network, config, recordings.words)
    network.freeze(*embedding)
    if not config.frozen:
        network.unfreeze(*trainable)
    weights = network.initialize(config.seed)
    if config.start:
        weights |= read_start(config.start, embedding)
    model = Model(network, weights, config.device, config.seed)
    episodes, labels = None, recordings.labels
    batch_size = min(config.batch_size, len(recordings))
    steps = -(-len(recordings) // batch_size)
    if config.episodic:
        episodes = EpisodeOrder.of(config, recordings)
        labels, batch_size, steps = np.tile(episodes.labels, episodes.count), episodes.size, episodes.count
    steps = max(1, config.epochs * steps)
    rate = CosineDecay(config.learning_rate, steps, warmup_steps=min(100, steps // 10))
    batchnorm = "moving" if config.frozen or config.part != "all" else "batch"
    model.compile(AdamW(rate, weight_decay=config.weight_decay), batchnorm=batchnorm, loss=loss)
    embedder = make_embedder(config, model.weights)
    source = ClipSource(
        recordings, lambda sound: embedder.examples(FRONT_END(sound)), network.input_shape,
        *augmentations(config, embedder.bands_first), episodes,
    )  # fmt: skip
    data = clips.to_dict()
    untested = [
        f"  not tested with {plural(shots, 'clip')} by the {speakers} speaker(s): {problem}"
        for (speakers, shots), problem in protocols(config, clips.test).items()
        if isinstance(problem, DataError)
    ]
    return Training(
        config=config, model=model, train=(source, labels), test=None, epochs=config.epochs, batch_size=batch_size,
        finish=_finish, data=data, sources=[data["description"], *skipped_lines(clips.skipped), *untested],
        settings={"shuffle": episodes is None}, task=clips,
    )  # fmt: skip


def evaluate_embedding(
    training: Training, learners: Sequence[Learner] | None = None, embedder: Embedder | None = None
) -> list[EvaluationReport]:
    """Evaluate learners in the episodes of PROTOCOLS that the test clips suffice for.

    Arguments:
    - `training`: by `load_keywords`; its model's current weights are tested.
    - `learners`: default nearest mean by both distances, and dummy prototypes if the embedder has them.
    - `embedder`: what is tested (default: that of the model's current weights, whitened if the settings say so).
    """
    clips, embedder = training.task, embedder or make_embedder(training.config, _weights(training))
    if learners is None:
        learners = list[Learner]([NearestMean("euclidean"), NearestMean("cosine")])
        if embedder.dummies:
            trained = clips.train[0]
            learners.append(select_dummy_temperature(embedder, trained, load_features(trained, FRONT_END, SECONDS)))
    evaluator = Evaluator(embedder, load_features(clips.test, FRONT_END, SECONDS))
    tests = [each for each in protocols(training.config, clips.test).values() if isinstance(each, Episodes)]
    return [evaluator.run(learner, episodes) for learner in learners for episodes in tests]


def _weights(training: Training) -> dict[str, np.ndarray]:
    """The model's weights, and those of the whitening of its training words, if any."""
    config, weights, recordings = training.config, dict(training.model.weights), training.train[0].recordings
    if config.whitening is None:
        return weights
    embedder, forwards = make_embedder(config, weights), len(recordings) // (2 if config.reversed else 1)
    found = recordings.computed(lambda sound: embedder.embed(FRONT_END(sound)), forwards)
    return weights | {f"{WHITENING}/kernel": whitening(found, recordings.labels[:forwards], config.whitening)}


def _finish(training: Training, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    metadata = {"config": json.dumps(training.config.to_dict()), "data": training.data["description"]}
    weights = _weights(training)
    atomic.write_bytes(run.folder / WEIGHTS, safetensors.to_bytes(weights, metadata))
    reports = evaluate_embedding(training, embedder=make_embedder(training.config, weights))
    figures.plot_learning_curves(run.history(), run.folder / "curves.png")
    results = {
        "reports": [report.to_dict() for report in reports], "seconds": seconds, "epochs": training.epochs,
        "memory": training.memory(),
    }  # fmt: skip
    return results, str(to_table(reports)) if reports else ""


def _presets() -> dict[str, KeywordsConfig]:
    return {name: KeywordsConfig(name) for name in sorted(TASKS, reverse=True)}


KeywordsExperiment = Experiment("keywords", KeywordsConfig, load_keywords, command=COMMAND, presets=_presets)


IN_DATA = Path("weights") / "bcresnet1_speech_commands.npz"  # under the data folder
PEOPLE_NAME = "people"
OWN: dict[str, tuple[Callable[[str | Device | None], Embedder], str]] = {  # the package's, by name
    PEOPLE_NAME: (people_embedder, "of words, trained on recordings of people who spoke Arabic and English."),
    "speakers": (speaker_embedder, "of speakers, trained on recordings of people who spoke Arabic and English."),
    "sample": (sample_embedder, "small DS-CNN, trained on synthesised words. It has never heard a human voice."),
}


def find_embedder(
    network: str | None = None, data: str | None = None, device: str | Device | None = None
) -> tuple[Embedder, str]:
    """Returns an embedder, and a sentence on where it comes from.

    Arguments:
    - `network`: "people", "speakers" or "sample", for the package's; the folder of a run of `edgelearn keywords
      train`; or a file: an embedder (`keywords.files`) or a BC-ResNet-1 trained in PyTorch (.npz). Default: the
      BC-ResNet-1 in `data`, else "people".
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `device`: part of a device's name (default: chosen).

    Raises FormatError for another file or folder, DataError for a data folder that doesn't exist.
    """
    folder = data_folder(data)
    if folder and not Path(folder).is_dir():
        raise DataError(
            f"There is no folder {folder}, which --data or EDGELEARN_DATA names. Name one that exists, or none."
        )
    if network is None and folder and (Path(folder) / IN_DATA).is_file():
        network = str(Path(folder) / IN_DATA)
    if network is None or network in OWN:
        load, where = OWN[network or PEOPLE_NAME]
        return load(device), f"Network: the package's {where}"
    if Path(network).is_dir():
        config, weights = read_run(Path(network))
        return make_embedder(replace(config, device=device), weights), f"Network: that of the run {Path(network).name}."
    if Path(network).suffix != ".npz":
        return load_embedder(network, device), f"Network: {network}."
    built = bcresnet(classes=None)
    weights = state_dict.read_bcresnet(network, built, skip=("classifier",))
    return Embedder(built, weights, device=device), f"Network: BC-ResNet-1 of {network}, without its classifier."
