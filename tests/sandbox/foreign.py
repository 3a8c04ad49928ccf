"""Images of other makers: any root file system with any configuration, without a registry.

They come in as a tar that an engine loads, as `docker save` writes it: so also what no
Dockerfile would write gets in.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sandbox import tiny

APPLETS = (
    *("sh", "ls", "cat", "cp", "mv", "rm", "mkdir", "chmod", "grep", "sed", "awk", "find", "sort"),
    *("head", "tail", "wc", "stat", "id", "env", "pwd", "sleep", "df", "dd", "touch", "mount"),
)

_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Root:
    """A root file system that grows entry by entry.

    Attributes:
        entries: what was added.
        start: a tar that it began with.
    """

    entries: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)
    start: bytes = b""

    def file(self, path: str, content: bytes | str, mode: int = 0o644) -> Root:
        """A file of root's."""
        data = content.encode() if isinstance(content, str) else content
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(data), mode
        self.entries.append((info, data))
        return self

    def directory(self, path: str, mode: int = 0o755) -> Root:
        """A directory of root's."""
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self.entries.append((info, b""))
        return self

    def link(self, path: str, target: str) -> Root:
        """A symbolic link."""
        info = tarfile.TarInfo(path)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.entries.append((info, b""))
        return self

    def host_file(self, path: str, source: Path, mode: int = 0o755) -> Root:
        """A file of this machine."""
        return self.file(path, source.read_bytes(), mode)

    def tar(self) -> bytes:
        """All of it."""
        buffer = io.BytesIO(self.start)
        with tarfile.open(fileobj=buffer, mode="a" if self.start else "w") as archive:
            for info, data in self.entries:
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()


def has_busybox() -> bool:
    """This machine has a busybox that is static."""
    program = shutil.which("busybox", path="/usr/bin:/bin")
    return program is not None and _is_static(program)


def busybox() -> Root:
    """One static program under many names, and nothing else: no directory that it needs not."""
    root = Root().host_file(
        "bin/busybox", Path(shutil.which("busybox", path="/usr/bin:/bin") or "")
    )
    for name in APPLETS:
        root.link(f"bin/{name}", "busybox")
    return root


def _is_static(program: str) -> bool:
    """The dynamic loader has nothing to do for it."""
    done = subprocess.run(["ldd", program], capture_output=True, timeout=30, check=False)
    return done.returncode != 0


def usual() -> Root:
    """This machine's own programs (see `tiny`)."""
    return Root(start=tiny.root_file_system())


NAMES = """
#include <arpa/inet.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    struct passwd *me = getpwuid(getuid());
    struct hostent *own = gethostbyname("localhost");
    if (!me || !own) return 1;
    printf("musl %d %s %s %s\\n", (int)getuid(), me->pw_name, me->pw_dir,
           inet_ntoa(*(struct in_addr *)own->h_addr_list[0]));
}
"""


def musl(directory: Path) -> Root:
    """A program that is linked with musl, and musl; for a machine that has `musl-gcc`.

    Args:
        directory: for what is compiled.
    """
    source, program = directory / "names.c", directory / "names"
    source.write_text(NAMES)
    subprocess.run(["musl-gcc", "-o", program, source], check=True, timeout=60)
    beside = Path(shutil.which("musl-gcc") or "/").parent.parent
    places = (Path("/lib"), beside / "lib")
    loader = next(one for place in places for one in place.glob("ld-musl-*.so.1"))
    return Root().host_file("bin/names", program).host_file(f"lib/{loader.name}", loader)


@contextlib.contextmanager
def loaded(
    root: Root, config: Mapping[str, Any] | None = None, architecture: str | None = None
) -> Iterator[str]:
    """The reference of an image, which is removed afterwards.

    Args:
        root: what it holds.
        config: of it, as the image format has it: `Env`, `Entrypoint`, `WorkingDir` …
        architecture: as the image format names it; None = this machine's.
    """
    reference = f"executor-test-{uuid.uuid4().hex[:12]}:foreign"
    archive = image_archive(root.tar(), reference, config or {}, architecture)
    _docker(["load", "-q"], archive)
    try:
        yield reference
    finally:
        _docker(["rmi", reference])


def image_archive(
    layer: bytes, reference: str, config: Mapping[str, Any], architecture: str | None = None
) -> bytes:
    """What `docker load` reads: a manifest, a configuration, one layer."""
    # The same image under two names would be one, which two tests at a time take from each other.
    labels = {**(config.get("Labels") or {}), tiny.LABEL: reference}
    about = {
        "architecture": architecture or _NAMES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {**config, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created_by": "tests"}],
    }
    text = json.dumps(about).encode()
    name = hashlib.sha256(text).hexdigest()
    manifest = [{"Config": f"{name}.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    files: dict[str, bytes | str] = {
        f"{name}.json": text,
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest),
    }
    root = Root()
    for path, content in files.items():
        root.file(path, content)
    return root.tar()


def _docker(arguments: Sequence[str], content: bytes = b"") -> str:
    done = subprocess.run(
        ["docker", *arguments], input=content, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
