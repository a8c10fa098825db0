"""Search the fastest kernel variants and tile sizes on a device.

Whole steps of plans run, so that caches and clocks are as in real use: every decision of a step gets one of its
candidates, and each decision is charged with its own launches' time. Then the candidates rotate; the slow ones drop
out, as in successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943). Candidates of a decision that several
workloads have run in all of them, and their times are added.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from statistics import median

import numpy as np

from edgelearn import tuned
from edgelearn.compile import Kind, Plan, Request, make_plan
from edgelearn.device import Device, DeviceKind, KernelConfig
from edgelearn.errors import EdgelearnError
from edgelearn.graph import split_frozen
from edgelearn.launch import Buffer, Decision, Launch, Role
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, Traits
from edgelearn.runtime import Context, Kernels, Session, choose_device
from edgelearn.runtime.session import random_batch
from edgelearn.statistics import quartiles
from edgelearn.tables import Table

from .bench.engine import make_request
from .bench.workloads import Workload
from .measure import RoundsConfig, Sample, measure_in_turn, usable_cores

CPU = ("train:1", "train:16", "cached:163", "cached:163/15", "flowers-sample", "forward:1", "forward:16", "train_bn:1")
INTEGERS = ("resnet18/train_bn:1", "resnet18/train_bn:8", "train_bn:1", "mobilenet_v2/train_bn:1")
UNITS_GPU = ("resnet18/train_bn:32", "train_bn:32", "mobilenet_v2/train_bn:32")
GPU = ("train:1", "train:32", "cached:163", "forward:1", "forward:32")
GUESSED_CPU, GUESSED_GPU = 1e11, 1e13  # FLOP/s
LEAST_STEPS, MOST_STEPS, LEAST_SECONDS = 2, 9, 0.1  # of a turn
WARM_UP = 1  # step: compiles kernels, or loads them again if others have displaced them from the driver's cache
EQUAL = 0.02  # candidates whose times differ by less are as good
FEWEST = 3  # samples of a candidate that may win
COMPARISONS = 5  # turns before and after tuning
KERNEL_SECONDS, TURN_SECONDS = 0.15, 0.2  # estimates: compiling a kernel, and a turn without its steps
# Candidates that stay besides the safe one (at first all), turns of each, and the part of a workload's time by which
# the stage ends: candidates without a turn by then drop out.
STAGES = ((None, 1, 0.6), (5, 2, 0.8), (2, 4, 1.0))

Progress = Callable[[float, str], None]


def defaults(gpu: bool, compute: str) -> tuple[str, ...]:
    """The works that are tuned if none is named."""
    if compute == "fp32":
        return GPU if gpu else CPU
    return UNITS_GPU if gpu else INTEGERS


@dataclass(frozen=True)
class TuningWork:
    """A training step of one micro-batch, or a prediction where nothing is trained.

    Arguments:
    - `name`: of the work, for tables.
    - `request`: its plan is made from this.
    """

    name: str
    request: Request

    @property
    def trains(self) -> bool:
        return self.request.optimizer is not None

    @classmethod
    def parse(cls, text: str, compute: str = "fp32") -> TuningWork:
        """A whole network's workload of `edgelearn bench`, in micro-batches as in "cached:163/15" if need be; or
        "flowers-sample", the training of the embedded sample's network, in float32. `compute` is the type of others;
        see `Workload`. Raises EdgelearnError for any other."""
        if text == "flowers-sample":
            network = mobilenet_v1((96, 96, 3), alpha=0.25, classes=5).freeze().unfreeze("conv_pw_13", "dense")
            split = split_frozen(network)
            assert split is not None
            return cls(text, Request(split.suffix, 50, 50, SGD(momentum=0.9)))
        parts = re.fullmatch(r"(?P<workload>.+:[^/:]*)/(?P<micro>[^/:a-z]*)", text)
        workload = Workload.parse(parts["workload"] if parts else text, compute=compute)
        micro = parts["micro"] if parts else ""
        if parts and not (micro.isascii() and micro.isdigit() and 0 < int(micro) <= workload.batch):
            raise EdgelearnError(f"Workload '{text}': after the slash comes the micro-batch, 1 to {workload.batch}.")
        micro_batch = int(micro) if parts else workload.micro_batch
        name = text if compute == "fp32" else f"{text}, {compute}"
        return cls(name, replace(make_request(workload, micro_batch), batch_size=micro_batch))


def works_of(plans: Iterable[Plan]) -> list[TuningWork]:
    """A work for each size of micro-batch of each plan."""
    works = []
    for plan in plans:
        r = plan.request
        verb = "train" if r.optimizer else "predict"
        for n in dict.fromkeys(plan.micro_batches(r.batch_size)):
            works.append(TuningWork(f"{verb} {r.network.name}:{n}", replace(r, batch_size=n, micro_batch=n)))
    return works


@dataclass(frozen=True)
class TunedStep:
    """One measured step: `seconds` by the host's clock, and nanoseconds on the device by decision."""

    seconds: float
    by_decision: Mapping[str, float]


class Rig:
    """Runs `work` on the device of `context`, which must profile."""

    def __init__(self, work: TuningWork, context: Context, kernels: Kernels) -> None:
        self.work, self.context, self.kernels = work, context, kernels
        self.weights = work.request.network.initialize()
        self.steps = LEAST_STEPS

    def plan(self, choices: Mapping[str, KernelConfig]) -> Plan:
        device = self.context.device
        return make_plan(self.work.request, device, traits=replace(Traits.of(device), tuned=choices))

    @cached_property
    def launches(self) -> Sequence[Launch]:
        """The launches of the step as it is without tuning."""
        return self.plan({}).program(Kind.TRAIN if self.work.trains else Kind.PREDICT).launches

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """The decisions of the step, by name."""
        return {launch.decision.name: launch.decision for launch in self.launches if launch.decision}

    def seconds(self) -> float:
        """A rough estimate of the time of a step."""
        speed = GUESSED_GPU if self.context.device.is_gpu else GUESSED_CPU
        return sum(launch.flops for launch in self.launches) / speed

    def run(self, choices: Mapping[str, KernelConfig]) -> list[TunedStep]:
        """Time steps computed with `choices`, more of them where they are short."""
        plan, size, steps = self.plan(choices), self.work.request.micro_batch, []
        every = number_of_launches(self.launches)
        with closing(Session(plan, self.context, self.kernels)) as session:
            session.load(self.weights)
            x, targets = random_batch(plan, size, np.random.default_rng(0))
            for _ in range(WARM_UP + self.steps):
                self.context.take_times()
                start = time.perf_counter()
                if self.work.trains:
                    session.train([(x, targets)], size, rate=0.0, step=1)
                else:
                    session.predict_packed(x, size)
                seconds = time.perf_counter() - start
                times = self.context.take_times()
                spent, left = shares(times), number_of_launches(launch for launch, *_ in times)
                # Choices may fuse some of a decision's launches into others: those that are left stand for all.
                steps.append(TunedStep(seconds, {name: spent[name] * every[name] / left[name] for name in spent}))
        del steps[:WARM_UP]
        self.steps = int(np.clip(LEAST_SECONDS / median(s.seconds for s in steps), LEAST_STEPS, MOST_STEPS))
        return steps


def number_of_launches(launches: Iterable[Launch]) -> Counter[str]:
    """By decision."""
    return Counter(launch.decision.name for launch in launches if launch.decision)


def shares(times: Iterable[tuple[Launch, int, int]]) -> dict[str, float]:
    """Nanoseconds by decision: those of its launches, and a share, by bytes, of the launches that add up partial sums
    it has left."""
    spent: dict[str, float] = defaultdict(float)
    left_by: dict[Buffer, str] = {}
    for launch, start, end in times:
        if launch.decision:
            spent[launch.decision.name] += end - start
            left_by |= {b: launch.decision.name for b in launch.writes if b.role is Role.PARTIAL}
        elif left := [b for b in launch.reads if b in left_by]:
            whole = sum(b.nbytes for b in launch.reads)
            for buffer in left:
                spent[left_by[buffer]] += (end - start) * buffer.nbytes / whole
    return dict(spent)


@dataclass
class Race:
    """Times of the candidates of a decision, by their number in it, one a turn. `running` are still measured. The first
    candidate, which is the safe one, is measured to the end: to win, another one has to beat it."""

    decision: Decision
    samples: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.running = list(range(len(self.decision.candidates)))

    def entrant(self, turn: int) -> int:
        return self.running[turn % len(self.running)]

    def add(self, number: int, nanoseconds: float) -> None:
        self.samples.setdefault(number, []).append(nanoseconds)

    def cut(self, keep: int | None, rng: np.random.Generator) -> None:
        """Go on with the safe candidate and the fastest `keep` others (all where None), in a new order."""
        others = sorted((n for n in self.running if n), key=self.time)[:keep]
        self.running = [int(n) for n in rng.permutation([0, *others])]

    def time(self, number: int) -> float:
        """Median of the samples; infinite where there are none."""
        return median(self.samples.get(number, [inf]))

    def winners(self) -> list[int]:
        """Candidates as good as the fastest, that one first; the safe one alone if it is among them, if the fastest
        doesn't beat it by more than the spread of both, or was measured too seldom."""
        fastest = min(self.running, key=self.time)
        as_good = sorted((n for n in self.running if self.time(n) <= self.time(fastest) * (1 + EQUAL)), key=self.time)
        if 0 in as_good or any(len(self.samples.get(n, [])) < FEWEST for n in (0, fastest)):
            return [0]
        quarters = (quartiles(self.samples[n]) for n in (0, fastest))
        uncertain = sum((high - low) / 2 for low, _, high in quarters)
        return [0] if self.time(fastest) + uncertain >= self.time(0) else as_good


def settle(races: Iterable[Race]) -> dict[str, KernelConfig]:
    """The chosen candidate by name of the decision. Among candidates as good as the fastest, the one that other
    decisions of the same kernel spend most time in: fewer kernels compile faster, and fit into a driver's cache."""
    used: dict[tuple[str, str], float] = defaultdict(float)
    settled = {}
    for race in sorted((race for race in races if race.samples), key=lambda race: -race.time(0)):
        name, candidates = race.decision.name, race.decision.candidates
        kernel = name.split()[0]
        key = {n: (kernel, json.dumps(candidates[n], sort_keys=True)) for n in race.winners()}
        best = max(key, key=lambda n: used[key[n]])  # the fastest of equals: max takes the first
        used[key[best]] += race.time(best)
        settled[name] = candidates[best]
    return settled


class Group:
    """Some workloads; `open_` names the decisions to tune."""

    def __init__(self, rigs: Sequence[Rig], open_: Set[str]) -> None:
        self.rigs = list(rigs)
        self.open = {name: d for name, d in self.decisions.items() if name in open_}

    def __str__(self) -> str:
        return ", ".join(rig.work.name for rig in self.rigs)

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        return {name: decision for rig in self.rigs for name, decision in rig.decisions.items()}

    @cached_property
    def safe(self) -> dict[str, KernelConfig]:
        return {name: decision.candidates[0] for name, decision in self.decisions.items()}

    def run(self, choices: Mapping[str, KernelConfig]) -> dict[str, float]:
        """Nanoseconds by decision, summed over the workloads; the fastest step of each counts. Decisions are left out
        all of whose launches these choices fuse into others in a workload."""
        found, spent = [(rig, rig.run(choices)) for rig in self.rigs], {}
        for name in self.decisions:
            runs = [steps for rig, steps in found if name in rig.decisions]
            if all(name in steps[0].by_decision for steps in runs):
                spent[name] = sum(min(step.by_decision[name] for step in steps) for steps in runs)
        return spent

    def compare(self, choices: Mapping[str, KernelConfig]) -> dict[str, tuple[float, float]]:
        """(seconds with the safe choices, seconds with these) of each workload's step, in turn: the median over turns
        of the fastest step."""

        def fastest(rig: Rig, choices: Mapping[str, KernelConfig]) -> Sample:
            cpu = time.process_time()
            steps = rig.run(choices)
            return Sample([min(step.seconds for step in steps)], time.process_time() - cpu)

        config, seconds = RoundsConfig(COMPARISONS, 0.0, attempts=1), {}
        for rig in self.rigs:
            samplers = {number: partial(fastest, rig, each) for number, each in enumerate((self.safe, choices))}
            blocks = measure_in_turn(samplers, usable_cores(), config)
            safe, tuned = (median(block.seconds for block in blocks[number]) for number in samplers)
            seconds[rig.work.name] = safe, tuned
        return seconds

    def seconds(self, turns: int) -> float:
        """An estimate of the time of tuning in so many turns."""
        kernels = {(n.split()[0], *sorted(c.items())) for n, d in self.open.items() for c in d.candidates}
        turn = sum(TURN_SECONDS + 3 * rig.seconds() for rig in self.rigs)
        return KERNEL_SECONDS * len(kernels) + (turns + 2 * COMPARISONS) * turn


def groups_of(rigs: Iterable[Rig], settled: Set[str]) -> list[Group]:
    """Groups of workloads that have only settled decisions in common."""
    found: list[tuple[set[str], list[Rig]]] = []
    for rig in rigs:
        names, members = set(rig.decisions) - settled, []
        for group in [group for group in found if group[0] & names]:
            found.remove(group)
            names, members = names | group[0], members + group[1]
        found.append((names, [*members, rig]))
    return [Group(members, names) for names, members in found]


@dataclass
class TuningReport:
    """Result of a search.

    Arguments:
    - `results`: the choices, as saved.
    - `path`: the file that holds them.
    - `names`: of the workloads that were requested.
    """

    results: tuned.TuningResults
    path: Path
    names: list[str]

    def __str__(self) -> str:
        works = [(name, self.results.workloads[name]) for name in self.names]
        rows = [
            (name, *(f"{w[when] * 1e3:.2f} ms" for when in ("before", "after")), w["decisions"], w["changed"])
            for name, w in works
        ]
        return f"{Table(('step of', 'before', 'after', 'decisions', 'changed'), rows, right=True)}Kept in {self.path}"


class Tuner:
    """Tunes a device.

    Arguments:
    - `device`: the device.
    - `folder`: where results are stored (default: the user's folder, where plans find them). Decisions in the file
      there are settled.
    - `seed`: draws the order of candidates.

    Raises FormatError for a damaged file.
    """

    def __init__(self, device: Device, folder: Path | None = None, seed: int = 0) -> None:
        self.context = Context(device, profiling=True)
        self.kernels = Kernels(self.context)
        self.rng = np.random.default_rng(seed)
        self.results = tuned.TuningResults(DeviceKind.of(device))
        self.path = tuned.path_of(self.results.kind, folder or tuned.user_folder())
        if self.path.exists():
            self.results = tuned.load(self.path)
        self.results.measured |= {"device": device.facts(), "date": datetime.date.today().isoformat()}

    def tune(
        self,
        works: Sequence[TuningWork],
        minutes: float | None = None,
        again: bool = False,
        progress: Progress | None = None,
    ) -> TuningReport:
        """Search the decisions of workloads that aren't settled yet. Results are saved as they come; an interrupted
        search saves the decisions that are clear by then, and leaves the others as they were.

        Arguments:
        - `minutes`: about how long to search (default: until all candidates are measured).
        - `again`: search settled decisions, too.
        - `progress`: called with the part that is done, 0 to 1, and the names of the workloads at hand.

        Raises FormatError for a folder that can't be written.
        """
        rigs = [Rig(work, self.context, self.kernels) for work in works]
        settled = set(self.results.choices)
        if again:
            settled.difference_update(*(rig.decisions for rig in rigs))
        done = set() if again else set(self.results.workloads)
        todo = [r for r in rigs if r.work.name not in done or not set(r.decisions) <= settled]
        if todo:  # a folder that can't be written is an error before anything is measured
            tuned.save(self.results, self.path.parent)
        groups = groups_of(todo, settled)
        sizes = [group.seconds(sum(_rounds(group))) for group in groups]
        for index, group in enumerate(groups):

            def report(part: float, index: int = index) -> None:
                if progress:
                    progress((sum(sizes[:index]) + part * sizes[index]) / sum(sizes), str(groups[index]))

            report(0.0)
            self._search(group, (minutes or inf) * 60 * sizes[index] / sum(sizes), report)
            self._compare(group)
            tuned.save(self.results, self.path.parent)
        return TuningReport(self.results, self.path, [work.name for work in works])

    def _search(self, group: Group, seconds: float, report: Callable[[float], None]) -> None:
        races = {name: Race(decision) for name, decision in group.open.items()}
        rounds, start = _rounds(group), time.monotonic()
        done, interrupted = 0, True
        try:
            for (kept, _, part), count in zip(STAGES, rounds, strict=True):
                for race in races.values():
                    race.cut(kept, self.rng)
                for turn in range(count):
                    report((done + turn) / sum(rounds))
                    if turn and time.monotonic() - start > part * seconds:
                        break
                    entrants = {name: race.entrant(turn) for name, race in races.items()}
                    picked = {name: races[name].decision.candidates[number] for name, number in entrants.items()}
                    spent = group.run(self.results.choices | picked)
                    for name in entrants.keys() & spent:
                        races[name].add(entrants[name], spent[name])
                done += count
            interrupted = False
        finally:
            settled = settle(races.values())
            if interrupted:  # candidates that haven't beaten the safe choice yet may still do so
                settled = {name: choice for name, choice in settled.items() if choice != group.safe[name]}
            self.results.choices |= settled
            tuned.save(self.results, self.path.parent)

    def _compare(self, group: Group) -> None:
        """Record the times of steps with the safe and with the new choices. If steps are no faster on the whole,
        go back to the safe choices: the new ones aren't worth their kernels."""
        choices = self.results.choices
        times = group.compare(choices)
        if sum(after / before for before, after in times.values()) >= len(times):
            choices |= {name: group.safe[name] for name in group.open}
        for rig in group.rigs:
            before, after = times[rig.work.name]
            changed = sum(choices[name] != group.safe[name] for name in rig.decisions)
            self.results.workloads[rig.work.name] = {
                "before": before, "after": after if changed else before, "decisions": len(rig.decisions),
                "changed": changed,
            }  # fmt: skip


def _rounds(group: Group) -> list[int]:
    """Turns of each stage until every candidate that is still in the race has had its own."""
    most = max((len(decision.candidates) for decision in group.open.values()), default=0)
    return [turns * (most if kept is None else min(most, kept + 1)) for kept, turns, _ in STAGES]


def tune(
    *plans: Plan, device: str | Device | None = None, again: bool = False, progress: Progress | None = None
) -> TuningReport:
    """Find the fastest kernels for the steps of some plans, and store them: plans made from now on use them.

    Arguments:
    - `plans`: as `Model.plan` or `Model.phases` make them.
    - `device`: a device or part of its name (default: the best one).
    - `again`: measure settled decisions, too.
    - `progress`: called with the part that is done, 0 to 1, and the names of the workloads at hand.

    Raises DeviceError for an unknown device, FormatError where results cannot be read or written.
    """
    return Tuner(choose_device(device).device).tune(works_of(plans), again=again, progress=progress)
