"""Where paths lead: through which links, to what, and what of them is missing.

The host asks for all paths of a turn at once, to know which of them mean the same file.
Nothing is opened but as a place (`O_PATH`): no FIFO waits, no device is touched. What is
said holds for the moment in which it was looked up, and no operation rests on it.
"""

from __future__ import annotations

import errno
import os
import stat

from .workspace import MAX_PATH, Workspace, letter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .operation import Steps

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
_MAX_PARTS = 5000
_AT_A_TIME = 20
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})

THERE, MISSING, OUTSIDE, UNCLEAR = "there", "missing", "outside", "unclear"


def resolve(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """One record for each of the paths, in order; no path makes the whole fail."""
    places: list[dict[str, Any]] = []
    leaves = arguments.get("reach") == "box"
    for path in arguments["paths"]:
        places.append(_place(workspace, path, leaves))
        if len(places) % _AT_A_TIME == 0:
            yield None
    return {"places": places}, b""


def _place(workspace: Workspace, path: str, leaves: bool = False) -> dict[str, Any]:
    """The record of one path.

    Args:
        workspace: where paths without a leading slash begin.
        path: as the host gives it.
        leaves: links of the workspace lead out of it, too.
    """
    found = _looked_up(workspace, path)
    if found["state"] == OUTSIDE and leaves and not path.startswith("/"):
        beside = _looked_up(workspace, f"{workspace.root.rstrip('/')}/{path}", outside=True)
        return beside if beside["state"] in (THERE, MISSING) else found
    return found


def own_place(workspace: Workspace, path: str) -> str | None:
    """Where a path is without following its last part, as rules name it; None = unclear."""
    found = _looked_up(workspace, path)
    return workspace.named(found["own"]) if found["state"] in (THERE, MISSING) else None


def _looked_up(workspace: Workspace, path: str, *, outside: bool = False) -> dict[str, Any]:
    try:
        if len(os.fsencode(path)) > MAX_PATH or "\0" in path:
            return _unknown(path, UNCLEAR)
        if workspace.box is not None and (outside or _is_beside(workspace, path)):
            return _beside(workspace.box, path)
        name = workspace.plain(workspace.spelled_out(path))
        return _direct(workspace, name) or _Trace(workspace).follow(name)
    except OSError as error:
        return _unknown(path, OUTSIDE if error.errno == errno.EXDEV else UNCLEAR)
    except ValueError:  # half of a surrogate pair
        return _unknown(path, UNCLEAR)


def _is_beside(workspace: Workspace, path: str) -> bool:
    root = workspace.root.rstrip("/") + "/"
    return path.startswith("/") and not f"{path}/".startswith(root)


def _beside(box: Workspace, path: str) -> dict[str, Any]:
    """The place of an absolute path outside of the workspace, from where links may lead in."""
    name = box.plain(box.spelled_out(path))
    found = _direct(box, name) or _Trace(box).follow(name)
    for key in ("path", "own", "missing"):
        if found[key] is not None:
            found[key] = box.named(found[key])
    found["links"] = [box.named(link) for link in found["links"]]
    return found


def _record(path: str, state: str) -> dict[str, Any]:
    return {
        "path": path,
        "own": path,
        "state": state,
        "kind": None,
        "key": None,
        "shared": False,
        "missing": None,
        "links": [],
    }


def _unknown(path: str, state: str) -> dict[str, Any]:
    return _record(path[:MAX_PATH], state)


def _there(workspace: Workspace, path: str, fd: int) -> dict[str, Any]:
    status = os.fstat(fd)
    shared = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    found = _record(path, THERE)
    found.update(kind=letter(status.st_mode), key=workspace.key(fd), shared=shared)
    return found


def _direct(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """The place of a path that is there and leads through no link; None if that is not so."""
    try:
        fd = workspace.open(name, os.O_PATH)
    except OSError:
        return None
    try:
        real = os.readlink(f"/proc/self/fd/{fd}")
        if real != (f"{workspace.root.rstrip('/')}/{name}" if name else workspace.root):
            return None
        return _there(workspace, name, fd)
    except OSError:
        return None
    finally:
        os.close(fd)


class _Trace:
    """A way through the workspace, one part at a time, which notes the links on it."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._trail: list[tuple[int, str]] = [(workspace.directory, "")]
        self._todo: list[str] = []
        self._links: list[str] = []
        self._own: str | None = None

    def follow(self, name: str) -> dict[str, Any]:
        """Go all the way.

        Raises:
            OSError: EXDEV, it leads out of the workspace; anything else, it can't be told.
        """
        try:
            self._push(name)
            found = self._walk()
        finally:
            self._back_to_root()
        found["links"] = self._links
        if self._own is not None:
            found["own"] = self._own
        return found

    def _walk(self) -> dict[str, Any]:
        for _ in range(_MAX_PARTS):
            if not self._todo:
                fd, path = self._trail[-1]
                return _there(self._workspace, path, fd)
            part = self._todo.pop()
            if part == "..":
                self._up()
                continue
            path = f"{self._here}/{part}" if self._here else part
            try:
                fd = os.open(part, _PLACE, dir_fd=self._trail[-1][0])
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
                return self._missing(path)
            try:
                self._workspace.enter(fd)
            except BaseException:
                os.close(fd)
                raise
            self._enter(fd, path)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    @property
    def _here(self) -> str:
        return self._trail[-1][1]

    def _enter(self, fd: int, path: str) -> None:
        """Go on with what was opened: into it, or to where it leads if it is a link."""
        if self._own is None and not self._todo:
            self._own = path
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            self._trail.append((fd, path))
            return
        try:
            target = os.readlink("", dir_fd=fd)
        finally:
            os.close(fd)
        self._links.append(path)
        if len(self._links) > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            target = self._workspace.plain(target)
            self._back_to_root()
        self._push(target)

    def _push(self, path: str) -> None:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        self._todo += reversed(parts)

    def _up(self) -> None:
        if len(self._trail) == 1:
            raise OSError(errno.EXDEV, "leads out of the workspace")
        os.close(self._trail.pop()[0])

    def _missing(self, path: str) -> dict[str, Any]:
        """What would be there: the rest of the way, as it is written."""
        if ".." in self._todo:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        whole = "/".join([path, *reversed(self._todo)])
        found = _record(whole, MISSING)
        found["missing"] = path
        return found

    def _back_to_root(self) -> None:
        while len(self._trail) > 1:
            os.close(self._trail.pop()[0])
