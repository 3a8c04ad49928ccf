"""How many cases the fuzz tests try: a few thousand each, or a million with `make fuzz`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

LONG = "long"
FACTOR = 80
"""Times as many cases in the long profile."""
_USUAL = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile(LONG, settings(**_USUAL))  # type: ignore[arg-type]
# How long a case takes says how busy the machine is, nothing of what is tested.
_PATIENT = "patient"
settings.register_profile(_PATIENT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() == "default":
    settings.load_profile(_PATIENT)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", "fuzz: made-up input, more of it with `make fuzz`")


def cases(usual: int) -> settings:
    """That many cases, or `FACTOR` times as many in the long profile."""
    factor = FACTOR if settings.get_current_profile_name() == LONG else 1
    return settings(max_examples=usual * factor, **_USUAL)  # type: ignore[arg-type]
