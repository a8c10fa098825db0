"""Choose layers, micro-batch, precision and activation memory of a training that a microcontroller has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from edgelearn.compile import Combination, Plan, Precision, Request
from edgelearn.compile.lower import Layout
from edgelearn.compile.planner import FROM
from edgelearn.compile.policies import checkpoints, keep_all, nested, square_root
from edgelearn.display import Recorded, plural
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.launch import Role
from edgelearn.ops import BatchNormalization, LinearOp, Loss, Losses, Optimizer
from edgelearn.ops.quantize import FIELDS
from edgelearn.tables import Table, Tabular
from edgelearn.train import Model
from edgelearn.train.loading import NetworkLike, as_network, combined

from .cortex_m import STACK_BYTES, Board, CortexMTarget
from .memory_map import MemoryMap, predict_map
from .plain import PLAIN, PLAIN_TRAITS
from .tables import Tables

PRECISIONS = ("fp32", "int8")  # that target cortex-m has
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of last layers to try
POLICIES = (checkpoints, square_root, nested)  # that take less memory than storing all activations
OVERHEAD = 2048  # bytes of SRAM for a runtime's variables, of a training that is ruled out before it is planned


@dataclass(frozen=True)
class Training(Recorded):
    """A training for a board.

    Arguments:
    - `layers`: those that it trains, in words.
    - `combination`: the settings.
    - `plan`: of a step.
    - `map`: predicted memory by parts.
    - `trained`: number of trained parameters.
    - `multiply_adds`: of an update's linear layers.
    """

    layers: str
    combination: Combination
    plan: Plan
    map: MemoryMap
    trained: int
    multiply_adds: int

    entries = (
        "layers", "combination", "flash_bytes: flash", "sram_bytes: sram", "trained_parameters: trained",
        "multiply_adds",
    )  # fmt: skip

    @property
    def flash(self) -> int:
        return self.map.used[0]

    @property
    def sram(self) -> int:
        return self.map.used[1]

    @property
    def policy(self) -> str:
        """Name of the policy of activation memory."""
        return str(self.combination.to_dict()["activation_memory"]).rpartition(":")[2]

    @property
    def micro_batch(self) -> int:
        return self.plan.request.micro_batch

    @property
    def words(self) -> str:
        """The choice in a sentence's words."""
        kept = "all activations stored" if self.policy == "keep_all" else f"activations by {self.policy}"
        formats = self.combination.precision
        return f"{self.layers}, in {formats}, micro-batches of {self.micro_batch}, {kept}"


@dataclass(frozen=True)
class Ruled(Recorded):
    """A training that doesn't fit.

    Arguments:
    - `layers`, `precision`: of the training, in words.
    - `reason`: why.
    - `flash`, `sram`: the fewest bytes found; 0 of flash if no plan was made.
    """

    layers: str
    precision: str
    reason: str
    flash: int = 0
    sram: int = 0

    entries = "layers", "precision", "reason", "flash_bytes: flash", "sram_bytes: sram"


@dataclass(frozen=True, repr=False)
class BoardFitting(Tabular, Recorded):
    """The trainings of a network that fit a microcontroller's memory.

    Arguments:
    - `model`: the model that they are of; where statistics of BatchNorm stay as they are, it is folded into kernels.
    - `batch_size`: examples of a mini-batch.
    - `board`: its memory.
    - `trainings`: those that fit, the best first: most trained parameters; of equals, float32 before integers; then
      fewest multiply-adds.
    - `ruled_out`: those that don't fit.
    - `folded`: BatchNorm was folded.
    - `measures_ranges`: integers begin with a step that measures ranges.
    """

    model: Model
    batch_size: int
    board: Board
    trainings: list[Training]
    ruled_out: list[Ruled]
    folded: bool = False
    measures_ranges: bool = False

    entries = (
        "network", "batch_size", "sram: board.sram", "flash: board.flash", "choice: choice", "trainings", "ruled_out",
        "refusal",
    )  # fmt: skip

    @property
    def network(self) -> str:
        return self.model.network.name

    @property
    def headline(self) -> str:
        return f"{plural(len(self.trainings), 'training')} of '{self.network}' within {self._limits}"

    @property
    def _limits(self) -> str:
        flash, sram = self.board.sizes
        return f"{sram:,} bytes of SRAM and {flash:,} bytes of flash"

    @property
    def best(self) -> Training:
        """The first of those that fit. Raises PlanError if there is none, saying what would fit."""
        if not self.trainings:
            raise PlanError(self.refusal)
        return self.trainings[0]

    @property
    def choice(self) -> str:
        """The best in words; empty if nothing fits."""
        return self.best.words if self.trainings else ""

    @property
    def refusal(self) -> str:
        """The limits that would have to be relaxed, with bytes; empty if something fits."""
        if self.trainings:
            return ""
        flash, sram = self.board.sizes
        text = f"No training of '{self.network}' fits {self._limits}."
        sized = [each for each in self.ruled_out if each.flash]
        for each in (
            min((each for each in sized if each.flash <= flash), key=lambda each: each.sram, default=None),
            min((each for each in sized if each.sram <= sram), key=lambda each: each.flash, default=None),
        ):
            if each is not None:
                text += f" {_needed(each, flash, sram)}"
        if sized and all(each.flash > flash and each.sram > sram for each in sized):
            text += f" {_needed(min(sized, key=lambda each: each.sram), flash, sram)}"
        if not sized and (least := min(self.ruled_out, key=lambda each: each.sram or 1 << 62, default=None)):
            text += f" {_needed(least, flash, sram)}" if least.sram else f" {least.reason}"
        return f"{text} Or take a narrower network, or smaller inputs."

    def chosen(self, training: Training | None = None) -> Model:
        """A compiled model of a training (default: the best), as `el.bundle` takes it, without ranges."""
        return combined(self.model, (training or self.best).combination)

    def table(self) -> Table:
        """A row for each training that fits."""
        rows = [
            (each.layers, str(each.combination.precision), str(each.micro_batch), each.policy, f"{each.sram:,}",
             f"{each.flash:,}", f"{each.trained:,}", f"{each.multiply_adds / 1e6:,.2f}")
            for each in self.trainings
        ]  # fmt: skip
        header = (
            "trained", "precision", "micro-batch", "activations", "SRAM", "flash", "parameters", "million multiply-adds"
        )  # fmt: skip
        return Table(header if rows else (), rows, f"'{self.network}', mini-batches of {self.batch_size}", self.notes)

    @property
    def notes(self) -> list[str]:
        """Lines below the table."""
        flash, sram = self.board.sizes
        notes = [f"Chosen: {self.choice}."] if self.trainings else [self.refusal]
        if self.trainings:
            left = (f"{size - used:,}" for size, used in zip((sram, flash), self.best.map.used[::-1], strict=True))
            notes.append("It leaves {} bytes of SRAM and {} bytes of flash. Its accuracy is unknown.".format(*left))
        if self.folded:
            notes.append("BatchNorm is folded into kernels and biases, which infer the same.")
        if any(each.combination.precision == "int8" for each in self.trainings) and not self.measures_ranges:
            notes.append("int8 takes a model with ranges: train a step before it is bundled.")
        notes += [f"Ruled out: {each.layers}, {each.precision}: {each.reason}" for each in self.ruled_out]
        return notes


def _needed(each: Ruled, flash: int, sram: int) -> str:
    """The memory that a training would need, and how much more than there is."""
    needs = [
        f"{used:,} bytes of {name} ({used - size:,} more)"
        for name, used, size in (("SRAM", each.sram, sram), ("flash", each.flash, flash))
        if used > size
    ]
    return f"{each.layers}, {each.precision}: needs {' and '.join(needs)}."


@dataclass
class BoardPlanner:
    """Plans trainings for a board.

    Arguments:
    - `request`: of a training for a device: optimizer, loss, batch size.
    - `model`: weights and ranges.
    - `board`: its memory.
    - `known_ranges`: integers begin with ranges.
    - `micro_batch`: examples at once (default 0: as many as fit).
    """

    request: Request
    model: Model
    board: Board
    known_ranges: bool
    micro_batch: int = 0
    progress: Callable[[str], None] = field(default=lambda text: None)

    def fitted(self) -> Training:
        """The training of the model's own layers and precision. Raises PlanError if it doesn't fit, with bytes."""
        memory = self.request.activation_memory or keep_all
        strategies = memory if callable(memory) else lambda network: memory
        made = self.plan("the model's training", Combination(self.request.precision, strategies))
        if isinstance(made, Ruled):
            refusal = BoardFitting(self.model, self.request.batch_size, self.board, [], [made]).refusal
            raise PlanError(f"{refusal} el.plan_for_board finds what fits.")
        return made

    def plan(self, layers: str, asked: Combination) -> Training | Ruled:
        """The training of a combination by the largest micro-batch that fits, or why none does."""
        self.progress(f"{layers}, {asked.precision}")
        name = asked.precision if isinstance(asked.precision, str) else "its own precision"
        try:
            network = asked.network(self.request.network)
            request = replace(
                self.request, network=network, precision=asked.formats, activation_memory=asked.policy,
                known_ranges=self.known_ranges and asked.formats != Precision(),
            )  # fmt: skip
            if (least := _least_sram(request)) > self.board.sizes[1]:
                reason = f"parameters, their gradients and the optimizer's state alone take {least:,} bytes of SRAM"
                return Ruled(layers, name, reason, sram=least)
            tried = self._smallest(request)
        except PlanError as error:
            return Ruled(layers, name, str(error).splitlines()[0])
        for policy, found in tried:
            if found.map.fits:
                largest = found if self.micro_batch else self._larger(found)
                memory = policy or asked.activation_memory
                combination = replace(asked, activation_memory=memory, micro_batch=largest.request.micro_batch)
                trained = sum(p.weight.size for key, p in network.parameters.items() if key in network.trainable)
                multiply_adds = largest.tables.multiply_adds_of_step
                return Training(layers, combination, largest.plan, largest.map, trained, multiply_adds)
        flash, sram = min((found.map.used for _, found in tried), key=lambda used: used[1])
        over = [
            f"{used:,} bytes of {kind}"
            for kind, used, size in (("flash", flash, self.board.sizes[0]), ("SRAM", sram, self.board.sizes[1]))
            if used > size
        ]
        return Ruled(layers, name, f"needs {' and '.join(over)}", flash, sram)

    def _smallest(self, request: Request) -> list[tuple[str, _Candidate]]:
        """(policy, candidate) with the fewest examples at once: as asked, then by policies as long as none fits."""
        size = self.micro_batch or (request.batch_size if request.losses.ordered else 1)
        first = self._candidate(replace(request, micro_batch=size))
        tried = [("", first)]
        flash, sram = self.board.sizes
        used = first.map.used
        storing = request.activation_memory is keep_all
        if storing and used[0] <= flash and used[1] > sram >= used[1] - _activations(first.plan):
            for policy in POLICIES:
                other = self._candidate(replace(request, micro_batch=size, activation_memory=policy))
                tried.append((policy.__name__, other))
                if other.map.fits:
                    break
        return tried

    def _larger(self, one: _Candidate) -> _Candidate:
        """The candidate with the largest micro-batch that fits: each example takes nearly the same bytes."""
        size, most = one.request.batch_size, one
        step = 0
        for _ in range(4):
            if step:
                free = self.board.sizes[1] - one.map.used[1]
                size = min(size - 1, 1 + free // step)
            if size <= most.request.micro_batch:
                break
            found = self._candidate(replace(one.request, micro_batch=size))
            if found.map.fits:
                return found
            step = max(1, (found.map.used[1] - one.map.used[1]) // (size - 1))
        return most

    def _candidate(self, request: Request) -> _Candidate:
        return _Candidate(request, self.model, self.board)


@dataclass
class _Candidate:
    """A plan with its memory map."""

    request: Request
    model: Model
    board: Board

    @cached_property
    def plan(self) -> Plan:
        return Layout(self.request, PLAIN, PLAIN_TRAITS).plan

    @cached_property
    def tables(self) -> Tables:
        return Tables(self.plan)

    @cached_property
    def map(self) -> MemoryMap:
        records = dict.fromkeys(self.plan.storage.quantizers, np.zeros(len(FIELDS), np.float32))
        fills = self.tables.fills(self.model.weights, records)
        return predict_map(CortexMTarget(self.tables, fills, self.board))


def _activations(plan: Plan) -> int:
    """Bytes of activations and workspace, of which policies save a part."""
    return plan.bytes_by_role.get(Role.TEMPORARY, 0)


def _least_sram(request: Request) -> int:
    """Bytes of SRAM without which no training of these parameters can be."""
    network, optimizer = request.network, request.optimizer
    trained = sum(p.weight.size for name, p in network.parameters.items() if name in network.trainable)
    slots = len(optimizer.all_slots) if optimizer else 0
    return 4 * trained * (2 + slots) + STACK_BYTES + OVERHEAD


def choices_of_layers(network: Network) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """Layers to train, in words and as patterns of a Combination: series in which each takes more memory than those
    before it. First whole layers from some layer on, then the last layer with the biases of others."""
    linear = [name for name, node in network.nodes.items() if isinstance(node.op, LinearOp) and not node.shares]
    counts = [count for count in DEPTHS if count < len(linear)]
    whole = [
        (f"'{linear[-1]}'" if count == 1 else f"from '{linear[-count]}' on", (f"{FROM}{linear[-count]}",))
        for count in counts
    ]
    yield [*whole, ("all layers", ("*",))]
    biases = [[_bias(network, layer) for layer in linear[-count:-1]] for count in [*counts, len(linear)]]
    yield [
        (f"'{linear[-1]}' and {_counted(len(names))} before it", (linear[-1], *names))
        for names in ([name for name in found if name] for found in biases)
        if names
    ]


def _counted(layers: int) -> str:
    return f"the biases of {layers} layers" if layers > 1 else "the bias of the layer"


def _bias(network: Network, layer: str) -> str:
    """The parameter that shifts a layer's output: its bias, or beta of the BatchNorm that follows."""
    if f"{layer}/bias" in network.parameters:
        return f"{layer}/bias"
    after = [node.name for node in network.nodes.values() if node.inputs[:1] == (layer,)]
    norm = next((name for name in after if isinstance(network.nodes[name].op, BatchNormalization)), "")
    return f"{norm}/beta" if f"{norm}/beta" in network.parameters else ""


def plan_for_board(
    network: NetworkLike,
    board: Board = Board(),  # noqa: B008
    batch_size: int = 8,
    *,
    precision: Sequence[str | Precision] = PRECISIONS,
    trained: Sequence[str | Sequence[str]] | None = None,
    micro_batch: int | None = None,
    optimizer: Optimizer | None = None,
    loss: Loss | Losses | None = None,
    batchnorm: str = "auto",
    known_ranges: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> BoardFitting:
    """Find the layers, micro-batch, precision and activation memory with which a network trains within the memory of a
    microcontroller, as the linker will count it. No compiler is needed, and nothing is trained.

    >>> fitting = el.plan_for_board("words.safetensors", el.Board("256 KiB", "1 MiB"))
    >>> model = fitting.chosen()
    >>> el.bundle(model, "board", batch_size=8, micro_batch=fitting.best.micro_batch, target="cortex-m")

    Smaller micro-batches are the same update, and take less memory.

    Arguments:
    - `network`: a Network, a Model, the name of one of el.models, a model file, or "MODULE:FUNCTION".
    - `board`: its memory (default 256 KiB of SRAM, 1 MiB of flash).
    - `batch_size`: examples of a mini-batch (default 8).
    - `precision`: names or Precisions to try (default "fp32" and "int8").
    - `trained`: choices of layers to train, see `Combination` (default: the last layers, ever more of them; and the
      last layer with ever more biases).
    - `micro_batch`: examples at once (default: as many as fit).
    - `optimizer`, `loss`: as in Model.compile (default: the model's; of a network, SGD()).
    - `batchnorm`: "moving", statistics stay as they are, so that BatchNorm is folded into kernels, or "batch" (default
      "auto": the model's, "moving" of a network).
    - `known_ranges`: the model that is bundled has ranges of its integers (default True).
    - `progress`: called with a line for each training that is planned.

    Raises PlanError for settings that contradict each other; a board that nothing fits gives a result that says so.
    """
    model, folded = _prepared(as_network(network), optimizer, loss, batchnorm)
    request = replace(model.settings, batch_size=batch_size, micro_batch=micro_batch or 1)
    planner = BoardPlanner(request, model, board, known_ranges, micro_batch or 0, progress)
    series = (
        choices_of_layers(model.network)
        if trained is None
        else [[(_in_words(patterns), patterns)] for patterns in map(_patterns, trained)]
    )
    found: list[Training] = []
    ruled: list[Ruled] = []
    for choices in series:
        for name in precision:
            refused = 0
            for number, (layers, patterns) in enumerate(choices):
                if refused > 1:  # what follows takes more yet
                    more = f"{layers} and more" if number < len(choices) - 1 else layers
                    ruled.append(Ruled(more, str(name), "takes more than what was ruled out before"))
                    break
                made = planner.plan(layers, Combination(name, trained=patterns))
                (found if isinstance(made, Training) else ruled).append(made)  # type: ignore[arg-type]
                refused += isinstance(made, Ruled)
    order = [str(name) for name in precision]
    found.sort(key=lambda each: (-each.trained, order.index(str(each.combination.precision)), each.multiply_adds))
    return BoardFitting(model, batch_size, board, found, ruled, folded, not known_ranges)


def _patterns(trained: str | Sequence[str]) -> tuple[str, ...]:
    return (trained,) if isinstance(trained, str) else tuple(trained)


def _in_words(patterns: tuple[str, ...]) -> str:
    return ", ".join(f"'{each}'" for each in patterns) or "the network's own layers"


def _prepared(
    network: Network | Model, optimizer: Optimizer | None, loss: Loss | Losses | None, batchnorm: str
) -> tuple[Model, bool]:  # fmt: skip
    """(compiled model, BatchNorm was folded)."""
    if batchnorm == "auto":
        batchnorm = network.batchnorm if isinstance(network, Model) and network.optimizer else "auto"
        batchnorm = "moving" if batchnorm == "auto" else batchnorm
    model = combined(network, Combination(), optimizer, loss, batchnorm=batchnorm)
    norms = any(isinstance(node.op, BatchNormalization) for node in model.network.nodes.values())
    if batchnorm != "moving" or not norms:
        return model, False
    own, weights = fold_batchnorm(model.network, model.weights)
    trained = model.network.trainable
    kept = [name for name in own.parameters if name in trained or name.rpartition("/")[0] + "/kernel" in trained]
    own.freeze().unfreeze(*kept)
    folded = Model(own, weights, model.device, model.seed)
    folded.compile(model.optimizer, model.settings.loss, batchnorm="moving")
    return folded, True


def leave_ranges(model: Model, x: np.ndarray, y: np.ndarray) -> None:
    """Give a quantized model the ranges of a mini-batch, which its bundle begins with. Weights stay as they are.

    Arguments:
    - `model`: compiled with a precision of integers.
    - `x`, `y`: examples (n, ...) and their targets.
    """
    weights = {name: model.weights[name] for name in model.changing}
    model.train_on_batch(x, y, micro_batch=1)
    state, position = model.state()
    before = {f"weights/{name}": value for name, value in weights.items()}
    model.restore(state | before, position | {"updates": 0})
