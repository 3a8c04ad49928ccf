"""Hosts and secrets that a loop is given: what is wrong with them, before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.egress.options import faults, host_faults
from executor.model import EgressOptions, LoopSpec, Secret

VALUE = "k3y-with-enough-characters"


def spec(
    *hosts: str,
    secret: tuple[str, ...] = (),
    setup_hosts: tuple[str, ...] = (),
    private: tuple[str, ...] = (),
) -> LoopSpec:
    secrets = (Secret("TOKEN", VALUE, secret),) if secret else ()
    return LoopSpec(".", egress=EgressOptions(hosts, setup_hosts, private), secrets=secrets)


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("*", "'*' would be every host there is"),
        ("*:443", "'*:443' would be every host there is"),
        ("https://example.org", "which is 'example.org'; write HOST"),
        ("https://example.org:8443/simple?a=b", "which is 'example.org:8443'; write HOST"),
        ("example.org/simple", "which is 'example.org'; write HOST"),
        ("example.org:0", "no port from 1 to 65535"),
        ("example.org:https", "no port from 1 to 65535"),
        ("a*.example.org", "is no host name"),
        ("exa mple.org", "is no host name"),
        ("", "'' is empty; write HOST"),
        ("10.0.0.1", "10.0.0.1 is an IP address; names alone are listed"),
    ],
)
def test_a_host_that_is_none_is_refused_with_its_mend(text: str, mend: str) -> None:
    """Each list names itself as the catalog and the command line do."""
    for key, where in (("hosts", "egress: "), ("setup_hosts", "setup_egress: ")):
        (fault,) = host_faults(EgressOptions(**{key: (text,)}))  # type: ignore[arg-type]
        assert fault.startswith(where)
        assert mend in fault.replace(", and names", "; names"), fault


def test_a_password_in_a_pasted_address_is_not_repeated() -> None:
    """Messages end up in logs."""
    (fault,) = host_faults(EgressOptions(("https://me:hunter22@example.org/",)))
    assert "hunter22" not in fault and "which is 'example.org'" in fault


def test_every_fault_of_every_list_is_found_at_once() -> None:
    """Hosts, those of the set-up, private ones and secrets; nothing is left for a second go."""
    wrong = spec("*", "a b", secret=("*.example.org",), setup_hosts=("x/y",), private=("*.z.org",))
    found = faults(wrong)
    starts = ("egress", "egress", "egress.private", "secrets.TOKEN", "setup_egress")
    assert sorted(fault.partition(":")[0] for fault in found) == sorted(starts)
    assert faults(spec("example.org", "*.example.org:8443", private=("example.org",))) == []


@pytest.mark.parametrize(
    ("hosts", "secret", "is_right"),
    [
        (("api.example.org",), "api.example.org", True),
        (("*.example.org",), "api.example.org", True),
        (("api.example.org:8443",), "api.example.org:8443", True),
        (("api.example.org:8443",), "api.example.org", False),
        (("api.example.org",), "https://api.example.org", True),
        (("example.org",), "api.example.org", False),
        ((), "api.example.org", False),
    ],
)
def test_a_secret_is_for_a_host_that_may_be_reached(
    hosts: tuple[str, ...], secret: str, is_right: bool
) -> None:
    """Otherwise it would never be used; the rule that is missing is named, the value never."""
    found = faults(spec(*hosts, secret=(secret,)))
    assert (found == []) is is_right
    for fault in found:
        assert f"--egress {secret}" in fault and VALUE not in fault
    in_setup = replace(spec(secret=(secret,)), egress=EgressOptions((), hosts))
    assert (faults(in_setup) == []) is is_right


def test_a_secret_is_for_exact_hosts() -> None:
    """A suffix would hand it to whoever has a name below."""
    (fault,) = faults(spec("*.example.org", secret=("*.example.org",)))
    assert fault.startswith("secrets.TOKEN: '*.example.org'")
