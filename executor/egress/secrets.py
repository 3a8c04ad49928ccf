"""Values that a loop may use and never sees: placeholders in its boxes, the values on the host.

A placeholder is worth nothing: it becomes its value in a header of a request to a host that the
secret is for, on the way out of the host, and nowhere else. What comes back is searched for the
values, in the spellings that programs give them, and masked by as many characters, so that
lengths which were announced stay true.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import secrets
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, AnyStr, Generic, TypeAlias

from executor.egress import names
from executor.errors import ConfigError, ExecutorError
from executor.model import MARKER, Secret

PREFIX = "executor-secret-"
"""What every placeholder begins with; 32 digits follow, which nobody can guess."""
SHORTEST, LONGEST = 8, 4096
"""Characters of a value. A shorter one would be found, and masked, in any text."""
MAX_HEADER_BYTES = 1 << 16
"""Bytes of headers with the values in them. (F11 has the same number for what comes in.)"""
MIN_PART = 4
"""Characters of a value's beginning or end that are masked where a text was cut."""

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLACEHOLDER = re.compile(re.escape(PREFIX.encode()) + rb"[0-9a-f]{32}")
_BASIC = re.compile(rb"(basic)([ \t]+)(\S+)[ \t]*", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}

_NEVER = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"te", b"trailer"),
        *(b"upgrade", b"expect", b"via", b"forwarded", b"referer", b"origin", b"user-agent"),
    )
)
"""Headers that frame or route a request, or that servers repeat to others: no value goes there."""


class NotSubstituted(ExecutorError):
    """It can't be told for certain what would be sent, so the request must not be."""


def faults(given: Iterable[Secret]) -> list[str]:
    """Everything that is wrong with secrets, one sentence each; no value is in it."""
    found: list[str] = []
    names: set[str] = set()
    for secret in given:
        where = f"secrets.{secret.name}"
        if not _NAME.fullmatch(secret.name) or secret.name == MARKER:
            found.append(f"secrets: {secret.name!r} can't be a variable's name; give another")
        elif secret.name in names:
            found.append(f"{where}: there are two; give one, with all its hosts")
        names.add(secret.name)
        found += [f"{where}: {fault}" for fault in (*_value_faults(secret.value),)]
        if not secret.hosts:
            found.append(f"{where}: it is for no host; say which one may get it")
        for host in secret.hosts:
            if _bound(host) is None:
                found.append(
                    f"{where}: {host!r} is no exact name of a host; write HOST, HOST:PORT or "
                    "https://HOST"
                )
    return found


def _value_faults(value: str) -> Iterator[str]:
    if len(value) < SHORTEST:
        yield (
            f"its value has {len(value)} characters; one of less than {SHORTEST} can't be told "
            "from other text and so can't be masked"
        )
    if len(value) > LONGEST:
        yield f"its value has {len(value)} characters; at most {LONGEST} fit into a header"
    if _CONTROL.search(value):
        yield "its value holds a line's end or another control character; no header can have one"
    elif value != value.strip():
        yield "its value begins or ends with a space, which no header keeps"
    elif PREFIX in value:
        yield "its value looks like a placeholder; give the value itself"


def _bound(text: str) -> tuple[str, frozenset[tuple[int, bool]]] | None:
    """A host that a secret is for, with the pairs of a port and whether TLS is spoken there."""
    scheme, divider, rest = text.rpartition("://")
    if divider and scheme not in _PORTS:
        return None
    try:
        host, port = names.split(rest)
        name = names.written(host)
    except names.NotAName:
        return None
    schemes = [scheme] if scheme else list(_PORTS)
    if not scheme and port in _PORTS.values():
        schemes = [known for known, usual in _PORTS.items() if usual == port]
    return name, frozenset((port or _PORTS[one], one == "https") for one in schemes)


def _places(hosts: Iterable[str]) -> dict[str, frozenset[tuple[int, bool]]]:
    """All hosts that a secret is for."""
    found: dict[str, frozenset[tuple[int, bool]]] = {}
    for name, places in filter(None, map(_bound, hosts)):
        found[name] = found.get(name, frozenset()) | places
    return found


# ─── the spellings of a value ───────────────────────────────────────────────────────


def _spellings(value: str) -> set[str]:
    """How a value may be written where it comes back: as it is, in JSON, in a URL, in base64."""
    raw = value.encode()
    quoted = {
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote(value),
        urllib.parse.quote_plus(value),
    }
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {
        value,
        repr(value)[1:-1],
        *escaped,
        *(text.replace("/", "\\/") for text in escaped),
        html.escape(value),
        html.escape(value).replace("&#x27;", "&#39;"),
        html.escape(value, quote=False),
        *quoted,
        *(re.sub("%..", lambda found: found[0].lower(), text) for text in quoted),
        raw.hex(),
        raw.hex().upper(),
        *_in_base64(raw),
    }


def _in_base64(raw: bytes) -> Iterator[str]:
    """What a value becomes in base64, after any number of other bytes: what it alone decides."""
    for before in range(3):
        skipped = (0, 2, 3)[before]
        whole = (before + len(raw)) * 8 // 6
        for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * before + raw).decode()[skipped:whole]


def _mask_for(spellings: Iterable[str]) -> str:
    """A character that no spelling has: what is masked can't become a part of a value again."""
    used = set().union(*spellings)
    free = (chr(code) for code in (ord("*"), *range(33, 127)) if chr(code) not in used)
    return next(free, "\x1a")


class _Needles(Generic[AnyStr]):
    """What is searched for, in texts of one kind."""

    def __init__(self, spellings: Iterable[AnyStr], mask: AnyStr) -> None:
        self.all: tuple[AnyStr, ...] = tuple(sorted(spellings, key=len, reverse=True))
        self.longest = max(map(len, self.all), default=0)
        self._mask: AnyStr = mask
        self._by_first: dict[AnyStr, list[AnyStr]] = {}
        for needle in self.all:
            self._by_first.setdefault(needle[:1], []).append(needle)

    def spans(self, text: AnyStr) -> list[tuple[int, int]]:
        """Where they are; what overlaps or touches is one."""
        found: list[tuple[int, int]] = []
        for needle in self.all:
            start = text.find(needle)
            while start >= 0:
                found.append((start, start + len(needle)))
                start = text.find(needle, start + 1)
        return _united(found)

    def masked(self, text: AnyStr) -> AnyStr:
        """The text with all of them masked, as long as it was; itself if there are none."""
        return self.covered(text, self.spans(text))

    def covered(self, text: AnyStr, spans: Iterable[tuple[int, int]]) -> AnyStr:
        """A text with these spans of it masked."""
        parts: list[AnyStr] = []
        position = 0
        for start, end in spans:
            parts += [text[position:start], self._mask * (end - start)]
            position = end
        if not parts:
            return text
        parts.append(text[position:])
        return text[:0].join(parts)

    def begun(self, text: AnyStr) -> int:
        """How many characters at the text's end may be the beginning of one."""
        window = text[-(self.longest - 1) :] if self.longest > 1 else text[:0]
        for start in range(len(window)):
            candidates = self._by_first.get(window[start : start + 1])
            if candidates is None:
                continue
            rest = window[start:]
            if any(len(one) > len(rest) and one.startswith(rest) for one in candidates):
                return len(rest)
        return 0

    def ended(self, text: AnyStr) -> int:
        """How many characters at the text's beginning may be the end of one."""
        most = 0
        for needle in self.all:
            for length in range(min(len(needle) - 1, len(text)), most, -1):
                if text.startswith(needle[-length:]):
                    most = length
                    break
        return most


def _united(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


class Masker:
    """Masks values in a stream of bytes, however it is cut into pieces.

    What comes out is as long as what goes in. The last bytes are held back only where they may
    be a value's beginning.
    """

    def __init__(self, needles: _Needles[bytes]) -> None:
        self._needles = needles
        self._held = self._shown = b""

    def feed(self, data: bytes) -> bytes:
        """One more piece; what can be passed on by now."""
        if not self._needles.all:
            return data
        text, shown = self._held + data, self._shown + data
        shown = self._needles.covered(shown, self._needles.spans(text))
        ready = len(text) - self._needles.begun(text)
        self._held, self._shown = text[ready:], shown[ready:]
        return shown[:ready]

    def end(self) -> bytes:
        """What was held back; no more pieces come."""
        rest, self._held, self._shown = self._shown, b"", b""
        return rest


# ─── all of a loop ──────────────────────────────────────────────────────────────────


class Secrets:
    """The secrets of one loop. Neither its `repr` nor an error of it shows a value.

    Attributes:
        placeholders: name of the variable → what commands find in it.
    """

    def __init__(self, given: Iterable[Secret] = ()) -> None:
        given = tuple(given)
        if found := faults(given):
            raise ConfigError(found)
        self.placeholders: Mapping[str, str] = MappingProxyType(
            {secret.name: PREFIX + secrets.token_hex(16) for secret in given}
        )
        self._values = {
            self.placeholders[secret.name].encode(): secret.value.encode() for secret in given
        }
        self._bound = {
            self.placeholders[secret.name].encode(): _places(secret.hosts) for secret in given
        }
        spellings = set().union(*(_spellings(secret.value) for secret in given))
        mask = _mask_for(spellings)
        self._texts = _Needles(spellings, mask)
        self._bytes = _Needles({text.encode() for text in spellings}, mask.encode())

    @classmethod
    def of(cls, given: Iterable[Secret]) -> Secrets:
        """Those of a loop, with new placeholders.

        Raises:
            ConfigError: with everything that is wrong with them.
        """
        return cls(given)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}=***" for name in self.placeholders)
        return f"Secrets({shown})"

    def __reduce__(self) -> Any:
        raise TypeError("secrets are not copied and leave no process")

    # ─── what goes out ───

    def _is_for(self, placeholder: bytes, host: str, port: int, is_tls: bool) -> bool:
        return (port, is_tls) in self._bound[placeholder].get(host, ())

    def substitute(
        self, host: str, port: int, headers: Headers, *, is_tls: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Headers of a request with the values in place of the placeholders.

        A placeholder of a secret that is not for this host, port and scheme stays what it is.
        A host that one is for is asked for answers that are not packed, and for whole ones where
        a value goes out: in others it could not be found.

        Args:
            host: canonical, as it was checked and is dialled.
            port: that is dialled.
            headers: of the request, in their order.
            is_tls: it goes out over TLS.

        Raises:
            NotSubstituted: what would be sent can't be told, so nothing may be.
        """
        given = list(headers)
        usable = {
            placeholder: value
            for placeholder, value in self._values.items()
            if self._is_for(placeholder, host, port, is_tls)
        }
        if not usable:
            return given
        made = [(name, _with_values(name, value, usable)) for name, value in given]
        has_values = made != given
        if sum(len(name) + len(value) + 4 for name, value in made) > MAX_HEADER_BYTES:
            raise NotSubstituted(
                f"with the values of its secrets the request has more than {MAX_HEADER_BYTES} "
                "bytes of headers; use each once"
            )
        asks = _PARTIAL if has_values else _PACKED
        kept = [(name, value) for name, value in made if name.lower() not in asks]
        return [*kept, UNPACKED]

    def hides_in(self, asked: Headers, answered: Headers) -> str | None:
        """Why the answer to a request can't be passed on; None = it can.

        Args:
            asked: the request's headers, as they were sent.
            answered: the answer's.
        """
        if not any(self._bytes.spans(value) for _, value in asked):
            return None
        codings = [value for name, value in answered if name.lower() == b"content-encoding"]
        if all(value.strip().lower() in (b"", b"identity") for value in codings):
            return None
        return (
            "it is packed (Content-Encoding) although it must not be, so that the secret of the "
            "request could not be masked in it"
        )

    # ─── what comes back ───

    def masker(self) -> Masker:
        """Masks one stream of bytes."""
        return Masker(self._bytes)

    def mask(self, data: bytes) -> bytes:
        """Bytes with every value masked, as long as they were."""
        return self._bytes.masked(data)

    def mask_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Headers of an answer with every value masked."""
        return [(self.mask(name), self.mask(value)) for name, value in headers]

    def mask_cut(self, head: bytes, tail: bytes) -> tuple[bytes, bytes]:
        """The two ends of something long, of which the middle is not here.

        What may be a part of a value at the cut is masked, too.
        """
        needles = self._bytes
        begun, ended = needles.begun(head), needles.ended(tail)
        spans = [(len(head) - begun, len(head))] if begun >= MIN_PART else []
        head = needles.covered(head, _united([*needles.spans(head), *spans]))
        spans = [(0, ended)] if ended >= MIN_PART else []
        return head, needles.covered(tail, _united([*needles.spans(tail), *spans]))

    def mask_text(self, text: str) -> str:
        """A text with every value masked; itself if there is none in it."""
        return self._texts.masked(text)

    def masked(self, value: str | bytes) -> str | bytes:
        """A text or bytes with every value masked."""
        if isinstance(value, bytes):
            return self.mask(value)
        text = self.mask_text(value)
        return value if text == value else text  # an enumeration's member stays one


UNPACKED = (b"Accept-Encoding", b"identity")
_PACKED = frozenset((b"accept-encoding",))
_PARTIAL = _PACKED | {b"range", b"if-range"}
"""Headers that ask for an answer in which a value could not be found: packed, or a piece."""


def _with_values(name: bytes, value: bytes, usable: Mapping[bytes, bytes]) -> bytes:
    """One header's value, with the values of secrets in it."""
    name = name.lower()
    if name in _NEVER or name.startswith((b"x-forwarded-", b"proxy-", b"sec-")):
        return value
    match = _BASIC.fullmatch(value)
    if match is None:
        return _replaced(value, usable)
    try:
        plain = base64.b64decode(match[3] + b"=" * (-len(match[3]) % 4), validate=True)
    except binascii.Error as error:
        raise NotSubstituted(
            "the header Authorization: Basic holds no base64, so it can't be told whether a "
            "placeholder is in it; nothing was sent"
        ) from error
    replaced = _replaced(plain, usable)
    if replaced == plain:
        return value
    return match[1] + match[2] + base64.b64encode(replaced)


def _replaced(text: bytes, usable: Mapping[bytes, bytes]) -> bytes:
    return _PLACEHOLDER.sub(lambda found: usable.get(found[0], found[0]), text)
