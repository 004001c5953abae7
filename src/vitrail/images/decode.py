"""Decode any bytes to upright uint8 pixels (height, width, channel), or raise an `ImageError` in one line.

The rules for every part of vitrail:

    formats      JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF, PNM; recognised by content, not by name
    size         at most `max_pixels`, checked in the header before decoding
    orientation  EXIF 1–8 is applied
    depth        16-bit and float images are scaled to 8 bits, not clipped (see `_to_bytes`)
    alpha        composited on `background` (default: white)
    animation    the first frame or page
    colour       CMYK, Lab and palettes become RGB; embedded profiles are not applied
"""

from __future__ import annotations

import io
import stat
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = [
    "FORMATS",
    "MAX_PIXELS",
    "ImageError",
    "Pixels",
    "decode",
    "decode_at_least",
    "peek",
    "pixels_of",
    "read_file",
]

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Brands of the HEIC container, which phones write and Pillow cannot decode."""
MAX_PIXELS = 2**26
"""8192 × 8192, below Pillow's own limit for decompression bombs."""

WHITE = (255, 255, 255)
ORIENTATION = 0x0112

Pixels = NDArray[np.uint8]
"""(height, width, channel)"""

# exceptions that Pillow's decoders raise on damaged input; each plugin fails in its own way
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    AttributeError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
)
_QUIET = threading.Lock()


class ImageError(VitrailError):
    """Raised for a file that cannot be decoded; the message gives its name, the reason and a remedy."""


def decode(
    source: str | Path | bytes,
    *,
    channels: Literal[1, 3] = 3,
    background: tuple[int, int, int] = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Decode a file or bytes to uint8 pixels (height, width, channels)."""
    return decode_at_least(source, None, channels=channels, background=background, max_pixels=max_pixels)[0]


def decode_at_least(
    source: str | Path | bytes,
    least: Size | None,
    *,
    channels: Literal[1, 3] = 3,
    background: tuple[int, int, int] = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Pixels, Size]:
    """Decode to pixels; return them and the full upright size.

    A JPEG larger than `least` may be decoded at 1/2, 1/4 or 1/8 of its size, but not below `least` on either side,
    which skips the finest frequencies. With None, and in other formats, the image has its full size.
    """
    require(channels in (1, 3), f"channels {channels} is not 1 or 3; use one of them")
    with _opened(source, max_pixels) as (image, name):
        try:
            height, width = image.height, image.width
            if least is not None and image.format == "JPEG":
                rotated = _orientation(image) >= 5
                image.draft(None, (least.height, least.width) if rotated else (least.width, least.height))
            # only TIFF warns while it loads, and suppressing warnings would serialise threads for the others
            with _without_warnings() if image.format == "TIFF" else nullcontext():
                image.load()
            pixels = _to_bytes(image, background, channels)
            orientation = _orientation(image)
            if image.format == "TIFF":  # Pillow applies its orientation while it loads
                height, width = image.height, image.width
        except _DAMAGE as error:
            raise ImageError(f"{name}: damaged {image.format} ({_reason(error)}); replace or remove it") from error
    return _upright(pixels, orientation), Size(width, height) if orientation >= 5 else Size(height, width)


def pixels_of(image: Image.Image, *, channels: Literal[1, 3] = 3, background: tuple[int, int, int] = WHITE) -> Pixels:
    """Return an open Pillow image as `decode` would return its file: upright, 8 bits, without alpha."""
    return _upright(_to_bytes(image, background, channels), _orientation(image))


def peek(source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS) -> Size:
    """Return the upright size, from the header alone."""
    with _opened(source, max_pixels) as (image, _):
        # Pillow applies a TIFF's orientation itself, and its size is already the upright one
        rotated = image.format != "TIFF" and _orientation(image) >= 5
        return Size(*image.size) if rotated else Size(image.height, image.width)


@contextmanager
def _opened(source: str | Path | bytes, max_pixels: int) -> Iterator[tuple[Image.Image, str]]:
    name, data = read_file(source)
    try:
        with _without_warnings():
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp" and data[8:12] in HEIC:
            raise ImageError(f"{name}: HEIC cannot be decoded; save it as JPEG, e.g. with heif-convert") from None
        raise ImageError(f"{name}: not a readable image; use one of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name}: more than {max_pixels:,} pixels; tile it or shrink it first") from None
    except _DAMAGE as error:
        raise ImageError(f"{name}: unreadable header ({_reason(error)}); replace or remove it") from error
    with image:
        if min(image.size) < 1:
            raise ImageError(f"{name}: {image.height}x{image.width} has no pixels; replace or remove it")
        if image.width * image.height > max_pixels:
            raise ImageError(
                f"{name}: {image.height}x{image.width} is {image.width * image.height:,} pixels, "
                f"more than the limit of {max_pixels:,}; tile it, shrink it, or raise max_pixels"
            )
        yield image, name


def read_file(source: str | Path | bytes) -> tuple[str, bytes]:
    """Return a name for messages and the bytes of an image file; raise ImageError if it cannot be read."""
    if isinstance(source, bytes):
        name, data = "image", source
    else:
        name = str(source)
        try:
            if not stat.S_ISREG(Path(source).stat().st_mode):  # reading a pipe or a device might never end
                raise ImageError(f"{name}: not a file; give an image")
            data = Path(source).read_bytes()
        except OSError as error:
            raise ImageError(f"{name}: cannot be read ({error.strerror}); check the path") from None
    if not data:
        raise ImageError(f"{name}: empty, 0 bytes; replace or remove it")
    return name, data


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress Pillow's warnings about what is checked here. Warning filters are global, so one thread at a time."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:120] if text else type(error).__name__


# ── orientation ─────────────────────────────────────────────────────────────────────────────────────────────────


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if it is missing or unreadable."""
    try:
        with _without_warnings():
            # the base class's method: PNG's would decode the whole image to look for a late chunk
            value = Image.Image.getexif(image).get(ORIENTATION, 1)
    except _DAMAGE:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    if orientation >= 5:  # stored on its side
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


# ── depth and colour ────────────────────────────────────────────────────────────────────────────────────────────


def _to_bytes(image: Image.Image, background: tuple[int, int, int], channels: int) -> Pixels:
    """Convert to 8 bits per channel. Wide integers and floats are scaled from the smallest range that contains them.

    16-bit: 0 … 65535. Float: 0 … 1, 0 … 255, 0 … 65535, or else the image's minimum … maximum; NaN becomes black.
    32-bit integers are scaled like floats, but never from 0 … 1.
    """
    if image.mode.startswith("I;16"):
        return _spread(_scaled(np.asarray(image), 65535.0), channels)
    if image.mode in ("I", "F"):
        return _spread(_by_range(image), channels)
    if image.mode in ("P", "PA", "LA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (*background, 255)), image)
    mode = "L" if channels == 1 else "RGB"
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels.reshape(*pixels.shape[:2], channels)


def _by_range(image: Image.Image) -> NDArray[np.uint8]:
    values = np.asarray(image, dtype=np.float64)
    finite = values[np.isfinite(values)]
    lowest, highest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    values = np.nan_to_num(values, nan=min(lowest, 0.0), posinf=highest, neginf=lowest)
    if image.format == "PPM":  # Pillow scales it to 16 bits
        return _scaled(values, 65535.0)
    if lowest >= 0:
        for top in (1.0, 255.0, 65535.0)[image.mode == "I" :]:
            if highest <= top:
                return _scaled(values, top)
    return _scaled(values - lowest, max(highest - lowest, 1.0))


def _scaled(values: NDArray, top: float) -> NDArray[np.uint8]:
    return np.rint(values * (255.0 / top)).clip(0, 255).astype(np.uint8)


def _spread(gray: NDArray[np.uint8], channels: int) -> Pixels:
    return np.repeat(gray[:, :, None], channels, axis=2)
