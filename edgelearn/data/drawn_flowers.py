"""The embedded sample: drawings of five kinds of flowers, which differ in form and share their colours."""

from functools import partial
from math import pi

import numpy as np

from edgelearn.errors import DataError

from .dataset import ImageDataset
from .drawings import (
    Canvas,
    any_tilt,
    bright_color,
    disc_outline,
    foreground,
    hsv,
    petal_outline,
    phyllotaxis,
    place,
    polar_outline,
    rotation,
    scene,
    shade,
    stem,
)

_PURPOSE = 10  # separates these random streams from others of the same seed

_ROUND_PETAL = {width: petal_outline(width, 1.5, 0.55) for width in (0.22, 0.3, 0.38)}
_POINTED_PETAL = {width: petal_outline(width, 0.95, 1.15) for width in (0.2, 0.26, 0.32)}
_BROAD_PETAL = petal_outline(1.35, 1.7, 0.45, n=12)


def embedded_flowers(n_per_class: int = 200, seed: int = 0) -> ImageDataset:
    """Drawn flowers, n_per_class of each of the five kinds of tf_flowers, in the same order of labels.

    A picture depends only on (seed, kind, index) and the size asked for. Raises DataError if there
    would be none.
    """
    if n_per_class < 1:
        raise DataError(f"Each kind needs at least one picture, got n_per_class={n_per_class}.")
    return ImageDataset(
        name="embedded_flowers",
        origin="embedded sample",
        description=f"The embedded sample: {n_per_class * len(KINDS):,} drawn flowers of {len(KINDS)} kinds.",
        class_names=tuple(KINDS),
        labels=np.repeat(np.arange(len(KINDS), dtype=np.int32), n_per_class),
        items=[partial(draw_flower, kind, seed, index) for kind in KINDS for index in range(n_per_class)],
    )


def draw_flower(kind: str, seed: int, index: int, size: int) -> np.ndarray:
    """Draw picture `index` of a kind (a key of KINDS): uint8 of shape (size, size, 3)."""
    rng = np.random.default_rng([seed, _PURPOSE, list(KINDS).index(kind), index])
    canvas = scene(size, rng)
    draw = KINDS[kind]
    if rng.random() < 0.35:  # a smaller one behind
        draw(canvas, rng, rng.uniform(0.05, 0.95, 2), rng.uniform(0.1, 0.2), bright_color(rng))
    draw(canvas, rng, rng.uniform(0.34, 0.66, 2), rng.uniform(0.22, 0.44), bright_color(rng))
    foreground(canvas, rng)
    return canvas.finish(rng)


def _whorl(canvas: Canvas, rng, center, length: float, tilt, petal, count: int, color, phase: float, light: float):
    """A ring of petals with creases, shaded by their direction."""
    edge = shade(color, 0.72)
    step = 2 * pi / count
    for k in rng.permutation(count):
        angle = phase + k * step + rng.normal(0, step * 0.07)
        scale = length * rng.uniform(0.9, 1.05)
        outline = place(petal, (0, 0), scale, angle) @ tilt.T + center
        tone = 0.88 + 0.14 * np.cos(angle - light) + rng.uniform(-0.05, 0.05)
        canvas.fill(outline, shade(color, tone), edge)
        crease = place(np.array([[0.3, 0], [0.8, 0]]), (0, 0), scale, angle) @ tilt.T + center
        canvas.stroke(crease, shade(color, tone * 0.85), 0.004)


def _daisy(canvas: Canvas, rng, center, radius, color):
    """A few rounded petals around a small cushion."""
    if rng.random() < 0.7:
        stem(canvas, rng, center, radius)
    tilt = any_tilt(rng)
    petal = _ROUND_PETAL[rng.choice(list(_ROUND_PETAL))]
    count, phase, light = int(rng.integers(9, 16)), rng.uniform(0, 6), rng.uniform(0, 6)
    _whorl(canvas, rng, center, radius, tilt, petal, count, color, phase, light)
    heart = hsv(rng.uniform(0.05, 0.17), rng.uniform(0.5, 0.95), rng.uniform(0.45, 1))
    inner = radius * rng.uniform(0.2, 0.3)
    canvas.fill(disc_outline() * inner @ tilt.T + center, shade(heart, 0.75))
    canvas.fill(disc_outline() * inner * 0.85 @ tilt.T + center, heart)
    canvas.dots(phyllotaxis(22) * inner * 0.75 @ tilt.T + center, inner * 0.09, shade(heart, 0.7))


def _sunflower(canvas: Canvas, rng, center, radius, color):
    """Two rings of many pointed petals around a large disc of seeds."""
    if rng.random() < 0.7:
        stem(canvas, rng, center, radius * 1.2, leaves=int(rng.integers(0, 3)))
    tilt = any_tilt(rng)
    petal = _POINTED_PETAL[rng.choice(list(_POINTED_PETAL))]
    count, phase, light = int(rng.integers(15, 23)), rng.uniform(0, 6), rng.uniform(0, 6)
    _whorl(canvas, rng, center, radius, tilt, petal, count, shade(color, 0.85), phase + pi / count, light)
    _whorl(canvas, rng, center, radius * 0.93, tilt, petal, count, color, phase, light)
    seeds = hsv(rng.uniform(0.02, 0.18), rng.uniform(0.4, 0.85), rng.uniform(0.2, 0.65))
    inner = radius * rng.uniform(0.45, 0.58)
    canvas.fill(disc_outline() * inner @ tilt.T + center, shade(seeds, 0.7))
    canvas.fill(disc_outline() * inner * 0.9 @ tilt.T + center, seeds)
    points = phyllotaxis(70)
    canvas.dots(points * inner * 0.88 @ tilt.T + center, inner * 0.045, shade(seeds, 0.5))
    canvas.fill(disc_outline() * inner * 0.32 @ tilt.T + center, shade(seeds, rng.choice([0.6, 1.25])))


def _rose(canvas: Canvas, rng, center, radius, color):
    """Broad petals that overlap in a spiral towards a closed bud."""
    if rng.random() < 0.7:
        stem(canvas, rng, center, radius, leaves=int(rng.integers(0, 3)))
    tilt = any_tilt(rng)
    edge = shade(color, 0.62)
    light, angle = rng.uniform(0, 6), rng.uniform(0, 6)
    turn = rng.choice([-1, 1]) * 2 * pi / rng.uniform(2.4, 3.4)
    count = int(rng.integers(13, 19))
    for k in range(count):
        depth = k / count
        reach = radius * (1 - 0.8 * depth)
        angle += turn + rng.normal(0, 0.12)
        petal = polar_outline(_ROSE_PETAL * rng.uniform(0.94, 1.06, len(_ROSE_PETAL)), angle)
        middle = np.array([np.cos(angle), np.sin(angle)]) * reach * 0.36
        tone = 0.85 + 0.17 * np.cos(angle - light) - 0.22 * depth
        canvas.fill((petal * reach * 0.66 + middle) @ tilt.T + center, shade(color, tone), edge, 0.009)
    t = np.linspace(0, 1, 24)
    spiral = np.stack([np.cos(angle + np.sign(turn) * 11 * t), np.sin(angle + np.sign(turn) * 11 * t)], 1) * t[:, None]
    canvas.stroke(spiral * radius * 0.2 @ tilt.T + center, shade(edge, 0.75), 0.008)


# Flat toward the middle of the flower, with a slightly wavy rim.
_ROSE_PETAL = 1 + 0.1 * np.cos(np.linspace(0, 2 * pi, 26, endpoint=False)) ** 3


def _tulip(canvas: Canvas, rng, center, radius, color):
    """A cup seen from the side: three petals in front, two behind."""
    lean = rng.normal(0, 0.3)
    down = place(np.array([0, 1.0]), (0, 0), radius * 0.75, lean)
    stem(canvas, rng, center + down, radius * 1.3, leaves=int(rng.integers(1, 4)))
    edge = shade(color, 0.65)
    plump, open_ = rng.uniform(0.75, 1.05), rng.uniform(0.1, 0.34)
    base = center + down
    outline = petal_outline(plump, rng.uniform(0.7, 0.9), rng.uniform(0.9, 1.2), n=14)
    length = radius * 1.6
    for side, reach, tone in (
        (-0.45, 0.93, 0.72),
        (0.45, 0.93, 0.78),
        (-1, 1, 0.92),
        (1, 1, 0.84),
        (0, 0.94, 1),
    ):
        angle = -pi / 2 + lean + side * open_
        petal = place(outline, base, length * reach * rng.uniform(0.96, 1.04), angle)
        canvas.fill(petal, shade(color, tone), edge, 0.008)
    for spread in rng.uniform(-0.14, 0.14, 4):
        vein = place(np.array([[0.2, spread * 0.7], [0.75, spread]]), base, length * 0.94, -pi / 2 + lean)
        canvas.stroke(vein, shade(color, 0.88), 0.005)


def _dandelion(canvas: Canvas, rng, center, radius, color):
    """A ball of fine rays: a seed head, or a blossom whose rays reach its centre."""
    stem(canvas, rng, center, radius * 0.8)
    tilt = any_tilt(rng)
    if rng.random() < 0.5:
        _seed_head(canvas, rng, center, radius * 0.9, shade(color, 1.5))
        return
    for reach, tone, count in (
        (1, 0.7, 60),
        (0.85, 0.85, 60),
        (0.64, 1, 50),
        (0.42, 0.9, 40),
        (0.24, 0.75, 24),
    ):
        angle = rng.uniform(0, 2 * pi, count)
        outer = np.stack([np.cos(angle), np.sin(angle)], 1) * radius * reach * rng.uniform(0.8, 1, (count, 1))
        ends = np.stack([outer * 0.15, outer], 1) @ tilt.T + center
        canvas.segments(ends, shade(color, tone), radius * 0.045)


def _seed_head(canvas: Canvas, rng, center, radius, color):
    heart = hsv(rng.uniform(0.05, 0.25), 0.5, rng.uniform(0.25, 0.5))
    heads = phyllotaxis(75) @ rotation(rng.uniform(0, 6)).T
    heads *= rng.uniform(0.93, 1.03, (len(heads), 1))
    canvas.segments(np.stack([heads * 0.1, heads * 0.9], 1) * radius + center, shade(color, 0.75), 0.004)
    canvas.disc(center, radius * 0.13, heart)
    spokes = rng.uniform(0, 2 * pi, (len(heads), 5, 1))
    hairs = np.concatenate([np.cos(spokes), np.sin(spokes)], 2) * 0.15 + heads[:, None] * 1.03
    tufts = np.stack([np.broadcast_to(heads[:, None] * 0.93, hairs.shape), hairs], 2)
    canvas.segments(tufts.reshape(-1, 2, 2) * radius + center, color, 0.004)


KINDS = {"dandelion": _dandelion, "daisy": _daisy, "tulips": _tulip, "sunflowers": _sunflower, "roses": _rose}
