"""Write the JSON Schema of the graph model to the package: python tools/graph_schema.py"""

from __future__ import annotations

import json

from edgelearn.graph.network import FILE, network_schema


def text() -> str:
    return json.dumps(network_schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
