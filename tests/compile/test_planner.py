"""Plans within a budget: the fastest ways back that fit, held against all there are."""

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import pytest

from edgelearn import ops, tuned
from edgelearn.compile import (
    Budget,
    Compress,
    Invert,
    LaunchTimes,
    Mask,
    Offload,
    Recompute,
    Request,
    account,
    make_plan,
    planner,
    search,
)
from edgelearn.compile.lower import Layout, lay_out
from edgelearn.compile.policies import EXACT, checkpoints, invertible, nested
from edgelearn.compile.search import budgets, launch_key
from edgelearn.display import megabytes
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph import Network, reversible
from edgelearn.models import mobilenet_v2
from edgelearn.ops import SGD, BatchNormalization, Conv2D, ReLU

from .steps import batches, same_bits
from .test_networks import EXAMPLES, head
from .test_plan import draw
from .test_rematerialiser import preactivated

MB = 10**6
ROOFLINE = LaunchTimes("a test", 1e11, 1e10)


@dataclass(frozen=True)
class Slow(LaunchTimes):
    """Some kernels take long."""

    kernels: tuple[str, ...] = ()
    taking: float = 1.0

    def seconds(self, launch) -> float:
        return self.taking if launch.kernel in self.kernels else super().seconds(launch)


def tapering() -> Network:
    """Sizes that differ, so that each choice has another price."""
    net = Network("tapering", (12, 12, 3))
    for number, channels in enumerate((40, 24, 16)):
        net.add(f"conv{number}", Conv2D(channels, 3 - number % 2 * 2, padding="same", use_bias=False))
        net.add(f"norm{number}", BatchNormalization())
        net.add(f"relu{number}", ReLU())
        if number == 1:
            net.add("halved", ops.MaxPooling2D(2))
    return head(net)


def all_plans(request: Request, device):
    """Every choice of what is kept, as a plan."""
    lost = [("conv0",), ("norm0", "relu0"), ("conv1",), ("norm1", "relu1"), ("halved",), ("conv2",), ("norm2", "relu2")]
    lost += [("pool",), ("dense",)]
    layout = Layout(request, device, ops.Traits.of(device))
    for chosen in product((False, True), repeat=len(lost)):
        yield layout.with_memory(
            {n: Recompute() for names, gone in zip(lost, chosen, strict=True) if gone for n in names}
        )


def test_stored_bytes_fastest_of_all(kernels):
    device = kernels.context.device
    request = Request(tapering(), 1, 1, SGD(0.1), "batch")
    plans = [(account(plan).stored, ROOFLINE.step(plan)) for plan in all_plans(request, device)]
    sizes = sorted({stored for stored, _ in plans})
    for nbytes in sizes[:: max(1, len(sizes) // 8)]:
        found = make_plan(request, device, Budget(nbytes, "stored"), launch_times=ROOFLINE)
        assert account(found).stored <= nbytes
        assert ROOFLINE.step(found) == pytest.approx(min(t for s, t in plans if s <= nbytes), rel=1e-3)
    with pytest.raises(PlanError, match=f"smallest possible is {megabytes(sizes[0])}"):
        make_plan(request, device, Budget(sizes[0] - 1, "stored"), launch_times=ROOFLINE)


def test_other_strategies_need_no_other_lowering(kernels):
    """The plan is that of a request that asks for them."""
    device, streams = kernels.context.device, reversible(preactivated())
    held = {"conv1": Mask(), "relu1": Mask(), "pool": Compress()}
    for network, memories in (streams, [nested(streams), invertible(streams)]), (short(), [checkpoints(short()), held]):
        request = Request(network, 4, 2, SGD(0.1), "batch")
        layout = Layout(request, device, ops.Traits.of(device))
        for memory in memories:
            found = layout.with_memory(memory)
            asked = lay_out(replace(request, activation_memory=memory), device, layout.traits)
            assert found.request == asked.request and found.bytes_by_role == asked.bytes_by_role
            assert explained(found) == explained(asked)


def explained(plan):
    """Every launch of a plan and the place of its buffers."""
    return {
        key: [
            (*(launch.kernel, launch.grid), *((type(a), a.part, plan.offsets[a.buffer]) for a in launch.accesses))
            for launch in program.launches
        ]
        for key, program in plan.programs.items()
    }


def short() -> Network:
    net = Network("short", (12, 12, 3))
    net.add("conv0", Conv2D(40, 3, padding="same", use_bias=False))
    net.add("norm0", BatchNormalization())
    net.add("relu0", ReLU())
    net.add("conv1", Conv2D(24, 3, padding="same"))
    net.add("relu1", ReLU(6))
    return head(net)


def test_stored_bytes_fastest_of_all_ways(kernels):
    """Masks, which are always there, and 8 bits and pages, where they are asked for."""
    device, allow = kernels.context.device, (Compress(), Offload())
    costs = Slow("a test", 1e11, 1e10, paging=2e9, kernels=("convolution_forward",), taking=6e-5)
    request = Request(short(), 1, 1, SGD(0.1), "batch")
    tensors = [("conv0",), ("norm0", "relu0"), ("conv1", "relu1"), ("pool",)]
    plans, layout = [], Layout(request, device, ops.Traits.of(device))
    for ways in product((None, Recompute(), Mask(), *allow), repeat=len(tensors)):
        activation_memory = {name: way for names, way in zip(tensors, ways, strict=True) if way for name in names}
        with suppress(PlanError):  # for masks that would not do
            plans.append(layout.with_memory(activation_memory))
    found = [(account(plan).stored, costs.step(plan)) for plan in plans]
    sizes = sorted({stored for stored, _ in found})
    chosen = set()
    for nbytes in sizes[:: max(1, len(sizes) // 12)]:
        plan = make_plan(request, device, Budget(nbytes, "stored"), launch_times=costs, allow=allow)
        assert account(plan).stored <= nbytes
        assert costs.step(plan) == pytest.approx(min(t for s, t in found if s <= nbytes), rel=1e-3)
        chosen |= {type(way) for way in plan.request.activation_memory.values()}
    assert chosen == {Recompute, Mask, Compress, Offload}


def test_lossy_ways_and_pages_are_asked_for(kernels):
    request = Request(tapering(), 1, 1, SGD(0.1), "batch")
    device = kernels.context.device
    slow = Slow("a test", 1e11, 1e10, kernels=("convolution_forward", "convolution_local_forward", "pointwise_forward"))
    for allow in ((), (Compress(),), (Compress(ops.Float16()),), (Offload(),)):
        plan = make_plan(request, device, "35 kB stored", launch_times=slow, allow=allow)
        ways = {type(way) for way in plan.request.activation_memory.values()}
        assert ways - {Recompute, Mask} == {type(way) for way in allow}
        assert (account(plan).paged > 0) == (allow == (Offload(),))


@pytest.mark.parametrize(
    ("count", "batchnorm"), [("device", "batch"), ("peak", "moving"), ("peak", "batch"), ("stored", "moving")]
)
def test_plans_fit_and_steps_have_the_same_bits(start, kernels, count, batchnorm):
    network = reversible(preactivated())
    weights, x, labels = draw(network, EXAMPLES)
    request = Request(network, EXAMPLES, EXAMPLES, SGD(0.1), batchnorm, seed=7)
    everything = make_plan(request, kernels.context.device)
    gradients = []
    whole = Budget(0, count).used_by(everything)
    for share in (0.0, 0.1, 0.25):  # of what activations take, to be saved
        budget = Budget(int(whole - share * everything.arena_bytes), count)
        plan = make_plan(request, kernels.context.device, budget, launch_times=ROOFLINE)
        assert budget.fits(plan) and bool(plan.request.activation_memory) == (share > 0)
        held = kernels.context.ledger.held
        session = start(plan.request, weights)
        assert kernels.context.ledger.held - held == session.allocated_bytes == plan.peak_bytes
        session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
        gradients.append(session.gradients())
    for found in gradients[1:]:
        same_bits(found, gradients[0])


def squares() -> Network:
    """Down-sampling that can be undone, behind layers that run as one kernel."""
    net = Network("squares", (12, 12, 3))
    net.add("stem", Conv2D(16, 3, padding="same"))
    net.add("stem_bn", BatchNormalization())
    net.add("stem_relu", ReLU())
    net.add("squares", ops.SpaceToDepth())
    for name, channels in ("mix", 16), ("wide", 48):
        net.add(name, Conv2D(channels, 1))
        net.add(f"{name}_bn", BatchNormalization())
        net.add(f"{name}_relu", ReLU())
    return head(net)


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_what_a_stage_gives_is_inverted(kernels, batchnorm):
    """It goes by the names of all its layers."""
    device, request = kernels.context.device, Request(squares(), 1, 1, SGD(0.1), batchnorm)
    forward = ("convolution_forward", "normalize", "pointwise_forward", "activation_forward")
    slow = Slow("a test", 1e11, 1e10, kernels=forward)
    whole, ways = account(make_plan(request, device)).stored, set()
    for share in (0.9, 0.8, 0.6, 0.4):
        budget = Budget(int(share * whole), "stored")
        plan = make_plan(request, device, budget, launch_times=slow)
        assert budget.fits(plan)
        ways |= {(name, str(way)) for name, way in plan.request.activation_memory.items() if isinstance(way, Invert)}
    assert ways <= {("stem_relu", "invert by squares")}
    assert ways or batchnorm == "batch"  # whose normalization needs the convolution's output, and is cheaper


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_inexact_inverses_are_chosen_by_nobody(kernels, batchnorm):
    """Streams of floats, the first of which has the names of a convolution, BatchNorm and ReLU."""
    net = squares()
    x = net.add("row_in", ReLU(), "wide_relu")
    for block in range(4):
        net.add(f"row{block}", Conv2D(48, 3, padding="same"), x)
        net.add(f"row{block}_bn", BatchNormalization())
        f = net.add(f"row{block}_relu", ReLU())
        x = net.add(f"row{block}_add", ops.Add(), x, f)
    net.add("last", ops.GlobalAveragePooling2D())
    net.add("classes", ops.Dense(5))
    device, to_add = kernels.context.device, Slow("a test", 1e11, 1e10, kernels=("couple",))
    inverted = []
    for step in (0, 2**-16):
        request = Request(reversible(net, step=step), 1, 1, SGD(0.1), batchnorm)
        budget = Budget(account(make_plan(request, device)).stored // 3, "stored")
        plan = make_plan(request, device, budget, launch_times=to_add)
        assert budget.fits(plan)
        inverted.append(
            any(isinstance(way, Invert) and "_add" in way.layer for way in plan.request.activation_memory.values())
        )
    assert inverted == [False, True]


def test_the_input_is_not_inverted(kernels):
    net = Network("squares first", (12, 12, 4))
    net.add("squares", ops.SpaceToDepth())
    net.add("conv", Conv2D(16, 3, padding="same"))
    net.add("norm", BatchNormalization())
    net.add("relu", ReLU())
    request = Request(head(net), 1, 1, SGD(0.1), "batch")
    budget = Budget(account(make_plan(request, kernels.context.device)).stored * 3 // 4, "stored")
    assert budget.fits(make_plan(request, kernels.context.device, budget))
    activation_memory = invertible(net)
    assert not any(isinstance(way, Invert) for way in activation_memory.values())
    make_plan(replace(request, activation_memory=activation_memory), kernels.context.device)


def test_streams_are_inverted_where_that_is_faster(kernels):
    request = Request(reversible(preactivated()), 1, 1, SGD(0.1), "batch")
    half = account(make_plan(request, kernels.context.device)).stored // 2
    to_add = Slow("a test", 1e11, 1e10, kernels=("couple",))  # but not to take apart
    for costs, inverts in ((ROOFLINE, False), (to_add, True)):
        plan = make_plan(request, kernels.context.device, Budget(half, "stored"), launch_times=costs)
        assert any(isinstance(way, Invert) for way in plan.request.activation_memory.values()) == inverts


MOBILENET = Request(mobilenet_v2(), optimizer=SGD(0.1), batchnorm="batch")


@pytest.fixture(scope="module")
def eight(kernels):
    """A plan of MobileNet V2 with 8 MB stored, and what its planner has told."""
    tried = []
    return make_plan(MOBILENET, kernels.context.device, "8 MB stored", progress=tried.append), tried


def test_eight_megabytes_for_mobilenet_v2(kernels, eight):
    plan, tried = eight
    assert 7.9 * MB < account(plan).stored <= 8 * MB
    assert tried == [f"plan 2: {megabytes(account(plan).stored)} of 8.00 MB stored"]
    again = make_plan(MOBILENET, kernels.context.device, "8 MB stored")
    assert again.request.activation_memory == plan.request.activation_memory


@pytest.mark.parametrize("budget", ("8 MB stored", "25 MB peak"))
def test_all_ways_for_mobilenet_v2(kernels, eight, budget):
    device, tried, allow = kernels.context.device, [], (Compress(), Compress(ops.Float16()), Offload())
    times = LaunchTimes.of(device)
    plan = make_plan(MOBILENET, device, budget, launch_times=times, allow=allow, progress=tried.append)
    assert len(tried) <= 4 and Budget.of(budget).fits(plan)
    exact = eight[0] if budget.endswith("stored") else make_plan(MOBILENET, device, budget)
    assert times.step(plan) <= times.step(exact)


def test_policies_stand_in_for_a_solver_that_finds_nothing(kernels, monkeypatch):
    monkeypatch.setattr(search, "solve", lambda *_, **__: None)
    request, device = Request(tapering(), 1, 1, SGD(0.1), "batch"), kernels.context.device
    least = min(
        account(make_plan(replace(request, activation_memory=p(request.network)), device)).stored for p in EXACT
    )
    assert account(make_plan(request, device, Budget(least, "stored"))).stored == least


def test_the_least_peak_of_mobilenet_v2(kernels):
    plan = make_plan(MOBILENET, kernels.context.device, "18 MB peak")
    assert account(plan).peak <= 18 * MB
    with pytest.raises(PlanError, match=r"54\.\d+ MB, over the budget of 1\.00 MB"):
        make_plan(MOBILENET, kernels.context.device, "1 MB peak")


def test_budgets_at_once(kernels, eight):
    device = kernels.context.device
    plan = make_plan(MOBILENET, device, "8 MB stored, 20 MB peak")
    assert account(eight[0]).peak > 20 * MB
    assert account(plan).stored <= 8 * MB and account(plan).peak <= 20 * MB
    with pytest.raises(PlanError, match=r"budget of 8\.00 MB.*budget of 1\.00 MB"):
        make_plan(MOBILENET, device, [Budget(8 * MB, "stored"), "1 MB peak"])


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_refusals_say_what_a_micro_batch_of_one_needs(kernels, batchnorm):
    request, device = Request(tapering(), 8, 8, SGD(0.1), batchnorm), kernels.context.device
    one, asked = replace(request, micro_batch=1), {"norm0": Recompute(), "relu0": Recompute()}
    as_asked = account(make_plan(replace(one, activation_memory=asked), device)).stored
    with pytest.raises(PlanError, match=r"fits is 1 \(now 8\)"):
        make_plan(replace(request, activation_memory=asked), device, Budget(as_asked + 1, "stored"))
    budget = Budget(
        account(make_plan(replace(one, activation_memory=checkpoints(request.network)), device)).stored, "stored"
    )
    alone = "; BatchNorm would use" if batchnorm == "batch" else r"\. What fits: "
    with pytest.raises(PlanError, match=rf"fits is 1 \(now 8\){alone}"):
        make_plan(request, device, budget)
    with pytest.raises(PlanError, match=r"micro-batch of 1 needs .* MB"):
        make_plan(request, device, "1 KB stored")


def test_refused_predictions_are_planned_once(kernels, monkeypatch):
    """A search through sizes doesn't read what is said of another one."""
    planned = []
    monkeypatch.setattr(planner, "Layout", lambda *args: planned.append(args) or Layout(*args))
    with pytest.raises(PlanError, match="now 8"):
        make_plan(Request(tapering(), 8, 8), kernels.context.device, 1000)
    assert len(planned) == 1


def test_a_saving_that_was_asked_for_stays(kernels):
    request = Request(tapering(), 1, 1, SGD(0.1), activation_memory={"norm0": Recompute(), "relu0": Recompute()})
    need = make_plan(request, kernels.context.device).peak_bytes
    assert make_plan(request, kernels.context.device, need).request.activation_memory == request.activation_memory
    with pytest.raises(PlanError, match="over the budget"):
        make_plan(request, kernels.context.device, need - 1)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        (1000, Budget(1000)), ("8MB", Budget(8 * MB)), ("1.5 MiB peak", Budget(3 << 19, "peak")),
        ("8 mb stored", Budget(8 * MB, "stored")), ("64 device", Budget(64)),
    ],
)  # fmt: skip
def test_budgets_as_text(text, budget):
    assert Budget.of(text) == budget


@pytest.mark.parametrize("text", ("much", "8 XB", "1.2.3 MB", "8 MB framework", -1, "9" * 400))
def test_what_is_no_budget(text):
    with pytest.raises(PlanError, match="Expected a budget"):
        Budget.of(text)


def test_no_budget_at_all():
    with pytest.raises(PlanError, match="none"):
        budgets([])


@pytest.mark.parametrize("allow", (Compress(), [Recompute()], ["halves"]), ids=repr)
def test_what_the_planner_may_not_choose_besides(kernels, allow):
    with pytest.raises(PlanError, match="allow"):
        make_plan(Request(tapering()), kernels.context.device, allow=allow)


def test_what_no_budget_counts():
    with pytest.raises(PlanError, match=r"device, peak, stored.*'arena'"):
        Budget(1000, "arena")


def test_measured_costs(kernels, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = kernels.context.device
    plan = make_plan(Request(tapering(), 1, 1, SGD(0.1)), device)
    assert "not measured" in LaunchTimes.of(device).origin and LaunchTimes.of(device).known(plan) == 0
    assert 0 < LaunchTimes.of(replace(device, clock_mhz=0)).step(plan) < 1, "some drivers don't tell the clock"
    seconds = {launch_key(launch): 0.5 for launch in plan.step_launches}
    tuned.save_times(tuned.MeasuredTimes("2026-11-21", 0.25, 2.0, seconds), device)
    path = tuned.save_times(tuned.MeasuredTimes("2026-11-22", 0.25, 2.0, {"another": 1.0}), device)
    costs = LaunchTimes.of(device)
    assert "2026-11-22" in costs.origin and costs.known(plan) == 1
    assert costs.step(plan) == 2.0 + 0.75 * len(plan.step_launches)
    path.write_text("{}")
    with pytest.raises(FormatError, match="edgelearn memory measure"):
        LaunchTimes.of(device)
