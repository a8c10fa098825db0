"""Keyword spotting from few clips: splits, episodes and metrics."""

from .episodes import Episode, Episodes
from .metrics import OpenSet, accuracy, auroc, det_curve, equal_error_rate, open_set
from .speakers import part_of, which_set
from .splits import LeakError, Split, WordSplit, check_disjoint, hold_out

__all__ = [
    "Episode", "Episodes", "LeakError", "OpenSet", "Split", "WordSplit", "accuracy", "auroc",
    "check_disjoint", "det_curve", "equal_error_rate", "hold_out", "open_set", "part_of", "which_set",
]  # fmt: skip
