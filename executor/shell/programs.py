"""Tables of programs: their options, and which operands they read or write.

A program that is not here does anything. Of one that is, an option that is not in its table
makes it do anything, unless no option of that program can do harm (`free`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from executor.shell.effects import ANYTHING, HARMLESS, Effect
from executor.shell.options import Options, Parsed, options, parse
from executor.shell.values import UNKNOWN, Word, known, without_prefix

Arguments: TypeAlias = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that only reads.

    Attributes:
        operands: what becomes of its operands. `script`: the first is no file, unless one
            of `instead` is given.
        options: its options.
        free: no option of it writes or runs anything.
        default: what it reads if no operand is given.
        instead: options that take the place of the first operand.
        blurs: options by which it reads what can't be seen from its arguments.
        most: how many operands it may have.
    """

    operands: Literal["read", "list", "text", "script"]
    options: Options = field(default_factory=options)
    free: bool = False
    default: str | None = None
    instead: frozenset[str] = frozenset()
    blurs: frozenset[str] = frozenset()
    most: int | None = None

    def effect(self, arguments: Arguments) -> Effect:
        """What it does with these arguments."""
        parsed = parse(self.options, arguments)
        is_known = parsed.is_known and parsed.is_certain
        if not (self.free or is_known):
            return ANYTHING
        operands = parsed.operands
        if self.most is not None and len(operands) > self.most:
            return ANYTHING
        if self.most is not None and any(
            word.splits or word.under is not None for word in operands
        ):
            return ANYTHING  # a glob or a variable may be more than one word
        read: tuple[Word, ...] | None = self._read(parsed)
        # A free program's unknown option may take the next word: that is among the operands.
        if parsed.has(*self.blurs) or (self.free and self._is_shortened(parsed)):
            read = None
        lists = read or () if self.operands == "list" else ()
        return Effect(reads=read, lists=lists, is_read_only=True)

    def _is_shortened(self, parsed: Parsed) -> bool:
        """An option may be the beginning of one that reads more: `--files0` is one."""
        known = self.options.long | self.options.long_valued
        more = [name for name in self.blurs | self.options.files if len(name) > 1]
        return any(
            name not in known and any(long.startswith(name) for long in more)
            for name in parsed.seen
            if len(name) > 1
        )

    def _read(self, parsed: Parsed) -> tuple[Word, ...]:
        operands = list(parsed.operands)
        if self.operands == "text":
            operands = []
        elif self.operands == "script" and not parsed.has(*self.instead):
            operands = operands[1:] if not (operands and operands[0].splits) else operands
        operands = [word for word in operands if word.text != "-"]
        if not operands and self.default is not None:
            operands = [known(self.default)]
        return (*operands, *parsed.given(self.options.files))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FREE_READERS = {
    "cat": options(),
    "tac": options(valued="s", long_valued="separator"),
    "head": options(valued="nc", long_valued="lines bytes", numbers=True),
    "tail": options(
        valued="ncs", long_valued="lines bytes pid sleep-interval max-unchanged-stats", numbers=True
    ),
    "wc": options(),
    "nl": options(valued="bdfhilnsvw"),
    "rev": options(),
    "fold": options(valued="w", long_valued="width"),
    "fmt": options(valued="wgp", numbers=True),
    "expand": options(valued="t", long_valued="tabs"),
    "unexpand": options(valued="t", long_valued="tabs"),
    "cut": options(valued="bcdf", long_valued="bytes characters delimiter fields output-delimiter"),
    "paste": options(valued="d", long_valued="delimiters"),
    "join": options(valued="aejotv12"),
    "comm": options(long_valued="output-delimiter"),
    "cmp": options(valued="in", long_valued="ignore-initial bytes"),
    "column": options(valued="cEHNnoORrTsW"),
    "od": options(valued="AjNSt", long_valued="address-radix skip-bytes read-bytes format"),
    "strings": options(valued="nteTU"),
    "base64": options(valued="w", long_valued="wrap"),
    "base32": options(valued="w", long_valued="wrap"),
    "cksum": options(valued="al", long_valued="algorithm length"),
    "sum": options(),
}
"""Programs that read their operands, and of which no option writes or runs anything."""

_SUMS = ("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum")

_FREE_TEXTS = (
    *("echo", "true", "false", ":", "pwd", "whoami", "basename", "dirname", "which", "seq"),
    *("sleep", "expr", "uname", "arch", "nproc", "id", "groups", "uptime", "free", "ps", "tty"),
    *("tr", "type", "dirs", "times", "logname", "users", "getopt", "yes", "factor", "numfmt"),
)
"""Programs that read no file that is named, and of which no option does harm."""

_GREP = options(
    valued="eABCmdDf",
    long_valued=(
        "regexp after-context before-context context max-count directories devices file label "
        "include exclude exclude-dir exclude-from binary-files color colour"
    ),
    files="f file exclude-from",
    numbers=True,
)

_RG = options(
    flags="0aFHIiLlNnopPqSsUuvVwxc.",
    valued="ABCeEfgjMmrtTd",
    long=(
        "text byte-offset case-sensitive column no-column count count-matches crlf debug files "
        "files-with-matches files-without-match fixed-strings follow heading no-heading hidden "
        "no-hidden ignore-case invert-match json line-buffered line-number no-line-number "
        "line-regexp max-columns-preview multiline multiline-dotall no-config no-filename "
        "no-ignore no-ignore-dot no-ignore-exclude no-ignore-files no-ignore-global "
        "no-ignore-parent no-ignore-vcs no-messages no-mmap mmap null null-data one-file-system "
        "only-matching passthru pcre2 pretty print0 quiet smart-case stats trace trim "
        "type-list unicode no-unicode unrestricted vimgrep with-filename word-regexp binary "
        "include-zero ignore ignore-file-case-insensitive auto-hybrid-regex version "
        "color glob-case-insensitive"
    ),
    long_valued=(
        "after-context before-context context color colors dfa-size-limit encoding engine "
        "field-context-separator field-match-separator file glob iglob ignore-file max-columns "
        "max-count max-depth max-filesize path-separator regex-size-limit regexp replace sort "
        "sortr threads type type-not type-add type-clear hyperlink-format"
    ),
    files="f file ignore-file",
)
"""Not --pre and --hostname-bin, which run a program, and not -z, which runs decompressors."""

_SORT = options(
    flags="bdfghiMnRrVcCmsuz",
    valued="ktS",
    long=(
        "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort "
        "human-numeric-sort ignore-nonprinting month-sort numeric-sort random-sort reverse "
        "version-sort check merge stable unique zero-terminated debug sort"
    ),
    long_valued="key field-separator buffer-size parallel batch-size sort",
)
"""Not -o, which writes, --compress-program, which runs, -T, which names where to write."""

_DIFF = options(
    flags="qsypniEZbwBaudtTrNeHc",
    valued="CUWFIxXS",
    long=(
        "normal brief report-identical-files context unified ed rcs side-by-side left-column "
        "suppress-common-lines show-c-function expand-tabs initial-tab recursive "
        "no-dereference new-file unidirectional-new-file ignore-file-name-case "
        "no-ignore-file-name-case ignore-case ignore-tab-expansion ignore-trailing-space "
        "ignore-space-change ignore-all-space ignore-blank-lines text strip-trailing-cr "
        "minimal speed-large-files color"
    ),
    long_valued="context unified width show-function-line label exclude ignore-matching-lines",
    numbers=True,
    files="X exclude-from",
)
"""Not -l, which runs pr."""

_TREE = options(
    flags="adflxpsughDFqNnCAiSvtcUrJX",
    valued="LPIH",
    long=(
        "noreport dirsfirst prune du si inodes gitignore filesfirst ignore-case matchdirs nolinks "
        "sort timefmt"
    ),
    long_valued="filelimit sort timefmt charset",
)
"""Not -o, which writes, and not -R, which writes below -H."""

_JQ = options(
    flags="nrRjaSCMsecHh",
    long=(
        "raw-output raw-output0 raw-input join-output ascii-output sort-keys color-output "
        "monochrome-output slurp compact-output null-input exit-status tab seq stream unbuffered"
    ),
    long_valued="indent",
)

PROGRAMS: dict[str, Program] = {
    **{
        name: Program("read", table, True, blurs=_names("files0-from"))
        for name, table in _FREE_READERS.items()
    },
    "cksum": Program("read", _FREE_READERS["cksum"], True, blurs=_names("c check files0-from")),
    **{name: Program("read", options(), True, blurs=_names("c check")) for name in _SUMS},
    **{name: Program("text", options(), True) for name in _FREE_TEXTS},
    "ls": Program(
        "list", options(valued="ITw", long_valued="ignore hide tabsize width"), True, "."
    ),
    "dir": Program("list", options(valued="ITw"), True, "."),
    "vdir": Program("list", options(valued="ITw"), True, "."),
    "stat": Program("list", options(valued="c", long_valued="format printf"), True),
    "du": Program(
        "list",
        options(valued="Bdt", long_valued="block-size max-depth threshold exclude"),
        True,
        ".",
        blurs=_names("files0-from X exclude-from"),
    ),
    "df": Program("list", options(flags="ahHiklPTv", valued="Btx"), default="/"),
    "realpath": Program("list", options(), True),
    "readlink": Program("list", options(), True),
    "grep": Program("script", _GREP, True, instead=_names("e f regexp file")),
    "egrep": Program("script", _GREP, True, instead=_names("e f regexp file")),
    "fgrep": Program("script", _GREP, True, instead=_names("e f regexp file")),
    "rg": Program("script", _RG, default=".", instead=_names("e f regexp file files type-list")),
    "sort": Program("read", _SORT),
    "uniq": Program(
        "read",
        options(
            "cdDuiz",
            "fsw",
            ("count repeated unique ignore-case zero-terminated group all-repeated"),
            "skip-fields skip-chars check-chars",
        ),
        most=1,
    ),
    "diff": Program("read", _DIFF),
    "hexdump": Program("read", options("bcCdovx", "ens")),
    "file": Program(
        "read",
        options(
            "bhiLkNrs0v",
            "F",
            (
                "brief mime mime-type mime-encoding dereference no-dereference no-pad "
                "keep-going raw print0 extension"
            ),
        ),
    ),
    "tree": Program("list", _TREE, default="."),
    "hostname": Program(
        "text", options("fsdiIAy", long="fqdn short domain ip-address all-ip-addresses"), most=0
    ),
    "printenv": Program("text", most=0),
}
"""Read-only programs. What is not in here, and not below, is not known."""


# ─── programs that need more than a table ───────────────────────────────────────────


def _grep(arguments: Arguments) -> Effect:
    effect = PROGRAMS["grep"].effect(arguments)
    parsed = parse(_GREP, arguments)
    is_recursive = parsed.has("r", "R", "directories", "d") or any(
        len(name) > 2 and long.startswith(name)
        for name in parsed.seen
        for long in ("recursive", "dereference-recursive", "directories")
    )
    given = parsed.operands[0 if parsed.has("e", "f", "regexp", "file") else 1 :]
    if is_recursive and not given:
        return Effect((*(effect.reads or ()), known(".")), is_read_only=True)
    return effect


def _date(arguments: Arguments) -> Effect:
    table = options(
        "uRI",
        "dr",
        "utc universal rfc-email iso-8601 debug",
        "date rfc-3339 reference",
        files="r reference",
    )
    precise = ("-Idate", "-Ihours", "-Iminutes", "-Iseconds", "-Ins")
    parsed = parse(table, [word for word in arguments if word.text not in precise])
    if not (parsed.is_known and parsed.is_certain):
        return ANYTHING
    if not all(word.prefix.startswith("+") for word in parsed.operands):
        return ANYTHING  # sets the clock
    return Effect(tuple(parsed.given(table.files)), is_read_only=True)


def _printf(arguments: Arguments) -> Effect:
    if not arguments or arguments[0].may_be_option:
        # -v names a variable, which may have a subscript, which may run commands.
        return HARMLESS if arguments[:1] and arguments[0].text in ("--", "-") else ANYTHING
    return HARMLESS


_FILE_TESTS = frozenset("-" + letter for letter in "abcdefghkLprsSuwxNOG")
_COMPARED = ("-nt", "-ot", "-ef")


def tested(arguments: Arguments) -> tuple[Word, ...]:
    """Operands of file tests; an operator that can't be known counts as one."""
    found: list[Word] = []
    for at, word in enumerate(arguments):
        previous = arguments[at - 1] if at else None
        following = arguments[at + 1] if at + 1 < len(arguments) else None
        is_compared = any(
            near is not None and near.text in _COMPARED for near in (previous, following)
        )
        if is_compared or (previous and (previous.text in _FILE_TESTS or previous.splits)):
            found.append(word)
    return tuple(found)


def may_evaluate(arguments: Arguments) -> bool:
    """Whether a test may be of a variable with a subscript, which may run commands."""
    asks = any(
        word.text in ("-v", "-R") or (word.splits and not word.is_number) for word in arguments
    )
    return asks and any(word.text is None or "[" in word.text for word in arguments)


def _test(arguments: Arguments) -> Effect:
    if may_evaluate(arguments):
        return ANYTHING
    found = tested(arguments)
    return Effect(found, found, is_read_only=True)


def _env(arguments: Arguments) -> Effect:
    # With anything behind it it is a wrapper, and that is looked at before.
    return HARMLESS if not arguments else ANYTHING


def _jq(arguments: Arguments) -> Effect:
    words = list(arguments)
    for at in range(len(words) - 1, -1, -1):
        if words[at].text in ("--arg", "--argjson"):
            if any(word.splits for word in words[at : at + 3]):
                return ANYTHING
            del words[at : at + 3]
    if words and words[-1].text in ("--args", "--jsonargs"):
        return ANYTHING
    program = Program("script", _JQ)
    script = parse(_JQ, words).operands[:1]
    if any(
        word.text is None or re.search("import|include|modulemeta", word.text) for word in script
    ):
        return ANYTHING  # a module's text is not known
    return program.effect(words)


def _awk(arguments: Arguments) -> Effect:
    table = options("", "Fv", "", "field-separator assign")
    parsed = parse(table, arguments)
    if not (parsed.is_known and parsed.is_certain and parsed.operands):
        return ANYTHING
    script, *files = parsed.operands
    if script.text is None or not _only_computes(script.text):
        return ANYTHING
    return Effect(tuple(word for word in files if "=" not in (word.text or "")), is_read_only=True)


_AWK_MARKS = ("@", "system", "getline", "ARGV", "SYMTAB", "FUNCTAB", "\\\n", "/inet")


def _only_computes(script: str) -> bool:
    """Whether a script of awk's writes and runs nothing, and reads its operands only.

    `>` and `|` redirect only what a `print` before them prints, or run what `getline` reads;
    elsewhere they compare, and are parts of patterns.
    """
    printed = script.partition("print")[2].replace("||", "")
    return not any(mark in script for mark in _AWK_MARKS) and not set("|>") & set(printed)


def _find(arguments: Arguments) -> Effect:
    return find_effect(arguments)


_FIND_PLAIN = _names(
    "-print -print0 -ls -prune -quit -true -false -empty -readable -writable -executable -nouser "
    "-nogroup -o -or -a -and -not ! ( ) , -depth -d -mount -xdev -daystart -follow -noleaf "
    "-ignore_readdir_race -noignore_readdir_race -nowarn -warn"
)
_FIND_VALUED = _names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype "
    "-maxdepth -mindepth -size -mtime -mmin -atime -amin -ctime -cmin -perm -user -group -uid "
    "-gid -links -inum -fstype -lname -ilname -used -printf -context"
)
_FIND_COMPARED = re.compile("-(?:newer|anewer|cnewer|samefile|newer[aBcm][aBcmt])")
"""With a file; with a time if the name ends with a `t`."""
FIND_RUNS = _names("-exec -execdir -ok -okdir")


def find_effect(arguments: Arguments) -> Effect:
    """`find`, without what `-exec` runs, which is a wrapper's."""
    starts, at = find_starts(arguments)
    compared: list[Word] = []
    written: list[Word] = []
    is_read_only = True
    while at < len(arguments):
        word = arguments[at]
        if word.text in FIND_RUNS:
            while at < len(arguments) and arguments[at].text not in (";", "+"):
                at += 1
        elif word.text == "-delete":
            written += starts
            is_read_only = False
        elif word.text in ("-fprint", "-fprint0", "-fls") and at + 1 < len(arguments):
            at += 1
            written.append(arguments[at])
            is_read_only = False
        elif word.text in _FIND_VALUED or _FIND_COMPARED.fullmatch(word.text or ""):
            at += 1
            if at >= len(arguments) or arguments[at].splits or _many(arguments[at]):
                return ANYTHING
            if word.text not in _FIND_VALUED and not (word.text or "").endswith("t"):
                compared.append(arguments[at])
        elif word.text not in _FIND_PLAIN:
            return ANYTHING
        at += 1
    read = (*starts, *compared)
    return Effect(read, read, tuple(written), is_read_only)


def _many(word: Word) -> bool:
    """A glob that is not quoted: it may become several words."""
    return word.text is None and word.under is not None and not word.is_number


def find_starts(arguments: Arguments) -> tuple[list[Word], int]:
    """Where a `find` begins, and the index of its first expression."""
    at = 0
    while at < len(arguments) and arguments[at].text in ("-H", "-L", "-P"):
        at += 1
    starts: list[Word] = []
    while at < len(arguments):
        word = arguments[at]
        if word.prefix.startswith("-") or word.text in ("(", "!", ","):
            break
        if word.may_be_option:
            return [UNKNOWN], at
        starts.append(word)
        at += 1
    return starts or [known(".")], at


# ─── programs that write ────────────────────────────────────────────────────────────


def _writes(table: Options, first: int = 0) -> Callable[[Arguments], Effect]:
    """A program that writes its operands, but the first ones, which are no files."""

    def effect(arguments: Arguments) -> Effect:
        parsed = parse(table, arguments)
        # A file that a glob matches may look like an option, but none of these names another.
        doubtful = [word for word in arguments if word.text is None and word.may_be_option]
        if not parsed.is_known or any(word.splits or word.under is None for word in doubtful):
            return ANYTHING
        operands = tuple(parsed.operands[first:])
        if any(word.splits for word in parsed.operands[:first]):
            return ANYTHING
        files = tuple(parsed.given(table.files))
        return Effect((*files, *operands), operands, operands)

    return effect


def _moves(
    table: Options, *, deletes: bool = False, links_hard: bool = False
) -> Callable[[Arguments], Effect]:
    """A program that reads all operands but the last, which it writes."""

    def effect(arguments: Arguments) -> Effect:
        parsed = parse(table, arguments)
        if not (parsed.is_known and parsed.is_certain) or len(parsed.operands) < 1:
            return ANYTHING
        target = parsed.given(table.places)
        sources = parsed.operands
        if not target:
            *sources, last = parsed.operands
            target = [last]
            if _many(last):
                return ANYTHING
            if not sources:  # ln -s a/b makes ./b
                sources, target = [last], [known(".")]
        # By a hard link what is written to the one is written to the other.
        links = parsed.has("l", "link") or (
            not deletes and links_hard and not parsed.has("s", "symbolic")
        )
        written = (*sources, *target) if deletes or links else tuple(target)
        return Effect((*sources, *target), tuple(target), written)

    return effect


_COPY = options(
    "adfiHlLnPpRrsTuvxZ",
    "t",
    "archive force interactive link dereference no-clobber no-dereference parents "
    "recursive symbolic symbolic-link no-target-directory update verbose one-file-system "
    "preserve reflink sparse strip-trailing-slashes relative",
    "target-directory",
    places="t target-directory",
)
"""Not -b and --backup, which write a file beside the one that is named."""
_INSTALL = options(
    "cCDpTv",
    "tmog",
    "compare preserve-timestamps no-target-directory verbose",
    "target-directory mode owner group",
    places="t target-directory",
)
"""Not -s, which runs a program, and not -b."""
_MAKE = options("dv", "mog", "directory verbose", "mode owner group")


def _install(arguments: Arguments) -> Effect:
    if parse(_MAKE, arguments).has("d", "directory"):
        return _writes(_MAKE)(arguments)
    return _moves(_INSTALL)(arguments)


def _dd(arguments: Arguments) -> Effect:
    read: list[Word] = []
    written: list[Word] = []
    for word in arguments:
        name, mark, _ = word.prefix.partition("=")
        if not mark or word.splits:
            return ANYTHING
        if name in ("if", "of"):
            (read if name == "if" else written).append(without_prefix(word, 3))
    return Effect(tuple(read), (), tuple(written))


def _tar(arguments: Arguments) -> Effect:
    words = list(arguments)
    if words and words[0].text and not words[0].text.startswith("-"):
        words[0] = known("-" + words[0].text)
    table = options(
        "xctvzjJpkmohaSUl",
        "fC",
        "extract create list verbose gzip bzip2 xz zstd auto-compress",
        "file directory exclude strip-components",
    )
    # tar's options don't end at the first operand, and -C holds for what follows only.
    parsed = parse(table, words)
    if not (parsed.is_known and parsed.is_certain):
        return ANYTHING
    archives = tuple(parsed.given(_names("f file")))
    places = tuple(parsed.given(_names("C directory")))
    if parsed.has("c", "create"):
        if places:
            return ANYTHING
        return Effect(tuple(parsed.operands), (), archives)
    if parsed.has("x", "extract"):
        return Effect(archives, (), (*places, *(() if places else (known("."),))))
    return Effect(archives, (), ())


WRITERS: dict[str, Callable[[Arguments], Effect]] = {
    "rm": _writes(
        options(
            "dfiIrRv",
            "",
            (
                "force recursive dir verbose one-file-system interactive preserve-root "
                "no-preserve-root"
            ),
        )
    ),
    "rmdir": _writes(options("pv", "", "parents verbose ignore-fail-on-non-empty")),
    "unlink": _writes(options()),
    "touch": _writes(
        options(
            "acfhm", "dtr", "no-create no-dereference", "date time reference", files="r reference"
        )
    ),
    "mkdir": _writes(options("pv", "m", "parents verbose", "mode")),
    "mkfifo": _writes(options("", "m", "", "mode")),
    "truncate": _writes(options("co", "sr", "no-create", "size reference", files="r reference")),
    "tee": _writes(options("aip", "", "append ignore-interrupts")),
    "chmod": _writes(options("cfvR", "", "changes silent quiet verbose recursive"), 1),
    "chown": _writes(
        options("cfvRhHLP", "", "changes silent quiet verbose recursive no-dereference"), 1
    ),
    "chgrp": _writes(
        options("cfvRhHLP", "", "changes silent quiet verbose recursive no-dereference"), 1
    ),
    "shred": _writes(options("fuvxz", "ns")),
    "cp": _moves(_COPY),
    "install": _install,
    "ln": _moves(_COPY, links_hard=True),
    "mv": _moves(_COPY, deletes=True),
    "dd": _dd,
    "tar": _tar,
}
"""Programs that write, and for which it is known what."""

SPECIAL: dict[str, Callable[[Arguments], Effect]] = {
    "grep": _grep,
    "egrep": _grep,
    "fgrep": _grep,
    "date": _date,
    "printf": _printf,
    "test": _test,
    "[": _test,
    "env": _env,
    "jq": _jq,
    "awk": _awk,
    "gawk": _awk,
    "mawk": _awk,
    "find": _find,
}
"""Programs that only read, for which a table says too little."""
