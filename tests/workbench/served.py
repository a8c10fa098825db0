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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {
        "PYTHONPATH": str(ROOT), "EDGELEARN_RUNS": str(folder / "runs"), "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
        "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.jpserver_extensions={'edgelearn.workbench': True}",
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | own, cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + SECONDS
        while True:
            try:
                urlopen(f"{address}/api", timeout=5).close()
                break
            except (URLError, ConnectionError):
                assert server.poll() is None and time.monotonic() < until, (folder / "server.log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(SECONDS)
