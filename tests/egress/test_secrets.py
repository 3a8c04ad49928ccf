"""Secrets: what goes out in their place, and what of them comes back."""

from __future__ import annotations

import base64
import copy
import dataclasses
import gzip
import json
import pickle
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.egress import Refused
from executor.egress.secrets import LONGEST, PREFIX, NotSubstituted, Secrets, faults
from executor.errors import ConfigError
from executor.model import LoopSpec, Secret
from tests.egress.proxying import NAME, certificate, parts, proxy, run, saying, serving

VALUE = "canary-4f/9a+Zq=="
OTHER = "other.example"

values = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, blacklist_categories=("Cc", "Cs")),
    min_size=8,
    max_size=24,
).filter(lambda text: text == text.strip() and PREFIX not in text)


def secrets_for(*hosts: str, value: str = VALUE) -> Secrets:
    """One secret, for these hosts."""
    return Secrets.of((Secret("TOKEN", value, hosts),))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes in pieces of these sizes, over and over."""
    pieces, position, number = [], 0, 0
    while position < len(data):
        size = sizes[number % len(sizes)]
        pieces.append(data[position : position + size])
        position, number = position + size, number + 1
    return pieces


# ─── masking ────────────────────────────────────────────────────────────────────────


@settings(max_examples=150, deadline=None)
@given(
    values,
    st.lists(st.binary(max_size=12), min_size=2, max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_no_way_of_cutting_a_stream_lets_a_value_through(
    value: str, around: list[bytes], sizes: list[int], before: int
) -> None:
    """Nor what it is in base64; what comes out is as long, and nothing else is changed."""
    raw = value.encode()
    packed = base64.b64encode(b"u" * before + raw + b":x")
    data = (raw + packed).join(around)
    masker = secrets_for("h.example", value=value).masker()
    shown = b"".join(masker.feed(piece) for piece in cut(data, sizes)) + masker.end()
    assert raw not in shown and packed not in shown and len(shown) == len(data)
    changed = [after for was, after in zip(data, shown, strict=True) if was != after]
    assert len(set(changed)) == 1
    assert shown == secrets_for("h.example", value=value).mask(data)


@settings(max_examples=150, deadline=None)
@given(values, st.binary(max_size=200), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_what_holds_no_value_comes_out_as_it_went_in(
    value: str, data: bytes, sizes: list[int]
) -> None:
    """However it is cut."""
    secrets = secrets_for("h.example", value=value)
    if secrets.mask(data) == data:
        masker = secrets.masker()
        assert b"".join(masker.feed(piece) for piece in cut(data, sizes)) + masker.end() == data


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE,
        urllib.parse.quote(VALUE, safe=""),
        "canary-4f/9a%2bZq%3d%3d",
        json.dumps(VALUE).replace("/", "\\/"),
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
        base64.urlsafe_b64encode(b"ab" + VALUE.encode()).decode(),
    ],
)  # fmt: skip
def test_a_value_is_known_in_the_spellings_of_programs(spelled: str) -> None:
    """In URLs, JSON, hexadecimal digits and base64."""
    shown = secrets_for("h.example").mask_text(f"<{spelled}>")
    assert len(shown) == len(spelled) + 2 and shown.count("*") >= len(spelled) - 6


def test_values_that_overlap_are_both_masked() -> None:
    """A mask does not end where another value goes on."""
    secrets = Secrets.of(
        (Secret("A", "abcdefgh1234", ("h.example",)), Secret("B", "1234ijklmnop", ("h.example",)))
    )
    assert secrets.mask(b"<abcdefgh1234ijklmnop>") == b"<" + b"*" * 20 + b">"
    masker = secrets.masker()
    pieces = (b"<abcdefgh1", b"234ijk", b"lmnop>")
    assert b"".join(map(masker.feed, pieces)) + masker.end() == b"<" + b"*" * 20 + b">"


def test_a_mask_is_no_part_of_a_value() -> None:
    """A value of asterisks is masked by something else."""
    secrets = secrets_for("h.example", value="********")
    assert secrets.mask(b"x********x********") == b"x!!!!!!!!x!!!!!!!!"


def test_what_is_no_beginning_of_a_value_is_not_held_back() -> None:
    """A reader waits for nothing; what may be one waits for the next byte."""
    masker = secrets_for("h.example").masker()
    assert masker.feed(b"hello\n") == b"hello\n"
    assert masker.feed(b"canary-4") == b""
    assert masker.feed(b"x") == b"canary-4x" and masker.end() == b""


def test_parts_of_a_value_are_masked_where_a_text_was_cut() -> None:
    """The end of what is shown first, and the beginning of what is shown last."""
    head, tail = secrets_for("h.example").mask_cut(b"token: canary-4f", b"9a+Zq== and on")
    assert (head, tail) == (b"token: *********", b"******* and on")


# ─── what can't be a secret ─────────────────────────────────────────────────────────


@pytest.mark.statement("L4")
@pytest.mark.parametrize(
    ("value", "hosts", "said"),
    [
        ("short", ("h.example",), "less than 8"),
        ("x" * (LONGEST + 1), ("h.example",), "at most"),
        ("canary-line\nnext", ("h.example",), "control character"),
        ("canary-line\r\nX: y", ("h.example",), "control character"),
        ("canary-nul\0nul", ("h.example",), "control character"),
        (" canary-space", ("h.example",), "space"),
        (f"canary-{PREFIX}", ("h.example",), "placeholder"),
        ("canary-no-host", (), "no host"),
        ("canary-wildcard", ("*.h.example",), "exact name"),
        ("canary-address", ("127.0.0.1",), "exact name"),
        ("canary-path", ("h.example/path",), "exact name"),
        ("canary-scheme", ("ftp://h.example",), "exact name"),
        ("canary-port", ("h.example:99999",), "exact name"),
    ],
)
def test_what_can_t_be_kept_secret_is_refused(
    value: str, hosts: tuple[str, ...], said: str
) -> None:
    """With a sentence that does not hold the value."""
    found = faults((Secret("TOKEN", value, hosts),))
    assert len(found) == 1 and said in found[0] and "TOKEN" in found[0] and value not in found[0]
    with pytest.raises(ConfigError):
        Secrets.of((Secret("TOKEN", value, hosts),))


def test_names_of_secrets_are_names_of_variables() -> None:
    """Each once."""
    twice = (Secret("A", VALUE, ("h.example",)),) * 2
    assert "two" in faults(twice)[0]
    assert "variable" in faults((Secret("a b", VALUE, ("h.example",)),))[0]


@pytest.mark.statement("L5")
def test_nothing_that_shows_a_specification_shows_a_value(tmp_path: Path) -> None:
    """Its text, its fields, its copies; it can't be pickled, or written as JSON."""
    secret = Secret("TOKEN", VALUE, ("h.example",))
    secrets = Secrets.of((secret,))
    spec = LoopSpec(worktree=tmp_path, secrets=(secret,))
    shown = [repr(spec), str(spec), f"{secret!s} {secret!r}", repr(copy.deepcopy(spec))]
    shown += [repr(dataclasses.asdict(spec)), repr(dataclasses.astuple(spec)), repr(secrets)]
    assert all(VALUE not in text and "***" in text for text in shown)
    for one in (secret, spec, secrets):
        with pytest.raises(TypeError) as caught:
            pickle.dumps(one)
        assert VALUE not in str(caught.value)
    with pytest.raises(TypeError):
        json.dumps(dataclasses.asdict(spec)["secrets"])
    with pytest.raises(AttributeError):
        secret.name = "OTHER"
    assert copy.copy(secret) is secret and secret == Secret("TOKEN", VALUE, ["h.example"])


# ─── substitution ───────────────────────────────────────────────────────────────────


@pytest.mark.statement("L2")
@pytest.mark.parametrize(
    ("bound", "host", "port", "is_tls", "goes"),
    [
        ("h.example", "h.example", 80, False, True),
        ("h.example", "h.example", 443, True, True),
        ("H.Example.", "h.example", 80, False, True),
        ("h.example", "h.example", 443, False, False),
        ("h.example", "h.example", 8080, False, False),
        ("h.example", "www.h.example", 80, False, False),
        ("h.example", "example", 80, False, False),
        ("h.example", "h.example.evil.example", 80, False, False),
        ("h.example:8080", "h.example", 8080, False, True),
        ("h.example:8080", "h.example", 80, False, False),
        ("h.example:443", "h.example", 443, False, False),
        ("https://h.example", "h.example", 80, False, False),
        ("https://h.example", "h.example", 443, True, True),
        ("http://h.example", "h.example", 443, True, False),
        ("https://h.example:8443", "h.example", 8443, False, False),
    ],
)
def test_a_value_goes_to_its_host_port_and_scheme(
    bound: str, host: str, port: int, is_tls: bool, goes: bool
) -> None:
    """And elsewhere the placeholder stays what it is."""
    secrets = secrets_for(bound)
    placeholder = secrets.placeholders["TOKEN"].encode()
    sent = [(b"Host", host.encode()), (b"Authorization", b"Bearer " + placeholder)]
    made = secrets.substitute(host, port, sent, is_tls=is_tls)
    assert (VALUE.encode() in made[1][1]) is goes
    if not goes:
        assert made == sent


def test_a_value_is_put_into_basic_credentials() -> None:
    """Which clients encode before they send them; others of the name are left alone."""
    secrets = secrets_for("h.example")
    placeholder = secrets.placeholders["TOKEN"]
    packed = base64.b64encode(f"user:{placeholder}".encode())
    made = secrets.substitute("h.example", 80, [(b"authorization", b"basic " + packed)])
    assert made[0] == (b"authorization", b"basic " + base64.b64encode(f"user:{VALUE}".encode()))
    other = [(b"Authorization", b"Basic " + base64.b64encode(b"user:word"))]
    assert secrets.substitute("h.example", 80, other)[0] == other[0]


@pytest.mark.statement("L4")
def test_what_can_t_be_read_is_not_sent() -> None:
    """Credentials that are no base64, and more headers than a server takes."""
    secrets = secrets_for("h.example")
    placeholder = secrets.placeholders["TOKEN"].encode()
    with pytest.raises(NotSubstituted, match="base64"):
        secrets.substitute("h.example", 80, [(b"Authorization", b"Basic %%" + placeholder)])
    long = Secrets.of((Secret("TOKEN", "c" * 4000, ("h.example",)),))
    many = b" ".join([long.placeholders["TOKEN"].encode()] * 1000)
    with pytest.raises(NotSubstituted, match="65536") as caught:
        long.substitute("h.example", 80, [(b"X-Token", many)])
    assert "cccc" not in str(caught.value)


def test_no_value_goes_into_headers_that_route_or_are_repeated() -> None:
    """Nor into the name of one; a placeholder that is split, folded or changed is none."""
    secrets = secrets_for("h.example")
    placeholder = secrets.placeholders["TOKEN"].encode()
    headers = [
        *((name, placeholder) for name in (b"Host", b"Referer", b"Via", b"X-Forwarded-For")),
        (b"X-" + placeholder, b"x"),
        (b"X-Upper", placeholder.upper()),
        (b"X-Half", placeholder[:-1]),
        (b"X-Rest", placeholder[20:]),
        (b"X-Folded", placeholder[:20] + b" " + placeholder[20:]),
        (b"X-Quoted", urllib.parse.quote(placeholder.replace(b"-", b"%2d")).encode()),
    ]
    assert secrets.substitute("h.example", 80, headers)[: len(headers)] == headers


def test_answers_are_asked_for_in_which_a_value_can_be_found() -> None:
    """Not packed, and whole where a value goes out; other hosts' requests stay as they are."""
    secrets = secrets_for("h.example")
    placeholder = secrets.placeholders["TOKEN"].encode()
    asked = [(b"Accept-Encoding", b"gzip, br"), (b"Range", b"bytes=0-3"), (b"X-Key", placeholder)]
    made = dict(secrets.substitute("h.example", 80, asked))
    assert made == {b"X-Key": VALUE.encode(), b"Accept-Encoding": b"identity"}
    made = dict(secrets.substitute("h.example", 80, asked[:2]))
    assert made == {b"Range": b"bytes=0-3", b"Accept-Encoding": b"identity"}
    assert secrets.substitute(OTHER, 80, asked) == asked


# ─── over the broker ────────────────────────────────────────────────────────────────


def request(port: int, *lines: str, host: str = NAME, path: str = "/", body: str = "") -> bytes:
    """One plain request to a proxy."""
    length = [f"Content-Length: {len(body)}"] * bool(body)
    head = [f"POST http://{host}:{port}{path} HTTP/1.1", f"Host: {host}:{port}", *lines, *length]
    return "\r\n".join([*head, "Connection: close", "", body]).encode()


def echo(said: bytes, *lines: bytes) -> bytes:
    """An answer that says this in its head and its body."""
    head = [b"HTTP/1.1 200 OK " + said, b"X-Echo: " + said, b"Content-Length: %d" % len(said)]
    return b"\r\n".join([*head, *lines, b"", said])


@pytest.mark.statement("L2")
def test_a_hostile_box_gets_no_value_anywhere_but_into_its_header(tmp_path: Path) -> None:
    """Not by path, body, name of a header, other hosts, other ports or ten thousand uses."""

    async def scenario() -> None:
        seen: list[bytes] = []
        async with (
            serving(saying(echo(b"ok"), seen)) as server,
            serving(saying(echo(b"ok"), seen)) as second,
        ):
            port = server.port
            secrets = secrets_for(f"{NAME}:{port}")
            mark = secrets.placeholders["TOKEN"]
            hosts = (f"{NAME}:{port}", f"{NAME}:{second.port}", f"{OTHER}:{port}")
            async with proxy(tmp_path, *hosts, private=(NAME, OTHER), secrets=secrets) as made:
                made.names.answers[OTHER] = "127.0.0.1"
                tries = [
                    request(port, path=f"/{mark}?{mark}"),
                    request(port, body=mark),
                    request(port, f"X-{mark}: x"),
                    request(port, f"Referer: {mark}"),
                    request(port, f"Authorization: {mark}", host=OTHER),
                    request(second.port, f"Authorization: {mark}"),
                    request(port, f"X-A: {mark[:30]}", f"X-A: {mark[30:]}"),
                ]
                for one in tries:
                    status, _, _ = await (await made.open()).ask(one)
                    assert status == 200
                assert len(seen) == len(tries) and VALUE.encode() not in b"".join(seen)
                assert all(mark.encode() in one for one in seen[:6])

                refused = [
                    request(port, f"Host: {mark}"),
                    request(port, f"X-Folded: {mark[:20]}\r\n {mark[20:]}"),
                    request(port, host=f"sub.{NAME}"),
                    f"CONNECT {mark}:443 HTTP/1.1\r\nHost: {mark}:443\r\n\r\n".encode(),
                ]
                for one in refused:
                    status, _, body = await (await made.open()).ask(one)
                    assert status in (400, 403) and VALUE.encode() not in body
                assert len(seen) == len(tries)

                many = request(port, *(f"X-{n}: {' '.join([mark] * 12)}" for n in range(90)))
                status, _, _ = await (await made.open()).ask(many)
                assert status == 200 and seen[-1].count(VALUE.encode()) == 12 * 90

                assert VALUE not in json.dumps(await made.lines())

    run(scenario())


@pytest.mark.statement("L3")
def test_what_a_server_echoes_is_masked(tmp_path: Path) -> None:
    """In its headers, its reason and its body, as long as it was."""

    async def scenario() -> None:
        seen: list[bytes] = []
        said = VALUE.encode() + b" " + base64.b64encode(b"user:" + VALUE.encode())
        async with serving(saying(echo(said), seen)) as server:
            secrets = secrets_for(f"{NAME}:{server.port}")
            mark = secrets.placeholders["TOKEN"]
            async with proxy(tmp_path, f"{NAME}:{server.port}", secrets=secrets) as made:
                client = await made.open()
                await client.send(request(server.port, f"Authorization: Bearer {mark}"))
                answer = await client.rest()
                assert VALUE.encode() in seen[0] and VALUE.encode() not in answer
                assert base64.b64encode(b"user:" + VALUE.encode())[8:-4] not in answer
                _, headers, body = parts(answer)
                assert len(body) == int(headers["content-length"]) and b"***" in body
                assert VALUE not in headers["x-echo"] and "***" in headers["x-echo"]

    run(scenario())


@pytest.mark.statement("L4")
def test_an_answer_that_can_t_be_searched_is_not_passed_on(tmp_path: Path) -> None:
    """A server that packs it although it was told not to."""

    async def scenario() -> None:
        packed = gzip.compress(VALUE.encode() * 3)
        seen: list[bytes] = []
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        async with serving(saying(head % len(packed) + packed, seen)) as server:
            secrets = secrets_for(f"{NAME}:{server.port}")
            mark = secrets.placeholders["TOKEN"]
            async with proxy(tmp_path, f"{NAME}:{server.port}", secrets=secrets) as made:
                asked = request(server.port, f"X-Key: {mark}", "Accept-Encoding: gzip")
                status, said = await (await made.open()).refusal(asked)
                assert (status, said["reason"]) == (502, "upstream_failed")
                assert b"gzip" not in seen[0] and "Content-Encoding" in said["message"]
                bad = request(server.port, f"Authorization: Basic !{mark}")
                status, said = await (await made.open()).refusal(bad)
                assert (status, said["reason"]) == (403, "secret_failed") and len(seen) == 1

    run(scenario())


@pytest.mark.statement("L3")
def test_the_host_s_own_tools_send_and_mask_it_over_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client holds the placeholder alone, and a packed answer is refused."""
    made_for, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made_for, key)
    caplog.set_level("INFO")

    async def scenario() -> None:
        seen: list[bytes] = []
        async with serving(saying(echo(VALUE.encode()), seen), tls) as server:
            secrets = secrets_for(f"https://{NAME}:{server.port}")
            sent = {"Authorization": f"Bearer {secrets.placeholders['TOKEN']}"}
            options: dict[str, Any] = {"ca_file": made_for, "secrets": secrets}
            async with proxy(tmp_path, f"{NAME}:{server.port}", **options) as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    answer = await client.get(f"https://{NAME}:{server.port}/", headers=sent)
                    assert VALUE.encode() in seen[0] and b"gzip" not in seen[0]
                    assert answer.text == "*" * len(VALUE)
                    assert VALUE not in f"{answer.headers!r} {answer.reason_phrase} {answer!r}"
        packed = gzip.compress(VALUE.encode())
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        async with serving(saying(head % len(packed) + packed), tls) as server:
            secrets = secrets_for(f"{NAME}:{server.port}")
            sent = {"Authorization": f"Bearer {secrets.placeholders['TOKEN']}"}
            options = {"ca_file": made_for, "secrets": secrets}
            async with proxy(tmp_path, f"{NAME}:{server.port}", **options) as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    with pytest.raises(Refused) as caught:
                        await client.get(f"https://{NAME}:{server.port}/", headers=sent)
                    assert VALUE not in str(caught.value)

    run(scenario())
    assert VALUE not in caplog.text
