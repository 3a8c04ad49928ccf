"""Permission rules: `Tool` or `Tool(pattern)`, in three lists. Their meaning is `permissions`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from executor.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rule:
    """`Tool` or `Tool(pattern)`.

    Attributes:
        text: as it was written.
        tool: canonical or shown name.
        pattern: what is in the brackets; None = every call of the tool.
    """

    text: str
    tool: str
    pattern: str | None


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in three lists. Deny wins over ask, ask over allow."""

    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.allow or self.ask or self.deny)

    @classmethod
    def parse(
        cls,
        allow: Iterable[str] = (),
        ask: Iterable[str] = (),
        deny: Iterable[str] = (),
    ) -> Rules:
        """Rules from their texts.

        Raises:
            ConfigError: with every bad rule, named.
        """
        faults: list[str] = []
        lists: list[tuple[Rule, ...]] = []
        for option, texts in (("allow", allow), ("ask", ask), ("deny", deny)):
            rules: list[Rule] = []
            for text in texts:
                match = re.fullmatch(r"([A-Za-z_][\w-]*)(?:\((.*)\))?", text.strip(), re.DOTALL)
                if match is None:
                    faults.append(
                        f"{option}: {text!r} is not a rule; write Tool or Tool(pattern), for "
                        "example run_command(git status *)"
                    )
                    continue
                rules.append(Rule(text.strip(), match[1], match[2]))
            lists.append(tuple(rules))
        if faults:
            raise ConfigError(faults)
        return cls(*lists)

    def allowing(self, rule: str) -> Rules:
        """The same, and what this rule names is allowed.

        Raises:
            ConfigError: it is no rule.
        """
        return replace(self, allow=(*self.allow, *Rules.parse(allow=[rule]).allow))

    def denies_whole(self, *names: str) -> str | None:
        """The deny rule that is about every call of the tool with these names."""
        for rule in self.deny:
            if rule.pattern is None and rule.tool in names:
                return rule.text
        return None
