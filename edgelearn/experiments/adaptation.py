"""Adaptation to corrupted pictures without labels, method beside method, over seeds.

    edgelearn adapt                              # drawings half hidden by leaves, corruptions drawn with NumPy
    edgelearn adapt cifar10 --models nets --seeds 0 1 2    # networks of `edgelearn cifar10 --models nets`, or new ones
    edgelearn adapt flowers     # photographs at night and in rain, which are drawn
    edgelearn adapt keywords    # words in noise and reverberation, which are drawn; BC-ResNet-1

Guide: docs/guides/adapt.md. Figures: docs/results/personalisation.md.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn import atomic
from edgelearn.data.cifar10 import standardized
from edgelearn.data.corruptions import DRAWN, KINDS, SOUNDS, corrupt
from edgelearn.data.draws import stratified_split
from edgelearn.data.features import LogMel
from edgelearn.data.pictures import normalize
from edgelearn.data.speech_commands import load_named
from edgelearn.data.tfds import data_folder
from edgelearn.display import megabytes, plural
from edgelearn.extensions import check_name
from edgelearn.interop.state_dict import read_bcresnet
from edgelearn.lab.measure import PeakMemory, restart_peak
from edgelearn.lab.runs import figures
from edgelearn.models import bcresnet
from edgelearn.ops import Adam
from edgelearn.statistics import margin_text
from edgelearn.tables import Table, Tabular
from edgelearn.train import CosineDecay, Model, load
from edgelearn.train.adaptation import BATCH_SIZE, METHODS, MICRO_BATCH, RATE, normalizations
from edgelearn.train.trainer import mini_batches

from . import cifar10_recipe
from .config import DATA, Config, device_setting, epochs_setting, setting
from .depth import TASKS as DEPTH_TASKS
from .depth import DepthConfig, depth_network
from .experiment import Log, silent
from .keywords.embedding import IN_DATA

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLEAN, UNADAPTED, TORCH = "clean", "unadapted", "tent, PyTorch"
ORDERS = ("shuffled", "ordered", "single")
SINGLE = 2000  # most pictures of a stream that are given one at a time
PART = 100  # pictures that a process corrupts at once
EPOCHS = 6  # of drawings and flowers
FLOWERS_SIZE, FLOWERS_KINDS = 128, ("night", "rain")
SPEECH = "speech_commands_v0.02_test"


@dataclass(frozen=True)
class AdaptationConfig(Config):
    """Settings of a comparison of methods on corrupted pictures.

    Raises ConfigError for an invalid value.
    """

    task: str = setting("thicket", "what is named: thicket, flowers, cifar10 or keywords", positional=True)
    methods: tuple[str, ...] = setting(METHODS, "how to adapt", choices=METHODS)
    kinds: tuple[str, ...] = setting(
        (), "corruptions (default: those of the package imagecorruptions, without it those drawn with NumPy; flowers: "
        "night and rain; keywords: in_noise and reverberant)",
        choices=(*KINDS, *DRAWN, *SOUNDS), metavar="KIND",
    )  # fmt: skip
    severity: int = setting(5, "strength of the corruptions", minimum=1, maximum=5)
    orders: tuple[str, ...] = setting(
        ORDERS, "streams: shuffled, in the order of the labels, or one picture at a time (tent alone in the last two)",
        choices=ORDERS,
    )  # fmt: skip
    examples: int | None = setting(None, "test pictures of a stream (default: all)", minimum=4)
    batch_size: int = setting(BATCH_SIZE, "pictures of an update", minimum=2)
    micro_batch: int = setting(MICRO_BATCH, "pictures on the device at once, a divisor of these", minimum=2)
    anchor: int = setting(
        0, "examples that methods are tried with, too, of the world before: the guard's bound, EATA's Fisher anchor",
        minimum=0,
    )  # fmt: skip
    prior: int = setting(0, "examples that the stored statistics count as", minimum=0)
    rate: float = setting(RATE, "learning rate of tent and eata", above=0)
    guard: bool = setting(True, "go back to the unadapted network where adapting seems to harm")
    mixed: bool = setting(True, "tell methods that shuffled streams mix the classes, as publications presuppose")
    torch: bool = setting(False, "the same network in PyTorch by TENT, too")
    epochs: int | None = epochs_setting(None, f"of the training (default: {EPOCHS}, cifar10: {cifar10_recipe.EPOCHS})")
    models: str | None = setting(None, "folder with cifar10_SEED.safetensors, or to save them in", metavar="DIR")
    corrupted: str | None = setting(None, "folder to keep corrupted pictures in", metavar="DIR")
    pictures: str | None = setting(None, "a file that `edgelearn cifar10 --write` made", metavar="NPZ")
    validation: bool = setting(
        False, "cifar10: pictures and networks of `edgelearn cifar10 --validation`, to choose settings by"
    )
    weights: str | None = setting(None, "of flowers: MobileNet V1 as Keras's HDF5", metavar="FILE")
    alpha: float = setting(1.0, "its width", above=0)
    size: int = setting(FLOWERS_SIZE, "pixels of a side of a flower", minimum=32)
    data: str | None = setting(None, DATA, metavar="DIR")
    seeds: tuple[int, ...] = setting((0,), "of networks and orders", minimum=0)
    device: str | None = device_setting()


@dataclass(frozen=True)
class StreamResult:
    """A network's answers to a stream.

    Arguments:
    - `seed`: of the network. `kind`: of the corruption, or "clean".
    - `order`: of ORDERS. `method`: of METHODS, also with ", anchor"; "unadapted" or "tent, PyTorch".
    - `error`: share of wrong answers, while it adapts; `unadapted`: of the same pictures without.
    - `examples`: number of pictures; `updates`: of the network.
    - `shift`: of the first statistics, in nats; see Adaptation.
    - `off`: why the guard went back to the unadapted network, or "".
    """

    seed: int
    kind: str
    order: str
    method: str
    error: float
    unadapted: float
    examples: int
    updates: int = 0
    shift: float = 0.0
    off: str = ""


@dataclass(frozen=True, repr=False)
class AdaptationResults(Tabular):
    """Methods compared on streams of corrupted pictures.

    Arguments:
    - `rows`: a result for each seed, stream and method.
    - `memory`: bytes by method: those planned, which are those allocated; of PyTorch the peak above the bare process.
    - `device`: name. `description`: data and networks in words.
    """

    rows: Sequence[StreamResult]
    memory: Mapping[str, int]
    device: str
    description: str = ""

    @property
    def headline(self) -> str:
        kinds = {row.kind for row in self.rows} - {CLEAN}
        return f"of {plural(len(kinds), 'corruption')}, {plural(len(self.seeds), 'seed')}, on {self.device}"

    @property
    def seeds(self) -> list[int]:
        return sorted({row.seed for row in self.rows})

    def gain(self, method: str, order: str = "shuffled", *, over: str = UNADAPTED, clean: bool = False) -> list[float]:
        """By seed, how many points the error falls from that of `over`, a mean over the corruptions; with `clean`, on
        clean pictures."""
        found = []
        for seed in self.seeds:
            rows = {
                (row.kind, row.method): row for row in self.rows
                if row.seed == seed and row.order == order and (row.kind == CLEAN) == clean
            }  # fmt: skip
            falls = [
                (row.unadapted if over == UNADAPTED else rows[kind, over].error) - row.error
                for (kind, own), row in rows.items() if own == method
            ]  # fmt: skip
            found.append(100 * float(np.mean(falls)) if falls else float("nan"))
        return found

    def table(self) -> Table:
        """A row for each method and stream: error, what it falls by, the least fall, on clean pictures, memory."""
        rows = []
        for method, order in dict.fromkeys((row.method, row.order) for row in self.rows):
            own = [row for row in self.rows if (row.method, row.order) == (method, order) and row.kind != CLEAN]
            if not own:
                continue
            errors = [100 * float(np.mean([row.error for row in own if row.seed == seed])) for seed in self.seeds]
            cells = [margin_text(errors, sign=""), "", "", ""]
            if method != UNADAPTED:
                kinds = {row.kind for row in own}
                falls = {
                    kind: 100 * float(np.mean([row.unadapted - row.error for row in own if row.kind == kind]))
                    for kind in kinds
                }  # fmt: skip
                worst = min(falls, key=lambda kind: falls[kind])
                clean = self.gain(method, order, clean=True)
                cells[1:] = [
                    margin_text(self.gain(method, order)), f"{falls[worst]:+.1f} {worst}",
                    "" if np.isnan(clean).any() else margin_text(clean),
                ]  # fmt: skip
            off = sum(bool(row.off) for row in own)
            used = self.memory.get(method)
            rows.append((method, order, *cells, str(off), "" if used is None else megabytes(used)))
        text = (
            "Error in %, and by how many points it falls, ± half of the 95 % interval over seeds; the corruption whose "
            "error falls least; on clean pictures; streams in which the guard switched adaptation off; device memory."
        )
        notes = [text, self.description]
        if all(any(row.method == method for row in self.rows) for method in ("statistics", "tent")):
            notes.insert(1, f"tent beside statistics: {margin_text(self.gain('tent', over='statistics'))} points.")
        header = ("method", "stream", "error", "falls by", "least", "clean", "off", "memory")
        return Table(header, rows, f"Adaptation, {self.headline}", notes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "device": self.device, "description": self.description, "memory": dict(self.memory),
            "streams": [asdict(row) for row in self.rows],
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the errors by corruption, of shuffled streams; write a PNG to `path`."""
        kinds = list(dict.fromkeys(row.kind for row in self.rows))
        methods = list(dict.fromkeys(row.method for row in self.rows if row.order == "shuffled"))
        figure = figures.canvas(figures.WIDTH, 4)
        axes, places, width = figure.subplots(), np.arange(len(kinds)), 0.8 / len(methods)
        colors = (figures.GRAY, figures.ORANGE, figures.BLUE, *figures.PALETTE[2:])
        for number, (method, color) in enumerate(zip(methods, colors, strict=False)):
            own = [row for row in self.rows if (row.method, row.order) == (method, "shuffled")]
            heights = [100 * float(np.mean([row.error for row in own if row.kind == kind])) for kind in kinds]
            axes.bar(places + (number - (len(methods) - 1) / 2) * width, heights, width, color=color, label=method)
        axes.set_xticks(places, [kind.replace("_", "\n") for kind in kinds], fontsize=8)
        axes.legend(fontsize=9)
        figures.style(axes, f"Errors {self.headline}", "Stream", "Wrong answers (%)")
        return figures.saved(figure, path)


# -- networks and pictures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _World:
    """A trained network, test pictures, uint8 (n, size, size, 3), or features of clips, and how they become examples;
    `known`, others of the world before; `kinds` and `changed`, what happens to them by default, and how."""

    model: Model
    pictures: np.ndarray
    labels: np.ndarray
    examples: Callable[[np.ndarray], np.ndarray]
    description: str
    known: np.ndarray
    kinds: Sequence[str] = ()
    changed: Callable[..., Iterable[tuple[str, np.ndarray]]] | None = None


def _mobilenet(config: AdaptationConfig, seed: int) -> _World:
    flowers = config.task == "flowers"
    more = {"weights": config.weights, "alpha": config.alpha, "size": config.size} if flowers else {}
    settings = DepthConfig(config.task, data=config.data, **more)
    start = DEPTH_TASKS[config.task](settings)
    network, _ = depth_network(start.network, "all", settings)
    epochs, (x, y) = config.epochs or EPOCHS, start.train
    model = Model(network, start.weights, config.device, seed)
    steps = epochs * -(-len(y) // start.batch_size)
    model.compile(Adam(CosineDecay(1e-3, steps)), batchnorm="batch")
    model.fit(x, y, start.batch_size, epochs, verbose=0)
    pictures = np.round(255 * (start.test[0] + 1) / 2).astype(np.uint8)
    kinds = FLOWERS_KINDS if flowers else ()
    return _World(model, pictures, start.test[1], normalize, start.description, x, kinds)


def _cifar10(config: AdaptationConfig, seed: int) -> _World:
    with tempfile.TemporaryDirectory() as folder:
        models = Path(config.models or folder)
        file, pictures = models / f"cifar10_{seed}.safetensors", cifar10_recipe.read(config.pictures)
        pictures = cifar10_recipe.for_validation(pictures) if config.validation else pictures
        if not file.exists():
            cifar10_recipe.train(pictures, seed, config.epochs or cifar10_recipe.EPOCHS, config.device, models=models)
        model = load(file, device=config.device)
    parameters = f"{model.network.count() / 1e6:.1f} million parameters"
    description = f"CIFAR-10; networks of `edgelearn cifar10` with {parameters}."
    known = standardized(pictures.train)
    return _World(model, pictures.test, pictures.test_labels, standardized, description, known)


def _keywords(config: AdaptationConfig, seed: int) -> _World:
    """BC-ResNet-1 and the twelve classes of Speech Commands' test set: three of four clips are streamed, and the others
    known, in a division of the seed."""
    clips, front_end = load_named(SPEECH, config.data), LogMel()
    file = Path(data_folder(config.data) or "") / IN_DATA
    network = bcresnet()
    model = Model(network, read_bcresnet(file, network), config.device, seed)
    sounds = np.stack([clips.clip(i) for i in range(len(clips))])
    known, test = stratified_split(clips.labels, 0.25, seed)

    def features(sounds: np.ndarray) -> np.ndarray:
        return front_end(sounds).transpose(0, 2, 1)[..., None].astype(np.float32)

    def changed(_: np.ndarray, kinds: Iterable[str], severity: int, *__: Any) -> Iterable[tuple[str, np.ndarray]]:
        return ((kind, features(SOUNDS[kind](sounds[test], severity, seed))) for kind in kinds)

    description, labels = f"{clips.description} BC-ResNet-1 of {file.name}.", np.asarray(clips.labels)[test]
    own, others = features(sounds[test]), features(sounds[known])
    return _World(model, own, labels, np.asarray, description, others, tuple(SOUNDS), changed)


WORLDS: Mapping[str, Callable[[AdaptationConfig, int], _World]] = {
    "thicket": _mobilenet, "flowers": _mobilenet, "cifar10": _cifar10, "keywords": _keywords,
}  # fmt: skip


def corrupted(
    pictures: np.ndarray, kinds: Iterable[str], severity: int, folder: str | Path | None = None,
    processes: int | None = None,
) -> Iterable[tuple[str, np.ndarray]]:  # fmt: skip
    """Yield (kind, corrupted pictures) of pictures, uint8 (n, height, width, 3).

    Arguments:
    - `folder`: keeps them for the next call (default: none).
    - `processes`: that draw, where there are many pictures (default: as many as cores).
    """
    for kind in kinds:
        file = Path(folder or "") / f"{kind}_{severity}_{len(pictures)}.npy"
        if folder and file.exists():
            yield kind, np.load(file)
            continue
        starts = range(0, len(pictures), PART)
        arguments = [pictures[start : start + PART] for start in starts]
        draw = partial(_corrupt, kind=kind, severity=severity)
        if len(starts) < 8 or kind in DRAWN or (processes or os.cpu_count() or 1) < 2:
            parts = list(map(draw, arguments, starts))
        else:
            with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
                parts = list(pool.map(draw, arguments, starts))
        found = np.concatenate(parts)
        if folder:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(buffer := io.BytesIO(), found)
            atomic.write_bytes(file, buffer.getvalue())
        yield kind, found


def _corrupt(pictures: np.ndarray, first: int, kind: str, severity: int) -> np.ndarray:
    return corrupt(pictures, kind, severity, first=first)


# -- the comparison ----------------------------------------------------------------------------------------------------


def compare_adaptation(
    config: AdaptationConfig | None = None, *, log: Log = silent, **settings: Any
) -> AdaptationResults:
    """Adapt a network to streams of corrupted pictures and to clean ones, by each method.

    >>> found = compare_adaptation(kinds=("noise", "night"), examples=400)
    >>> print(found)

    Arguments:
    - `config`: an AdaptationConfig (default: one of `settings`).
    - `log`: takes lines of text (default: none).

    Raises UsageError for an unknown task, DataError for missing data or packages, PlanError for sizes that can't be.
    """
    config = config or AdaptationConfig(**settings)
    check_name(config.task, WORLDS, "task")
    usual = tuple(DRAWN) if find_spec("imagecorruptions") is None else KINDS
    rows, memory, device, description = list[StreamResult](), dict[str, int](), "", ""
    for seed in config.seeds:
        log(f"{config.task}, network {seed}")
        world = WORLDS[config.task](config, seed)
        device, description = world.model.device.id, world.description
        order = np.random.default_rng(seed).permutation(len(world.labels))[: config.examples]
        kinds, changed = config.kinds or world.kinds or usual, world.changed or corrupted
        streams = [(CLEAN, world.pictures), *changed(world.pictures, kinds, config.severity, config.corrupted)]
        found, used = _seed(config, seed, world, streams, order, log)
        rows += found
        memory |= used
    return AdaptationResults(rows, memory, device, f"{description} Corruptions of strength {config.severity}.")


def _seed(
    config: AdaptationConfig, seed: int, world: _World, streams: Sequence[tuple[str, np.ndarray]], order: np.ndarray,
    log: Log,
) -> tuple[list[StreamResult], dict[str, int]]:  # fmt: skip
    """(results, memory by method) of one network."""
    plain = {kind: world.model.predict(world.examples(x), 200).argmax(-1) for kind, x in streams}
    wrong = {kind: answers != world.labels for kind, answers in plain.items()}
    rows = [_result(seed, kind, "shuffled", UNADAPTED, wrong[kind][order], wrong[kind][order]) for kind, _ in streams]
    memory = dict[str, int]()
    known = world.known[np.random.default_rng(seed).permutation(len(world.known))[: config.anchor]]
    for method, anchored in [
        (method, anchored) for method in config.methods for anchored in ((False, True) if config.anchor else (False,))
    ]:
        name = f"{method}, anchor" if anchored else method
        log(f"network {seed}: {name}")
        adaptation = world.model.adapt(
            method=method, batch_size=config.batch_size, micro_batch=config.micro_batch, prior=config.prior,
            guard=config.guard, anchor=known if anchored else None,
            optimizer=None if method == "statistics" else Adam(config.rate),
        )  # fmt: skip
        for order_of in [each for each in ORDERS if each in config.orders and (each == "shuffled" or method == "tent")]:
            chosen = order[np.argsort(world.labels[order], kind="stable")] if order_of == "ordered" else order
            chosen = chosen[:SINGLE] if order_of == "single" else chosen
            adaptation.mixed = config.mixed and order_of != "ordered"
            for kind, x in streams:
                adaptation.reset()
                parts = mini_batches(chosen, 1 if order_of == "single" else config.batch_size)
                answers = [adaptation.predict(world.examples(x[part])) for part in parts]
                own = np.concatenate(answers).argmax(-1) != world.labels[chosen]
                told = {"updates": adaptation.updates, "shift": adaptation.shift, "off": adaptation.off}
                rows.append(_result(seed, kind, order_of, name, own, wrong[kind][chosen], **told))
        memory[name] = adaptation.plan.peak_bytes
        adaptation.close()
    if config.torch:
        log(f"network {seed}: PyTorch")
        for kind, x in streams:
            answers, memory[TORCH] = _torch(world.model, world.examples(x[order]), config.batch_size, config.rate)
            own = answers != world.labels[order]
            rows.append(_result(seed, kind, "shuffled", TORCH, own, wrong[kind][order]))
    return rows, memory


def _result(
    seed: int, kind: str, order: str, method: str, own: np.ndarray, unadapted: np.ndarray, **told: Any
) -> StreamResult:  # fmt: skip
    return StreamResult(seed, kind, order, method, float(own.mean()), float(unadapted.mean()), len(own), **told)


def _torch(model: Model, x: np.ndarray, batch_size: int, rate: float) -> tuple[np.ndarray, int]:
    """(answers, bytes) of TENT as its authors run it: each batch is answered by its own statistics, then scales and
    shifts take a step of Adam down the entropy of these answers. Bytes: the peak of CUDA's allocator, on a processor
    that of the process, above what was there before."""
    import torch

    from edgelearn.interop.to_torch import TorchNetwork

    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = model.network.copy()
    network.trainable = {f"{name}/{role}" for name in normalizations(network) for role in ("gamma", "beta")}
    restart_peak()
    process, before = PeakMemory(), 0
    if where.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32, as here
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    net = TorchNetwork(network, model.weights, batchnorm="batch", logits=True).to(where)
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], rate)
    answers = []
    for part in mini_batches(np.arange(len(x)), batch_size):
        logits = net(net.encode(x[part]).to(where))
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        answers.append(logits.detach().argmax(1).cpu().numpy())
    peak = torch.cuda.max_memory_allocated() - before if where.type == "cuda" else process.over_imports
    return np.concatenate(answers), int(peak)
