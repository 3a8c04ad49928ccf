"""The body of an HTTP reply: packed bytes → bytes, bytes → text. Pure, and bounded throughout."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE = 1 << 16
"""Bytes that are unpacked at a time, however small what they are packed in."""
_AUTOMATIC = zlib.MAX_WBITS | 32
"""Either of gzip and zlib, whichever its first bytes say."""
_GZIP = b"\x1f\x8b"
MOST_CODINGS = 2
"""Codings within each other; no server of good will has more than one."""
MOST_WORK = 64 << 20
"""Bytes that all codings of one body may be unpacked to, each step counting as `_STEP` of them."""
_STEP = 1 << 10


class Damaged(ValueError):
    """What was sent is not what it is said to be. The message ends a sentence."""


class Unknown(ValueError):
    """It is packed in a way that was not asked for."""


class Unpacker:
    """Takes off the coding that a reply's body is sent in, piece by piece.

    Args:
        coding: `Content-Encoding`, as it came.

    Raises:
        Unknown: it is none of `gzip`, `deflate` and `identity`.

    Attributes:
        work: what it has cost so far. What is packed twice can swell to gibibytes in between, and
            come to nothing: whoever takes the pieces stops at `MOST_WORK`.
    """

    def __init__(self, coding: str) -> None:
        names = [name.strip().lower() for name in coding.split(",")]
        names = [name.removeprefix("x-") for name in names if name and name != "identity"]
        if len(names) > MOST_CODINGS or not {"gzip", "deflate"}.issuperset(names):
            raise Unknown(coding)
        self._layers = [_Layer() for _ in names]
        self.work = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What comes out of this piece, in small pieces.

        Empty ones are among them: after each it can be left alone for a while, or for good.

        Raises:
            Damaged: it is not packed that way.
        """
        return self._through(self._layers, data)

    def _through(self, layers: list[_Layer], data: bytes) -> Iterator[bytes]:
        if not layers or not data:
            yield data
            return
        for piece in layers[-1].feed(data):
            self.work += _STEP + len(piece)
            yield from self._through(layers[:-1], piece)

    def end(self) -> None:
        """The body is over.

        Raises:
            Damaged: something of it is missing.
        """
        if any(not layer.is_whole for layer in self._layers):
            raise Damaged("its packed body ends too early")


class _Layer:
    """One coding."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_AUTOMATIC)
        self._has_begun = False
        self._held = b""

    @property
    def is_whole(self) -> bool:
        """Nothing is missing at its end; a body without any bytes is whole, too."""
        return self._inner.eof or not (self._has_begun or self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, self._held = self._held + data, b""
        if len(data) < len(_GZIP) and (self._inner.eof or not self._has_begun):
            self._held = data  # which coding it is, its first two bytes say
            return
        is_full = False
        while data or is_full:  # of what has been taken, more may come out
            if self._inner.eof:
                if len(data) < len(_GZIP):
                    self._held = data
                    return
                if not data.startswith(_GZIP):
                    return  # zeros that fill a block, or a line end: browsers pass over it
                self._inner = zlib.decompressobj(_AUTOMATIC)
            piece = self._unpacked(data)
            self._has_begun = True
            data = self._inner.unconsumed_tail or self._inner.unused_data
            is_full = len(piece) == _PIECE and not self._inner.eof
            yield piece

    def _unpacked(self, data: bytes) -> bytes:
        try:
            return self._inner.decompress(data, _PIECE)
        except zlib.error as error:
            if self._has_begun:
                raise Damaged(f"its packed body is damaged ({error})") from None
        # `deflate` without the header that belongs to it, as some servers have it.
        self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return self._inner.decompress(data, _PIECE)
        except zlib.error as error:
            raise Damaged(f"its packed body is damaged ({error})") from None


# ─── text ───────────────────────────────────────────────────────────────────────────

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHARSETS = {
    # As browsers read the labels (WHATWG Encoding, 4.2): the larger set of the same family.
    **dict.fromkeys(("utf-8", "utf8", "unicode-1-1-utf-8"), "utf-8"),
    **dict.fromkeys(("utf-16", "utf-16le", "unicode", "ucs-2"), "utf-16-le"),
    "utf-16be": "utf-16-be",
    **dict.fromkeys(
        ("ascii", "us-ascii", "iso-8859-1", "iso8859-1", "latin1", "l1", "windows-1252", "cp1252"),
        "cp1252",
    ),
    **dict.fromkeys(("iso-8859-9", "latin5", "windows-1254", "cp1254"), "cp1254"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("euc-jp", "x-euc-jp"), "euc_jp"),
    "iso-2022-jp": "iso2022_jp",
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "korean", "windows-949"), "cp949"),
    **dict.fromkeys(("gb2312", "gbk", "gb18030", "x-gbk", "chinese", "gb_2312-80"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs", "x-x-big5", "cn-big5"), "big5hkscs"),
    **dict.fromkeys(("koi8-r", "koi8", "koi"), "koi8_r"),
    "koi8-u": "koi8_u",
    "ibm866": "cp866",
    "macintosh": "mac_roman",
    "windows-874": "cp874",
    "tis-620": "cp874",
    **{f"windows-{n}": f"cp{n}" for n in (1250, 1251, 1253, 1255, 1256, 1257, 1258)},
    **{f"iso-8859-{n}": f"iso8859_{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}
"""Label → codec. None but these: some of Python's take a time that grows with the square."""
_META = re.compile(rb"<meta\s[^>]{0,500}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_META_WITHIN = 4096
_TEXTS = re.compile(
    r"text/.*|message/.*|image/svg\+xml|.*[/+](json|xml|yaml|x-yaml|toml|javascript|ecmascript)"
    r"|application/(x-javascript|x-sh|x-ndjson|json-seq|jsonl|sql|graphql|x-www-form-urlencoded"
    r"|x-tex|rtf|csv|x-httpd-php|xml-dtd|ld\+json)"
)
_UNCLEAR = frozenset({"", "application/octet-stream", "binary/octet-stream", "unknown/unknown"})
"""Types that say nothing."""
HTML = frozenset({"text/html", "application/xhtml+xml"})
_MARKUP = re.compile(rb"\s*(<!--.{0,1000}?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.I | re.S)
_LOOKED_AT = 8192


@dataclass(frozen=True, slots=True)
class Content:
    """What a body is.

    Attributes:
        media: its type, in lower case and without parameters; empty = none is known.
        text: it, as text; None = it is none.
        charset: that it was read by.
    """

    media: str
    text: str | None = None
    charset: str | None = None

    @property
    def is_html(self) -> bool:
        """It is a page."""
        return self.media in HTML


def content_of(data: bytes, content_type: str, *, is_cut: bool) -> Content:
    """What a body is, and its text.

    Args:
        data: it.
        content_type: as it came; empty = none came.
        is_cut: something of it is missing at its end.
    """
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    said = _charset_in(parameters)
    is_marked = any(data.startswith(mark) for mark, _ in _BOMS)
    if media in _UNCLEAR:
        if not (is_marked or _seems_text(data[:_LOOKED_AT])):
            return Content(media)
        if media == "" and _MARKUP.match(data[:_LOOKED_AT]):
            media = "text/html"
    elif _TEXTS.fullmatch(media) is None:
        return Content(media)
    charset = _charset(data, said, media)
    if b"\0" in data[:_LOOKED_AT] and not charset.startswith("utf-16"):
        return Content(media)
    text = _decoded(data, charset, is_cut=is_cut).removeprefix("\ufeff")
    return Content(media, text, charset)


def _charset_in(parameters: str) -> str | None:
    for one in parameters.split(";"):
        name, _, value = one.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'").lower()
    return None


def _charset(data: bytes, said: str | None, media: str) -> str:
    """By its first bytes, by what the server says, by what the page says, by its bytes."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return name
    if said is not None and said in _CHARSETS:
        return _CHARSETS[said]
    found = _META.search(data[:_META_WITHIN]) if media in HTML else None
    if found is not None:
        name = _CHARSETS.get(found[1].decode("ascii", "replace").lower(), "utf-8")
        # A page that says so in ASCII is not written in it (WHATWG HTML, 13.2.3.2).
        return "utf-8" if name.startswith("utf-16") else name
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _decoded(data: bytes, charset: str, *, is_cut: bool) -> str:
    """With U+FFFD for what is damaged, but not for half a character where it is cut."""
    decoder = codecs.getincrementaldecoder(charset)("replace")
    # In pieces: one call of a codec keeps all other threads from running until it is over.
    pieces = [decoder.decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return "".join([*pieces, "" if is_cut else decoder.decode(b"", final=True)])


def _seems_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True
