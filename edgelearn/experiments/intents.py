"""Intent classification: a convolutional network over the words of a sentence (Kim 2014, "Convolutional neural networks
for sentence classification", EMNLP), trained on CLINC150 or on drawn sentences.

    edgelearn intents train                                   # drawn sentences without data
    edgelearn intents ask RUN "wake me at seven" "will it rain"

Guide: docs/guides/sequences.md. Figures: docs/results/sequences.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import softmax

from edgelearn.data.intents import IntentDataset, load_intents
from edgelearn.errors import DataError, FormatError
from edgelearn.lab.runs import Run, figures
from edgelearn.models.language import text_cnn
from edgelearn.ops import AdamW
from edgelearn.statistics import wilson_interval
from edgelearn.train import Model

from .config import DATA, Config, device_setting, epochs_setting, seed_setting, setting
from .experiment import Experiment, Training
from .tasks import drawn_weights, save_model

EPOCHS, DRAWN_EPOCHS = 20, 10
ACCEPTED = 0.95  # share of the validation's sentences that are answered, rather than refused as unknown
PADDING, UNKNOWN = "[PAD]", "[UNK]"  # words of the tokenizer


@dataclass(frozen=True)
class IntentsConfig(Config):
    """Settings of a training on sentences.

    Raises ConfigError for an invalid value.
    """

    vocabulary: int = setting(6000, "most words, of those that occur twice or more", minimum=3)
    context: int = setting(30, "words of a sentence that are read", minimum=1)
    channels: int = setting(128, "channels of a word", minimum=1)
    filters: int = setting(128, "filters of each width of convolution: 2, 3 and 4 words", minimum=1)
    dropout: float = setting(
        0.5, "share of the maxima that training leaves out, of words half of it", minimum=0, maximum=0.9
    )
    epochs: int | None = epochs_setting(None, f"passes over the sentences (default: {EPOCHS}, drawn: {DRAWN_EPOCHS})")
    batch_size: int = setting(64, "sentences of an update", minimum=1)
    learning_rate: float = setting(1e-3, "learning rate of AdamW", above=0)
    drawn: bool = setting(False, "drawn sentences, also where there is data")
    data: str | None = setting(None, DATA, metavar="DIR")
    seed: int = seed_setting()
    device: str | None = device_setting()


@dataclass(kw_only=True, repr=False)
class IntentsTraining(Training[IntentsConfig]):
    """A training on sentences, whose `test` is the validation's part.

    Arguments: those of Training, and
    - `dataset`: the sentences.
    """

    dataset: IntentDataset


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DataError("Sentences need the package tokenizers: pip install 'edgelearn[language]'.") from None
    return tokenizers


def word_tokenizer(texts: Sequence[str], vocabulary: int, context: int) -> Any:
    """A `tokenizers.Tokenizer` of words in lower case: those that occur twice or more in `texts`, at most `vocabulary`.
    Sentences become `context` words. Raises DataError without the package tokenizers."""
    t = _tokenizers()
    found = t.Tokenizer(t.models.WordLevel(unk_token=UNKNOWN))
    found.normalizer, found.pre_tokenizer = t.normalizers.Lowercase(), t.pre_tokenizers.Whitespace()
    trainer = t.trainers.WordLevelTrainer(
        vocab_size=vocabulary, min_frequency=2, special_tokens=[PADDING, UNKNOWN], show_progress=False
    )
    found.train_from_iterator(texts, trainer)
    found.enable_padding(length=context)
    found.enable_truncation(context)
    return found


def encode(tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    """Numbers of the words of each sentence, float32 (n, context)."""
    return np.array([each.ids for each in tokenizer.encode_batch(list(texts))], np.float32)


def load_training(config: IntentsConfig) -> IntentsTraining:
    """Load sentences and network. Raises DataError for missing data or packages."""
    dataset = load_intents(config.data, config.drawn)
    tokenizer = word_tokenizer(dataset.parts["train"][0], config.vocabulary, config.context)
    (x, y), (x_validation, y_validation) = (
        (encode(tokenizer, texts), labels)
        for texts, labels in (dataset.parts[each] for each in ("train", "validation"))
    )
    network = text_cnn(
        tokenizer.get_vocab_size(), config.context, config.channels, config.filters, classes=len(dataset.class_names),
        dropout=config.dropout,
    )  # fmt: skip
    model = Model(network, None, config.device, config.seed)
    made = {"tokenizer": tokenizer.to_str()}
    model.class_names, model.preprocessing = dataset.class_names, made
    model.compile(AdamW(config.learning_rate, weight_decay=0.01))
    data = {
        "origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
        "train": len(y), "test": len(dataset.parts["test"][1]),
    }  # fmt: skip
    return IntentsTraining(
        config=config, model=model, train=(x, y), test=(x_validation, y_validation), epochs=config.epochs or 1,
        batch_size=config.batch_size, finish=_finish, data=data, weights=drawn_weights(config.seed), preprocessing=made,
        sources=[dataset.description, f"{tokenizer.get_vocab_size():,} words"], dataset=dataset,
    )  # fmt: skip


def _finish(training: IntentsTraining, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    """Test the network on the sentences that neither training nor validation had, and on unknown ones."""
    model, dataset = training.model, training.dataset
    texts, labels = dataset.parts["test"]
    found = classify(model, texts)
    right = np.array([intent for intent, _ in found]) == np.array(dataset.class_names)[labels]
    least = float(np.quantile(softmax(model.predict(training.test[0]), -1).max(-1), 1 - ACCEPTED))
    refused = [probability < least for _, probability in classify(model, dataset.unknown)]
    save_model(run, model, dataset.class_names, training.preprocessing)
    figures.plot_learning_curves(run.history(), run.folder / "curves.png")
    total, correct = len(labels), int(right.sum())
    results = training.results(correct, total, run.history()[-1]["val_loss"], seconds)
    results |= {"validation": run.history()[-1]["val_accuracy"], "least": least, "refused": float(np.mean(refused))}
    low, high = wilson_interval(correct, total)
    return results, (
        f"Test accuracy: {correct}/{total} = {correct / total:.2%} (95 % interval {low:.2%} to {high:.2%})\n"
        f"Of sentences that ask for nothing known {results['refused']:.1%} have less than {least:.2f} as their most "
        f"probable intent, as {1 - ACCEPTED:.0%} of the validation's."
    )


def classify(model: Model, texts: Sequence[str]) -> list[tuple[str, float]]:
    """(the most probable intent, its probability) of each sentence.

    >>> classify(el.load("runs/intents-…/model.safetensors"), ["wake me at seven"])

    Arguments:
    - `model`: of a run of `edgelearn intents train`.
    - `texts`: sentences.

    Raises FormatError for a model of something else, DataError without the package tokenizers.
    """
    described = model.preprocessing.get("tokenizer")
    if not isinstance(described, str):
        raise FormatError(f"'{model.network.name}' reads no sentences: take a model of `edgelearn intents train`.")
    probabilities = softmax(model.predict(encode(_tokenizers().Tokenizer.from_str(described), texts)), -1)
    return [(model.class_names[row.argmax()], float(row.max())) for row in probabilities]


def _resolve(config: IntentsConfig) -> IntentsConfig:
    drawn = load_intents(config.data, config.drawn).origin == "drawn"
    return replace(config, drawn=drawn, epochs=config.epochs or (DRAWN_EPOCHS if drawn else EPOCHS))


IntentsExperiment = Experiment("intents", IntentsConfig, load_training, "edgelearn intents train", resolve=_resolve)
