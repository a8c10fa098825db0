"""Pages of the workbench in Jupyter's server, below /edgelearn: HTML, one script and one style sheet, and a JSON API.

Every handler asks for Jupyter's authentication; requests that change something carry its XSRF token. The pages load
nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from edgelearn.errors import EdgelearnError
from edgelearn.lab.runs import page

from . import home

# What a page may load and run: files of this server, and pictures in the page.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
FILES = {"page.js": ("text/javascript", (page.SCRIPT, home.SCRIPT)), "page.css": ("text/css", page.STYLES)}
MANUAL = Path("build/site/index.html")  # once `make docs` has built it


class Page(JupyterHandler):
    """The page; its script draws what its address names."""

    @property
    def content_security_policy(self) -> str:
        return POLICY

    @web.authenticated
    def get(self, path: str = "") -> None:
        base, root = url_path_join(self.base_url, "edgelearn"), self.settings["edgelearn_home"].root
        manual = f"files/{MANUAL}" if (root / MANUAL).exists() else "lab/tree/docs/index.md"
        server = {
            "base": base,
            "lab": url_path_join(self.base_url, "lab"),
            "manual": url_path_join(self.base_url, manual),
        }
        assert self.xsrf_token  # which sets the cookie that requests send back
        self.set_header("Content-Type", "text/html; charset=utf-8")
        head = f"<link rel='stylesheet' href='{base}/static/page.css'>"
        script = f"<script type='module' src='{base}/static/page.js'></script>"
        self.finish(page.document("edgelearn", head, script, {"server": server}))


class File(JupyterHandler):
    """The script and the style sheet."""

    @web.authenticated
    def get(self, name: str) -> None:
        if name not in FILES:
            raise web.HTTPError(404)
        kind, parts = FILES[name]
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.finish("\n".join(path.read_text("utf-8") for path in parts))


class Api(APIHandler):
    """Answers of Home to requests of the page, see Home.answer and RunStore.answer."""

    @web.authenticated
    async def post(self) -> None:
        request = self.get_json_body()
        if not isinstance(request, dict):
            raise web.HTTPError(400, "A request is a JSON object.")
        try:
            self.finish(await asyncio.to_thread(self.settings["edgelearn_home"].answer, request))
        except EdgelearnError as error:
            self.set_status(400)
            self.finish({"message": str(error)})


def add_handlers(app: Any) -> None:
    """Add the workbench to a Jupyter server; what its page trains is saved when the server ends."""
    contents = home.Home(root=Path(app.root_dir).resolve())
    app.web_app.settings["edgelearn_home"] = contents
    base = url_path_join(app.web_app.settings["base_url"], "edgelearn")
    pages = rf"{base}(?:/(?:runs(?:/[^/]+)?|compare)?)?"
    app.web_app.add_handlers(
        ".*$", [(rf"{base}/api", Api), (rf"{base}/static/([\w.]+)", File), (pages, Page)]
    )  # fmt: skip
    app.log.info(f"edgelearn: the workbench is at {base}")
