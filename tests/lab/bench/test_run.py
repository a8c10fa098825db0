import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgelearn.device import Device
from edgelearn.errors import EdgelearnError
from edgelearn.lab.bench import run as run_module
from edgelearn.lab.bench.contenders import CONTENDERS, Entry, choose, fitting
from edgelearn.lab.bench.report import BenchReport, as_markdown, as_text
from edgelearn.lab.bench.run import BenchConfig, run
from edgelearn.lab.bench.workloads import Workload
from edgelearn.lab.energy import Meter
from edgelearn.lab.measure import usable_cores
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
    made = run([Workload("forward", 2)], config=QUICK, registry=registry, subject="sleeper", progress=lines.append)
    made.lines = lines
    return made


def variant_of(report, label):
    return next(variant for variant in report.variants if variant.label == label)


def test_every_worker_is_measured_in_every_round(report):
    for label, least in (("sleeper slow", 0.040), ("sleeper fast", 0.004), ("steady", 0.004)):
        variant = variant_of(report, label)
        assert variant.error is None and len(variant.blocks) == QUICK.rounds
        assert all(least <= block.seconds < 10 * least for block in variant.blocks)
        assert variant.import_seconds >= 0 and variant.first_step_seconds >= least
        assert variant.memory > -(2**23)  # Linux counts pages in batches, one for each thread
    assert any("round 3 of 3" in line for line in report.lines)


def test_the_workload_and_the_cores_reach_the_worker(report):
    assert variant_of(report, "steady").probe == [2.0, len(usable_cores()), 0.5] * 3


def test_failures_are_reported_and_stop_nobody_else(report):
    expected = {
        "raises": "RuntimeError: no such step",
        "dies": "killed by SIGABRT. Its last output:\nout of luck",
        "dies later": "killed by SIGABRT",
        "nan": "NaN or infinity",
    }
    text = as_text(report, 120)
    for name, words in expected.items():
        variant = variant_of(report, f"troubled {name}")
        assert words in variant.error and report.comparison(variant) is None
        assert f"troubled {name} failed:" in text
    # It lives through the first block, repeated or not, and not through the last.
    assert 1 <= len(variant_of(report, "troubled dies later").blocks) < QUICK.rounds


def test_what_is_not_installed_or_computes_something_else_is_told(report):
    assert report.not_installed == {"ghost": ["ghost-package"]}
    liar, text = variant_of(report, "liar"), as_text(report, 120)
    assert not report.agrees(liar) and report.comparison(liar) is None
    assert "ghost: not installed (needs ghost-package)." in text and "computes other numbers" in text


def test_the_ratio_of_a_slow_one(report):
    found = report.comparison(variant_of(report, "sleeper slow"))
    assert "Energy: not measured: " in as_text(report, 120) or report.energy["idle_watts"] > 0
    assert report.fastest_peer("forward:2").label == "steady" and found.refusal is None and 1.7 < found.ratio < 50


def test_the_table_shows_every_contender_and_the_json_is_whole(report, tmp_path):
    text = as_text(report, width=160)
    assert "forward:2: inference of MobileNet V1" in text and "fastest peer" in text
    assert all(len(line) <= 160 for line in text.splitlines()[:12])
    report.write(tmp_path / "bench.json")
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [variant["label"] for variant in kept["variants"]] == [variant.label for variant in report.variants]
    slow = next(variant for variant in kept["variants"] if variant["label"] == "sleeper slow")
    assert slow["comparison"]["ratio"] == report.comparison(variant_of(report, "sleeper slow")).ratio
    assert len(slow["blocks"]) == QUICK.rounds and kept["config"]["rounds"] == QUICK.rounds
    with pytest.raises(EdgelearnError, match=r"bench\.json"):
        report.write(tmp_path / "nowhere" / "bench.json")


def test_environments_are_measured_apart_and_memory_counts_what_the_steps_took():
    entry = fake("glutton", **{"": PATH | {"FAKE_NUMBER": "3"}, "other": PATH | {"FAKE_NUMBER": "3.001"}})
    found = run([Workload("train", 1)], config=QUICK, registry=[entry])
    assert [variant.label for variant in found.variants] == ["glutton greedy", "glutton greedy, other"]
    assert [variant.probe[0] for variant in found.variants] == [3, 3.001]
    assert all(100 * 2**20 <= variant.memory < 160 * 2**20 for variant in found.variants)
    assert "FAKE_NUMBER" not in os.environ
    narrowed = run([Workload("train", 1)], only=["*, other"], config=QUICK, registry=[entry])
    assert [variant.label for variant in narrowed.variants] == ["glutton greedy, other"]
    assert narrowed.variants[0].probe[0] == 3.001


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("steadfast", {"only": ["steadfast*"]}), ("10000", {"cores": 10_000}), ("0", {"config": BenchConfig(rounds=0)}),
        ("fp8", {"compute": ["fp8"]}), ("abacus", {"device": "abacus"}),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_an_error(match, options):
    with pytest.raises(EdgelearnError, match=match):
        run([Workload("train", 1)], **{"config": QUICK, "registry": [fake("steady")], **options})


def test_a_contender_that_cannot_be_imported_is_reported():
    found = run([Workload("train", 1)], config=QUICK, registry=[Entry("gone", "bench_fakes_gone:X"), fake("steady")])
    gone, steady = found.variants
    assert "No module named 'bench_fakes_gone'" in gone.error
    assert steady.error is None and len(steady.blocks) == QUICK.rounds


def test_no_worker_is_started_without_memory_for_it():
    config = BenchConfig(**(vars(QUICK) | {"memory_reserve": 1.0}))
    found = run([Workload("train", 1)], config=config, registry=[fake("steady")])
    assert "GiB of memory are free" in found.variants[0].error


def test_on_a_gpu_those_that_compute_on_processor_cores_stay_out(monkeypatch):
    gpu = Device("Abacus", "Beads", "", "1", "", "gpu", 1, 1, 1, 1, 1, 64, 16, ())  # which the fakes don't use
    monkeypatch.setattr(run_module, "choose_device", lambda name: DeviceChoice(gpu, f"named {name}"))
    on_device = Entry("steady", "bench_fakes:Steady", {}, {"": PATH}, opencl=True)
    found = run([Workload("forward", 1)], device="abacus", config=QUICK, registry=[on_device, fake("sleeper")])
    assert [variant.label for variant in found.variants] == ["steady"] and found.variants[0].error is None
    assert found.machine["device"]["name"] == "Abacus" and "Beads / Abacus" in as_text(found, 120)


def test_types_take_turns_and_are_compared_with_their_like(tmp_path):
    registry = [fake("typed"), fake("integers")]
    types = ["fp32", "tf32", "bf16", "int8"]
    found = run([Workload("train", 1)], config=QUICK, registry=registry, subject="integers", compute=types)
    own = {variant.compute: variant for variant in found.variants if variant.contender == "integers"}
    assert [variant.label for variant in found.variants if variant.contender == "typed"] == [
        "typed graph", "typed bf16 graph",
    ]  # fmt: skip
    assert list(own) == types and set(found.types("train:1")) == set(types) and own["tf32"].error == "no unit"
    peers = {kind: found.fastest_peer("train:1", kind) for kind in types}
    assert peers["fp32"].compute == "fp32" and peers["bf16"].compute == "bf16"
    assert peers["int8"].contender == "typed", "of any type, since none has this"
    text, rows = as_text(found, width=200), as_markdown(found).splitlines()[-4:]
    assert f", to {peers['int8'].label}" in text
    assert [row.count("|") for row in rows] == [4] * 4 and any(", bf16 |" in row for row in rows)
    found.write(tmp_path / "types.json")
    assert found.comparison(own["tf32"]) is None
    assert BenchReport.read(tmp_path / "types.json").variants == found.variants


def test_the_energy_of_a_step_stands_beside_its_time(monkeypatch, tmp_path):
    watts = SimpleNamespace(source="a fake", every=None, tick=0.0, read=lambda: 10 * time.perf_counter())
    monkeypatch.setattr(run_module, "find_meter", lambda device: Meter(watts))
    monkeypatch.setattr(Meter.idle, "__defaults__", (0.01,))
    config = replace(QUICK, rounds=1, energy_seconds=0.1)
    found = run([Workload("forward", 2)], config=config, registry=[fake("steady"), fake("troubled")], subject="steady")
    steady = variant_of(found, "steady")
    assert steady.energy.watts == pytest.approx(10, rel=0.01) and steady.energy.steps >= 2
    assert steady.energy.joules >= 0.04  # of 4 ms and more
    assert all(variant.energy is None for variant in found.variants if variant.error)
    assert found.energy["idle_watts"] == pytest.approx(10, rel=0.01)
    idle = f"{found.energy['idle_watts']:.3g}"
    assert "J a step" in as_text(found, 140) and f"Energy: a fake. Without work it takes {idle} W" in as_text(
        found, 140
    )
    assert " J |" in as_markdown(found)
    found.write(tmp_path / "energy.json")
    assert BenchReport.read(tmp_path / "energy.json").variants == found.variants


def test_on_nvidia_pytorch_takes_part_once():
    gpu = Device("NVIDIA CUDA", "NVIDIA H100", "", "1", "", "gpu", 1, 1, 1, 1, 1, 64, 16, ())
    other = Device("Abacus", "Beads", "", "1", "", "gpu", 1, 1, 1, 1, 1, 64, 16, ())
    cpu = Device("PoCL", "cpu", "", "1", "", "cpu", 1, 1, 1, 1, 1, 64, 16, ())
    names = {device.id: [entry.name for entry in fitting(CONTENDERS, device)] for device in (gpu, other, cpu)}
    assert names == {
        gpu.id: ["edgelearn", "torch", "tinygrad"], other.id: ["edgelearn", "tinygrad"],
        cpu.id: [entry.name for entry in CONTENDERS],
    }  # fmt: skip
    assert all(list(entry.environments) == [""] for entry in fitting(CONTENDERS, gpu))


def test_contenders_by_name():
    assert [entry.name for entry in choose(["tinygrad", "torch"])] == ["torch", "tinygrad"]
    assert choose(None) == [entry for entry in CONTENDERS if not entry.asked]
    assert [entry.name for entry in choose(["serial"])] == ["serial"]
    with pytest.raises(EdgelearnError, match="jax"):
        choose(["torch", "jax"])
    entry = Entry("ghost", "nowhere:Ghost", {"numpy": "numpy", "no_such_module": "no-such-package"})
    assert not entry.available() and entry.missing() == ["no-such-package"]
    assert Entry("numpy", "numpy:ndarray", {"numpy": "numpy"}).available()


def test_asking_for_contenders_imports_none_of_them():
    code = """
import sys
from edgelearn.lab.bench import contenders, run
[entry.available() for entry in contenders.CONTENDERS]
print({"torch", "keras", "tensorflow", "tinygrad", "rich", "pyopencl"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
