"""What is wrong with the egress and the secrets that a loop is given: before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from executor.egress import secrets
from executor.egress.names import NotAName, split, written
from executor.egress.policy import DEFAULT_PORTS, Kind, Policy
from executor.errors import ConfigError
from executor.model import EgressOptions, LoopSpec, Secret


def faults(spec: LoopSpec) -> list[str]:
    """Everything that is wrong with a loop's hosts and secrets, one sentence each.

    `LoopSpec.faults` has the rest. No value of a secret is in a sentence.
    """
    wrong = [*host_faults(spec.egress), *secrets.faults(spec.secrets)]
    if wrong:
        return wrong
    options = spec.egress
    policy = Policy.of((*options.hosts, *options.setup_hosts), options.private)
    return [fault for secret in spec.secrets for fault in _unreachable(secret, policy)]


def host_faults(options: EgressOptions) -> list[str]:
    """What is wrong with the three lists of hosts, under the names that a catalog has for them."""
    found = _faults(options.hosts, options.private)
    more = _faults(options.setup_hosts, options.private)
    return [
        *found,
        *(f"setup_{fault}" for fault in more if fault.startswith("egress:")),
    ]


def _faults(hosts: Iterable[str], private: Iterable[str]) -> list[str]:
    try:
        Policy.of(hosts, private)
    except ConfigError as error:
        return [fault.replace("egress private:", "egress.private:", 1) for fault in error.faults]
    return []


def _unreachable(secret: Secret, policy: Policy) -> Iterator[str]:
    """Hosts that a secret is for and that nothing allows: it would never be used."""
    for text in secret.hosts:
        scheme, _, rest = text.rpartition("://")
        try:
            host, port = split(rest)
            name = written(host)
        except NotAName as fault:
            yield f"secrets.{secret.name}: {text!r} {fault}; name one host exactly"
            continue
        kinds = [kind for kind in Kind if scheme in ("", kind.value)]
        if not any(policy.judge(name, port or DEFAULT_PORTS[kind], kind).is_allowed
                   for kind in kinds):  # fmt: skip
            yield (
                f"secrets.{secret.name}: it is for {rest}, which the loop may not reach; allow "
                f"that (--egress {rest}), or leave the secret out"
            )
