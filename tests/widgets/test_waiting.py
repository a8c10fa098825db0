import re
import time

import pytest

from edgelearn.errors import Interrupted
from edgelearn.widgets import Waiting, pictures


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, html):
        self.shown.append(html.data)


@pytest.fixture
def shown(monkeypatch):
    texts = []

    def display(html, display_id):
        texts.append(html.data)
        return Handle(texts)

    monkeypatch.setattr(pictures, "display", display)
    monkeypatch.setattr(pictures, "_SECONDS", 0.005)
    return texts


def test_it_says_what_is_done_until_the_end(shown):
    with Waiting("Counting <bytes>") as say:
        while len(shown) < 3:
            time.sleep(0.001)
        say("plan 2 of 5")
        while "plan 2" not in shown[-1]:
            time.sleep(0.001)
    assert all(re.match("Counting &lt;bytes&gt; … [0-9]+ s", text) for text in shown[:3]) and shown[-1] == ""


def test_an_interrupt_ends_the_cell_with_a_line(shown):
    with pytest.raises(Interrupted, match="Counting") as stopped, Waiting("Counting"):
        raise KeyboardInterrupt
    assert stopped.value._render_traceback_() == [str(stopped.value)] and stopped.value.__suppress_context__


def test_an_error_ends_it(shown):
    with pytest.raises(ZeroDivisionError), Waiting("Dividing") as say:
        say(1 / 0)
    assert shown[-1] == "" and not say._thread.is_alive()
