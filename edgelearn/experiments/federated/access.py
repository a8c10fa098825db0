"""Flower's servers, which run code for whoever may ask, made to answer processes of their own user alone.

As a program, `access.py COMMAND PUBLIC [argument ...]` runs Flower's command `flower-superlink` or `flower-supernode`;
paths that start with PUBLIC ("-": none) are answered for everybody: those whose keys Flower checks. It imports nothing
of the package, so that it starts at once and stays small.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any

NODES = "/v1/fleet/"  # the paths that nodes call
NOBODY = "-"
_COMMANDS = {"flower-superlink": "flwr.superlink.cli", "flower-supernode": "flwr.supernode.cli"}
_TABLES = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]  # of Linux: connections and whose they are
_ESTABLISHED = "01"


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


if __name__ == "__main__":
    import uvicorn

    _, command, public, *arguments = sys.argv
    made = uvicorn.Config.__init__

    def guarded(self: uvicorn.Config, app: Any, *others: Any, **settings: Any) -> None:
        made(self, OwnUser(app, public), *others, **settings)

    uvicorn.Config.__init__ = guarded  # both commands serve by uvicorn
    sys.argv = [command, *arguments]
    sys.exit(getattr(import_module(_COMMANDS[command]), command.replace("-", "_"))())
