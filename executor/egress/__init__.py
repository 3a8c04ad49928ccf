"""The broker: what boxes reach outside, decided, resolved, dialled and counted on the host."""

from executor.egress.broker import Broker
from executor.egress.conversation import Waits
from executor.egress.dialling import Dialler, Patience
from executor.egress.passage import Used
from executor.egress.policy import Kind, Policy, Reason, Verdict
from executor.egress.refusal import Refused

__all__ = [
    "Broker",
    "Dialler",
    "Kind",
    "Patience",
    "Policy",
    "Reason",
    "Refused",
    "Used",
    "Verdict",
    "Waits",
]
