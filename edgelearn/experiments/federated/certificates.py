"""Certificates and keys of a deployment on this machine, made by openssl and ssh-keygen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from edgelearn.errors import RunError

_DAYS = "30"


class Keys:
    """A certificate authority, the certificate of a SuperLink, and a key pair for each node.

    Arguments:
    - `folder`: of the files; it is made.
    - `nodes`: number of nodes.
    - `address`: of the SuperLink, besides 127.0.0.1 (default: none). Then files that are there already are used again,
      since other machines have copies.

    Raises RunError if openssl or ssh-keygen is missing or fails.
    """

    def __init__(self, folder: Path, nodes: int, address: str | None = None) -> None:
        self.folder, self.root, self.address = folder, folder / "ca.crt", address
        if address and Path(self.public(nodes - 1)).exists():
            return
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, mode=0o700)
        self._certificates()
        for number in range(nodes):
            _call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(self._key(number)))

    @property
    def superlink(self) -> list[str]:
        """Arguments of flower-superlink."""
        files = {"ssl-ca-certfile": "ca.crt", "ssl-certfile": "server.pem", "ssl-keyfile": "server.key"}
        return [word for name, file in files.items() for word in (f"--{name}", str(self.folder / file))]

    @property
    def supernode(self) -> list[str]:
        """Arguments of flower-supernode."""
        return ["--root-certificates", str(self.root)]

    def of_node(self, number: int) -> list[str]:
        """Arguments of flower-supernode that authenticate a node."""
        return ["--auth-supernode-private-key", str(self._key(number))]

    def public(self, number: int) -> str:
        """The file of a node's public key."""
        return f"{self._key(number)}.pub"

    def _key(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def _certificates(self) -> None:
        at = {name: str(self.folder / name) for name in ("ca.key", "ca.crt", "server.key", "server.csr", "server.pem")}
        new = ("-newkey", "rsa:3072", "-nodes")
        subject = ("-subj", "/O=edgelearn/CN=localhost")
        _call("openssl", "req", "-x509", *new, "-days", _DAYS, "-keyout", at["ca.key"], "-out", at["ca.crt"], *subject)
        _call("openssl", "req", *new, "-keyout", at["server.key"], "-out", at["server.csr"], *subject)
        names = self.folder / "names"
        others = f", {'DNS' if any(c.isalpha() for c in self.address) else 'IP'}:{self.address}" if self.address else ""
        names.write_text(f"subjectAltName = DNS:localhost, IP:127.0.0.1{others}\n")
        _call(
            "openssl", "x509", "-req", "-days", _DAYS, "-in", at["server.csr"], "-CA", at["ca.crt"], "-CAkey",
            at["ca.key"], "-CAcreateserial", "-out", at["server.pem"], "-extfile", str(names),
        )  # fmt: skip


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise RunError(f"TLS needs {command[0]}, which isn't installed.") from None
    except subprocess.CalledProcessError as error:
        raise RunError(f"{command[0]} failed: {error.stderr.strip()[-300:]}") from None
