"""Coordinates loops of several processes over a Redis server.

Keys are `executor:TENANT:…`; names are escaped, so no tenant reaches another's. A loop is open
while its `loop` key lives, which its process renews; all that was meant for it goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from executor.coordination import (
    MAX_INBOX,
    MAX_WAITING,
    Member,
    Message,
    Notification,
    Query,
    Rate,
    Share,
    Stop,
    checked_targets,
    closed_meanwhile,
    encoded,
    in_a_circle,
    no_loop,
    nobody_waits,
    too_full,
    unanswered,
)
from executor.errors import Code, ConfigError, ToolError

LEASE = 15
"""Seconds after which the loops of a dead process count as closed."""
RENEWAL = 5.0
"""Seconds between two renewals."""
PATIENCE = 5.0
"""Seconds that the server may take to answer."""
SLICE = 1.0
"""Seconds between two looks whether the one that was asked is still there."""

_DIVIDING = re.compile(r"[^A-Za-z0-9_.~-]+")
_SEND = """
for n = 2, #KEYS, 2 do
    if redis.call('EXISTS', KEYS[n]) == 0 then return 'missing' end
    if redis.call('LLEN', KEYS[n + 1]) >= tonumber(ARGV[2]) then return 'full' end
    local size = redis.call('MEMORY', 'USAGE', KEYS[n + 1], 'SAMPLES', 0) or 0
    if size >= tonumber(ARGV[4]) then return 'full' end
end
for n = 2, #KEYS, 2 do
    redis.call('RPUSH', KEYS[n + 1], ARGV[1])
    redis.call('EXPIRE', KEYS[n + 1], ARGV[3])
end
return 'sent'
"""
"""All of them, or none. KEYS: unused, then loop and inbox of each target; ARGV: message,
room, seconds, room in bytes."""

_ASK = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 'missing' end
local seen, left = {}, {ARGV[5]}
while #left > 0 do
    local name = table.remove(left)
    if name == ARGV[4] then return 'circle' end
    if not seen[name] then
        seen[name] = true
        for _, asked in ipairs(redis.call('HKEYS', ARGV[6] .. name)) do
            table.insert(left, asked)
        end
    end
end
if redis.call('LLEN', KEYS[2]) >= tonumber(ARGV[2]) then return 'full' end
local size = redis.call('MEMORY', 'USAGE', KEYS[2], 'SAMPLES', 0) or 0
if size >= tonumber(ARGV[8]) then return 'full' end
redis.call('HINCRBY', KEYS[3], ARGV[5], 1)
redis.call('EXPIRE', KEYS[3], ARGV[3])
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[4], ARGV[5], 'EX', ARGV[7])
return 'sent'
"""
"""KEYS: the target's loop and inbox, what the sender waits for, the open question; ARGV:
message, room, seconds, sender, target, beginning of the keys of what loops wait for, seconds
that the question stays open, room in bytes."""

_ANSWER = """
if redis.call('DEL', KEYS[1]) == 0 then return 'late' end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 'sent'
"""
"""KEYS: the open question, its answer; ARGV: text, seconds."""


_RENEW = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 'taken' end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return 'renewed'
"""
_LEAVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) end
return 'left'
"""
"""KEYS: loop, inbox, what it waits for; ARGV: its nonce, so that a loop of another process
which has taken the name meanwhile keeps what is its own."""


class RedisCoordinator:
    """See `Coordinator`. An async context manager; it closes its connections.

    Args:
        url: of the server, `redis://host:port/0` or `unix:///path`.
        prefix: of all keys.
    """

    def __init__(self, url: str, prefix: str = "executor") -> None:
        self.redis: Redis = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=PATIENCE,
            socket_connect_timeout=PATIENCE,
            # At once, for a connection that had ended unseen; the library's own way waits long.
            retry=Retry(NoBackoff(), 1),
        )
        self._prefix = prefix

    async def __aenter__(self) -> RedisCoordinator:
        """Raises ConfigError: the server does not answer."""
        try:
            await _waited(self.redis.ping())
        except (RedisError, OSError) as error:
            await self.redis.aclose()
            raise _not_there(error) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.redis.aclose()

    def key(self, tenant: str, kind: str, name: str = "") -> str:
        """The key of a thing of a tenant."""
        return ":".join((self._prefix, _quoted(tenant), kind, _quoted(name)))

    @contextlib.asynccontextmanager
    async def join(self, tenant: str, exec_id: str) -> AsyncGenerator[Member]:
        """See `Coordinator.join`."""
        member = _RedisMember(self, tenant, exec_id)
        try:
            is_ours = await self.redis.set(member.key("loop"), member.nonce, nx=True, ex=LEASE)
        except (RedisError, OSError) as error:
            raise _not_there(error) from error
        if not is_ours:
            raise ConfigError(f"exec_id: a loop {exec_id!r} is open; give another name")
        renewing = asyncio.create_task(member.renew())
        try:
            yield member
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            await member.close()

    async def alert(
        self, tenant: str, kind: str, data: Any, targets: Sequence[str] | None = None
    ) -> None:
        """See `Coordinator.alert`."""
        message = {"is": "alert", "kind": kind, "data": data}
        text = encoded(message)
        try:
            if targets is None:
                await self._alert_all(tenant, message)
            else:
                await self.send(tenant, targets, message)
            await self.redis.publish(self.key(tenant, "alerts"), text)
        except (RedisError, OSError) as error:
            raise unreachable(error) from error

    async def _alert_all(self, tenant: str, message: dict[str, Any]) -> None:
        start = self.key(tenant, "loop")
        keys = [key async for key in self.redis.scan_iter(match=f"{_literal(start)}*")]
        for key in keys:
            with contextlib.suppress(ToolError):
                await self.send(tenant, [key[len(start) :]], message, quoted=True)

    async def subscribe(self, tenant: str) -> AsyncGenerator[Notification]:
        """See `Coordinator.subscribe`."""
        while True:
            try:
                async with self.redis.pubsub() as channel:
                    await channel.subscribe(self.key(tenant, "alerts"))
                    async for item in channel.listen():
                        if item["type"] == "message":
                            message = json.loads(item["data"])
                            yield Notification(message["kind"], message["data"])
            except (RedisError, OSError):
                # The server may come back; what was said meanwhile is gone.
                await asyncio.sleep(SLICE)

    async def stop(self, tenant: str, exec_id: str, reason: str) -> None:
        """See `Coordinator.stop`."""
        await self.send(tenant, [exec_id], {"is": "stop", "reason": reason})

    async def send(
        self, tenant: str, targets: Sequence[str], message: dict[str, Any], quoted: bool = False
    ) -> None:
        """Put a message into the inboxes of all the targets, or of none.

        Args:
            tenant: whose.
            targets: their exec_ids.
            message: what.
            quoted: the names are escaped already.

        Raises:
            ToolError: NOT_FOUND, LIMIT.
        """
        keys = [""]
        for name in targets:
            for kind in ("loop", "inbox"):
                key = self.key(tenant, kind)
                keys.append(key + (name if quoted else _quoted(name)))
        text = encoded(message)
        sent = await self.script(_SEND, keys, [text, MAX_INBOX, LEASE, MAX_WAITING])
        if sent == "missing":
            there = [await self.redis.exists(key) for key in keys[1::2]]
            raise no_loop(n for n, alive in zip(targets, there, strict=True) if not alive)
        if sent == "full":
            raise too_full(", ".join(targets))

    async def script(self, text: str, keys: Sequence[str], values: Sequence[Any]) -> str:
        """Run a script on the server.

        Raises:
            ToolError: NETWORK_ERROR, the server does not answer.
        """
        try:
            found = self.redis.eval(text, len(keys), *keys, *values)
            return str(await _waited(found))
        except (RedisError, OSError) as error:
            raise unreachable(error) from error


async def _waited(found: Any) -> Any:
    # The library's types leave open whether a call has to be awaited.
    return await cast(Awaitable[Any], found)


def _quoted(text: str) -> str:
    """A name as part of a key, in which nothing divides parts or is a pattern."""
    return _DIVIDING.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def _literal(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "*?[]\\" else sign for sign in text)


def _not_there(error: Exception) -> ConfigError:
    return ConfigError(
        f"coordination: the Redis server can't be reached ({error}); start it, or leave "
        "its address out for loops of one process"
    )


def unreachable(error: Exception) -> ToolError:
    """The refusal when the server is gone."""
    return ToolError(
        Code.NETWORK_ERROR,
        f"The coordination server can't be reached ({type(error).__name__}). Go on without the "
        "other loops, or try again later.",
    )


class _RedisMember:
    def __init__(self, coordinator: RedisCoordinator, tenant: str, exec_id: str) -> None:
        self.nonce = secrets.token_hex(8)
        self._coordinator = coordinator
        self._redis = coordinator.redis
        self._tenant = tenant
        self._exec_id = exec_id
        self._rate = Rate()
        self._is_closed = asyncio.Event()

    def key(self, kind: str, name: str | None = None) -> str:
        """The key of a thing of this loop, or of another one."""
        return self._coordinator.key(self._tenant, kind, self._exec_id if name is None else name)

    async def renew(self) -> None:
        """Stay open."""
        while True:
            await asyncio.sleep(RENEWAL)
            with contextlib.suppress(ToolError):
                await self._coordinator.script(_RENEW, self._own_keys(), [self.nonce, LEASE])

    async def query(self, target: str, question: str, timeout: float) -> str:
        [target] = checked_targets(self._exec_id, [target])
        self._rate.count()
        query_id = f"query-{secrets.token_hex(8)}"
        message = {"is": "query", "id": query_id, "sender": self._exec_id, "question": question}
        keys = [
            self.key("loop", target),
            self.key("inbox", target),
            self.key("waits"),
            self.key("open", query_id),
        ]
        values = [encoded(message), MAX_INBOX, LEASE, _quoted(self._exec_id)]
        values += [_quoted(target), self.key("waits", ""), int(timeout) + LEASE]
        values.append(MAX_WAITING)
        refusals = {"missing": no_loop([target]), "circle": in_a_circle(target)}
        refusals["full"] = too_full(target)
        sent = await self._coordinator.script(_ASK, keys, values)
        if sent in refusals:
            raise refusals[sent]
        try:
            return await self._answer_to(query_id, target, timeout)
        except (RedisError, OSError) as error:
            raise unreachable(error) from error
        finally:
            await asyncio.shield(self._asked_no_more(query_id, target))

    async def _answer_to(self, query_id: str, target: str, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            wait = min(left, SLICE)
            found = await _waited(self._redis.blpop([self.key("answer", query_id)], timeout=wait))
            if found is not None:
                return str(json.loads(found[1]))
            if not await self._redis.exists(self.key("loop", target)):
                raise closed_meanwhile(target)
        raise unanswered(target, timeout)

    async def _asked_no_more(self, query_id: str, target: str) -> None:
        with contextlib.suppress(RedisError, OSError):
            waits, name = self.key("waits"), _quoted(target)
            if await _waited(self._redis.hincrby(waits, name, -1)) <= 0:
                await _waited(self._redis.hdel(waits, name))
            await self._redis.delete(self.key("open", query_id), self.key("answer", query_id))

    async def share(self, targets: Sequence[str], kind: str, data: Any) -> None:
        targets = checked_targets(self._exec_id, targets)
        encoded(data)
        self._rate.count(len(targets))
        message = {"is": "share", "sender": self._exec_id, "kind": kind, "data": data}
        await self._coordinator.send(self._tenant, targets, message)

    async def inbox(self) -> AsyncGenerator[Message]:
        while not self._is_closed.is_set():
            try:
                found = await _waited(self._redis.blpop([self.key("inbox")], timeout=SLICE))
            except (RedisError, OSError):
                # The server may come back; what was in it is gone then.
                await asyncio.sleep(SLICE)
                continue
            if found is not None:
                yield _message_of(json.loads(found[1]))

    async def answer(self, query_id: str, text: str) -> None:
        keys = [self.key("open", query_id), self.key("answer", query_id)]
        sent = await self._coordinator.script(_ANSWER, keys, [encoded(text), LEASE])
        if sent == "late":
            raise nobody_waits(query_id)

    async def close(self) -> None:
        """Count as closed; nothing is left on the server."""
        self._is_closed.set()
        with contextlib.suppress(ToolError):
            await self._coordinator.script(_LEAVE, self._own_keys(), [self.nonce])

    def _own_keys(self) -> list[str]:
        return [self.key(kind) for kind in ("loop", "inbox", "waits")]


def _message_of(value: dict[str, Any]) -> Message:
    match value["is"]:
        case "query":
            return Query(value["id"], value["sender"], value["question"])
        case "share":
            return Share(value["sender"], value["kind"], value["data"])
        case "alert":
            return Notification(value["kind"], value["data"])
        case _:
            return Stop(value["reason"])
