"""Loops that speak to each other: the same rules in one process and over Redis."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from executor import coordination
from executor.coordination import (
    MAX_MESSAGE,
    MAX_RATE,
    Coordinator,
    LocalCoordinator,
    Member,
    Message,
    Notification,
    Query,
    Share,
    Stop,
)
from executor.errors import Code, ConfigError, ToolError

REDIS = shutil.which("redis-server")
SOON = 20.0

Open: TypeAlias = Callable[[], Any]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, reachable by a socket file alone."""
    if REDIS is None:
        pytest.skip("redis-server is not installed; .ci/run installs it where it can be had")
    directory = tmp_path_factory.mktemp("redis")
    socket = directory / "socket"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(directory)]
    with subprocess.Popen([REDIS, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "ready to accept connections" in line.lower():
                break
        try:
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.communicate(timeout=SOON)


@pytest.fixture(params=["local", "redis"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Opens a coordinator; over Redis each is a client of its own, as in another process."""
    if request.param == "local":
        shared = LocalCoordinator()

        @asynccontextmanager
        async def local() -> AsyncGenerator[Coordinator]:
            yield shared

        return local
    url = request.getfixturevalue("redis_url")
    from executor.redis_coordination import RedisCoordinator

    return lambda: RedisCoordinator(url)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run it, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(SOON * 3):
            await work

    asyncio.run(bounded())


async def received(member: Member) -> Message:
    async with asyncio.timeout(SOON):
        async for message in member.inbox():
            return message
    raise AssertionError("the inbox ended")


async def refused(work: Coroutine[Any, Any, Any]) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await work
    return caught.value


def test_a_question_is_answered(opened: Open) -> None:
    """The question comes in with who asks, the answer goes to the one that asked."""

    async def work() -> None:
        async with opened() as one, opened() as two:
            async with one.join("t", "a") as a, two.join("t", "b") as b:
                asking = asyncio.create_task(a.query("b", "which port?", SOON))
                message = await received(b)
                assert isinstance(message, Query)
                assert (message.sender, message.question) == ("a", "which port?")
                await b.answer(message.id, "8080 é")
                assert await asking == "8080 é"
                late = await refused(b.answer(message.id, "again"))
                assert late.code is Code.NOT_FOUND

    run(work())


def test_nobody_answers(opened: Open) -> None:
    """The asker is told after its timeout, and the late answer is refused."""

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("t", "b") as b:
                error = await refused(a.query("b", "?", 0.2))
                assert error.code is Code.TIMEOUT
                assert "200ms" in str(error)
                message = await received(b)
                assert isinstance(message, Query)
                assert (await refused(b.answer(message.id, "x"))).code is Code.NOT_FOUND

    run(work())


@pytest.mark.parametrize(
    ("target", "code"),
    [("nope", Code.NOT_FOUND), ("a", Code.INVALID_ARGUMENTS), ("other", Code.NOT_FOUND)],
)
def test_who_can_not_be_asked(opened: Open, target: str, code: Code) -> None:
    """No such loop, the loop itself, and a loop of another tenant: refused at once."""

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("u", "other"):
                assert (await refused(a.query(target, "?", SOON))).code is code
                assert (await refused(a.share([target], "k", 1))).code is code

    run(work())


def test_two_loops_that_ask_each_other(opened: Open) -> None:
    """The second question is refused at once; the first can still be answered."""

    async def work() -> None:
        async with opened() as one, opened() as two:
            async with one.join("t", "a") as a, two.join("t", "b") as b:
                asking = asyncio.create_task(a.query("b", "?", SOON))
                message = await received(b)
                assert isinstance(message, Query)
                assert (await refused(b.query("a", "?", SOON))).code is Code.CONFLICT
                await b.answer(message.id, "fine")
                assert await asking == "fine"
                back = asyncio.create_task(b.query("a", "now?", SOON))
                question = await received(a)
                assert isinstance(question, Query)
                await a.answer(question.id, "yes")
                assert await back == "yes"

    run(work())


def test_a_circle_of_three(opened: Open) -> None:
    """A waits for B, B for C: C can't ask A."""

    async def work() -> None:
        async with opened() as one:
            async with (
                one.join("t", "a") as a,
                one.join("t", "b") as b,
                one.join("t", "c") as c,
            ):
                waiting = [asyncio.create_task(a.query("b", "?", SOON))]
                await received(b)
                waiting.append(asyncio.create_task(b.query("c", "?", SOON)))
                await received(c)
                assert (await refused(c.query("a", "?", SOON))).code is Code.CONFLICT
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    run(work())


def test_one_that_closes_while_it_is_asked(opened: Open) -> None:
    """The asker is told, long before its timeout."""

    async def work() -> None:
        async with opened() as one, opened() as two:
            async with one.join("t", "a") as a:
                async with two.join("t", "b") as b:
                    asking = asyncio.create_task(refused(a.query("b", "?", SOON * 10)))
                    await received(b)
                assert (await asking).code is Code.NOT_FOUND

    run(work())


def test_data_is_shared_with_all_or_none(opened: Open) -> None:
    """A target that is not there is named, and nobody gets anything."""

    async def work() -> None:
        async with opened() as one:
            async with (
                one.join("t", "a") as a,
                one.join("t", "b") as b,
                one.join("t", "c") as c,
            ):
                error = await refused(a.share(["b", "gone"], "schema", {"x": 1}))
                assert error.details == {"missing": ["gone"]}
                await a.share(["b", "c", "b"], "schema", {"x": [1, None, "é"]})
                expected = Share("a", "schema", {"x": [1, None, "é"]})
                assert await received(b) == expected
                assert await received(c) == expected

    run(work())


def test_messages_have_a_size(opened: Open) -> None:
    """One that is too large is refused whole, and says the bound."""

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("t", "b"):
                for text in ("x" * MAX_MESSAGE, "é" * (MAX_MESSAGE // 2)):
                    error = await refused(a.query("b", text, SOON))
                    assert error.code is Code.LIMIT
                    assert str(MAX_MESSAGE) in str(error)

    run(work())


def test_messages_have_a_rate(opened: Open) -> None:
    """More than the allowed number in a second is refused."""

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("t", "b"):
                codes = set()
                for _ in range(MAX_RATE * 20):
                    try:
                        await a.share(["b"], "k", 1)
                    except ToolError as error:
                        codes.add(error.code)
                        break
                assert codes == {Code.LIMIT}

    run(work())


def test_an_inbox_that_nobody_reads_fills_up(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender is refused; the memory of the host is bounded."""
    monkeypatch.setattr(coordination, "MAX_INBOX", 3)
    monkeypatch.setattr("executor.redis_coordination.MAX_INBOX", 3)

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("t", "b"):
                for _ in range(3):
                    await a.share(["b"], "k", 1)
                assert (await refused(a.share(["b"], "k", 1))).code is Code.LIMIT
                assert (await refused(a.query("b", "?", SOON))).code is Code.LIMIT

    run(work())


def test_the_host_alerts_and_stops(opened: Open) -> None:
    """All of a tenant, or some; another tenant hears nothing; subscribers hear all."""

    async def work() -> None:
        async with opened() as host, opened() as one:
            heard = host.subscribe("t")
            listening = asyncio.ensure_future(anext(heard))
            async with (
                one.join("t", "a b") as a,
                one.join("t", "c") as c,
                one.join("u", "x") as x,
            ):
                await until_listened(host, listening)
                assert await received(a) == Notification("main moved", {"to": 3})
                assert await received(c) == Notification("main moved", {"to": 3})
                await host.alert("t", "only c", None, ["c"])
                assert await received(c) == Notification("only c", None)
                await host.stop("t", "c", "budget")
                assert await received(c) == Stop("budget")
                await host.stop("u", "x", "done")
                assert await received(x) == Stop("done")
                assert (await refused(host.stop("t", "gone", "x"))).code is Code.NOT_FOUND
                assert await listening == Notification("main moved", {"to": 3})
            await heard.aclose()

    async def until_listened(host: Any, listening: asyncio.Future[Any]) -> None:
        redis = getattr(host, "redis", None)
        if redis is not None:
            while not (await redis.pubsub_numsub(host.key("t", "alerts")))[0][1]:
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)
        await host.alert("t", "main moved", {"to": 3})

    run(work())


def test_a_name_is_taken_once(opened: Open) -> None:
    """Two open loops of a tenant can't have one name; afterwards it is free."""

    async def work() -> None:
        async with opened() as one, opened() as two:
            async with one.join("t", "a"):
                with pytest.raises(ConfigError, match="is open"):
                    async with two.join("t", "a"):
                        pass
                async with two.join("u", "a"):
                    pass
            async with two.join("t", "a"):
                pass

    run(work())


def test_nothing_is_left_on_the_server(redis_url: str) -> None:
    """After the loops have closed no key of theirs is there."""
    from executor.redis_coordination import RedisCoordinator

    async def work() -> None:
        async with RedisCoordinator(redis_url, "left") as one:
            async with one.join("t", "a") as a, one.join("t", "b") as b:
                asking = asyncio.create_task(a.query("b", "?", SOON))
                message = await received(b)
                assert isinstance(message, Query)
                await b.answer(message.id, "x")
                await asking
                await a.share(["b"], "k", 1)
            assert [key async for key in one.redis.scan_iter(match="left:*")] == []

    run(work())


def test_bytes_that_nobody_reads_are_bounded(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large messages fill an inbox as many small ones do; reading makes room again."""
    monkeypatch.setattr(coordination, "MAX_WAITING", 200_000)
    monkeypatch.setattr("executor.redis_coordination.MAX_WAITING", 200_000)

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("t", "b") as b:
                for _ in range(2):
                    await a.share(["b"], "k", "x" * 120_000)
                assert (await refused(a.share(["b"], "k", 1))).code is Code.LIMIT
                assert (await refused(a.query("b", "?", SOON))).code is Code.LIMIT
                await received(b)
                await a.share(["b"], "k", 1)

    run(work())


def test_kinds_of_data_have_a_size(opened: Open) -> None:
    """What names the data counts as the data does."""

    async def work() -> None:
        async with opened() as one:
            async with one.join("t", "a") as a, one.join("t", "b"):
                error = await refused(a.share(["b"], "k" * MAX_MESSAGE, 1))
                assert error.code is Code.LIMIT
                error = await refused(a.share(["x" * MAX_MESSAGE], "k", 1))
                assert error.code is Code.NOT_FOUND and len(str(error)) < 1000

    run(work())


@contextmanager
def own_server(socket: Path) -> Iterator[None]:
    """A Redis server that a test can end."""
    if REDIS is None:
        pytest.skip("redis-server is not installed; .ci/run installs it where it can be had")
    options = [
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--dir",
        str(socket.parent),
    ]
    with subprocess.Popen([REDIS, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "ready to accept connections" in line.lower():
                break
        try:
            yield
        finally:
            server.kill()
            server.communicate(timeout=SOON)


def test_a_server_that_dies_and_comes_back(tmp_path: Path) -> None:
    """Meanwhile each call is refused with the reason; afterwards loops and subscribers go on."""
    from executor.redis_coordination import RedisCoordinator

    socket = tmp_path / "socket"

    async def work() -> None:
        with contextlib.ExitStack() as first:
            first.enter_context(own_server(socket))
            one = await stack.enter_async_context(RedisCoordinator(f"unix://{socket}"))
            a = await stack.enter_async_context(one.join("t", "a"))
            b = await stack.enter_async_context(one.join("t", "b"))
            heard = asyncio.create_task(_first(one))
            while not await one.redis.pubsub_channels():
                await asyncio.sleep(0)
        for refusal in (a.query("b", "?", SOON), a.share(["b"], "k", 1), one.alert("t", "k", 1)):
            assert (await refused(refusal)).code is Code.NETWORK_ERROR
        with pytest.raises(ConfigError, match="can't be reached"):
            async with one.join("t", "c"):
                pass
        with own_server(socket):
            while not await one.redis.pubsub_channels():
                pass
            await one.alert("t", "back", 1)
            assert await heard == Notification("back", 1)
            while not await one.redis.exists(one.key("t", "loop", "b")):
                pass
            await a.share(["b"], "k", 1)
            while not isinstance(message := await received(b), Share):
                pass
            assert message == Share("a", "k", 1)

    async def whole() -> None:
        async with stack:
            await work()

    stack = contextlib.AsyncExitStack()
    run(whole())


async def _first(coordinator: Coordinator) -> Notification:
    async for notification in coordinator.subscribe("t"):
        return notification
    raise AssertionError("the subscription ended")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """The mend is in the error, at the start."""
    from executor.redis_coordination import RedisCoordinator

    async def work() -> None:
        with pytest.raises(ConfigError, match="can't be reached"):
            async with RedisCoordinator(f"unix://{tmp_path}/none"):
                pass

    run(work())
