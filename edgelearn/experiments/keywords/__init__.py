"""Keyword spotting from few clips: splits, episodes and metrics."""

from .episodes import (
    Episode,
    Episodes,
    LeakError,
    OpenSet,
    Split,
    WordSplit,
    accuracy,
    auroc,
    check_disjoint,
    det_curve,
    equal_error_rate,
    hold_out,
    open_set,
    part_of,
    which_set,
)

__all__ = [
    "Episode", "Episodes", "LeakError", "OpenSet", "Split", "WordSplit", "accuracy", "auroc",
    "check_disjoint", "det_curve", "equal_error_rate", "hold_out", "open_set", "part_of", "which_set",
]  # fmt: skip
