"""Tasks at the agent: begun, looked at, waited for, ended. Over both transports."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor.errors import Code, ProtocolError, ToolError
from executor.model import Limits
from executor.sandbox.connection import Answer
from executor.sandbox.replies import shape_of
from tests.conftest import docker_box
from tests.driver import Box, LoopThread, wait_until

COMMAND: dict[str, Any] = {
    "argv": None,
    "script": None,
    "args": [],
    "cwd": None,
    "environment": {},
    "timeout": None,
    "grace": 0.5,
    "merge": False,
    "head": 1000,
    "tail": 1000,
    "stream": False,
    "shelve": True,
}


def begin(box: Box, name: str, command: str, **more: Any) -> int:
    """The number of the call that began a task."""
    asked = {**COMMAND, "task": name, "command": command, **more}
    call = box.request("begin", asked).value["call"]
    assert isinstance(call, int)
    return call


def ask(box: Box, op: str, name: str, **more: Any) -> Answer:
    return box.request(op, {"task": name, "head": 1000, "tail": 1000, **more})


def waiting(box: Box, name: str) -> concurrent.futures.Future[Answer]:
    """Somebody who waits for a task's end."""
    asked = {"task": name, "head": 1000, "tail": 1000, "grace": 0.5}
    return asyncio.run_coroutine_threadsafe(
        box.sandbox.request("await_task", asked), box.thread.loop
    )


def left(box: Box) -> list[dict[str, Any]]:
    calls = box.request("left", {}).value["calls"]
    assert isinstance(calls, list)
    return calls


def refused(action: Callable[[], object], code: Code) -> None:
    with pytest.raises(ToolError) as caught:
        action()
    assert caught.value.code is code


def test_a_task_is_answered_at_once_and_its_end_later(box: Box) -> None:
    """The call that begins it has its answer while it runs; the end goes to who waits."""
    begin(box, "a", "echo x; until [ -e go ]; do sleep 0.05; done; echo y; exit 3")
    end = waiting(box, "a")
    wait_until(lambda: ask(box, "peek", "a").data == b"x\n")
    assert not end.done()
    assert box.run("echo beside").out == b"beside\n"
    box.run("touch go")
    answer = end.result(30)
    assert (answer.value["exit_code"], answer.data) == (3, b"x\ny\n")
    refused(lambda: ask(box, "peek", "a"), Code.NOT_FOUND)
    box.run("rm go")


def test_an_end_waits_for_who_asks_late(box: Box) -> None:
    """Nobody waits as it ends: its end is kept for the first who asks, and told once."""
    begin(box, "b", "echo x; touch over")
    wait_until(lambda: box.run("[ -e over ]").code == 0)
    answer = waiting(box, "b").result(30)
    assert (answer.value["exit_code"], answer.data) == (0, b"x\n")
    refused(lambda: waiting(box, "b").result(30), Code.NOT_FOUND)
    box.run("rm over")


def test_who_no_longer_waits_leaves_the_task_alone(box: Box) -> None:
    """The wait is cancelled, the task goes on, and another may wait in its place."""
    begin(box, "c", "until [ -e go ]; do sleep 0.05; done; echo done")

    async def give_up() -> None:
        asked = {"task": "c", "head": 1000, "tail": 1000}
        task = asyncio.ensure_future(box.sandbox.request("await_task", asked))
        await box.sandbox.request("peek", {"task": "c", "head": 10, "tail": 10})
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    box.thread.run(give_up())
    end = waiting(box, "c")
    refused(lambda: waiting(box, "c").result(30), Code.CONFLICT)
    box.run("touch go")
    assert end.result(30).data == b"done\n"
    box.run("rm go")


def test_a_task_is_stopped_with_its_tree(box: Box) -> None:
    """TERM first, so that it may say goodbye; what does not heed it is killed; the whole
    output is kept. Stopping twice is fine."""
    command = "trap 'echo bye; exit 9' TERM; (trap '' TERM; sleep 997 & sleep 997) & wait; wait"
    begin(box, "d", f"seq 2000; {command}")
    end = waiting(box, "d")
    wait_until(lambda: ask(box, "peek", "d").data.endswith(b"2000\n"))
    for _ in range(2):
        assert ask(box, "stop_task", "d").value == {}
    value = end.result(30).value
    assert (value["cancelled"], value["timed_out"], value["exit_code"]) == (True, False, 9)
    assert end.result().data.endswith(b"bye\n")
    assert value["shelf"]["stdout"][0] == value["stdout"]["total"] == 8893 + 4
    assert b"sleep" not in b"".join(one["command"].encode() for one in left(box))


def test_a_name_is_one_tasks(box: Box) -> None:
    """A second of the same name is refused while the first is there, and then is another."""
    begin(box, "e", "sleep 996")
    refused(lambda: begin(box, "e", "true"), Code.EXISTS)
    ask(box, "stop_task", "e")
    waiting(box, "e").result(30)
    begin(box, "e", "echo again")
    assert waiting(box, "e").result(30).data == b"again\n"


def test_a_command_that_can_not_start_is_no_task(box: Box) -> None:
    """The failure is the answer, and the name is free."""
    refused(lambda: begin(box, "f", "true", cwd="no/such"), Code.FILE_NOT_FOUND)
    refused(lambda: ask(box, "peek", "f"), Code.NOT_FOUND)


def test_leftovers_are_told_by_their_call(box: Box) -> None:
    """What a task or a call left running is listed with its call, and each is ended alone."""
    begin(box, "g", "sleep 995 & sleep 995 & exit 0")
    waiting(box, "g").result(30)
    box.run("(setsid sleep 994 &)")
    # What has been forked has to become a sleep first.
    wait_until(lambda: {"sleep 994", "sleep 995"} <= {one["command"] for one in left(box)})
    wait_until(lambda: 2 in [one["processes"] for one in left(box) if one["task"] == "g"])
    found = {one["command"]: one for one in left(box)}
    first, second = found["sleep 995"], found["sleep 994"]
    assert (first["task"], first["processes"]) == ("g", 2)
    assert (second["task"], second["processes"]) == (None, 1)
    ended = box.request("end_left", {"task": "g", "grace": 0.5})
    assert ended.value == {"ended": 2}
    assert [one["command"] for one in left(box) if one["command"] in found] == ["sleep 994"]
    ended = box.request("end_left", {"call": second["call"], "grace": 0.5})
    assert ended.value == {"ended": 1}
    assert box.request("end_left", {"call": second["call"], "grace": 0.5}).value == {"ended": 0}


def test_what_sheds_its_marks_is_listed_as_nobodys(container: Box) -> None:
    """An orphan without the call's variable is call 0, and can be ended as that."""
    container.run("setsid env -i /bin/sleep 993 & sleep 0.2; echo hi")
    wait_until(lambda: "/bin/sleep 993" in [one["command"] for one in left(container)])
    (one,) = [one for one in left(container) if "993" in one["command"]]
    assert (one["call"], one["task"]) == (0, None)
    assert container.request("end_left", {"call": 0, "grace": 0.5}).value["ended"] >= 1
    assert not [one for one in left(container) if "993" in one["command"]]


def test_at_the_process_limit_tasks_make_room(loop_thread: LoopThread, tmp_path: Path) -> None:
    """A task that fills the box does not stop the loop: it is ended, and both are told."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="512m", pids=64), "full")
    begin(box, "h", "while :; do sleep 992 & done 2>/dev/null")
    end = waiting(box, "h")
    wait_until(lambda: _is_full(box))
    ran = box.run("/bin/echo back")
    assert ran.out == b"back\n"
    value = end.result(30).value
    assert (value["exit_code"], value["signal"]) == (None, "SIGKILL")


def _is_full(box: Box) -> bool:
    try:
        return any("background processes" in note for note in box.run("/bin/true").value["notes"])
    except ToolError as error:
        return error.code is Code.LIMIT


STREAM = {"total": 2, "head": 1, "tail": 1}
LEFT = {"call": 1, "task": None, "processes": 1, "command": "x"}


@pytest.mark.parametrize(
    ("op", "value", "data"),
    [
        ("begin", {}, b""),
        ("begin", {"call": "1"}, b""),
        ("peek", {"stdout": STREAM}, b"x"),
        ("peek", {"stdout": {**STREAM, "total": 1}}, b"xx"),
        ("peek", {"stdout": STREAM, "path": "/etc"}, b"xx"),
        ("stop_task", {"x": 1}, b""),
        ("end_left", {"ended": -1}, b""),
        ("left", {"calls": [{**LEFT, "more": 1}]}, b""),
        ("left", {"calls": [{**LEFT, "call": None}]}, b""),
        ("left", {"calls": [{**LEFT, "command": "x" * 10_000}]}, b""),
        ("left", {"calls": [LEFT] * 201}, b""),
        ("await_task", {"exit_code": 0}, b""),
    ],
)
def test_answers_that_no_agent_of_ours_gives_are_refused(
    op: str, value: dict[str, Any], data: bytes
) -> None:
    """Fields that are missing, too many, too long or do not fit cost the box."""
    shape = shape_of(op, {})
    assert shape is not None
    with pytest.raises(ProtocolError):
        shape.check(value, data)


def test_outputs_of_tasks_leave_room_for_those_of_commands(container: Box) -> None:
    """Tasks that print without an end never fill what scripts and outputs of commands need."""
    names = [f"flood{number}" for number in range(6)]
    for name in names:
        begin(container, name, "yes; sleep 600")
    for name in names:
        wait_until(partial(_has_printed, container, name, 40 << 20))
    script: dict[str, Any] = {"argv": ["bash"], "script": ".sh", "body": b"seq 300000"}
    ran = container.run(None, **script, head=10, tail=10, shelve=True)
    assert ran.code == 0 and ran.value["shelf"]["stdout"] == [1_988_895, 1_988_895, 0]
    for name in names:
        ask(container, "stop_task", name)
        assert waiting(container, name).result(60).value["cancelled"] is True


def _has_printed(box: Box, name: str, size: int) -> bool:
    return int(ask(box, "peek", name).value["stdout"]["total"]) > size
