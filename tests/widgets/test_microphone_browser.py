"""The JavaScript of the microphone in a real browser, whose microphone plays a file. Skipped where there is none."""

import json
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

import edgelearn.widgets.keywords

SCRIPT = Path(edgelearn.widgets.keywords.__file__).with_name("microphone.js")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
SECONDS = 30  # no test waits so long unless something is wrong
TONE, RATE = 500.0, 48_000

# What anywidget gives a widget: a model with traits and messages, and an element. The button is pressed twice.
PAGE = """<!doctype html><meta charset="utf-8"><div id="here"></div><script type="module">
import widget from "/microphone.js";
const sent = [], blocks = [], handlers = {};
const model = {
  get: () => "Record",
  on: (name, handler) => { handlers[name] = handler; },
  send: (message, callbacks, buffers) => {
    sent.push(message);
    if (location.search === "?refuse" && message.type === "begin") handlers["msg:custom"]({ type: "stop" });
    if (buffers) blocks.push(...new Float32Array(buffers[0]));
  },
};
const el = document.getElementById("here");
widget.render({ model, el });
const button = el.querySelector("button");
const rest = (ms) => new Promise((done) => setTimeout(done, ms));
const texts = [button.textContent];
button.click();
const heard = () => location.search || sent.at(-1)?.type === "error" ? sent.length : blocks.length > sent[1]?.rate;
for (let i = 0; i < 100 && !heard(); i++) await rest(100);
await rest(100);
texts.push(button.textContent);
button.click();
await rest(200);
texts.push(button.textContent);
const status = el.querySelector("span").textContent;
await fetch("/found", { method: "POST", body: JSON.stringify({ sent, blocks, texts, status }) });
</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome to run the JavaScript in")


@contextmanager
def server():
    found, come = {}, threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            script = self.path == "/microphone.js"
            body = SCRIPT.read_bytes() if script else PAGE.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if script else "text/html")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            come.set()

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/", found, come
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def visit(folder, *options, query="") -> dict:
    """What the page found."""
    with server() as (address, found, come):
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        browser = subprocess.Popen(
            [*command, *options, address + query], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            assert come.wait(SECONDS), "the page never answered"
        finally:
            browser.terminate()
            browser.wait(SECONDS)
    return found


def test_a_tone_is_heard(tmp_path):
    tone = 0.5 * np.sin(2 * np.pi * TONE * np.arange(4 * RATE) / RATE)
    soundfile.write(tmp_path / "tone.wav", tone, RATE)
    fake = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    found = visit(tmp_path, *fake, f"--use-file-for-fake-audio-capture={tmp_path / 'tone.wav'}")
    kinds = [message["type"] for message in found["sent"]]
    assert found["texts"] == ["Record", "Stop", "Record"] and found["status"] == ""
    assert kinds[0] == "begin" and kinds[-1] == "end" and set(kinds[1:-1]) == {"samples"}
    rate, samples = found["sent"][1]["rate"], np.array(found["blocks"], np.float32)
    assert len(samples) > rate
    loudest = np.fft.rfftfreq(len(samples), 1 / rate)[np.abs(np.fft.rfft(samples)).argmax()]
    assert abs(loudest - TONE) < 5


def test_without_a_microphone_it_says_so(tmp_path):
    found = visit(tmp_path)
    assert found["status"].startswith("No microphone: ") and "upload recordings" in found["status"]
    assert [message["type"] for message in found["sent"]] == ["begin", "error"] * 2
    assert found["texts"] == ["Record"] * 3


def test_it_stops_when_python_refuses(tmp_path):
    fake = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    found = visit(tmp_path, *fake, query="?refuse")
    assert found["texts"] == ["Record"] * 3 and found["status"] == ""
