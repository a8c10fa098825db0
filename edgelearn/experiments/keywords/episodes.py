"""Few-shot evaluation: splits of words and speakers, episodes, metrics, and learners tested in episodes.

An episode has a few clips of each word to enrol, others to classify, and unknown words to reject. It depends on (seed,
number) alone: all methods are compared on the same episodes. The known score of a clip is higher the more certain a
method is that the clip is one of its words. Clips at or above a threshold are accepted. A *false accept* is an unknown
clip that is accepted, a *false reject* a clip of a known word that isn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha1

import numpy as np

from edgelearn.data.audio import ClipDataset
from edgelearn.errors import DataError
from edgelearn.keywords.learners import Embedder, Learner
from edgelearn.statistics import Interval, interval
from edgelearn.tables import Table

ARABIC, ENGLISH = "arabic_speech_commands", "speech_commands_v0.02_test"  # names of data sets
_WORDS, _SPEAKERS = 30, 31  # keep these random streams of a seed apart from others


class LeakError(DataError):
    """A tested word or speaker is in the training set, too."""


@dataclass(frozen=True)
class Split:
    """Clips to `train` with, and clips of other words, other speakers, or both, to `test` with."""

    train: ClipDataset
    test: ClipDataset


def hold_out(
    dataset: ClipDataset,
    words: int | Sequence[str] = 0,
    speakers: int | Sequence[str] = 0,
    seed: int = 0,
) -> Split:
    """Test with held-out words by held-out speakers, train without both.

    Clips of a held-out word by another speaker, or the other way round, are not used.

    Arguments:
    - `dataset`: the clips.
    - `words`: names, or a number to be drawn; 0 leaves every word in both parts (default).
    - `speakers`: names, or a number to be drawn; 0 leaves every speaker in both parts (default).
    - `seed`: seed of the draws.

    Raises DataError for a missing word or speaker, a number that leaves nothing to train or to test with, or clips
    without a speaker.
    """
    train, test = np.ones(len(dataset), bool), np.ones(len(dataset), bool)
    for chosen, values, what, stream in (
        (words, dataset.words, "words", _WORDS),
        (speakers, dataset.speakers, "speakers", _SPEAKERS),
    ):
        if not chosen:
            continue
        if what == "speakers":
            require_speakers(dataset)
        held = np.isin(values, _choose(chosen, np.unique(values), what, dataset.name, [seed, stream]))
        train, test = train & ~held, test & held
    if not train.any() or not test.any():
        left = "test" if train.any() else "train"
        raise DataError(f"{dataset.name} has no clips left to {left} with. Hold out other words or speakers.")
    split = Split(_with_own_words(dataset.take(train)), _with_own_words(dataset.take(test)))
    check_disjoint(split.train, split.test, words=bool(words), speakers=bool(speakers))
    return split


def check_disjoint(train: ClipDataset, test: ClipDataset, words: bool = True, speakers: bool = True) -> None:
    """Raise LeakError if a word (unless `words` is False) or a speaker (unless `speakers` is False) is in both parts,
    and DataError if clips have no speaker."""
    if words and (both := np.intersect1d(train.words, test.words)).size:
        raise LeakError(f"Tested words were trained on: {_some(both)}. Split the words again.")
    if speakers:
        require_speakers(train)
        require_speakers(test)
        if (both := np.intersect1d(train.speakers, test.speakers)).size:
            raise LeakError(f"Tested speakers were trained on: {_some(both)}. Split the speakers again.")


@dataclass(frozen=True)
class WordSplit:
    """Words to `train`, to `test` and for `validation`, and words that are always `unknown`. Raises LeakError if these
    overlap."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __post_init__(self):
        words = [*self.train, *self.validation, *self.test, *self.unknown]
        if twice := sorted({word for word in words if words.count(word) > 1}):
            raise LeakError(f"Words are in more than one part of the split: {_some(twice)}. Leave each in one.")


_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
_OTHERS = ("cat", "tree", "house", "bird", "visual", "backward", "follow", "forward", "learn", "sheila")
_UNKNOWN = ("bed", "dog", "happy", "marvin", "wow")

# Published splits of Speech Commands' 35 words: Chen et al. 2020, "An Investigation of Few-Shot Learning in Spoken Term
# Classification", arXiv:1812.10233; and the tasks for meta-training, -validation and -testing in the code of Rusci and
# Tuytelaars 2023, "Few-Shot Open-Set Learning for On-Device Customization of KeyWord Spotting Systems",
# arXiv:2306.02161 (github.com/mrusci/ondevice-learning-kws, KWSFSL/data/GSCSpeechData.py: GSC10, GSC5, GSC12). Theirs
# have the sizes of splitGSC (Kim et al. 2022), whose own lists could not be obtained.
WORD_SPLITS = {
    "chen2020-commands": WordSplit(train=(*_DIGITS, *_OTHERS), test=_COMMANDS, unknown=_UNKNOWN),
    "chen2020-digits": WordSplit(train=(*_COMMANDS, *_OTHERS), test=_DIGITS, unknown=_UNKNOWN),
    "rusci2023": WordSplit(
        train=(*_DIGITS, "bed", "bird", "cat", "dog", "tree"),
        validation=("happy", "house", "marvin", "sheila", "wow"),
        test=_COMMANDS,
        unknown=("backward", "follow", "forward", "learn", "visual"),
    ),
}


def _choose(chosen: int | Sequence[str], available: np.ndarray, what: str, name: str, seed: list[int]) -> np.ndarray:
    if not isinstance(chosen, int):
        if missing := sorted(set(chosen) - set(available.tolist())):
            raise DataError(f"{name} doesn't have the {what} {_some(missing)}. It has {_some(available, 40)}.")
        return np.asarray(list(chosen))
    if not 0 < chosen < len(available):
        raise DataError(f"{name} has {len(available)} {what}: 1 to {len(available) - 1} can be held out, not {chosen}.")
    return np.random.default_rng(seed).permutation(available)[:chosen]


def require_speakers(dataset: ClipDataset) -> None:
    """Raise DataError if clips have no speaker."""
    unknown = np.count_nonzero(dataset.speakers == "")
    if unknown:
        raise DataError(
            f"{unknown:,} clips of {dataset.name} have no speaker, so speakers can't be kept apart. Name files "
            f"<speaker>_nohash_<n>, or leave those clips out."
        )


def _with_own_words(dataset: ClipDataset) -> ClipDataset:
    words = set(dataset.words.tolist())
    return dataset.only([word for word in dataset.class_names if word in words])


def _some(values, limit: int = 5) -> str:
    values = list(values)
    return ", ".join(values[:limit]) + (f" and {len(values) - limit} more" if len(values) > limit else "")


PARTS = ("training", "validation", "testing")
_HASHES = 2**27 - 1


def which_set(speaker: str, validation: float = 10, testing: float = 10) -> str:
    """The part of a speaker, one of PARTS. `validation`, `testing`: percentages (default 10 each)."""
    percentage = int(sha1(speaker.encode()).hexdigest(), 16) % (_HASHES + 1) * (100 / _HASHES)
    if percentage < validation:
        return "validation"
    return "testing" if percentage < validation + testing else "training"


def part_of(dataset: ClipDataset, part: str, words: Sequence[str] | None = None) -> ClipDataset:
    """The clips by the speakers of a part.

    Arguments:
    - `dataset`: the clips.
    - `part`: one of PARTS.
    - `words`: names of the words to keep (default: all).

    Raises DataError for another part, a missing word, or clips without a speaker.
    """
    if part not in PARTS:
        raise DataError(f"There is no part {part!r}. Parts are {', '.join(PARTS)}.")
    require_speakers(dataset)
    names, which = np.unique(dataset.speakers, return_inverse=True)
    inside = np.array([which_set(name) == part for name in names.tolist()])
    some = dataset.take(inside[which])
    return some if words is None else some.only(words)


_STREAM = 34  # keeps this random stream of a seed apart from others
SPEAKERS = ("same", "other", "any")


@dataclass(frozen=True, eq=False)
class Episode:
    """Indices of clips in a data set.

    Arguments:
    - `words`: names of the labels 0..N-1.
    - `support`: clips to enrol, a row for each word (N, K).
    - `query`: clips to classify, a row for each word (N, Q).
    - `unknown`: clips to reject, a row for each of M other words (M, Q).
    - `unlabelled`: more clips of the words by the tested speakers, without labels (N, U).

    Raises LeakError if a clip is in two of them.
    """

    words: tuple[str, ...]
    support: np.ndarray
    query: np.ndarray
    unknown: np.ndarray
    unlabelled: np.ndarray

    def __post_init__(self):
        parts = self.support, self.query, self.unknown, self.unlabelled
        used = np.concatenate([clips.ravel() for clips in parts])
        if len(np.unique(used)) < len(used):
            raise LeakError("A clip is in the episode twice: a tested clip may have been enrolled. Draw another.")

    @property
    def support_labels(self) -> np.ndarray:
        """int32 (N · K,), the labels of support.ravel()."""
        return _labels(self.support)

    @property
    def query_labels(self) -> np.ndarray:
        """int32 (N · Q,), the labels of query.ravel()."""
        return _labels(self.query)


def _labels(rows: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(rows), dtype=np.int32), rows.shape[1])


class Episodes:
    """A sequence of N-way K-shot episodes.

    Arguments:
    - `dataset`: the clips.
    - `num_classes`: words of an episode, N (default 5).
    - `shots`: clips of each to enrol, K (default 1).
    - `queries`: clips of each word, and of each unknown word, to classify (default 5).
    - `unknown`: number of other words to reject (default: as many as there are, at most `num_classes`).
    - `speakers`: `"same"`, one speaker is enrolled and tested, as on a user's own device (default); `"other"`, one
      speaker is tested who is not among those enrolled; `"any"`, speakers are mixed.
    - `count`: number of episodes (default 600).
    - `seed`: seed of the draws. Other `shots` with the same seed keep the tested clips, if the same speakers have
      enough.
    - `unlabelled`: more clips of each word without labels (default 0).
    - `unknown_words`: words that are never enrolled; they alone are rejected, as in published splits
      (`splits.WORD_SPLITS`; default: the words that an episode doesn't enrol).

    Raises DataError if the clips don't suffice for such episodes, or (except for "any") have no speaker.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        num_classes: int = 5,
        shots: int = 1,
        queries: int = 5,
        unknown: int | None = None,
        speakers: str = "same",
        count: int = 600,
        seed: int = 0,
        unlabelled: int = 0,
        unknown_words: Sequence[str] = (),
    ):
        if min(num_classes, shots, queries, count) < 1 or min(unlabelled, seed) < 0 or speakers not in SPEAKERS:
            raise DataError(
                f"num_classes, shots, queries and count must be at least 1, unlabelled and seed at least 0 and "
                f"speakers one of {', '.join(SPEAKERS)}; got {num_classes}, {shots}, {queries}, {count}, {unlabelled}, "
                f"{seed} and {speakers!r}."
            )
        if missing := sorted(set(unknown_words) - set(dataset.class_names)):
            raise DataError(f"{dataset.name} has no word {missing[0]!r} to reject. Leave it out.")
        reserved = np.array([word in unknown_words for word in dataset.class_names])
        self._may_enrol, self._may_reject = ~reserved, reserved if reserved.any() else ~reserved
        self._shared = 0 if reserved.any() else num_classes  # enrolled words among those that may be rejected
        learnable, left = int(self._may_enrol.sum()), int(self._may_reject.sum()) - self._shared
        unknown = min(num_classes, left) if unknown is None else unknown
        if unknown < 0 or num_classes > learnable or unknown > left:
            raise DataError(
                f"{dataset.name} has {len(dataset.class_names)} words, too few for {num_classes} to enrol and "
                f"{max(unknown, 0)} to reject. Ask for fewer."
            )
        if speakers != "any":
            require_speakers(dataset)
        self.dataset, self.num_classes, self.shots, self.queries, self.unknown = (
            dataset,
            num_classes,
            shots,
            queries,
            unknown,
        )
        self.speakers, self.count, self.seed, self.unlabelled = speakers, count, seed, unlabelled
        self.unknown_words = tuple(unknown_words)
        self._clips, self._counts = _by_speaker_and_word(dataset, merge=speakers == "any")
        self._eligible = [speaker for speaker in range(len(self._clips)) if self._is_eligible(speaker)]
        if not self._eligible:
            whose = "" if speakers == "any" else "a single speaker of "
            raise DataError(
                f"The clips of {whose}{dataset.name} don't suffice for {num_classes} words with {shots} to enrol and "
                f"{queries} to classify, and {unknown} words to reject. Ask for fewer."
            )

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Episode]:
        return (self[number] for number in range(self.count))

    def __getitem__(self, number: int) -> Episode:
        if not 0 <= number < self.count:
            raise IndexError(number)
        rng = np.random.default_rng([self.seed, _STREAM, number])
        speaker = self._eligible[rng.integers(len(self._eligible))]
        known, rejectable = self._words(speaker)
        known = rng.permutation(known)[: self.num_classes]
        other = rng.permutation(np.setdiff1d(rejectable, known))[: self.unknown]
        clips = self._clips[speaker]
        draws = [rng.permutation(clips[word]) for word in known]
        query = [draw[: self.queries] for draw in draws]
        rejected = [rng.permutation(clips[word])[: self.queries] for word in other]
        if self.speakers == "other":
            support = [self._by_others(word, speaker, rng) for word in known]
        else:
            support = [draw[self.queries : self.queries + self.shots] for draw in draws]
        own_shots = 0 if self.speakers == "other" else self.shots
        unlabelled = [draw[self.queries + own_shots :][: self.unlabelled] for draw in draws]
        return Episode(
            words=tuple(self.dataset.class_names[word] for word in known),
            support=np.array(support),
            query=np.array(query),
            unknown=np.array(rejected, int).reshape(self.unknown, self.queries),
            unlabelled=np.array(unlabelled, int).reshape(self.num_classes, self.unlabelled),
        )

    def _words(self, speaker: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of which a speaker has enough clips to be enrolled and tested, and to be rejected."""
        counts = self._counts[speaker]
        if self.speakers == "other":
            enough = (counts >= self.queries + self.unlabelled) & (self._counts.sum(0) - counts >= self.shots)
        else:
            enough = counts >= self.queries + self.shots + self.unlabelled
        return np.flatnonzero(enough & self._may_enrol), np.flatnonzero((counts >= self.queries) & self._may_reject)

    def _is_eligible(self, speaker: int) -> bool:
        known, rejectable = self._words(speaker)
        return len(known) >= self.num_classes and len(rejectable) >= self._shared + self.unknown

    def _by_others(self, word: int, speaker: int, rng: np.random.Generator) -> list[int]:
        """Clips by as many other speakers as possible: a speaker's second clip comes after everybody's first."""
        others = np.setdiff1d(np.flatnonzero(self._counts[:, word]), [speaker])
        draws = [rng.permutation(self._clips[other][word]) for other in rng.permutation(others)[: self.shots]]
        order = [draw[turn] for turn in range(max(map(len, draws))) for draw in draws if turn < len(draw)]
        return order[: self.shots]


def _by_speaker_and_word(dataset: ClipDataset, merge: bool) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """Indices of the clips of every word by each speaker (all speakers as one, if `merge`), and their counts
    (speakers, words)."""
    names, speaker = np.unique(dataset.speakers, return_inverse=True)
    speakers, words = 1 if merge else len(names), len(dataset.class_names)
    cell = dataset.labels if merge else speaker * words + dataset.labels
    counts = np.bincount(cell, minlength=speakers * words)
    pieces = np.split(np.argsort(cell, kind="stable"), np.cumsum(counts)[:-1])
    return [pieces[k * words : (k + 1) * words] for k in range(speakers)], counts.reshape(speakers, words)


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of `predicted` (n,) that equals `labels` (n,)."""
    return float(np.mean(np.asarray(predicted) == np.asarray(labels)))


def auroc(known: np.ndarray, unknown: np.ndarray) -> float:
    """Area under the ROC curve: how often a known clip's score is above an unknown one's, ties counting half."""
    known, unknown = _scores(known, unknown)
    ordered = np.sort(unknown)
    below = np.searchsorted(ordered, known, "left") + np.searchsorted(ordered, known, "right")
    return float(below.mean() / 2 / len(unknown))


def det_curve(known: np.ndarray, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Detection error trade-off (Martin et al. 1997): thresholds, false-accept rates and false-reject rates.

    Thresholds ascend through every distinct score; the last, infinity, accepts nothing. Raises DataError without scores
    of either kind, or for NaN.
    """
    known, unknown = _scores(known, unknown)
    thresholds = np.append(np.unique(np.concatenate([known, unknown])), np.inf)
    accepted = (len(unknown) - np.searchsorted(np.sort(unknown), thresholds, "left")) / len(unknown)
    rejected = np.searchsorted(np.sort(known), thresholds, "left") / len(known)
    return thresholds, accepted, rejected


def equal_error_rate(known: np.ndarray, unknown: np.ndarray) -> float:
    """Rate at which false accepts and false rejects are equal, interpolated between the two thresholds where the curves
    cross."""
    _, accepted, rejected = det_curve(known, unknown)
    gap = accepted - rejected  # from 1 down to -1
    after = int(np.argmax(gap <= 0))
    share = gap[after - 1] / (gap[after - 1] - gap[after])
    return float(rejected[after - 1] + share * (rejected[after] - rejected[after - 1]))


@dataclass(frozen=True)
class OpenSet:
    """Open-set metrics.

    Arguments:
    - `accuracy`: accuracy on known clips if nothing is rejected.
    - `auroc`, `equal_error_rate`: measures of known against unknown clips.
    - `false_accepts`: rate at `threshold`, the lowest whose rate is within the limit.
    - `false_rejects`: share of known clips that `threshold` rejects.
    - `accepted_accuracy`: share of known clips that it accepts and that are classified correctly.
    """

    accuracy: float
    auroc: float
    equal_error_rate: float
    false_accepts: float
    threshold: float
    false_rejects: float
    accepted_accuracy: float


def open_set(
    predicted: np.ndarray, labels: np.ndarray, known: np.ndarray, unknown: np.ndarray, false_accepts: float = 0.05
) -> OpenSet:
    """Compute all open-set metrics.

    Arguments:
    - `predicted`, `labels`, `known`: predictions, labels and known scores of n clips of known words.
    - `unknown`: known scores of m clips of unknown words.
    - `false_accepts`: limit of the false-accept rate (default 0.05).
    """
    known = np.asarray(known, np.float64)
    right = np.asarray(predicted) == np.asarray(labels)
    thresholds, accepted, rejected = det_curve(known, unknown)
    at = int(np.argmax(accepted <= false_accepts))
    return OpenSet(
        accuracy=float(right.mean()),
        auroc=auroc(known, unknown),
        equal_error_rate=equal_error_rate(known, unknown),
        false_accepts=float(accepted[at]),
        threshold=float(thresholds[at]),
        false_rejects=float(rejected[at]),
        accepted_accuracy=float(np.mean(right & (known >= thresholds[at]))),
    )


def _scores(known: np.ndarray, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known, unknown = np.asarray(known, np.float64), np.asarray(unknown, np.float64)
    if not known.size or not unknown.size or np.isnan(known).any() or np.isnan(unknown).any():
        raise DataError(
            f"Rates need scores of known and of unknown clips without NaN: got {known.size} and {unknown.size} scores."
        )
    return known, unknown


MEASURES = tuple(field.name for field in fields(OpenSet) if field.name not in ("threshold", "false_accepts"))


@dataclass(frozen=True, eq=False)
class EvaluationReport:
    """Results of a learner.

    Arguments:
    - `learner`, `episodes`: what was evaluated.
    - `measures`: an Interval for each of MEASURES (see `metrics.OpenSet`; rates at 5 % false accepts).
    - `known`, `unknown`: known scores of all clips of known and of unknown words, for a DET curve.
    """

    learner: Learner
    episodes: Episodes
    measures: dict[str, Interval]
    known: np.ndarray
    unknown: np.ndarray

    def to_dict(self) -> dict:
        names = "num_classes", "shots", "queries", "unknown", "unknown_words", "unlabelled", "speakers", "seed"
        settings = {name: getattr(self.episodes, name) for name in names}
        measures = {name: asdict(value) for name, value in self.measures.items()}
        return self.learner.to_dict() | settings | {"episodes": len(self.episodes), "measures": measures}


def evaluate(learner: Learner, embedder: Embedder, features: np.ndarray, episodes: Episodes) -> EvaluationReport:
    """Evaluate one learner: see `Evaluator`."""
    return Evaluator(embedder, features).run(learner, episodes)


class Evaluator:
    """Evaluates learners in episodes of one set of clips.

    Each clip is embedded once; learners that train the network embed the clips of each episode again.

    Arguments:
    - `embedder`: what learners start from.
    - `features`: features of all clips of the episodes' data set (n, frames, bands).
    """

    def __init__(self, embedder: Embedder, features: np.ndarray) -> None:
        self.embedder, self.features = embedder, features
        self.embeddings = embedder.embed(features)

    def run(self, learner: Learner, episodes: Episodes) -> EvaluationReport:
        """Enrol and test in each episode. Raises DataError for episodes without unknown words, or of other clips."""
        if not episodes.unknown:
            raise DataError(
                f"{episodes.dataset.name} has no unknown words in addition to {episodes.num_classes} to enrol. Ask for "
                f"fewer."
            )
        if len(episodes.dataset) != len(self.features):
            raise DataError(
                f"{episodes.dataset.name} has {len(episodes.dataset):,} clips, but there are features of "
                f"{len(self.features):,}. Compute them for these clips."
            )
        results, known, unknown = [], [], []
        for number, episode in enumerate(episodes):
            scores, of_queries, of_unknown = self._episode(learner, episode, number)
            results.append(open_set(scores.argmax(1), episode.query_labels, of_queries, of_unknown))
            known.append(of_queries)
            unknown.append(of_unknown)
        measures = {name: interval(np.array([getattr(each, name) for each in results])) for name in MEASURES}
        return EvaluationReport(learner, episodes, measures, np.concatenate(known), np.concatenate(unknown))

    def _episode(self, learner: Learner, episode: Episode, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores of the queries, and known scores of the queries and of the unknown clips."""
        parts = episode.support, episode.query, episode.unknown, episode.unlabelled
        support, query, unknown, unlabelled = (part.ravel() for part in parts)
        labels = episode.support_labels
        if learner.keeps_embeddings:
            x, num_classes = self.embeddings, len(episode.words)
            classifier = learner.classify(self.embedder, x[support], labels, num_classes, x[unlabelled], seed=number)
            return classifier.scores(x[query]), classifier.known_score(x[query]), classifier.known_score(x[unknown])
        more = self.features[unlabelled] if len(unlabelled) else None
        spotter = learner.enrol(self.embedder, self.features[support], labels, more, seed=number)
        x = spotter.embedder.embed(self.features[np.concatenate([query, unknown])])
        known = spotter.classifier.known_score(x)
        return spotter.classifier.scores(x[: len(query)]), known[: len(query)], known[len(query) :]


def to_table(reports: Sequence[EvaluationReport]) -> Table:
    """A line for each report: means with 95 % intervals."""
    header = ("learner", "classes", "shots", "speaker", "accuracy", "AUROC", "equal error", "rejected*", "right*")
    rows = []
    columns = "accuracy", "auroc", "equal_error_rate", "false_rejects", "accepted_accuracy"
    for report in reports:
        e = report.episodes
        settings = [v["learner"] if isinstance(v, dict) else str(v) for v in report.learner.to_dict().values()]
        measured = (str(report.measures[name]) for name in columns)
        rows.append((", ".join(settings[:2]), e.num_classes, e.shots, e.speakers, *measured))
    counts = " or ".join(sorted({str(len(report.episodes)) for report in reports}))
    note = f"{counts} episodes. *: of known clips, where 5 % of unknown ones are accepted."
    return Table(header, rows, notes=[note])
