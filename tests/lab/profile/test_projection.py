import json
from dataclasses import replace
from statistics import median

import pytest

from edgelearn.compile import Request
from edgelearn.lab.profile import DeviceRecord, EdgeDevice, Peaks, Point, project, projection_table
from edgelearn.lab.profile.projection import StepRecord, efficiencies, expected, shipped
from edgelearn.ops import SGD

from .conftest import BATCH, MICRO, network

ADRENO = EdgeDevice.load("adreno-540")
REQUEST = Request(network(), BATCH, MICRO, SGD())


def record(kind: str, share: float) -> DeviceRecord:
    """Figures of a device that reaches this share of the roof at whatever it does."""
    points = (Point("pointwise_forward", 1, 10, 10, 1.0, share), Point("sgd", 2, 0, 10, 2.0, 2 * share))
    facts = {"platform": "p", "name": f"{kind} {share}", "kind": kind, "compute_units": 2}
    return DeviceRecord(facts, "2026-01-01", Peaks(10.0, {1: 10.0}, 0.1), (StepRecord("step", 3.5, points),))


def test_a_step_of_ones_own_is_what_was_measured(roofline):
    own = DeviceRecord.of([roofline])
    launches = [(point.name, point.bound, point.launches) for point in own.steps[0].kinds]
    assert expected(launches, efficiencies([own]), 0.0) == pytest.approx(roofline.busy)


def test_records_are_kept_as_json(roofline, tmp_path):
    own = DeviceRecord.of([roofline])
    path = tmp_path / "record.json"
    path.write_text(json.dumps(own.to_dict()))
    found = DeviceRecord.load(path)
    assert found.steps == own.steps and found.peaks == own.peaks and found.name == own.name


def test_estimates_by_hand():
    found = project(REQUEST, [ADRENO], records=[record("gpu", 0.5), record("cpu", 0.01)])
    fp32, fp16 = found.estimates
    assert (fp32.precision, fp16.precision, fp32.basis) == ("fp32", "fp16", "gpu")
    launches = fp32.plan.step_launches
    roof = sum(max(x.flops / ADRENO.flops["fp32"], x.nbytes / ADRENO.bandwidth) for x in launches)
    cost = len(launches) * ADRENO.launch
    assert fp32.bound == pytest.approx(roof + cost)
    assert fp32.expected == pytest.approx(2 * roof + cost)
    assert fp16.bound - cost == pytest.approx((fp32.bound - cost) / 2)
    assert fp16.nbytes == fp32.nbytes / 2 == fp32.plan.peak_bytes / 2


def test_without_a_device_of_the_kind_others_serve():
    (fp32, _) = project(REQUEST, [ADRENO], records=[record("cpu", 0.25)]).estimates
    assert fp32.basis == "cpu"
    assert fp32.expected - fp32.bound == pytest.approx(3 * (fp32.bound - fp32.launches * ADRENO.launch))


def test_what_does_not_fit_says_so():
    small = replace(ADRENO, memory=1 << 10)
    found = project(REQUEST, [small, ADRENO], name="tiny step", records=[record("gpu", 0.5)])
    assert [estimate.fits for estimate in found.estimates] == [False, False, True, True]
    text = projection_table(found)
    assert text.startswith("tiny step, predicted") and text.count("not fit") == 2
    assert "every byte comes from memory" in text and "Error" not in text
    assert ADRENO.sources["flops"] in found.sources


def test_the_error_is_that_of_a_prediction_from_the_others():
    slow, fast = record("gpu", 0.25), record("gpu", 0.5)
    errors = project(REQUEST, [ADRENO], records=[slow, fast]).errors
    # at the roof 0.75 s and 1.5 s; three launches of 0.1 s; both measured as 3.5 s
    assert errors[slow.name] == {"step": pytest.approx((0.75 / 0.5 + 0.3) / 3.5 - 1)}
    assert errors[fast.name] == {"step": pytest.approx((1.5 / 0.25 + 0.3) / 3.5 - 1)}


def test_the_error_on_measured_cpus():
    found = project(REQUEST, [ADRENO])
    cpus = {r.name for r in shipped() if r.device["kind"] == "cpu"}
    errors = [abs(error) for name in cpus for error in found.errors[name].values()]
    assert len(errors) >= 20 and median(errors) < 0.12 and max(errors) < 0.4
    assert "in the median" in projection_table(found)
