"""A network as a table, with what is trained."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.units import megabytes


def summary(network: Network) -> str:
    """Layer, op, output shape, number of parameters and whether they are trained; then the totals."""
    rows = []
    for node in network.nodes.values():
        names = [name for name in network.parameters if name.startswith(f"{node.name}/")]
        trained = sum(name in network.trainable for name in names)
        mark = "" if not names else "frozen" if not trained else "trained"
        rows.append((node.name, type(node.op).__name__, str((None, *node.shape)), f"{network.count(names):,}", mark))
    header = ("Layer", "Op", "Output shape", "Parameters", "")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(5)]

    def line(row: tuple[str, ...]) -> str:
        padded = zip(row, widths, strict=True)
        cells = (cell.rjust(w) if i == 3 else cell.ljust(w) for i, (cell, w) in enumerate(padded))
        return "  ".join(cells).rstrip()

    total, trained = network.count(), network.count(network.trainable)
    rule = "-" * (sum(widths) + 8)
    return "\n".join(
        [
            f"Network '{network.name}'", rule, line(header), rule, *map(line, rows), rule,
            f"Total parameters: {total:,} ({megabytes(total * 4)})",
            f"Trainable parameters: {trained:,}",
            f"Non-trainable parameters: {total - trained:,}",
            f"Forward pass of one example: {network.flops / 2e6:,.1f} million multiply-adds",
        ]
    )  # fmt: skip
