"""Scenes: which things lie where, and the picture of it.  Torch-free (numpy, Pillow).

A `Scene` is pure data and is all that questions need; `render` draws it. Everything random about the drawing comes
from `Scene.seed`, so one scene gives one picture, at any scale: lengths in a scene are native pixels of a SIZE x SIZE
picture, and `Conditions.scale` multiplies them. Boxes and masks are read off what was drawn."""

import io
import math
import random
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from engine.builtin import world

SIZE: Final = 126
Box = tuple[int, int, int, int]
Pixels = NDArray[np.uint8]
_SLOTS: Final = {1: (44, 92), 2: (36, 66), 3: (34, 54), 4: (30, 44)}


@dataclass(frozen=True)
class Thing:
    """One thing in its square slot (left, top, side in native pixels). `style` is "" for a shape."""

    name: str
    category: str
    left: int
    top: int
    side: int
    style: str

    @property
    def is_shape(self) -> bool:
        return self.category == world.SHAPE_CATEGORY

    @property
    def colour(self) -> str:
        return self.name.split(" ")[0]

    @property
    def form(self) -> str:
        return self.name.split(" ")[1]

    @property
    def x(self) -> float:
        """Centre, in native pixels from the left."""
        return self.left + self.side / 2

    @property
    def y(self) -> float:
        """Centre, in native pixels from the top."""
        return self.top + self.side / 2


@dataclass(frozen=True)
class Scene:
    """The things, and the seed of everything about the drawing that no question asks for."""

    things: tuple[Thing, ...]
    seed: int


@dataclass(frozen=True)
class Mix:
    """How scenes are drawn: weights of 1, 2, 3, 4 things; chances of a shape, of a thing like an earlier one, of a
    crowd."""

    counts: tuple[float, ...] = (0.38, 0.40, 0.22)
    shape: float = 0.18
    same: float = 0.12
    same_category: float = 0.23
    crowd: float = 0.0


@dataclass(frozen=True)
class Conditions:
    """How a scene is drawn. Noise is the standard deviation of grey levels (None: 0 to 7 by the scene's seed); blur a
    radius in native pixels; jitter multiplies the colour changes of sprites; squash is the width : height of what was
    square."""

    noise: float | None = None
    blur: float = 0.0
    jitter: float = 1.0
    squash: float = 1.0
    scale: int = 1


@dataclass(frozen=True)
class Picture:
    """pixels (SIZE*scale, SIZE*scale, 3); mask (same height and width): 0 or 1 + index of the thing; a tight box for
    each thing."""

    pixels: Pixels
    mask: Pixels
    boxes: tuple[Box, ...]


PLAIN: Final = Mix()
PLAIN_CONDITIONS: Final = Conditions()


def seeded(purpose: str, *numbers: int | str) -> random.Random:
    """A generator of its own for each purpose: "train", "test", "probe", "sample" and the like never share a seed."""
    return random.Random(":".join([purpose, *map(str, numbers)]))


def choose_names(rng: random.Random, mix: Mix) -> list[str]:
    """Names of one to four things, some alike, some of one category."""
    n = rng.choices(range(1, len(mix.counts) + 1), mix.counts)[0]
    names: list[str] = []
    crowd = n > 1 and rng.random() < mix.crowd
    for _ in range(n):
        objects = [name for name in names if name in world.BY_NAME]
        roll = rng.random()
        if crowd and names and roll < 0.7:
            names.append(names[0])
        elif rng.random() < mix.shape:
            names.append(f"{rng.choice(list(world.COLOURS))} {rng.choice(world.SHAPES)}")
        elif objects and roll < mix.same:
            names.append(rng.choice(objects))
        elif objects and roll < mix.same + mix.same_category:
            names.append(rng.choice(world.IN_CATEGORY[world.BY_NAME[rng.choice(objects)].category]))
        else:
            names.append(rng.choice(world.NAMES))
    return names


def choose_style(name: str, rng: random.Random, held: bool = False) -> str:
    """A drawing style for an object: one that training sees, or with `held` the one that it never sees, if there is
    one."""
    if world.colour_and_form(name):
        return ""
    hidden = world.BY_NAME[name].held_style
    if held and hidden:
        return hidden
    seen: list[str] = [style for style in world.STYLES if style != hidden]
    return rng.choice(seen)


def make_scene(rng: random.Random, names: list[str] | None = None, mix: Mix = PLAIN, held_style: bool = False) -> Scene:
    """A scene with the given names, or with names chosen by the mix. Slots do not overlap by more than two pixels."""
    names = names or choose_names(rng, mix)
    if len(names) not in _SLOTS:
        raise ValueError(f"a scene holds 1 to {max(_SLOTS)} things, not {len(names)}")
    low, high = _SLOTS[len(names)]
    while True:
        things: list[Thing] = []
        for name in names:
            slot = _free_slot(rng, things, low, high, world.colour_and_form(name) is not None)
            if slot is None:
                break
            things.append(Thing(name, world.category_of(name), *slot, choose_style(name, rng, held_style)))
        if len(things) == len(names):
            return Scene(tuple(things), rng.getrandbits(32))
        high = max(low, high - 4)


def _free_slot(
    rng: random.Random, things: list[Thing], low: int, high: int, shape: bool
) -> tuple[int, int, int] | None:
    for _ in range(40):
        side = rng.randint(low, high)
        side = round(side * 0.85) if shape else side
        left, top = rng.randint(0, SIZE - side), rng.randint(0, SIZE - side)
        if all(
            left >= t.left + t.side - 2
            or t.left >= left + side - 2
            or top >= t.top + t.side - 2
            or t.top >= top + side - 2
            for t in things
        ):
            return left, top, side
    return None


def render(scene: Scene, conditions: Conditions = PLAIN_CONDITIONS) -> Picture:
    """Draw the scene: background, things in order, blur, noise."""
    rng = random.Random(scene.seed)
    draws = np.random.default_rng(rng.getrandbits(32))
    size = SIZE * conditions.scale
    canvas = _background(rng, draws, size)
    mask = np.zeros((size, size), np.uint8)
    boxes: list[Box] = []
    for index, thing in enumerate(scene.things):
        tile = _shape_tile(thing, rng, conditions) if thing.is_shape else _sprite_tile(thing, rng, conditions)
        left = thing.left * conditions.scale + (thing.side * conditions.scale - tile.width) // 2
        top = thing.top * conditions.scale + (thing.side * conditions.scale - tile.height) // 2
        canvas.paste(tile, (left, top), tile)
        solid = np.asarray(tile.getchannel("A")) > 100
        mask[top : top + tile.height, left : left + tile.width][solid] = index + 1
        rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
        boxes.append((left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1))
    if conditions.blur:
        canvas = canvas.filter(ImageFilter.GaussianBlur(conditions.blur * conditions.scale))
    noise = rng.uniform(0, 7) if conditions.noise is None else conditions.noise
    grain = draws.standard_normal((size, size, 1), dtype=np.float32) * noise
    pixels = (np.asarray(canvas, dtype=np.float32) + grain).clip(0, 255).astype(np.uint8)
    return Picture(pixels, mask, tuple(boxes))


def as_upload(pixels: Pixels, quality: int | None) -> Pixels:
    """What the model sees of a larger picture: stored as JPEG (None: losslessly), then squeezed to SIZE x SIZE by
    bicubic resizing."""
    image = Image.fromarray(pixels)
    if quality is not None:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = Image.open(buffer).convert("RGB")
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BICUBIC))


def _background(rng: random.Random, draws: np.random.Generator, size: int) -> Image.Image:
    """A plain, graded or mottled ground of one grey level, tinted."""
    kind, grey = rng.random(), rng.uniform(15, 250)

    def tint() -> NDArray[np.float64]:
        return np.clip(grey + np.array([rng.uniform(-32, 32) for _ in range(3)]), 0, 255)

    if kind < 0.45:
        return Image.new("RGB", (size, size), tuple(int(v) for v in tint()))
    if kind < 0.75:
        ramp = np.linspace(0, 1, size)
        ramp = ramp[:, None, None] if rng.random() < 0.5 else ramp[None, :, None]
        field = np.broadcast_to(tint() * (1 - ramp) + tint() * ramp, (size, size, 3))
        return Image.fromarray(field.astype(np.uint8))
    cells = rng.choice([4, 8, 16])
    spots = (tint() + draws.normal(0, rng.uniform(5, 28), (cells, cells, 3))).clip(0, 255).astype(np.uint8)
    return Image.fromarray(spots).resize((size, size), Image.Resampling.BILINEAR)


@cache
def _sprite(name: str, style: str) -> Image.Image:
    with Image.open(world.WORLD_DIR / "sprites" / world.BY_NAME[name].files[style]) as file:
        return file.convert("RGBA")


def _sprite_tile(thing: Thing, rng: random.Random, conditions: Conditions) -> Image.Image:
    """The sprite, perhaps mirrored, turned by up to 18 degrees and recoloured, as large as its slot allows."""
    tile = _sprite(thing.name, thing.style)
    if rng.random() < 0.5:
        tile = tile.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    large = conditions.scale > 1
    if large:  # enlarge before turning, or the turned edge shows steps
        side = 2 * thing.side * conditions.scale
        tile = tile.resize((side, side * tile.height // tile.width), Image.Resampling.LANCZOS)
    if rng.random() < 0.6:
        tile = tile.rotate(
            rng.uniform(-18, 18), Image.Resampling.BICUBIC if large else Image.Resampling.BILINEAR, expand=True
        )
    ratio = thing.side * conditions.scale / max(tile.size)
    width, height = tile.width * ratio * min(1.0, conditions.squash), tile.height * ratio / max(1.0, conditions.squash)
    tile = tile.resize(
        (max(2, round(width)), max(2, round(height))),
        Image.Resampling.LANCZOS if large else Image.Resampling.BILINEAR,
        reducing_gap=1.5,
    )
    if rng.random() < 0.5:
        tile = _recolour(tile, rng, conditions.jitter)
    return tile


def _recolour(tile: Image.Image, rng: random.Random, jitter: float) -> Image.Image:
    """Change contrast, brightness and the balance of colours a little (times `jitter`)."""
    values = np.asarray(tile).astype(np.float32)
    contrast = 1 + (rng.uniform(0.85, 1.12) - 1) * jitter
    shift = (rng.uniform(-14, 14) + np.array([rng.uniform(-8, 8) for _ in range(3)])) * jitter
    values[..., :3] = ((values[..., :3] - 128) * contrast + 128 + shift).clip(0, 255)
    return Image.fromarray(values.astype(np.uint8))


def _shape_tile(thing: Thing, rng: random.Random, conditions: Conditions) -> Image.Image:
    """The coloured form, drawn at twice its size and reduced: smooth edges."""
    side = thing.side * conditions.scale
    tile = Image.new("RGBA", (2 * side, 2 * side), (0, 0, 0, 0))
    pen = ImageDraw.Draw(tile)
    red, green, blue = (max(0, min(255, int(v + rng.uniform(-14, 14)))) for v in world.COLOURS[thing.colour])
    if thing.form == "circle":
        pen.ellipse([side * 0.1, side * 0.1, side * 1.9, side * 1.9], fill=(red, green, blue, 255))
    else:
        pen.polygon(_outline(thing.form, side, side * 0.87), fill=(red, green, blue, 255))
    tile = tile.reduce(2)
    if conditions.squash != 1:
        width, height = tile.width * min(1.0, conditions.squash), tile.height / max(1.0, conditions.squash)
        tile = tile.resize((round(width), round(height)), Image.Resampling.BILINEAR)
    return tile


def _outline(form: str, centre: float, radius: float) -> list[tuple[float, float]]:
    """Corners of a form around (centre, centre)."""
    if form == "square":
        unit = [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]
    elif form == "triangle":
        unit = [(0.0, -1.0), (0.95, 0.75), (-0.95, 0.75)]
    elif form == "diamond":
        unit = [(0.0, -1.1), (0.8, 0.0), (0.0, 1.1), (-0.8, 0.0)]
    elif form == "star":
        reach = [1.1 if k % 2 == 0 else 0.45 for k in range(10)]
        turn = [-math.pi / 2 + k * math.pi / 5 for k in range(10)]
        unit = [(r * math.cos(t), r * math.sin(t)) for r, t in zip(reach, turn, strict=True)]
    elif form == "cross":
        a, b = 1.0, 0.36
        quarter = [
            (-b, -a),
            (b, -a),
            (b, -b),
            (a, -b),
            (a, b),
            (b, b),
            (b, a),
            (-b, a),
            (-b, b),
            (-a, b),
            (-a, -b),
            (-b, -b),
        ]
        unit = quarter
    else:
        raise ValueError(f"unknown form {form!r}; one of {', '.join(world.SHAPES)}")
    return [(centre + radius * x, centre + radius * y) for x, y in unit]
