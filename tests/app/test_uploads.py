"""Intake: one picture, upright, 8 bit, RGB — or a sentence that says why not."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.uploads import BadPicture, Limits, Normalised, TooLarge, normalise, to_png
from tests.support import ROOT

LIMITS = Limits(20 * 2**20, 64_000_000, 2048)


def read(pictures: Path, name: str, limits: Limits = LIMITS) -> Normalised:
    return normalise((pictures / name).read_bytes(), limits)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_one_picture(pictures: Path, orientation: int) -> None:
    upright = read(pictures, "ok.png")
    turned = read(pictures, f"exif_{orientation}.png")
    assert turned.hash == upright.hash
    assert turned.notes == (() if orientation == 1 else ("turned upright by its EXIF orientation",))
    jpeg = read(pictures, f"exif_{orientation}.jpg")
    assert jpeg.pixels.shape == upright.pixels.shape
    assert np.abs(jpeg.pixels.astype(int) - upright.pixels).mean() < 2, "JPEG is lossy, but not that lossy"


def test_sixteen_bits_keep_their_levels(pictures: Path) -> None:
    ramp = read(pictures, "ramp16.png")
    assert len(np.unique(ramp.pixels)) >= 250
    assert ramp.notes == ("scaled to 8 bit from the window 0 … 65535",)


def test_a_narrow_sixteen_bit_window_is_said() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(1000, 5000, 64 * 64).reshape(64, 64).astype(np.uint16)).save(buffer, "PNG")
    picture = normalise(buffer.getvalue(), LIMITS)
    assert picture.notes == ("scaled to 8 bit from the window 1000 … 5000",)
    assert (picture.pixels.min(), picture.pixels.max()) == (0, 255)


@pytest.mark.parametrize("name", ["gray.png", "bilevel.png", "la.png", "palette.png", "cmyk.jpg", "ok.jpg"])
def test_every_mode_becomes_rgb(pictures: Path, name: str) -> None:
    assert read(pictures, name).pixels.shape == (240, 320, 3)


def test_alpha_is_laid_on_white_and_said() -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(buffer, "PNG")
    picture = normalise(buffer.getvalue(), LIMITS)
    assert picture.pixels.min() == 255
    assert picture.notes == ("transparent parts laid on white",)


@pytest.mark.parametrize("name", ["anim.gif", "anim.webp", "anim.png"])
def test_an_animation_is_its_first_frame(pictures: Path, name: str) -> None:
    picture = read(pictures, name)
    assert picture.notes == ("frame 1 of 3",)
    red, green, blue = picture.pixels.reshape(-1, 3).mean(axis=0)
    assert red > 200 > 60 > max(green, blue)


def test_the_name_of_a_file_plays_no_part(pictures: Path, tmp_path: Path) -> None:
    assert normalise((pictures / "anim.gif").read_bytes(), LIMITS).width == 64
    assert normalise((pictures / "ok.png").read_bytes(), LIMITS).hash == read(pictures, "ok.png").hash


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("empty.png", "empty"),
        ("truncated.jpg", "damaged"),
        ("text_as.png", "not a picture"),
        ("script.svg", "SVG"),
        ("svg_as.png", "SVG"),
        ("size_4000x19.png", "4000 × 19"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(pictures: Path, name: str, sentence: str) -> None:
    with pytest.raises(BadPicture, match=sentence) as caught:
        read(pictures, name)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["ok.png", "ok.jpg", "anim.gif", "anim.webp", "ramp16.png", "la.png", "exif_6.jpg"])
def test_broken_bytes_are_a_picture_or_a_sentence(pictures: Path, name: str) -> None:
    """Cut and flipped at random places (seeded): never any other exception."""
    whole = (pictures / name).read_bytes()
    noise = np.random.default_rng(0)
    sentences = []
    for _ in range(30):
        data = bytearray(whole[: noise.integers(1, len(whole) + 1)])
        for place in noise.integers(0, len(data), 3):
            data[place] = noise.integers(0, 256)
        try:
            assert normalise(bytes(data), LIMITS).pixels.ndim == 3
        except BadPicture as refused:
            sentences.append(str(refused))
    assert sentences
    assert all(sentence.endswith(".") for sentence in sentences)


def test_a_long_picture_is_scaled_down_and_said(pictures: Path) -> None:
    picture = read(pictures, "size_690x15420.png")
    assert (picture.width, picture.height) == (92, 2048)
    assert picture.notes == ("scaled down from 690 × 15420 to 92 × 2048 pixels",)


def test_limits_name_limit_value_and_remedy(pictures: Path) -> None:
    with pytest.raises(TooLarge, match=r"at most 0 MB.*Save it smaller"):
        read(pictures, "ok.png", Limits(100, 10**6, 100))
    with pytest.raises(TooLarge, match=r"320 × 240.*Scale it down"):
        read(pictures, "ok.png", Limits(10**6, 1000, 100))


def test_a_decompression_bomb_is_refused_before_it_is_decoded() -> None:
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(TooLarge):
        normalise(buffer.getvalue(), LIMITS)


def test_a_large_jpeg_is_decoded_small_and_its_size_is_said() -> None:
    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((1600, 1200)).save(buffer, "JPEG", exif=turned_left())
    picture = normalise(buffer.getvalue(), Limits(10**8, 10**8, 200))
    assert (picture.width, picture.height) == (150, 200)
    assert picture.notes[1] == "scaled down from 1200 × 1600 to 150 × 200 pixels"
    plain = normalise(buffer.getvalue(), LIMITS)
    small = np.asarray(Image.fromarray(plain.pixels).resize((150, 200), Image.Resampling.LANCZOS), int)
    assert np.abs(small - picture.pixels).mean() < 2


def turned_left() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


MEASURE = """
import io, re, sys, numpy as np
from pathlib import Path
from PIL import Image
from app.uploads import Limits, normalise

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

levels = np.arange(16_000_000, dtype=np.uint16).reshape(4000, 4000)
image = Image.fromarray(levels) if sys.argv[1] == "I;16" else Image.new("RGBA", (4000, 4000), (9, 9, 9, 9))
buffer = io.BytesIO()
image.save(buffer, "PNG", compress_level=1)
del image, levels
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
normalise(buffer.getvalue(), Limits(10**9, 10**9, 1024))
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux counts it")
@pytest.mark.parametrize(("mode", "megabytes"), [("I;16", 75), ("RGBA", 125)])
def test_a_picture_takes_little_memory(mode: str, megabytes: int) -> None:
    """16 megapixels, a quarter of the limit, so that the largest picture takes less than four times as much: 64 MB as
    Pillow holds RGBA (32 MB of 16 bit), and the 8-bit picture on top of it."""
    command = [sys.executable, "-c", MEASURE, mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) < megabytes


def test_what_is_stored_is_what_was_read(pictures: Path) -> None:
    picture = read(pictures, "palette.png")
    again = normalise(to_png(picture.pixels), LIMITS)
    assert again.hash == picture.hash
    assert again.notes == ()
