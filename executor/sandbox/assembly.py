"""Runs inside containers while the runtime volume is made; nothing imports it.

Its source is passed to a container's own Python: `assemble` turns the base image's
Python into one that runs in any image, `fill` completes a new runtime volume. Standard
library only.
"""

import compileall
import io
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/opt/executor")
LIBRARY = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LEFT_OUT = (
    "test", "idlelib", "tkinter", "lib2to3", "pydoc_data", "ensurepip", "turtledemo",
    "config-*", "__pycache__", "sitecustomize.py", "EXTERNALLY-MANAGED",
)  # fmt: skip
UNREADABLE = "lib/loader"
"""A second loader that may be run and not read: Linux closes a process of such a program to all
others of its uid from its first moment on (`execve(2)`, "dumpable")."""
NOBODY = 65534
PRELOADS, NO_PRELOADS = b"/etc/ld.so.preload\0", b"/opt/executor/none\0"
REMOTE = "bin/git-remote-outside"
"""What git starts for a repository that only a network leads to (gitremote-helpers(7))."""
REMOTE_SOURCE = r"""#!/bin/sh
where="There is no network in this sandbox"
case " ${https_proxy-} ${HTTPS_PROXY-} ${http_proxy-} " in
  *" http://127.0.0.1:3128 "*)
    case "${2-}" in
      https://*) exec git remote-https "$@" ;;
      http://*) exec git remote-http "$@" ;;
    esac
    where="This sandbox reaches other machines only by https and its proxy" ;;
esac
read -r _  # git complains if nobody takes its first line
echo "$where, so git can't push to, fetch from or clone ${2:-$1}." \
  "Commits leave it by \`executor git import\`, outside." >&2
exit 1
"""
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
PDFIUM = "libpdfium.so"
PDF_TRIAL = f"import ctypes, resource; ctypes.CDLL('{ROOT}/lib/{PDFIUM}').FPDF_InitLibrary()"
MARKUP_TRIAL = f"import sys; sys.path.append('{ROOT}/lib/markup'); import markdownify"
TRIAL = "import ctypes, json, os, selectors, signal, socket, struct, subprocess, zlib, ssl"


def assemble() -> None:
    """Tar with `patchelf`, `rg`, PDFium, packages on stdin → tar of `/opt/executor` on stdout."""
    tools = Path("/tmp")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extractall(tools)
    library = ROOT / "lib"
    (ROOT / "bin").mkdir(parents=True)
    python = ROOT / "bin/python3"
    shutil.copyfile(os.path.realpath(sys.executable), python)
    say("copying the standard library")
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(os.path.dirname(os.__file__), library / LIBRARY, ignore=ignore)
    shutil.copyfile(tools / PDFIUM, library / PDFIUM)
    shutil.copytree(tools / "markup", library / "markup")
    documents = copy_libraries(python, library)
    loader = next(library.glob("ld-linux*"))
    for file in (python, loader, tools / "rg", tools / "patchelf"):
        file.chmod(0o755)
    forget_preloads(loader)
    subprocess.run(
        [tools / "patchelf", "--set-interpreter", loader, "--force-rpath",
         "--set-rpath", "$ORIGIN/../lib", python],
        check=True,
    )  # fmt: skip
    shutil.copyfile(loader, ROOT / UNREADABLE)
    (ROOT / UNREADABLE).chmod(0o755)
    shutil.copyfile(tools / "rg", ROOT / "bin/rg")
    (ROOT / "bin/rg").chmod(0o755)
    (ROOT / REMOTE).write_text(REMOTE_SOURCE)
    (ROOT / REMOTE).chmod(0o755)
    copy_licences(documents, tools)
    say("compiling the standard library")
    compileall.compile_dir(
        library, quiet=2, force=True, invalidation_mode=UNCHECKED, workers=os.cpu_count() or 1
    )
    say("trying it")
    subprocess.run([python, "-I", "-S", "-B", "-c", TRIAL], check=True)
    subprocess.run([python, "-I", "-S", "-B", "-c", MARKUP_TRIAL], check=True)
    if subprocess.run([python, "-I", "-S", "-B", "-c", PDF_TRIAL], check=False).returncode:
        # One that was built for another C library; everything else works without it.
        (library / PDFIUM).unlink()
        say("PDFium does not run here: PDF files will not be shown")
    say("packing")
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(ROOT, "opt/executor", filter=plain)


def forget_preloads(loader: Path) -> None:
    """Makes a loader look for libraries to preload where there are none.

    `/etc/ld.so.preload` is the image's: its libraries are none of the agent's, which they
    would be part of, or could not be loaded into.
    """
    code = loader.read_bytes()
    if code.count(PRELOADS) != 1:
        raise SystemExit(f"{loader} does not read {PRELOADS.decode()} as every glibc does")
    loader.write_bytes(code.replace(PRELOADS, NO_PRELOADS))


def copy_libraries(python: Path, library: Path) -> set[str]:
    """Copies every shared library that Python can load; returns the originals' paths."""
    modules = (library / LIBRARY / "lib-dynload").glob("*.so")
    listing = ""
    # PDFium may be for another C library: then it is left out later on.
    for files, must_run in (([python, *modules], True), ([library / PDFIUM], False)):
        listing += subprocess.run(
            ["ldd", *files], check=must_run, capture_output=True, text=True
        ).stdout
    originals = set(re.findall(r"(/\S+) \(0x", listing))
    originals |= {str(path) for path in Path("/lib").glob("*-linux-gnu/libgcc_s.so.1")}
    for original in originals:
        shutil.copyfile(original, library / os.path.basename(original))
    return {os.path.realpath(original) for original in originals}


def copy_licences(files: set[str], tools: Path) -> None:
    """The copyright files of the packages that the files came out of, and of the tools."""
    names = sorted(files | {os.path.realpath(sys.executable)})
    tails = [f"*{os.path.basename(name)}" for name in names]
    listing = subprocess.run(["dpkg", "-S", *tails], capture_output=True, text=True, check=False)
    packages = {line.split(":")[0] for line in listing.stdout.splitlines()}
    target = ROOT / "licences"
    target.mkdir()
    for package in packages:
        source = Path("/usr/share/doc", package, "copyright")
        if source.is_file():
            shutil.copyfile(source, target / package)
    for file in (tools / "licences").glob("*"):
        shutil.copyfile(file, target / file.name)


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Root's, of no particular time, and files without any right to write.

    A read-only mount is not enough everywhere: gVisor (seen with 20240729) refuses to open
    a file of one with O_TRUNC, but the file is empty then, for all boxes, if its mode would
    have let the caller write it. Boxes of root's worktrees are uid 0.
    """
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 315532800
    member.mode = 0o755 if member.isdir() else 0o555 if member.mode & 0o100 else 0o444
    if member.name.endswith(UNREADABLE):
        member.uid = member.gid = NOBODY
        member.mode = 0o111
    return member


def fill(content_hash: str) -> None:
    """Tar of the agent's files on stdin → a complete volume; its entry comes last."""
    agent = ROOT / "agent"
    entry = agent / "__main__.py"
    files = dict(read_files())
    if entry.exists():
        return
    shutil.rmtree(agent, ignore_errors=True)
    (agent / "__pycache__").mkdir(parents=True)
    waiting = agent / "entry"
    for name, content in files.items():
        path = waiting if name == entry.name else agent / name
        write(path, content)
        stem = name.removesuffix(".py")
        compiled = agent / "__pycache__" / f"{stem}.{sys.implementation.cache_tag}.pyc"
        py_compile.compile(
            str(path), str(compiled), str(agent / name), doraise=True, invalidation_mode=UNCHECKED
        )
        compiled.chmod(0o444)
    write(ROOT / "hash", content_hash.encode())
    os.sync()
    waiting.rename(entry)


def read_files() -> Iterator[tuple[str, bytes]]:
    """Name and content of every file in the tar on stdin."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            yield member.name, (file or io.BytesIO()).read()


def write(path: Path, content: bytes) -> None:
    """Writes a file that survives a crash of the machine and that no box may write."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o444)


def say(step: str) -> None:
    """Tells the host what is being done."""
    print(step, file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.umask(0o022)
    if sys.argv[1] == "assemble":
        assemble()
    else:
        fill(sys.argv[2])
