"""Adaptation to a changed world, from examples without labels: the statistics, scales and shifts of normalization
layers follow the examples that a network meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from edgelearn.compile import BudgetLike, Plan
from edgelearn.display import Displayed, megabytes, plural
from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.graph import Network
from edgelearn.interop.weights import Weights
from edgelearn.ops import SGD, Adam, BatchNormalization, Optimizer, Softmax
from edgelearn.ops.base import number, whole
from edgelearn.ops.normalization import ExampleNormalization

from .sources import to_predict
from .state import TrainingState
from .trainer import mini_batches

METHODS = ("statistics", "tent", "eata")
BATCH_SIZE, MICRO_BATCH = 200, 50  # TENT's published batch; examples on the device at once
RATE = 1e-3  # of Adam, TENT's published one
MOMENTUM = 0.9  # by which a step averages the statistics of its micro-batches
# The least share of a batch in the statistics: where weights move, those of old batches are soon wrong.
LEAST_SHARE = {"statistics": 0.1, "tent": 0.3, "eata": 0.3}
LEAST = 1e-12  # probability, of which there is a logarithm
ENTROPY_SHARE = 0.4  # of the largest entropy: EATA learns from examples below it
SIMILAR = 0.95  # cosine to the mean answer, from which on EATA takes an example for a repetition
MEAN_MOMENTUM = 0.9  # of that mean answer
FIRST_CHECKS, CHECK_EVERY = 8, 4  # updates after which the guard looks at the answers
SURE = log(2)  # nats that answers to two batches tell beyond those to their parts: then they are of many classes
PARTS, LEAST_PART = 3, 4  # most parts that a batch is compared with, and the fewest examples of one
ENOUGH_CHECKS = 3  # batches that are compared with each other
ORDERED = 4.0  # times the variance between batches that a draw of their examples would give
COLLAPSED = 0.5  # of the entropy of the mean answer
LESS = 0.2  # nats that adapted answers tell less than the unadapted network's: then they are worse
MORE = 0.05  # nats that they tell more: then there is something to adapt to, even where the first statistics are known
UNCHANGED = 0.05, 1.0  # nats of the first statistics from the stored ones; these times the examples, of chance
KNOWN = 2.0  # times the most nats of a batch of the world before, in place of the former


def entropy(xp: Any, probabilities: Any) -> Any:
    """The entropy of each row, in nats."""
    return -xp.sum(probabilities * xp.log(xp.maximum(probabilities, LEAST)), axis=-1)


def tent_loss(xp: Any, targets: Any, outputs: Any) -> Any:
    """The entropy of the answer (Wang et al. 2021, "Tent: Fully test-time adaptation by entropy minimization")."""
    return entropy(xp, outputs)


def eata_loss(classes: int) -> Callable[..., Any]:
    """The loss of EATA (Niu et al. 2022, "Efficient test-time model adaptation without forgetting"): the entropy of
    answers that are sure enough and unlike the mean answer, which the targets hold; the surer, the more it weighs.

    EATA weighs the gradient of the entropy H by exp(E0 - H), which is that of -exp(E0 - H).
    """
    most = ENTROPY_SHARE * log(classes)

    def eata(xp: Any, targets: Any, outputs: Any) -> Any:
        own = entropy(xp, outputs)
        lengths = xp.sum(xp.square(outputs), axis=-1) * xp.sum(xp.square(targets), axis=-1)
        cosine = xp.sum(outputs * targets, axis=-1) * xp.rsqrt(xp.maximum(lengths, LEAST))
        # A step of the cosine has no slope, so that the choice of examples is not trained.
        chosen = xp.where(own < most, 1.0, 0.0) * xp.where(cosine < SIMILAR, 1.0, 0.0)
        return chosen * (1.0 - xp.exp(most - xp.minimum(own, most)))

    return eata


def normalizations(network: Network) -> list[str]:
    """The layers that adaptation may change, in the network's order."""
    kinds = (BatchNormalization, ExampleNormalization)
    return [node.name for node in network.nodes.values() if isinstance(node.op, kinds) and not node.shares]


@dataclass(frozen=True)
class _Moment:
    """An adaptation before an update, to go back to."""

    state: TrainingState
    seen: int
    mean: np.ndarray
    shift: float
    checks: int
    told: int
    sure: bool


class Adaptation(Displayed):
    """A network that adapts itself to the examples it meets, and its answers. `Model.adapt` makes one.

    The model that it began with stays as it is: assign `weights` to it to keep what was learnt.

    Arguments:
    - `model`: the Model to begin with; all others (`method`, `batch_size`, `micro_batch`, `optimizer`, `prior`,
      `anchor`, `anchor_weight`, `budget`, `guard`, `mixed`) as `Model.adapt` has them.

    - `plan`: the plan of an update, which states the device memory.
    - `answers`: probabilities, float32 (n, classes), of the examples that it was made with.
    - `updates`: how often statistics and weights were moved.
    - `entropies`: mean entropy of the answers to each part of the examples, in nats.
    - `shift`: Kullback-Leibler divergence, in nats a channel, of the first BatchNormalization's statistics from the
      stored ones, both taken as Gaussians; 0 before the first update, and without a BatchNormalization.
    - `sure`: True once the guard has seen that batches are of many classes; until then the unadapted network answers,
      and only statistics move.
    - `off`: the reason why it went back to the unadapted network, or "".
    """

    def __init__(
        self, model: Any, method: str = "tent", batch_size: int = BATCH_SIZE, micro_batch: int | None = None, *,
        optimizer: Optimizer | None = None, prior: int = 0, anchor: Any = None, anchor_weight: float = 2000.0,
        budget: BudgetLike | None = None, guard: bool = True, mixed: bool = False,
    ) -> None:  # fmt: skip
        network, self.method, self.batch_size = model.network, method, whole("batch_size", batch_size)
        if method not in METHODS:
            raise PlanError(f"A network adapts by {', '.join(map(repr, METHODS))}, not {method!r}.")
        found, shape = normalizations(network), network.output.shape
        if not found:
            raise PlanError("The network has no normalization layer whose statistics, scale and shift could adapt.")
        if len(network.outputs) > 1 or len(shape) != 1 or not isinstance(network.output.op, Softmax):
            raise PlanError(
                f"Adaptation needs a classifier whose one output is a Softmax, not {network.output.name} {shape}."
            )
        self._norms = [name for name in found if isinstance(network.nodes[name].op, BatchNormalization)]
        if method == "statistics" and not self._norms:
            raise PlanError("The network has no BatchNormalization whose statistics could adapt: use 'tent' or 'eata'.")
        size = _micro_batch(self.batch_size) if micro_batch is None else whole("micro_batch", micro_batch)
        if self.batch_size % size:
            raise PlanError(f"Batches of {self.batch_size} don't divide into {size} at a time: choose a divisor.")
        if self._norms and size == 1:
            raise PlanError(
                "The statistics of one example say little: collect more of them for an update, such as batch_size=64, "
                "micro_batch=32. Examples can still be given one at a time, and are answered at once."
            )
        self.classes, self.guard, self._source, self._prior = shape[0], guard, model.weights, prior
        self.mixed = mixed
        if not prior >= 0:
            raise PlanError(f"The prior is a number of examples of at least 0, not {prior!r}.")
        adapted = network.copy()
        # A BatchNormalization that isn't trained keeps its statistics: "statistics" trains all of them, in name.
        adapted.trainable = {f"{name}/{role}" for name in found for role in ("gamma", "beta")} & set(network.parameters)
        for name in self._norms:
            node = adapted.nodes[name]
            adapted.nodes[name] = replace(node, op=replace(node.op, momentum=MOMENTUM))
        self._model = type(model)(adapted, self._source, share_with=model, seed=model.seed)
        optimizer = optimizer or (SGD(0.0) if method == "statistics" else Adam(RATE))
        loss = eata_loss(self.classes) if method == "eata" else tent_loss
        self._model.compile(optimizer, loss, batchnorm="batch" if self._norms else "moving")
        if method == "statistics":
            self._model.settings = replace(self._model.settings, statistics_only=True)
        self._fisher = self._importance(anchor, size) if anchor is not None and method == "eata" else {}
        self._anchor_weight = number("anchor_weight", anchor_weight, 0)
        # Sizes of parts that are answered: any number of examples is a sum of them.
        halves = [1 << bit for bit in reversed(range((size - 1).bit_length()))]
        self._sizes = sorted({self.batch_size, size, *halves}, reverse=True)
        self.trainer = self._model.trainer(self.batch_size, size, budget, examples=halves)
        self.answers = np.empty((0, self.classes), np.float32)
        self.reset()
        self._unchanged = UNCHANGED[0]
        if anchor is not None and self._norms:
            self._unchanged = KNOWN * max(self._shifts(anchor))

    @property
    def plan(self) -> Plan:
        return self.trainer.plan

    def _shifts(self, examples: Any) -> Iterator[float]:
        """The divergence of the first statistics of each batch of the world before."""
        whole_batches = max(1, len(examples) // self.batch_size) * self.batch_size
        for part in mini_batches(np.resize(np.arange(len(examples)), whole_batches), self.batch_size):
            self._move(np.asarray(examples[part], np.float32))
            yield self.shift
            self.reset()

    def _importance(self, examples: Any, size: int) -> Weights:
        """The diagonal of the Fisher information of scales and shifts, from unlabelled examples of the world before and
        the classes that the network gives them (Kirkpatrick et al. 2017)."""
        known = type(self._model)(self._model.network, self._source, share_with=self._model)
        known.compile(SGD(0.0), batchnorm="moving")
        labels = known.predict(examples).argmax(-1)
        sums = dict[str, np.ndarray]()
        with known.trainer(size) as trainer:
            parts = list(mini_batches(np.arange(len(labels)), size))
            for part in parts:
                for name, gradient in trainer.gradients(examples[part], labels[part]).items():
                    sums[name] = sums.get(name, 0) + np.square(gradient)
        return {name: total / len(parts) for name, total in sums.items()}

    # -- answers -------------------------------------------------------------------------------------------------

    def predict(self, x: Any, steps: int | None = None) -> np.ndarray:
        """Adapt to examples, and answer them: probabilities, float32 (n, classes), in their order.

        A full batch moves the network before it is answered. Examples that are fewer are answered at once, and wait
        until a batch is full.

        - `x`: examples as `Model.predict` takes them, also a stream of batches; `steps`: most batches of a stream.
        """
        return np.concatenate([self._answer(part) for part in self._parts(x, steps)])

    def _parts(self, x: Any, steps: int | None) -> Iterator[np.ndarray]:
        for source in to_predict(x, self._model.network, steps):
            start = 0
            while start < len(source):
                size = next(size for size in self._sizes if size <= len(source) - start)
                yield np.asarray(source[np.arange(start, start + size)], np.float32)
                start += size

    def _answer(self, x: np.ndarray) -> np.ndarray:
        if not self.off:
            self._waiting = np.concatenate([self._waiting, x]) if len(self._waiting) else x
            if len(self._waiting) >= self.batch_size:
                batch, self._waiting = np.split(self._waiting, [self.batch_size])
                self._update(batch)
        answers = self.trainer.predict(x)
        self.entropies.append(float(entropy(np, answers).mean()))
        return answers

    def _update(self, x: np.ndarray) -> None:
        if self._held:
            self.trainer.session.put(self._held)
        state = self.trainer.snapshot()
        counts = len(self._checks), len(self._told)
        self._before = _Moment(state, self._seen, self._mean, self.shift, *counts, self.sure)
        try:
            self._move(x)
        except NonFiniteError as error:
            self._end(str(error))
            return
        self.updates += 1
        if self._fisher:
            self._pull()
        if self.method == "eata":
            own = self.trainer.predict(x).mean(0)
            self._mean = own if self.updates == 1 else MEAN_MOMENTUM * self._mean + (1 - MEAN_MOMENTUM) * own
        if self.guard and (self.updates <= FIRST_CHECKS or self.updates % CHECK_EVERY == 0):
            self._check(x)
        if not (self.sure or self.off):
            # Statistics alone move until then: trained for less entropy, answers to a single class would seem sure.
            statistics = self._statistics()
            self.trainer.resume(replace(state, position=replace(state.position)))
            self.trainer.session.put(statistics)
        self._hold()

    def _hold(self) -> None:
        """Put the unadapted network in place of the adapted one, which is held for the next update, unless it is
        sure."""
        self._held = {}
        if not (self.sure or self.off):
            self._held = self.trainer.session.weights()
            self.trainer.session.put({name: self._source[name] for name in self._held})

    def _move(self, x: np.ndarray) -> None:
        """Move statistics, and what is trained, by a batch."""
        before, own = self._statistics(), self._step(x)
        self._seen += len(x)
        # A mean of all batches, until a batch's share is the least.
        share = max(len(x) / (self._prior + self._seen), LEAST_SHARE[self.method])
        moved = {name: (before[name] * (1 - share) + own[name] * share).astype(np.float32) for name in own}
        self.trainer.session.put(moved)
        if self._norms:
            self.shift = self._divergence(moved)

    def _step(self, x: np.ndarray) -> Weights:
        """Train on a batch; returns its own statistics."""
        targets = np.broadcast_to(self._mean, (len(x), self.classes)).astype(np.float32)
        self.trainer.session.put({name: np.zeros_like(value) for name, value in self._statistics().items()})
        self.trainer.step(x, targets)
        # The averages began at zeros, which their weights tell (as in Adam's first steps).
        known = 1 - MOMENTUM ** (len(x) // self.plan.request.micro_batch)
        return {name: value / known for name, value in self._statistics().items()}

    def _statistics(self) -> Weights:
        """The statistics by which it answers."""
        if not self._norms:
            return {}
        return {name: value for name, value in self.trainer.session.weights().items() if "/moving_" in name}

    def _divergence(self, statistics: Weights) -> float:
        first, op = self._norms[0], self._model.network.nodes[self._norms[0]].op
        mean, variance = f"{first}/moving_mean", f"{first}/moving_variance"
        stored = self._source[variance] + op.epsilon
        ratio = (statistics[variance] + op.epsilon) / stored
        distance = np.square(statistics[mean] - self._source[mean]) / stored
        return float(np.mean(ratio - 1 - np.log(ratio) + distance) / 2)

    def _pull(self) -> None:
        """Pull scales and shifts back, the stronger the more the answers of the world before depend on them: the
        proximal step of the anchor's quadratic penalty."""
        session = self.trainer.session
        strength = 2 * self.trainer.learning_rate * self._anchor_weight
        own, pulled = session.weights(), {}
        for name, importance in self._fisher.items():
            pull = strength * importance
            pulled[name] = ((own[name] + pull * self._source[name]) / (1 + pull)).astype(np.float32)
        session.put(pulled)

    def _check(self, x: np.ndarray) -> None:
        """Go back to the unadapted network if it is the better one, by what can be seen without labels."""
        session = self.trainer.session
        own, adapted = self.trainer.predict(x), session.weights()
        session.put({name: self._source[name] for name in adapted})
        base = self.trainer.predict(x)
        self._checks.append((own, base))
        session.put(adapted)
        unchanged = bool(self._norms) and self.shift < self._unchanged + UNCHANGED[1] / self._seen
        if unchanged and information(own) < information(base) + MORE:
            self._end(f"the examples look like those before (their first statistics differ by {self.shift:.3f} nats)")
        elif why := reason(self._checks):
            self._end(why)
        else:
            if not self.sure:
                self._told.append(information(own) - self._within(x, own))
                self.sure = sum(self._told[-2:]) > SURE

    def _within(self, x: np.ndarray, answers: np.ndarray) -> float:
        """Information, in nats, that a batch's parts tell, each the examples of one answer, by statistics of its own.

        Statistics of one class let answers tell of what differs within it: such a batch tells little more than its
        parts do.
        """
        labels = answers.argmax(-1)
        numbers = np.bincount(labels, minlength=self.classes)
        chosen = [one for one in np.argsort(-numbers)[:PARTS] if numbers[one] >= LEAST_PART]
        told = [self._alone(x[np.resize(np.flatnonzero(labels == one), len(x))]) for one in chosen]
        return float(np.average(told, weights=numbers[chosen])) if chosen else 0.0

    def _alone(self, x: np.ndarray) -> float:
        """Information of answers to a batch by its own statistics; all stays as it was."""
        state = self.trainer.snapshot()
        own = self._step(x)
        self.trainer.session.put({name: value.astype(np.float32) for name, value in own.items()})
        told = information(self.trainer.predict(x))
        self.trainer.resume(state)
        return told

    def _end(self, why: str) -> None:
        self.off, self._held = why, {}
        rate = self.trainer.position.learning_rate
        self.trainer.load(self._source)
        self.trainer.position.learning_rate = rate

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """Copies of all weights of the adapted network, also while the unadapted one answers, for the model that it
        began with."""
        return {**self.trainer.weights, **self._held}

    @property
    def headline(self) -> str:
        told = f"off, since {self.off}" if self.off else plural(self.updates, "update")
        if self.updates and not (self.sure or self.off):
            told += ", not sure of many classes: the unadapted network answers"
        return f"of '{self._model.network.name}' by {self.method}, {megabytes(self.plan.peak_bytes)} planned: {told}"

    def undo(self) -> None:
        """Go back to before the last update, once; its examples are forgotten. Raises PlanError if there is none."""
        if self._before is None:
            raise PlanError("There is no update to undo: only the last one can be.")
        self.trainer.resume(self._before.state)
        self._seen, self._mean, self.shift = self._before.seen, self._before.mean, self._before.shift
        self._checks, self._told = self._checks[: self._before.checks], self._told[: self._before.told]
        self.sure = self._before.sure
        self._before, self.off = None, ""
        self.updates -= 1
        self._hold()

    def reset(self) -> None:
        """Go back to the unadapted network, and forget the examples."""
        self.trainer.load(self._source)
        self.updates, self.off, self.shift, self.entropies = 0, "", 0.0, list[float]()
        self._waiting = np.empty((0, *next(iter(self._model.network.inputs.values()))), np.float32)
        self._mean, self._seen = np.zeros(self.classes, np.float32), 0
        self._before, self._checks, self._told = None, list[tuple[np.ndarray, np.ndarray]](), list[float]()
        self.sure, self._held = self.mixed or not (self.guard and self._norms), Weights()

    def close(self) -> None:
        """Give the device's memory back."""
        self.trainer.close()


def _micro_batch(batch_size: int) -> int:
    """The largest divisor of a batch's size that is at most MICRO_BATCH, the whole if that is a small one."""
    found = next(size for size in range(min(MICRO_BATCH, batch_size), 0, -1) if batch_size % size == 0)
    return found if 2 * found >= min(MICRO_BATCH, batch_size) else batch_size


def reason(checks: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """Why the unadapted network is the better one, or "": from pairs of the adapted and the unadapted network's
    answers to the same batches, in their order."""
    if len(checks) < ENOUGH_CHECKS:
        return ""
    if (ratio := between(np.stack([base for _, base in checks]))) > ORDERED:
        return f"the examples seem to come in the order of their classes (batches vary {ratio:.1f} times too much)"
    less = float(np.mean([information(base) - information(own) for own, base in checks]))
    if less > LESS:
        return f"the unadapted network's answers tell more ({less:.2f} nats of each example)"
    spread = [float(entropy(np, own.mean(0))) for own, _ in checks]
    if spread[-1] < COLLAPSED * spread[0]:
        return f"adapted answers fall into few classes ({spread[-1]:.2f} nats of them, {spread[0]:.2f} at first)"
    return ""


def information(answers: np.ndarray) -> float:
    """Mutual information of examples and classes, in nats, by answers (examples, classes)."""
    return float(entropy(np, answers.mean(0)) - entropy(np, answers).mean())


def between(answers: np.ndarray) -> float:
    """The variance between batches over what a random order would give, from answers (batches, examples, classes)."""
    count, size, _ = answers.shape
    means = answers.mean(1)
    found = size * np.square(means - means.mean(0)).sum() / (count - 1)
    return float(found / max(np.square(answers - means[:, None]).sum() / (count * (size - 1)), LEAST))
