"""What a box has made is taken over whole and sound, or refused without a trace."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from executor.git import quarantine
from executor.git.program import Git
from executor.git.quarantine import Offer, accept, discard, fits, repair
from executor.git.values import Arrival, Refused, Repository
from tests.git import origins, packs
from tests.git.packs import Thing, blob, commit, tag, tree

HELLO = blob(b"hello\n")


class Place:
    """An origin with one commit, and where its quarantine goes."""

    def __init__(self, directory: Path, format: str = "sha1") -> None:
        self.origin = origins.make(directory / "origin", {"a": "one\n", "d/b": "two\n"}, format)
        self.repository: Repository = origins.described(self.origin)
        self.parent = directory / "kept"
        self.parent.mkdir()
        self.directory = self.parent / "arrival"

    @property
    def base(self) -> str:
        """The commit that the loop began with."""
        assert self.repository.head.commit is not None
        return self.repository.head.commit

    def find(self, what: str) -> str:
        """Name of an object of the origin."""
        return origins.run(self.origin, "rev-parse", what)

    def git(self, *arguments: str) -> str:
        """Git on the quarantine."""
        return origins.run(self.parent, f"--git-dir={self.directory}", *arguments)

    def accept(
        self,
        pack: bytes,
        refs: dict[str, str],
        *,
        start: Sequence[str] | None = None,
        most: int = 64 << 20,
        branch: str | None = None,
    ) -> Arrival:
        """Take an offer over."""
        with tempfile.TemporaryFile() as file:
            file.write(pack)
            file.flush()
            offer = Offer(refs, branch, self.base, file.fileno())
            work = accept(
                Git.find(),
                self.repository,
                offer,
                [self.base] if start is None else start,
                self.directory,
                pack_bytes=most,
            )
            return asyncio.run(work)

    def refuse(self, pack: bytes, refs: dict[str, str], words: str, most: int = 64 << 20) -> None:
        """Have an offer refused for a reason; nothing stays."""
        with pytest.raises(Refused, match=words) as caught:
            self.accept(pack, refs, most=most)
        assert len(caught.value.reasons) == 1
        assert os.listdir(self.parent) == []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An origin, and room beside it."""
    return Place(tmp_path)


def _offered(place: Place, *entries: tuple[str, str | bytes, str]) -> tuple[bytes, dict[str, str]]:
    """A pack with one commit of one directory."""
    top = tree(*entries)
    made = commit(top, place.base)
    return packs.write([HELLO, top, made]), {"heads/main": made.name, "head": made.name}


# ─── what is sound ──────────────────────────────────────────────────────────────────


def test_a_sound_offer_is_there_by_its_names(place: Place) -> None:
    """Refs are below refs/loops, objects readable, new commits counted, nothing beside it."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    arrival = place.accept(pack, refs, branch="refs/heads/main")
    assert arrival.directory == place.directory
    assert (arrival.refs, arrival.branch, arrival.commits) == (refs, "refs/heads/main", 1)
    listed = place.git("for-each-ref", "--format=%(refname) %(objectname)")
    assert listed.splitlines() == [
        f"refs/loops/head {refs['head']}",
        f"refs/loops/heads/main {refs['head']}",
    ]
    assert place.git("show", "refs/loops/head:a") == "hello"
    assert os.listdir(place.parent) == ["arrival"]
    assert not (place.directory / "hooks").exists()
    assert place.directory.stat().st_mode & 0o777 == 0o700


def test_a_thin_pack_is_completed_from_the_origin(place: Place) -> None:
    """A delta against an object that only the origin has is read."""
    base = place.find("HEAD:a")
    changed = packs.delta(base, 4, 8, packs.copy(4) + packs.copy(4))
    content = blob(b"one\none\n")
    top = tree(("100644", "a", content.name))
    made = commit(top, place.base)
    arrival = place.accept(packs.write([changed, top, made]), {"head": made.name})
    assert arrival.commits == 1
    assert place.git("show", "refs/loops/head:a") == "one\none"


def test_a_ref_on_what_the_origin_has_needs_no_objects(place: Place) -> None:
    """A new branch at an old commit comes with an empty pack."""
    arrival = place.accept(packs.write([]), {"heads/new": place.base})
    assert (arrival.refs, arrival.commits) == ({"heads/new": place.base}, 0)


def test_every_kind_of_ref_takes_its_type(place: Place) -> None:
    """Tags of both kinds, stash, index and uncommitted changes; the last are not counted."""
    top = tree(("100644", "a", HELLO.name))
    first = commit(top, place.base)
    aside = commit(top, first, message="aside")
    label = tag(first.name, "commit")
    refs = {
        "heads/main": first.name,
        "tags/v1": label.name,
        "tags/light": first.name,
        "stash/0": aside.name,
        "index": top.name,
        "uncommitted": aside.name,
    }
    arrival = place.accept(packs.write([HELLO, top, first, aside, label]), refs)
    assert arrival.commits == 1
    assert place.git("rev-parse", "refs/loops/index^{tree}") == top.name


def test_sha256(tmp_path: Path) -> None:
    """A repository of the other format works alike."""
    place = Place(tmp_path, "sha256")
    top = replace(tree(("100644", "a", place.find("HEAD:a"))), format="sha256")
    made = replace(commit(top, place.base), format="sha256")
    arrival = place.accept(packs.write([top, made], format="sha256"), {"head": made.name})
    assert arrival.commits == 1
    assert place.git("rev-parse", "--show-object-format") == "sha256"


def test_objects_of_a_store_with_a_strange_path_are_borrowed(tmp_path: Path) -> None:
    """A path that git would read in another way is quoted."""
    strange = tmp_path / '"#new\nline'
    strange.mkdir()
    place = Place(strange)
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    moved = tmp_path / "other"
    moved.mkdir()
    place.parent, place.directory = moved, moved / "arrival"
    assert place.accept(pack, refs).commits == 1
    first = place.repository.stores[0]
    place.repository = replace(place.repository, stores=(Path("#none"), first))
    assert place.accept(pack, refs).commits == 1


def test_history_that_is_cut_outside_is_cut_here(tmp_path: Path, place: Place) -> None:
    """Of a shallow origin, commits without their parents are no missing objects."""
    origins.run(place.origin, "commit", "-q", "--allow-empty", "-m", "second")
    shallow = tmp_path / "shallow"
    origins.run(tmp_path, "clone", "-q", "--depth=1", f"file://{place.origin}", str(shallow))
    repository = origins.described(shallow)
    place.repository = replace(repository, shallow=shallow / ".git" / "shallow")
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    assert place.accept(pack, refs).commits == 1
    assert place.git("rev-list", "--count", "refs/loops/head") == "2"


# ─── names in trees ─────────────────────────────────────────────────────────────────

SPELLINGS: list[str | bytes] = [
    ".git",
    ".GIT",
    ".Git",
    "git~1",
    "GIT~1",
    ".git ",
    ".git.",
    ".git . .",
    ".git::$INDEX_ALLOCATION",
    ".git:x",
    ".g\u200cit",
    "\ufeff.git",
    ".gi\u200et",
    ".GI\u206ft",
    "x\\.git",
    "..\\.git",
    "\uff0egit",
    ".\uff47it",
    ".g\u2170t",
    ".",
    "..",
    "a/b",
    "",
]


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("is_directory", [False, True], ids=["file", "directory"])
def test_a_name_that_means_git_is_refused(
    place: Place, name: str | bytes, is_directory: bool
) -> None:
    """Whatever some file system takes for `.git`, as file and as directory."""
    below = tree(("100644", "config", HELLO.name))
    value = ("40000", name, below.name) if is_directory else ("100644", name, HELLO.name)
    made = commit(tree(value), place.base)
    pack = packs.write([HELLO, below, tree(value), made])
    place.refuse(pack, {"head": made.name}, "refuses the pack|may not be named")


@pytest.mark.parametrize(
    "name", [".gitignore", ".github", "git", "..git", ".git_", "\u0433it", "caf\u00e9", "git~10"]
)
def test_a_name_that_only_looks_alike_is_taken(place: Place, name: str) -> None:
    """Nothing more than needed is refused."""
    pack, refs = _offered(place, ("100644", name, HELLO.name))
    assert place.accept(pack, refs).commits == 1


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("120000", ".gitmodules"),
        ("120000", ".gitattributes"),
        ("120000", ".gitignore"),
        ("120000", ".mailmap"),
        ("40000", ".gitmodules"),
        ("120000", ".GITMODULES"),
        ("120000", "gitmod~1"),
        ("0100644", "padded"),
        ("100666", "mode"),
        ("777", "mode"),
    ],
)
def test_a_strange_entry_is_refused(place: Place, mode: str, name: str) -> None:
    """Links where git reads its own files, and modes that git does not write."""
    below = tree(("100644", "x", HELLO.name))
    value = below.name if mode == "40000" else HELLO.name
    top = tree((mode, name, value))
    made = commit(top, place.base)
    pack = packs.write([HELLO, below, top, made])
    place.refuse(pack, {"head": made.name}, "refuses the pack")


def test_a_null_object_is_refused(place: Place) -> None:
    """An entry that leads to the name that means nothing."""
    pack, refs = _offered(place, ("100644", "a", "0" * 40))
    place.refuse(pack, refs, "refuses the pack")


@pytest.mark.parametrize(
    "text",
    [
        '[submodule "../evil"]\n\tpath = a\n\turl = https://example.org/a\n',
        '[submodule "a"]\n\tpath = -u\n\turl = https://example.org/a\n',
        '[submodule "a"]\n\tpath = a\n\turl = --upload-pack=x\n',
        '[submodule "a"]\n\tpath = a\n\turl = https://example.org/a\n\tupdate = !x\n',
        '[submodule "a"\n',
    ],
)
def test_modules_that_attack_are_refused(place: Place, text: str) -> None:
    """Names, paths, addresses and commands that git has been attacked with."""
    modules = blob(text.encode())
    top = tree(("100644", ".gitmodules", modules.name))
    made = commit(top, place.base)
    pack = packs.write([modules, top, made])
    place.refuse(pack, {"head": made.name}, "refuses the pack")


def test_plain_modules_are_taken(place: Place) -> None:
    """The file by itself does nothing."""
    modules = blob(b'[submodule "a"]\n\tpath = a\n\turl = https://example.org/a\n')
    top = tree(("100644", ".gitmodules", modules.name))
    made = commit(top, place.base)
    assert place.accept(packs.write([modules, top, made]), {"head": made.name}).commits == 1


# ─── commits of other repositories ──────────────────────────────────────────────────


def test_a_repository_inside_is_refused(place: Place) -> None:
    """An entry that stands for another repository's commit, in whatever directory."""
    below = tree(("160000", "sub", place.base))
    top = tree(("40000", "deep", below.name))
    made = commit(top, place.base)
    place.refuse(packs.write([below, top, made]), {"head": made.name}, "'deep/sub'")


def test_a_repository_inside_that_is_gone_again_is_refused(place: Place) -> None:
    """Every commit may be checked out one day, not only the last."""
    middle = tree(("160000", "sub", place.base))
    end = tree(("100644", "a", HELLO.name))
    first = commit(middle, place.base)
    last = commit(end, first)
    pack = packs.write([HELLO, middle, end, first, last])
    place.refuse(pack, {"head": last.name}, "'sub'")


def test_a_repository_inside_the_index_is_refused(place: Place) -> None:
    """What is staged, too."""
    top = tree(("160000", "sub", place.base))
    place.refuse(packs.write([top]), {"index": top.name}, "'sub'")


def test_a_repository_inside_that_a_merge_adds_is_refused(place: Place) -> None:
    """An evil merge has what neither parent had."""
    plain = tree(("100644", "a", HELLO.name))
    one, other = commit(plain, place.base), commit(plain, place.base, message="other")
    top = tree(("100644", "a", HELLO.name), ("160000", "sub", place.base))
    merge = commit(top, one, other)
    pack = packs.write([HELLO, plain, top, one, other, merge])
    place.refuse(pack, {"head": merge.name}, "'sub'")


def _with_module(place: Place) -> None:
    """The origin has a submodule at `sub`, before the loop begins."""
    origins.run(
        place.origin, "update-index", "--add", "--cacheinfo", f"160000,{place.base},lib/sub"
    )
    origins.run(place.origin, "commit", "-q", "-m", "module")
    place.repository = origins.described(place.origin)


def test_a_submodule_of_the_origin_stays(place: Place) -> None:
    """What was there, at that path and that commit, is in the loop's new trees as well."""
    old = place.base
    _with_module(place)
    below = tree(("100644", "new", HELLO.name), ("160000", "sub", old))
    top = tree(("100644", "a", HELLO.name), ("40000", "lib", below.name))
    made = commit(top, place.base)
    arrival = place.accept(packs.write([HELLO, below, top, made]), {"head": made.name})
    assert arrival.commits == 1


@pytest.mark.parametrize("name", ["lib", "moved"])
def test_a_submodule_that_is_changed_or_moved_is_refused(place: Place, name: str) -> None:
    """Another commit at the same path, or an old directory with a submodule at a new path."""
    _with_module(place)
    below = tree(("160000", "sub", place.base))
    value = below.name if name == "lib" else place.find("HEAD:lib")
    top = tree(("40000", name, value))
    made = commit(top, place.base)
    place.refuse(packs.write([below, top, made]), {"head": made.name}, f"'{name}/sub'")


# ─── packs ──────────────────────────────────────────────────────────────────────────


def _changed(pack: bytes, position: int) -> bytes:
    return pack[:position] + bytes([pack[position] ^ 0xFF]) + pack[position + 1 :]


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda pack: b"", "no pack"),
    "text": (lambda pack: b"fatal: not a git repository\n", "no pack"),
    "checksum": (lambda pack: _changed(pack, -1 % len(pack)), "refuses the pack"),
    "content": (lambda pack: _changed(pack, 20), "refuses the pack"),
    "truncated": (lambda pack: pack[:-30], "refuses the pack"),
    "head only": (lambda pack: pack[:12], "refuses the pack"),
    "trailing": (lambda pack: pack + b"trailing", "refuses the pack"),
    "twice": (lambda pack: pack * 2, "refuses the pack"),
    "version": (lambda pack: pack[:7] + b"\x04" + pack[8:], "no pack"),
    "count": (lambda pack: pack[:8] + b"\xff\xff\xff\xff" + pack[12:], "4294967295 objects"),
    "count less": (lambda pack: pack[:11] + b"\x02" + pack[12:], "refuses the pack"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_pack_is_refused(place: Place, how: str) -> None:
    """Whatever the bytes are."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    change, words = BROKEN[how]
    place.refuse(change(pack), refs, words)


def test_a_pack_over_the_limit_is_refused(place: Place) -> None:
    """By its size, before git reads it."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.refuse(pack, refs, f"has {len(pack)} bytes; at most 100", most=100)


def test_missing_objects_are_refused(place: Place) -> None:
    """Of a tip, of what a commit leads to, of a delta's base, of a parent."""
    top = tree(("100644", "a", HELLO.name))
    made = commit(top, place.base)
    orphan = commit(place.find("HEAD^{tree}"), "1" * 40)
    place.refuse(packs.write([top, made]), {"head": made.name}, "refuses|missing")
    place.refuse(packs.write([HELLO, made]), {"head": made.name}, "refuses|missing")
    place.refuse(packs.write([orphan]), {"head": orphan.name}, "refuses|missing")
    place.refuse(packs.write([]), {"head": "1" * 40}, "is missing")
    lost = packs.delta("1" * 40, 4, 4, packs.copy(4))
    place.refuse(packs.write([lost, top]), {"index": top.name}, "refuses")


def test_an_object_that_the_origin_has_otherwise_is_refused(place: Place) -> None:
    """Two contents of one name: git compares what it is sent with what it has."""
    top = tree(("100644", "a", HELLO.name))
    made = commit(top, place.base)
    other = origins.run(place.origin, "hash-object", "-w", "--stdin", given=b"other\n")
    store = place.repository.stores[0]
    lies = store / HELLO.name[:2] / HELLO.name[2:]
    lies.parent.mkdir(exist_ok=True)
    lies.write_bytes((store / other[:2] / other[2:]).read_bytes())
    place.refuse(packs.write([HELLO, top, made]), {"head": made.name}, "refuses|can't be")


@pytest.mark.parametrize("name", ["heads/x", "index", "tags/v", "stash/0", "uncommitted", "head"])
def test_a_ref_to_another_type_is_refused(place: Place, name: str) -> None:
    """A branch is a commit, a tag leads to one, the index is a tree."""
    label = tag(HELLO.name, "blob")
    pack = packs.write([HELLO, label])
    place.refuse(pack, {name: HELLO.name}, "is a blob")
    place.refuse(pack, {name: label.name}, "is a tag")


@pytest.mark.parametrize(
    "name",
    [
        "main",
        "",
        "heads/",
        "heads/../../main",
        "heads/a..b",
        "heads/-x",
        "heads/a/-x",
        "heads/.x",
        "heads/x.lock",
        "heads/x.lock/y",
        "heads/a b",
        "heads/a~1",
        "heads/a\x01",
        "heads/a\n",
        "heads/a\0b",
        "heads/@{x",
        "heads/a//b",
        "heads/a/",
        "heads/\u202egnp",
        "heads/" + "x" * 201,
        "tags/*",
        "refs/heads/main",
        "stash/-1",
        "stash/01",
        "remotes/origin/main",
        "heads/x\ncreate refs/heads/main",
    ],
)
def test_a_name_outside_the_pattern_is_refused(place: Place, name: str) -> None:
    """Nothing that the box says becomes a name elsewhere, or a command."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.refuse(pack, {name: refs["head"]}, "no name of a ref")


def test_the_index_goes_with_a_commit_that_is_looked_at(place: Place) -> None:
    """Else its repositories inside could hide behind a commit that nobody looked at."""
    inside = tree(("160000", "sub", place.base))
    hidden = commit(inside, place.base)
    with tempfile.TemporaryFile() as file:
        file.write(packs.write([inside, hidden]))
        file.flush()
        offer = Offer({"index": inside.name}, None, hidden.name, file.fileno())
        work = accept(
            Git.find(), place.repository, offer, [place.base], place.directory, pack_bytes=1000
        )
        with pytest.raises(Refused, match="neither old nor"):
            asyncio.run(work)


def test_names_that_exclude_each_other_are_refused(place: Place) -> None:
    """Git can't have a branch and another one below it."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    both = {"heads/a": refs["head"], "heads/a/b": refs["head"]}
    place.refuse(pack, both, "can't all be there")


@pytest.mark.parametrize("value", ["HEAD", "", "-h", "1" * 39, "A" * 40, "1" * 64, "1" * 40 + "\n"])
def test_what_is_no_name_of_an_object_is_refused(place: Place, value: str) -> None:
    """Only hexadecimal names of the repository's format reach git."""
    place.refuse(packs.write([]), {"heads/x": value}, "no name of an object")


@pytest.mark.parametrize(
    "name", ["main", "feature/x", "caf\u00e9", "a.b", "v1.0-rc1", "a@b", "x" * 200]
)
def test_plain_names_fit(name: str) -> None:
    """What people call branches."""
    assert fits(name)


# ─── bounds ─────────────────────────────────────────────────────────────────────────


def test_unpacked_bytes_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small pack may be large once it is unpacked."""
    monkeypatch.setattr(quarantine, "MOST_INFLATED", 1 << 20)
    zeros = blob(bytes(2 << 20))
    top = tree(("100644", "zeros", zeros.name))
    made = commit(top, place.base)
    place.refuse(packs.write([zeros, top, made]), {"head": made.name}, "unpacked")


def test_bytes_of_trees_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all read."""
    monkeypatch.setattr(quarantine, "MOST_TREES", 1000)
    entries = [("100644", f"{number:03}", HELLO.name) for number in range(100)]
    pack, refs = _offered(place, *entries)
    place.refuse(pack, refs, "directories")


def test_a_delta_that_grows_without_bound_is_refused(place: Place) -> None:
    """Git does not take the memory that a delta says its object needs."""
    start = blob(bytes(1 << 20))
    bomb = packs.delta(start.name, 1 << 20, 64 << 30, packs.copy(1 << 20) * (64 << 10))
    place.refuse(packs.write([start, bomb]), {"head": place.base}, "refuses the pack")


def test_more_paths_than_can_be_counted_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen trees, each ten times in the next: git ends at the memory that it may have."""
    monkeypatch.setattr(quarantine, "MEMORY", 64 << 20)
    top = tree(*[("100644", str(number), HELLO.name) for number in range(10)])
    things = [HELLO, top]
    for _ in range(10):
        top = tree(*[("40000", str(number), top.name) for number in range(10)])
        things.append(top)
    made = commit(top, place.base)
    place.refuse(packs.write([*things, made]), {"head": made.name}, "can't be read")


def test_time_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step begins when the time is over."""
    monkeypatch.setattr(quarantine, "SECONDS", 0.0)
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.refuse(pack, refs, "longer than 0 s")


def test_trees_are_read_in_batches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strange name is found in whichever batch it is, and changes that are too many are split."""
    monkeypatch.setattr(quarantine, "_BATCH", 64)
    monkeypatch.setattr(quarantine, "_COMMITS", 4)
    monkeypatch.setattr(quarantine, "_CHANGES", 400)
    things: list[Thing] = [HELLO]
    last = place.base
    for number in range(7):
        top = tree(("100644", f"file-{number}", HELLO.name))
        made = commit(top, last)
        things += [top, made]
        last = made.name
    assert place.accept(packs.write(things), {"head": last}).commits == 7
    monkeypatch.setattr(quarantine, "_CHANGES", 100)
    with pytest.raises(Refused, match="printed more than 100"):
        place.accept(packs.write(things), {"head": last})
    monkeypatch.setattr(quarantine, "_CHANGES", 1000)
    bad = tree(("100644", ".\uff47it", HELLO.name))
    made = commit(bad, last)
    with pytest.raises(Refused, match="may not be named"):
        place.accept(packs.write([*things, bad, made]), {"head": made.name})


# ─── one after the other ────────────────────────────────────────────────────────────


def test_the_next_one_replaces_the_last(place: Place) -> None:
    """One is there at a time; a refused one leaves the last as it is."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.accept(pack, refs)
    with pytest.raises(Refused):
        place.accept(b"", refs)
    assert place.git("rev-parse", "refs/loops/head") == refs["head"]
    place.accept(packs.write([]), {"heads/other": place.base})
    assert place.git("for-each-ref", "--format=%(refname)") == "refs/loops/heads/other"
    assert os.listdir(place.parent) == ["arrival"]


def test_without_an_exchange_of_names_a_crash_in_between_is_mended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is brought back, where only its other name was left; leftovers go."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.accept(pack, refs)
    place.directory.rename(place.parent / ".arrival.old-0123")
    (place.parent / ".arrival.new-4567" / "objects").mkdir(parents=True)
    repair(place.directory)
    assert os.listdir(place.parent) == ["arrival"]
    assert place.git("rev-parse", "refs/loops/head") == refs["head"]
    monkeypatch.setattr(quarantine, "_exchange", lambda parent, one, other: False)
    place.accept(packs.write([]), {"heads/other": place.base})
    assert os.listdir(place.parent) == ["arrival"]
    assert place.git("for-each-ref", "--format=%(refname)") == "refs/loops/heads/other"


def test_discarded_is_gone(place: Place) -> None:
    """With what a crash has left; a second time is no error."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.accept(pack, refs)
    (place.parent / ".arrival.new-4567").mkdir()
    asyncio.run(discard(place.directory))
    asyncio.run(discard(place.directory))
    assert os.listdir(place.parent) == []


def test_a_cancelled_one_leaves_nothing(place: Place) -> None:
    """Wherever it is cancelled."""
    pack, refs = _offered(place, ("100644", "a", HELLO.name))

    async def cancelled(steps: int) -> bool:
        with tempfile.TemporaryFile() as file:
            file.write(pack)
            file.flush()
            offer = Offer(refs, None, place.base, file.fileno())
            work = accept(
                Git.find(), place.repository, offer, [place.base], place.directory, pack_bytes=1000
            )
            task = asyncio.ensure_future(work)
            for _ in range(steps):
                if task.done():
                    break
                await asyncio.wait({task}, timeout=0.001)
            task.cancel()
            await asyncio.wait({task})
            return task.cancelled()

    was_cancelled = [asyncio.run(cancelled(steps)) for steps in (0, 1, 4, 8, 16)]
    assert was_cancelled[0]
    assert os.listdir(place.parent) in ([], ["arrival"])


def test_the_origin_is_not_touched(place: Place) -> None:
    """Not a byte of it, whether the offer is taken or refused."""

    def look() -> dict[str, bytes]:
        files = sorted(path for path in place.origin.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = look()
    pack, refs = _offered(place, ("100644", "a", HELLO.name))
    place.accept(pack, refs)
    with pytest.raises(Refused):
        place.accept(pack[:-1], refs)
    assert look() == before
