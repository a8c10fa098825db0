import edgelearn as el
from edgelearn.compile import LaunchTimes, Request, account
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.runtime import choose_device
from edgelearn.widgets import BudgetView


def test_the_slider_plans_again():
    device = choose_device(None).device
    costs = LaunchTimes("a test", 1e11, 1e10)
    request = Request(mobilenet_v2_cifar(alpha=0.25), 8, 8, el.SGD(0.1), "batch")
    view = BudgetView(request, device, (64, 6, 0), costs=costs)
    assert view.budget == "64 MB stored" and not view.plans["64 MB stored"].request.activation_memory
    before = bytes(view._chart.value)
    view._size.value = 6
    plan = view.plans["6 MB stored"]
    assert account(plan).stored <= 6e6 and plan.request.activation_memory
    assert f"{costs.step(plan) * 1e3:.1f} ms" in view.status and "a test" in view.status
    assert before.startswith(b"\x89PNG") and bytes(view._chart.value) not in (b"", before)
    view._size.value = 0
    assert view._chart.layout.display == "none"
    assert view.plans["0 MB stored"] is None and "over the budget of 0 MB" in view.status
    refused = view.status
    view._size.value = 64
    assert view._chart.layout.display is None
    view.request = None  # nothing is planned twice
    view._size.value = 0
    assert view.status == refused
    view.request, view._size.value = request, 64
    view._count.value = "device"
    assert view.plans["64 MB device"].peak_bytes <= 64e6
