"""A training that is stopped, saved, interrupted or shared by threads goes on with the same bits."""

import json
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import FormatError, Interrupted, PlanError, UsageError
from edgelearn.interop import ModelFile, safetensors
from edgelearn.ops import SGD, Adam
from edgelearn.train import Callback, CosineDecay, Model, VariedSource
from edgelearn.train.control import on_interrupt
from tests.train.toys import (
    INT8,
    Log,
    StopAfter,
    check_resumed,
    examples,
    frozen_stem,
    kept_and_new,
    moved,
    same,
    toy_network,
    weights_after,
)

OPTIMIZERS = {
    "sgd": SGD(CosineDecay(0.1, 6)),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov with decay": SGD(0.1, 0.01, momentum=0.9, nesterov=True),
    "adam": Adam(0.01),
}


def make(optimizer, dropout=0.0, batchnorm="moving"):
    return Model(frozen_stem(dropout=dropout), seed=4).compile(optimizer, batchnorm=batchnorm)


@pytest.mark.parametrize("cache", [None, "fp32", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_resumed_in_the_middle_of_an_epoch(optimizer, cache):
    check_resumed(lambda: make(optimizer), 4, cache=cache)


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize(("dropout", "batchnorm"), [(0.4, "moving"), (0.0, "batch"), (0.4, "batch")])
def test_resumed_with_dropout_and_batch_statistics(updates, dropout, batchnorm):
    check_resumed(lambda: make(SGD(0.1, momentum=0.9), dropout, batchnorm), updates)


class Varied(VariedSource):
    """Ten examples, brighter by the epoch and their number; `seen` notes the epochs."""

    def __init__(self):
        self.seen = []
        x, self.labels = examples(10)
        super().__init__(x, self.brighten, np.float32)

    def brighten(self, images, indices, epoch):
        self.seen.append(epoch)
        return images + 0.1 * epoch + 0.01 * indices[:, None, None, None]


def test_resumed_with_examples_that_vary():
    def fit(model, *callbacks):
        source = Varied()
        model.fit(source, source.labels, 4, 3, micro_batch=2, callbacks=callbacks)
        return source.seen

    whole, stopped, resumed = (make(OPTIMIZERS["momentum"]) for _ in range(3))
    assert fit(whole) == [0] * 5 + [1] * 5 + [2] * 5
    fit(stopped, StopAfter(4))
    assert fit(moved(stopped, resumed))[-8:] == [1] * 3 + [2] * 5
    assert same(resumed.weights, whole.weights)


def test_examples_that_vary_are_not_cached():
    source = Varied()
    with pytest.raises(PlanError, match="cache"):
        make(SGD(0.1)).fit(source, source.labels, 4, cache="fp32")


def test_the_epochs_logs_are_whole_after_a_resume():
    def logs(history):
        return {name: values for name, values in history.history.items() if name != "seconds"}

    x, y = examples(10)
    optimizer = SGD(0.1, momentum=0.9)
    whole = make(optimizer).fit(x, y, 4, 2, validation_data=(x, y))
    stopped = make(optimizer)
    stopped.fit(x, y, 4, 2, validation_data=(x, y), callbacks=[StopAfter(2)])
    log = Log()
    assert logs(moved(stopped, make(optimizer)).fit(x, y, 4, 2, validation_data=(x, y), callbacks=[log])) == logs(whole)
    assert ("on_train_begin", {}) in log.calls  # what was before training isn't measured again


def test_state_taken_while_training():
    taken = []

    class Take(Log):
        def on_train_batch_end(self, batch, logs):
            tensors, state = self.model.state()
            taken.append(({name: array.copy() for name, array in tensors.items()}, json.dumps(state)))

    whole = weights_after(make(Adam(0.01)), callbacks=[Take()])
    assert len(taken) == 6
    for tensors, state in taken:  # among them ends of epochs, before and after which nothing is left to do
        model = make(Adam(0.01))
        model.restore(tensors, json.loads(state))
        assert same(weights_after(model), whole)


def test_state_before_training():
    model = make(SGD(0.1, momentum=0.9))
    whole = weights_after(moved(model, make(SGD(0.1, momentum=0.9))))
    assert same(weights_after(model), whole)


def test_state_holds_what_changes_and_no_more():
    model = make(SGD(0.1, momentum=0.9))
    weights_after(model)
    names = {"body/kernel", "body/bias", "body_bn/gamma", "body_bn/beta", "dense/kernel", "dense/bias"}
    tensors, state = model.state()
    assert set(tensors) == {f"weights/{n}" for n in names} | {f"optimizer/velocity/{n}" for n in names}
    assert state["epoch"] == 2 and state["updates"] == 6


def momentum(**options) -> Model:
    return make(SGD(0.1, momentum=0.9), **options)


ZEROS = np.zeros(4, np.float32)
REFUSED = [  # who restores, words of the message, tensors besides (None: without it), state besides
    (lambda: make(Adam(0.01)), "optimizer state.*'first moment/body/bias' is missing", {}, {}),
    (lambda: make(SGD(0.1)), "'velocity/body/bias' is unknown", {}, {}),
    (lambda: Model(toy_network()).compile(SGD(0.1, momentum=0.9), batchnorm="moving"), "'stem/kernel' is missing",
     {}, {}),
    (lambda: momentum(batchnorm="batch"), "moving_mean' is missing", {}, {}),
    *((momentum, words, tensors, {}) for words, tensors in (
        ("'velocity/body/bias' is missing", {"optimizer/velocity/body/bias": None}),
        ("'dense/bias' has shape", {"weights/dense/bias": ZEROS}),
        ("'velocity/dense/bias' has shape", {"optimizer/velocity/dense/bias": ZEROS[:1]}),
        ("'weight/dense/bias'", {"weight/dense/bias": ZEROS[:3]}),
    )),
    *((momentum, words, {}, state) for words, state in (
        ("moon", {"step": 1, "moon": 2}), ("epoch", {"epoch": "x"}), ("updates", {"updates": -1}),
        ("updates", {"updates": 10**12}),
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def states():
    """Tensors and state of a training with momentum."""
    model = momentum()
    weights_after(model)
    return model.state()


@pytest.mark.parametrize(("other", "problem", "tensors", "state"), REFUSED)
def test_another_trainings_state_is_refused(states, other, problem, tensors, state):
    other = other()
    before, position = other.weights, other.position
    given = {name: array for name, array in (states[0] | tensors).items() if array is not None}
    with pytest.raises(FormatError, match=problem):
        other.restore(given, states[1] | state)
    assert same(other.weights, before) and other.position == position


@pytest.mark.parametrize("optimizer", (SGD(0.1, momentum=0.9), Adam(0.01), Adam(0.01, use_ema=True)))
def test_unfreezing_between_fits_keeps_the_state_of_the_rest(optimizer):
    before, after = kept_and_new(optimizer, lambda network: network.unfreeze("stem"))
    assert sum("optimizer" in name and "stem/kernel" in name for name in after) == len(optimizer.all_slots)
    for name, array in after.items():
        if not name.startswith("optimizer/"):
            continue
        slot, parameter = name.split("/", 2)[1:]
        if name in before:
            assert np.array_equal(array, before[name]) and before[name].any()
        elif slot == "average":
            assert np.array_equal(array, after[f"weights/{parameter}"]), "an average starts at the weights"
        else:
            assert "stem/" in name and not array.any()


@pytest.mark.parametrize("optimizer", (SGD(0.1, momentum=0.9), Adam(0.01)))
def test_freezing_between_fits_keeps_the_state_of_the_rest(optimizer):
    before, after = kept_and_new(optimizer, lambda network: network.freeze("body"))
    slots = {name for name in after if name.startswith("optimizer/")}
    assert slots and not any("body/" in name for name in slots)
    assert all(np.array_equal(after[name], before[name]) for name in slots)


OPTIONS = {
    "momentum": {"optimizer": SGD(0.1, momentum=0.9)},
    "adam, moving statistics": {"optimizer": Adam(0.01), "batchnorm": "moving"},
    "int8": {"optimizer": SGD(0.1), "precision": INT8},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_saved_training_continues_with_the_same_bits(tmp_path, options):
    (x, y), path = examples(10), tmp_path / "model.safetensors"
    model = el.Model(toy_network(dropout=0.3), seed=11).compile(**options)
    model.fit(x, y, 4, 1)
    model.save(path)
    model.fit(x, y, 4, 2)
    other = el.load(path, **options)
    assert other.position.epoch == 1 and other.seed == 11 and other.batchnorm == model.batchnorm
    other.fit(x, y, 4, 2)
    assert same(other.weights, model.weights)


def test_what_goes_with_a_model(tmp_path):
    x, path = examples(3)[0], tmp_path / "model.safetensors"
    model = el.Model(toy_network(), seed=2)
    model.class_names, model.preprocessing, model.metadata = ("a", "b", "c"), {"size": 6}, {"of": [1, "note"]}
    model.save(path)
    found = el.load(path)
    assert (found.class_names, found.preprocessing, found.metadata) == (
        ("a", "b", "c"),
        {"size": 6},
        {"of": [1, "note"]},
    )
    assert found.network.to_json() == model.network.to_json()
    np.testing.assert_array_equal(found.predict(x), model.predict(x))


def test_a_state_of_another_optimizer_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    model = el.Model(toy_network()).compile(SGD(0.1, momentum=0.9))
    model.fit(*examples(10), 4)
    model.save(path)
    with pytest.raises(FormatError, match="'first moment/"):
        el.load(path, optimizer=Adam())


def test_settings_of_a_training_need_an_optimizer(tmp_path):
    with pytest.raises(UsageError, match="takes no batchnrom, which compile does together with an optimizer"):
        el.load(tmp_path / "model.safetensors", batchnrom="batch")


def test_weights_of_a_network(tmp_path):
    path, network = tmp_path / "weights.safetensors", toy_network()
    weights = network.initialize(4)
    path.write_bytes(safetensors.to_bytes(weights))
    model = el.load(path, network, skip=("dense",), seed=5)
    fresh = network.initialize(5)
    for name, array in model.weights.items():
        assert np.array_equal(array, (fresh if name.startswith("dense/") else weights)[name])
    with pytest.raises(FormatError, match="network="):
        el.load(path)


def test_statistics_that_were_never_set_are_not_used(tmp_path):
    path, network = tmp_path / "model.safetensors", toy_network()
    fresh = el.Model(network)
    assert fresh.batchnorm == "batch"
    assert el.Model(network, network.initialize()).batchnorm == "moving"
    plain = el.Network("plain", (3,))
    plain.add("dense", el.ops.Dense(2))
    assert el.Model(plain).batchnorm == "moving"
    fresh.compile(SGD(0.1)).fit(*examples(10))
    assert fresh.compile(SGD(0.1)).batchnorm == "moving", "training has moved them"
    assigned = el.Model(network)
    assigned.weights = fresh.weights
    assert assigned.compile(SGD(0.1)).batchnorm == "moving"
    assert el.Model(network).compile(SGD(0.1), batchnorm="moving").batchnorm == "moving"
    fresh.save(path)
    assert el.load(path).batchnorm == "moving"


@pytest.mark.parametrize("entry", [{"seed": "x"}, {"seed": 1.5}, {"batchnorm": "sometimes"}, {"seed": None}])
def test_a_damaged_position_is_named(tmp_path, entry):
    path, network = tmp_path / "model.safetensors", toy_network()
    safetensors.write_model_file(path, ModelFile(network, network.initialize(), position=entry))
    with pytest.raises(FormatError, match=f"position.*{min(entry)}"):
        el.load(path)


@pytest.mark.parametrize("name", ["m.keras", "m.h5", "m.onnx", "m.tflite", "m.pt", "m"])
def test_save_writes_no_other_format_under_its_name(tmp_path, name):
    model = el.Model(toy_network())
    with pytest.raises(FormatError, match=r"'m\.safetensors'\. .*model\.export"):
        model.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.fixture(autouse=True)
def _hangups_are_heard():
    """Also by tests that run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_asks_and_the_second_raises(number):
    before = signal.getsignal(number)
    asked = []
    with on_interrupt(lambda: asked.append(1)):
        assert signal.getsignal(number) is not before
        os.kill(os.getpid(), number)
        assert asked == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert asked == [1]
    assert signal.getsignal(number) is before


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError), on_interrupt(lambda: None):
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_fit_asks_again():
    asked = []
    for _ in range(2):
        with on_interrupt(lambda: asked.append(1)):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == [1, 1]


class InterruptAt(Callback):
    """Ctrl-C, `times` times, at the end of update 5."""

    def __init__(self, times):
        self.times = times

    def on_train_batch_end(self, batch, logs):
        for _ in range(self.times if self.model.position.updates == 5 else 0):
            os.kill(os.getpid(), signal.SIGINT)


def test_fit_ends_after_a_step_and_goes_on_with_the_same_bits():
    (x, y), (model, whole) = examples(6), (Model(toy_network()).compile("adam") for _ in range(2))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="5 updates") as stopped:
        model.fit(x, y, 2, epochs=3, callbacks=InterruptAt(1))
    assert stopped.value._render_traceback_() == [str(stopped.value)]
    assert (model.position.updates, model.position.step) == (5, 2) and signal.getsignal(signal.SIGINT) is before
    model.fit(x, y, 2, epochs=3)
    whole.fit(x, y, 2, epochs=3)
    assert same(model.weights, whole.weights)


def test_a_second_interrupt_ends_fit_at_once():
    (x, y), model = examples(6), Model(toy_network()).compile("adam")
    with pytest.raises(KeyboardInterrupt) as stopped:
        model.fit(x, y, 2, epochs=3, callbacks=InterruptAt(2))
    assert type(stopped.value) is KeyboardInterrupt


def test_no_handlers_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_interrupt(lambda: pytest.fail("heard")):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


CLOSED = """
import sys, time
from edgelearn.train.control import on_interrupt
asked = []
with on_interrupt(lambda: asked.append(1)):
    print("ready", flush=True)
    while not asked:
        time.sleep(0.01)
    for _ in range(3):
        print("a line to a terminal that is gone", flush=True)
open(sys.argv[1], "w").write("saved")
"""


def test_a_terminal_that_is_closed_ends_training_and_not_with_an_error(tmp_path):
    """The process is the leader of a session on the terminal, as a shell's is: the kernel sends it the signal."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which children inherit
        signal.alarm(60)  # and a child that hears nothing would wait for ever
        os.execv(sys.executable, [sys.executable, "-c", CLOSED, str(tmp_path / "file")])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 100)
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "file").read_text() == "saved"


IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "edgelearn.graph":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from edgelearn_command import main
sys.exit(main())
"""


def test_an_interrupt_during_imports_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", IMPORTING, "doctor"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"edgelearn: interrupted\n")


def in_thread(call):
    """What `call` returns or raises in another thread."""
    results = []

    def run():
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert results, "the thread hangs"
    return results[0]


def test_other_threads_are_refused_during_fit():
    x, y = examples(8)
    answers = []

    class Ask(Callback):
        def on_train_batch_end(self, batch, logs):
            answers.append(in_thread(lambda: self.model.predict(x)))
            answers.append(in_thread(lambda: self.model.weights))
            answers.append(self.model.predict(x).shape)

    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(x, y, 8, callbacks=[Ask()])
    assert [type(answer) for answer in answers] == [PlanError, PlanError, tuple]
    assert in_thread(lambda: model.predict(x)).shape == (8, 3), "after fit, any thread may"


def test_short_calls_take_turns():
    x, y = examples(12)
    model = Model(toy_network()).compile(SGD(0.1))
    expected = model.predict(x)
    calls = [lambda: model.predict(x), lambda: model.evaluate(x, y), lambda: model.predict(x[:5])] * 4
    answers = [None] * len(calls)

    def run(place):
        answers[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for answer in answers[::3]:
        assert np.array_equal(answer, expected)
    assert len({tuple(answer.items()) for answer in answers[1::3]}) == 1


FORK = """
import multiprocessing, sys
import numpy as np, edgelearn as el
from edgelearn.ops import Dense
network = el.Network("n", (3,))
network.add("dense", Dense(2))
model = el.Model(network)
x = np.zeros((1, 3), np.float32)
model.predict(x)

def child(queue):
    for call in (lambda: model.predict(x), el.list_devices, lambda: el.Model(network)):
        try:
            call()
            queue.put("no error")
        except el.EdgelearnError as error:
            queue.put(type(error).__name__ + ("spawn" in str(error)) * " spawn")

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
print([queue.get(timeout=20) for _ in range(3)])
process.join(20)
print(process.exitcode, model.predict(x).shape)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_a_fork_is_refused_and_told_to_spawn():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str(["DeviceError spawn"] * 3), "0 (1, 2)"], done.stderr
