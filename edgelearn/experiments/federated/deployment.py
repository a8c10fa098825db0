"""A SuperLink and SuperNodes of Flower on this machine: started, watched and ended, with certificates and keys.

Whether a federation has finished is told by its run's record alone: `flwr run` exits with 0 when a run fails.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Self

import psutil

from edgelearn import atomic
from edgelearn.errors import RunError
from edgelearn.experiments.sweep import ENVIRONMENT as RAY

from . import guard
from .guard import HOME, LAB, end_all, start_guard, this_lab

_DAYS = "30"
_FILE = "lab.json"  # number and time of creation of the process that started a deployment
_PATIENCE = 5  # seconds


def make_keys(folder: Path, nodes: int, address: str | None = None) -> None:
    """Make a certificate authority, the certificate of a SuperLink, and a key pair for each node, by openssl and
    ssh-keygen.

    Arguments:
    - `folder`: folder of the files; it is made.
    - `nodes`: number of nodes.
    - `address`: address of the SuperLink besides 127.0.0.1 (default: none). Then files that are there already are used
      again, since other machines have copies.

    Raises RunError if openssl or ssh-keygen is missing or fails.
    """
    if address and (folder / f"node-{nodes - 1}.pub").exists():
        return
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    at = {name: str(folder / name) for name in ("ca.key", "ca.crt", "server.key", "server.csr", "server.pem", "names")}
    new, subject = ("-newkey", "rsa:3072", "-nodes"), ("-subj", "/O=edgelearn/CN=localhost")
    _call("openssl", "req", "-x509", *new, "-days", _DAYS, "-keyout", at["ca.key"], "-out", at["ca.crt"], *subject)
    _call("openssl", "req", *new, "-keyout", at["server.key"], "-out", at["server.csr"], *subject)
    others = f", {'DNS' if any(c.isalpha() for c in address) else 'IP'}:{address}" if address else ""
    Path(at["names"]).write_text(f"subjectAltName = DNS:localhost, IP:127.0.0.1{others}\n")
    _call(
        "openssl", "x509", "-req", "-days", _DAYS, "-in", at["server.csr"], "-CA", at["ca.crt"], "-CAkey", at["ca.key"],
        "-CAcreateserial", "-out", at["server.pem"], "-extfile", at["names"],
    )  # fmt: skip
    for number in range(nodes):
        _call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(folder / f"node-{number}"))


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise RunError(f"TLS needs {command[0]}, which isn't installed.") from None
    except subprocess.CalledProcessError as error:
        raise RunError(f"{command[0]} failed: {error.stderr.strip()[-300:]}") from None


def record(folder: Path) -> None:
    """Write down that this process starts those of a deployment."""
    atomic.write_json(folder / _FILE, [os.getpid(), psutil.Process().create_time()])


def end_left_over(folder: Path) -> None:
    """End the processes of a deployment, unless the one that started them lives."""
    try:
        number, at = json.loads((folder / _FILE).read_text())
        lives = psutil.Process(int(number)).create_time() == at
    except psutil.NoSuchProcess:
        lives = False
    except (OSError, ValueError, TypeError):
        return
    if not lives:
        end_all(folder)
        (folder / _FILE).unlink(missing_ok=True)


def end(process: Popen) -> None:
    """End a process: politely, then for good."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)


MODULE = "app"  # the module that Flower loads, in the app's folder
CONNECTION = "lab"  # the name of the SuperLink in Flower's configuration
_FEDERATION = "@none/default"  # of a SuperLink without accounts
_STARTS = 180  # seconds that a SuperLink may take
_POLL_SECONDS = 0.2
_RAY = "RAY_ADDRESS"  # of the environment: the cluster that Ray uses
_KEPT = 1500  # characters of a log that an error quotes
_NODE_PORT = 9094  # of the first node on another machine
_COMMANDS = "flwr", "flower-superlink", "flower-supernode", "flower-superexec", "flwr-serverapp", "flwr-clientapp"
# No telemetry, no look for updates, nothing installed while it runs.
_ENVIRONMENT = RAY | {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}  # fmt: skip


def require_flower(engine: str) -> None:
    """Raises RunError if what an engine needs isn't installed, or Flower's commands aren't where they are found."""
    if missing := [name for name in ("flwr", *(["ray"] if engine == "ray" else [])) if find_spec(name) is None]:
        raise RunError(
            f"The engine '{engine}' needs {missing[0]}: pip install 'edgelearn[federated]', and 'flwr[simulation]' for "
            f"ray. The engine 'local' needs neither."
        )
    for command in _COMMANDS:
        _script(command)


@dataclass
class Deployment:
    """Processes of Flower; a context manager that starts and ends them.

    Arguments:
    - `folder`: folder of their configuration, state and logs; it is made.
    - `nodes`: number of SuperNodes, or of Ray's virtual ones.
    - `simulation`: True for Flower's simulation on Ray, whose nodes are actors.
    - `tls`: encrypt, with a certificate made for this deployment (default False).
    - `authenticate`: register the nodes' keys, and let no other node in (default False). It needs `tls`.
    - `listen`: address of this machine that SuperNodes of others call (default None: they are started here).
    - `port`: port of the SuperLink (default None: a free one).

    Its folder, with the database of messages, is readable for its owner alone. SuperLink and the SuperNodes of this
    machine answer processes of this user, and SuperLink nodes of others by `listen`: see `guard`.

    Raises RunError if flwr is missing or the SuperLink doesn't start.
    """

    folder: Path
    nodes: int
    simulation: bool = False
    tls: bool = False
    authenticate: bool = False
    listen: str | None = None
    port: int | None = None
    processes: dict[str, subprocess.Popen] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        record(self.folder)
        self._guard = start_guard(self.folder)
        self.port = self.port or _free_port()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, experiment: str, settings: dict[str, str | int]) -> None:
        """Submit a run of the experiment MODULE:NAME with this configuration. Raises RunError if Flower refuses it."""
        app = self.folder / "app"
        app.mkdir(exist_ok=True)
        atomic.write_bytes(app / f"{MODULE}.py", _code(experiment).encode())
        atomic.write_bytes(app / "pyproject.toml", _project(settings).encode())
        if self.simulation:
            command = "federation", "simulation-config", _FEDERATION, CONNECTION, "--num-supernodes", str(self.nodes)
            self._call(*command)
        said = self._call("run", str(app), CONNECTION, "--format", "json")
        try:
            self._number = str(json.loads(said)["run-id"])
        except (ValueError, KeyError, TypeError):
            raise RunError(f"Flower refused the run: {said.strip()[-_KEPT:]}") from None

    def said(self) -> str:
        """The end of what the ServerApp of the last run wrote."""
        return self._call("log", self._number, CONNECTION, "--show").strip()[-_KEPT:]

    def watch(self, ended: Callable[[], bool]) -> None:
        """Return once `ended` does. Raises RunError if a process dies before, or Flower's run ends without it."""
        while not ended():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RunError(f"{name} ended with status {process.returncode}: {self._log(name)}")
            time.sleep(_POLL_SECONDS)

    def traffic(self) -> dict[str, int]:
        """Bytes of the last run, as Flower counts them: `inbound-bytes` and `outbound-bytes` of the SuperLink."""
        (run, *_) = json.loads(self._call("list", CONNECTION, "--format", "json"))["runs"]
        return run["network-traffic"]

    def close(self) -> None:
        """End all processes, and those that they started."""
        with self._guard:
            self._guard.kill()
        for process in reversed(self.processes.values()):
            end(process)
        end_all(self.folder)
        self.processes.clear()

    def _start(self) -> None:
        keys, listen = self.folder / "keys", self.listen or "127.0.0.1"
        safe = node_safe = ["--insecure"]
        if self.tls:
            make_keys(keys, self.nodes, self.listen)
            files = {"ssl-ca-certfile": "ca.crt", "ssl-certfile": "server.pem", "ssl-keyfile": "server.key"}
            safe = [word for name, file in files.items() for word in (f"--{name}", str(keys / file))]
            node_safe = ["--root-certificates", str(keys / "ca.crt")]
        flags = ["--simulation"] if self.simulation else []
        flags += ["--enable-supernode-auth"] if self.authenticate else []
        for old in self.folder.glob("state.db*"):  # of a run that was killed: what it holds can't be continued
            old.unlink()
        database = self.folder / "state.db"
        database.touch(0o600)
        self._spawn(
            "superlink", ["flower-superlink", guard.NODES if self.listen else guard.NOBODY, *safe, *flags,
                          "--host", listen, "--port", str(self.port), "--database", str(database)],
        )  # fmt: skip
        self._wait()
        lines = [
            "[superlink]",
            f'default = "{CONNECTION}"',
            f"[superlink.{CONNECTION}]",
            f'address = "{self._address}"',
        ]
        lines += [f'root-certificates = "{keys / "ca.crt"}"' if self.tls else "insecure = true"]
        atomic.write_bytes(self.folder / "config.toml", ("\n".join(lines) + "\n").encode())
        for number in range(0 if self.simulation else self.nodes):
            key = []
            if self.authenticate:
                key = ["--auth-supernode-private-key", str(keys / f"node-{number}")]
                self._call("supernode", "register", f"{key[1]}.pub", CONNECTION)
            if self.listen is None:
                self._spawn(
                    f"supernode-{number}", ["flower-supernode", guard.NOBODY, *node_safe, *key, "--superlink",
                                            self._address, "--port", str(_free_port()), "--node-config",
                                            f"partition-id={number}"],
                )  # fmt: skip

    @property
    def _address(self) -> str:
        """Where the SuperLink listens."""
        return f"{self.listen or '127.0.0.1'}:{self.port}"

    def commands(self) -> list[str]:
        """The command of each SuperNode on another machine, where copies of its key and of `ca.crt` are. Each has a
        port of its own for its clients, so that several run on one machine."""
        commands = []
        for number in range(self.nodes):
            key = ["--auth-supernode-private-key", f"node-{number}"] if self.authenticate else []
            node = f'partition-id={number} folder="clients"'
            words = ["flower-supernode", "--superlink", self._address, "--root-certificates", "ca.crt", *key]
            commands.append(shlex.join([*words, "--port", str(_NODE_PORT + number), "--node-config", node]))
        return commands

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        """Start a command of Flower that `guard` guards: its name, the public paths, its arguments."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-P", guard.__file__, *command], env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _call(self, *arguments: str) -> str:
        """Run `flwr` to its end; returns what it wrote."""
        done = subprocess.run(
            [_script("flwr"), *arguments], env=self._environment(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=_STARTS,
        )  # fmt: skip
        if done.returncode:
            raise RunError(f"flwr {arguments[0]} failed: {(done.stdout + done.stderr).strip()[-_KEPT:]}")
        return done.stdout

    def _wait(self) -> None:
        """Wait until the SuperLink listens."""
        end = time.monotonic() + _STARTS
        while time.monotonic() < end and self.processes["superlink"].poll() is None:
            with suppress(OSError), socket.socket() as caller:
                caller.connect((self.listen or "127.0.0.1", self.port))
                return
            time.sleep(_POLL_SECONDS)
        raise RunError(f"Flower's SuperLink didn't start: {self._log('superlink')}")

    def _environment(self) -> dict[str, str]:
        scripts, modules = sysconfig.get_path("scripts"), [entry or os.getcwd() for entry in sys.path]
        plain = {name: value for name, value in os.environ.items() if "COLOR" not in name}  # Jupyter forces colours
        if not plain.get(_RAY):  # not a cluster that another program started here, or that was killed
            plain[_RAY] = "local"
        return plain | _ENVIRONMENT | {
            HOME: str(self.folder), LAB: this_lab(), "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join(modules),
        }  # fmt: skip

    def _log(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text("utf-8", "replace")
        return f"…{text[-_KEPT:].strip()} ({self.folder / f'{name}.log'})"


def _code(experiment: str) -> str:
    """The module of Flower's app, which looks for assignments to its names."""
    return f"""from edgelearn.experiments.federated.experiment import make_client_app, make_server_app

client = make_client_app("{experiment}")
server = make_server_app("{experiment}")
"""


def _project(settings: dict[str, str | int]) -> str:
    """The pyproject.toml of Flower's app. A JSON string is a TOML string."""
    values = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    return f"""[project]
name = "edgelearn-federation"
version = "1.0.0"
dependencies = []
license = "Apache-2.0"

[tool.flwr.app]
publisher = "edgelearn"

[tool.flwr.app.components]
serverapp = "{MODULE}:server"
clientapp = "{MODULE}:client"

[tool.flwr.app.config]
{values}
"""


def _script(name: str) -> str:
    """The path of a command of Flower. Raises RunError if there is none."""
    scripts = sysconfig.get_path("scripts")
    if found := shutil.which(name, path=os.pathsep.join([scripts, os.environ.get("PATH", "")])):
        return found
    raise RunError(
        f"Flower's command {name} is neither in {scripts} nor on the PATH, though flwr is installed. Install it into "
        f"this environment: {sys.executable} -m pip install --force-reinstall --no-deps flwr"
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
