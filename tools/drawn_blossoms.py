"""Drawn flowers of kinds that are not the embedded sample's, to pretrain a network on.

Between them they ask for what tells flowers apart: how many petals, of which form, in how many rings, around what,
seen from above or from the side.
"""

from math import pi

import numpy as np

from edgelearn.data.flowers import (
    Canvas,
    any_tilt,
    bend,
    bright_color,
    disc_outline,
    hsv,
    leaf_color,
    petal_outline,
    phyllotaxis,
    place,
    rotation,
    shade,
    stem,
    wobbly_outline,
)


class _Flat:
    """A flower seen from above, built from the rim inward."""

    def __init__(self, canvas: Canvas, rng, center, radius: float):
        if rng.random() < 0.7:
            stem(canvas, rng, center, radius, int(rng.integers(0, 3)))
        self.canvas, self.rng, self.center, self.radius = canvas, rng, np.asarray(center), radius
        self.tilt, self.phase, self.light = any_tilt(rng), rng.uniform(0, 2 * pi), rng.uniform(0, 2 * pi)

    def ring(self, outline: np.ndarray, reach: float, count: int, color, turn: float = 0.0, creased: bool = True):
        """`count` petals out to `reach`, of the flower's radius; `turn` is in steps between petals."""
        step, edge = 2 * pi / count, shade(color, self.rng.uniform(0.62, 0.8))
        for k in self.rng.permutation(count):
            angle = self.phase + (k + turn + self.rng.normal(0, 0.06)) * step
            length = self.radius * reach * self.rng.uniform(0.9, 1.06)
            tone = 0.88 + 0.14 * np.cos(angle - self.light) + self.rng.uniform(-0.06, 0.06)
            petal = place(outline, (0, 0), length, angle) @ self.tilt.T + self.center
            self.canvas.fill(petal, shade(color, tone), edge)
            if creased:
                line = place(np.array([[0.3, 0], [0.8, 0]]), (0, 0), length, angle)
                self.canvas.stroke(line @ self.tilt.T + self.center, shade(color, tone * 0.82), 0.004)

    def disc(self, reach: float, color):
        outline = disc_outline() * self.radius * reach
        self.canvas.fill(outline @ self.tilt.T + self.center, color)

    def dots(self, count: int, reach: float, size: float, color):
        points = phyllotaxis(count) * self.radius * reach
        self.canvas.dots(points @ self.tilt.T + self.center, self.radius * size, color)

    def rays(self, count: int, start: float, reach: float, color, width: float):
        angle = self.rng.uniform(0, 2 * pi, (count, 1))
        ends = np.concatenate([np.cos(angle), np.sin(angle)], 1) * self.radius
        far = ends * reach * self.rng.uniform(0.8, 1.05, (count, 1))
        both = np.stack([ends * start, far], 1) @ self.tilt.T + self.center
        self.canvas.segments(both, color, self.radius * width)
        return both[:, 1]


def _heart_color(rng):
    return hsv(rng.uniform(0.02, 0.2), rng.uniform(0.4, 0.95), rng.uniform(0.25, 1))


def _aster(canvas, rng, center, radius, color):
    """Very many narrow petals in one ring around a small eye."""
    flower = _Flat(canvas, rng, center, radius)
    flower.ring(petal_outline(rng.uniform(0.1, 0.15), 1.2, 0.7), 1, int(rng.integers(24, 36)), color, creased=False)
    flower.disc(rng.uniform(0.14, 0.22), _heart_color(rng))


def _coneflower(canvas, rng, center, radius, color):
    """Few long petals with gaps around a big dome of bristles."""
    flower = _Flat(canvas, rng, center, radius)
    flower.ring(petal_outline(rng.uniform(0.2, 0.3), 1.4, 0.6), 1, int(rng.integers(7, 12)), color)
    heart, reach = _heart_color(rng), rng.uniform(0.38, 0.55)
    flower.disc(reach, shade(heart, 0.6))
    flower.dots(55, reach * 0.92, 0.035, heart)


def _dahlia(canvas, rng, center, radius, color):
    """Rings of pointed petals, one in another, down to the middle."""
    flower = _Flat(canvas, rng, center, radius)
    outline, count = petal_outline(rng.uniform(0.26, 0.4), 1.1, rng.uniform(0.8, 1.2)), int(rng.integers(11, 17))
    for k, reach in enumerate(np.arange(1, 0.2, -rng.uniform(0.16, 0.22))):
        flower.ring(outline, reach, max(6, count - 2 * k), shade(color, 0.8 + 0.06 * k), 0.5 * (k % 2), creased=False)


def _clematis(canvas, rng, center, radius, color):
    """Five to eight broad pointed petals and a tuft of stamens."""
    flower = _Flat(canvas, rng, center, radius)
    flower.ring(petal_outline(rng.uniform(0.45, 0.65), 1.0, 1.2), 1, int(rng.integers(5, 9)), color)
    flower.rays(26, 0.02, rng.uniform(0.2, 0.3), _heart_color(rng), 0.03)


def _primrose(canvas, rng, center, radius, color):
    """Five round petals, nearly closed, around a small star of another color."""
    flower = _Flat(canvas, rng, center, radius)
    flower.ring(petal_outline(rng.uniform(0.85, 1.05), 1.8, 0.5, 14), 1, int(rng.integers(4, 7)), color)
    flower.ring(petal_outline(0.5, 1.0, 1.2), 0.4, 5, _heart_color(rng), creased=False)


def _poppy(canvas, rng, center, radius, color):
    """A bowl of a few crumpled sheets, with a dark heart and a wreath of stamens."""
    flower = _Flat(canvas, rng, center, radius)
    for k in range(count := int(rng.integers(4, 7))):
        middle = place(np.array([0.48 * radius, 0]), (0, 0), 1, flower.phase + k * 2 * pi / count * 2)
        sheet = place(wobbly_outline(rng, 0.16), middle, radius * rng.uniform(0.52, 0.62)) @ flower.tilt.T + center
        canvas.fill(sheet, shade(color, rng.uniform(0.8, 1.1)), shade(color, 0.65))
    flower.rays(34, 0.05, 0.38, shade(color, 0.2), 0.025)
    flower.disc(rng.uniform(0.12, 0.18), hsv(rng.uniform(0.15, 0.35), 0.4, rng.uniform(0.3, 0.6)))


def _camellia(canvas, rng, center, radius, color):
    """Round petals in regular rings, each ring smaller and turned by half a step."""
    flower = _Flat(canvas, rng, center, radius)
    outline, count = petal_outline(rng.uniform(0.7, 0.85), 1.8, 0.5, 12), int(rng.integers(7, 10))
    for k, reach in enumerate((1, 0.78, 0.57, 0.38, 0.22)):
        flower.ring(outline, reach, max(5, count - k), shade(color, 0.82 + 0.07 * k), 0.5 * (k % 2), creased=False)


def _carnation(canvas, rng, center, radius, color):
    """A ruffle: jagged sheets one on another."""
    flower = _Flat(canvas, rng, center, radius)
    for reach in np.arange(1, 0.15, -rng.uniform(0.13, 0.18)):
        count = int(rng.integers(26, 38))
        radii = np.where(np.arange(count) % 2, 1, rng.uniform(0.75, 0.88)) * rng.uniform(0.92, 1.05, count)
        angle = np.arange(count) * 2 * pi / count + rng.uniform(0, pi)
        sheet = np.stack([np.cos(angle), np.sin(angle)], 1) * (radii * reach * radius)[:, None]
        sheet = sheet @ flower.tilt.T + center + rng.normal(0, radius * 0.04, 2)
        canvas.fill(sheet, shade(color, rng.uniform(0.8, 1.08)), shade(color, 0.62))


def _passionflower(canvas, rng, center, radius, color):
    """Broad petals under a crown of threads with banded colors."""
    flower = _Flat(canvas, rng, center, radius)
    flower.ring(petal_outline(rng.uniform(0.35, 0.45), 1.0, 0.9), 1, int(rng.integers(8, 11)), color)
    other = bright_color(rng)
    flower.rays(70, 0.1, 0.62, shade(other, 0.85), 0.025)
    flower.rays(50, 0.1, 0.4, shade(other, 0.4), 0.025)
    flower.disc(0.14, hsv(rng.uniform(0.15, 0.35), 0.5, rng.uniform(0.4, 0.8)))


def _allium(canvas, rng, center, radius, color):
    """A ball of small stars on a bare stem."""
    stem(canvas, rng, center, radius)
    points = phyllotaxis(int(rng.integers(45, 70))) @ rotation(rng.uniform(0, 6)).T * radius * 0.9
    canvas.segments(np.stack([points * 0.1, points], 1) + center, leaf_color(rng), 0.004)
    spokes = np.arange(6) * pi / 3
    star = np.stack([np.cos(spokes), np.sin(spokes)], 1) * radius * 0.1
    for point in points[::-1]:
        arms = star @ rotation(rng.uniform(0, 6)).T + point + center
        middle = np.broadcast_to(point + center, arms.shape)
        canvas.segments(np.stack([middle, arms], 1), shade(color, rng.uniform(0.7, 1.1)), radius * 0.045)


def _cluster(canvas, rng, center, radius, color):
    """A dome of many little four-petalled flowers, as a hydrangea's."""
    stem(canvas, rng, center, radius, int(rng.integers(1, 3)))
    canvas.disc(center, radius * 0.85, shade(color, 0.5))
    petal, size = petal_outline(0.8, 1.4, 0.6), radius * rng.uniform(0.2, 0.28)
    for point in rng.permutation(phyllotaxis(int(rng.integers(22, 34)))) * radius * 0.85:
        turn, tone = rng.uniform(0, pi), rng.uniform(0.8, 1.15)
        for k in range(4):
            outline = place(petal, point + center, size, turn + k * pi / 2)
            canvas.fill(outline, shade(color, tone), shade(color, tone * 0.75), 0.004)


def _thistle(canvas, rng, center, radius, color):
    """A scaly green knob with a tuft of threads above, seen from the side."""
    lean = -pi / 2 + rng.normal(0, 0.4)
    down = place(np.array([-0.45, 0]), center, radius, lean)
    stem(canvas, rng, down, radius * 1.1, int(rng.integers(0, 3)))
    spread = rng.uniform(0.5, 0.95)
    for angle in rng.uniform(-spread, spread, 60):
        tip = place(np.array([np.cos(angle), np.sin(angle)]), down, radius * rng.uniform(1.15, 1.45), lean)
        canvas.stroke(np.stack([down, tip]), shade(color, rng.uniform(0.7, 1.1)), radius * 0.04)
    green = leaf_color(rng)
    knob = disc_outline() * (0.42, rng.uniform(0.36, 0.48))
    canvas.fill(place(knob, down, radius, lean), green, shade(green, 0.6))
    canvas.dots(place(phyllotaxis(22) * 0.33, down, radius, lean), radius * 0.035, shade(green, 0.6))


def _lily(canvas, rng, center, radius, color):
    """A trumpet from the side: pointed lobes that bend outward, and long stamens."""
    lean = -pi / 2 + rng.normal(0, 0.5)
    foot = place(np.array([-0.8, 0]), center, radius, lean)
    stem(canvas, rng, foot, radius, int(rng.integers(1, 4)))
    outline, open_ = petal_outline(rng.uniform(0.28, 0.4), 1.0, 1.2, 14), rng.uniform(0.55, 0.85)
    for side, tone in ((-1, 0.8), (1, 0.85), (-0.5, 0.92), (0.5, 0.96), (0, 1)):
        canvas.fill(place(outline, foot, radius * 1.75, lean + side * open_), shade(color, tone), shade(color, 0.62))
    for side in rng.uniform(-0.35, 0.35, 5):
        tip = place(np.array([np.cos(side), np.sin(side)]), foot, radius * 1.5, lean)
        canvas.stroke(np.stack([foot, tip]), shade(color, 0.5), 0.006)
        canvas.disc(tip, radius * 0.06, _heart_color(rng))


def _lotus(canvas, rng, center, radius, color):
    """A fan of many pointed petals from the side, the outer ones lying."""
    foot = np.add(center, (0, radius * 0.55))
    stem(canvas, rng, foot, radius)
    outline, half = petal_outline(rng.uniform(0.3, 0.42), 0.95, 1.1, 14), int(rng.integers(3, 6))
    for tone, reach, spread in ((0.75, 1.3, 1.35), (0.88, 1.2, 1.0), (1, 1.05, 0.6)):
        for side in sorted(np.linspace(-spread, spread, 2 * half), key=lambda s: -abs(s)):
            petal = place(outline, foot, radius * reach, -pi / 2 + side + rng.normal(0, 0.04))
            canvas.fill(petal, shade(color, tone * rng.uniform(0.94, 1.05)), shade(color, 0.62))


def _bluebell(canvas, rng, center, radius, color):
    """Bells with scalloped mouths hanging along a bowed stem."""
    spine = bend((-0.9, 1.2), (0.9, -0.7), rng.choice([-1, 1]) * rng.uniform(0.2, 0.4), 12)
    spine *= (rng.choice([-1, 1]), 1)
    canvas.stroke(place(spine, center, radius), leaf_color(rng), radius * 0.07)
    bell = np.array([[-0.1, 0], [0.1, 0], [0.2, 0.3], [0.28, 0.55], [0.14, 0.47], [0, 0.58], [-0.14, 0.47]])
    bell = np.concatenate([bell, [[-0.28, 0.55], [-0.2, 0.3]]])
    for point in spine[3 :: int(rng.integers(1, 3))]:
        hung = place(bell, place(point, center, radius), radius * rng.uniform(0.8, 1.1), rng.normal(0, 0.25))
        canvas.fill(hung, shade(color, rng.uniform(0.8, 1.1)), shade(color, 0.62))


def _lavender(canvas, rng, center, radius, color):
    """A spike of small blossoms in whorls along an upright stem."""
    lean = rng.normal(0, 0.25)
    stem(canvas, rng, center, radius, int(rng.integers(1, 4)))
    count, width = int(rng.integers(9, 15)), rng.uniform(0.2, 0.38)
    petal = petal_outline(rng.uniform(0.5, 0.8), 1.3, 0.8)
    for k in range(count):
        y, reach = 0.9 - 2 * k / count, width * (1 - 0.6 * k / count)
        for side in rng.permutation([-1, -0.4, 0.4, 1]):
            start = place(np.array([0, y]), center, radius, lean)
            blossom = place(petal, start, radius * reach * 1.5, lean - pi / 2 + side * 1.1)
            canvas.fill(blossom, shade(color, rng.uniform(0.72, 1.1)), shade(color, 0.6), 0.004)


BLOSSOMS = {
    "aster": _aster,
    "coneflower": _coneflower,
    "dahlia": _dahlia,
    "clematis": _clematis,
    "primrose": _primrose,
    "poppy": _poppy,
    "camellia": _camellia,
    "carnation": _carnation,
    "passionflower": _passionflower,
    "allium": _allium,
    "hydrangea": _cluster,
    "thistle": _thistle,
    "lily": _lily,
    "lotus": _lotus,
    "bluebell": _bluebell,
    "lavender": _lavender,
}
