"""Programs beside a deployment, which import nothing of the package, so that they start at once and stay small.

`guard.py end FOLDER LAB` ends a deployment's processes once the lab that started them is gone. Flower starts some in
sessions of their own: they are found by their environment.

`guard.py COMMAND PUBLIC [argument ...]` runs Flower's command `flower-superlink` or `flower-supernode`, which would run
code for whoever may ask, so that it answers processes of its own user alone; paths that start with PUBLIC ("-": none)
are answered for everybody: those whose keys Flower checks.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import psutil

HOME = "FLWR_HOME"  # of the environment: the deployment's folder, in all of its processes
LAB = "EDGELEARN_LAB"  # of the environment: the process that started them
NODES = "/v1/fleet/"  # the paths that nodes call
NOBODY = "-"
_PATIENCE = 5  # seconds
_COMMANDS = {"flower-superlink": "flwr.superlink.cli", "flower-supernode": "flwr.supernode.cli"}
_TABLES = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]  # of Linux: connections and whose they are
_ESTABLISHED = "01"


def this_lab() -> str:
    """Return number and time of creation of this process."""
    return f"{os.getpid()} {psutil.Process().create_time()}"


def start_guard(folder: Path) -> Popen:
    """Start a process that ends those of a deployment as soon as this one is gone, however it went. Kill it
    where that isn't wanted any more."""
    return Popen(
        [sys.executable, "-P", __file__, "end", str(folder), this_lab()], stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def end_all(folder: Path, lab: str | None = None) -> None:
    """End every process of a deployment for good, and wait until they are gone.

    Arguments:
    - `folder`: folder of the deployment.
    - `lab`: end only those that this lab started, as `this_lab` names it (default None: all).
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get(HOME) == str(folder) and lab in (None, variables.get(LAB)):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, _PATIENCE)


class OwnUser:
    """An ASGI application that refuses requests of other users and other machines.

    Arguments:
    - `app`: the application that answers the others.
    - `public`: start of the paths that are answered for everybody.
    """

    def __init__(self, app: Any, public: str) -> None:
        self.app, self.public = app, public

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and scope["path"].startswith(self.public)) or is_own(scope):
            await self.app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"This server answers its own user alone."})


def is_own(scope: dict) -> bool:
    """True for a request from a process of this user on this machine. Where the system doesn't tell whose a connection
    is, as outside Linux, True for every user of this machine."""
    client, server = scope["client"], scope["server"]
    if not any(table.exists() for table in _TABLES):
        return ip_address(client[0]).is_loopback or client[0] == server[0]
    ends = [_hexadecimal(*client), _hexadecimal(*server)]
    for table in _TABLES:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            words = line.split()
            # One that its process has closed already has user 0, whoever that was.
            if words[1:3] == ends and words[3] == _ESTABLISHED:
                return int(words[7]) == os.getuid()
    return False


def _hexadecimal(address: str, port: int) -> str:
    """An end of a connection as those tables have it: words of four bytes in the order of this machine."""
    packed = ip_address(address).packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def serve(command: str, public: str, *arguments: str) -> None:
    """Run one of Flower's commands, with a server that answers others than its own user for `public` paths alone."""
    import uvicorn

    made = uvicorn.Config.__init__

    def guarded(self: uvicorn.Config, app: Any, *others: Any, **settings: Any) -> None:
        made(self, OwnUser(app, public), *others, **settings)

    uvicorn.Config.__init__ = guarded  # both commands serve by uvicorn
    sys.argv = [command, *arguments]
    sys.exit(getattr(import_module(_COMMANDS[command]), command.replace("-", "_"))())


if __name__ == "__main__":
    _, task, *arguments = sys.argv
    if task == "end":
        sys.stdin.buffer.read()  # ends with the process that holds the other end of the pipe
        end_all(Path(arguments[0]), arguments[1])
    else:
        serve(task, *arguments)
