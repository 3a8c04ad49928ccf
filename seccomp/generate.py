"""Makes the system call profiles, and the account of how they differ from the engine's.

`python seccomp/generate.py` says which files are not current, `--write` makes them anew.

`groups.toml` is the source. What comes out is for one architecture each, an allow-list, and
compares nothing but masked 32-bit values. Four traps of the format (docs/seccomp.md) can't
be stepped into: two conditions on one argument in one rule, comparisons over 64 bits where
the kernel reads 32, a refusal equal to the default, 32-bit programs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "seccomp-difference.md"
PROFILES = ("standard", "strict")
ARCHITECTURES = {
    "x86_64": ("SCMP_ARCH_X86_64", "amd64"),
    "aarch64": ("SCMP_ARCH_AARCH64", "arm64"),
}
"""By machine name: libseccomp's name, and the one that the engine's profile uses."""
EPERM = 1
WHOLE = 0xFFFFFFFF
_BITS = 32

Test = tuple[int, int, int]
"""(argument, mask, value): the argument's bits under the mask are the value."""
Rule = tuple[Test, ...]
"""All of its tests hold; no test is about an argument of another one."""


@dataclass(frozen=True)
class Group:
    """System calls that are treated alike, and why.

    Attributes:
        calls: names that every architecture has.
        extra: more names, by architecture.
        rules: any of them lets a call pass; one empty rule = always.
        errno: the error that the calls get instead of passing; None = they pass.
        conditions: `rules` in words.
    """

    name: str
    reason: str
    calls: tuple[str, ...]
    extra: Mapping[str, tuple[str, ...]]
    profiles: tuple[str, ...]
    rules: tuple[Rule, ...]
    errno: int | None
    conditions: str

    def names(self, architecture: str) -> tuple[str, ...]:
        """The calls on this architecture."""
        return tuple(sorted({*self.calls, *self.extra.get(architecture, ())}))


@dataclass(frozen=True)
class Remark:
    """Why names of the engine's profile are in no group."""

    reason: str
    calls: frozenset[str]
    architecture: str | None


@dataclass(frozen=True)
class Source:
    """What `groups.toml` says.

    Attributes:
        refused: calls that the engine's default lets pass and we do not.
        foreign: names that the architecture does not have.
        closed: calls that are in neither list, to be refused where the rest passes.
    """

    groups: tuple[Group, ...]
    refused: tuple[Remark, ...]
    foreign: tuple[Remark, ...]
    closed: tuple[Remark, ...]

    def of(self, profile: str) -> Iterator[Group]:
        """The groups of one profile, in order."""
        return (group for group in self.groups if profile in group.profiles)


# ─── reading ────────────────────────────────────────────────────────────────────────────


def read(path: Path = HERE / "groups.toml") -> Source:
    """The source.

    Raises:
        ValueError: it can't be made into a profile that means what it says.
    """
    table = tomllib.loads(path.read_text("utf-8"))
    source = Source(
        groups=tuple(_group(entry) for entry in table["group"]),
        refused=tuple(_remark(entry) for entry in table["refused"]),
        foreign=tuple(_remark(entry) for entry in table["foreign"]),
        closed=tuple(_remark(entry) for entry in table["closed"]),
    )
    for profile in PROFILES:
        _check(source, profile)
    return source


def _group(entry: dict[str, Any]) -> Group:
    when = entry.get("when", [])
    places = [condition["argument"] for condition in when]
    if len(set(places)) != len(places):
        # A runtime takes two conditions on one argument for alternatives.
        raise ValueError(f"{entry['name']}: two conditions on one argument; write two groups")
    if entry.get("errno") == EPERM:
        raise ValueError(f"{entry['name']}: a refusal equal to the default is dropped by runc")
    return Group(
        name=entry["name"],
        reason=_line(entry["reason"]),
        calls=tuple(entry.get("calls", ())),
        extra={name: tuple(entry[name]) for name in ARCHITECTURES if name in entry},
        profiles=tuple(entry.get("profiles", PROFILES)),
        rules=tuple(itertools.product(*map(_alternatives, when))),
        errno=entry.get("errno"),
        conditions="; ".join(map(_words, when)),
    )


def _remark(entry: dict[str, Any]) -> Remark:
    calls = frozenset(entry["calls"])
    return Remark(_line(entry["reason"]), calls, entry.get("architecture"))


def _check(source: Source, profile: str) -> None:
    """A call without conditions would make every condition on it elsewhere worthless."""
    ways: dict[str, list[bool]] = {}
    for group in source.of(profile):
        for name in {*group.calls, *itertools.chain(*group.extra.values())}:
            ways.setdefault(name, []).append(group.rules == ((),))
    if twice := sorted(name for name, free in ways.items() if len(free) > 1 and any(free)):
        raise ValueError(f"{profile}: {', '.join(twice)}: with and without conditions")


def _alternatives(condition: dict[str, Any]) -> list[Test]:
    place, bits = condition["argument"], condition.get("bits", _BITS)
    mask = condition.get("mask", (1 << bits) - 1)
    if "is_not" in condition:
        cubes = everything_but(condition["is_not"].values(), bits)
        return [(place, mask, value) for mask, value in cubes]
    return [(place, mask, value) for value in condition["is"].values()]


def everything_but(values: Iterable[int], bits: int = _BITS) -> list[tuple[int, int]]:
    """(mask, value) pairs of which at least one fits every number of so many bits but these.

    An allow-list has no "not equal" that could be trusted: it compares 64 bits. But a
    number is another one exactly if it differs in some bit. Bits in which the values agree
    need one pair each; in the others every branch that no value takes needs one.
    """
    values = set(values)
    agreed = {bit for bit in range(bits) if len({value >> bit & 1 for value in values}) == 1}
    one = min(values)
    pairs = [(1 << bit, ~one & 1 << bit) for bit in sorted(agreed)]
    disputed = [bit for bit in range(bits) if bit not in agreed]
    return pairs + _branches(0, 0, disputed, values)


def _branches(mask: int, value: int, bits: list[int], left: set[int]) -> list[tuple[int, int]]:
    if not left:
        return [(mask, value)]
    if not bits:
        return []
    bit = 1 << bits[0]
    pairs = []
    for choice in (0, bit):
        there = {one for one in left if one & bit == choice}
        pairs += _branches(mask | bit, value | choice, bits[1:], there)
    return pairs


def _line(text: str) -> str:
    return " ".join(text.split())


def _words(condition: dict[str, Any]) -> str:
    key = "is_not" if "is_not" in condition else "is"
    names = ", ".join(condition[key])
    return f"argument {condition['argument']} {key.replace('_', ' ')} {names}"


# ─── profiles ───────────────────────────────────────────────────────────────────────────


def profile(source: Source, name: str, architecture: str) -> dict[str, Any]:
    """One profile in the form that engines take."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": [ARCHITECTURES[architecture][0]],
        "syscalls": [
            _entry(names, group.errno, rule)
            for group in source.of(name)
            if (names := group.names(architecture))
            for rule in group.rules
        ],
    }


def _entry(names: Sequence[str], errno: int | None, rule: Rule) -> dict[str, Any]:
    entry: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    if errno is not None:
        entry |= {"action": "SCMP_ACT_ERRNO", "errnoRet": errno}
    if rule:
        entry["args"] = [
            {"index": place, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}
            for place, mask, value in rule
        ]
    return entry


def gvisor_profile(source: Source, name: str, architecture: str) -> dict[str, Any]:
    """The same for gVisor, which takes no list of what passes (docs/seccomp.md says why).

    Refused are the names that are in no group and the flags that a group wants off. Other
    conditions, and other errors than EPERM, can't be said there.
    """
    refused = _closed(source, name, architecture)
    entries: list[dict[str, Any]] = [
        {"names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}
    ]
    for group in source.of(name):
        for place, mask in _flags_off(group):
            test = (place, mask, mask)
            entries.append(_entry(group.names(architecture), EPERM, (test,)))
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [ARCHITECTURES[architecture][0]],
        "syscalls": [entry for entry in entries if entry["names"]],
    }


def _closed(source: Source, name: str, architecture: str) -> list[str]:
    """Every call that we know of and no group of the profile has."""
    machine = ARCHITECTURES[architecture][1]
    table = json.loads((HERE / "engine" / "default.json").read_text("utf-8"))
    known = {
        call
        for rule in table["syscalls"]
        if machine in ((rule.get("includes") or {}).get("arches") or [machine])
        for call in rule["names"]
    }
    for remark in (*source.refused, *source.closed):
        known |= remark.calls
    for group in source.groups:
        known -= {*itertools.chain(*group.extra.values())}  # other machines' are not known here
        known |= {*group.names(architecture)}
    for group in source.of(name):
        known -= {*group.names(architecture)}
    for remark in source.foreign:
        known -= remark.calls if remark.architecture in (None, architecture) else frozenset()
    return sorted(known)


def _flags_off(group: Group) -> list[tuple[int, int]]:
    """(argument, flag) for every flag that must be off; nothing for other conditions."""
    if group.errno is not None or len(group.rules) != 1 or len(group.rules[0]) != 1:
        return []
    place, mask, value = group.rules[0][0]
    return [(place, 1 << bit) for bit in range(_BITS) if mask >> bit & 1] if value == 0 else []


def text(profile: dict[str, Any]) -> str:
    """JSON with one line for each rule, so that a change shows as what it is."""
    head = {key: value for key, value in profile.items() if key != "syscalls"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rules = ",\n".join(f"  {json.dumps(rule)}" for rule in profile["syscalls"])
    return "\n".join(["{", *lines, ' "syscalls": [', rules, " ]", "}", ""])


# ─── the engine's ───────────────────────────────────────────────────────────────────────


def engine_default(architecture: str) -> dict[str, list[dict[str, Any]]]:
    """Name → rules by which the engine's default lets the call pass.

    As the engine resolves them for a container without any capability, on this
    architecture and on a kernel that is new enough for every rule.
    """
    table = json.loads((HERE / "engine" / "default.json").read_text("utf-8"))
    allowed: dict[str, list[dict[str, Any]]] = {}
    for rule in table["syscalls"]:
        if rule["action"] == "SCMP_ACT_ALLOW" and _applies(rule, ARCHITECTURES[architecture][1]):
            for name in rule["names"]:
                allowed.setdefault(name, []).append(rule)
    return allowed


def _applies(rule: dict[str, Any], architecture: str) -> bool:
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if includes.get("caps") or architecture in excludes.get("arches", ()):
        return False
    return architecture in includes.get("arches", [architecture])


@dataclass(frozen=True)
class Difference:
    """One profile on one architecture beside the engine's default.

    Attributes:
        removed: reason → names that the engine lets pass and we do not.
        narrowed: groups with conditions, on calls that the engine lets pass.
        added: groups with calls or conditions that the engine does not let pass.
        same: number of names that pass without conditions in both.
    """

    removed: dict[str, list[str]]
    narrowed: list[Group]
    added: list[Group]
    same: int


def difference(source: Source, name: str, architecture: str) -> Difference:
    """The difference, each part of it with its reason.

    Raises:
        ValueError: a reason is missing, or is given for what makes no difference.
    """
    theirs = engine_default(architecture)
    groups = [group for group in source.of(name) if group.errno is None]
    ours = {call for group in groups for call in group.names(architecture)}
    reasons = _reasons(source, name, architecture)
    gone = theirs.keys() - ours
    if missing := sorted(gone - reasons.keys()):
        raise ValueError(f"{name}, {architecture}: no reason why not {', '.join(missing)}")
    if needless := sorted(reasons.keys() & ours):
        raise ValueError(f"{name}, {architecture}: refused, but allowed: {', '.join(needless)}")
    removed: dict[str, list[str]] = {}
    for call in sorted(gone):
        if reasons[call]:
            removed.setdefault(reasons[call], []).append(call)
    added = [one for one in groups if _is_added(one, theirs, architecture)]
    conditional = [one for one in groups if one.conditions and one not in added]
    free = {call for one in groups if not one.conditions for call in one.names(architecture)}
    return Difference(removed, conditional, added, len(free & theirs.keys()))


def _reasons(source: Source, name: str, architecture: str) -> dict[str, str]:
    """Call → why it does not pass; an empty reason where the call does not exist at all."""
    reasons = {}
    for group in source.groups:
        elsewhere = {*itertools.chain(*group.extra.values())} - {*group.names(architecture)}
        reasons.update(dict.fromkeys(elsewhere, ""))
        if name not in group.profiles:
            why = f"{group.name}: {group.reason}"
            reasons.update(dict.fromkeys(group.names(architecture), why))
    for group in source.of(name):
        for call in group.names(architecture) if group.errno is None else ():
            reasons.pop(call, None)
    for remark in source.refused:
        reasons.update(dict.fromkeys(remark.calls, remark.reason))
    for remark in source.foreign:
        if remark.architecture in (None, architecture):
            reasons.update(dict.fromkeys(remark.calls, ""))
    return reasons


def _is_added(group: Group, theirs: Mapping[str, list[dict[str, Any]]], architecture: str) -> bool:
    """Whether some call passes here that does not pass there, whatever its arguments.

    The engine's conditions, where it has any, are on argument 0: the values that a group
    lets pass are tried out on them.
    """
    for call in group.names(architecture):
        if call not in theirs:
            return True
        for rule in group.rules:
            arguments = {place: value for place, _, value in rule}
            if not any(_passes(one, arguments) for one in theirs[call]):
                return True
    return False


def _passes(rule: dict[str, Any], arguments: Mapping[int, int]) -> bool:
    """Whether a rule of the engine's lets a call with these arguments pass."""
    compare = {
        "SCMP_CMP_EQ": lambda found, one: found == one["value"],
        "SCMP_CMP_NE": lambda found, one: found != one["value"],
        "SCMP_CMP_LT": lambda found, one: found < one["value"],
        "SCMP_CMP_GT": lambda found, one: found > one["value"],
        "SCMP_CMP_MASKED_EQ": lambda found, one: found & one["value"] == one.get("valueTwo", 0),
    }
    return all(
        compare[one["op"]](arguments.get(one["index"], 0), one) for one in rule.get("args") or ()
    )


# ─── the page ───────────────────────────────────────────────────────────────────────────

HEAD = """\
# Our system call profiles beside the engine's default

Made by `python seccomp/generate.py --write` out of `seccomp/groups.toml` and the engine's own
profile, of which there is a copy in `seccomp/engine`; don't edit it by hand. The engine's is
taken as it is for a container without capabilities. A test fails when this page is not
current, so that a newer default of the engine is looked at before it is followed.

What every profile of ours has besides: only programs of the machine's own architecture (a
32-bit or x32 call ends the process), and comparisons of exactly the 32 bits that the kernel
reads. What is in neither list gives EPERM, what is newer than both lists ENOSYS.
"""


def page(source: Source) -> str:
    """The whole page."""
    standard, strict = (_Rows.of(source, name) for name in PROFILES)
    parts = [
        HEAD,
        f"## `standard`\n\n{_count(source, 'standard')}\n",
        _table("Removed", "calls", standard.removed),
        _table("Narrowed", "call and condition", standard.narrowed),
        _table("Added", "call and condition", standard.added),
        f"## `strict`\n\nAs `standard`, but for what follows. {_count(source, 'strict')}\n",
        _table("Removed besides", "calls", _without(strict.removed, standard.removed)),
        _table(
            "Narrowed besides", "call and condition", _without(strict.narrowed, standard.narrowed)
        ),
        _table("Not added", "call and condition", _without(standard.added, strict.added)),
        "## Answered with another error\n",
        *(_answer(group) for group in source.groups if group.errno is not None),
    ]
    return "\n".join(parts) + "\n"


def _answer(group: Group) -> str:
    error = f"error {group.errno}" if group.errno else "nothing is done, and success is told"
    condition = f" ({group.conditions})" if group.conditions else ""
    if group.profiles != PROFILES:
        error += f", in `{'` and `'.join(group.profiles)}` only"
    return f"- `{'`, `'.join(group.calls)}`{condition}: {error}. {group.reason}"


Row = tuple[str, str]


@dataclass(frozen=True)
class _Rows:
    """One profile's tables."""

    removed: list[Row]
    narrowed: list[Row]
    added: list[Row]

    @classmethod
    def of(cls, source: Source, name: str) -> _Rows:
        """Conditions are the same on every machine; what is removed is not quite."""
        one = difference(source, name, next(iter(ARCHITECTURES)))
        removed = _removed_rows(source, name)
        return cls(removed, _group_rows(one.narrowed), _group_rows(one.added))


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    return [row for row in rows if row not in others]


def _count(source: Source, name: str) -> str:
    counts = ", ".join(
        f"{difference(source, name, machine).same} on {machine}" for machine in ARCHITECTURES
    )
    return f"Calls that pass without conditions in both: {counts}."


def _removed_rows(source: Source, name: str) -> list[Row]:
    """Rows over all architectures; names of only one of them say so."""
    found: dict[str, dict[str, list[str]]] = {}
    for machine in ARCHITECTURES:
        for reason, calls in difference(source, name, machine).removed.items():
            for call in calls:
                found.setdefault(reason, {}).setdefault(call, []).append(machine)
    return [
        (", ".join(_on(call, machines) for call, machines in sorted(calls.items())), reason)
        for reason, calls in sorted(found.items())
    ]


def _on(call: str, machines: list[str]) -> str:
    return f"`{call}`" + ("" if len(machines) == len(ARCHITECTURES) else f" ({machines[0]})")


def _group_rows(groups: Iterable[Group]) -> list[Row]:
    return [
        (
            f"`{'`, `'.join(sorted({*group.calls, *group.extra.get('x86_64', ())}))}`: "
            f"{group.conditions}",
            f"{group.name}: {group.reason}",
        )
        for group in groups
    ]


def _table(title: str, column: str, rows: list[Row]) -> str:
    if not rows:
        return f"### {title}\n\nNothing.\n"
    lines = [f"| {left} | {right} |" for left, right in rows]
    return "\n".join([f"### {title}\n", f"| {column} | why |", "|---|---|", *lines, ""])


# ─── files ──────────────────────────────────────────────────────────────────────────────


def files(source: Source) -> dict[Path, str]:
    """Every generated file and what is to be in it."""
    made = {
        HERE / f"{name}-{machine}.json": text(profile(source, name, machine))
        for name in PROFILES
        for machine in ARCHITECTURES
    }
    gvisor = {
        HERE / f"{name}-gvisor-{machine}.json": text(gvisor_profile(source, name, machine))
        for name in PROFILES
        for machine in ARCHITECTURES
    }
    return made | gvisor | {PAGE: page(source)}


def main() -> int:
    """0 = every file is current, or was made so."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the files anew")
    write = parser.parse_args().write
    stale = 0
    for path, content in files(read()).items():
        if path.exists() and path.read_text("utf-8") == content:
            continue
        stale += 1
        print(f"{'written' if write else 'not current'}: {path.name}")
        if write:
            path.write_text(content, "utf-8")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
