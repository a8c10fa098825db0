"""Flower pictures: photographs of TensorFlow Datasets, a folder, or the embedded sample of drawings.

A source that the user names is never replaced by another one. Drawings are of five kinds of flowers, which differ in
form and share their colours.

A network learns the embedded sample to 99 %, in whatever way it is trained. Of the thicket, pictures drawn by the same
program with flowers half hidden by leaves, in haze and grain, it misses one in eight, so that number formats, trained
layers and numbers of examples differ in their accuracies.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from colorsys import hsv_to_rgb
from dataclasses import replace
from functools import lru_cache, partial
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

from edgelearn.display import plural
from edgelearn.errors import DataError, DownloadError

from .draws import stratified_split
from .pictures import ImageDataset, load_folder, load_images
from .tfds import Collection, load

_SUPERSAMPLING = 3

Color = tuple[int, int, int]


class Canvas:
    """A square picture, drawn at three times its size and averaged to smooth the edges.

    Points are (x, y) in 0..1 with y downward; lengths are in the same unit.
    """

    def __init__(self, size: int):
        self.size = size
        self.pixels = size * _SUPERSAMPLING
        self.image = Image.new("RGB", (self.pixels, self.pixels))
        self._pen = ImageDraw.Draw(self.image)

    def fill(self, outline: np.ndarray, color: Color, edge: Color | None = None, edge_width: float = 0.006):
        """Draw a filled polygon. outline: (n, 2)."""
        points = (outline * self.pixels).ravel().tolist()
        self._pen.polygon(points, fill=color)
        if edge is not None:
            self._pen.line(points + points[:4], fill=edge, width=self._width(edge_width), joint="curve")

    def stroke(self, points: np.ndarray, color: Color, width: float):
        """Draw a line through the points, (n, 2)."""
        self._pen.line((points * self.pixels).ravel().tolist(), fill=color, width=self._width(width), joint="curve")

    def segments(self, ends: np.ndarray, color: Color, width: float):
        """Draw straight lines. ends: (n, 2, 2)."""
        width = self._width(width)
        for line in (ends * self.pixels).reshape(-1, 4).tolist():
            self._pen.line(line, fill=color, width=width)

    def disc(self, center, radius: float, color: Color):
        x, y, r = center[0] * self.pixels, center[1] * self.pixels, radius * self.pixels
        self._pen.ellipse((x - r, y - r, x + r, y + r), fill=color)

    def ring(self, center, radius: float, color: Color, width: float):
        x, y, r = center[0] * self.pixels, center[1] * self.pixels, radius * self.pixels
        self._pen.ellipse((x - r, y - r, x + r, y + r), outline=color, width=self._width(width))

    def dots(self, centers: np.ndarray, radius: float, color: Color):
        r = max(radius * self.pixels, 0.8)
        for x, y in (centers * self.pixels).tolist():
            self._pen.ellipse((x - r, y - r, x + r, y + r), fill=color)

    def cover(self, pixels: np.ndarray):
        """Fill the canvas with a small picture, uint8 (h, w, 3), upsampled."""
        small = Image.fromarray(pixels).resize((self.size, self.size), Image.Resampling.BICUBIC)
        self.image.paste(small.resize(self.image.size, Image.Resampling.NEAREST))

    def finish(self, rng: np.random.Generator) -> np.ndarray:
        """Downsample and add light from one side, a tint and film grain. Returns uint8 (size, size, 3)."""
        pixels = np.asarray(self.image.reduce(_SUPERSAMPLING)).astype(np.float32)
        angle, slope = rng.uniform(0, 2 * pi), rng.uniform(0, 0.5)
        axis = np.linspace(-0.5, 0.5, self.size, dtype=np.float32)
        light = 1 + slope * (axis * np.float32(cos(angle)) + axis[:, None] * np.float32(sin(angle)))
        tint = rng.uniform(0.8, 1.25) * rng.uniform(0.93, 1.07, 3)
        pixels *= light[..., None] * tint.astype(np.float32)
        pixels += rng.standard_normal((self.size, self.size, 1), np.float32) * np.float32(rng.uniform(1, 4.5))
        return np.clip(pixels, 0, 255, out=pixels).astype(np.uint8)

    def _width(self, width: float) -> int:
        return max(1, round(width * self.pixels))


# Colours


def hsv(hue: float, saturation: float, value: float) -> Color:
    """RGB of a colour in HSV. The hue wraps around; saturation and value are clipped to 0..1."""
    red, green, blue = hsv_to_rgb(hue % 1, min(max(saturation, 0), 1), min(max(value, 0), 1))
    return int(red * 255), int(green * 255), int(blue * 255)


def shade(color: Color, factor: float) -> Color:
    """Darken a colour (factor below 1) or blend it towards white (above 1)."""
    if factor <= 1:
        red, green, blue = (int(part * factor) for part in color)
    else:
        red, green, blue = (int(255 - (255 - part) / factor**1.5) for part in color)
    return red, green, blue


def bright_color(rng: np.random.Generator) -> Color:
    """A petal colour: white, yellow, orange, red, pink or violet, with the same distribution for every kind."""
    if rng.random() < 0.2:
        return hsv(rng.uniform(0, 1), rng.uniform(0, 0.12), rng.uniform(0.9, 1))
    return hsv(rng.uniform(-0.22, 0.16), rng.uniform(0.45, 0.95), rng.uniform(0.75, 1))


def leaf_color(rng: np.random.Generator) -> Color:
    return hsv(rng.uniform(0.22, 0.38), rng.uniform(0.4, 0.8), rng.uniform(0.25, 0.65))


def any_color(rng: np.random.Generator) -> Color:
    return hsv(rng.uniform(0, 1), rng.uniform(0.1, 0.95), rng.uniform(0.2, 1))


def contrasting_color(rng: np.random.Generator, color: Color) -> Color:
    """A random colour of clearly different brightness."""
    other = any_color(rng)
    gap = sum(other) - sum(color)
    return other if abs(gap) > 150 else shade(other, 0.4 if sum(color) > 380 else 2.2)


# Outlines: arrays (n, 2) around the origin


def disc_outline(n: int = 32) -> np.ndarray:
    angle = np.linspace(0, 2 * pi, n, endpoint=False)
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def petal_outline(width: float, fullness: float = 1.0, tip: float = 0.6, n: int = 10) -> np.ndarray:
    """A petal from (0, 0) to (1, 0). fullness > 1 moves the widest place outward; tip > 1 makes the end pointed."""
    t = np.linspace(0, 1, n)
    profile = np.sin(pi * t**fullness)
    profile = width / 2 * np.where(t**fullness > 0.5, profile**tip, profile**0.9)
    return np.concatenate([np.stack([t, profile], 1), np.stack([t, -profile], 1)[-2:0:-1]])


def polar_outline(radii: np.ndarray, phase: float = 0.0) -> np.ndarray:
    """A closed outline from its radii at evenly spaced angles."""
    angle = phase + np.linspace(0, 2 * pi, len(radii), endpoint=False)
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.asarray(radii)[:, None]


def wobbly_outline(rng: np.random.Generator, roughness: float = 0.2, n: int = 40) -> np.ndarray:
    """A blob of radius about 1."""
    angle = np.linspace(0, 2 * pi, n, endpoint=False)
    waves = [rng.uniform(-roughness, roughness) / k * np.cos(k * angle + rng.uniform(0, 2 * pi)) for k in range(2, 6)]
    return polar_outline(1 + sum(waves, np.zeros(n)))


def rotation(angle: float) -> np.ndarray:
    return np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])


def place(outline: np.ndarray, center, scale=1.0, angle: float = 0.0) -> np.ndarray:
    """Scale (by a number or (x, y)), rotate clockwise on the screen, and move to `center`."""
    return (outline * scale) @ rotation(angle).T + center


def bend(start, end, sag: float, n: int = 10) -> np.ndarray:
    """Points on a curve from start to end that bulges sideways by `sag`, relative to its length."""
    start, end = np.asarray(start, float), np.asarray(end, float)
    t = np.linspace(0, 1, n)[:, None]
    aside = np.array([end[1] - start[1], start[0] - end[0]])
    return start + t * (end - start) + np.sin(pi * t) * sag * aside


def phyllotaxis(n: int) -> np.ndarray:
    """n points that fill the unit disc like the seeds of a seed head (Vogel 1979)."""
    k = np.arange(n) + 0.5
    angle = k * pi * (3 - 5**0.5)
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.sqrt(k / n)[:, None]


# Scenes


def backdrop(canvas: Canvas, rng: np.random.Generator):
    """Draw a soft background: foliage, sky, soil, night or paper, with light and shade."""
    base = [
        hsv(rng.uniform(0.2, 0.4), rng.uniform(0.3, 0.8), rng.uniform(0.15, 0.7)),
        hsv(rng.uniform(0.5, 0.65), rng.uniform(0.2, 0.6), rng.uniform(0.5, 0.95)),
        hsv(rng.uniform(0.03, 0.12), rng.uniform(0.3, 0.6), rng.uniform(0.2, 0.6)),
        hsv(rng.uniform(0, 1), rng.uniform(0, 0.4), rng.uniform(0.05, 0.25)),
        hsv(rng.uniform(0, 1), rng.uniform(0.05, 0.3), rng.uniform(0.6, 0.95)),
    ][rng.choice(5, p=[0.45, 0.2, 0.12, 0.1, 0.13])]
    cells = int(rng.integers(2, 9))
    variation = rng.normal(1, rng.uniform(0.05, 0.35), (cells, cells, 1)) + rng.normal(0, 0.05, (cells, cells, 3))
    canvas.cover(np.clip(np.array(base) * variation, 0, 255).astype(np.uint8))


def clutter(canvas: Canvas, rng: np.random.Generator):
    """Draw objects behind the subject: blades of grass, leaves, blurred patches of light and colour."""
    for _ in range(rng.integers(0, 4)):
        kind = rng.integers(4)
        if kind == 0:
            color = leaf_color(rng)
            for x in rng.uniform(0, 1, rng.integers(3, 9)):
                top = (x + rng.uniform(-0.2, 0.2), rng.uniform(0.1, 0.8))
                canvas.stroke(bend((x, 1.05), top, rng.uniform(-0.15, 0.15), 6), color, rng.uniform(0.008, 0.025))
        elif kind == 1:
            outline = petal_outline(rng.uniform(0.3, 0.6), 0.8, 1.2)
            color = leaf_color(rng)
            for center in rng.uniform(0, 1, (rng.integers(1, 5), 2)):
                leaf = place(outline, center, rng.uniform(0.15, 0.4), rng.uniform(0, 2 * pi))
                canvas.fill(leaf, color, shade(color, 0.8))
        elif kind == 2:
            color = bright_color(rng)
            for center in rng.uniform(0, 1, (rng.integers(1, 7), 2)):
                canvas.disc(center, rng.uniform(0.02, 0.09), shade(color, rng.uniform(0.5, 1)))
        else:
            color = any_color(rng)
            for center in rng.uniform(0, 1, (rng.integers(1, 4), 2)):
                canvas.fill(place(wobbly_outline(rng, n=20), center, rng.uniform(0.05, 0.18)), shade(color, 0.7))


def foreground(canvas: Canvas, rng: np.random.Generator):
    """Draw up to two blades of grass in front of the subject."""
    for _ in range(max(0, rng.integers(-2, 3))):
        x = rng.uniform(0, 1)
        blade = bend((x, 1.05), (x + rng.uniform(-0.3, 0.3), rng.uniform(0.2, 0.7)), rng.uniform(-0.2, 0.2), 6)
        canvas.stroke(blade, leaf_color(rng), rng.uniform(0.006, 0.015))


def scene(size: int, rng: np.random.Generator) -> Canvas:
    """A new canvas with a backdrop and clutter."""
    canvas = Canvas(size)
    backdrop(canvas, rng)
    clutter(canvas, rng)
    return canvas


# Parts of flowers


def stem(canvas: Canvas, rng: np.random.Generator, center, radius: float, leaves: int = 0):
    """Draw a stem from the middle of a flower to the ground, with pointed leaves."""
    color = leaf_color(rng)
    foot = (center[0] + rng.uniform(-0.25, 0.25), 1.05)
    points = bend(center, foot, rng.uniform(-0.12, 0.12))
    canvas.stroke(points, color, radius * rng.uniform(0.07, 0.12))
    for _ in range(leaves):
        start = points[rng.integers(4, 9)]
        angle = -pi / 2 + rng.choice([-1, 1]) * rng.uniform(0.25, 0.9)
        leaf = place(petal_outline(rng.uniform(0.2, 0.35), 0.8, 1.1), start, radius * rng.uniform(1, 1.8), angle)
        canvas.fill(leaf, shade(color, rng.uniform(0.8, 1.2)), shade(color, 0.7))


def any_tilt(rng: np.random.Generator) -> np.ndarray:
    """A random matrix that rotates a flat flower and tilts it towards the side."""
    direction = rotation(rng.uniform(0, 2 * pi))
    return direction @ np.diag([1, rng.uniform(0.6, 1)]) @ direction.T


_PURPOSE = 10  # separates these random streams from others of the same seed

_ROUND_PETAL = {width: petal_outline(width, 1.5, 0.55) for width in (0.22, 0.3, 0.38)}
_POINTED_PETAL = {width: petal_outline(width, 0.95, 1.15) for width in (0.2, 0.26, 0.32)}


def embedded_flowers(n_per_class: int = 200, seed: int = 0) -> ImageDataset:
    """Draw `n_per_class` flowers (default 200) of each of the five kinds of tf_flowers, with the same labels.

    A picture depends only on (seed, kind, index) and its size. Raises DataError if `n_per_class` is below 1.
    """
    return drawn_flowers("embedded_flowers", "The embedded sample", "", draw_flower, n_per_class, seed)


def drawn_flowers(
    name: str, title: str, detail: str, draw: Callable[[str, int, int, int], np.ndarray], n_per_class: int, seed: int
) -> ImageDataset:
    """Return the pictures that `draw(kind, seed, index, size)` draws, `n_per_class` of each kind.

    Arguments:
    - `name`: of the data set; `title`, `detail`: begin and end of its description.

    Raises DataError if `n_per_class` is below 1.
    """
    if n_per_class < 1:
        raise DataError(f"Each kind needs at least one picture, got n_per_class={n_per_class}.")
    return ImageDataset(
        name=name,
        origin="embedded sample",
        description=f"{title}: {plural(n_per_class * len(KINDS), 'drawn flower')} of {len(KINDS)} kinds{detail}.",
        class_names=tuple(KINDS),
        labels=np.repeat(np.arange(len(KINDS), dtype=np.int32), n_per_class),
        items=[partial(draw, kind, seed, index) for kind in KINDS for index in range(n_per_class)],
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
    for side, reach, tone in ((-0.45, 0.93, 0.72), (0.45, 0.93, 0.78), (-1, 1, 0.92), (1, 1, 0.84), (0, 0.94, 1)):
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
    for reach, tone, count in ((1, 0.7, 60), (0.85, 0.85, 60), (0.64, 1, 50), (0.42, 0.9, 40), (0.24, 0.75, 24)):
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


TF_FLOWERS = Collection(
    name="tf_flowers",
    version="3.0.1",
    url="http://download.tensorflow.org/example_images/flower_photos.tgz",
    noun="photographs",
    remedy="Set EDGELEARN_DATA to a folder that has tensorflow_datasets/tf_flowers, give your own pictures (--images "
    "DIR; in Python images=DIR), or use the embedded sample (--sample; sample=True).",
)


def load_flowers(
    images: str | os.PathLike | None = None,
    data: str | os.PathLike | None = None,
    download: bool = True,
    embedded: bool = False,
) -> ImageDataset:
    """Load pictures of flowers. The result's `description` names the source. Without arguments it is TensorFlow
    Datasets' own folder; if a download is necessary and there is no network, the embedded sample.

    Arguments:
    - `images`: a folder with a subfolder of pictures for each class.
    - `data`: a folder with prepared tf_flowers (default: the environment variable EDGELEARN_DATA).
    - `download`: download tf_flowers if they are missing (default True).
    - `embedded`: use the embedded sample of drawings (default False).

    Raises DataError if a named source has no usable pictures, two sources are given, or the photographs are missing
    and `download` is False.
    """
    asked = {"embedded": embedded, "images": images, "data": data}
    chosen = [name for name, value in asked.items() if value]
    if len(chosen) > 1:
        raise DataError(f"Only one source of pictures can be used, got {' and '.join(chosen)}. Give one of them.")
    if embedded:
        return _sample("as requested")
    if images:
        return load_folder(images)
    try:
        return load(TF_FLOWERS, data, download)
    except DownloadError as error:
        reason = str(error).split(". ")[0]
        return _sample(f"because the flower photographs cannot be downloaded: {reason}")


def _sample(why: str) -> ImageDataset:
    sample = embedded_flowers()
    return replace(sample, description=f"{sample.description.rstrip('.')}, {why}.")


SHARE = 0.6  # of the pictures to train with; many to test with, so that a point of accuracy is ten pictures
_THICKET_PURPOSE = 11  # separates these random streams from others of the same seed


def thicket_flowers(n_per_class: int = 500, seed: int = 0) -> ImageDataset:
    """Draw `n_per_class` hidden flowers (default 500) of each of the five kinds of tf_flowers, with the same labels.

    A picture depends only on (seed, kind, index) and its size. Raises DataError if `n_per_class` is below 1.
    """
    detail = ", half hidden by leaves, in haze and grain"
    return drawn_flowers("thicket", "The thicket", detail, draw_hidden, n_per_class, seed)


def draw_hidden(kind: str, seed: int, index: int, size: int) -> np.ndarray:
    """Draw picture `index` of a kind (a key of KINDS): uint8 of shape (size, size, 3)."""
    rng = np.random.default_rng([seed, _THICKET_PURPOSE, list(KINDS).index(kind), index])
    canvas = scene(size, rng)
    clutter(canvas, rng)
    clutter(canvas, rng)
    center, radius = rng.uniform(0.25, 0.75, 2), rng.uniform(0.21, 0.43)
    KINDS[kind](canvas, rng, center, radius, bright_color(rng))
    for _ in range(rng.integers(0, 5)):
        color, outline = leaf_color(rng), petal_outline(rng.uniform(0.3, 0.6), 0.8, 1.2)
        where = center + radius * rng.uniform(-1.2, 1.2, 2)
        leaf = place(outline, where, radius * rng.uniform(0.8, 1.6), rng.uniform(0, 2 * pi))
        canvas.fill(leaf, color, shade(color, 0.8))
    clear = canvas.finish(rng).astype(np.float32)
    contrast, haze = rng.uniform(0.5, 1), rng.uniform(60, 190)
    grain = rng.standard_normal(clear.shape, np.float32) * rng.uniform(2, 8)
    return np.clip(haze + contrast * (clear - haze) + grain, 0, 255).astype(np.uint8)


@lru_cache(maxsize=2)
def drawn_thicket(size: int) -> tuple[ImageDataset, np.ndarray]:
    """(data set, all its pictures as uint8 (n, size, size, 3)), drawn once in a process."""
    dataset = thicket_flowers()
    return dataset, load_images(dataset, range(len(dataset)), size)


def split_thicket(dataset: ImageDataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pictures to train and to test with."""
    return stratified_split(dataset.labels, SHARE, seed)
