"""Downloading, without a network: servers of our own, and a stand-in for Keras."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from edgelearn.errors import DataError, DownloadError
from edgelearn.interop import keras_h5
from edgelearn.interop.keras_h5 import fetch_published

NAME = "mobilenet_1_0_224_tf.h5"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home, and no proxy in between."""
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


@pytest.fixture
def keras(tmp_path, monkeypatch):
    """keras(body): a package whose MobileNet(weights=...) does `body`."""
    folder = tmp_path / "packages"
    folder.mkdir()

    def make(body):
        (folder / "keras.py").write_text(
            "import os, sys\nfrom pathlib import Path\nfrom types import SimpleNamespace\n"
            f"def MobileNet(weights):\n    assert weights == 'imagenet'\n    {body}\n"
            "applications = SimpleNamespace(MobileNet=MobileNet)\n"
        )
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return make


@pytest.fixture
def server(monkeypatch):
    """A server that has the file."""

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200 if self.path.endswith(NAME) else 404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        monkeypatch.setattr(keras_h5, "URL", f"http://127.0.0.1:{server.server_port}/{NAME}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_file_that_is_there_is_used(home, tmp_path, monkeypatch):
    there = home / ".keras" / "models" / NAME
    there.parent.mkdir(parents=True)
    there.touch()
    assert fetch_published() == fetch_published(download=False) == there
    elsewhere = tmp_path / "elsewhere" / "models" / NAME
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "elsewhere"))
    assert fetch_published() == elsewhere


def test_downloading_is_off(home):
    with pytest.raises(
        DataError, match=r"\.keras/models/mobilenet_1_0_224_tf\.h5 is not there.*--weights FILE"
    ) as caught:
        fetch_published(download=False)
    assert not isinstance(caught.value, DownloadError)


def test_keras_is_missing(monkeypatch):
    monkeypatch.setattr(keras_h5, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'edgelearn\[tensorflow\]'.*--weights sample"):
        fetch_published()


def test_an_unknown_host(keras, monkeypatch):
    keras("raise AssertionError('not to be called')")
    monkeypatch.setattr(keras_h5, "URL", f"https://nowhere.invalid/{NAME}")
    start = time.monotonic()
    with pytest.raises(DownloadError, match=r"nowhere\.invalid.* cannot be reached.*--weights FILE.*EDGELEARN_DATA"):
        fetch_published()
    assert time.monotonic() - start < 15


def test_a_host_that_never_answers(keras, monkeypatch):
    keras("raise AssertionError('not to be called')")
    monkeypatch.setattr(keras_h5, "SECONDS_TO_CONNECT", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(keras_h5, "URL", f"http://127.0.0.1:{silent.getsockname()[1]}/{NAME}")
        start = time.monotonic()
        with pytest.raises(DownloadError, match="no end after 1 seconds"):
            fetch_published()
        assert time.monotonic() - start < 10


@pytest.mark.usefixtures("server")
def test_keras_downloads(keras, home):
    keras(f"p = Path.home() / '.keras/models/{NAME}'; p.parent.mkdir(parents=True); p.write_text('weights')")
    assert fetch_published().read_text() == "weights"
    assert fetch_published().parent == home / ".keras" / "models"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise OSError('wrong checksum')", r"could not download its weights \(OSError: wrong checksum\)"),
        ("sys.exit(3)", r"could not download its weights \(it ended with exit status 3\)"),
        ("pass", "did not leave its weights"),
    ],
)
def test_keras_fails(keras, body, problem):
    keras(body)
    with pytest.raises(DownloadError, match=problem):
        fetch_published()
