"""Views in JupyterLab with a real browser. Skipped where there is no Chromium, or no Playwright."""

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import soundfile
from nbformat.sign import NotebookNotary

from edgelearn.data.synthetic_words import embedded_words
from edgelearn.widgets import RocView
from edgelearn.widgets.pictures import GONE
from tests.notebooks.test_notebooks import NOTEBOOKS, SITE, SMALLER, outputs, smaller
from tests.workbench.served import answering

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
SECONDS = 120  # no test waits so long unless something is wrong

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome (Debian: apt install chromium)"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="Playwright is not installed"),
]

START = re.compile("Start$")
READY = (
    "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus === 'connected' "
    "&& jupyterapp.shell.currentWidget.content.widgets.length > 1"
)
RUN = (
    "async (index) => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; "
    "await jupyterapp.commands.execute('notebook:run-cell'); }"
)
RUN_ALL_BELOW = (  # without waiting for their end
    "(index) => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; "
    "jupyterapp.commands.execute('notebook:run-all-below'); }"
)
RUNNING = "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
CELLS = {
    "keywords": """
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.experiments.keywords.embedding import find_embedder
from edgelearn.widgets.keywords import Enrolment, KeywordsView

words = embedded_words(speakers=2, takes=4)
user, other = sorted(set(words.speakers.tolist()))
enrolment = Enrolment(find_embedder("sample")[0], words.take(words.speakers == other))
mine = words.take(words.speakers == user).only(words.class_names[:1])
enrolment.enrol(words.class_names[0], [mine.recording(i) for i in range(3)])
enrolment.threshold = 0.962598  # of more digits than a slider has steps
KeywordsView(enrolment)
""",
    "budgets": """
import edgelearn as el
from edgelearn.compile import Request
from edgelearn.models import resnet8
from edgelearn.widgets import BudgetView

request = Request(resnet8(), 64, 64, el.SGD(0.1), "batch")
BudgetView(request, el.choose_device().device, (0, 6))
""",
    "training": """
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.widgets import TrainingView

view = TrainingView(lambda: FlowersExperiment.load(FlowersConfig(sample=True)), RunStore())
view
""",
    "form": """
from edgelearn.experiments.precision import PrecisionConfig
from edgelearn.widgets import Form

form = Form(FlowersConfig(sample=True, epochs=3, batch_size=50), ("epochs", "batch_size", "sample"))
display(form, Form(PrecisionConfig(), ("weights",)))
""",
    "experiment": """
from edgelearn.widgets import ExperimentView

ExperimentView("flowers")
""",
    "roc": """
import numpy as np
from edgelearn.widgets import RocView, table

display(RocView(np.linspace(0.4, 1, 50), {"others": np.linspace(-1, 0.6, 100)}))
table([("float32", "1,200 ms", "passed"), ("4 bits", "7 ms", "failed")], ("format", "time", "claim"))
""",
    "stopped": "view.summary()",
    "runs": """
own = el.runs("runs_of_the_table")  # trainings of other tests stay out of it
with own.create("flowers", {"epochs": 1}) as run:
    run.append_epoch({"epoch": 1, "loss": 0.5})
    run.finish({"accuracy": 0.9})
own
""",
    "model": "el.Model(resnet8()).plan(8)",
    "after": """
import asyncio

await asyncio.sleep(1)  # the browser may answer meanwhile
print("the threshold is", enrolment.threshold)
""",
}
BUSY_CELLS = {  # run by the tests that need them; a later one is run with those below, which ■ has to keep from running
    "views": """
from tests.widgets.conftest import make_tiny

first, second = (TrainingView(lambda: make_tiny(epochs=1_000_000), RunStore()) for _ in range(2))
display(first, second)
""",
    "again": """
view = TrainingView(lambda: make_tiny(epochs=1_000_000), RunStore())
view
""",
    "run": "first.run()",
    "results": "first.results",
    "run_async": "await first.run_async()",
    "fit": """
import numpy as np
from edgelearn.ops import Dense

network = el.Network("tiny", (4,))
network.add("dense", Dense(3))
fitted = el.Model(network).compile(el.SGD(0.1))
print("fits")
fitted.fit(np.ones((8, 4), np.float32), np.zeros(8, int), 8, epochs=10**9, verbose=0)
""",
    "entered": "print(form.config.epochs, form.config.batch_size)",
    "last": "print('the last cell ran')",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab that has the notebook."""
    folder = tmp_path_factory.mktemp("lab")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.strip(), id=name) for name, source in (CELLS | BUSY_CELLS).items()],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(notebook, folder / "views.ipynb")
    bundle = RocView(np.array([0.9]), {"others": np.array([0.1])})._repr_mimebundle_()
    saved = nbformat.v4.new_output("display_data", data=bundle)
    cell = nbformat.v4.new_code_cell("view", outputs=[saved])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "saved.ipynb")
    for name in "notebooks", "untrusted", "small", "site", "data/kernels/python3":
        (folder / name).mkdir(parents=True)
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kernel = {  # without a network, and with few kernels to compile
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3",
        "language": "python", "env": {"PYTHONPATH": f"{folder / 'site'}{os.pathsep}{python_path}"},
    }  # fmt: skip
    (folder / "data" / "kernels" / "python3" / "kernel.json").write_text(json.dumps(kernel))
    for path in NOTEBOOKS:
        small = smaller(nbformat.read(path, as_version=4), SMALLER.get(path.stem, []))
        nbformat.write(small, folder / "small" / path.name)
        NotebookNotary(data_dir=str(folder / "data")).sign(small)
        shipped = nbformat.read(path, as_version=4)
        for cell in shipped.cells:
            cell.source = cell.source.replace("el.lab.flowers(PRESET)", "el.lab.flowers(PRESET, epochs=2000)")
        nbformat.write(shipped, folder / "notebooks" / path.name)
        NotebookNotary(data_dir=str(folder / "data")).sign(shipped)  # as `make notebooks` trusts them
        shipped.metadata.unknown = True  # for no signature of these contents
        nbformat.write(shipped, folder / "untrusted" / path.name)
    own = {
        "PYTHONPATH": python_path, "IPYTHONDIR": str(folder / "ipython"), "EDGELEARN_DATA": "",
        "JUPYTER_PREFER_ENV_PATH": "0",
    }  # fmt: skip
    options = "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"
    with answering("jupyterlab", folder, folder, *options, **own) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Its microphone hears the clip of a word that the cell "keywords" doesn't enrol, again and again."""
    from playwright.sync_api import sync_playwright

    words, sound = embedded_words(speakers=2, takes=4), tmp_path_factory.mktemp("sound") / "word.wav"
    mine = words.take(words.speakers == min(words.speakers.tolist())).only(words.class_names[:1])
    soundfile.write(sound, np.pad(mine.recording(3), 8000), 16_000, subtype="PCM_16")
    microphone = [
        "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={sound}",
    ]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", *microphone])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(lab, browser):
    """The notebook, all cells run."""
    page = browser.new_page(viewport={"width": 1300, "height": 1600})
    page.set_default_timeout(1000 * SECONDS)
    page.goto(f"{lab}/lab/tree/views.ipynb")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function(READY)
    for index in range(len(CELLS)):  # one by one: the cell that fails would end "run all"
        page.evaluate(RUN, index)
    return page


@pytest.fixture(scope="module")
def views(page):
    """The outputs of the cell that shows two views of endless trainings."""
    page.evaluate(RUN, place("views"))
    return output(page, "views")


def place(name):
    return list(CELLS | BUSY_CELLS).index(name)


def output(page, name):
    return page.locator(".jp-CodeCell").nth(place(name)).locator(".jp-OutputArea-output")


def interrupt(page, name, begun):
    """Run the cell `name` and those below; press ■ when the page shows `begun`; return what the cell shows then."""
    page.evaluate(RUN_ALL_BELOW, place(name))
    begun.wait_for()
    page.locator('[data-jp-item-name="interrupt"]').click()
    page.wait_for_function(f"() => !({RUNNING})()")
    return output(page, name).last.inner_text()


def click(view, name):
    view.get_by_role("button", name=name).click()


HEAR = "(field) => { field.heard = []; field.addEventListener('input', () => field.heard.push(field.value)); }"


def enter(field, text):
    """Put `text` into a field. Playwright focuses the field, and sends the text to whatever has the focus by then: on a
    busy machine it may reach nothing, and is sent again. A field that had the text and lost it is a fault."""
    field.evaluate(HEAR)
    for _ in range(5):
        field.fill(text)
        if field.input_value() == text:
            return
        heard = field.evaluate("(field) => field.heard")
        assert text not in heard, f"the field had '{text}' and lost it: {heard}, now '{field.input_value()}'"
    raise AssertionError(f"'{text}' did not reach the field, which has '{field.input_value()}'")


def test_showing_a_view_changes_nothing(page):
    assert output(page, "after").inner_text().strip() == "the threshold is 0.962598"


def test_a_saved_view_that_is_not_trusted_says_how_to_get_its_controls(browser, lab):
    tab = browser.new_page()
    tab.goto(f"{lab}/lab/workspaces/other/tree/saved.ipynb")
    tab.get_by_text(GONE).wait_for(timeout=1000 * SECONDS)
    tab.close()


def test_no_image_is_broken(page):
    broken = page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea img')]"
        ".filter((i) => i.offsetParent !== null && !i.naturalWidth).length"
    )
    assert broken == 0
    assert page.locator(".jp-OutputArea img").count() == page.locator(".jp-OutputArea img[alt^=Chart]").count() > 0


def test_a_slider_has_a_name_and_announces_its_value(page):
    view = output(page, "budgets").first
    view.get_by_text("over the budget").wait_for()
    slider = view.get_by_role("slider", name="Budget")
    assert slider.get_attribute("aria-valuetext") == "0 MB"
    slider.press("ArrowRight")
    view.get_by_text("MB stored, ").wait_for()
    assert slider.get_attribute("aria-valuetext") == "6 MB"
    bits = output(page, "form").get_by_role("slider", name="Weights", exact=True)  # a form's have hints too
    assert bits.get_attribute("aria-valuetext") == "8"


def test_a_bad_field_is_marked_and_the_others_count(page):
    view = output(page, "form").first
    epochs, batch = view.get_by_label("Epochs"), view.get_by_label("Batch size")
    enter(epochs, "many")
    epochs.press("Enter")
    view.get_by_text("expected a number (int), got 'many'").wait_for()
    enter(batch, "7")
    batch.press("Enter")
    assert view.get_by_text("expected a number (int), got 'many'").is_visible()
    enter(epochs, "5")
    epochs.press("Enter")
    view.get_by_text("expected a number").wait_for(state="hidden")
    page.evaluate(RUN, place("entered"))
    assert "5 7" in output(page, "entered").inner_text()


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_views_are_accessible_and_follow_the_theme(page, views, theme):
    """Charts were white plates in the dark theme."""
    view = views.first
    if view.get_by_role("button", name=START).is_enabled():
        view.get_by_role("button", name=START).click()
    page.locator(".js-plotly-plot").first.wait_for()
    page.evaluate(
        "(name) => jupyterapp.commands.execute('apputils:change-theme', { theme: name })", f"JupyterLab {theme}"
    )
    page.wait_for_function(
        "(dark) => document.querySelector('.js-plotly-plot')._fullLayout.font.color === (dark ? '#e6e6e6' : '#212121')",
        arg=theme == "Dark",
    )
    grounds = page.evaluate(
        "() => [...document.querySelectorAll('.js-plotly-plot')].map((p) => p._fullLayout.paper_bgcolor)"
    )
    assert set(grounds) == {"rgba(0,0,0,0)"}
    schemes = page.evaluate(
        "() => [...document.querySelectorAll('img.el-figure')].map((i) => getComputedStyle(i).colorScheme)"
    )
    assert schemes and set(schemes) == {theme.lower()}, "by which SVG images know the theme"
    assert serious(page) == []


def test_a_live_chart_moves_while_an_epoch_lasts(page, views):
    """It lagged 66 epochs on a busy machine."""
    view = views.first
    if view.get_by_role("button", name=START).is_enabled():
        view.get_by_role("button", name=START).click()
    chart = view.locator(".js-plotly-plot")
    chart.wait_for()
    chart.evaluate("(plot) => { window.redraws = 0; plot.addEventListener('el-drawn', () => window.redraws++); }")
    page.wait_for_function("() => window.redraws >= 4", timeout=6000)  # once a second, slower on a busy machine
    assert "over epochs, last: each step" in chart.get_attribute("aria-label")
    loss = "(plot) => plot._fullLayout.yaxis.type"
    assert chart.evaluate(loss) == "linear"
    view.get_by_label("Logarithmic loss").check()
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')._fullLayout.yaxis.type === 'log'")
    view.get_by_label("Logarithmic loss").uncheck()
    shown = "(plot) => (plot._fullLayout.xaxis.range[1] - plot._fullLayout.xaxis.range[0]) / plot.data[0].x.at(-1)"
    chart.focus()
    for _ in range(2):
        page.keyboard.press("+")
        page.wait_for_timeout(500)
    assert chart.evaluate(shown) < 0.7
    page.keyboard.press("Home")
    page.wait_for_timeout(500)
    assert chart.evaluate(shown) > 0.9
    click(view, re.compile("Stop$"))
    view.get_by_text("Stopped after epoch").wait_for()


@pytest.mark.parametrize("width", [1000, 1920, 2560])
def test_no_view_has_a_scrollbar_and_no_picture_is_stretched(page, width):
    page.set_viewport_size({"width": width, "height": 1600})
    page.wait_for_timeout(300)
    wide = page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea-output, .widget-box')]"
        ".filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')"
        ".map((e) => e.className + ' ' + e.scrollWidth + ' > ' + e.clientWidth)"
    )
    sizes = page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea img.el-figure')].filter((i) => i.clientWidth)"
        ".map((i) => [i.clientWidth, i.naturalWidth, i.clientHeight, i.naturalHeight])"
    )
    page.set_viewport_size({"width": 1300, "height": 1600})
    assert wide == []
    assert sizes and all(wide <= full and abs(high / tall - wide / full) < 0.02 for wide, full, high, tall in sizes)


def test_tables_are_columns_of_whole_words(page):
    """They were lines of fixed width, whose last columns wrapped below each row."""
    rows = output(page, "roc").locator("table.el-table tr")
    assert rows.all_inner_texts() == ["format\ttime\tclaim", "float32\t1,200 ms\tpassed", "4 bits\t7 ms\tfailed"]
    right = rows.nth(1).locator("td").nth(1).evaluate("(cell) => getComputedStyle(cell).textAlign")
    failed = rows.nth(2).locator("b").evaluate("(mark) => getComputedStyle(mark).backgroundColor")
    assert (right, failed) == ("right", "rgb(176, 0, 32)")


def test_a_form_says_what_an_experiment_takes_and_what_is_wrong(page):
    """A wrong layer passed the form, and ended in a traceback."""
    view = output(page, "experiment").first
    view.get_by_text("of device memory planned, about").wait_for()
    layers = view.get_by_label("Trainable")
    enter(layers, "conv_pw_99")
    layers.press("Enter")
    view.get_by_text("conv_pw_99").wait_for()
    view.get_by_role("button", name=START).click()
    view.get_by_text("Not started. trainable: ").wait_for()


def test_a_word_of_the_microphone_is_heard_recorded_and_enrolled(page):
    view = output(page, "keywords").first
    click(view, re.compile("Listen$"))
    word = embedded_words(speakers=2, takes=4).class_names[0]
    view.get_by_role("row", name=re.compile(rf"^\d+\.\d s\s+{word}\s")).first.wait_for()
    assert view.get_by_role("meter").get_attribute("aria-valuetext").endswith(" dB")
    click(view, "Stop")
    enter(view.get_by_label("Word", exact=True), word)
    click(view, "Record a clip")
    view.get_by_text("listening …").wait_for()
    page.wait_for_timeout(2500)  # the word and the silence around it
    click(view, "Stop")
    view.get_by_text("1 clip to enrol").wait_for()
    click(view, re.compile("Enrol$"))
    view.get_by_text("4 enrolled clips, each scored without itself").wait_for()


def test_what_is_missing_is_said_in_a_line(page):
    text = output(page, "stopped").inner_text()
    assert "Traceback" not in text and "no results yet" in text


def test_a_store_is_a_table_that_works(page):
    table = output(page, "runs")
    table.get_by_role("button", name="Edit name").first.click()
    enter(page.get_by_label("Name", exact=True), "base")
    page.get_by_role("button", name="Save", exact=True).click()
    table.get_by_role("button", name="base", exact=True).click()
    table.get_by_role("heading", name="base").wait_for()
    table.get_by_role("button", name="← Back").click()
    table.get_by_role("status").filter(has_text="1 of 1 runs").wait_for()


def test_a_plan_is_shown_as_its_table(page):
    assert "all device memory" in output(page, "model").inner_text()


def test_interrupting_a_training_says_how_to_go_on(page, views):
    trains = views.first.get_by_text("of 3,000,000 steps")
    for name in ("run", "run_async"):
        text = interrupt(page, name, trains)
        assert "Traceback" not in text and "Resume" in text and "is saved" in text, name
        views.first.get_by_text("Stopped after epoch").wait_for()
        assert "the last cell ran" not in output(page, "last").all_inner_texts()
    page.evaluate(RUN, place("results"))
    text = output(page, "results").inner_text()
    assert "Traceback" not in text and "no results yet" in text and "Finish the training" in text


def test_interrupting_fit_says_how_to_go_on(page, views):
    text = interrupt(page, "fit", output(page, "fit").get_by_text("fits"))
    assert "Traceback" not in text and "Call fit again" in text
    assert "the last cell ran" not in output(page, "last").all_inner_texts()


def test_a_second_training_waits_for_the_first(page, views):
    first, second = views.nth(0), views.nth(1)
    click(first, "Resume" if first.get_by_role("button", name="Resume").is_enabled() else "Start")
    first.get_by_text("of 3,000,000 steps").wait_for()
    click(second, "Start")
    second.get_by_text("waiting for another training").wait_for()
    assert first.get_by_role("button", name="Stop").is_enabled(), "the first goes on"
    click(first, "Stop")
    second.get_by_text("of 3,000,000 steps").wait_for()
    first.get_by_text("Stopped after epoch").wait_for()
    click(second, "Stop")
    second.get_by_text("Stopped after epoch").wait_for()


def test_a_cell_run_again_shows_the_training_it_started(page, views):
    """It showed a new view, from which the training could only be stopped."""
    page.evaluate(RUN, place("again"))
    view = output(page, "again").first
    click(view, "Start")
    view.get_by_text("of 3,000,000 steps").wait_for()
    page.evaluate(RUN, place("again"))
    view.get_by_text("of 3,000,000 steps").wait_for()
    assert not view.get_by_role("button", name=START).is_enabled()
    assert view.get_by_text("Another training is running").is_hidden()
    view.get_by_role("button", name=re.compile("Stop$")).click()
    view.get_by_text("Stopped after epoch").wait_for()


# -- the shipped notebooks ---------------------------------------------------------------------------------------------

SCREENSHOTS = os.environ.get("EDGELEARN_SCREENSHOTS")  # a folder that keeps them; without it there are none
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
NARROW, TALL = 1000, 9000  # pixels; so tall, Lab renders every cell
# The page has the promise, which a slow machine's browser collects from an evaluation that waits for it.
RESTORED = """() => {
    window.restoring ??= jupyterapp.restored.then(() => { window.restored = true; });
    return window.restored === true;
}"""
RUN_ALL = "() => { jupyterapp.commands.execute('notebook:run-all-cells'); }"
SETTLED = (
    "() => jupyterapp.shell.currentWidget.content.widgets.filter((cell) => cell.model.type === 'code')"
    ".every((cell) => cell.model.executionCount !== null && cell.model.executionState !== 'running')"
)
ERRORS = (
    "() => jupyterapp.shell.currentWidget.content.widgets.flatMap((cell) => cell.model.toJSON().outputs ?? [])"
    ".filter((output) => output.output_type === 'error').map((output) => output.evalue)"
)


@pytest.fixture
def shipped(browser, lab):
    """Opens a shipped notebook, or one with small settings, in a tab of its own."""
    tabs = []

    def shipped(name, width=1280, height=800, folder="notebooks"):
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.set_default_timeout(1000 * SECONDS)
        tab.goto(f"{lab}/lab/workspaces/{name}{len(tabs)}/tree/{folder}/{name}.ipynb?reset")
        tab.wait_for_selector(".jp-Notebook .jp-Cell")
        tab.wait_for_function(READY)
        tabs.append(tab)
        return tab

    yield shipped
    for tab in tabs:
        tab.close()


def keep(tab, name):
    if SCREENSHOTS:
        tab.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


OPEN = (  # without a kernel, and in the place of those that are open
    "async (path) => { const old = [...jupyterapp.shell.widgets('main')]; "
    "const opened = await jupyterapp.commands.execute('docmanager:open', { path, factory: 'Notebook', "
    "kernelPreference: { shouldStart: false, autoStartDefault: false, canStart: false } }); "
    "old.forEach((widget) => widget.dispose()); await opened.context.ready; }"
)


@pytest.fixture(scope="module")
def narrow(browser, lab):
    """A tab of JupyterLab in which notebooks are opened one after another."""
    tab = browser.new_page(viewport={"width": NARROW, "height": TALL})
    tab.set_default_timeout(1000 * SECONDS)
    tab.goto(f"{lab}/lab/workspaces/narrow?reset")
    tab.wait_for_function("() => window.jupyterapp?.commands.hasCommand('docmanager:open')")
    tab.wait_for_function(RESTORED)
    yield tab
    tab.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_shipped_notebook_is_accessible_in_a_narrow_window_and_in_both_themes(narrow, path, request):
    tab = narrow
    for folder in ("notebooks", *["untrusted"] * request.config.getoption("--all-notebooks")):
        tab.evaluate(OPEN, f"{folder}/{path.name}")
        saved = len(outputs(nbformat.read(path, as_version=4)))
        tab.wait_for_function(f"() => document.querySelectorAll('{OUTPUTS}').length >= {saved}")
        if views := path.read_text().count(f"{GONE}</p>"):  # their controls aren't saved
            tab.get_by_text(GONE).nth(views - 1).wait_for(state="attached")
        for theme in THEMES:
            choose_theme(tab, theme)
            keep(tab, f"{path.stem}-{theme}")
            # JupyterLab takes tabindex from outputs that it doesn't trust; Chromium focuses what scrolls without it.
            known = {"scrollable-region-focusable"} if folder == "untrusted" else set()
            assert [found for found in serious(tab) if found[0] not in known] == [], theme
        assert tab.locator(".jp-OutputArea img:not([alt])").count() == 0


def choose_theme(tab, theme):
    tab.evaluate("(theme) => jupyterapp.commands.execute('apputils:change-theme', {theme})", THEMES[theme])
    tab.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{str(theme == 'light').lower()}'")


OUTPUTS = ".jp-OutputArea-output"
CONTROLS = {  # names of those that a notebook has, at least
    "05_precision": {"Observer", "Weights", "Activations", "Gradients"}, "06_memory": {"Budget"},
    "08_federated": {"Threshold"}, "10_personalisation": {"Undo"},
    "07_keywords": {"Threshold", "Word", "Save words", "Load words"},
}  # fmt: skip
LEADS_TO = {  # a text that shows once they were used; of 10: 3 labels before, 5 classes, one taken back
    "05_precision": "of the test pictures", "06_memory": "MB stored, ", "10_personalisation": "7 labels: ",
}  # fmt: skip
LONG = ("02", "04", "05", "06", "08", "10", "11")  # notebooks whose first cell lasts until it is interrupted
# They want a file or a microphone, or take away what the next ones need: tests/widgets has them.
LEFT_OUT = re.compile("Upload|Record|Listen|Delete|Discard|Forget|Stop|Train anyway|Export")
QUIET = f"() => !({RUNNING})()"


def serious(tab):
    """Serious findings of axe-core in texts and outputs; all around them is JupyterLab's own."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = (
        axe.Axe().run(tab, context={"include": [[".jp-OutputArea"], [".jp-RenderedMarkdown"]]}).response["violations"]
    )
    grave = [each for each in found if each["impact"] in ("serious", "critical")]
    return [(each["id"], node["html"][:200]) for each in grave for node in each["nodes"]]


def use_controls(tab):
    """Use each control of the outputs once; returns their names."""
    used = set()

    def found(kind):
        return [each for each in tab.locator(f"{OUTPUTS} {kind}:enabled").all() if each.is_visible()]

    def name(control):
        return control.evaluate(NAME)

    for slider in found("input[type=range]"):
        before = slider.get_attribute("aria-valuetext")
        for key in "ArrowLeft", "ArrowRight":
            if slider.get_attribute("aria-valuetext") == before:
                slider.press(key)
        assert slider.get_attribute("aria-valuetext") != before, name(slider)
        used.add(name(slider))
    for select in found("select"):
        select.press("ArrowDown")
        used.add(name(select))
    for box in found("input[type=checkbox]"):
        used.add(name(box))
        box.click()
        box.click()
    for field in found("input[type=text]"):
        used.add(name(field))
        field.press("Enter")
    for text in [name(each) for each in found("button")]:
        button = (
            tab.locator(OUTPUTS).get_by_role("button", name=re.compile(f"{re.escape(text)}$")).first
        )  # after its icon
        if text and not LEFT_OUT.search(text) and button.is_visible() and button.is_enabled():
            used.add(text)
            button.click()
    return used


NAME = """(control) => (control.getAttribute('aria-label') || control.labels?.[0]?.innerText
    || control.innerText || control.title || '').split('\\n')[0].trim()"""


def test_a_notebook_runs_in_lab_and_its_controls_work(shipped, notebook_in_lab):
    """From top to bottom in small settings; again after a restart of the kernel; found again in a reopened tab."""
    tab, faults = shipped(notebook_in_lab, height=TALL, folder="small"), []
    tab.set_default_timeout(5000 * SECONDS)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    if notebook_in_lab.startswith(LONG):
        tab.evaluate(RUN_ALL)
        tab.locator(".jp-CodeCell").first.get_by_text(re.compile(r"… \d")).first.wait_for()
        tab.locator('[data-jp-item-name="interrupt"]').click()
        tab.wait_for_function(f"() => ({ERRORS})().length")
        (said,) = tab.evaluate(ERRORS)
        assert "Run this cell again to " in said, "start anew, or go on"
        assert tab.locator(OUTPUTS, has_text="Traceback").count() == 0
    tab.evaluate(RUN_ALL)
    tab.wait_for_function(f"({SETTLED})() && !({RUNNING})()")
    assert tab.evaluate(ERRORS) == []
    tab.wait_for_function(
        f"(names) => names.every((name) => [...document.querySelectorAll('{OUTPUTS} :is(input, select, button)')]"
        f".some((control) => ({NAME})(control) === name))", arg=sorted(CONTROLS.get(notebook_in_lab, ())),
    )  # fmt: skip
    used = use_controls(tab)
    tab.wait_for_timeout(2000)  # which lets what they lead to begin
    tab.wait_for_function(QUIET)
    assert used >= CONTROLS.get(notebook_in_lab, set()) and faults == []
    if notebook_in_lab in LEADS_TO:
        tab.locator(OUTPUTS).get_by_text(LEADS_TO[notebook_in_lab]).last.wait_for()
    assert tab.locator(f"{OUTPUTS} .el-problem, {OUTPUTS}[data-mime-type$=stderr]").all_inner_texts() == []
    tab.set_viewport_size({"width": NARROW, "height": TALL})
    for theme in reversed(THEMES):
        choose_theme(tab, theme)
        assert serious(tab) == [], theme
        keep(tab, f"{notebook_in_lab}-used-{theme}")
    assert tab.locator(".jp-WindowedPanel-outer").evaluate("(page) => page.scrollWidth <= page.clientWidth + 1")
    shown = tab.locator(OUTPUTS).count()
    tab.evaluate("async () => await jupyterapp.commands.execute('docmanager:save')")
    tab.close()
    again = shipped(notebook_in_lab, height=TALL, folder="small")
    again.wait_for_function(f"() => document.querySelectorAll('{OUTPUTS}').length >= {shown} - 1")
    again.evaluate("async () => await jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    again.wait_for_function(READY)
    again.evaluate(RUN, 1)
    again.wait_for_function(QUIET)
    assert again.evaluate(ERRORS) == []


def test_flowers_are_stopped_resumed_and_found_again_in_a_reopened_tab(shipped):
    tab = shipped("01_flowers")
    tab.evaluate(RUN, 1)
    view = tab.locator(".jp-CodeCell").first
    click(view, "Start")
    view.get_by_text("of 32,000 steps").wait_for()
    assert view.get_by_role("button", name="Stop").is_visible(), "within the first screen"
    keep(tab, "training")
    click(view, "Stop")
    view.get_by_text("Stopped after epoch").wait_for()
    click(view, "Resume")
    view.get_by_text("of 32,000 steps").wait_for()
    click(view, "Stop")
    view.get_by_text("Stopped after epoch").wait_for()
    tab.evaluate("async () => await jupyterapp.commands.execute('docmanager:save')")
    tab.close()
    again = shipped("01_flowers")
    again.locator(".jp-CodeCell").first.get_by_text(re.compile("Stopped after epoch")).first.wait_for()
