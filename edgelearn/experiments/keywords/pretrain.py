"""Make the embedded sample's network: a DS-CNN trained from nothing to tell synthesised words apart.

The file that it writes is in the repository, so this is run again only when the network or the synthesiser change. The
same arguments give the same bits with the same kernels on the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio.augment import AddNoise, Shift, stretch, synthetic_noises
from edgelearn.data.audio.clips import SILENCE, ClipDataset, load_clips
from edgelearn.data.audio.synthetic import WORDS, speak
from edgelearn.experiments.pretraining import parse
from edgelearn.keywords.embedder_file import to_bytes
from edgelearn.ops import AdamW, SoftmaxCrossEntropy
from edgelearn.train import Callback, CosineDecay, History, Model, ProgressBar, VariedSource

from .sample import FRONT_END, SAMPLE, sample_network

EPOCHS, COUNT, SPEAKERS, TAKES, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 25, 80, 24, 4, 64, 5e-3, 0.01
VOICES = 1  # the seed of these speakers; the embedded sample's are those of seed 0, unless one asks for others
_WORDS, _SILENCE = 35, 36  # keep these random streams of a seed apart from others
_VOWELS, _CONSONANTS = "aeiou", "mnlrsxfptk"
_PATTERNS = ("CVCV", "CVCV", "CVC", "VCV", "CVCVC")


def pretraining_words(count: int, seed: int) -> list[str]:
    """`count` made-up words of three to five sounds, none of them in the embedded sample."""
    rng = np.random.default_rng([seed, _WORDS])
    found: list[str] = []
    while len(found) < count:
        pattern = _PATTERNS[rng.integers(len(_PATTERNS))]
        word = "".join(rng.choice(list(_CONSONANTS if sound == "C" else _VOWELS)) for sound in pattern)
        if word not in (*WORDS, *found):
            found.append(word)
    return sorted(found)


def pretraining_clips(words: list[str], speakers: range, takes: int, seed: int) -> ClipDataset:
    """Each of `words` by each of `speakers`, `takes` times, and as many clips of noise as of a word."""
    rng = np.random.default_rng([seed, _SILENCE, speakers.start])
    noises = synthetic_noises(seed + 1)
    spoken = list(product(range(len(words)), speakers, range(takes)))
    silent = len(speakers) * takes
    silence = [_silence(noises[i % len(noises)], rng) for i in range(silent)]
    return ClipDataset(
        name="pretraining_words",
        origin="embedded sample",
        description=f"{len(words)} synthesised words by {len(speakers)} synthesised speakers",
        class_names=(*words, SILENCE),
        labels=[w for w, _, _ in spoken] + [len(words)] * silent,
        speakers=[f"synthesised{s:02d}" for _, s, _ in spoken] + [""] * silent,
        items=[partial(speak, words[w], s, t, VOICES) for w, s, t in spoken] + silence,
    )


def _silence(noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.float32(10 ** rng.uniform(-3, 0)) * stretch(noise, FRONT_END.rate, rng.random())


def pretrain(
    epochs: int = EPOCHS,
    words: int = COUNT,
    speakers: int = SPEAKERS,
    takes: int = TAKES,
    seed: int = 0,
    device: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[dict[str, np.ndarray], History]:
    """Train on `words` words by `speakers` speakers, moved in time and with noise, watched with a quarter as many other
    speakers. Returns the weights below the classifier, and the history."""
    names = pretraining_words(words, seed)
    heard = pretraining_clips(names, range(speakers), takes, seed)
    held_out = pretraining_clips(names, range(speakers, speakers + -(-speakers // 4)), 1, seed)
    shift, noise = Shift(seed), AddNoise(seed, synthetic_noises(seed))

    def vary(clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        return noise(shift(clips.astype(np.float32), indices, epoch), indices, epoch)

    network = sample_network(len(heard.class_names))
    model = Model(network, device=device, seed=seed)
    steps = epochs * -(-len(heard) // BATCH_SIZE)
    rate = CosineDecay(LEARNING_RATE, steps - steps // 10, warmup_steps=steps // 10)
    model.compile(AdamW(rate, WEIGHT_DECAY), SoftmaxCrossEntropy(label_smoothing=0.1), batchnorm="batch")
    train = _Clips(load_clips(heard).astype(np.float16), vary, _examples)
    test = _examples(load_clips(held_out))
    history = model.fit(
        train, heard.labels, BATCH_SIZE, epochs, validation_data=(test, held_out.labels), callbacks=callbacks
    )
    weights = {name: array for name, array in model.weights.items() if not name.startswith("classifier/")}
    return weights, history


class _Clips(VariedSource):
    """Clips (n, samples) whose examples are features."""

    def __init__(self, clips, vary, preprocess, epoch=0) -> None:
        super().__init__(clips, vary, preprocess, epoch)
        self.shape = (len(clips), *FRONT_END.shape(clips.shape[1]), 1)

    def at_epoch(self, epoch: int) -> _Clips:
        return _Clips(self.pictures, self.vary, self.preprocess, epoch)


def _examples(clips: np.ndarray) -> np.ndarray:
    """Clips (n, samples) as the network takes them: (n, frames, bands, 1)."""
    return FRONT_END(clips)[..., None]


def main(arguments: Sequence[str] | None = None) -> None:
    counts = {
        "epochs": (EPOCHS, ""),
        "words": (COUNT, ""),
        "speakers": (SPEAKERS, ""),
        "takes": (TAKES, "clips of each word by each speaker"),
    }
    asked = parse("python -m edgelearn.experiments.keywords.pretrain", __doc__, counts, SAMPLE, arguments)
    weights, history = pretrain(**asked.settings, callbacks=[ProgressBar()])
    metadata = {
        "command": asked.command,
        "seed": str(asked.settings["seed"]),
        "made of": "synthesised words; no human voice",
        "accuracy on held-out speakers": f"{history.history['val_accuracy'][-1]:.4f}",
    }
    data = to_bytes(sample_network(), weights, FRONT_END, notes=metadata)
    atomic.write_bytes(asked.output, data)
    print(f"{asked.output}: {len(data) / 1e3:.0f} kB on disk")


if __name__ == "__main__":
    main()
