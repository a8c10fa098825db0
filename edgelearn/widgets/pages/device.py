"""A training without Python: a bundle in C beside Python, a microcontroller's memory, energy."""

from __future__ import annotations

import numpy as np

from edgelearn.bundles.cortex_m import Board
from edgelearn.bundles.fitting import BoardFitting, plan_for_board
from edgelearn.bundles.linked import link
from edgelearn.bundles.trial import try_out
from edgelearn.bundles.write import Bundle
from edgelearn.data.audio import ClipDataset
from edgelearn.data.features import DS_CNN_MLPERF, load_features
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.display import as_joules
from edgelearn.experiments.serial_depth import SerialDepths, compare_serial
from edgelearn.lab.energy import find_meter
from edgelearn.lab.profile import project
from edgelearn.models import ds_cnn
from edgelearn.ops import SGD, Adam
from edgelearn.tables import Table
from edgelearn.train import Model
from edgelearn.widgets.pictures import Waiting

from .shown import Part, Shown, or_reason

WORDS, SPEAKERS, TAKES = 8, 4, 6
RATE = 0.01
Words = tuple[np.ndarray, np.ndarray]  # examples and class numbers


def keywords_for_user(
    epochs: int = 3, device: str | None = None, clips: ClipDataset | None = None
) -> tuple[Model, Words]:
    """A keyword network (DS-CNN S) that all speakers of `clips` but the last one have trained, in `epochs` (default 3),
    and the clips of that one, who goes on with its last two layers. Default: four speakers of the package's made-up
    words."""
    clips = clips or embedded_words(WORDS, SPEAKERS, TAKES)
    with Waiting("Reading clips"):
        features = load_features(clips, DS_CNN_MLPERF)
    centred = features - features.mean(1, keepdims=True)
    x, y = (centred / (centred.std(1, keepdims=True) + np.float32(1e-3)))[..., None], clips.labels
    user = clips.speakers == np.unique(clips.speakers)[-1]
    network = ds_cnn(x.shape[1:], "S", len(clips.class_names), softmax=False)
    model = Model(network, None, device, 0).compile(Adam(0.003), batchnorm="batch")
    with Waiting("Training", model.device):
        model.fit(x[~user], y[~user], batch_size=16, epochs=epochs)
    network.freeze().unfreeze("block4_pointwise", "classifier")
    mine = Model(network, model.weights, device, 0).compile(SGD(RATE, momentum=0.9), batchnorm="moving")
    order = np.random.default_rng(0).permutation(user.sum())
    return mine, (x[user][order], y[user][order].astype(np.int32))


def beside_python(model: Model, bundle: Bundle, words: Words, steps: int = 24) -> Part:
    """Build a bundle, run some steps, and show its losses beside those of Python; without the tools, what to install.

    Arguments:
    - `model`, `bundle`: the model, and what `el.bundle` made of it.
    - `words`: examples and class numbers, which are shown again and again.
    - `steps`: number of steps (default 24).
    """
    shown_ones = np.arange(steps * bundle.plan.request.batch_size) % len(words[1])
    examples, labels = (array[shown_ones] for array in words)

    def shown() -> Shown:
        with Waiting("Building, and training in C and in Python"):
            trial = try_out(model, bundle, examples, labels, RATE)
        return Shown(trial.headline, trial.plot(), trial)

    return or_reason(shown)


def serial_depths(
    network: str = "mobilenet_v1", shape: tuple[int, int, int] | None = (96, 96, 3), steps: int = 3,
    depths: tuple[str, ...] = ("last", "all"),
) -> SerialDepths:  # fmt: skip
    """Time a step of some depths in serial C and on the device; the arguments of `compare_serial`."""
    with Waiting("Building, and taking steps in C and on the device"):
        return compare_serial([network], depths, steps, shape=shape)


def what_fits(model: Model, sram: str, flash: str, batch_size: int = 4) -> BoardFitting:
    """Find the trainings of a model's network that fit a board; the arguments of `Board` and `el.plan_for_board`."""
    with Waiting("Planning"):
        return plan_for_board(model.network, Board(sram, flash), batch_size)


def linker_map(bundle: Bundle) -> Part:
    """Link a microcontroller's program and show its memory, by the linker's map; without the tools, what to install."""

    def shown() -> Shown:
        with Waiting("Linking"):
            memory = link(bundle)
        return Shown(memory.headline, memory.plot(), memory)

    return or_reason(shown)


def step_energy(model: Model, batch_size: int = 4) -> Shown:
    """Show the joules of a training step where this device has a counter, and a projection for other devices."""
    waiting = Waiting("Counting joules", model.device)
    with find_meter(model.device) as meter, model.trainer(batch_size) as trainer, waiting:
        shape = (batch_size, *model.network.input_shape)
        x, y = np.zeros(shape, np.float32), np.zeros(batch_size, np.int32)
        idle, energy = meter.idle(), meter.of_steps(lambda: trainer.step(x, y))
        projected = project(trainer.plan.request, name="training step").estimates
    text = f"Energy {meter}."
    if energy is not None:
        text = f"{as_joules(energy.joules)} J a step, {energy.watts:.3g} W; {idle or 0:.3g} W without work. {meter}."
    rows = [(e.device.name, e.precision, f"{1e6 * e.joules:,.0f}") for e in projected]
    header = ("device", "type", "µJ a step, projected")
    notes = ["Multiply-adds and bytes from memory alone, at 45 nm (M. Horowitz, ISSCC 2014): a real device takes more."]
    return Shown(text, text, Table(header, rows, "Projection, not a measurement", notes, right=True))
