"""Web tools as a loop has them: asked about, allowed, denied, redacted; over real servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import pytest

from executor.catalog import load
from executor.controller import Controller
from executor.egress import broker
from executor.egress.addresses import Address
from executor.egress.dialling import Dialler
from executor.errors import Code
from executor.lane import OpenBox
from executor.loop import Loop
from executor.model import (
    ApprovalAnswer,
    Call,
    EgressOptions,
    Finished,
    LoopSpec,
    Remember,
    Result,
    Secret,
)
from executor.rules import Rules
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.loops import opener
from tests.test_approvals import NO, YES, Recorder
from tests.web_server import Asked, redirect, reply, site

T = TypeVar("T")
ALWAYS = ApprovalAnswer(approved=True, remember=Remember.SESSION)
HERE = ip_address("127.0.0.1")


class Internet(Dialler):
    """The checks are the real ones; whoever lives at a public address answers on this machine.

    `near.example` has a private address, every other name a public one.
    """

    def __init__(self) -> None:
        super().__init__(lambda name: ["10.9.8.7" if name == "near.example" else "203.0.113.77"])

    async def reach(
        self, host: str, port: int, is_private: bool, connect: Callable[[Address], Awaitable[T]]
    ) -> tuple[T, Address]:
        """See `Dialler`."""

        async def connected(address: Address) -> T:
            assert str(address) == "203.0.113.77"
            return await connect(HERE)

        return await super().reach(host, port, is_private, connected)


@pytest.fixture(autouse=True)
def _internet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "Dialler", Internet)


@asynccontextmanager
async def opened(
    directory: Path, *hosts: str, approver: Recorder | None = None, **given: Any
) -> AsyncIterator[Loop]:
    """A loop that may reach some hosts.

    Args:
        directory: for all of it.
        hosts: that it may reach.
        approver: of the loop.
        given: `settings` are fields of `Settings`, `inside` is told what variables its boxes
            have; the rest is the specification's.
    """
    inside = given.pop("inside", {})
    settings = replace(
        Settings.load(), state_directory=directory / "state", **given.pop("settings", {})
    )
    root = make_worktree(directory / "worktree")
    settings.state_directory.mkdir()
    spec = LoopSpec(
        worktree=root,
        limits=LIMITS,
        exec_id="web",
        egress=EgressOptions(hosts=hosts),
        **given,
    )
    inner = opener("local", directory)

    @asynccontextmanager
    async def noted(wanted: LoopSpec) -> AsyncIterator[OpenBox]:
        inside.update(wanted.environment)
        async with inner(wanted) as box:
            yield box

    async with (
        Controller(settings, load(), opener=noted, approver=approver) as controller,
        controller.open(spec) as loop,
    ):
        yield loop


async def fetch(loop: Loop, url: str, **given: Any) -> Result:
    """The result of one call."""
    return await loop.execute(Call("one", "web_fetch", {"url": url, **given}))


def run(main: Callable[[], Awaitable[None]]) -> None:
    """To its end, and no longer than a test should take."""

    async def bounded() -> None:
        async with asyncio.timeout(120):
            await main()

    asyncio.run(bounded())


def test_what_a_person_approves_is_fetched_and_always_is_a_rule(tmp_path: Path) -> None:
    """Decisions row 50: once is for that call; always is for the host, and the request says so."""

    async def main() -> None:
        asked = Recorder(YES, NO, YES, ALWAYS)
        async with (
            site({"/": reply(b"one")}) as one,
            site({"/": reply(b"two")}) as two,
            opened(tmp_path, "listed.example", mode="default", approver=asked) as loop,
        ):
            url = f"http://new.example:{one.port}/"
            assert str((await fetch(loop, url)).content).endswith("\n\none")
            assert (await fetch(loop, url)).code is Code.REJECTED
            request = asked.requests[0]
            assert request.action == f"new.example:{one.port}"
            assert request.rules == ("web_fetch(domain:new.example)",)
            assert "every port" in request.reason and "POST" in request.reason
            private = await fetch(loop, f"http://near.example:{one.port}/")
            assert private.code is Code.NETWORK_DENIED and "10.9.8.7" not in str(private.content)
            assert not (await fetch(loop, url)).is_error
            assert loop.session.rules.allow[-1].text == "web_fetch(domain:new.example)"
            assert len(asked.requests) == 4
            posted = await fetch(loop, f"http://new.example:{two.port}/", method="POST", body="x")
            assert str(posted.content).endswith("\n\ntwo") and two.asked[0].body == b"x"
            assert len(asked.requests) == 4
            await fetch(loop, f"http://sub.new.example:{one.port}/")
            assert len(asked.requests) == 5

    run(main)


def test_a_rule_that_denies_a_host_holds_for_a_redirect_to_it(tmp_path: Path) -> None:
    """In mode bypass, too, and though the list of hosts has it; without a rule it is followed."""

    async def main() -> None:
        async with site({"/": reply(b"two")}) as two, site({}) as one:
            one.answers["/"] = redirect(f"http://two.example:{two.port}/")
            hosts = (f"one.example:{one.port}", f"two.example:{two.port}")
            async with opened(tmp_path, *hosts) as loop:
                url = f"http://one.example:{one.port}/"
                assert str((await fetch(loop, url)).content).endswith("\n\ntwo")
                loop.session.rules = Rules.parse(deny=["web_fetch(domain:two.example)"])
                denied = await fetch(loop, url)
                assert denied.code is Code.PERMISSION_DENIED
                assert "web_fetch(domain:two.example)" in str(denied.content)
                assert len(two.asked) == 1
                unlisted = await fetch(loop, f"http://three.example:{two.port}/")
                assert unlisted.code is Code.NETWORK_DENIED and len(two.asked) == 1

    run(main)


VALUE = "token-0123456789-abcdefghij"


async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Says what it was sent, often enough that it is not shown whole."""
    said = f"{asked.headers['authorization']}\n".encode()
    writer.write(reply(said * 20_000, X_Said=said.decode().strip()))


def test_a_secret_that_a_server_repeats_is_nowhere_in_the_loop(tmp_path: Path) -> None:
    """Not in the result, the events, what was decided, or any other file of the state."""

    async def main() -> None:
        async with site({"/": echo}) as one:
            at = f"one.example:{one.port}"
            secret = Secret("TOKEN", VALUE, (f"http://{at}",))
            inside: dict[str, str] = {}
            async with opened(tmp_path, at, secrets=(secret,), inside=inside) as loop:
                placeholder = inside["TOKEN"]
                assert re.fullmatch("executor-secret-[0-9a-f]{32}", placeholder)
                given = {"url": f"http://{at}/", "headers": {"Authorization": placeholder}}
                events = [event async for event in loop.stream([Call("1", "web_fetch", given)])]
                (result,) = [one.result for one in events if isinstance(one, Finished)]
                assert one.asked[0].headers["authorization"] == VALUE
                assert not result.is_error and result.truncated
                assert VALUE not in f"{events}{result.to_line()}"
            kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
            assert any(b"one.example" in data for data in kept)
            assert not any(VALUE.encode() in data for data in kept)

    run(main)


HITS = {
    "organic": [
        {"title": "\x1b[2JT \u202e", "link": "https://a.example/", "snippet": "a\n\x07b"},
        {"title": "U", "link": "javascript:alert(1)", "snippet": "no address"},
    ]
}


def test_a_search_asks_whom_the_settings_name(tmp_path: Path) -> None:
    """Whatever a loop may reach; the key goes there and is nowhere else."""

    async def main() -> None:
        answer = reply(json.dumps(HITS).encode(), "application/json")
        async with site({"/search": answer}) as serper:
            settings = {"serper_key": VALUE, "serper_url": f"http://127.0.0.1:{serper.port}"}
            async with opened(tmp_path, settings=settings) as loop:
                assert "web_search" in [tool["name"] for tool in loop.definitions()]
                found = await loop.execute(Call("1", "web_search", {"query": "q", "numResults": 2}))
                assert found.structured is not None and len(found.structured["results"]) == 1
                assert str(found.content).startswith("1. ")
                assert not {"\x1b", "\x07", "\u202e"} & set(str(found.content))
                assert serper.asked[0].headers["x-api-key"] == VALUE
                serper.answers["/search"] = reply(VALUE.encode(), status=403)
                failed = await loop.execute(Call("2", "web_search", {"query": "q"}))
                assert failed.code is Code.NETWORK_ERROR
                assert VALUE not in f"{found.to_line()}{failed.to_line()}"

    run(main)


def test_without_a_key_no_search_is_shown(tmp_path: Path) -> None:
    """A call says what is missing."""

    async def main() -> None:
        async with opened(tmp_path, settings={"serper_key": None}) as loop:
            assert "web_search" not in [tool["name"] for tool in loop.definitions()]
            result = await loop.execute(Call("1", "web_search", {"query": "q"}))
            assert result.code is Code.DISABLED and "EXECUTOR_SERPER_KEY" in str(result.content)

    run(main)
