"""What is shipped is used: it is about decisions that plans make, and among their candidates."""

from dataclasses import replace

import pytest

from edgelearn import tuned
from edgelearn.compile import Kind, make_plan
from edgelearn.lab.tuning import CPU, GPU, TuningWork
from edgelearn.ops import Traits
from edgelearn.runtime import list_devices

FILES = sorted(tuned.shipped().glob("*.json"))
NOISE = 1.05  # of whole steps, on machines that do other things too
AGAIN = "candidates have changed: tune again (see edgelearn/tuned/README.md)"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_shipped_choice_is_used(path):
    results = tuned.load(path)
    kind = results.kind
    assert path.name == f"{kind.slug}.json"
    gpu = kind.kind == "gpu"
    assert set(GPU if gpu else CPU) <= set(results.workloads)
    assert results.measured["date"] and results.measured["device"]["platform"] == kind.platform
    traits = Traits(kind.kind == "gpu", kind.compute_units, kind.vector_width, results.choices)
    device, used = replace(list_devices()[0], memory=1 << 40, largest_buffer=1 << 40), set()
    for name, measured in results.workloads.items():
        assert 0 < measured["after"] <= measured["before"] * NOISE, name
        text, _, compute = name.partition(", ")
        own = replace(traits, find_units=lambda: ("WGMMA", "MMA") if gpu else ("VNNI512",)) if compute else traits
        work = TuningWork.parse(text, compute or "fp32")
        assert work.name == name
        decisions = make_plan(work.request, device, traits=own).decisions
        wrong = [n for n, d in decisions.items() if n in results.choices and d.chosen != results.choices[n]]
        assert wrong == [], AGAIN
        used |= set(decisions)
    assert set(results.choices) <= used, AGAIN


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.id)
def test_plans_on_a_device_use_what_is_shipped_for_it(device):
    found = tuned.find(device)
    if not found.files:
        pytest.skip(f"nothing is shipped for {device.id}")
    plan = make_plan(TuningWork.parse("train:1").request, device)
    step = plan.program(Kind.TRAIN, 1).launches
    assert {launch.decision.name for launch in step if launch.decision} <= set(found.choices)
    assert all(decision.chosen == found.choices[name] for name, decision in plan.decisions.items())
    assert plan.tuned_count == len(plan.decisions) > 50
    assert f"{plan.tuned_count} of {plan.tuned_count}" in str(plan)
