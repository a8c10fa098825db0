import json
from dataclasses import asdict

import numpy as np

from edgelearn import records
from edgelearn.device import QUADS, UNITS
from edgelearn.lab.profile import Peaks
from edgelearn.lab.profile import peaks as module
from edgelearn.runtime import Context, Kernels, Runner


def test_measured(peaks, device):
    assert 1e8 < peaks.flops < 1e15
    assert 0 < peaks.launch < 0.01
    assert min(peaks.bandwidth) == 1 << 20 and max(peaks.bandwidth) <= device.memory // 4
    assert all(1e8 < speed < 1e14 for speed in peaks.bandwidth.values())
    assert peaks.memory <= peaks.cache
    assert records.parse(json.dumps(asdict(peaks)), Peaks) == peaks


def test_every_type_that_a_unit_multiplies_has_a_peak(peaks, device):
    types = {kind for unit in UNITS if unit.name in device.units for kind in unit.types}
    assert set(peaks.units) == types and all(1e8 < speed < 1e16 for speed in peaks.units.values())
    assert peaks.arithmetic("fp32") == peaks.flops == peaks.arithmetic("none")
    assert all(peaks.arithmetic(kind) == peaks.units[kind] for kind in types)


def test_chains_of_quads_are_all_computed(device):
    """Their sum is that of every product, so the compiler has left none out."""
    context, rounds = Context(device), 3
    for unit in (unit for unit in UNITS if unit.name in device.units and unit.probe == QUADS):
        launch, operations = module._quads(context, unit, rounds)
        (sums,) = launch.writes
        memory = context.allocate(sums.nbytes, "sums")
        Runner(context, Kernels(context), [launch], lambda buffer, memory=memory: (memory.handle, 0)).enqueue()
        found = context.read(memory.handle, np.empty(sums.nbytes // 4, np.int32))
        expected = sum(4 * r * (i + 1) for r in range(rounds) for i in range(module.UNIT_CHAINS))
        assert (found == expected).all() and operations == found.size * rounds * module.UNIT_CHAINS * 4 * 2
        memory.release()


def test_bandwidth_is_that_of_the_cache_that_is_large_enough():
    peaks = Peaks(1.0, {1 << 10: 30.0, 1 << 20: 20.0, 1 << 30: 10.0}, 0.0)
    assert [peaks.bandwidth_at(x) for x in (0, 1 << 10, 1025, 1 << 20, 1 << 25, 1 << 40)] == [30, 30, 20, 20, 10, 10]
    assert (peaks.cache, peaks.memory) == (30, 10)
