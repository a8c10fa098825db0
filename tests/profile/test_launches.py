"""Costs of launches, measured for the planner."""

from edgelearn.device import choose_device
from edgelearn.graph import Costs, Network, Request, make_plan
from edgelearn.graph.policies import checkpoints
from edgelearn.ops import SGD, Conv2D, Dense, Flatten, ReLU
from edgelearn.profile.launches import measure_costs


def test_costs_are_measured_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    network = Network("two", (8, 8, 16))
    for name in ("first", "second"):
        network.add(name, Conv2D(16, 3))
        network.add(f"{name}_relu", ReLU())
    network.add("flat", Flatten())
    network.add("dense", Dense(5))
    plans = [make_plan(Request(network, 2, 2, SGD(0.1), saving=s), device) for s in ({}, checkpoints(network))]
    table = measure_costs(plans[:1], device, rounds=2)
    costs = Costs.of(device)
    assert costs.known(plans[0]) == 1 and len(table.seconds) <= len(plans[0].step_launches)
    assert costs.known(plans[1]) == 1, "launches that run again are the same"
    assert 0 < costs.step(plans[0]) < 10
