"""Write the JSON Schema of the graph model to the package and to the manual: python tools/graph_schema.py"""

from __future__ import annotations

import json
from pathlib import Path

from edgelearn.graph.schema import FILE, network_schema

FILES = (FILE, Path(__file__).parents[1] / "docs" / FILE.name)


def text() -> str:
    return json.dumps(network_schema(), indent=1) + "\n"


if __name__ == "__main__":
    for path in FILES:
        path.write_text(text())
