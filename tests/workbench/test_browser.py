"""The pages in a browser, by pointer and keyboard. Skipped where there is no Chromium, or no Playwright."""

import importlib.util
import json
import math
import shutil
import time

import pytest

from edgelearn.lab.runs import RunStore

from .served import TOKEN, serve

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
SECONDS = 60  # no test waits so long unless something is wrong
BUSY = 5  # times the seconds that are promised: the machine may do something else

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome (Debian: apt install chromium)"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="Playwright is not installed"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of a server, and its store."""
    folder = tmp_path_factory.mktemp("workbench")
    with serve(folder) as address:
        yield address, RunStore(folder / "runs")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def store(served):
    """A store of three runs, the last one first."""
    store = served[1]
    shutil.rmtree(store.root, ignore_errors=True)
    for rate in (0.1, 0.01, 0.001):
        run = store.create("flowers", {"learning_rate": rate, "epochs": 3}, plan={"peak_bytes": 1000})
        for epoch in (1, 2, 3):
            run.append_epoch({"epoch": epoch, "loss": rate + 1 / epoch, "val_accuracy": 0.3 * epoch})
        run.finish({"accuracy": 1 - rate, "loss": rate})
        time.sleep(0.01)
    return store


@pytest.fixture
def opened(served, browser):
    """Open a page of the server; errors on it are failures."""
    tabs, errors = [], []

    def opened(path, scheme="light", width=1280, height=800):
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        tab.set_default_timeout(1000 * SECONDS)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(f"{served[0]}/edgelearn{path}{'&' if '?' in path else '?'}token={TOKEN}")
        tab.locator("h1").wait_for()
        tabs.append(tab)
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert errors == []


def rows(tab):
    return tab.locator("table.el-runs tbody tr")


def counted(tab, text):
    tab.get_by_role("status").filter(has_text=text).wait_for()


def test_runs_are_searched_and_sorted(store, opened):
    tab = opened("/runs")
    counted(tab, "3 of 3 runs")
    search = tab.get_by_role("searchbox", name="Search runs")
    for text, count in (
        ("learning_rate<0.05", 2),
        ("accuracy>0.95 learning_rate=0.01", 1),
        ("flowers", 3),
        ("none", 0),
    ):
        search.fill(text)
        counted(tab, f"{count} of 3 runs")
    search.fill("")
    tab.get_by_role("button", name="Result").click()
    assert tab.locator("th[aria-sort=descending]").inner_text().startswith("Result")
    assert [text.split("\t")[5] for text in rows(tab).all_inner_texts()] == ["99.9 %", "99.0 %", "90.0 %"]
    tab.get_by_label("Status").select_option("finished")
    counted(tab, "3 of 3 runs")


def test_a_run_is_described_by_the_keyboard_alone(store, opened):
    tab = opened("/runs")
    first = tab.get_by_role("button", name="Edit name").first
    first.focus()
    tab.keyboard.press("Enter")
    tab.keyboard.type("<b>base</b>")
    tab.keyboard.press("Tab")
    tab.keyboard.type("paper, seed 1")
    tab.keyboard.press("Tab")
    tab.keyboard.type("a note")
    tab.get_by_role("button", name="Save").focus()
    tab.keyboard.press("Enter")
    tab.get_by_role("link", name="<b>base</b>").wait_for()
    assert tab.evaluate("document.activeElement.className").endswith("el-edit")
    assert store.list()[0].tags == ["paper", "seed 1"] and store.list()[0].note == "a note"
    tab.get_by_label("Tag", exact=True).select_option("paper")
    counted(tab, "1 of 3 runs")


def test_runs_are_deleted_and_come_back(store, opened):
    tab = opened("/runs")
    counted(tab, "3 of 3 runs")
    tab.get_by_role("checkbox", name="Tick flowers").first.check()
    tab.get_by_role("button", name="Delete", exact=True).click()
    tab.get_by_text("1 run is deleted").wait_for()
    assert len(store.list()) == 2
    tab.get_by_role("button", name="Undo").click()
    tab.get_by_text("Restored.").wait_for()
    assert len(store.list()) == 3
    tab.get_by_role("checkbox", name="Tick every run shown").check()
    tab.get_by_role("button", name="Delete", exact=True).click()
    tab.get_by_text("No runs yet.").wait_for()
    tab.get_by_role("button", name="Deleted runs").click()
    counted(tab, "3 of 3 deleted runs")
    tab.get_by_role("checkbox", name="Tick every run shown").check()
    tab.get_by_role("button", name="Restore").click()
    tab.get_by_text("3 runs are restored").wait_for()
    assert len(store.list()) == 3


def test_runs_are_compared_and_exported(store, opened, tmp_path, browser):
    tab = opened("/runs")
    counted(tab, "3 of 3 runs")
    tab.get_by_role("checkbox", name="Tick every run shown").check()
    tab.get_by_role("button", name="Compare").click()
    tab.get_by_role("heading", name="Comparison of 3 runs").wait_for()
    settings = tab.get_by_role("table", name="Settings that differ")
    assert settings.locator("tbody").inner_text().split() == ["learning_rate", "0.001", "0.01", "0.1"]
    assert settings.locator("thead").inner_text().count("learning_rate") == 3  # runs are called by what differs
    assert tab.locator("h2").all_inner_texts()[0] == "Settings that differ" and tab.locator("canvas").count() == 2
    chart = tab.locator("canvas").first
    chart.press("ArrowRight")
    assert tab.locator("output").first.inner_text().startswith("epoch 2: 1: learning_rate 0.001 0.501 · ")
    with tab.expect_download() as download:
        tab.get_by_label("Export as").select_option("html")
    download.value.save_as(tmp_path / "comparison.html")
    alone = browser.new_page()
    alone.goto((tmp_path / "comparison.html").as_uri())
    alone.get_by_role("heading", name="Comparison of 3 runs").wait_for()
    assert alone.locator("canvas").count() == 2 and alone.get_by_label("Export as").count() == 0
    alone.close()
    tab.go_back()
    counted(tab, "3 of 3 runs")


def test_the_first_training_moves_after_a_click_and_stops_and_goes_on(store, opened):
    tab = opened("")
    now = tab.get_by_label("Training now", exact=True)
    tab.get_by_role("button", name="Train the sample of Flowers").click()
    now.get_by_text("extracting features").wait_for()
    now.get_by_role("button", name="Stop").click()
    now.get_by_text("Nothing trains").wait_for()
    (run,) = store.list().where(status="interrupted")
    tab.get_by_role("table", name="Recent runs").get_by_role("link", name=run.id).click()
    tab.get_by_role("button", name="Run again …").click()
    tab.get_by_label("epochs", exact=True).fill("1")
    tab.get_by_text("Differs: epochs 20 → 1").wait_for()
    tab.get_by_role("button", name="Cancel").click()
    tab.get_by_role("button", name="Resume").click()
    now.get_by_role("progressbar").first.wait_for()
    tab.get_by_label("Training now", exact=True).get_by_text("Nothing trains").wait_for()
    assert store.open(run.id).status == "finished" and (run.folder / "output.log").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(store, opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    ids = store.list().ids
    store.open(ids[0]).annotate(name="base", tags=["t"], note="n")
    for path in ("", "/runs", f"/runs/{ids[0]}", f"/compare?id={ids[0]}&id={ids[1]}"):
        tab = opened(path, scheme)
        tab.locator("td").first.wait_for()
        found = axe.Axe().run(tab).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []


@pytest.mark.parametrize("width", [1000, 2560])
def test_pages_fit_the_window(store, opened, width):
    ids = store.list().ids
    for path in ("", "/runs", f"/runs/{ids[0]}", f"/compare?id={ids[0]}&id={ids[1]}"):
        tab = opened(path, width=width)
        tab.locator("td").first.wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def many(store, count, long):
    """Write `count` runs like the newest one; the first `long` of them have 10,000 epochs."""
    record = json.loads((store.list()[0].folder / "run.json").read_text())
    for number in range(count):
        folder = store.root / f"flowers-20200101-{number:06d}-abcd"
        folder.mkdir()
        config = {"learning_rate": 1 / (1 + number), "epochs": 3, "batch_size": number}
        (folder / "run.json").write_text(json.dumps(record | {"id": folder.name, "config": config}))
        rows = [
            {"epoch": epoch, "loss": math.exp(-epoch / 3000), "val_loss": math.exp(-epoch / 3500), "val_accuracy": 0.9}
            for epoch in range(1, 10_001 if number < long else 4)
        ]
        (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_thousand_runs_and_ten_long_ones_are_fluent(store, opened):
    many(store, 1000, 10)
    for _ in range(2):
        start = time.monotonic()
        tab = opened("/runs")
        rows(tab).first.wait_for()
        assert time.monotonic() - start < BUSY * 1.0
        counted(tab, "1,003 of 1,003 runs")
    seconds = tab.evaluate("""async () => {
      const search = document.querySelector('[type=search]'), start = performance.now();
      search.value = 'learning_rate<0.01';
      search.dispatchEvent(new Event('input'));
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      return (performance.now() - start) / 1000;
    }""")
    assert seconds < BUSY * 0.2
    tab.get_by_role("searchbox", name="Search runs").fill("batch_size<10")
    counted(tab, "10 of 1,003 runs")
    tab.get_by_role("checkbox", name="Tick every run shown").check()
    start = time.monotonic()
    tab.get_by_role("button", name="Compare").click()
    tab.locator("canvas").first.wait_for()
    assert time.monotonic() - start < BUSY * 2.0
