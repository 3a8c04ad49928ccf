"""The operations on one file: read, write, edit, move, stat.

A file is replaced by writing a new one beside it and renaming that over it, so that it
has either the old content or the new one whatever happens. What it is replaced for is
the content that the caller has read: every writer compares the content's hash on the
descriptor that it read, and what the name stands for again before the rename.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from _blake2 import blake2b

from . import places, text, tree
from .operation import Failure
from .workspace import (
    SAFE,
    Place,
    Workspace,
    identity,
    kind,
    letter,
    mark,
    rename_exclusive,
    require_judged,
    shown,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    from .operation import Operation, Reply, Steps

    Pauses: TypeAlias = Generator[None, Any, None]

HASH_LIMIT = 64 << 20
"""Bytes. A larger file has no hash, and its lines are counted only as far as needed."""
EDIT_LIMIT = 32 << 20
RAW_LIMIT = 1 << 20
RAW_LIMIT_MOST = 8 << 20

_SMALL = 256 << 10
_MANY_LINES = 20_000
_CHUNK = 1 << 20
_SCAN_LIMIT = 4 << 30
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | SAFE
_IN_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY})


def digest(data: bytes) -> str:
    """The hash under which a content is known."""
    return blake2b(data, digest_size=16).hexdigest()


def _digest(data: bytes) -> Generator[None, Any, str]:
    """The same, giving way within large contents."""
    hashing = blake2b(digest_size=16)
    view = memoryview(data)
    for start in range(0, len(data), _CHUNK):
        if start:
            yield None
        hashing.update(view[start : start + _CHUNK])
    return hashing.hexdigest()


def time_text(nanoseconds: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        at = time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):
        at = time.gmtime(0)
    return (
        f"{at[0]:04}-{at[1]:02}-{at[2]:02}T{at[3]:02}:{at[4]:02}:{at[5]:02}.{rest // 1_000_000:03}Z"
    )


def _require_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = kind(status.st_mode)
        hint = "; use list_directory" if stat.S_ISDIR(status.st_mode) else ""
        raise Failure(
            "NOT_A_FILE",
            f"{shown(path) or '.'} is a {what}, not a regular file{hint}.",
            {"type": what},
        )


def _binary(path: str, size: int, media: str | None) -> Failure:
    what = media or "binary"
    mend = (
        "Use encoding base64 to get its bytes."
        if size <= RAW_LIMIT
        else "It is too large for encoding base64; use run_command to look at it."
    )
    return Failure(
        "UNSUPPORTED",
        f"{shown(path)} is not text ({what}, {size} bytes). {mend}",
        {"size": size, "media_type": media},
    )


# ─── read ───────────────────────────────────────────────────────────────────────────


def read(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Reply | Steps:
    """Lines of a text file, or all bytes of a small file."""
    path: str = arguments["path"]
    if "\\" in path:
        path = workspace.spelled_out(path)
    raw = arguments.get("encoding", "utf-8") == "base64"
    window = _window(arguments)
    with workspace.failures(path):
        fd = workspace.open(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            _require_regular(status, path)
            if raw:
                limit = arguments.get("max_raw_bytes", RAW_LIMIT)
                reply, data = _read_raw(fd, status, path, limit)
                reply["key"] = workspace.key(fd)
                return reply, data
            data = os.read(fd, status.st_size + 1) if status.st_size <= _SMALL else b""
            small = len(data) == status.st_size and status.st_size <= _SMALL
            if small and window.limit > _MANY_LINES and data.count(b"\n") > _MANY_LINES:
                small = False  # to show them takes long
            key = workspace.key(fd)
        finally:
            os.close(fd)
    if not small:
        return _read_long(workspace, path, window)
    reply, lines = _reply(path, status.st_mtime_ns, data, window)
    reply["key"] = key
    return reply, lines


class Content:
    """All bytes of a file.

    Attributes:
        data: they.
        facts: `size`, `modified`, `hash` and `key` of the file.
    """

    __slots__ = ("data", "facts")

    def __init__(self, data: bytes, facts: dict[str, Any]) -> None:
        self.data = data
        self.facts = facts


def content(workspace: Workspace, path: str, limit: int) -> Generator[None, Any, Content]:
    """All bytes of a regular file.

    Args:
        workspace: the file is in.
        path: of it, as the host gives it.
        limit: bytes that it may have.

    Raises:
        Failure: TOO_LARGE; or it can't be read.
    """
    if "\\" in path:
        path = workspace.spelled_out(path)
    with workspace.failures(path):
        fd = workspace.open(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            _require_regular(status, path)
            if status.st_size > limit:
                raise Failure(
                    "TOO_LARGE",
                    f"{shown(path)} has {status.st_size} bytes; at most {limit} can be shown. "
                    "Use run_command to make a smaller one of it.",
                    {"size": status.st_size, "limit": limit},
                )
            data = yield from _contents(fd, limit)
            key = workspace.key(fd)
        finally:
            os.close(fd)
    hashed = yield from _digest(data)
    modified = time_text(status.st_mtime_ns)
    return Content(data, {"size": len(data), "modified": modified, "hash": hashed, "key": key})


def _window(arguments: dict[str, Any]) -> text.Window:
    return text.Window(
        arguments.get("offset", 1),
        arguments.get("limit", 2000),
        arguments.get("max_bytes", 100_000),
        arguments.get("line_chars", 2000),
    )


def _read_raw(fd: int, status: os.stat_result, path: str, limit: int) -> Reply:
    limit = min(limit, RAW_LIMIT_MOST)
    size = status.st_size
    data = b"" if size > limit else _read_up_to(fd, limit + 1, size + 1)
    if max(size, len(data)) > limit:
        raise Failure(
            "TOO_LARGE",
            f"{shown(path)} has {size} bytes; at most {limit} are given as base64. "
            "Use run_command to get a part of it.",
            {"size": size, "limit": limit},
        )
    modified = time_text(status.st_mtime_ns)
    return {"size": len(data), "modified": modified, "hash": digest(data)}, data


def _read_up_to(fd: int, limit: int, first: int) -> bytes:
    data = os.read(fd, first)
    while len(data) < limit:
        more = os.read(fd, min(limit - len(data), _CHUNK))
        if not more:
            break
        data += more
    return data


def _reply(path: str, mtime: int, data: bytes, window: text.Window) -> Reply:
    """The reply for a whole file in memory."""
    head = data[: text.HEAD]
    marked = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    decoded = text.finished(text.from_utf16(data)) if marked else None
    if decoded is None:
        _refuse_binary(path, head, len(data), window)
    bom = decoded is not None or data.startswith(text.BOM)
    bare = decoded if decoded is not None else data[3:] if bom else data
    reply, lines = text.show(bare, window)
    reply["size"] = len(data)
    reply["modified"] = time_text(mtime)
    reply["hash"] = blake2b(data, digest_size=16).hexdigest()
    reply["bom"] = bom
    reply["encoding"] = "utf-8" if decoded is None else "utf-16"
    reply["invalid"] = decoded is None and not data.isascii() and not _is_whole_utf8(data)
    return reply, lines


def _is_whole_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse_binary(path: str, head: bytes, size: int, window: text.Window) -> None:
    """Refuse images, and a NUL byte in the head as far as the lines asked for reach."""
    media = text.media_type(head) if head[:1] in (b"\x89", b"\xff", b"G", b"R", b"%") else None
    if media is not None:
        raise _binary(path, size, media)
    nul = head.find(b"\0")
    if nul >= 0 and head.count(b"\n", 0, nul) < window.first - 1 + window.limit:
        raise _binary(path, size, None)


def _read_long(workspace: Workspace, path: str, window: text.Window) -> Steps:
    """The same for a file that is not held in memory."""
    with workspace.failures(path):
        fd = workspace.open(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            _require_regular(status, path)
            key = workspace.key(fd)
            reply, lines = yield from _read_decoded(fd, status, path, window)
            reply["key"] = key
            return reply, lines
        finally:
            os.close(fd)


def _read_decoded(fd: int, status: os.stat_result, path: str, window: text.Window) -> Steps:
    """The lines of a file that may be UTF-16."""
    head = os.pread(fd, text.HEAD, 0)
    codec = text.utf16_codec(head)
    if codec is not None and status.st_size <= EDIT_LIMIT:
        try:
            return (yield from _stream(fd, status, path, window, text.Utf16(codec)))
        except UnicodeDecodeError:  # what looks like a mark is none
            os.lseek(fd, 0, os.SEEK_SET)
    _refuse_binary(path, head, status.st_size, window)
    return (yield from _stream(fd, status, path, window, None))


def _stream(
    fd: int, status: os.stat_result, path: str, window: text.Window, utf16: text.Utf16 | None
) -> Steps:
    """The reply for a file that is read once from its start to where nothing more is needed."""
    lines = text.Lines(window)
    hashing = blake2b(digest_size=16)
    valid = text.Utf8()
    position = 0
    bom = ended = False
    while True:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            ended = True
            break
        if utf16 is not None:
            yield from lines.take(utf16.feed(chunk))
        else:
            bom = bom or (position == 0 and chunk.startswith(text.BOM))
            valid.feed(chunk)
            yield from lines.take(chunk[3:] if bom and position == 0 else chunk)
        position += len(chunk)
        hashed = max(status.st_size, position) <= HASH_LIMIT
        if hashed:
            hashing.update(chunk)
        elif _enough(lines, path, position):
            break
        yield None
    if utf16 is not None:
        utf16.feed(b"", final=True)
    reply, data = lines.finish(ended=ended)
    reply["size"] = position if ended else max(status.st_size, position)
    reply["modified"] = time_text(status.st_mtime_ns)
    reply["hash"] = hashing.hexdigest() if reply["size"] <= HASH_LIMIT else None
    encoding = "utf-8" if utf16 is None else "utf-16"
    reply |= {"bom": bom or utf16 is not None, "encoding": encoding}
    reply["invalid"] = not valid.finish(ended=ended)
    return reply, data


def _enough(lines: text.Lines, path: str, position: int) -> bool:
    """In a file without a hash: is there no need to read on?"""
    if lines.skipping and position > _SCAN_LIMIT:
        raise Failure(
            "TOO_LARGE",
            f"{shown(path)}: the line asked for is not within the first {_SCAN_LIMIT >> 30} GiB. "
            "Use run_command, for example with tail.",
        )
    if lines.open_bytes > HASH_LIMIT and not lines.full:
        lines.give_up_line()
    return lines.certain


def _contents(fd: int, limit: int) -> Generator[None, Any, bytes]:
    """All bytes of a file of at most `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = os.read(fd, _CHUNK)
        if not piece:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if size > _SMALL:
            yield None


# ─── write and edit ─────────────────────────────────────────────────────────────────


def write(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Make a file, or replace one whose content the caller knows."""
    path = workspace.spelled_out(arguments["path"])
    if arguments.get("trial", False):
        return (yield from _tried_write(workspace, path, arguments))
    with workspace.failures(path):
        _require_file_name(path)
        parents = arguments.get("create_dirs", True)
        with workspace.locate(path, follow=True, make_parents=parents) as place:
            found = place.status()
            require_judged(found, path, arguments.get("judged"))
            if found is None:
                yield from _save(place, path, body, None)
            else:
                fd, before = yield from _open_to_replace(place, path, found, arguments)
                try:
                    head = os.pread(fd, 3, 0)
                    if arguments.get("keep_bom", True):
                        bare = body.removeprefix(text.BOM)
                        body = text.BOM + bare if head == text.BOM else bare
                    yield from _save(place, path, body, (fd, before))
                finally:
                    os.close(fd)
            key = workspace.key(place.parent, place.name)
    hashed = yield from _digest(body)
    return {"size": len(body), "hash": hashed, "created": found is None, "key": key}, b""


def _tried_write(workspace: Workspace, path: str, arguments: dict[str, Any]) -> Steps:
    """See what `write` would be refused for."""
    is_new = True
    with workspace.failures(path):
        _require_file_name(path)
        try:
            with workspace.locate(path, follow=True) as place:
                found = place.status()
                is_new = found is None
                if found is not None:
                    fd, _ = yield from _open_to_replace(place, path, found, arguments)
                    os.close(fd)
        except FileNotFoundError:
            if not arguments.get("create_dirs", True):
                raise
    return {"size": 0, "hash": None, "created": is_new, "key": None}, b""


def _open_to_replace(
    place: Place, path: str, found: os.stat_result, arguments: dict[str, Any]
) -> Generator[None, Any, tuple[int, os.stat_result]]:
    """Open the file that `write` is going to replace, if it may."""
    _require_regular(found, path)
    if arguments.get("create_only", False):
        raise Failure("EXISTS", f"{shown(path)} exists already.")
    expect = arguments.get("expect")
    fd, before = _open_known(place, path, expect, HASH_LIMIT)
    try:
        yield from _require_hash(fd, path, expect)
    except BaseException:
        os.close(fd)
        raise
    return fd, before


def edit(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Replace pieces of text in a file whose content the caller knows: all of them, or none."""
    path = workspace.spelled_out(arguments["path"])
    steps = _steps(arguments, body)
    done = yield from rewrite(workspace, path, arguments, lambda data: _edited_by(data, steps))
    reply = {
        "replacements": done.result.replacements,
        "first_line": done.result.first_line,
        "original_size": done.size,
        "size": len(done.result.text),
        "hash": done.hash,
        "key": done.key,
    }
    return reply, b""


class Rewritten:
    """A file that has another content now.

    Attributes:
        result: what made the content.
        size: bytes that the file had before.
        hash, key: of the file now.
    """

    __slots__ = ("hash", "key", "result", "size")

    def __init__(self, result: Any, size: int, digest: str, key: str | None) -> None:
        self.result = result
        self.size = size
        self.hash = digest
        self.key = key


def rewrite(
    workspace: Workspace,
    path: str,
    arguments: dict[str, Any],
    make: Callable[[bytes], Generator[None, Any, Any]],
) -> Generator[None, Any, Rewritten]:
    """Make something else of a file whose content the caller knows.

    Args:
        workspace: the file is in.
        path: of it, spelled out.
        arguments: `expect`, hash of the content that the caller knows; `trial`, nothing is
            changed, and what would be refused is.
        make: the content → what has the new one as its `text`.

    Raises:
        Failure: nothing was changed.
    """
    expect = arguments.get("expect")
    with workspace.failures(path):
        _require_file_name(path)
        with workspace.locate(path, follow=True) as place:
            if workspace.restrictions is not None:  # whether an edit fits tells of the content
                workspace.restrictions.require_readable(workspace, place)
            found = place.status()
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            _require_regular(found, path)
            fd, before = _open_known(place, path, expect, EDIT_LIMIT)
            try:
                data = yield from _contents(fd, EDIT_LIMIT)
                if (yield from _digest(data)) != expect:
                    raise _changed(path)
                made = yield from make(data)
                if not arguments.get("trial", False):
                    yield from _save(place, path, made.text, (fd, before))
            finally:
                os.close(fd)
            key = workspace.key(place.parent, place.name)
    return Rewritten(made, len(data), (yield from _digest(made.text)), key)


def _steps(arguments: dict[str, Any], body: bytes) -> list[tuple[bytes, bytes, bool]]:
    """The edits: what is replaced, by what, and everywhere?

    `edits` has the sizes of both texts of each, which follow each other in the body.
    """
    if "edits" not in arguments:
        split: int = arguments["old"]
        steps = [(body[:split], body[split:], bool(arguments.get("replace_all", False)))]
    else:
        steps = []
        position = 0
        for old, new, everywhere in arguments["edits"]:
            middle = position + old
            steps.append((body[position:middle], body[middle : middle + new], bool(everywhere)))
            position = middle + new
    for step in steps:
        text.require_old(step[0])
    return steps


def _edited_by(
    data: bytes, steps: list[tuple[bytes, bytes, bool]]
) -> Generator[None, Any, text.Edited]:
    """The content after all edits, one after the other."""
    replacements = first_line = 0
    for number, (old, new, everywhere) in enumerate(steps, 1):
        try:
            edited = yield from _edited(data, old, new, everywhere)
        except Failure as failure:
            if len(steps) == 1:
                raise
            said = f"Edit {number} of {len(steps)}: {failure.message} Nothing was changed."
            raise Failure(failure.code, said, failure.details) from None
        data = edited.text
        replacements += edited.replacements
        first_line = first_line or edited.first_line
        if number < len(steps) and len(data) > EDIT_LIMIT:
            raise Failure("TOO_LARGE", f"Edit {number} makes the file too large to go on with it.")
    return text.Edited(data, replacements, first_line)


def _edited(
    data: bytes, old: bytes, new: bytes, everywhere: bool
) -> Generator[None, Any, text.Edited]:
    """The content after the edit; UTF-16 is edited as the text that reading shows."""
    codec = text.utf16_codec(data[:4])
    decoded = yield from text.from_utf16(data)
    if codec is None or decoded is None:
        return (yield from text.replace(data, old, new, everywhere=everywhere))
    if (yield from text.to_utf16(decoded, codec, data[:2])) != data:
        return (yield from text.replace(data, old, new, everywhere=everywhere))
    edited = yield from text.replace(decoded, old, new, everywhere=everywhere)
    try:
        edited.text = yield from text.to_utf16(edited.text, codec, data[:2])
    except UnicodeDecodeError:
        raise Failure(
            "UNSUPPORTED", "The file is UTF-16 and new_string is not valid text."
        ) from None
    return edited


def _require_file_name(path: str) -> None:
    if path.endswith("/"):
        raise Failure(
            "INVALID_PATH", f"{shown(path)} ends with a slash, so it names a directory, not a file."
        )


def _changed(path: str) -> Failure:
    return Failure("CONFLICT", f"{shown(path)} changed since it was read. Read it again.")


def _open_known(
    place: Place, path: str, expect: str | None, limit: int
) -> tuple[int, os.stat_result]:
    """Open the file that is there now, and check what can be checked before reading it."""
    fd = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | SAFE, dir_fd=place.parent)
    try:
        before = os.fstat(fd)
        _require_regular(before, path)
        if before.st_size > limit:
            raise Failure(
                "TOO_LARGE",
                f"{shown(path)} has {before.st_size} bytes; files up to {limit} bytes "
                f"({limit >> 20} MiB) can be changed here. Use run_command.",
                {"size": before.st_size, "limit": limit},
            )
        if expect is None:
            raise Failure("NOT_READ", f"{shown(path)} was not read. Read it before changing it.")
        if not os.access(place.name, os.W_OK, dir_fd=place.parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except BaseException:
        os.close(fd)
        raise
    return fd, before


def _require_hash(fd: int, path: str, expect: str | None) -> Pauses:
    hashing = blake2b(digest_size=16)
    while True:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        hashing.update(chunk)
        if len(chunk) == _CHUNK:
            yield None
    if hashing.hexdigest() != expect:
        raise _changed(path)


def _save(
    place: Place, path: str, data: bytes, replaced: tuple[int, os.stat_result] | None
) -> Pauses:
    """Make the file of this content.

    Args:
        replaced: the file that was there: open, and as it was before it was read.
    """
    temporary = ".executor-" + os.urandom(8).hex()
    try:
        new = os.open(temporary, _NEW, 0o644, dir_fd=place.parent)
    except OSError as error:
        if replaced is None or error.errno not in _IN_PLACE:
            raise
        _overwrite(place, path, data, replaced[1])
        return
    try:
        try:
            alike = replaced is None or _take_on(new, *replaced)
            if alike:
                yield from _write_all(new, data)
        finally:
            os.close(new)
        if replaced is None:
            _put_new(place, path, temporary)
            temporary = ""
        elif not alike:
            _overwrite(place, path, data, replaced[1])
        else:
            temporary = _rename_over(place, path, data, replaced[1], temporary)
    finally:
        if temporary:
            os.unlink(temporary, dir_fd=place.parent)


def _put_new(place: Place, path: str, temporary: str) -> None:
    try:
        rename_exclusive(place.parent, temporary, place.parent, place.name)
    except FileExistsError:
        raise Failure(
            "CONFLICT", f"{shown(path)} was made by someone else meanwhile. Read it first."
        ) from None


def _rename_over(
    place: Place, path: str, data: bytes, before: os.stat_result, temporary: str
) -> str:
    """Put the new file in the place of the old one; gives the name that is left to remove."""
    _require_unchanged(place, path, before)
    try:
        os.rename(temporary, place.name, src_dir_fd=place.parent, dst_dir_fd=place.parent)
    except OSError as error:
        if error.errno not in _IN_PLACE:
            raise
        _overwrite(place, path, data, before)
        return temporary
    return ""


def _require_unchanged(place: Place, path: str, before: os.stat_result) -> None:
    now = place.status()
    if now is None or identity(now) != identity(before):
        raise _changed(path)


def _take_on(new: int, old: int, before: os.stat_result) -> bool:
    """Give the new file mode, attributes and owner of the old one; False if it can't be."""
    status = os.fstat(new)
    if (status.st_uid, status.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(new, before.st_uid, before.st_gid)
        except OSError:
            if before.st_nlink == 1:
                return False
    for name in _attributes(old):
        try:
            os.setxattr(new, name, os.getxattr(old, name))
        except OSError:
            continue
    os.fchmod(new, before.st_mode & 0o777)
    return True


def _attributes(fd: int) -> list[str]:
    try:
        names = os.listxattr(fd)
    except OSError:
        return []
    return [name for name in names if name.startswith(("user.", "system.posix_acl_"))]


def _write_all(fd: int, data: bytes) -> Pauses:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:_CHUNK]) :]
        if view:
            yield None


def _overwrite(place: Place, path: str, data: bytes, before: os.stat_result) -> None:
    """Write into the file itself, where another can't take its place. Nothing comes between."""
    if before.st_nlink > 1:
        raise Failure(
            "PERMISSION_DENIED",
            f"{shown(path)} has {before.st_nlink} hard links and can't be replaced; "
            "writing it would change the others too.",
        )
    fd = os.open(place.name, os.O_RDWR | os.O_NOFOLLOW | SAFE, dir_fd=place.parent)
    try:
        if identity(os.fstat(fd)) != identity(before):
            raise _changed(path)
        if len(data) > before.st_size:
            _reserve(fd, before.st_size, len(data))
        for _ in _write_all(fd, data):
            pass
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _reserve(fd: int, size: int, wanted: int) -> None:
    """Take the space first, so that a full disk leaves the old content."""
    try:
        os.posix_fallocate(fd, size, wanted - size)
    except OSError:
        os.ftruncate(fd, size)
        raise


# ─── move ───────────────────────────────────────────────────────────────────────────


def move(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Reply | Steps:
    """Rename a file, link or directory."""
    if workspace.restrictions is None or arguments.get("trial", False):
        return _move(workspace, arguments)
    return _move_restricted(workspace, arguments)


def _move_restricted(workspace: Workspace, arguments: dict[str, Any]) -> Steps:
    """The same where rules deny some files: none of them may get another name."""
    source = workspace.spelled_out(arguments["from"])
    with workspace.failures(source), workspace.locate(source, follow=False) as place:
        looked_at = place.status()
        target = places.own_place(workspace, arguments["to"])
        if workspace.restrictions is not None:
            yield from workspace.restrictions.require_movable(workspace, place, target or "")
    return _move(workspace, arguments, looked_at, target)


def _move(
    workspace: Workspace,
    arguments: dict[str, Any],
    looked_at: os.stat_result | None = None,
    looked_to: str | None = None,
) -> Reply:
    """Rename it.

    Args:
        workspace: it is in.
        arguments: of the operation.
        looked_at: what was looked through for this; None = nothing was.
        looked_to: where it was found to lead then.
    """
    source = workspace.spelled_out(arguments["from"])
    target = workspace.spelled_out(arguments["to"])
    with workspace.failures(source), workspace.locate(source, follow=False) as old:
        moved = old.status()
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if looked_at is not None and not os.path.samestat(moved, looked_at):
            raise Failure("CONFLICT", f"{shown(source)} was replaced meanwhile; look at it again.")
        workspace.require_free(moved, source)
        if not stat.S_ISDIR(moved.st_mode):
            _require_file_name(target)
        else:
            _require_elsewhere(workspace, source, target)
        if arguments.get("trial", False):
            _try_target(workspace, target, moved, arguments)
            return {}, b""
        with (
            workspace.failures(target),
            workspace.locate(target, follow=False, make_parents=True) as new,
        ):
            if looked_at is not None and workspace.real(new.parent, new.name) != looked_to:
                raise Failure("CONFLICT", f"{shown(target)} leads elsewhere by now; try again.")
            there = new.status()
            require_judged(there, target, arguments.get("judged"))
            if there is not None:
                workspace.require_free(there, target)
                _require_other(old, new, moved, there)
                _require_replaceable(moved, there, target, arguments.get("overwrite", False))
            try:
                _rename(old, new, moved, there)
            except OSError as error:
                side = target if _is_of_target(error, new) else source
                raise _move_failure(workspace, error, source, target, side) from error
    return {}, b""


def _try_target(
    workspace: Workspace, target: str, moved: os.stat_result, arguments: dict[str, Any]
) -> None:
    """See whether the new name can be had; directories on the way to it can be made."""
    with workspace.failures(target):
        try:
            with workspace.locate(target, follow=False) as new:
                there = new.status()
                if there is not None and not os.path.samestat(there, moved):
                    workspace.require_free(there, target)
                    _require_replaceable(moved, there, target, arguments.get("overwrite", False))
        except FileNotFoundError:
            pass


def _require_other(old: Place, new: Place, moved: os.stat_result, there: os.stat_result) -> None:
    """Refuse to move a thing onto itself."""
    same = (moved.st_dev, moved.st_ino) == (there.st_dev, there.st_ino)
    if same and old.name == new.name and os.path.sameopenfile(old.parent, new.parent):
        raise Failure("INVALID_ARGUMENTS", "from and to are the same; nothing was moved.")


def _is_of_target(error: OSError, new: Place) -> bool:
    """Was it the new place that an error is about?"""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return not os.access(".", os.W_OK | os.X_OK, dir_fd=new.parent)
    return error.errno in (errno.EEXIST, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)


def _require_replaceable(
    moved: os.stat_result, there: os.stat_result, target: str, overwrite: bool
) -> None:
    if stat.S_ISDIR(there.st_mode) or stat.S_ISDIR(moved.st_mode):
        raise Failure(
            "EXISTS",
            f"{shown(target)} exists already as a {kind(there.st_mode)}. "
            "Give the full new path; directories are never merged or replaced.",
        )
    if not overwrite:
        raise Failure("EXISTS", f"{shown(target)} exists already. Use overwrite=true.")


def _rename(old: Place, new: Place, moved: os.stat_result, there: os.stat_result | None) -> None:
    if there is None:
        rename_exclusive(old.parent, old.name, new.parent, new.name)
    elif (moved.st_dev, moved.st_ino) != (there.st_dev, there.st_ino):
        os.rename(old.name, new.name, src_dir_fd=old.parent, dst_dir_fd=new.parent)
    else:  # two hard links of one file: rename(2) would leave both
        os.unlink(old.name, dir_fd=old.parent)


def _require_elsewhere(workspace: Workspace, source: str, target: str) -> None:
    """Refuse to move a directory into itself before anything is made for it."""
    with workspace.failures(target):
        below = workspace.plain(target) + "/"
    if below.startswith(workspace.plain(source) + "/"):
        raise _into_itself(source)


def _into_itself(source: str) -> Failure:
    return Failure("INVALID_ARGUMENTS", f"{shown(source)} can't be moved into or onto itself.")


def _move_failure(
    workspace: Workspace, error: OSError, source: str, target: str, side: str
) -> Failure:
    if error.errno == errno.EINVAL:
        return _into_itself(source)
    if error.errno == errno.EXDEV:
        return Failure(
            "UNSUPPORTED",
            f"{shown(source)} and {shown(target)} are on different file systems. "
            "Use run_command with mv.",
        )
    return workspace.failure(error, side)


# ─── stat ───────────────────────────────────────────────────────────────────────────


def status(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Reply:
    """What is at a path; links inside the workspace are followed, unless told not to."""
    path = workspace.spelled_out(arguments["path"])
    flags = os.O_PATH if arguments.get("follow", True) else os.O_PATH | os.O_NOFOLLOW
    nothing = {"exists": False, "type": None, "size": None, "hash": None, "key": None}
    with workspace.failures(path):
        try:
            fd = workspace.open(path, flags)
        except (FileNotFoundError, NotADirectoryError):
            return {**nothing, "mark": None, "modified": None}, b""
        try:
            found = os.fstat(fd)
            key = workspace.key(fd)
        finally:
            os.close(fd)
    reply = {"exists": True, "type": letter(found.st_mode), "size": found.st_size}
    more = {"hash": None, "key": key, "mark": mark(found), "modified": time_text(found.st_mtime_ns)}
    return {**reply, **more}, b""


OPERATIONS: dict[str, Operation] = {
    "read": read,
    "write": write,
    "edit": edit,
    "list": tree.list_directory,
    "delete": tree.delete,
    "move": move,
    "stat": status,
    "resolve": places.resolve,
}
