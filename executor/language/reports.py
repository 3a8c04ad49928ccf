"""When a report that a server makes by itself is the last one about a document as it is now.

Servers report when they have come to it, and say nowhere that there is no more. Some report the
syntax at once, and the rest when they have come to it: seconds later in a long file. They look at
files step by step and answer between the steps. So when they have answered a second question after
a report, the step that came next has been made. It may have been one for another document: after
each report, of whatever document, they are asked anew.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from executor.language.documents import Document
from executor.language.messages import Ended
from executor.language.server import LanguageServer, Report

REPORT = 15.0
"""Seconds that a server may take to report what is wrong with a file."""
SENT_AGAIN = 2.0
"""The same about one that was only sent again, since other files have changed: where that makes no
difference some report nothing."""
HEARD_OUT = 10.0
"""Seconds in which one that has reported is asked whether there is more, all questions together;
and those in which it is asked before for what it may yet say of a text before."""
HEARD_AGAIN = 1.0
"""The same where it had no answer in that time, and has reported nothing since."""
SETTLED = 0.3
"""Seconds without another report after which a report is taken to be the last one."""
BEGUN = 0.9
"""Seconds after which one has begun to look at a document that was opened again. What it reports
before may be of the text before: typescript-language-server waits for 0.3 to 0.8 s until it looks,
and holds what it has found back for 0.05 s."""


class Told(NamedTuple):
    """What a server has reported of a document.

    Attributes:
        report: the last one; None = there is none.
        is_whole: it has said all that there is, as far as that can be known.
    """

    report: Report | None
    is_whole: bool = False


async def last_report(server: LanguageServer, document: Document, seconds: float) -> Told:
    """What a server reports by itself; nothing, at once, where it answers what is wrong.

    Args:
        server: it.
        document: as it was sent to it.
        seconds: for the first report; `HEARD_OUT` before it and after it come on top.

    Raises:
        Ended: the server ended before it has reported.
    """
    if not server.answers_problems:
        is_passed = await _passed_over(server, document, _most(server, document, seconds))
        told = await _awaited(server, document, seconds) if is_passed else None
        if told is not None:
            return told
        if server.is_over:
            raise Ended
    if server.answers_problems:
        return Told(None)
    return _take(server, document, None, is_whole=False)


async def _awaited(server: LanguageServer, document: Document, seconds: float) -> Told | None:
    """The same of a document of which it is known which reports are about it; None = it has ended,
    or answers what is wrong."""
    path, sent, known = document.path, document.sent, document.last_report(server)
    last = time.monotonic() + min(REPORT if known is None else SENT_AGAIN, seconds)
    quiet_from = sent.at + BEGUN if sent.after else 0.0
    can_hear, limit, heard = server.can("documentSymbolProvider"), 0.0, -1
    while not server.is_over and not server.answers_problems:
        now, report = time.monotonic(), document.report(server)
        if report is not None and server.taken(path):
            return Told(report, True)
        found = known if report is None and now >= last else report
        if can_hear and found is not None and heard != server.told:
            limit, heard = limit or now + _most(server, document, seconds), server.told
            if not await server.hear_out(path, 2, limit - now):
                return _take(server, document, found, is_whole=False)
            quiet_from = max(quiet_from, time.monotonic())
            last = max(last, quiet_from + SETTLED)
            continue
        until = last if report is None else min(max(report.at, quiet_from) + SETTLED, last)
        if now < until:
            await server.news(until - now)
        elif found is not None or not await server.has_died():
            return _take(server, document, found, is_whole=True)
    return None


def _most(server: LanguageServer, document: Document, seconds: float) -> float:
    """Seconds in which it is asked whether there is more."""
    was_in_vain = server.taken(document.path) is False
    return min(HEARD_AGAIN if was_in_vain else HEARD_OUT, seconds)


def _take(
    server: LanguageServer, document: Document, found: Report | None, *, is_whole: bool
) -> Told:
    """The last report, which may have come since that one was found."""
    server.take(document.path, is_whole=is_whole)
    return Told(document.report(server) or found or document.last_report(server), is_whole)


async def _passed_over(server: LanguageServer, document: Document, seconds: float) -> bool:
    """Whether it is known by now which reports are of a text before."""
    sent = document.sent
    if sent.after is None and await server.hear_out(document.path, 1, seconds):
        sent.after = server.reports(document.path)
    return sent.after is not None
