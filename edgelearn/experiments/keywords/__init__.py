"""Keyword spotting from few clips: who is trained on and who is tested, episodes, and what is measured."""

from .episodes import Episode, Episodes
from .metrics import Interval, OpenSet, accuracy, auroc, det_curve, equal_error_rate, interval, open_set
from .speakers import part_of, which_set
from .splits import LeakError, Split, WordSplit, check_disjoint, hold_out
from .twelve import twelve_classes

__all__ = [
    "Episode",
    "Episodes",
    "Interval",
    "LeakError",
    "OpenSet",
    "Split",
    "WordSplit",
    "accuracy",
    "auroc",
    "check_disjoint",
    "det_curve",
    "equal_error_rate",
    "hold_out",
    "interval",
    "open_set",
    "part_of",
    "twelve_classes",
    "which_set",
]
