"""Text for pictures, without font files: Pillow's own font knows ASCII, and the letters of Europe are composed from it.

A letter such as ü is drawn as u and two dots. Other scripts need a font of the system; without one they appear as "?".
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence

from PIL import Image, ImageDraw, ImageFont

Stroke = tuple[tuple[float, float], ...]

SYSTEM_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf", "arial.ttf", "segoeui.ttf")
PLAIN = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "‐": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "▁": "_", "…": "..."}
)
MARKS: dict[str, tuple[Stroke, ...]] = {  # across: shares of the letter's width; up: x-heights above the letter
    "\u0300": (((0.36, 0.28), (0.58, 0.04)),),
    "\u0301": (((0.42, 0.04), (0.64, 0.28)),),
    "\u0302": (((0.26, 0.04), (0.5, 0.26), (0.74, 0.04)),),
    "\u0303": (((0.2, 0.06), (0.38, 0.2), (0.62, 0.1), (0.8, 0.24)),),
    "\u0304": (((0.22, 0.14), (0.78, 0.14)),),
    "\u0307": (((0.49, 0.14), (0.51, 0.14)),),
    "\u0308": (((0.25, 0.14), (0.27, 0.14)), ((0.73, 0.14), (0.75, 0.14))),
    "\u030a": (((0.5, 0.0), (0.66, 0.14), (0.5, 0.28), (0.34, 0.14), (0.5, 0.0)),),
    "\u030c": (((0.26, 0.26), (0.5, 0.04), (0.74, 0.26)),),
}
SHARP_S: tuple[Stroke, ...] = (  # in x-heights from the base line
    ((0.14, 0.06), (0.14, 1.08), (0.2, 1.27), (0.38, 1.37), (0.57, 1.28), (0.63, 1.1), (0.57, 0.93), (0.4, 0.8)),
    ((0.4, 0.8), (0.62, 0.68), (0.74, 0.45), (0.68, 0.2), (0.51, 0.08), (0.33, 0.1)),
)


def written(text: str, pixels: int) -> Image.Image:
    """One line of text as a grey picture, of full line height and as wide as the text."""
    font = ImageFont.load_default(pixels)
    assert isinstance(font, ImageFont.FreeTypeFont)  # with a size, the default is one
    letters = list(_letters(text))
    if not all(map(_drawable, letters)):
        if other := _system_font(text, pixels):
            font, letters = other, [text]
        else:
            letters = [letter if _drawable(letter) else "?" for letter in letters]
    if all(len(letter) == 1 and letter != "ß" for letter in letters):
        letters = ["".join(letters)]  # in one go, with the font's own spacing
    ascent, descent = font.getmetrics()
    above = math.ceil(0.15 * pixels)  # room for marks on capitals
    widths = [_advance(font, letter) for letter in letters]
    image = Image.new("L", (math.ceil(sum(widths)) + 2, ascent + descent + 2 * above), 0)
    draw, x = ImageDraw.Draw(image), 1.0
    for letter, width in zip(letters, widths, strict=True):
        _write(draw, font, letter, x, above + ascent, width)
        x += width
    return image


def _letters(text: str) -> Iterator[str]:
    """Each letter with the marks that belong to it."""
    letter = ""
    for c in unicodedata.normalize("NFD", text.translate(PLAIN)):
        if letter and not unicodedata.combining(c):
            yield letter
            letter = ""
        letter += c
    if letter:
        yield letter


def _drawable(letter: str) -> bool:
    return letter == "ß" or (letter[0].isascii() and all(mark in MARKS for mark in letter[1:]))


def _system_font(text: str, pixels: int) -> ImageFont.FreeTypeFont | None:
    """A font of this machine that has every letter of the text."""
    for name in SYSTEM_FONTS:
        try:
            font = ImageFont.truetype(name, pixels)
        except OSError:
            continue
        missing = bytes(font.getmask("\U0010ffff"))
        if not any(bytes(font.getmask(c)) == missing for c in set(text) if not c.isspace()):
            return font
    return None


def _rise(font: ImageFont.FreeTypeFont, letter: str) -> float:
    return -font.getbbox(letter, anchor="ls")[1]


def _composed(letter: str) -> bool:
    return len(letter) > 1 and letter[1] in MARKS


def _advance(font: ImageFont.FreeTypeFont, letter: str) -> float:
    if letter == "ß":
        return 0.86 * _rise(font, "x")
    return font.getlength(letter[0] if _composed(letter) else letter)


def _write(
    draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, letter: str, x: float, base: float, width: float
) -> None:
    """One letter, or a plain text, on the base line."""
    unit = _rise(font, "x")
    pen = max(1, round(0.145 * unit))
    if letter == "ß":
        for stroke in SHARP_S:
            _draw(draw, [(x + across * unit, base - up * unit) for across, up in stroke], pen)
        return
    if not _composed(letter):
        draw.text((x, base), letter, font=font, fill=255, anchor="ls")
        return
    bare = letter[0]
    if bare == "i":  # the mark takes the place of the dot
        _draw(draw, [(x + width / 2, base - pen / 2), (x + width / 2, base - unit + pen / 2)], pen)
    else:
        draw.text((x, base), bare, font=font, fill=255, anchor="ls")
    top = base - (unit if bare == "i" else _rise(font, bare)) - 0.16 * unit
    span = max(0.9 * width, 0.7 * unit)
    for mark in letter[1:]:
        for stroke in MARKS[mark]:
            _draw(draw, [(x + width / 2 + (across - 0.5) * span, top - up * unit) for across, up in stroke], pen)


def _draw(draw: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], pen: int) -> None:
    draw.line(points, fill=255, width=pen, joint="curve")
    for x, y in (points[0], points[-1]):
        draw.ellipse((x - pen / 2, y - pen / 2, x + pen / 2, y + pen / 2), fill=255)
