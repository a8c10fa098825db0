"""Words of one's own: enrolling, the threshold, noise, a long recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from IPython.display import Audio

from edgelearn.data.audio import load_clips
from edgelearn.data.draws import AddNoise, synthetic_noises
from edgelearn.data.speech_commands import load_named
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.data.tfds import data_folder
from edgelearn.display import plural
from edgelearn.experiments.keywords import Episodes
from edgelearn.experiments.keywords.embedding import PEOPLE_NAME, find_embedder
from edgelearn.experiments.keywords.episodes import ARABIC, evaluate
from edgelearn.experiments.keywords.people import ARABIC_TEST, ARABIC_TEST_SPEAKERS
from edgelearn.experiments.keywords.streaming import LongRecording, sweep
from edgelearn.keywords import Scores, ScoreStream, SpeakerListener, Trigger, Vocabulary, windows
from edgelearn.keywords.learners import NearestMean
from edgelearn.tables import Table
from edgelearn.widgets.keywords import Enrolment, KeywordsView, plot_det, plot_embeddings, plot_stream
from edgelearn.widgets.pictures import Waiting

from .shown import Shown

RATE = 16_000  # samples a second
_SHOWN = 30  # seconds of a long recording
_NOISES = {"as recorded": None, "noise at 5 dB": 5, "noise at −5 dB": -5}


def _has(part: str | Path) -> bool:
    """True if the folder of the data has `part`."""
    return (Path(data_folder() or "") / part).exists()


class Keywords(Shown):
    """Words that a user enrols: one of the speakers says `words`; other words, and the same by other people, must be
    ignored. The network has heard neither the speaker nor the words, of people's the first eight.

    Arguments:
    - `count`: number of words (default 4).
    - `clips`: of each word to enrol (default 3).
    """

    def __init__(self, count: int = 4, clips: int = 3) -> None:
        real = _has(ARABIC)
        self.dataset = dataset = load_named(ARABIC) if real else embedded_words(speakers=4, takes=8)
        self.embedder, where = find_embedder(PEOPLE_NAME)
        user = ARABIC_TEST_SPEAKERS[0] if real else sorted(set(dataset.speakers.tolist()))[0]
        words = sorted(dataset.class_names, key=lambda word: real and word not in ARABIC_TEST)
        self.words, self.enrolled = tuple(words[:count]), clips
        self.mine = dataset.take(dataset.speakers == user)
        others = dataset.take(dataset.speakers != user).only(words[count:])
        others = others.take(np.arange(0, len(others) // 2, max(1, len(others) // 500)))
        with Waiting("Extracting features"):
            self.enrolment = Enrolment(self.embedder, others)
            for word in self.words:
                of_word = self.mine.only([word])
                self.enrolment.enrol(word, [of_word.recording(i) for i in range(clips)])
        rows = [("clips", dataset.description), ("network", where.removeprefix("Network: ")), ("user", str(user)),
                ("enrolled", ", ".join(f"{word} ({plural(clips, 'clip')})" for word in self.words))]  # fmt: skip
        super().__init__(
            f"{plural(len(self.words), 'word')} of {user}", Table((), rows), Audio(self.mine.clip(0), rate=RATE)
        )

    def map(self) -> Shown:
        """The plane in which the words' clips differ most; grey points are other words by other people."""
        return Shown("Map of the words", plot_embeddings(*self.enrolment.map()))

    def threshold(self) -> Shown:
        """The threshold: false accepts and false rejects."""
        enrolment = self.enrolment
        accepted, rejected = enrolment.rates()
        known = plural(len(enrolment.known), "enrolled clip")
        table = Table((), [
            ("threshold", f"{enrolment.threshold:.3f}"),
            ("false accepts", f"{accepted:.1%} of {plural(len(enrolment.unknown), 'clip')} of other words"),
            ("false rejects", f"{rejected:.1%} of {known}, each scored without itself"),
        ])  # fmt: skip
        figure = plot_det(enrolment.known, enrolment.unknown, enrolment.threshold)
        return Shown(f"threshold {enrolment.threshold:.3f}", figure, table)

    def episodes(self, count: int = 100, shots: tuple[int, ...] = (1, 3)) -> Table:
        """How many clips a word needs, and how much noise harms: episodes of five words to recognise and five to
        reject."""
        speakers = sorted(set(self.dataset.speakers.tolist()))[:4]
        some = self.dataset.take(np.isin(self.dataset.speakers, speakers))
        clips, rows = load_clips(some), []
        with Waiting("Scoring episodes") as say:
            for name, decibels in _NOISES.items():
                say(f"Scoring episodes, {name}")
                noise = AddNoise(0, synthetic_noises(), 1.0, decibels or 0, decibels or 0)
                heard = clips if decibels is None else noise(clips, np.arange(len(clips)), 0)
                features = self.embedder.features(heard)
                for each in shots:
                    drawn = Episodes(some, num_classes=5, shots=each, queries=4, speakers="same", count=count)
                    found = evaluate(NearestMean(), self.embedder, features, drawn).measures
                    rows.append((name, each, found["accuracy"], found["auroc"], found["false_rejects"]))
        return Table(("", "clips a word", "accuracy", "AUROC", "rejected at 5 % false accepts"), rows)

    def recording(self) -> Shown:
        """Detections in a long recording of the user's other clips, with pauses and noise, and what other thresholds
        would give."""
        mine, words, threshold = self.mine, self.words, self.enrolment.threshold
        rest = [
            np.flatnonzero(mine.words == word)[self.enrolled : None if word in words else self.enrolled + 2]
            for word in mine.class_names
        ]
        with Waiting("Listening"):
            heard = LongRecording(mine.take(np.concatenate(rest)), words, seed=0)
            stream = ScoreStream(self.enrolment.require().spotter, batch=16)
            scores = Scores.join([*(stream.push(piece) for piece in heard), stream.finish()])
            found = Trigger(words, threshold).push(scores)
            levels = sorted([threshold, *np.quantile(scores.known, (0.8, 0.9, 0.95, 0.98))])
            reports = sweep(scores, words, heard.timeline, heard.seconds, levels)
        early = scores.times < _SHOWN
        figure = plot_stream(
            Scores(scores.times[early], scores.words[early], scores.known[early]), threshold,
            [each for each in found if each.time < _SHOWN], [said for said in heard.timeline if said.end < _SHOWN],
        )  # fmt: skip
        rows = [
            (f"{level:.3f}", f"{each.hit_rate:.0%}", f"{each.false_alarms_per_hour:.0f}", f"{each.delay:.2f} s")
            for level, each in zip(levels, reports, strict=True)
        ]
        header = ("threshold", "detected", "false alarms an hour", "after the word's end")
        return Shown(f"{plural(len(found), 'detection')} in {heard.seconds:.0f} s", figure, Table(header, rows))

    def view(self) -> KeywordsView:
        """A view to enrol one's own words with a microphone or files."""
        return KeywordsView(self.enrolment)


def keywords(words: int = 4, clips: int = 3) -> Keywords:
    """Enrol `words` words of one speaker, from `clips` clips each. Without data the clips are synthesised."""
    return Keywords(words, clips)


class Speakers(Shown):
    """Who is speaking: each of some speakers is enrolled from a few seconds, and then told from the others.

    Arguments:
    - `count`: number of speakers (default 5).
    - `seconds`: of each to enrol (default 10).
    """

    def __init__(self, count: int = 5, seconds: int = 10) -> None:
        real = _has(ARABIC)
        dataset = load_named(ARABIC) if real else embedded_words(speakers=count, takes=2)
        names = ARABIC_TEST_SPEAKERS if real else sorted(set(dataset.speakers.tolist()))
        self.embedder, where = find_embedder("speakers")
        self.speakers, self.said = Vocabulary.empty(self.embedder), {}
        rng = np.random.default_rng(0)
        for name in names[:count]:
            clips = load_clips(dataset, rng.permutation(np.flatnonzero(dataset.speakers == name))[: seconds + _SAID])
            self.speakers = self.speakers.add(name, windows(clips[:seconds].ravel(), self.embedder))
            self.said[name] = clips[seconds:]
        rows = [("clips", dataset.description), ("network", where.removeprefix("Network: ")),
                ("enrolled", str(self.speakers).replace("clips", "windows"))]  # fmt: skip
        super().__init__(plural(count, "speaker"), Table((), rows))

    def listen(self, told: int = 0) -> Table:
        """Name who says each second of the speakers' other clips, which come in turn. In the first `told` rounds it
        is said who it was, right or wrong, and learned."""
        listener, rows = SpeakerListener(self.embedder, self.speakers, hop=1.0), []
        for turn, clips in enumerate(zip(*self.said.values(), strict=True)):
            for name, clip in zip(self.said, clips, strict=True):
                listener.reset()
                window = listener.push(np.append(clip, clip[: RATE // 10]))[0]
                rows.append((turn, name, window.speaker))
                if turn < told:
                    listener.learn(name)
        tested = [row for row in rows if row[0] >= _SAID // 2]
        return Table(("speaker", "windows", "right"), [
            (name, sum(each[1] == name for each in tested), sum(each[1] == each[2] == name for each in tested))
            for name in self.said
        ])  # fmt: skip


_SAID = 30  # other seconds of a speaker


def speakers(count: int = 5, seconds: int = 10) -> Speakers:
    """Enrol `count` speakers from `seconds` of each. Without data they are synthesised."""
    return Speakers(count, seconds)
