"""Figures of enrolled words: a map of clips, errors by threshold, scores over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.errors import DataError
from edgelearn.experiments.keywords import det_curve
from edgelearn.experiments.keywords.streaming import Occurrence
from edgelearn.keywords import Detection, Scores
from edgelearn.lab.runs import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OTHERS = "#cccccc"
_MARKERS = "osD^vPX"


def principal_plane(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) of embeddings (n, d), and the two directions (d, 2) of their largest variance."""
    mean = embeddings.mean(0)
    _, _, directions = np.linalg.svd(embeddings - mean, full_matrices=False)
    plane = np.zeros((embeddings.shape[1], 2), embeddings.dtype)
    plane[:, : min(2, len(directions))] = directions[:2].T
    return mean, plane


def plot_embeddings(
    embeddings: np.ndarray, labels: np.ndarray, words: Sequence[str], others: np.ndarray | None = None,
    heard: np.ndarray | None = None,
) -> Figure:  # fmt: skip
    """Draw clips in the principal plane of their embeddings, scaled to length 1.

    Arguments:
    - `embeddings`, `labels`: of enrolled clips, (n, d) and (n,).
    - `words`: names of the labels.
    - `others`: embeddings (m, d) of other words, drawn in grey (default none).
    - `heard`: embedding (d,) of a clip, drawn as a star (default none).

    Raises DataError without clips.
    """
    if not len(embeddings):
        raise DataError("A map needs clips: enrol a word.")
    mean, plane = principal_plane(_unit(embeddings))
    figure = figures.canvas(6, 4.5)
    axes = figure.add_subplot()
    if others is not None and len(others):
        axes.scatter(*((_unit(others) - mean) @ plane).T, s=14, color=_OTHERS, label="other words")
    for label, word in enumerate(words):
        points = (_unit(embeddings[labels == label]) - mean) @ plane
        color, marker = figures.PALETTE[label % len(figures.PALETTE)], _MARKERS[label % len(_MARKERS)]
        axes.scatter(*points.T, s=46, color=color, marker=marker, edgecolor="white", linewidth=0.6, label=word)
    if heard is not None:
        axes.scatter(*(_unit(heard) - mean) @ plane, s=220, marker="*", color="black", label="just heard", zorder=3)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("First principal component", fontsize=11)
    axes.set_ylabel("Second", fontsize=11)
    figure.legend(loc="outside right upper", fontsize=10, frameon=False)
    return figure


def plot_det(known: np.ndarray, unknown: np.ndarray, threshold: float) -> Figure:
    """Draw false accepts and false rejects by threshold, and against each other (Martin et al. 1997).

    Arguments:
    - `known`, `unknown`: known scores of clips of known words (n,) and of others (m,).
    - `threshold`: is marked.

    Raises DataError without scores of either kind.
    """
    thresholds, accepted, rejected = det_curve(known, unknown)
    figure = figures.canvas(9, 3.4)
    left, right = figure.subplots(1, 2)
    finite = np.isfinite(thresholds)
    left.step(thresholds[finite], 100 * accepted[finite], where="pre", color=figures.ORANGE, label="false accepts")
    left.step(thresholds[finite], 100 * rejected[finite], where="pre", color=figures.BLUE, label="false rejects")
    left.axvline(threshold, color=figures.GRAY, linestyle="--", linewidth=1.4)
    left.set_xlabel("Threshold", fontsize=11)
    left.locator_params(axis="x", nbins=5)
    left.set_ylabel("Share of clips (%)", fontsize=11)
    left.legend(fontsize=10, frameon=False)
    right.step(100 * accepted, 100 * rejected, where="post", color=figures.GREEN)
    here = 100 * float(np.mean(np.asarray(unknown) >= threshold)), 100 * float(np.mean(np.asarray(known) < threshold))
    right.plot(*here, "o", color=figures.GRAY, markersize=9)
    right.annotate(f"{here[0]:.1f} %, {here[1]:.1f} %", here, (9, 7), textcoords="offset points", fontsize=10)
    right.set_xlabel("False accepts (%)", fontsize=11)
    right.set_ylabel("False rejects (%)", fontsize=11)
    for axes in (left, right):
        axes.set_ylim(-3, 103)
        axes.spines[["top", "right"]].set_visible(False)
    right.set_xlim(-3, 103)
    return figure


def plot_stream(
    scores: Scores, threshold: float, detections: Sequence[Detection] = (), timeline: Sequence[Occurrence] = ()
) -> Figure:
    """Draw the known score over time.

    Arguments:
    - `scores`: of a recording.
    - `threshold`: drawn as a line.
    - `detections`: drawn as dots (default none).
    - `timeline`: spoken words, drawn as bars above (default none).
    """
    figure = figures.canvas(9, 3)
    axes = figure.add_subplot()
    axes.plot(scores.times, scores.known, color=figures.BLUE, linewidth=1.3)
    axes.axhline(threshold, color=figures.GRAY, linestyle="--", linewidth=1.2)
    low, high = float(scores.known.min()), float(scores.known.max())
    top = high + 0.12 * (high - low)
    for spoken in timeline:
        axes.plot([spoken.start, spoken.end], [top, top], color=figures.GREEN, linewidth=5, solid_capstyle="butt")
        axes.annotate(
            spoken.word, (spoken.start, top), (0, 5), textcoords="offset points", fontsize=9, color=figures.GREEN
        )
    for detection in detections:
        at = detection.time, detection.score
        axes.plot(*at, "o", color=figures.ORANGE, markersize=6)
        axes.annotate(detection.word, at, (4, 5), textcoords="offset points", fontsize=9)
    axes.set_ylim(low - 0.05 * (high - low), top + 0.2 * (high - low))
    axes.set_xlabel("Time (s)", fontsize=11)
    axes.set_ylabel("Score", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
