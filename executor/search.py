"""Searching the web: what a tool needs of a provider, and two of them over HTTP.

These requests are the operator's, not the loop's: they go to the one address that the settings
name, with the operator's key, by a client of their own. They do not go through a loop's broker:
to search, no loop has to be allowed to reach the provider, and what a box may reach says nothing
about where the operator searches. What a loop puts in is the query.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import httpx
import tenacity

from executor.errors import Code, ConfigError, ToolError
from executor.messages import address_faults
from executor.text import one_line

MAX_REPLY = 4 << 20
"""Bytes of one reply."""
MAX_SAID = 300
"""Characters of what a provider says about an error."""
MAX_TITLE, MAX_URL, MAX_SNIPPET = 300, 2000, 1000
"""Characters of each part of a result."""
LONGEST_WAIT = 5.0
"""Seconds before the second try, whatever the provider asks for."""
_SECONDS = re.compile(r"\d{1,6}")


@dataclass(frozen=True, slots=True)
class Found:
    """One result. Text of strangers: on one line, and without characters that act or hide.

    Attributes:
        title, url, snippet: as the provider has them.
    """

    title: str
    url: str
    snippet: str

    @property
    def host(self) -> str:
        """The host of its address, in lower case and A-labels; empty = it has none."""
        try:
            return httpx.URL(self.url).raw_host.decode("ascii").lower().rstrip(".")
        except (httpx.InvalidURL, ValueError):
            return ""


class Provider(Protocol):
    """Whatever searches the web."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def most(self) -> int:
        """Results that one search can have."""

    async def search(self, query: str, count: int) -> list[Found]:
        """The first results, in the provider's order.

        Args:
            query: what is searched for.
            count: how many results at most, 1 to `most`.

        Raises:
            ToolError: NETWORK_ERROR, there are none to be had; no key is in its text.
        """
        ...


def is_of(host: str, domain: str) -> bool:
    """Whether a host is this domain or lies below it.

    Args:
        host: of a result.
        domain: in lower case, without a dot at either end.
    """
    return host == domain or host.endswith(f".{domain}")


# ─── over HTTP ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Api(ABC):
    """What both providers have in common.

    Attributes:
        key: sent to `base_url` and to nobody else; shown nowhere.
        base_url: where the provider is. Plain HTTP only to this machine.
        patience: seconds that one search may take, with its second try.
        wait: seconds before that.
    """

    key: str = field(repr=False)
    base_url: str = ""
    patience: float = 30.0
    wait: float = 1.0

    def __post_init__(self) -> None:
        """Looks at what was given.

        Raises:
            ConfigError: the key or the address can't be used; the key is not shown.
        """
        faults = address_faults(self.base_url)
        if not self.key.strip() or not self.key.isascii() or not self.key.isprintable():
            faults.append("key: is empty or no plain text; give the key as it was issued")
        if faults:
            raise ConfigError(f"{self.name}: {fault}" for fault in faults)  # type: ignore[arg-type]

    @property
    @abstractmethod
    def name(self) -> str:
        """See `Provider`."""

    def _url(self, path: str, **parameters: str) -> httpx.URL:
        return httpx.URL(f"{self.base_url.rstrip('/')}{path}", params=parameters or None)

    async def _asked(self, request: httpx.Request) -> Mapping[str, Any]:
        """The reply to a request.

        Raises:
            ToolError: there is none that can be used.
        """
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Passing),
            stop=tenacity.stop_after_attempt(2),
            wait=self._before_second,
            reraise=True,
        )
        try:
            async with asyncio.timeout(self.patience):
                return await retrying(self._try, request)
        except _Passing as error:
            self._failed(str(error))
        except TimeoutError:
            self._failed(f"it gave no answer within {self.patience:g} s")

    def _before_second(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        after = error.after if isinstance(error, _Passing) else None
        return min(self.wait if after is None else after, LONGEST_WAIT)

    async def _try(self, request: httpx.Request) -> Mapping[str, Any]:
        # Not by a client: that would log the address, follow redirects, keep cookies.
        async with httpx.AsyncHTTPTransport(trust_env=False) as transport:
            try:
                response = await transport.handle_async_request(request)
                try:
                    return await self._read(response)
                finally:
                    await response.aclose()
            except (httpx.TransportError, httpx.StreamError) as error:
                self._failed(f"{type(error).__name__}, {error}")

    async def _read(self, response: httpx.Response) -> Mapping[str, Any]:
        status = response.status_code
        if 300 <= status < 400:
            self._failed(f"it answers with a redirect (HTTP {status}), which is not followed")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            self._failed("its answer is compressed, which was not asked for")
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > MAX_REPLY:
                self._failed(f"its answer has more than {MAX_REPLY >> 20} MiB")
        value = _json(bytes(data))
        if status == 200 and isinstance(value, dict):
            return value
        if status == 200:
            self._failed("its answer is no JSON object")
        said = f"HTTP {status}, {_message_of(value, bytes(data))}"
        if status == 429 or status >= 500:
            raise _Passing(said, response.headers.get("retry-after"))
        self._failed(said)

    def _failed(self, said: str) -> NoReturn:
        """Raises:
        ToolError: always. What the far end has repeated of the key is not shown.
        """
        shown = one_line(said.replace(self.key, "…"), MAX_SAID).rstrip(".")
        raise ToolError(
            Code.NETWORK_ERROR,
            f"The search failed: {self.name} can't be used now ({shown}). Go on without it, or try "
            "again later.",
        ) from None


class _Passing(Exception):
    """A try failed for a reason that may pass."""

    def __init__(self, said: str, after: str | None) -> None:
        super().__init__(said)
        # A date is not read: clocks differ.
        match = _SECONDS.fullmatch((after or "").strip())
        self.after = None if match is None else float(match[0])


@dataclass(frozen=True, slots=True)
class GoogleSearch(_Api):
    """Google's Custom Search JSON API.

    Attributes:
        engine: the search engine that is asked (`cx`).
    """

    base_url: str = "https://www.googleapis.com"
    engine: str = ""

    name = "Google Custom Search"
    most = 10

    async def search(self, query: str, count: int) -> list[Found]:
        """See `Provider`."""
        asked = {"key": self.key, "cx": self.engine, "q": query, "num": str(count)}
        url = self._url("/customsearch/v1", **asked)
        reply = await self._asked(httpx.Request("GET", url, headers=_HEADERS))
        return _results(reply.get("items"))[:count]


@dataclass(frozen=True, slots=True)
class SerperSearch(_Api):
    """The search API of Serper."""

    base_url: str = "https://google.serper.dev"

    name = "Serper"
    most = 100

    async def search(self, query: str, count: int) -> list[Found]:
        """See `Provider`."""
        headers = {**_HEADERS, "X-API-KEY": self.key}
        body = {"q": query, "num": count}
        request = httpx.Request("POST", self._url("/search"), headers=headers, json=body)
        return _results((await self._asked(request)).get("organic"))[:count]


_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "executor"}


def _results(given: Any) -> list[Found]:
    """The results of a reply; what is none is left out. Without the list there are none."""
    entries: Sequence[Any] = given if isinstance(given, list) else ()
    found = [
        Found(
            one_line(_text(entry.get("title")), MAX_TITLE),
            one_line(_text(entry.get("link")), MAX_URL),
            one_line(" ".join(_text(entry.get("snippet")).split()), MAX_SNIPPET),
        )
        for entry in entries
        if isinstance(entry, dict)
    ]
    return [one for one in found if one.url.startswith(("http://", "https://"))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _json(data: bytes) -> Any:
    """What it says; None if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _message_of(value: Any, data: bytes) -> str:
    """What an error's reply says, as both APIs have it, or the beginning of its text."""
    if isinstance(value, dict):
        error = value.get("error")
        for said in (value.get("message"), error, isinstance(error, dict) and error.get("message")):
            if isinstance(said, str) and said:
                return said
    return data[:MAX_SAID].decode("utf-8", "replace") or "without a reason"
