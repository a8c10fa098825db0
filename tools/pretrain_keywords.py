"""Train the package's sample network for keywords, a DS-CNN, from scratch on synthesised words.

The file that it writes is in the repository: run this again only if the network or the synthesiser change. The same
arguments give the same bits with the same kernels on the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pretraining import parse

from edgelearn.data.audio import SILENCE, ClipDataset, load_clips
from edgelearn.data.draws import AddNoise, Shift, stretch, synthetic_noises
from edgelearn.data.features import BC_RESNET
from edgelearn.data.synthetic_words import made_up_words, spoken_words
from edgelearn.graph import Network
from edgelearn.keywords import Embedder, save_embedder
from edgelearn.keywords.files import SAMPLE
from edgelearn.models import ds_cnn
from edgelearn.models.keywords import Size
from edgelearn.ops import AdamW, SoftmaxCrossEntropy
from edgelearn.train import Callback, CosineDecay, History, Model, ProgressBar, VariedSource

EPOCHS, COUNT, SPEAKERS, TAKES, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 25, 80, 24, 4, 64, 5e-3, 0.01
VOICES = 1  # seed of these speakers; the embedded sample's are those of seed 0 by default
_SIZE = Size(filters=64, blocks=4, strides=(2, 2), block_strides=(2, 2))
_SILENCE = 36  # keeps this random stream of a seed apart from others


def sample_network(classes: int | None = None) -> Network:
    """A small DS-CNN on the features of BC-ResNet; without `classes` its output is the embedding."""
    return ds_cnn((*BC_RESNET.shape(BC_RESNET.rate), 1), _SIZE, classes)


def pretraining_clips(words: list[str], speakers: range, takes: int, seed: int) -> ClipDataset:
    """Each of `words` by each of `speakers`, `takes` times, and as many clips of noise as of a word."""
    rng = np.random.default_rng([seed, _SILENCE, speakers.start])
    noises = synthetic_noises(seed + 1)
    spoken = spoken_words(words, speakers, takes, VOICES)
    silent = len(speakers) * takes
    silence = [_silence(noises[i % len(noises)], rng) for i in range(silent)]
    return replace(
        spoken,
        class_names=(*words, SILENCE),
        labels=np.append(spoken.labels, [len(words)] * silent),
        speakers=np.append(spoken.speakers, [""] * silent),
        items=[*spoken.items, *silence],
    )


def _silence(noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.float32(10 ** rng.uniform(-3, 0)) * stretch(noise, BC_RESNET.rate, rng.random())


def pretrain(
    epochs: int = EPOCHS, words: int = COUNT, speakers: int = SPEAKERS, takes: int = TAKES, seed: int = 0,
    device: str | None = None, callbacks: Sequence[Callback] = (),
) -> tuple[dict[str, np.ndarray], History]:  # fmt: skip
    """Train on `words` words by `speakers` speakers, shifted and with noise; validate with a quarter as many other
    speakers. Returns the weights of the embedding, and the history."""
    names = made_up_words(words, seed)
    train_clips = pretraining_clips(names, range(speakers), takes, seed)
    test_clips = pretraining_clips(names, range(speakers, speakers + -(-speakers // 4)), 1, seed)
    shift, noise = Shift(seed), AddNoise(seed, synthetic_noises(seed))

    def vary(clips: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        return noise(shift(clips.astype(np.float32), indices, epoch), indices, epoch)

    model = Model(sample_network(len(train_clips.class_names)), device=device, seed=seed)
    steps = epochs * -(-len(train_clips) // BATCH_SIZE)
    rate = CosineDecay(LEARNING_RATE, steps - steps // 10, warmup_steps=steps // 10)
    model.compile(AdamW(rate, WEIGHT_DECAY), SoftmaxCrossEntropy(label_smoothing=0.1), batchnorm="batch")
    train = _Clips(load_clips(train_clips).astype(np.float16), vary, _examples)
    test = _examples(load_clips(test_clips)), test_clips.labels
    history = model.fit(train, train_clips.labels, BATCH_SIZE, epochs, validation_data=test, callbacks=callbacks)
    weights = {name: array for name, array in model.weights.items() if not name.startswith("classifier/")}
    return weights, history


class _Clips(VariedSource):
    """Clips (n, samples) whose examples are features."""

    def __init__(self, clips, vary, preprocess, epoch=0) -> None:
        super().__init__(clips, vary, preprocess, epoch)
        self.shape = (len(clips), *BC_RESNET.shape(clips.shape[1]), 1)

    def at_epoch(self, epoch: int) -> _Clips:
        return _Clips(self.pictures, self.vary, self.preprocess, epoch)


def _examples(clips: np.ndarray) -> np.ndarray:
    """Inputs of the network (n, frames, bands, 1) of clips (n, samples)."""
    return BC_RESNET(clips)[..., None]


def main(arguments: Sequence[str] | None = None) -> None:
    counts = {
        "epochs": (EPOCHS, ""),
        "words": (COUNT, ""),
        "speakers": (SPEAKERS, ""),
        "takes": (TAKES, "clips of each word by each speaker"),
    }
    asked = parse("python tools/pretrain_keywords.py", __doc__ or "", counts, SAMPLE, arguments)
    weights, history = pretrain(**asked.settings, callbacks=[ProgressBar()])
    metadata = {
        "command": asked.command,
        "seed": str(asked.settings["seed"]),
        "made of": "synthesised words; no human voice",
        "accuracy on held-out speakers": f"{history.history['val_accuracy'][-1]:.4f}",
    }
    save_embedder(asked.output, Embedder(sample_network(), weights, device=asked.settings["device"]), metadata)
    print(f"{asked.output}: {asked.output.stat().st_size / 1e3:.0f} kB on disk")


if __name__ == "__main__":
    main()
