"""A strategy and its kernels in files of one's own, outside the package: trained with, planned with, explained."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import LaunchTimes, Request, Store, account, explain, make_plan
from edgelearn.errors import PlanError
from edgelearn.ops import SGD
from tests.own_files import import_own

from .steps import first_step
from .test_networks import EXAMPLES
from .test_strategies import MASKS, added

STRATEGY = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgelearn.compile import Encoding

SOURCE = str(Path(__file__).with_suffix(".cl"))


@dataclass(frozen=True)
class BrainFloat(Encoding):
    """Hold the upper 16 bits of each float."""

    exact: ClassVar[bool] = False
    held_purpose: ClassVar[str] = "truncated"

    def __str__(self):
        return "bfloat16"

    def encode(self, e, node, x):
        self.check_floats(node, x)
        held = e.tensor("bfloat16", x.shape, block=x.block, dtype="uint16")
        e.launch(SOURCE, "truncate", (x.rows * x.block, x.blocks), x.read, held.write, x.rows * x.block, whole=True)
        return held

    def decode(self, e, held, x):
        e.launch(SOURCE, "extend", (x.rows * x.block, x.blocks), held.read, x.write, x.rows * x.block, whole=True)
'''

KERNELS = """
#include "blocked.h"

KERNEL truncate(INPUT(x), OUTPUT_OF(ushort, y), const int n) {
  const int i = get_global_id(0);
  if (i < n) START(y)[get_global_id(1) * n + i] = as_uint(START(x)[get_global_id(1) * n + i]) >> 16;
}

KERNEL extend(INPUT_OF(ushort, y), OUTPUT(x), const int n) {
  const int i = get_global_id(0);
  if (i < n) START(x)[get_global_id(1) * n + i] = as_float((uint)START(y)[get_global_id(1) * n + i] << 16);
}
"""


@pytest.fixture(scope="module")
def bfloat(tmp_path_factory):
    return import_own(tmp_path_factory.mktemp("strategy"), "bfloat", py=STRATEGY, cl=KERNELS).BrainFloat()


def test_it_trains(start, kernels, bfloat):
    request = Request(added(), EXAMPLES, EXAMPLES, SGD(0.1))
    encoded = replace(request, activation_memory=dict.fromkeys(request.network.nodes, bfloat))
    (loss, expected), (same_loss, gradients) = (first_step(start, r) for r in (request, encoded))
    assert same_loss == loss, "the forward pass computes with the originals"
    off = [np.abs(g - expected[name]).max() / np.abs(g).max() for name, g in gradients.items()]
    assert 0 < max(off) < 0.02
    stored = [account(make_plan(r, kernels.context.device)).stored for r in (request, encoded)]
    assert stored[1] < 0.6 * stored[0]
    plan = make_plan(encoded, kernels.context.device)
    assert {"truncated", "restored"} <= {a.purpose for a in explain(plan).activations} and "brainfloat" in str(plan)


def test_the_planner_chooses_it_within_a_budget(kernels, bfloat):
    request, device = Request(added(), 4, 4, SGD(0.1)), kernels.context.device
    masked = account(make_plan(replace(request, activation_memory=MASKS), device)).stored
    slow = LaunchTimes("slow arithmetic", 1e6, 1e9)
    plan = make_plan(request, device, f"{0.75 * masked:.0f} stored", launch_times=slow, allow=[bfloat])
    assert account(plan).stored <= 0.75 * masked
    assert bfloat in plan.request.activation_memory.values()
    assert slow.step(plan) > slow.step(make_plan(request, device)), "its launches are priced"


def test_store_is_the_default(kernels, bfloat):
    request, device = Request(added(), 2, 2, SGD(0.1)), kernels.context.device
    all_stored = replace(request, activation_memory=dict.fromkeys(request.network.nodes, Store()))
    stored = [account(make_plan(r, device)).stored for r in (request, all_stored)]
    assert stored[0] == stored[1]
    with pytest.raises(PlanError, match="'typo'"):
        make_plan(replace(request, activation_memory={"typo": Store()}), device)
