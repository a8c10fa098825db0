"""The home page's contents, its queue of trainings, and the server's handlers."""

import json
import time
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from edgelearn.errors import DeviceError, RunError
from edgelearn.experiments.turn import Turn
from edgelearn.lab.runs import RunStore
from edgelearn.runtime import choose_device
from edgelearn.workbench import facts
from edgelearn.workbench.home import CARDS, CHECKOUT, Home
from edgelearn.workbench.jobs import Jobs

from .served import TOKEN, serve

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


@pytest.fixture
def jobs(store):
    made = Jobs(store)
    yield made
    made.close()


def ended(jobs, count):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = jobs.entries()
        if sum(job["state"] not in ("waiting", "running") for job in found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError(jobs.entries())


def test_every_experiment_has_its_notebook_and_its_page():
    assert CHECKOUT == ROOT
    cards = Home().contents()["cards"]
    assert all((ROOT / card["notebook"]).is_file() and (ROOT / card["guide"]).is_file() for card in cards)
    assert {card["notebook"] for card in cards} == {f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb")}
    assert not any(card["guide"] for card in Home(root=ROOT / "docs" / "results").contents()["cards"])


def test_cards_say_how_long_notebooks_take_as_the_manual_does():
    page = (ROOT / "docs" / "guides" / "notebooks.md").read_text()
    for card in CARDS:
        seconds, timed, date = card.takes.partition(" s on two ")
        assert not timed or (f"{card.path.name[:2]} {seconds}" in page and date.rpartition(", ")[2] in page), card


def test_data_that_is_missing_is_said_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_DATA", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    (tmp_path / "tensorflow_datasets" / "cifar10").mkdir(parents=True)
    found = {each["name"]: each for each in facts.sources()}
    assert found["CIFAR-10"]["found"] == str(tmp_path / "tensorflow_datasets" / "cifar10")
    missing = [each for each in found.values() if not each["found"]]
    assert len(missing) == len(found) - 2 and all(str(tmp_path) in each["remedy"] for each in missing)


def test_load_is_of_this_machine():
    found = facts.load()
    assert 0 <= found["processors"] <= 1 and 0 < found["free"] <= found["memory"]


def test_devices_are_tested_once_or_again(store, monkeypatch):
    calls = []
    monkeypatch.setattr(facts, "devices", lambda: calls.append(1) or [{"name": "a"}])
    home = Home(store)
    for again in (False, False, True):
        assert home.answer({"do": "devices", "again": again}) == {"devices": [{"name": "a"}]}
    assert len(calls) == 2


def test_devices_that_give_no_answer(monkeypatch):
    monkeypatch.setattr(facts, "SECONDS", 0.01)
    with pytest.raises(DeviceError, match="doctor"):
        facts.devices()


def test_trainings_take_turns_with_whatever_is_on_the_device(store, jobs, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_LOCKS", str(tmp_path / "locks"))
    turn = Turn(choose_device().device.id)
    with turn.taken():
        turn.note("flowers-1")
        stopped = jobs.add("first", ["flowers", "--sample"])
        waiting = jobs.add("second", ["no-such-command"])
        cancelled = jobs.add("third", ["runs"])
        until = time.monotonic() + 120
        while "flowers-1" not in jobs.entries()[-1]["text"] and time.monotonic() < until:
            time.sleep(0.05)
        assert jobs.entries()[-1]["text"] == "waits for flowers-1, which another program trains"
        assert "not started" in jobs.stop(cancelled.number)
        jobs.stop(stopped.number)
        third, second, first = ended(jobs, 3)
    assert (first["state"], second["state"], third["state"]) == ("stopped", "failed", "stopped")
    assert "no-such-command" in second["text"] and waiting.process is None and not store.list()
    with pytest.raises(RunError, match="not started here"):
        jobs.stop(99)


def test_requests(store, monkeypatch):
    home = Home(store)
    queued = []

    class Fake:
        def add(self, title, words):
            queued.append(words)
            return type("Job", (), {"number": len(queued)})

    monkeypatch.setitem(vars(home), "jobs", Fake())
    run = store.create("flowers", {})
    assert home.answer({"do": "sample", "title": "Flowers"}) == {"number": 1}
    changes = {"epochs": "3", "sample": False, "trainable": "a, b", "budget": ""}
    home.answer({"do": "again", "id": run.id, "changes": changes})
    home.answer({"do": "resume", "id": run.id})
    assert queued == [
        ("flowers", "--sample"),
        ("runs", "rerun", run.id, "epochs=3", "sample=no", "trainable=a,b", "budget=none"),
        ("runs", "resume", run.id),
    ]
    assert home.answer({"do": "list"})["rows"][0]["id"] == run.id
    for request in ({"do": "sample", "title": "Speed"}, {"do": "again", "id": "--yes", "changes": {}}):
        with pytest.raises(RunError):
            home.answer(request)


def test_a_notebook_shows_the_same(store):
    home = Home(store)
    bundle = home._repr_mimebundle_()
    assert all(card.title in bundle["text/html"] for card in CARDS)
    assert repr(home) == f"<Home {len(CARDS)} experiments, 0 runs in {store.root}>"


def test_handlers_ask_for_a_token_and_for_xsrf(tmp_path):
    with serve(tmp_path) as address:
        for path in ("", "/runs", "/static/page.js"):
            assert "/login?next=" in build_opener().open(f"{address}/edgelearn{path}", timeout=10).url
        jar = CookieJar()
        browser = build_opener(HTTPCookieProcessor(jar))
        page = browser.open(f"{address}/edgelearn?token={TOKEN}", timeout=10)
        assert "default-src 'self'" in page.headers["Content-Security-Policy"] and b"edgelearn-data" in page.read()
        token = next(cookie.value or "" for cookie in jar if cookie.name == "_xsrf")
        body = json.dumps({"do": "list"}).encode()
        with pytest.raises(HTTPError, match="403"):
            browser.open(Request(f"{address}/edgelearn/api", body), timeout=10)
        answer = browser.open(Request(f"{address}/edgelearn/api", body, {"X-XSRFToken": token}), timeout=10)
        assert json.loads(answer.read()) == {"rows": [], "complete": True}
        bad = Request(f"{address}/edgelearn/api", b'{"do": "run", "id": "x"}', {"X-XSRFToken": token})
        with pytest.raises(HTTPError, match="400") as error:
            browser.open(bad, timeout=10)
        assert "starts with 'x'" in json.loads(error.value.read())["message"]
        for name in ("static/other", "static/..%2f..%2fserver.py"):
            with pytest.raises(HTTPError, match="404"):
                browser.open(f"{address}/edgelearn/{name}", timeout=10)
