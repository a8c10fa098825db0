"""Parts of drawn pictures: a canvas in unit coordinates, outlines, colours, scenes and light."""

from colorsys import hsv_to_rgb
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

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
