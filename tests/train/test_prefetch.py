import threading
import time
from contextlib import closing

import pytest

from edgelearn.train.trainer import ahead


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgelearn-prefetch")]


def test_order():
    assert list(ahead(range(20), lambda key: key * key)) == [(key, key * key) for key in range(20)]
    assert list(ahead([], str)) == []
    assert list(ahead([7], str)) == [(7, "7")]
    assert not threads()


def test_one_is_made_while_one_is_used():
    made = []
    with closing(ahead(range(10), made.append)) as items:
        next(items)
        until = time.monotonic() + 5
        while made != [0, 1] and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert made == [0, 1]  # the next one is, and no more


def test_made_on_another_thread():
    (_, name), *_ = ahead([1, 2], lambda key: threading.current_thread().name)
    assert name.startswith("edgelearn-prefetch")


def test_a_single_key_needs_no_thread():
    assert list(ahead([1], lambda key: threading.current_thread())) == [(1, threading.current_thread())]


def test_errors_come_out_in_their_turn():
    def make(key):
        if key == 2:
            raise ValueError("key 2")
        return key

    items = ahead(range(5), make)
    assert next(items) == (0, 0)
    assert next(items) == (1, 1)
    with pytest.raises(ValueError, match="key 2"):
        next(items)
    assert not threads()


def test_an_error_of_the_keys_comes_out():
    def keys():
        yield 1
        yield 2
        raise ValueError("no more keys")

    with pytest.raises(ValueError, match="no more keys"):
        list(ahead(keys(), str))
    assert not threads()


def test_closing_early_leaves_no_thread():
    items = ahead(range(1000), lambda key: time.sleep(0.01))
    next(items)
    start = time.monotonic()
    items.close()
    assert time.monotonic() - start < 1
    assert not threads()


def test_leaving_a_loop_leaves_no_thread():
    def use():
        for key, _ in ahead(range(1000), str):
            if key == 3:
                raise RuntimeError("the user's")

    with pytest.raises(RuntimeError):
        use()
    assert not threads()
