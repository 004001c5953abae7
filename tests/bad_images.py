"""A corpus of awkward images, made here: each with the picture that must come out, or the reason why none does."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

__all__ = ["CORPUS", "Case", "upright_picture"]

HEIGHT, WIDTH = 20, 28


@dataclass(frozen=True)
class Case:
    """A file, and its row: size and one pixel near the centre of the top left quarter, or the error's words."""

    name: str
    data: bytes
    size: tuple[int, int] | None = None
    pixel: tuple[int, int, int] | None = None
    error: str = ""


def upright_picture() -> Image.Image:
    """Four quarters of four colours: any turn or flip shows."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[: HEIGHT // 2, : WIDTH // 2] = (200, 40, 40)
    pixels[: HEIGHT // 2, WIDTH // 2 :] = (40, 200, 40)
    pixels[HEIGHT // 2 :, : WIDTH // 2] = (40, 40, 200)
    pixels[HEIGHT // 2 :, WIDTH // 2 :] = (220, 220, 60)
    return Image.fromarray(pixels)


RED = (200, 40, 40)


def _save(image: Image.Image, format: str, **options) -> bytes:  # noqa: A002 — Pillow's word
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def _turned(orientation: int, format: str = "PNG") -> bytes:  # noqa: A002
    """The picture stored so that this orientation sets it upright."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright_picture()
    if orientation in undo:
        stored = stored.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    return _save(stored, format, exif=exif)


def _png_stub(width: int, height: int) -> bytes:
    """A PNG that claims this size and holds no pixels."""
    data = b"\x89PNG\r\n\x1a\n"
    for body in (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"):
        data += struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return data


def _corpus() -> list[Case]:
    picture, size = upright_picture(), (HEIGHT, WIDTH)
    png, jpeg = _save(picture, "PNG"), _save(picture, "JPEG", quality=100, subsampling=0)
    half_clear = picture.convert("RGBA")
    half_clear.putalpha(128)
    over_white = (227, 147, 147)  # 128/255 of red over white
    palette = picture.quantize(8)
    gray16 = np.full(size, 25_700, np.uint16)  # 25,700 / 257 = 100
    unit = np.full(size, 0.4, np.float32)  # × 255 = 102
    holes = unit.copy()
    holes[0, 0] = np.nan
    frames = {"save_all": True, "append_images": [Image.new("RGB", (WIDTH, HEIGHT), (0, 0, 0))]}
    broken_exif = jpeg[:2] + b"\xff\xe1\x00\x10Exif\x00\x00MM\x00*\xff\xff\xff\xff" + jpeg[2:]
    good = [
        Case("plain.png", png, size, RED),
        Case("plain.jpg", jpeg, size, RED),
        Case("named-wrongly.jpg", png, size, RED),
        Case("plain.webp", _save(picture, "WEBP", lossless=True), size, RED),
        Case("plain.avif", _save(picture, "AVIF", quality=100, subsampling="4:4:4"), size, RED),
        Case("plain.bmp", _save(picture, "BMP"), size, RED),
        Case("plain.tiff", _save(picture, "TIFF"), size, RED),
        Case("plain.ppm", _save(picture, "PPM"), size, RED),
        Case("one-bit.png", _save(Image.new("1", (WIDTH, HEIGHT), 1), "PNG"), size, (255, 255, 255)),
        Case("gray.png", _save(Image.new("L", (WIDTH, HEIGHT), 77), "PNG"), size, (77, 77, 77)),
        Case("alpha.png", _save(half_clear, "PNG"), size, over_white),
        Case("alpha.webp", _save(half_clear, "WEBP", lossless=True), size, over_white),
        Case("clear.png", _save(Image.new("RGBA", (WIDTH, HEIGHT), (9, 9, 9, 0)), "PNG"), size, (255, 255, 255)),
        Case("gray-alpha.png", _save(Image.new("LA", (WIDTH, HEIGHT), (0, 0)), "PNG"), size, (255, 255, 255)),
        Case("palette.png", _save(palette, "PNG"), size, RED),
        Case("palette-clear.png", _save(palette, "PNG", transparency=bytes([0] * 8)), size, (255, 255, 255)),
        Case("colour-key.png", _save(picture, "PNG", transparency=RED), size, (255, 255, 255)),
        Case("cmyk.jpg", _save(Image.new("CMYK", (WIDTH, HEIGHT)), "JPEG"), size, (255, 255, 255)),
        Case("cmyk.tiff", _save(Image.new("CMYK", (WIDTH, HEIGHT), (0, 255, 255, 0)), "TIFF"), size, (255, 0, 0)),
        Case("gray16.png", _save(Image.fromarray(gray16), "PNG"), size, (100, 100, 100)),
        Case("gray16.tiff", _save(Image.fromarray(gray16), "TIFF"), size, (100, 100, 100)),
        Case("gray16.pgm", _save(Image.fromarray(gray16), "PPM"), size, (100, 100, 100)),
        Case("int32.tiff", _save(Image.fromarray(gray16.astype(np.int32)), "TIFF"), size, (100, 100, 100)),
        Case("float.tiff", _save(Image.fromarray(unit), "TIFF"), size, (102, 102, 102)),
        Case("float-255.tiff", _save(Image.fromarray(unit * 200), "TIFF"), size, (80, 80, 80)),
        Case("float-nan.tiff", _save(Image.fromarray(holes), "TIFF"), size, (102, 102, 102)),
        Case("moving.gif", _save(picture, "GIF", **frames), size, RED),
        Case("moving.webp", _save(picture, "WEBP", **frames, lossless=True), size, RED),
        Case("moving.png", _save(picture, "PNG", **frames), size, RED),
        Case("pages.tiff", _save(picture, "TIFF", **frames), size, RED),
        Case("broken-exif.jpg", broken_exif, size, RED),
        Case("broken-icc.png", _save(picture, "PNG", icc_profile=b"not a profile"), size, RED),
        Case("bad-orientation.png", _turned(9), size, RED),
        Case("one-pixel.png", _save(Image.new("RGB", (1, 1), RED), "PNG"), (1, 1), RED),
        Case("thin.png", _save(Image.new("RGB", (20_000, 1), RED), "PNG"), (1, 20_000), RED),
        *(Case(f"orientation-{turn}.png", _turned(turn), size, RED) for turn in range(1, 9)),
        *(Case(f"orientation-{turn}.tiff", _turned(turn, "TIFF"), size, RED) for turn in range(1, 9)),
    ]
    bad = [
        Case("empty.jpg", b"", error="empty"),
        Case("text.jpg", b"this is no picture", error="not a readable image"),
        Case(
            "drawing.png",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>",
            error="not a readable image",
        ),
        Case("heic.jpg", b"\0\0\0\x18ftypheic" + bytes(32), error="HEIC cannot be decoded; save it as JPEG"),
        Case("truncated.png", png[: len(png) * 2 // 3], error="damaged PNG"),
        Case("truncated.jpg", jpeg[:-40], error="damaged JPEG"),
        Case("cut-header.jpg", jpeg[: len(jpeg) // 2], error="unreadable header"),
        Case("no-data.png", _png_stub(9, 9), error="damaged PNG"),
        Case("no-pixels.png", _png_stub(0, 0), error="not a readable image"),
        Case("page.pdf", b"%PDF-1.4\n", error="not a readable image"),
        Case("program.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", error="not a readable image"),
        Case("bomb-12000.png", _png_stub(12_000, 12_000), error="144,000,000 pixels"),
        Case("bomb-60000.png", _png_stub(60_000, 60_000), error="pixels"),
    ]
    return good + bad


CORPUS = _corpus()
