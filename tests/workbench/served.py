"""A Jupyter server with the workbench."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
SECONDS = 60  # until it answers, unless something is wrong
TOKEN = "a" * 32


@contextmanager
def serve(folder):
    """Start a server whose runs and settings lie in `folder`; its address."""
    options = (f"--IdentityProvider.token={TOKEN}", "--ServerApp.jpserver_extensions={'edgelearn.workbench': True}")
    with answering("jupyter_server", folder, ROOT, *options, PYTHONPATH=str(ROOT)) as address:
        yield address


@contextmanager
def answering(module, folder, root, *options, **own):
    """Start a Jupyter server with these options, which shows the files in `root`; its address, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {"EDGELEARN_RUNS": "runs", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
               "JUPYTER_RUNTIME_DIR": "runtime"}  # fmt: skip
    command = [
        sys.executable, "-m", module, "--no-browser", "--allow-root", f"--ServerApp.port={port}",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={root}", *options,
    ]  # fmt: skip
    own = os.environ | {name: str(folder / place) for name, place in folders.items()} | own
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=own, cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + SECONDS
        while True:
            try:
                urlopen(f"{address}/api", timeout=5).close()
                break
            except (URLError, ConnectionError):
                assert server.poll() is None and time.monotonic() < until, (folder / "server.log").read_text()
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(SECONDS)
