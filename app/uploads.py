"""What a picture must survive before anything else sees it.

`normalise()` turns the bytes of a file into *the* picture: upright, 8 bit, RGB, first frame, at most `max_side` on a
side. The same pixels are hashed, stored, shown, processed by the model and overlaid with heat maps. Whatever was done
to get there is said in `notes`. What cannot be read raises BadPicture with a sentence for a person.
"""

import dataclasses
import hashlib
import io
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
ACCEPT = "image/png,image/jpeg,image/webp,image/gif,image/bmp,image/tiff"
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
EXTREME = 100
"""Long side over short side from which a picture is refused: scaled down to what a model sees, it would be a line."""

DECODERS = threading.BoundedSemaphore(2)
"""Pictures that are decoded at once. A picture of 64 megapixels takes 256 MB in Pillow's memory (128 MB with 16 bit);
what is made of it on the way is made in strips: at most about 470 MB for one picture."""
STRIP = 64
"""Rows that are converted at once."""

Pixels = npt.NDArray[np.uint8]


class BadPicture(Exception):
    """The file is not a picture that can be used; the message says why and what to do."""


class TooLarge(BadPicture):
    """The file or the picture is over a limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """`nbytes` of the file, `pixels` of the picture as it is stored in the file, `side` after scaling down."""

    nbytes: int
    pixels: int
    side: int

    def __str__(self) -> str:
        return (
            f"PNG, JPEG, WebP, GIF, BMP or TIFF, at most {self.nbytes / 2**20:.0f} MB and {self.pixels // 10**6} "
            f"megapixels; larger sides than {self.side} pixels are scaled down"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Normalised:
    """`pixels` (height, width, 3) uint8 RGB, upright. `hash` identifies exactly these pixels."""

    pixels: Pixels
    hash: str
    notes: tuple[str, ...]

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])


def normalise(data: bytes, limits: Limits) -> Normalised:
    """The one picture in these bytes (see the module's docstring). Raises BadPicture."""
    if not data:
        raise BadPicture("The file is empty. Choose a picture file.")
    if len(data) > limits.nbytes:
        raise TooLarge(
            f"The file has {len(data) / 2**20:.1f} MB; at most {limits.nbytes / 2**20:.0f} MB are taken. "
            "Save it smaller or as a JPEG."
        )
    notes: list[str] = []
    with DECODERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about bombs (limits.pixels decides) and about odd but readable metadata
        image = _open(data, limits)
        try:
            image = _first_frame(image, notes)
            stored = _drafted(image, limits.side)
            image.load()
            image, stored = _upright(image, stored, notes)
            converted = _eight_bit(image, notes)
            if converted is not image:
                image.close()  # gives its memory back before anything is scaled
            pixels = _scaled_down(converted, stored, limits.side, notes)
        except BadPicture:
            raise
        except Image.DecompressionBombError:
            raise _too_many_pixels(image.size, limits) from None
        except Exception as error:
            # Decoders raise many kinds of errors for broken data; all mean the same to the person who chose the file.
            raise BadPicture(
                "The picture is damaged: its data end early or are broken. Save it again, or choose another file."
            ) from error
    return Normalised(pixels, pixel_hash(pixels), tuple(notes))


def pixel_hash(pixels: Pixels) -> str:
    """SHA-256 over shape and pixels."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def to_png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _open(data: bytes, limits: Limits) -> Image.Image:
    """Read the header and apply the limits, before anything is decoded. The file's name plays no part."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(None, limits) from None
    except Exception as error:
        raise BadPicture(_not_a_picture(data)) from error
    width, height = image.size
    if not width or not height:
        raise BadPicture("The picture has no pixels. Choose another file.")
    if width * height > limits.pixels:
        raise _too_many_pixels(image.size, limits)
    if max(width, height) > EXTREME * min(width, height):
        raise BadPicture(
            f"The picture is {width} × {height} pixels: one side is more than {EXTREME} times the other, so that the "
            "model would see a line. Cut out the part that matters."
        )
    return image


def _too_many_pixels(size: tuple[int, int] | None, limits: Limits) -> TooLarge:
    what = f"is {size[0]} × {size[1]} pixels" if size else "has far more pixels than it should"
    return TooLarge(f"The picture {what}; at most {limits.pixels // 10**6} megapixels are taken. Scale it down.")


def _not_a_picture(data: bytes) -> str:
    head = data[:512].lstrip().lower()
    if b"<svg" in head or head.startswith(b"<?xml"):
        return "SVG drawings are not taken. Export the drawing as a PNG and choose that."
    if head.startswith(b"%pdf"):
        return "This is a PDF, not a picture. Export the page as a PNG or JPEG and choose that."
    if b"ftyphei" in head or b"ftypmif1" in head or b"ftypavif" in head:
        return "HEIC and AVIF pictures are not taken. Save the photo as a JPEG and choose that."
    return "The file is not a picture that can be read. Choose a PNG, JPEG, WebP, GIF, BMP or TIFF file."


def _first_frame(image: Image.Image, notes: list[str]) -> Image.Image:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # an MPO's further frames are previews or depth maps, not an animation
        image.seek(0)
        notes.append(f"frame 1 of {frames}")
    return image


def _drafted(image: Image.Image, side: int) -> tuple[int, int]:
    """Have a JPEG decoded at a half, quarter or eighth of its size where that is still enough; its size as stored."""
    stored = image.size
    if image.format == "JPEG" and max(stored) >= 2 * side:
        factor = side / max(stored)
        image.draft(None, (max(1, round(stored[0] * factor)), max(1, round(stored[1] * factor))))
    return stored


def _upright(image: Image.Image, stored: tuple[int, int], notes: list[str]) -> tuple[Image.Image, tuple[int, int]]:
    """The picture and its size as stored, both turned by its EXIF orientation."""
    orientation = image.getexif().get(0x0112, 1)
    if orientation in (0, 1):
        return image, stored
    notes.append("turned upright by its EXIF orientation")
    return ImageOps.exif_transpose(image), stored[::-1] if orientation in range(5, 9) else stored


def _eight_bit(image: Image.Image, notes: list[str]) -> Image.Image | Pixels:
    """The same picture in 8 bit: as it is (L, RGB), else converted in strips to an array (height, width) of grey or
    (height, width, 3) of RGB."""
    if image.mode in SIXTEEN_BIT:
        return _window(image, notes)
    transparent = image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info
    if image.mode in ("L", "RGB") and not transparent:
        return image
    if image.mode == "CMYK":
        notes.append("converted from CMYK")
    made = np.empty((image.height, image.width, 3), np.uint8)
    seen_through = False
    for top, strip in _strips(image):
        opaque = strip
        if transparent:
            layer = strip.convert("RGBA")
            seen_through |= bool(np.asarray(layer.getchannel("A")).min() < 255)
            opaque = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        made[top : top + strip.height] = np.asarray(opaque.convert("RGB"))
    if seen_through:
        notes.append("transparent parts laid on white")
    return made


def _window(image: Image.Image, notes: list[str]) -> Pixels:
    """Scale a picture of more than 8 bits to 8: 0 … 65535 if its values use that range, else its own minimum …
    maximum."""
    ends: list[float] = []
    for _, strip in _strips(image):
        values = np.asarray(strip)
        finite = values[np.isfinite(values)]
        ends += [float(finite.min()), float(finite.max())] if finite.size else []
    if not ends:
        raise BadPicture("The picture has no finite values. Save it as an 8-bit or 16-bit picture.")
    low, high = min(ends), max(ends)
    if image.mode != "F" and low >= 0 and 32767 < high <= 65535:
        low, high = 0.0, 65535.0
    elif image.mode == "I" and low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    made = np.empty((image.height, image.width), np.uint8)
    for top, strip in _strips(image):
        values = np.asarray(strip).astype(np.float64)
        scaled = np.where(np.isfinite(values), (values - low) / max(high - low, 1e-12) * 255, 0)
        made[top : top + strip.height] = np.rint(scaled.clip(0, 255))
    notes.append(f"scaled to 8 bit from the window {low:g} … {high:g}")
    return made


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """(first row, the rows from there on), from top to bottom."""
    for top in range(0, image.height, STRIP):
        yield top, image.crop((0, top, image.width, min(top + STRIP, image.height)))


def _scaled_down(picture: Image.Image | Pixels, stored: tuple[int, int], side: int, notes: list[str]) -> Pixels:
    """(height, width, 3). An array is scaled channel by channel, which gives the same and needs a third of the room."""
    size = stored
    if max(stored) > side:
        factor = side / max(stored)
        size = max(1, round(stored[0] * factor)), max(1, round(stored[1] * factor))
        notes.append(f"scaled down from {stored[0]} × {stored[1]} to {size[0]} × {size[1]} pixels")
    if isinstance(picture, Image.Image):
        scaled = picture if picture.size == size else picture.resize(size, Image.Resampling.LANCZOS)
        return np.asarray(scaled.convert("RGB"), np.uint8)
    channels = [picture] if picture.ndim == 2 else [picture[..., channel] for channel in range(3)]
    if size != (picture.shape[1], picture.shape[0]):
        channels = [
            np.asarray(Image.fromarray(np.ascontiguousarray(channel)).resize(size, Image.Resampling.LANCZOS))
            for channel in channels
        ]
    return np.stack(channels if len(channels) == 3 else 3 * channels, axis=2)
