"""What leaves a loop holds no value of its secrets, whatever its box knows."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from executor.controller import Controller
from executor.egress.secrets import PREFIX, Secrets
from executor.errors import Code, ToolError
from executor.model import Call, EgressOptions, Event, LoopSpec, Output, Result, Secret
from executor.redaction import redact_error, redacted
from executor.settings import Settings
from executor.setup import SetupFailed
from tests.conftest import LIMITS, make_worktree
from tests.loops import opener

VALUE = "canary-4f9aZq77"
SECRET = Secret("TOKEN", VALUE, ("upstream.example",))


def _shown(made: object) -> str:
    return json.dumps(dataclasses.asdict(made), default=str)  # type: ignore[call-overload]


@pytest.mark.statement("L5")
def test_what_a_set_up_prints_holds_no_value(tmp_path: Path) -> None:
    """Neither the lines that are told while it runs nor the error that it ends with."""
    root = make_worktree(tmp_path / "worktree")
    (root / ".env").write_text(f"TOKEN={VALUE}\n")
    told: list[str] = []

    async def scenario() -> None:
        (tmp_path / "state").mkdir()
        made = Controller(
            Settings(state_directory=tmp_path / "state"),
            opener=opener("local", tmp_path),
            progress=lambda line, done, total: told.append(line),
        )
        spec = LoopSpec(
            worktree=root,
            limits=LIMITS,
            egress=EgressOptions(hosts=("upstream.example",)),
            secrets=(SECRET,),
            setup=f"cat .env; test -n {VALUE}; exit 3",
        )
        async with made as controller, controller.open(spec):
            pass

    with pytest.raises(SetupFailed, match="exit code 3") as failed:
        asyncio.run(scenario())
    mask = f"TOKEN={'*' * len(VALUE)}"
    assert mask in str(failed.value) and any(mask in line for line in told)
    assert VALUE not in "".join([str(failed.value), *told])


@pytest.mark.statement("L5")
def test_a_value_that_a_box_knows_is_in_no_result_and_no_event(tmp_path: Path) -> None:
    """Of commands, their live output and their failures, and of files; boxes get placeholders."""
    root = make_worktree(tmp_path / "worktree")
    (root / ".env").write_text(f"TOKEN={VALUE}\n")
    split = f"printf %s {VALUE[:6]}; sleep 0.3; echo '{VALUE[6:]} done'"
    lines = {
        "printed": "cat .env; cat .env >&2",
        "live": split,
        "failed": "cat .env; exit 3",
        "long": 'yes "$(cat .env)" | head -n 10000',
    }
    opened: list[LoopSpec] = []
    calls = [Call(name, "run_command", {"command": line}) for name, line in lines.items()]
    calls.append(Call("read", "read_file", {"path": ".env"}))
    spec = LoopSpec(
        worktree=root,
        limits=LIMITS,
        egress=EgressOptions(hosts=("upstream.example",)),
        secrets=(SECRET,),
    )

    async def scenario() -> tuple[list[Event], list[Result]]:
        settings = Settings(state_directory=tmp_path / "state")
        (tmp_path / "state").mkdir()
        local = opener("local", tmp_path)
        made = Controller(settings, opener=lambda spec: opened.append(spec) or local(spec))  # type: ignore[func-returns-value]
        async with made as controller, controller.open(spec) as loop:
            events = [event async for event in loop.stream(calls)]
            return events, await loop.turn(calls)

    events, results = asyncio.run(scenario())
    told = "".join(one.text for one in events if isinstance(one, Output) and one.call_id == "live")
    assert told == "*" * len(VALUE) + " done\n"
    # What the model itself has written in a command is its call's.
    assert all(VALUE not in _shown(one) for one in (*events, *results))
    by_name = {one.id: one for one in results}
    assert "*" * len(VALUE) in str(by_name["read"].content)
    assert by_name["long"].truncated and by_name["failed"].is_error
    assert {one.environment["TOKEN"][: len(PREFIX)] for one in opened} == {PREFIX}


def test_data_and_errors_are_masked_and_nothing_else_is_touched() -> None:
    """In what they were raised from, too; what holds no value is the same object."""
    secrets = Secrets.of((SECRET,))
    plain = Result("a", "b", "text", structured={"list": ["x", 1, None]})
    assert redacted(plain, secrets) is plain and redacted(plain, None) is plain
    held = Result("a", "b", [{"type": "text", "text": VALUE}], structured={VALUE: (VALUE, 1)})
    assert VALUE not in _shown(redacted(held, secrets)) and VALUE in _shown(held)
    error = ToolError(Code.INTERNAL, f"it said {VALUE}", {"said": [VALUE]})
    error.__cause__ = ValueError(f"cause {VALUE}")
    redact_error(error, secrets)
    assert VALUE not in f"{error} {error.details} {error.__cause__!r}"
