import os
import signal
import threading

import pytest

from edgelearn.train.interrupt import on_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_raises(number):
    before = signal.getsignal(number)
    asked = []
    with on_interrupt(lambda: asked.append(1)):
        assert signal.getsignal(number) is not before
        os.kill(os.getpid(), number)
        assert asked == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert asked == [1]
    assert signal.getsignal(number) is before


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError), on_interrupt(lambda: None):
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_fit_asks_again():
    asked = []
    for _ in range(2):
        with on_interrupt(lambda: asked.append(1)):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == [1, 1]


def test_no_handlers_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
