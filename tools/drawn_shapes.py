"""Drawn textures, things and flowers to pretrain a network on: none of them is of the embedded sample's kinds.

They exist so that a network can learn edges, corners, curves, repetition and radial order before it
meets the embedded sample, whose classes it must not have seen.
"""

from functools import partial
from math import pi

import numpy as np
from drawn_blossoms import BLOSSOMS

from edgelearn.data.flowers import (
    Canvas,
    any_color,
    bend,
    bright_color,
    contrasting_color,
    disc_outline,
    foreground,
    hsv,
    leaf_color,
    petal_outline,
    place,
    polar_outline,
    rotation,
    scene,
    shade,
    wobbly_outline,
)
from edgelearn.data.pictures import ImageDataset
from edgelearn.errors import DataError

_PURPOSE = 11  # keeps these random streams apart from others of the same seed


def pretraining_pictures(n_per_class: int = 200, seed: int = 0) -> ImageDataset:
    """Drawn textures, things and flowers, n_per_class of each class, in the order of TEXTURES, THINGS, BLOSSOMS.

    A picture depends only on (seed, class, index) and the size asked for. Raises DataError if there would
    be none.
    """
    if n_per_class < 1:
        raise DataError(f"Each class needs at least one picture, got n_per_class={n_per_class}.")
    names = tuple(KINDS)
    return ImageDataset(
        name="pretraining_pictures",
        origin="drawn",
        description=f"{n_per_class * len(names):,} drawn textures, things and flowers of {len(names)} kinds.",
        class_names=names,
        labels=np.repeat(np.arange(len(names), dtype=np.int32), n_per_class),
        items=[partial(draw_shape, name, seed, index) for name in names for index in range(n_per_class)],
    )


def draw_shape(name: str, seed: int, index: int, size: int) -> np.ndarray:
    """One picture of a class (a key of KINDS): uint8 of shape (size, size, 3)."""
    number = list(KINDS).index(name)
    rng = np.random.default_rng([seed, _PURPOSE, number, index])
    if name in TEXTURES:
        canvas = Canvas(size)
        TEXTURES[name](canvas, rng)
    else:
        canvas = scene(size, rng)
        draw = KINDS[name]
        if rng.random() < 0.35:  # a smaller one behind
            draw(canvas, rng, rng.uniform(0.05, 0.95, 2), rng.uniform(0.1, 0.2), _color(rng))
        draw(canvas, rng, rng.uniform(0.36, 0.64, 2), rng.uniform(0.22, 0.42), _color(rng))
        foreground(canvas, rng)
    return canvas.finish(rng)


def _color(rng):
    return bright_color(rng) if rng.random() < 0.5 else any_color(rng)


def _upright(rng) -> float:
    return rng.normal(0, 0.25)


def _any_angle(rng) -> float:
    return rng.uniform(0, 2 * pi)


def _outlined(canvas: Canvas, outline, color):
    canvas.fill(outline, color, shade(color, 0.65))


def _two_colors(rng):
    first = _color(rng)
    return first, contrasting_color(rng, first)


def _rows(rng, spacing: float):
    """Offsets that cover a picture turned by any angle, in steps of `spacing`."""
    return np.arange(-0.8, 0.8, spacing) + rng.uniform(0, spacing)


# Textures: they fill the picture


def _stripes(canvas, rng):
    first, second = _two_colors(rng)
    canvas.fill(_SQUARE * 2, first)
    spacing, angle = rng.uniform(0.06, 0.22), _any_angle(rng)
    bar = np.array([[-1, 0], [1, 0], [1, 1], [-1, 1]]) * (1, spacing * rng.uniform(0.3, 0.7))
    for offset in _rows(rng, spacing):
        canvas.fill(place(np.add(bar, (0, offset)), (0.5, 0.5), 1, angle), second)


def _waves(canvas, rng):
    first, second = _two_colors(rng)
    canvas.fill(_SQUARE * 2, first)
    spacing, angle = rng.uniform(0.09, 0.2), _any_angle(rng)
    x = np.linspace(-0.8, 0.8, 29)
    y = np.sin(x * rng.uniform(10, 22)) * spacing * rng.uniform(0.3, 0.6)
    for offset in _rows(rng, spacing):
        line = place(np.stack([x, y + offset], 1), (0.5, 0.5), 1, angle)
        canvas.stroke(line, second, spacing * 0.35)


def _zigzags(canvas, rng):
    first, second = _two_colors(rng)
    canvas.fill(_SQUARE * 2, first)
    spacing, angle = rng.uniform(0.1, 0.22), _any_angle(rng)
    x = np.arange(-0.8, 0.9, rng.uniform(0.06, 0.14))
    y = np.where(np.arange(len(x)) % 2, 1, -1) * spacing * rng.uniform(0.25, 0.5)
    for offset in _rows(rng, spacing):
        canvas.stroke(place(np.stack([x, y + offset], 1), (0.5, 0.5), 1, angle), second, spacing * 0.3)


def _checkerboard(canvas, rng):
    first, second = _two_colors(rng)
    canvas.fill(_SQUARE * 2, first)
    step, angle = rng.uniform(0.08, 0.2), _any_angle(rng)
    cells = np.arange(-int(0.8 / step) - 1, int(0.8 / step) + 2)
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    for i in cells:
        for j in cells[(cells + i) % 2 == 0]:
            canvas.fill(place(np.add(square, (i, j)) * step, (0.5, 0.5), 1, angle), second)


def _bricks(canvas, rng):
    mortar, brick = _two_colors(rng)
    canvas.fill(_SQUARE * 2, mortar)
    height, angle = rng.uniform(0.08, 0.17), _upright(rng)
    width, joint = height * rng.uniform(1.7, 2.6), height * rng.uniform(0.08, 0.2)
    corners = np.array([[0, 0], [width - joint, 0], [width - joint, height - joint], [0, height - joint]])
    for row, y in enumerate(_rows(rng, height)):
        for x in np.arange(-0.9, 0.8, width) + (row % 2) * width / 2:
            canvas.fill(place(np.add(corners, (x, y)), (0.5, 0.5), 1, angle), shade(brick, rng.uniform(0.75, 1.1)))


def _spots(canvas, rng):
    first, second = _two_colors(rng)
    canvas.fill(_SQUARE * 2, first)
    step, angle = rng.uniform(0.12, 0.24), _any_angle(rng)
    i, j = np.meshgrid(_rows(rng, step), _rows(rng, step))
    centers = np.stack([i.ravel(), j.ravel()], 1) + rng.normal(0, step * rng.uniform(0, 0.1), (i.size, 2))
    canvas.dots(centers @ rotation(angle).T + 0.5, step * rng.uniform(0.2, 0.4), second)


def _patches(canvas, rng):
    canvas.fill(_SQUARE * 2, _color(rng))
    palette = [_color(rng) for _ in range(3)]
    for center in rng.uniform(0, 1, (rng.integers(12, 28), 2)):
        blob = place(wobbly_outline(rng, 0.35, 24), center, rng.uniform(0.06, 0.2, 2), _any_angle(rng))
        canvas.fill(blob, palette[rng.integers(3)])


def _crossed_lines(canvas, rng):
    canvas.fill(_SQUARE * 2, _color(rng))
    palette = [_color(rng) for _ in range(3)]
    for _ in range(rng.integers(14, 34)):
        ends = rng.uniform(-0.2, 1.2, (2, 2))
        canvas.stroke(ends, palette[rng.integers(3)], rng.uniform(0.006, 0.03))


def _shingles(canvas, rng):
    """Overlapping rounded scales, as on a roof or a fish."""
    color, radius, angle = _color(rng), rng.uniform(0.09, 0.17), _upright(rng)
    canvas.fill(_SQUARE * 2, shade(color, 0.6))
    scale = disc_outline(20) * radius
    for row, y in enumerate(_rows(rng, radius * 0.75)[::-1]):
        for x in np.arange(-0.9, 0.9, radius * 1.9) + (row % 2) * radius * 0.95:
            tone = rng.uniform(0.8, 1.1)
            canvas.fill(
                place(np.add(scale, (x, y)), (0.5, 0.5), 1, angle),
                shade(color, tone),
                shade(color, 0.55),
                0.01,
            )


def _bands(canvas, rng):
    """Concentric outlines of one wobbling form, filling the picture."""
    first, second = _two_colors(rng)
    form, center = wobbly_outline(rng, 0.3), rng.uniform(0.1, 0.9, 2)
    for k, scale in enumerate(np.arange(1.5, 0.02, -rng.uniform(0.06, 0.13))):
        canvas.fill(place(form, center, scale), (first, second)[k % 2])


# Things: one on a scene, and perhaps a smaller one behind


def _leaf(canvas, rng, center, radius, color):
    angle = _any_angle(rng)
    outline = petal_outline(rng.uniform(0.45, 0.85), rng.uniform(0.65, 0.9), rng.uniform(0.9, 1.3), 16)
    color = leaf_color(rng) if rng.random() < 0.5 else color
    _outlined(canvas, place(outline - (0.5, 0), center, radius * 2, angle), color)
    vein = shade(color, rng.choice([0.6, 1.5]))
    canvas.stroke(place(np.array([[-0.65, 0], [0.45, 0]]), center, radius * 2, angle), vein, 0.011)
    for x in np.linspace(-0.35, 0.25, int(rng.integers(4, 7))):
        for side in (-0.16, 0.16):
            canvas.stroke(place(np.array([[x, 0], [x + 0.14, side]]), center, radius * 2, angle), vein, 0.006)


def _star(canvas, rng, center, radius, color):
    points = int(rng.integers(5, 9))
    radii = np.tile([1, rng.uniform(0.35, 0.65)], points) * radius
    _outlined(canvas, polar_outline(radii, _any_angle(rng)) + center, color)


def _polygon(canvas, rng, center, radius, color):
    corners = polar_outline(rng.uniform(0.85, 1, rng.integers(3, 7)), _any_angle(rng))
    _outlined(canvas, place(corners, center, radius), color)
    if rng.random() < 0.5:
        canvas.fill(place(corners, center, radius * 0.6), shade(color, 0.75))


def _rings(canvas, rng, center, radius, color):
    other = contrasting_color(rng, color)
    form = disc_outline() * (1, rng.uniform(0.65, 1))
    angle = _any_angle(rng)
    for k, scale in enumerate(np.linspace(1, 0.12, int(rng.integers(4, 9)))):
        canvas.fill(place(form, center, radius * scale, angle), (color, other)[k % 2])


def _spiral(canvas, rng, center, radius, color):
    turns = rng.uniform(2.5, 5) * rng.choice([-1, 1])
    t = np.linspace(0.03, 1, 90)
    angle = 2 * pi * turns * t + _any_angle(rng)
    if rng.random() < 0.5:
        canvas.disc(center, radius * 1.12, contrasting_color(rng, color))
    spiral = np.stack([np.cos(angle), np.sin(angle)], 1) * t[:, None] * radius
    canvas.stroke(spiral + center, color, radius * rng.uniform(0.05, 0.1))


def _arcs(canvas, rng, center, radius, color):
    """A rainbow of half rings."""
    half = np.linspace(pi * 0.95, pi * 2.05, 24) + _any_angle(rng)
    count = int(rng.integers(4, 8))
    for k in range(count):
        reach = radius * 1.3 * (1 - 0.75 * k / count)
        arc = np.stack([np.cos(half), np.sin(half)], 1) * reach + center
        canvas.stroke(arc, (color, shade(color, 0.55), contrasting_color(rng, color))[k % 3], radius * 0.8 / count)


def _sun_burst(canvas, rng, center, radius, color):
    """A disc of wedges in two colors."""
    other = contrasting_color(rng, color)
    count = int(rng.integers(6, 15))
    phase = _any_angle(rng)
    reach = radius * 1.2
    canvas.disc(center, reach, other)
    for angle in phase + np.arange(count) * 2 * pi / count:
        rim = angle + np.array([0, 0.5]) * 2 * pi / count
        canvas.fill(np.vstack([[0, 0], np.stack([np.cos(rim), np.sin(rim)], 1)]) * reach + center, color)


def _pinwheel(canvas, rng, center, radius, color):
    count, twist = int(rng.integers(4, 7)), rng.choice([-1, 1]) * rng.uniform(0.7, 1.1)
    blade = np.array([[0, 0], [1, 0], [0.55, 0.55 * twist]])
    phase = _any_angle(rng)
    for k in range(count):
        _outlined(
            canvas,
            place(blade, center, radius * 1.1, phase + 2 * pi * k / count),
            shade(color, 0.75 + 0.4 * (k % 2)),
        )
    canvas.disc(center, radius * 0.09, shade(color, 0.4))


def _gear(canvas, rng, center, radius, color):
    teeth = int(rng.integers(8, 15))
    radii = np.tile([1, 1, 0.78, 0.78], teeth) * radius
    _outlined(canvas, polar_outline(radii, _any_angle(rng)) + center, color)
    canvas.disc(center, radius * rng.uniform(0.3, 0.5), shade(color, 0.5))
    canvas.disc(center, radius * 0.16, shade(color, 1.3))


def _wheel(canvas, rng, center, radius, color):
    angle = _any_angle(rng) + np.arange(k := int(rng.integers(5, 13))) * 2 * pi / k
    rim = np.stack([np.cos(angle), np.sin(angle)], 1) * radius * 0.95
    canvas.segments(np.stack([np.zeros_like(rim), rim], 1) + center, shade(color, 1.3), radius * 0.05)
    canvas.ring(center, radius, color, radius * rng.uniform(0.1, 0.2))
    canvas.disc(center, radius * rng.uniform(0.1, 0.25), shade(color, 0.6))


def _snowflake(canvas, rng, center, radius, color):
    phase, width = _any_angle(rng), radius * rng.uniform(0.04, 0.09)
    branch, lean = rng.uniform(0.2, 0.35), rng.uniform(0.6, 1.1)
    lines = [[[0, 0], [1, 0]]]
    for at in np.linspace(0.35, 0.85, int(rng.integers(2, 4))):
        tip = np.array([np.cos(lean), np.sin(lean)]) * branch * (1.25 - at)
        lines += [[[at, 0], [at + tip[0], tip[1]]], [[at, 0], [at + tip[0], -tip[1]]]]
    arm = np.array(lines) * radius
    for k in range(6):
        canvas.segments(arm @ rotation(phase + k * pi / 3).T + center, color, width)


def _urchin(canvas, rng, center, radius, color):
    """A round body with spines."""
    angle = rng.uniform(0, 2 * pi, (rng.integers(25, 45), 1))
    spines = np.concatenate([np.cos(angle), np.sin(angle)], 1) * rng.uniform(0.75, 1.1, angle.shape)
    canvas.segments(np.stack([spines * 0.3, spines], 1) * radius + center, shade(color, 0.7), radius * 0.05)
    _outlined(canvas, place(wobbly_outline(rng, 0.08), center, radius * rng.uniform(0.5, 0.68)), color)


def _shell(canvas, rng, center, radius, color):
    """A fan of ribs from a hinge, scalloped at the rim."""
    angle, spread, ribs = _any_angle(rng), rng.uniform(0.9, 1.4), int(rng.integers(6, 11))
    hinge = place(np.array([-0.7, 0]), center, radius, angle)
    for k, direction in enumerate(np.linspace(-spread, spread, ribs)):
        rib = petal_outline(2.6 * spread / ribs, 2.2, 0.5)
        length = radius * 1.7 * np.cos(direction * 0.45)
        _outlined(canvas, place(rib, hinge, length, angle + direction), shade(color, 0.8 + 0.3 * (k % 2)))


def _letter(canvas, rng, center, radius, color):
    """Two to four thick strokes between the nodes of a small grid, like a character of some script."""
    nodes = np.array([[x, y] for x in (-0.7, 0, 0.7) for y in (-1, 0, 1)])
    angle, width = _upright(rng), radius * rng.uniform(0.14, 0.26)
    start = rng.integers(9)
    for _ in range(rng.integers(3, 5)):
        end = (start + rng.integers(1, 9)) % 9
        line = bend(nodes[start], nodes[end], rng.choice([0, 0, 0.3, -0.3]))
        canvas.stroke(place(line, center, radius, angle), color, width)
        start = end


def _tree(canvas, rng, center, radius, color):
    angle = _upright(rng) * 0.4
    trunk = np.array([[-0.09, 0.2], [0.09, 0.2], [0.13, 1.2], [-0.13, 1.2]])
    canvas.fill(place(trunk, center, radius, angle), hsv(rng.uniform(0.03, 0.1), 0.6, rng.uniform(0.2, 0.5)))
    color = leaf_color(rng) if rng.random() < 0.6 else color
    if rng.random() < 0.5:  # a conifer
        for k in range(3):
            foot, half = 0.5 - 0.45 * k, 0.75 - 0.15 * k
            tier = np.array([[-half, foot], [half, foot], [0, foot - 0.85]])
            _outlined(canvas, place(tier, center, radius, angle), shade(color, 0.8 + 0.15 * k))
        return
    for spot in rng.normal(0, 0.3, (8, 2)) - (0, 0.3):
        crown = place(wobbly_outline(rng, 0.2, 20), place(spot, center, radius), radius * rng.uniform(0.3, 0.5))
        canvas.fill(crown, shade(color, rng.uniform(0.75, 1.15)))


def _fish(canvas, rng, center, radius, color):
    angle = rng.choice([0, pi]) + _upright(rng)
    tail = np.array([[0.6, 0], [1.15, -0.45], [1, 0], [1.15, 0.45]])
    _outlined(canvas, place(tail, center, radius, angle), shade(color, 0.8))
    body = petal_outline(rng.uniform(0.5, 0.8), 0.9, 0.9, 16) * (1.8, 1.3) - (1, 0)
    _outlined(canvas, place(body, center, radius, angle), color)
    for x in np.linspace(-0.35, 0.4, int(rng.integers(2, 6))):
        line = place(bend((x, -0.25), (x, 0.25), 0.2), center, radius, angle)
        canvas.stroke(line, shade(color, 0.65), radius * 0.05)
    canvas.disc(place(np.array([-0.65, -0.08]), center, radius, angle), radius * 0.08, (250, 250, 245))
    canvas.disc(place(np.array([-0.65, -0.08]), center, radius, angle), radius * 0.045, (15, 15, 20))


def _house(canvas, rng, center, radius, color):
    angle, width, peak = _upright(rng) * 0.4, rng.uniform(0.6, 0.95), rng.uniform(0.4, 0.8)
    box = np.array([[-1, 0], [1, 0], [1, 1], [-1, 1]])
    roof = np.array([[-width * 1.2, -0.2], [0, -0.2 - peak], [width * 1.2, -0.2]])
    _outlined(canvas, place(box * (width, 1) - (0, 0.2), center, radius, angle), color)
    _outlined(canvas, place(roof, center, radius, angle), contrasting_color(rng, color))
    dark = shade(color, 0.35)
    canvas.fill(place(box * (0.14, 0.5) + (0, 0.3), center, radius, angle), dark)
    for x in (-width * 0.6, width * 0.6):
        canvas.fill(place(box * (0.15, 0.28) + (x, 0.02), center, radius, angle), shade(dark, rng.choice([1, 1.8])))


def _beetle(canvas, rng, center, radius, color):
    angle, dark = _any_angle(rng), shade(color, 0.3)
    for x in (-0.35, 0, 0.35):
        for side in (-1, 1):
            leg = np.array([[x, 0], [x * 1.3, side * 0.6], [x * 1.9 + 0.1, side * 0.9]])
            canvas.stroke(place(leg, center, radius, angle), dark, radius * 0.06)
    for side in (-1, 1):
        feeler = place(bend((-0.8, 0), (-1.25, side * 0.4), side * 0.2), center, radius, angle)
        canvas.stroke(feeler, dark, radius * 0.04)
    canvas.disc(place(np.array([-0.75, 0]), center, radius, angle), radius * 0.24, dark)
    _outlined(canvas, place(disc_outline() * (0.75, rng.uniform(0.45, 0.62)), center, radius, angle), color)
    canvas.stroke(place(np.array([[-0.72, 0], [0.72, 0]]), center, radius, angle), dark, radius * 0.04)
    spots = np.array([[-0.3, 0.25], [0.15, 0.3], [0.4, 0.15]])[: rng.integers(0, 4)]
    for side in (1, -1):
        canvas.dots(place(spots * (1, side), center, radius, angle), radius * 0.09, dark)


def _butterfly(canvas, rng, center, radius, color):
    angle, open_ = _upright(rng) * 2, rng.uniform(0.65, 1)
    for side in (-1, 1):
        for lift, reach in ((0.8, rng.uniform(0.75, 0.9)), (-0.5, 1.15)):
            wing = petal_outline(0.95, 1.3, 0.6)
            shape = place(wing, (0, 0), reach, lift) * (side * open_, 1)
            _outlined(canvas, place(shape, center, radius, angle), shade(color, 0.85 if lift > 0 else 1))
            spot = place(np.array([0.68, 0]), (0, 0), reach, lift) * (side * open_, 1)
            canvas.disc(place(spot, center, radius, angle), radius * 0.12, contrasting_color(rng, color))
    body = shade(color, 0.25)
    canvas.stroke(place(np.array([[0, -0.4], [0, 0.55]]), center, radius, angle), body, radius * 0.13)
    for side in (-0.3, 0.3):
        canvas.stroke(place(np.array([[0, -0.4], [side, -0.85]]), center, radius, angle), body, radius * 0.04)


def _mushroom(canvas, rng, center, radius, color):
    angle, flat = _upright(rng), rng.uniform(0.6, 1)
    stalk = np.array([[-0.2, -0.1], [0.2, -0.1], [0.28, 1], [-0.28, 1]])
    _outlined(canvas, place(stalk, center, radius, angle), hsv(0.1, rng.uniform(0.05, 0.3), rng.uniform(0.7, 0.95)))
    half = np.linspace(pi, 2 * pi, 16)
    cap = np.stack([np.cos(half) * 0.95, np.sin(half) * flat], 1)
    _outlined(canvas, place(cap, center, radius, angle), color)
    for x, y in ((-0.5, -0.3), (0.1, -0.6), (0.5, -0.2))[: rng.integers(0, 4)]:
        canvas.disc(place(np.array([x, y * flat]), center, radius, angle), radius * 0.11, shade(color, 1.9))


def _bowl(canvas, rng, center, radius, color):
    """A vessel with an open rim, seen from somewhat above."""
    angle, depth, rim = _upright(rng), rng.uniform(0.7, 1.2), rng.uniform(0.12, 0.3)
    half = np.linspace(0, pi, 18)
    narrow = rng.uniform(0.5, 1.5)
    side = np.stack([np.sign(np.cos(half)) * np.abs(np.cos(half)) ** narrow * 0.85, np.sin(half) * depth], 1)
    _outlined(canvas, place(side - (0, 0.3), center, radius, angle), color)
    mouth = disc_outline() * (0.85, rim) - (0, 0.3)
    _outlined(canvas, place(mouth, center, radius, angle), shade(color, 0.6))
    for y in np.linspace(0, 0.3, int(rng.integers(0, 3))):
        canvas.stroke(place(np.array([[-0.7, y], [0.7, y]]), center, radius, angle), shade(color, 0.75), radius * 0.06)


def _feather(canvas, rng, center, radius, color):
    angle, sag = _any_angle(rng), rng.uniform(-0.2, 0.2)
    spine = bend((-1.2, 0), (1, 0), sag, 26)
    lean, dense = rng.uniform(0.35, 0.6), shade(color, 0.85)
    for k in range(6, 26):
        reach = rng.uniform(0.4, 0.5) * np.sin(pi * ((k - 4) / 23) ** 0.7)
        for side, tone in ((-1, color), (1, dense)):
            barb = np.array([spine[k], spine[k] + (lean, side * reach)])
            canvas.stroke(place(barb, center, radius, angle), tone, radius * 0.075)
    canvas.stroke(place(spine, center, radius, angle), shade(color, 0.5), radius * 0.05)


def _heart(canvas, rng, center, radius, color):
    t = np.linspace(0, 2 * pi, 40, endpoint=False)
    x = np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 16
    _outlined(canvas, place(np.stack([x, y], 1), center, radius * 0.95, _any_angle(rng)), color)


def _moon(canvas, rng, center, radius, color):
    bite, angle = rng.uniform(0.3, 0.6), _any_angle(rng)
    half = np.linspace(-pi / 2, pi / 2, 20)
    outer = np.stack([np.cos(half), np.sin(half)], 1)
    inner = np.stack([np.cos(half) * bite, np.sin(half)], 1)[::-1]
    _outlined(canvas, place(np.concatenate([outer, inner]) - (0.5, 0), center, radius, angle), color)


def _cross(canvas, rng, center, radius, color):
    t = rng.uniform(0.15, 0.4)
    corner = np.array([[1, -t], [1, t], [t, t]])
    outline = np.concatenate([corner @ rotation(k * pi / 2).T for k in range(4)])
    _outlined(canvas, place(outline, center, radius, _any_angle(rng)), color)


_SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])

TEXTURES = {
    "stripes": _stripes,
    "waves": _waves,
    "zigzags": _zigzags,
    "checkerboard": _checkerboard,
    "bricks": _bricks,
    "spots": _spots,
    "patches": _patches,
    "crossed lines": _crossed_lines,
    "shingles": _shingles,
    "bands": _bands,
}
THINGS = {
    "leaf": _leaf,
    "star": _star,
    "polygon": _polygon,
    "rings": _rings,
    "spiral": _spiral,
    "arcs": _arcs,
    "sunburst": _sun_burst,
    "pinwheel": _pinwheel,
    "gear": _gear,
    "wheel": _wheel,
    "snowflake": _snowflake,
    "urchin": _urchin,
    "shell": _shell,
    "letter": _letter,
    "tree": _tree,
    "fish": _fish,
    "house": _house,
    "beetle": _beetle,
    "butterfly": _butterfly,
    "mushroom": _mushroom,
    "bowl": _bowl,
    "feather": _feather,
    "heart": _heart,
    "moon": _moon,
    "cross": _cross,
}
KINDS = TEXTURES | THINGS | BLOSSOMS
