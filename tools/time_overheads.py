"""Time what Model and Trainer add to a session's own steps, and a step of Keras and PyTorch beside it:
`python tools/time_overheads.py [predict] [trainer] [train_on_batch] [first_step] [launches]`. `first_step` counts the
first training step of a process without compiled kernels, and of the next one; `launches`, what a launch takes to be
enqueued, by its arguments."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from statistics import median
from time import perf_counter, process_time

import numpy as np

import edgelearn as el
from edgelearn.child import Worker, WorkerError
from edgelearn.ops import Conv2D, Dense, GlobalAveragePooling2D, ReLU
from edgelearn.runtime import Session, choose_device
from edgelearn.runtime.context import open_context
from edgelearn.runtime.kernels import without_event

WARM_UP = 5


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Median time of `times` calls after a warm-up."""
    for _ in range(WARM_UP):
        call()
    return timed(call, times)


def predictions(rng: np.random.Generator) -> None:
    """Compare a warm `predict` of one example with the session's own step."""
    network = el.Network("small", (16, 16, 3))
    network.add("conv1", Conv2D(32, 3, padding="same"))
    network.add("relu", ReLU())
    network.add("conv2", Conv2D(26, 3, padding="same"))
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(10))
    x = rng.standard_normal((1, 16, 16, 3), dtype=np.float32)
    model = el.Model(network)
    predict = milliseconds(lambda: model.predict(x), 500)
    session = Session(model.forward_plan(1), model.context, model.kernels)
    session.load(model.weights)
    packed = session.pack(x)
    step = milliseconds(lambda: session.predict(packed, 1), 500)
    print(f"{network.count():,} parameters: predict {predict:.3f} ms, the session's step {step:.3f} ms")


def trainer(rng: np.random.Generator) -> None:
    """Compare loading other weights of MobileNet V1 and a step with the two on their own."""
    model = el.Model(el.models.mobilenet_v1(classes=5)).compile(el.SGD(0.001, momentum=0.9), batchnorm="moving")
    x, y = rng.standard_normal((1, 224, 224, 3), dtype=np.float32), np.array([1])
    sets = cycle([dict(model.weights), dict(model.weights)])
    with model.trainer(batch_size=1) as opened:
        load = milliseconds(lambda: opened.load(next(sets)), 25)
        step = milliseconds(lambda: opened.step(x, y), 25)
        both = milliseconds(lambda: (opened.load(next(sets)), opened.step(x, y)), 25)
    print(f"MobileNet V1, batch 1: load {load:.1f} ms, step {step:.1f} ms, load and step {both:.1f} ms")


ROUNDS, STEPS = 11, 3  # of each contender, in turn; steps of a turn
CALLS = 100  # of train_on_batch, to tell what it adds to the session's step
TRAINED = "conv_pw_13", "dense"


def fine_tuned() -> el.Model:
    """MobileNet V1 1.0/224 with conv_pw_13 and the classifier trained."""
    network = el.models.mobilenet_v1(classes=5).freeze().unfreeze(*TRAINED)
    return el.Model(network).compile(el.SGD(0.0001, momentum=0.9), batchnorm="moving")


class Edgelearn:
    """`train_on_batch` of a Model, and the step of its session alone."""

    def __init__(self, batch: int) -> None:
        self.model, self.x, self.y = fine_tuned(), *inputs(batch)
        self.model.train_on_batch(self.x, self.y)
        assert self.model._open is not None, "after a step"
        self.session = self.model._open.session
        self.packed, self.labels, self.batch = self.session.pack(self.x), self.y.astype(np.int32), batch

    def step(self) -> float:
        return timed(lambda: self.model.train_on_batch(self.x, self.y))

    def added(self, times: int) -> list[float]:
        """Seconds that each call of `train_on_batch` takes besides the session's step: checks, the plan, packing."""
        inside: list[float] = []

        def clocked(method: Callable, sign: int) -> Callable:
            def call(*arguments: object) -> object:
                start = perf_counter()
                try:
                    return method(*arguments)
                finally:
                    inside.append(sign * 1e3 * (perf_counter() - start))

            return call

        session, found = self.session, []
        session.train = clocked(session.train, 1)
        session.pack = clocked(session.pack, -1)  # a step packs inside
        for _ in range(times):
            inside.clear()
            start = perf_counter()
            self.model.train_on_batch(self.x, self.y)
            found.append(1e3 * (perf_counter() - start) - sum(inside))
        return found


class Keras:
    """`train_on_batch` of keras.applications.MobileNet with the same layers trained."""

    def __init__(self, batch: int) -> None:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import keras

        self.model = keras.applications.MobileNet(weights=None, classes=5)  # pyright: ignore[reportArgumentType]
        self.x, self.y = inputs(batch)
        for layer in self.model.layers:
            layer.trainable = layer.name in ("conv_pw_13", "conv_preds")
        self.model.compile(keras.optimizers.SGD(0.0001, momentum=0.9), "sparse_categorical_crossentropy")

    def step(self) -> float:
        return timed(lambda: self.model.train_on_batch(self.x, self.y))


class PyTorch:
    """An update of the same network in PyTorch, BatchNorm with stored statistics."""

    def __init__(self, batch: int) -> None:
        import torch

        from edgelearn.interop.to_torch import to_torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        model, (x, y) = fine_tuned(), inputs(batch)
        self.module = to_torch(model.network, model.weights).eval()
        trained = [p for p in self.module.parameters() if p.requires_grad]
        total = model.network.count(model.network.trainable)
        assert sum(p.numel() for p in trained) == total, "PyTorch trains the same parameters"
        self.optimizer, self.loss = torch.optim.SGD(trained, 0.0001, momentum=0.9), torch.nn.CrossEntropyLoss()
        self.x, self.y = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(y)

    def step(self) -> float:
        def update() -> None:
            self.optimizer.zero_grad()
            self.loss(self.module(self.x), self.y).backward()
            self.optimizer.step()

        return timed(update)


def inputs(batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, 224, 224, 3), dtype=np.float32), rng.integers(0, 5, batch)


def timed(call: Callable[[], object], times: int = STEPS) -> float:
    """Median time of `times` calls, in ms."""
    seconds = []
    for _ in range(times):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return 1e3 * median(seconds)


def train_on_batch(batches: tuple[int, ...] = (1,)) -> None:
    """Compare `train_on_batch` with the session's own step and with Keras and PyTorch, each in a process of its own,
    turn by turn: other work on the machine then slows all of them alike."""
    for batch in batches:
        with ExitStack() as stack:
            workers = {}
            for name in ("Edgelearn", "Keras", "PyTorch"):
                try:
                    workers[name] = stack.enter_context(Worker(f"time_overheads:{name}", (batch,)))
                except WorkerError as error:
                    print(f"{name} is left out: {str(error).splitlines()[-1]}")
            times: dict[str, list[float]] = {name: [] for name in workers}
            for turn in range(ROUNDS + 1):
                for name, worker in workers.items():
                    took = worker.call("step")
                    if turn:  # the first warms up
                        times[name].append(took)
            added = workers["Edgelearn"].call("added", CALLS)
        ours = np.array(times["Edgelearn"])
        print(f"train_on_batch, MobileNet V1 1.0/224, {' and '.join(TRAINED)} trained, batch {batch}:")
        for name, values in times.items():
            print(f"  {name:<12} {median(values):8.2f} ms; ours is {median(ours / np.array(values)):.2f} of it")
        low, middle, high = np.quantile(added, (0.25, 0.5, 0.75))
        print(f"  besides the session's step: {middle:.2f} ms (quartiles {low:.2f} to {high:.2f})")


class FirstStep:
    """The first training step of all layers of MobileNet V1 1.0/224, batch 1, in a process of its own."""

    def run(self) -> tuple[float, float]:
        """Return its seconds, and those of all processor cores."""
        model = el.Model(el.models.mobilenet_v1(classes=5)).compile(el.SGD(0.001, momentum=0.9))
        x, y = inputs(1)
        begin, used = perf_counter(), process_time()
        model.train_on_batch(x, y)
        return perf_counter() - begin, process_time() - used


def first_step() -> None:
    """Compare the first step of two processes: the first compiles every kernel."""
    with tempfile.TemporaryDirectory() as folder:
        for kernels in "no compiled kernels", "compiled kernels":
            caches = {"POCL_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
            with Worker("time_overheads:FirstStep", environment=caches) as worker:
                seconds, used = worker.call("run")
            print(f"first step with {kernels}: {seconds:.2f} s, {used:.2f} s of processor cores")


def launches(count: int = 3000, blocks: int = 5) -> None:
    """Time launches of a kernel with 1, 4 and 8 arrays, and a place in each, that lie in one buffer, in one each, and
    in shared virtual memory. Microseconds of a launch until all are done, the least of `blocks` loops of `count`."""
    import pyopencl as cl

    context = open_context(choose_device().device)
    device = context.devices[0]
    print(f"{device.name}, command buffers: {'cl_khr_command_buffer' in device.extensions}")
    shared = cl.svm_mem_flags.READ_WRITE
    for number in 1, 4, 8:
        names = [f"a{i}" for i in range(number)]
        text = ", ".join(f"__global float *{name}, uint at_{name}" for name in names)
        body = " ".join(f"{name}[at_{name} * 16 + get_global_id(0)] += 1.0f;" for name in names)
        program = cl.Program(context, f"__kernel void add({text}) {{ {body} }}").build()
        for kind in "one buffer", "a buffer each", "shared virtual memory":
            size = 1 if kind == "one buffer" else number
            places = [
                cl.SVMAllocation(context, 1 << 20, 0, shared) if kind.startswith("shared")
                else cl.Buffer(context, cl.mem_flags.READ_WRITE, 1 << 20) for _ in range(size)
            ]  # fmt: skip
            kernel, queue, times = cl.Kernel(program, "add"), cl.CommandQueue(context), []
            kernel.set_args(*(each for i in range(number) for each in (places[i % size], np.uint32(64 * i))))
            enqueue = without_event(queue, kernel, (64,), (64,))
            assert enqueue
            for _ in range(blocks):
                begin = perf_counter()
                for _ in range(count):
                    enqueue()
                queue.finish()
                times.append(perf_counter() - begin)
            print(f"{number} arrays, {kind}: {1e6 * min(times) / count:.1f} us")


if __name__ == "__main__":
    generator, wanted = np.random.default_rng(0), sys.argv[1:] or ["predict", "trainer", "train_on_batch"]
    if "predict" in wanted:
        predictions(generator)
    if "trainer" in wanted:
        trainer(generator)
    if "train_on_batch" in wanted:
        train_on_batch()
    if "first_step" in wanted:
        first_step()
    if "launches" in wanted:
        launches()
