"""From names to connections: what was checked is what is dialled, and nobody waits for others."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.egress import Dialler, Patience, Reason, Refused
from executor.egress.addresses import Address, fault, is_own, plain
from executor.egress.dialling import MAX_ADDRESSES, MAX_DIALS, MAX_LOOKUPS
from tests.egress.proxying import Names, run

HOST = "files.example"
PUBLIC = ("9.9.9.9", "2606:4700::7", "8.8.4.4")
PRIVATE = ("10.0.0.1", "127.0.0.1", "fd00::1", "169.254.169.254", "64:ff9b::a00:1")


class Network:
    """Where dials end up: it remembers them, and answers at some addresses."""

    def __init__(self, *answering: str) -> None:
        self.answering = answering
        self.dialled: list[str] = []

    async def __call__(self, address: Address) -> str:
        self.dialled.append(str(address))
        if str(address) in self.answering:
            return "connected"
        raise OSError(errno.EHOSTUNREACH, "No route to host")


def dialler(
    answers: Sequence[str] | str, patience: Patience | None = None
) -> tuple[Dialler, Names]:
    """One whose name server answers so."""
    names = Names()
    names.answers[HOST] = answers
    return Dialler(names, patience or Patience()), names


@pytest.mark.statement("F3")
@settings(deadline=None)
@given(st.permutations([*PUBLIC, *PRIVATE]))
def test_of_a_mixed_answer_only_public_addresses_are_dialled(order: list[str]) -> None:
    """In their order, until one answers."""

    async def scenario() -> None:
        made, names = dialler(order)
        network = Network()
        with pytest.raises(Refused) as caught:
            await made.reach(HOST, 443, False, network)
        assert caught.value.reason is Reason.UNREACHABLE
        assert network.dialled == [one for one in order if one in PUBLIC]
        assert names.asked == [HOST]

    run(scenario())


@settings(deadline=None)
@given(st.lists(st.ip_addresses(), min_size=1, max_size=12, unique=True))
def test_no_address_is_dialled_that_is_refused(answer: list[Address]) -> None:
    """Whatever a name server says."""

    async def scenario() -> None:
        made, _ = dialler([str(one) for one in answer])
        network = Network()
        with pytest.raises(Refused):
            await made.reach(HOST, 443, False, network)
        good = {plain(one) for one in answer if fault(one) is None and not is_own(plain(one))}
        assert set(network.dialled) <= set(map(str, good))
        assert len(network.dialled) == min(len(good), MAX_ADDRESSES)

    run(scenario())


@pytest.mark.statement("F4")
def test_a_name_is_resolved_once_and_its_checked_address_dialled() -> None:
    """A name server that says something else the next time is not asked a next time."""

    async def scenario() -> None:
        made, names = dialler("")
        turns = iter([PUBLIC[0], "127.0.0.1", "127.0.0.1"])
        names.answers[HOST] = lambda: next(turns)
        network = Network(PUBLIC[0], "127.0.0.1")
        found = await made.reach(HOST, 443, False, network)
        assert (found[0], str(found[1])) == ("connected", PUBLIC[0])
        assert (names.asked, network.dialled) == ([HOST], [PUBLIC[0]])
        with pytest.raises(Refused) as caught:
            await made.reach(HOST, 443, False, network)
        assert caught.value.reason is Reason.ADDRESS
        assert network.dialled == [PUBLIC[0]]

    run(scenario())


@pytest.mark.statement("F3", "F4")
def test_a_rebinding_name_never_connects_to_this_host() -> None:
    """A real server on the loopback; a name leads to where nobody answers, and then to it."""

    async def scenario() -> None:
        seen: list[object] = []
        server = await asyncio.start_server(lambda *ends: seen.append(ends), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        made, names = dialler("", Patience(connect=0.05, dial=0.2))
        count = 0

        def turning() -> str:
            nonlocal count
            count += 1
            return "192.0.2.1" if count == 1 else "127.0.0.1"

        names.answers[HOST] = turning
        async with server:
            for dials in range(1, 9):
                count = 0
                with pytest.raises(Refused) as caught:
                    await made.dial(HOST, port)
                assert caught.value.reason is not Reason.ADDRESS, "the first answer was dialled"
                assert names.asked == [HOST] * dials
        assert seen == []

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "helps"),
    [
        (["10.0.0.1"], True),
        (["127.0.0.1"], True),
        (["169.254.169.254"], False),
        (["240.0.0.1", "fd00:ec2::254"], False),
        (["169.254.169.254", "10.0.0.1"], True),
    ],
)
def test_an_option_is_named_only_where_it_helps(answer: list[str], helps: bool) -> None:
    """What is said about a refused address is true: with that option the host is reached."""

    async def scenario() -> None:
        made, _ = dialler(answer)
        with pytest.raises(Refused) as caught:
            await made.check(HOST, 443)
        assert caught.value.reason is Reason.ADDRESS
        assert (f"--egress-private {HOST}" in str(caught.value)) is helps
        if helps:
            assert [str(one) for one in await made.check(HOST, 443, True)] == answer[-1:]
            return
        assert "no option allows" in str(caught.value)
        with pytest.raises(Refused):
            await made.check(HOST, 443, True)

    run(scenario())


def test_an_address_of_this_host_is_refused_though_it_looks_public() -> None:
    """As a cloud's public address that leads to the machine itself; in whatever form."""

    async def scenario() -> None:
        own = _own_address()
        if own is None:
            pytest.skip("this machine has no address but its loopback")
        number = int(ip_address(own))
        wrapped = (f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1", f"64:ff9b::{own}")
        for text in (own, f"::ffff:{own}", *wrapped):
            made, _ = dialler(text)
            network = Network()
            with pytest.raises(Refused) as caught:
                await made.reach(HOST, 443, False, network)
            assert caught.value.reason is Reason.ADDRESS
            assert network.dialled == []

    run(scenario())


def _own_address() -> str | None:
    """The address that this machine speaks to others from; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_addresses_are_tried_until_one_answers() -> None:
    """One that refuses, or says nothing, does not keep the others from it."""

    async def scenario() -> None:
        made, _ = dialler(PUBLIC, Patience(connect=0.05))

        async def connect(address: Address) -> str:
            if str(address) == PUBLIC[0]:
                await asyncio.Event().wait()
            if str(address) == PUBLIC[1]:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return str(address)

        found, address = await made.reach(HOST, 443, False, connect)
        assert found == str(address) == PUBLIC[2]

    run(scenario())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), Reason.REFUSED),
        (OSError(errno.ENETUNREACH, "x"), Reason.UNREACHABLE),
        (OSError(errno.ETIMEDOUT, "x"), Reason.DIAL_SLOW),
        (TimeoutError(), Reason.DIAL_SLOW),
    ],
)
def test_what_went_wrong_is_told_apart(error: OSError, reason: Reason) -> None:
    """Refused, unreachable, too slow."""

    async def connect(address: Address) -> None:
        raise error

    async def scenario() -> None:
        made, _ = dialler(PUBLIC)
        with pytest.raises(Refused) as caught:
            await made.reach(HOST, 443, False, connect)
        assert caught.value.reason is reason
        assert not caught.value.is_denial

    run(scenario())


@contextmanager
def hanging(names: Names, name: str) -> Iterator[threading.Event]:
    """A name whose server does not answer until the block is left."""
    release = threading.Event()

    def wait() -> list[str]:
        release.wait(20)
        return []

    names.answers[name] = wait
    try:
        yield release
    finally:
        release.set()


def test_a_name_server_that_hangs_keeps_nobody_else() -> None:
    """Its lookup is given up; others go on beside it."""

    async def scenario() -> None:
        made, names = dialler(PUBLIC[0], Patience(resolve=0.3))
        with hanging(names, "slow.example"):
            slow = asyncio.create_task(made.check("slow.example", 443))
            assert [str(one) for one in await made.check(HOST, 443)] == [PUBLIC[0]]
            with pytest.raises(Refused) as caught:
                await slow
            assert caught.value.reason is Reason.RESOLVER_SLOW

    run(scenario())


def test_names_that_hang_in_one_loop_keep_no_other_from_its_own() -> None:
    """Sixty-four of them, and another loop's dialler beside them, on the same event loop."""

    async def scenario() -> None:
        made, names = dialler(PUBLIC[0], Patience(resolve=0.5))
        other, _ = dialler(PUBLIC[1])
        with hanging(names, "slow.example"):
            asked = [asyncio.create_task(made.check("slow.example", 443)) for _ in range(64)]
            while not names.asked:
                await asyncio.sleep(0)
            assert [str(one) for one in await other.check(HOST, 443)] == [PUBLIC[1]]
            assert not any(one.done() for one in asked)
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert {one.reason for one in found if isinstance(one, Refused)} == {
                Reason.RESOLVER_SLOW
            }

    run(scenario())


def test_lookups_that_hang_are_never_more_than_so_many_threads() -> None:
    """Those that were given up count until they end; then there is room again."""

    async def scenario() -> None:
        made, names = dialler(PUBLIC[0], Patience(resolve=0.2))
        before = threading.active_count()
        with hanging(names, "slow.example") as release:
            asked = [made.check("slow.example", 443) for _ in range(3 * MAX_LOOKUPS)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(one, Refused) for one in found)
            assert threading.active_count() - before <= MAX_LOOKUPS
            with pytest.raises(Refused) as caught:
                await made.check(HOST, 443)
            assert caught.value.reason is Reason.RESOLVER_SLOW
            release.set()
            while True:
                try:
                    assert await made.check(HOST, 443)
                    break
                except Refused:
                    continue

    run(scenario())


def test_so_many_connections_are_made_at_a_time() -> None:
    """The others wait for their turn."""

    async def scenario() -> None:
        made, _ = dialler(PUBLIC[0])
        going, most = 0, 0
        release = asyncio.Event()
        full = asyncio.Event()

        async def connect(address: Address) -> None:
            nonlocal going, most
            going += 1
            most = max(most, going)
            if going == MAX_DIALS:
                full.set()
            await release.wait()
            going -= 1

        tasks = [
            asyncio.create_task(made.reach(HOST, 443, False, connect)) for _ in range(3 * MAX_DIALS)
        ]
        await full.wait()
        release.set()
        await asyncio.gather(*tasks)
        assert most == MAX_DIALS

    run(scenario())


def test_the_host_s_own_resolver_is_asked_by_default() -> None:
    """For a name of its hosts file; what it leads to is private."""

    async def scenario() -> None:
        made = Dialler()
        assert {str(one) for one in await made.check("localhost", 80, True)} <= {"127.0.0.1", "::1"}
        with pytest.raises(Refused) as caught:
            await made.check("localhost", 80)
        assert caught.value.reason is Reason.ADDRESS

    run(scenario())
