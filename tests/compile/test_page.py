"""The page of a plan: its figures are the plan's, and it works in a browser, where there is Chromium."""

import importlib.util
import json
import re
import shutil

import pytest

import edgelearn as el
from edgelearn.compile import Request, make_plan
from edgelearn.compile.page import block_of
from edgelearn.compile.plan import Kind
from edgelearn.compile.policies import checkpoints
from edgelearn.models import efficientnet_b0, mobilenet_v2, mobilenet_v2_cifar
from edgelearn.runtime import list_devices

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
LARGEST = 300_000  # bytes of the page of MobileNet V2


def plan_of(network, policy=None, batch_size=1):
    request = Request(
        network, batch_size, batch_size, el.SGD(0.1), "batch", activation_memory=policy(network) if policy else {}
    )
    return make_plan(request, list_devices()[0])


@pytest.fixture(scope="module")
def plans():
    network = mobilenet_v2_cifar(alpha=0.25)
    return plan_of(network, batch_size=2), plan_of(network, checkpoints, batch_size=2)


def data(page):
    return json.loads(re.search(r'type="application/json">(.*?)</script>', page.html, re.S)[1])


def test_figures_are_those_of_the_plan(plans):
    plan = plans[0]
    (facts,) = data(plan.show(predicted=lambda launch: 1e-3))
    program = plan.program(Kind.TRAIN)
    assert sum(facts["roles"].values()) == plan.peak_bytes
    assert [launch["kernel"] for launch in facts["launches"]] == [launch.kernel for launch in program.launches]
    assert [layer["name"] for layer in facts["layers"]] == list(plan.request.network.nodes)
    live = [
        sum(t["bytes"] for t in facts["tensors"] if t["first"] <= at <= t["last"])
        for at in range(len(program.prepare), len(program.prepare) + len(program.micro))
    ]
    assert live == [nbytes for _, nbytes in plan.live_bytes()]
    assert facts["arena"] == plan.arena_bytes
    assert 0 <= facts["arena"] - max(t["offset"] + t["bytes"] for t in facts["tensors"]) < plan.alignment
    assert {launch["predicted"] for launch in facts["launches"]} == {1e-3}
    assert {launch["phase"] for launch in facts["launches"][: len(program.prepare)]} <= {0}
    assert [launch["phase"] for launch in facts["launches"]] == sorted(launch["phase"] for launch in facts["launches"])


def test_a_plan_that_predicts_has_no_backward_pass():
    (facts,) = data(make_plan(Request(mobilenet_v2_cifar(alpha=0.25)), list_devices()[0]).show())
    assert {launch["phase"] for launch in facts["launches"]} == {0, 1}


def test_the_page_is_one_small_file_that_loads_nothing(tmp_path):
    page = plan_of(mobilenet_v2()).show()
    page.save(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").stat().st_size <= LARGEST
    assert not re.search(r"""(src|href)=|url\(|import |fetch\(""", page.html)
    assert page._repr_html_().startswith("<iframe ") and "<script" not in page._repr_html_()


@pytest.mark.parametrize(
    ("layer", "block"),
    [("block_3_expand_BN", "block_3"), ("stage1/conv", "stage1"), ("layer1.0.conv1", "layer1.0"), ("dense", "")],
)
def test_blocks_follow_from_names(layer, block):
    assert block_of(layer) == block


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("there is no Chromium (Debian: apt install chromium), or no Playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(browser, tmp_path):
    errors, tabs = [], []

    def opened(page, scheme="light"):
        page.save(tmp_path / "plan.html")
        tabs.append(tab := browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto((tmp_path / "plan.html").as_uri())
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert errors == []


def test_layers_moments_and_tensors_are_linked(plans, browse):
    tab = browse(plans[0].show(predicted=lambda launch: 1e-3))
    assert tab.get_by_role("status").inner_text() == f"{len(plans[0].request.network.nodes)} layers"
    tab.get_by_role("searchbox").fill("block_5_project")
    tab.get_by_role("button", name="block_5_project", exact=True).click()
    assert tab.locator("#layers tr.chosen td.text").first.inner_text() == "block_5_project"
    assert "block_5_project" in tab.locator("#alive h2").inner_text()
    assert tab.locator("#alive tr.chosen").count() >= 1
    tab.get_by_role("slider").fill("0")
    assert tab.locator("#alive h2").inner_text().startswith("Launch 1 of ")
    assert tab.get_by_role("slider").get_attribute("aria-valuetext").startswith("launch 1 of ")
    tab.locator("canvas.timeline").click(position={"x": 300, "y": 60})
    assert not tab.locator("#alive h2").inner_text().startswith("Launch 1 of ")


def test_blocks_fold_and_columns_sort(plans, browse):
    tab = browse(plans[0].show())
    rows = tab.locator("#layers tbody tr")
    folded = rows.count()
    tab.get_by_role("button", name="Unfold blocks").click()
    assert rows.count() == len(plans[0].request.network.nodes) > folded
    tab.get_by_role("button", name="MACs").click()
    assert tab.locator("th[aria-sort=descending]").inner_text() == "MACs"
    most = max(tab.evaluate("plans[0].layers.map(l => [l.launches.reduce((n, x) => n + x.flops, 0), l.name])"))
    assert rows.first.locator("td.text").first.inner_text() == most[1]


def test_two_plans_show_their_differences_only(plans, browse):
    tab = browse(plans[0].show(plans[1], ("keep all", "checkpoints")))
    assert tab.locator("#roles tbody tr").count() == 2  # the arena, and the sum
    assert "−" in tab.locator("#roles tbody tr").last.inner_text()
    assert tab.get_by_text("recomputed", exact=True).count() >= 1
    same = browse(plans[0].show(plans[0]))
    assert same.get_by_role("status").inner_text() == "0 rows differ"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(plans, browse, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for page in (plans[0].show(), plans[0].show(plans[1])):
        found = axe.Axe().run(browse(page, scheme)).response["violations"]
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_a_large_plan_is_fluent(browse):
    plan = plan_of(efficientnet_b0())
    tab = browse(plan.show())
    seconds = tab.evaluate("""() => { const start = performance.now();
      for (let i = 0; i < 10; i++) { plans[0].at = 10 * i; drawMoments(); drawTable(); }
      return (performance.now() - start) / 10000; }""")
    assert seconds < 0.25  # on a busy machine; about 0.02 on a quiet one
