import json
import os
import types
from pathlib import Path

import pytest

from edgelearn.device import Device
from edgelearn.errors import EdgelearnError
from edgelearn.lab.bench import machine
from edgelearn.lab.bench import run as run_module
from edgelearn.lab.bench.contenders import Entry
from edgelearn.lab.bench.remote import Remote, WorkerError
from edgelearn.lab.bench.run import BenchConfig, run, take_block
from edgelearn.lab.bench.table import as_text
from edgelearn.lab.bench.workloads import Workload
from edgelearn.runtime import DeviceChoice

HERE = Path(__file__).parent
PATH = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
QUICK = BenchConfig(rounds=3, block_seconds=0.01, attempts=2, pause=0.0, patience=30, memory_reserve=0.0)


def fake(name, **environments):
    return Entry(name, f"bench_fakes:{name.capitalize()}", {}, environments or {"": PATH})


@pytest.fixture(scope="module")
def report():
    registry = [fake(name) for name in ("sleeper", "steady", "liar", "troubled")]
    registry.append(Entry("ghost", "nowhere:Ghost", {"ghost_module": "ghost-package"}))
    lines = []
    made = run([Workload("forward", 2)], settings=QUICK, registry=registry, subject="sleeper", progress=lines.append)
    made.lines = lines
    return made


def lane_of(report, label):
    return next(lane for lane in report.lanes if lane.label == label)


def test_every_worker_is_measured_in_every_round(report):
    for label, least in (("sleeper slow", 0.040), ("sleeper fast", 0.004), ("steady", 0.004)):
        lane = lane_of(report, label)
        assert lane.error is None and len(lane.blocks) == QUICK.rounds
        assert all(least <= block.seconds < 10 * least for block in lane.blocks)
        assert lane.import_seconds >= 0 and lane.first_step_seconds >= least and lane.memory >= 0
    assert any("round 3 of 3" in line for line in report.lines)


def test_the_workload_and_the_cores_reach_the_worker(report):
    assert lane_of(report, "steady").probe == [2.0, len(machine.usable_cores()), 0.5] * 3


def test_failures_are_reported_and_stop_nobody_else(report):
    expected = {
        "raises": "RuntimeError: no such step",
        "dies": "killed by SIGABRT. Its last words:\nout of luck",
        "dies later": "killed by SIGABRT",
        "nan": "NaN or infinity",
    }
    text = as_text(report)
    for variant, words in expected.items():
        lane = lane_of(report, f"troubled {variant}")
        assert words in lane.error and report.comparison(lane) is None
        assert f"troubled {variant} failed:" in text
    # It lives through the first block, repeated or not, and not through the last.
    assert 1 <= len(lane_of(report, "troubled dies later").blocks) < QUICK.rounds


def test_what_is_not_installed_is_listed(report):
    assert report.not_installed == {"ghost": ["ghost-package"]}
    assert "ghost: not installed (needs ghost-package)." in as_text(report)


def test_a_contender_that_computes_something_else_gets_no_ratio(report):
    liar = lane_of(report, "liar")
    assert not report.agrees(liar) and report.comparison(liar) is None
    assert report.fastest_peer("forward:2").label == "steady"
    assert "computes other numbers" in as_text(report)


def test_the_ratio_of_a_slow_one(report):
    found = report.comparison(lane_of(report, "sleeper slow"))
    assert found.peer == "steady" and found.refusal is None and 1.7 < found.ratio < 50


def test_the_table_shows_every_contender_and_the_json_is_whole(report, tmp_path):
    text = as_text(report, width=160)
    assert "forward:2: inference of MobileNet V1" in text and "fastest peer" in text
    assert all(len(line) <= 160 for line in text.splitlines()[:12])
    report.write(tmp_path / "bench.json")
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [lane["label"] for lane in kept["lanes"]] == [lane.label for lane in report.lanes]
    slow = next(lane for lane in kept["lanes"] if lane["label"] == "sleeper slow")
    assert slow["comparison"]["ratio"] == report.comparison(lane_of(report, "sleeper slow")).ratio
    assert len(slow["blocks"]) == QUICK.rounds and kept["settings"]["rounds"] == QUICK.rounds


def test_a_report_that_cannot_be_written_says_where(report, tmp_path):
    with pytest.raises(EdgelearnError, match="choose another folder"):
        report.write(tmp_path / "nowhere" / "bench.json")


def test_environments_are_measured_apart_and_memory_counts_what_the_steps_took():
    entry = fake("glutton", **{"": PATH | {"FAKE_NUMBER": "3"}, "other": PATH | {"FAKE_NUMBER": "3.001"}})
    found = run([Workload("train", 1)], settings=QUICK, registry=[entry])
    assert [lane.label for lane in found.lanes] == ["glutton greedy", "glutton greedy, other"]
    assert [lane.probe[0] for lane in found.lanes] == [3, 3.001]
    assert all(100 * 2**20 <= lane.memory < 160 * 2**20 for lane in found.lanes)
    assert "FAKE_NUMBER" not in os.environ
    narrowed = run([Workload("train", 1)], only=["*, other"], settings=QUICK, registry=[entry])
    assert [lane.label for lane in narrowed.lanes] == ["glutton greedy, other"]
    assert narrowed.lanes[0].probe[0] == 3.001


def test_a_pattern_that_fits_no_lane_is_refused():
    with pytest.raises(EdgelearnError, match=r"no lane of steady is called 'steadfast\*'"):
        run([Workload("train", 1)], only=["steadfast*"], settings=QUICK, registry=[fake("steady")])


def test_a_contender_that_cannot_be_imported_is_reported():
    found = run([Workload("train", 1)], settings=QUICK, registry=[Entry("gone", "bench_fakes_gone:X"), fake("steady")])
    gone, steady = found.lanes
    assert "No module named 'bench_fakes_gone'" in gone.error
    assert steady.error is None and len(steady.blocks) == QUICK.rounds


def test_no_worker_is_started_without_memory_for_it():
    settings = BenchConfig(**(vars(QUICK) | {"memory_reserve": 1.0}))
    found = run([Workload("train", 1)], settings=settings, registry=[fake("steady")])
    assert "GiB of memory are free" in found.lanes[0].error


def test_cores_beyond_those_there_are_an_error():
    with pytest.raises(EdgelearnError, match="this process may use"):
        run(cores=10_000, registry=[])
    with pytest.raises(EdgelearnError, match="1 round or more"):
        run(settings=BenchConfig(rounds=0), registry=[])


def test_a_worker_is_bound_to_its_cores():
    core = machine.usable_cores()[-1]
    with Remote("bench_fakes:Steady", [core], environment=PATH) as remote:
        allowed = Path(f"/proc/{remote._process.pid}/status").read_text()
    assert f"Cpus_allowed_list:\t{core}\n" in allowed


def test_a_closed_worker_says_that_it_is_gone():
    with Remote("bench_fakes:Steady", machine.usable_cores(), environment=PATH) as remote:
        remote._process.kill()
        with pytest.raises(WorkerError, match=r"SIGKILL, as Linux does when memory runs out"):
            remote.ask("memory")


def test_a_worker_that_hangs_is_given_up():
    with Remote("bench_fakes:Troubled", machine.usable_cores(), environment=PATH) as remote:
        remote.patience = 0.3
        with pytest.raises(WorkerError, match=r"No answer within 0\.3 s"):
            remote.ask("prepare", {"kind": "train", "batch": 1}, "hangs")


class Busy:
    """A machine and a worker in which others use the given shares of the cores, attempt by attempt."""

    def __init__(self, monkeypatch, shares, cores=2):
        self.clock = self.busy = 0.0
        self.shares = iter(shares)
        self.cores = cores
        self.asked = 0
        clock = types.SimpleNamespace(perf_counter=lambda: self.clock, sleep=lambda seconds: None)
        monkeypatch.setattr(run_module, "time", clock)
        monkeypatch.setattr(run_module.machine, "busy_seconds", lambda cores: self.busy)

    def ask(self, request, seconds):
        assert request == "measure"
        self.asked += 1
        self.clock += 1.0
        own = 1.5
        self.busy += own + next(self.shares) * self.cores
        return {"times": [self.asked, self.asked * 10, self.asked], "cpu_seconds": own}


def test_a_quiet_block_is_taken_at_once(monkeypatch):
    remote = Busy(monkeypatch, [0.02])
    block = take_block(remote, [0, 1], BenchConfig())
    assert (block.seconds, block.steps, block.attempts, block.noisy) == (1, 3, 1, False)
    assert block.foreign == pytest.approx(0.02)


def test_a_block_is_repeated_until_the_machine_is_quiet(monkeypatch):
    block = take_block(Busy(monkeypatch, [0.5, 0.09, 0.07, 0.0]), [0, 1], BenchConfig())
    assert (block.seconds, block.attempts, block.noisy) == (3, 3, False)


def test_if_it_stays_noisy_the_quietest_is_kept_whatever_its_time(monkeypatch):
    block = take_block(Busy(monkeypatch, [0.5, 0.3, 0.1, 0.2]), [0, 1], BenchConfig(attempts=4))
    assert (block.seconds, block.attempts, block.noisy) == (3, 4, True)
    assert block.foreign == pytest.approx(0.1)


def test_on_a_gpu_those_that_compute_on_processor_cores_stay_out(monkeypatch):
    gpu = Device("Abacus", "Beads", "", "1", "", "gpu", 1, 1, 1, 1, 1, 64, 16, ())  # which the fakes don't use
    monkeypatch.setattr(run_module, "choose_device", lambda name: DeviceChoice(gpu, f"named {name}"))
    on_device = Entry("steady", "bench_fakes:Steady", {}, {"": PATH}, opencl=True)
    found = run([Workload("forward", 1)], device="abacus", settings=QUICK, registry=[on_device, fake("sleeper")])
    assert [lane.label for lane in found.lanes] == ["steady"] and found.lanes[0].error is None
    assert found.machine["device"]["name"] == "Abacus" and "Beads / Abacus" in as_text(found)


def test_an_unknown_device_is_an_error_before_anything_starts():
    with pytest.raises(EdgelearnError, match="No OpenCL device is called 'abacus'"):
        run(device="abacus", registry=[fake("steady")])
