"""Whose a box is, what may be a worktree, and what covers its `.git`."""

from __future__ import annotations

import os
import resource
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor.errors import ConfigError, ForbiddenMount, SandboxUnavailable
from executor.sandbox import ownership
from executor.sandbox.container import Owner
from executor.sandbox.facts import parse_facts
from executor.sandbox.ownership import GitEntry, UserMap, open_worktree, owner_of
from tests.sandbox import engines

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


# ─── whose ──────────────────────────────────────────────────────────────────────────


@needs_root
def test_a_box_belongs_to_the_worktrees_owner(work: Path) -> None:
    """72: without another wish the box runs as the worktree's uid and gid."""
    os.chown(work, 12345, 123)
    with open_worktree(work) as worktree:
        assert worktree.owner == owner_of(worktree, None) == Owner(12345, 123)
        assert owner_of(worktree, 7) == Owner(7, 7)
        assert owner_of(worktree, 0) == Owner(0, 0)


@needs_root
@pytest.mark.parametrize(
    ("owner", "uid", "words"),
    [
        (0, None, ["without capabilities", "--uid"]),
        (12345, None, []),
        (12345, 0, ["without capabilities", "belongs to uid 12345"]),
        (12345, 7, ["belongs to uid 12345"]),
    ],
)
def test_what_a_person_is_told(work: Path, owner: int, uid: int | None, words: list[str]) -> None:
    """B3: uid 0, and a uid that does not own the worktree, are said."""
    os.chown(work, owner, owner)
    with open_worktree(work) as worktree:
        text = " ".join(ownership.notices(worktree, owner_of(worktree, uid)))
    assert bool(text) is bool(words)
    assert all(word in text for word in words)


@pytest.mark.parametrize(
    ("owner", "passwd", "group", "name"),
    [
        (
            Owner(1000, 100),
            "root:x:0:0:root:/root:/bin/sh\n"
            "sandbox:x:1000:100:sandbox:/home/sandbox:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n",
            "root:x:0:\nsandbox:x:100:\nnogroup:x:65534:\n",
            "sandbox",
        ),
        (
            Owner(0, 0),
            "root:x:0:0:root:/home/sandbox:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n",
            "root:x:0:\nnogroup:x:65534:\n",
            "root",
        ),
        (
            Owner(65534, 65534),
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home/sandbox:/bin/sh\n",
            "root:x:0:\nnogroup:x:65534:\n",
            "nobody",
        ),
        (
            Owner(2**31, 0),
            "root:x:0:0:root:/root:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
            "sandbox:x:2147483648:0:sandbox:/home/sandbox:/bin/sh\n",
            "root:x:0:\nnogroup:x:65534:\n",
            "sandbox",
        ),
    ],
)
def test_every_uid_has_a_name_and_a_home(owner: Owner, passwd: str, group: str, name: str) -> None:
    """74: any uid and gid has a name, and its HOME is where it may write."""
    assert ownership.passwd(owner) == passwd
    assert ownership.group(owner) == group
    assert ownership.user_name(owner) == name


# ─── whose, where the engine maps users ─────────────────────────────────────────────

REMAPPED = UserMap(100000, 100000, 65536)
ENGINES_USER = UserMap(1001, 1001, 1)


@pytest.mark.parametrize(
    ("replies", "user", "expected"),
    [
        (engines.DOCKER_20, None, ownership.SAME),
        (engines.DOCKER_28, Owner(0, 0), ownership.SAME),
        (engines.REMAPPED_20, Owner(0, 0), REMAPPED),
        (engines.REMAPPED, None, UserMap(231072, 231073, 65536)),
        (engines.ROOTLESS, Owner(1001, 1001), ENGINES_USER),
        (engines.ROOTLESS_DELEGATED, Owner(1001, 100), UserMap(1001, 100, 1)),
        (engines.ROOTLESS, None, UserMap(None, None, 0)),
        (engines.PODMAN_5, Owner(0, 0), ownership.SAME),
    ],
)
def test_maps_of_engines(
    replies: tuple[dict[str, Any], dict[str, Any]], user: Owner | None, expected: UserMap
) -> None:
    """The map is in the name of the engine's directory, or is the rootless engine's user."""
    assert ownership.user_map(parse_facts("unix:///s", *replies), user) == expected


def test_a_map_that_an_engine_does_not_tell_is_not_guessed() -> None:
    """A data directory of another form says nothing."""
    for root in ("/var/lib/docker", "/data/100000", "/data/1.x", "/data/1.2.3", ""):
        version, info = engines.REMAPPED_20
        facts = parse_facts("unix:///s", version, {**info, "DockerRootDir": root})
        assert ownership.user_map(facts) == UserMap(None, None, 0)


@pytest.mark.parametrize(
    ("users", "outside", "inside"),
    [
        (ownership.SAME, Owner(1000, 100), Owner(1000, 100)),
        (ownership.SAME, Owner(0, 0), Owner(0, 0)),
        (REMAPPED, Owner(101000, 101000), Owner(1000, 1000)),
        (REMAPPED, Owner(100000, 165535), Owner(0, 65535)),
        (REMAPPED, Owner(99999, 100000), None),
        (REMAPPED, Owner(165536, 100000), None),
        (REMAPPED, Owner(101000, 1000), None),
        (REMAPPED, Owner(0, 0), None),
        (ENGINES_USER, Owner(1001, 1001), Owner(0, 0)),
        (ENGINES_USER, Owner(1002, 1001), None),
        (UserMap(None, None, 0), Owner(1000, 1000), None),
    ],
)
def test_uids_inside_and_outside(users: UserMap, outside: Owner, inside: Owner | None) -> None:
    """Who has a uid inside gets it, both ways; nobody else does."""
    assert users.inside(outside) == inside
    if inside is not None:
        assert users.outside(inside) == outside


@needs_root
@pytest.mark.parametrize(
    ("users", "owner", "words"),
    [
        (REMAPPED, 0, ["belongs to 0:0", "from 100000 to 165535", "chown -R 101000:101000"]),
        (ENGINES_USER, 1000, ["rootless", "chown -R 1001:1001"]),
        (UserMap(None, None, 0), 1000, ["without saying how", "--uid"]),
    ],
)
def test_an_owner_that_no_box_knows_is_refused(
    work: Path, users: UserMap, owner: int, words: list[str]
) -> None:
    """The sentence says whose it is and what to do; a uid that is named is taken as it is."""
    os.chown(work, owner, owner)
    with open_worktree(work) as worktree:
        with pytest.raises(ConfigError) as caught:
            owner_of(worktree, None, users)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert owner_of(worktree, 7, users) == Owner(7, 7)
        assert "Commands run as" in " ".join(ownership.notices(worktree, Owner(7, 7), REMAPPED))


@needs_root
def test_a_mapped_owner_is_told_nothing_new(work: Path) -> None:
    """Where the owner has a uid inside there is nothing to say, but that it may be 0."""
    os.chown(work, 101000, 101000)
    with open_worktree(work) as worktree:
        assert owner_of(worktree, None, REMAPPED) == Owner(1000, 1000)
        assert ownership.notices(worktree, Owner(1000, 1000), REMAPPED) == []
    os.chown(work, 100000, 100000)
    with open_worktree(work) as worktree:
        (notice,) = ownership.notices(worktree, Owner(0, 0), REMAPPED)
        assert "without capabilities" in notice


@needs_root
def test_covers_belong_to_the_owner_outside(work: Path, tmp_path: Path) -> None:
    """Names inside are those of the uid inside; the file outside has the uid outside."""
    files = ownership.write_files(tmp_path, Owner(1000, 1000), GitEntry.FILE, Owner(101000, 101000))
    assert files.git is not None and files.git.stat().st_uid == 101000
    assert "sandbox:x:1000:1000" in files.passwd.read_text()


# ─── which directories ──────────────────────────────────────────────────────────────


def test_a_link_to_a_worktree_is_resolved_first(work: Path, tmp_path: Path) -> None:
    """G14: what is mounted is the real path, not the link that was given."""
    link = tmp_path / "link"
    link.symlink_to(work)
    with open_worktree(link) as worktree:
        assert worktree.path == work
        link.unlink()
        worktree.check()


def test_a_worktree_that_is_replaced_is_found_out(work: Path, tmp_path: Path) -> None:
    """G14: a directory, or a link, that takes the worktree's place is not mounted unseen."""
    with open_worktree(work) as worktree:
        worktree.check()
        work.rename(tmp_path / "moved")
        with pytest.raises(SandboxUnavailable, match="gone"):
            worktree.check()
        work.symlink_to("/etc")
        with pytest.raises(SandboxUnavailable, match="gone"):
            worktree.check()
        work.unlink()
        work.mkdir()
        with pytest.raises(SandboxUnavailable, match="replaced"):
            worktree.check()


def test_a_way_that_is_led_elsewhere_while_it_is_opened_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14, C9: a directory above that is a link for a moment opens no place that is forbidden."""
    forbidden = tmp_path / "forbidden"
    for place in (tmp_path / "way/inner", forbidden / "inner", tmp_path / "other/inner"):
        place.mkdir(parents=True)
    open_directory = ownership._open_directory

    def swapped(path: Path, target: Path) -> int:
        (tmp_path / "way").rename(tmp_path / "aside")
        (tmp_path / "way").symlink_to(target)
        try:
            return open_directory(path)
        finally:
            (tmp_path / "way").unlink()
            (tmp_path / "aside").rename(tmp_path / "way")

    for target, error, words in (
        (forbidden, ForbiddenMount, "no sandbox may have"),
        (tmp_path / "other", ConfigError, "led elsewhere"),
    ):
        monkeypatch.setattr(ownership, "_open_directory", partial(swapped, target=target))
        with pytest.raises(error, match=words):
            open_worktree(tmp_path / "way/inner", [forbidden])
    monkeypatch.undo()
    open_worktree(tmp_path / "way/inner", [forbidden]).close()


def test_a_git_directory_that_appears_is_found_out(work: Path) -> None:
    """G14: `.git` is what it was when its cover was chosen."""
    with open_worktree(work) as worktree:
        (work / ".git").mkdir()
        with pytest.raises(SandboxUnavailable, match=r"\.git"):
            worktree.check()


@pytest.mark.parametrize("name", ["missing", "file", "loop"])
def test_what_is_no_directory_is_refused(tmp_path: Path, name: str) -> None:
    """A path that leads to no directory is a fault of the configuration."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r"can't be opened"):
        open_worktree(tmp_path / name)


def test_a_link_into_a_forbidden_place_is_refused(tmp_path: Path) -> None:
    """C9: a symbolic link to a place of the host is that place."""
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ForbiddenMount, match="/etc is a directory that no sandbox may have"):
        open_worktree(tmp_path / "link")


def test_the_state_directory_is_refused_by_any_name(tmp_path: Path) -> None:
    """C9: neither the state directory, nor what holds it, nor what lies in it."""
    state = tmp_path / "state"
    (state / "deep").mkdir(parents=True)
    (tmp_path / "other").symlink_to(state)
    for path in (tmp_path, state, state / "deep", tmp_path / "other" / "deep"):
        for named in (state, tmp_path / "other"):
            with pytest.raises(ForbiddenMount, match="no sandbox may have"):
                open_worktree(path, [named])


@needs_root
def test_a_bind_mount_of_a_forbidden_place_is_refused(tmp_path: Path) -> None:
    """C9: another name for the same directory does not open it."""
    place = tmp_path / "innocent"
    place.mkdir()
    if subprocess.run(["mount", "--bind", "/etc", place], timeout=10, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        inner = next(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
        for path in (place, inner):
            with pytest.raises(ForbiddenMount, match="leads into /etc"):
                open_worktree(path)
    finally:
        subprocess.run(["umount", place], timeout=10, check=True)


@pytest.mark.parametrize("place", [".git", ".git/objects", "bare"])
def test_gits_own_directories_are_no_worktrees(work: Path, place: str) -> None:
    """A git directory is never writable inside."""
    subprocess.run(["git", "init", "-q", work], timeout=30, check=True)
    subprocess.run(["git", "init", "-q", "--bare", work / "bare"], timeout=30, check=True)
    with pytest.raises(ConfigError, match="git's own directory"):
        open_worktree(work / place)


# ─── .git ───────────────────────────────────────────────────────────────────────────


def test_a_directory_without_git_is_not_covered(work: Path, tmp_path: Path) -> None:
    """Where there is no `.git`, none is mounted: a bind would leave one on the host."""
    with open_worktree(work) as worktree:
        assert worktree.git is GitEntry.NONE
        assert ownership.write_files(tmp_path, worktree.owner, worktree.git).git is None


def test_a_pointer_is_covered_by_a_pointer_to_nothing(work: Path, tmp_path: Path) -> None:
    """The cover of a linked worktree's `.git` names no directory of the host."""
    (work / ".git").write_text("gitdir: /origin/.git/worktrees/w\n")
    with open_worktree(work) as worktree:
        assert worktree.git is GitEntry.FILE
        cover = ownership.write_files(tmp_path, worktree.owner, worktree.git).git
    assert cover is not None
    assert cover.read_text() == ownership.POINTER
    result = subprocess.run(
        ["git", "--git-dir", cover, "status"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 128
    assert "git-is-not-available-in-this-sandbox" in result.stderr


def test_a_git_directory_is_covered_by_an_empty_one(work: Path, tmp_path: Path) -> None:
    """The cover of a checkout's `.git` is empty, and the real one is left alone."""
    (work / ".git").mkdir()
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    with open_worktree(work) as worktree:
        assert worktree.git is GitEntry.DIRECTORY
        cover = ownership.write_files(tmp_path, worktree.owner, worktree.git).git
    assert cover is not None
    assert list(cover.iterdir()) == []
    assert (work / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"


@pytest.mark.parametrize("target", ["/etc", "elsewhere", "."])
def test_a_link_in_place_of_git_is_refused(work: Path, target: str) -> None:
    """A symbolic link can't be covered: the engine would follow it."""
    (work / ".git").symlink_to(target)
    with pytest.raises(ConfigError, match="neither a file nor a directory"):
        open_worktree(work)


def test_a_fifo_in_place_of_git_is_refused(work: Path) -> None:
    """G16: nothing but a file or directory is opened."""
    os.mkfifo(work / ".git")
    with pytest.raises(ConfigError, match="neither a file nor a directory"):
        open_worktree(work)


@pytest.mark.parametrize("pointer", ["gitdir: .bare\n", "gitdir: ./x/../.bare", "gitdir: link\n"])
def test_a_git_directory_in_plain_sight_is_refused(work: Path, pointer: str) -> None:
    """H2: a pointer into the worktree itself would leave the real git directory writable."""
    (work / ".bare").mkdir()
    (work / "x").mkdir()
    (work / "link").symlink_to(".bare")
    (work / ".git").write_text(pointer)
    with pytest.raises(ConfigError, match="lies inside it"):
        open_worktree(work)


# ─── generated files ────────────────────────────────────────────────────────────────


def test_generated_files_are_readable_by_any_uid_and_written_anew(tmp_path: Path) -> None:
    """A second call replaces what a first one wrote, whatever it had become."""
    owner = Owner(os.getuid(), os.getgid())
    files = ownership.write_files(tmp_path, owner, GitEntry.FILE)
    files.hosts.unlink()
    files.hosts.symlink_to("/etc/hostname")
    again = ownership.write_files(tmp_path, owner, GitEntry.FILE, git_settings=b"[user]\n")
    assert again == files
    for path in (files.passwd, files.group, files.hosts, files.git_settings, files.git):
        assert path is not None
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o444
    assert files.hosts.read_bytes() == ownership.HOSTS
    assert files.git_settings.read_text() == "[include]\n\tpath = /etc/gitconfig\n[user]\n"


def test_ceilings_are_this_process_hard_limits() -> None:
    """Unlimited is None, everything else the number."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    expected = None if hard == resource.RLIM_INFINITY else hard
    assert ownership.ceilings().open_files == expected
