"""Schemes of sparse updates: which layers train their biases, and which of them how many input channels of their
kernel, within a budget of memory (Lin et al. 2022, "On-device training under 256KB memory", arXiv 2206.15472).

The paper measures by many trainings what each choice contributes to the accuracy, and searches by evolution. Here a
choice contributes the squared norm of the gradients that it updates: to first order that, times the learning rate, is
by how much a step lowers the loss. One backward pass gives all of them. What a choice costs comes from plans.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from edgelearn.compile import Kind, Plan, account
from edgelearn.compile.memory import Compress
from edgelearn.compile.plan import stored
from edgelearn.compile.policies import compressed_checkpoints, masks
from edgelearn.compile.request import Policy
from edgelearn.display import megabytes
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.graph.rewrites import Branches, takes_branch
from edgelearn.launch import Role
from edgelearn.ops import SGD, Optimizer
from edgelearn.ops.tensor import BLOCK, ceil_div
from edgelearn.train import Model

SHARES = (0.125, 0.25, 0.5, 1.0)  # of a layer's input channels, as in the paper
TRIES = 12  # plans of a search


@dataclass(frozen=True)
class Scheme:
    """A scheme of a sparse update.

    Arguments:
    - `first`: the lowest layer whose bias (or shift of the BatchNorm after it) is trained, as in all layers above.
    - `kernels`: layers whose whole kernel is trained.
    - `channels`: by layer, the number of its first input channels whose weights are trained.
    - `nbytes`: activations that the plan stores between the passes, gradients and optimizer state.
    - `seconds`: time of the search.
    - `whole`: train everything from `first` on, not its biases alone (default False).
    """

    first: str
    kernels: tuple[str, ...]
    channels: Mapping[str, int]
    nbytes: int
    seconds: float
    whole: bool = False

    @property
    def branches(self) -> Branches:
        return Branches(self.channels, {})

    def network(self, network: Network) -> Network:
        """A copy of `network` with the branches, that trains what the scheme says."""
        copy = network.copy().freeze()
        above = _from(copy, self.first)
        if self.whole:
            return copy.unfreeze(*(name for name, p in copy.parameters.items() if p.layer in above))
        copy.unfreeze(*(name for name in _biases(copy) if copy.parameters[name].layer in above))
        copy.unfreeze(*(f"{name}/kernel" for name in self.kernels))
        return self.branches.network(copy)

    def __str__(self) -> str:
        parts = [
            f"{'everything' if self.whole else 'biases'} from {self.first} on",
            *(f"{name} whole" for name in self.kernels),
        ]
        parts += [f"{name} {count} channels" for name, count in self.channels.items()]
        return f"{', '.join(parts)}: {megabytes(self.nbytes)}, found in {self.seconds:.1f} s"


def update_bytes(plan: Plan) -> int:
    """Bytes that a step holds besides those of inference: stored activations, gradients and optimizer state."""
    roles = plan.bytes_by_role
    return account(plan).stored + roles.get(Role.GRADIENT, 0) + roles.get(Role.OPTIMIZER, 0)


def find_scheme(
    model: Model, x: np.ndarray, y: np.ndarray, budget: int, batch_size: int = 32, head: str | None = None,
    activation_memory: Policy = masks,
) -> Scheme:  # fmt: skip
    """Find the scheme of the largest contribution within a budget. The last layer is always trained whole.

    Arguments:
    - `model`: compiled, with the weights that the update begins with.
    - `x`, `y`: a batch of examples, from which contributions are measured.
    - `budget`: bytes, as `update_bytes` counts them.
    - `batch_size`: examples of a step, which are on the device at once (default 32).
    - `head`: name of the last layer (default: the last one with a kernel).
    - `activation_memory`: the policy of the update (default `policies.masks`).

    Raises PlanError if the last layer alone takes more.
    """
    return _Search(model, x, y, batch_size, head, activation_memory).run(budget)


def find_blocks(
    model: Model, budget: int, batch_size: int = 32, activation_memory: Policy = compressed_checkpoints
) -> Scheme:
    """Find how many of the last layers can be trained whole within a budget, their BatchNorms normalising by each
    batch's statistics. Where most activations are recomputed, these are many.

    Arguments as of `find_scheme`. Raises PlanError if the last layer alone takes more.
    """
    began, found = time.perf_counter(), None
    layers = [p.layer for p in model.network.parameters.values() if p.role == "kernel"]
    for first in dict.fromkeys(reversed(layers)):
        scheme = Scheme(first, (), {}, 0, 0.0, whole=True)
        each = Model(scheme.network(model.network), None, share_with=model)
        each.compile(model.optimizer or SGD(0.01), model.loss, batchnorm="batch", activation_memory=activation_memory)
        nbytes = update_bytes(each.plan(batch_size))
        if nbytes > budget:
            if found is None:
                raise _too_little(first, nbytes, budget)
            break
        found = replace(scheme, nbytes=nbytes)
    assert found is not None
    return replace(found, seconds=time.perf_counter() - began)


def _too_little(head: str, nbytes: int, budget: int) -> PlanError:
    return PlanError(
        f"To train '{head}' alone takes {megabytes(nbytes)}, more than the budget of {megabytes(budget)}: give it "
        f"more, or a smaller batch."
    )


class _Search:
    def __init__(
        self, model: Model, x: np.ndarray, y: np.ndarray, batch_size: int, head: str | None, policy: Policy
    ) -> None:
        self.began = time.perf_counter()
        self.model, self.batch_size, self.policy = model, batch_size, policy
        self.network = model.network.copy().freeze()
        nodes = [node for node in self.network.nodes.values() if takes_branch(node)]
        self.head = head or nodes[-1].name
        self.layers = [node.name for node in nodes if node.name != self.head]
        self.biases = _biases(self.network)
        strategies = policy(self.network).values()
        self.width = min((each.format.bits // 8 for each in strategies if isinstance(each, Compress)), default=4)
        self.network.unfreeze(*self.biases, *(f"{name}/kernel" for name in (*self.layers, self.head)))
        whole = Model(self.network, model.weights, share_with=model)
        whole.compile(SGD(0.0), model.loss, batchnorm="moving")
        self.squares = {
            name: np.square(g, dtype=np.float64) for name, g in whole.gradients(x, y, min(batch_size, len(y))).items()
        }

    def run(self, budget: int) -> Scheme:
        """The best scheme by estimated bytes of which the plan fits."""
        best = self._scheme(self.head, ())
        if best.nbytes > budget:
            raise _too_little(self.head, best.nbytes, budget)
        rooms = {first: budget - nbytes for first, nbytes in self._bases().items()}
        waiting = [self._candidate(first, room) for first, room in rooms.items() if room >= 0]
        heapify(waiting)
        for _ in range(min(TRIES, len(waiting))):
            _, first, room, chosen = heappop(waiting)
            scheme = self._scheme(first, tuple(chosen.items()))
            if scheme.nbytes <= budget:
                best = scheme
                break
            heappush(waiting, self._candidate(first, room - 2 * (scheme.nbytes - budget)))
        return replace(best, seconds=time.perf_counter() - self.began)

    def _candidate(self, first: str, room: int) -> tuple[float, str, int, dict[str, int]]:
        """Choose what to train from `first` on in `room` bytes besides biases: (negative contribution, `first`, `room`,
        channels by layer)."""
        chosen, gain = self._choose(self.layers[self.layers.index(first) :], room)
        return -gain - self._gain_of_biases(first), first, room, chosen

    def _bases(self) -> dict[str, int]:
        """By layer, the bytes of training the biases from it on, and the last layer, from the plan for all of them."""
        plan, slots = self._plan(Scheme(self.layers[0], (self.head,), {}, 0, 0.0)), self._slots
        places = {name: place for place, name in enumerate(self.network.nodes)}
        sizes = [(buffer.name.partition("/")[0], buffer.nbytes) for buffer in stored(plan.program(Kind.TRAIN))]
        sizes += [
            (parameter.layer, 4 * slots * BLOCK * ceil_div(parameter.weight.size, BLOCK))
            for name, parameter in self.network.parameters.items() if name in plan.request.trainable
        ]  # fmt: skip
        return {
            first: sum(nbytes for name, nbytes in sizes if places.get(name, len(places)) >= places[first])
            for first in self.layers
        }

    @property
    def _slots(self) -> int:
        """Numbers for each trained weight: its gradient, and the optimizer's state."""
        return 1 + len((self.model.optimizer or SGD(0.01)).slots)

    def _scheme(self, first: str, chosen: tuple[tuple[str, int], ...]) -> Scheme:
        """The scheme with these channels by layer, and the bytes of its plan."""
        channels = {name: count for name, count in chosen if count < self._count(name)}
        kernels = (*(name for name, count in chosen if name not in channels), self.head)
        scheme = Scheme(first, kernels, channels, 0, 0.0)
        return replace(scheme, nbytes=update_bytes(self._plan(scheme)))

    def _plan(self, scheme: Scheme) -> Plan:
        model = Model(scheme.network(self.model.network), None, share_with=self.model)
        optimizer: Optimizer = self.model.optimizer or SGD(0.01)
        model.compile(optimizer, self.model.loss, batchnorm="moving", activation_memory=self.policy)
        return model.plan(self.batch_size)

    def _count(self, name: str) -> int:
        return self.network.input_shapes(self.network.nodes[name].inputs)[0][-1]

    def _choose(self, layers: list[str], room: int) -> tuple[dict[str, int], float]:
        """(channels by layer, their contribution): the steps of the best contribution a byte that fit into `room`."""
        chosen, total = dict[str, int](), 0.0
        options = {name: self._options(name) for name in layers}
        while True:
            best, ratio = None, 0.0
            for name, steps in options.items():
                cost, gain = steps.get(chosen.get(name, 0), (0, 0.0))
                for count, (nbytes, value) in steps.items():
                    if count > chosen.get(name, 0) and nbytes - cost <= room:
                        density = (value - gain) / max(1, nbytes - cost)
                        if density > ratio:
                            best, ratio = (name, count, nbytes - cost, value - gain), density
            if best is None:
                return chosen, total
            name, count, nbytes, value = best
            chosen[name], room, total = count, room - nbytes, total + value

    def _options(self, name: str) -> dict[int, tuple[int, float]]:
        """By number of channels, the bytes and the contribution of training them."""
        node, count = self.network.nodes[name], self._count(name)
        rows = self.batch_size * prod(self.network.input_shapes(node.inputs)[0][:-1])
        squares = self.squares[f"{name}/kernel"]
        by_channel = np.cumsum(squares.sum(axis=(*range(squares.ndim - 2), -1)))
        found = {}
        for share in SHARES:
            kept = count if share == 1 else BLOCK * round(share * count / BLOCK)
            if 0 < kept <= count:
                weights = squares.size * kept // count
                found[kept] = (
                    self.width * rows * BLOCK * ceil_div(kept, BLOCK) + 4 * self._slots * weights,
                    float(by_channel[kept - 1]),
                )
        return found

    def _gain_of_biases(self, first: str) -> float:
        above = _from(self.network, first)
        return sum(float(self.squares[n].sum()) for n in self.biases if self.network.parameters[n].layer in above)


def _biases(network: Network) -> list[str]:
    """Names of the biases, and of the shifts of BatchNorms."""
    return [name for name, parameter in network.parameters.items() if parameter.role in ("bias", "beta")]


def _from(network: Network, first: str) -> set[str]:
    names = list(network.nodes)
    return set(names[names.index(first) :])
