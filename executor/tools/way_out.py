"""What the box's way out has to do with a command's output, where a program's words lead elsewhere.

Nothing in a box can look up a host's name: the broker does, for those that ask its proxy. A
program that knows of no proxy fails with a message about DNS, and one that was denied something
often says less than the broker did.
"""

from __future__ import annotations

import re

from executor.sandbox.environment import PROXY, PROXY_PORT
from executor.tool import Answer, Surroundings

_PROPERTIES = f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={PROXY_PORT}"

LOOKED_UP: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"UnknownHostException|UnresolvedAddressException"),
        f"Java is told of it by `{_PROPERTIES}`, and the same with http (Maven and Gradle are, by "
        "MAVEN_OPTS and GRADLE_OPTS)",
    ),
    (
        re.compile(rb"getaddrinfo (?:EAI_AGAIN|ENOTFOUND)|\b(?:EAI_AGAIN|ENOTFOUND)\b"),
        "Node 24 and newer take it from the environment (NODE_USE_ENV_PROXY is 1 here), and older "
        "ones only from the program, as by undici's ProxyAgent",
    ),
    (
        re.compile(rb"ssh: Could not resolve hostname"),
        "ssh can't use it; the same repository may be had by https",
    ),
    (
        re.compile(
            rb"Temporary failure in name resolution|Temporary failure resolving"
            rb"|Could not resolve (?:host|proxy)|Name or service not known|nodename nor servname"
            rb"|no such host|dns error|getaddrinfo failed|[Uu]nable to resolve host"
            rb"|Name does not resolve|bad address '|failed to lookup address"
        ),
        "the program has to be told of it by an option or setting of its own, or its variables "
        "were unset",
    ),
)
"""What clients say when they look a name up themselves → how each learns of the proxy."""

_DENIED = re.compile(
    rb"egress_denied|[Pp]roxy tunnel(?:l?ing)? failed|CONNECT tunnel failed"
    rb"|Tunnel (?:connection )?failed|Unable to tunnel through proxy|ProxyError"
    rb"|\b403\b"
)
_NAMED = 3
_LISTED = 20


def hints(loop: Surroundings, answer: Answer, seconds: float) -> list[str]:
    """What the model has to know beside a command's output, one sentence each.

    Args:
        loop: whose box ran it.
        answer: of the agent.
        seconds: for which it ran.
    """
    broker = loop.egress
    if broker is None:
        return []
    value, output = answer.value, answer.data
    found: list[str] = []
    has_failed = value["timed_out"] or value["exit_code"] != 0
    if has_failed or _DENIED.search(output):
        denied = broker.denied_recently(seconds, loop.lane)
        found += [f"the broker refused: {refused}" for refused in denied[-_NAMED:]]
        if len(denied) > _NAMED:
            found.append(f"the broker refused {len(denied) - _NAMED} more hosts")
    if broker.policy(loop.lane):
        found += _looked_up(output)
    return found


def network(loop: Surroundings) -> str:
    """What the boxes of the loop's lane reach, as the end of a sentence about one."""
    policy = loop.egress.policy(loop.lane) if loop.egress is not None else None
    if loop.is_bridged:
        return f"is of the lane {loop.lane}"
    if not policy:
        return "has no network"
    hosts = [
        f"{'*.' if rule.is_suffix else ''}{rule.host}{f':{rule.port}' if rule.port else ''}"
        for rule in policy.rules
    ]
    more = f" and {len(hosts) - _LISTED} more" if len(hosts) > _LISTED else ""
    return (
        f"reaches {', '.join(hosts[:_LISTED])}{more} and nothing else outside, by http and https "
        "alone, through the proxy that https_proxy and http_proxy name"
    )


def _looked_up(output: bytes) -> list[str]:
    for pattern, mend in LOOKED_UP:
        if pattern.search(output):
            return [
                "a program seems to have looked up a host's name itself, which nothing in the "
                f"sandbox can: the broker does, behind the HTTP proxy {PROXY} (https_proxy and "
                f"http_proxy name it); {mend}"
            ]
    return []
