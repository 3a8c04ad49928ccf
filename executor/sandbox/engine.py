"""The container engine, over its HTTP API. The only caller of the Docker SDK.

Request bodies are the raw bodies of the Engine API, so that what is asked of an engine
can be written and tested as data. The SDK blocks; its calls run on a small pool of
threads. Its client is one `requests` session over a pool of connections, which may be
shared by threads as long as nobody changes the session: nothing here does.

No method copies files out of or into a container through the engine (`put_archive`,
`get_archive`, `export`): the engine would follow what the container wrote.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import posixpath
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from stat import S_IWOTH
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeVar

from executor.errors import EngineError, EngineUnavailable, ImageNotFound
from executor.sandbox.attach import Demultiplexer, plain_socket
from executor.sandbox.completion import to_completion
from executor.sandbox.facts import API_FLOOR, DELEGATED, EngineFacts, parse_facts
from executor.sandbox.threads import Threads
from executor.settings import Settings

if TYPE_CHECKING:
    import docker

__all__ = [
    "Demultiplexer",
    "Engine",
    "EngineFacts",
    "NameTaken",
    "PathEntry",
    "parse_facts",
    "status",
]

P = ParamSpec("P")
T = TypeVar("T")
Labels = Mapping[str, str | None]

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
OVERRIDE = "EXECUTOR_ALLOW_INSECURE_ENGINE"
"""The variable that lets an engine be used which anybody may command."""
ENDED = frozenset({"exited", "dead", "stopped"})
"""States of a container that ran and does no longer; the last one is Podman's."""
CONNECT_TIMEOUT = 10
"""Seconds for the first words of an engine. Podman asks the package manager for versions of
its parts before it answers: a second where nothing else runs."""
REQUEST_TIMEOUT = 60
REMOVAL_PATIENCE = 10.0
"""Seconds that another hand has for a removal that it has begun."""
_ATTEMPTS = 3
_THREADS = 16
_NOT_FOUND = 404
_GO_DIRECTORY = 1 << 31
"""The bit of a directory in Go's file modes."""
_SERVER_ERROR = 500
_GONE = ("no such container", "unrecognized image id")
"""Texts of failures (status 500) about what goes while an engine looks: Podman's about containers,
Docker's about an image that somebody else removes, too."""
_TEXT_LIMIT = 2000
_TRANSIENT = (
    "connection reset by peer",
    "transport is closing",
    "ttrpc: closed",
    "error reading from server: eof",
    "resource temporarily unavailable",
    "database is locked",
    "layer is locked",
)
"""Texts of failures (status 500) that have been seen to pass by themselves."""


class PathEntry(NamedTuple):
    """What is at a path in a container that never ran.

    Attributes:
        kind: what it is itself; a link is not followed.
        target: where a link leads in the end.
    """

    kind: Literal["file", "directory", "link"]
    target: str = ""


class NameTaken(EngineError):
    """There is a container of that name already."""


class Engine:
    """One container engine. Made by `connect`, ended by `close`; safe in many tasks.

    Attributes:
        facts: what the engine said about itself when it was connected.
        settings: what it was connected with.
        plain_images: ids of images whose links were looked at and found good.
    """

    def __init__(
        self,
        client: docker.APIClient,
        facts: EngineFacts,
        settings: Settings,
        pool: Threads,
    ) -> None:
        self._client = client
        self._pool = pool
        self.facts = facts
        self.settings = settings
        self.plain_images: set[str] = set()

    @classmethod
    async def connect(cls, settings: Settings) -> Engine:
        """The engine that the settings name, when it answers and is one that can be used.

        Raises:
            EngineUnavailable: nothing answers, or what answers can't be used; says the
                address, why, and the mend.
        """
        address = settings.docker_host or DEFAULT_SOCKET
        if (fault := address_fault(settings)) and not settings.allow_insecure_engine:
            raise EngineUnavailable(fault)
        pool = Threads(_THREADS, "engine")
        loop = asyncio.get_running_loop()
        try:
            client, facts = await loop.run_in_executor(pool, _meet, settings, address)
        except EngineUnavailable:
            pool.shutdown(wait=False)
            raise
        except Exception as error:
            pool.shutdown(wait=False)
            raise EngineUnavailable(_unavailable(address, error)) from error
        return cls(client, facts, settings, pool)

    async def close(self) -> None:
        """Closes the connections. Containers are not touched."""
        self._client.close()
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ─── containers ─────────────────────────────────────────────────────────────────

    async def create(
        self,
        name: str,
        request: Mapping[str, Any],
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> str:
        """Creates a container; returns its id. Nothing runs yet.

        Cancelling waits until the engine has answered and removes what it made.

        Args:
            name: unique on the engine.
            request: body of `POST /containers/create`.
            on_warning: told what the engine says that it can't do of it.

        Raises:
            ImageNotFound: the engine has no such image; it is not pulled.
            NameTaken: there is a container of that name.
            EngineError: refused for another reason.
        """
        task = asyncio.ensure_future(
            self._call(
                f"create container {name}",
                self._client.create_container_from_config,
                dict(request),
                name,
            )
        )
        try:
            reply = await asyncio.shield(task)
        except asyncio.CancelledError:
            await to_completion(self._remove_made(task))
            raise
        except EngineError as error:
            # Docker answers 409, Podman 500.
            if status(error) == 409 or "already in use" in str(error):
                raise NameTaken(str(error)) from error.__cause__
            raise
        for warning in reply.get("Warnings") or ():
            on_warning(str(warning))
        return str(reply["Id"])

    async def _remove_made(self, creation: asyncio.Task[Any]) -> None:
        """Removes what a request makes that nobody waits for any more."""
        with suppress(EngineError):
            await self.remove((await creation)["Id"])

    async def attach(self, id: str) -> socket.socket:
        """Attaches to stdin, stdout and stderr; returns the raw, blocking socket.

        Attach before `start`, then nothing is missed. What comes out is framed: see
        `Demultiplexer`. The socket is the caller's to close.
        """
        return await self._call(f"attach to container {id[:12]}", self._attach, id)

    def _attach(self, id: str) -> socket.socket:
        client: Any = self._client
        response = client._post(
            client._url("/containers/{0}/attach", id),
            params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1},
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            stream=True,
        )
        client._raise_for_status(response)
        return plain_socket(response.raw._fp.fp, response.close)

    async def start(self, id: str) -> None:
        """Starts a created container; one that runs already is left alone."""
        await self._call(
            f"start container {id[:12]}", self._client.start, id, idempotent=True, texts=False
        )

    async def create_exec(self, id: str, request: Mapping[str, Any]) -> str:
        """Prepares one more program in a running container; returns the exec's id.

        Args:
            request: body of `POST /containers/{id}/exec`.
        """
        reply = await self._call(
            f"prepare a program in container {id[:12]}", self._create_exec, id, dict(request)
        )
        return str(reply["Id"])

    def _create_exec(self, id: str, request: dict[str, Any]) -> Any:
        client: Any = self._client
        url = client._url("/containers/{0}/exec", id)
        return client._result(client._post_json(url, data=request), True)

    async def start_exec(self, exec_id: str) -> socket.socket:
        """Starts that program, attached as `attach` does it."""
        return await self._call(f"start the program {exec_id[:12]}", self._start_exec, exec_id)

    def _start_exec(self, exec_id: str) -> socket.socket:
        client: Any = self._client
        response = client._post_json(
            client._url("/exec/{0}/start", exec_id),
            data={"Tty": False, "Detach": False},
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            stream=True,
        )
        client._raise_for_status(response)
        return plain_socket(response.raw._fp.fp, response.close)

    async def inspect_exec(self, exec_id: str) -> dict[str, Any]:
        """What the engine knows of such a program (`Running`, `ExitCode`, …)."""
        reply = await self._call(
            f"inspect the program {exec_id[:12]}",
            self._client.exec_inspect,
            exec_id,
            idempotent=True,
        )
        return dict(reply)

    async def inspect(self, id: str) -> dict[str, Any]:
        """What the engine knows of a container (`State`, `HostConfig`, …).

        Raises:
            EngineError: status 404 = there is no such container.
        """
        reply = await self._call(
            f"inspect container {id[:12]}", self._client.inspect_container, id, idempotent=True
        )
        return dict(reply)

    async def image_entry(self, id: str, path: str) -> PathEntry | None:
        """What is at a path in a container; None where nothing is.

        Only for containers that were never started: nothing moves in them. No content is
        read.
        """
        what = f"look at {path} in container {id[:12]}"
        return await self._call(what, self._image_entry, id, path, idempotent=True)

    def _image_entry(self, id: str, path: str) -> PathEntry | None:
        client: Any = self._client
        response = client.head(
            client._url("/containers/{0}/archive", id),
            params={"path": path},
            timeout=REQUEST_TIMEOUT,
        )
        if response.status_code == _NOT_FOUND:
            return None
        client._raise_for_status(response)
        said = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
        target = str(said.get("linkTarget") or "")
        if target:
            return PathEntry("link", posixpath.join(posixpath.dirname(path), target))
        return PathEntry("directory" if int(said.get("mode") or 0) & _GO_DIRECTORY else "file")

    async def kill(self, id: str, signal: str = "KILL") -> None:
        """Sends a signal to process 1; a container that has ended or is gone is fine."""
        with _accepting(404, 409):
            await self._call(
                f"kill container {id[:12]}", self._client.kill, id, signal, idempotent=True
            )

    async def unpause(self, id: str) -> None:
        """Lets a paused container go on; one that is not paused, or is gone, is fine."""
        with _accepting(404, 409, 500):  # 500: Docker's word for "is not paused"
            await self._call(
                f"unpause container {id[:12]}", self._client.unpause, id, idempotent=True
            )

    async def remove(self, id: str) -> None:
        """Removes a container, running or not, with its anonymous volumes.

        One that another hand is removing (status 409) is waited for.

        Raises:
            EngineError: refused, or it is still there after `REMOVAL_PATIENCE` seconds.
        """
        with _accepting(404):
            try:
                await self._call(
                    f"remove container {id[:12]}",
                    partial(self._client.remove_container, id, v=True, force=True),
                    idempotent=True,
                )
            except EngineError as refusal:
                if status(refusal) != 409:
                    raise
                deadline = time.monotonic() + REMOVAL_PATIENCE
                while time.monotonic() < deadline:
                    await self.inspect(id)
                    await asyncio.sleep(0.05)
                raise

    async def wait(self, id: str, timeout: float) -> int:
        """Waits until a started container has ended; returns its exit code.

        Asks again and again: engines' own waiting holds a thread, and Podman's is slow.

        Raises:
            EngineError: it still runs after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        pause = 0.01
        while (state := (await self.inspect(id))["State"])["Status"] not in ENDED:
            if time.monotonic() > deadline:
                raise EngineError(f"The container {id[:12]} still runs after {timeout:g} s.")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
        return int(state["ExitCode"])

    async def list_containers(self, labels: Labels) -> list[dict[str, Any]]:
        """All containers, running or not, that bear these labels.

        Docker can go on listing one that ended while it was being removed (moby's pull request
        51692), until Docker is started anew. So one that does not run is asked for by its id.

        Args:
            labels: name → value; None = any value.
        """
        listed = await self._call(
            "list containers",
            partial(self._client.containers, all=True, filters=_filters(labels)),
            idempotent=True,
        )
        return [one for one in listed if one.get("State") == "running" or await self._has(one)]

    async def _has(self, listed: Mapping[str, Any]) -> bool:
        """Whether a container that was listed is there: what can't be learned counts as yes."""
        try:
            await self.inspect(listed["Id"])
        except EngineError as error:
            return status(error) != _NOT_FOUND
        return True

    # ─── images ─────────────────────────────────────────────────────────────────────

    async def inspect_image(self, reference: str) -> dict[str, Any] | None:
        """What the engine knows of an image; None when it has no such image."""
        try:
            return dict(
                await self._call(
                    f"inspect image {reference}",
                    self._client.inspect_image,
                    reference,
                    idempotent=True,
                )
            )
        except ImageNotFound:
            return None

    async def import_image(
        self, reference: str, content: Path | Iterable[bytes], changes: Iterable[str] = ()
    ) -> str:
        """Makes an image of one layer out of a tar; returns its id.

        Args:
            reference: `name:tag` that it gets.
            content: a tar file, or its bytes in pieces. An exception out of the iterable
                abandons the import.
            changes: Dockerfile lines for the configuration, e.g. `LABEL a=b`.
        """
        return await self._call(
            f"import image {reference}", self._import_image, reference, content, list(changes)
        )

    def _import_image(
        self, reference: str, content: Path | Iterable[bytes], changes: list[str]
    ) -> str:
        client: Any = self._client
        # Podman takes no notice of `tag` here; both take a name with the tag in it.
        parameters = {"fromSrc": "-", "repo": reference, "changes": changes}
        response = client._post(
            client._url("/images/create"),
            params=parameters,
            data=_pieces(content),
            headers={"Content-Type": "application/x-tar"},
            timeout=(REQUEST_TIMEOUT, 10 * REQUEST_TIMEOUT),
        )
        status = _last_status(client._result(response))
        return str(client.inspect_image(status or reference)["Id"])

    async def pull_image(
        self, reference: str, first_answer: float, report: Callable[[str], None]
    ) -> str:
        """Has the engine fetch an image from its registry; returns its id.

        Args:
            reference: `name:tag`, with a registry's address before it or not.
            first_answer: seconds within which the registry must have answered.
            report: called with what the engine says it is doing.

        Raises:
            ImageNotFound: no registry answers, or it has no such image.
        """
        return await self._call(
            f"pull image {reference}", self._pull_image, reference, first_answer, report
        )

    def _pull_image(
        self, reference: str, first_answer: float, report: Callable[[str], None]
    ) -> str:
        client: Any = self._client
        repository, _, tag = reference.rpartition(":")
        response = client._post(
            client._url("/images/create"),
            params={"fromImage": repository, "tag": tag},
            stream=True,
            timeout=(REQUEST_TIMEOUT, first_answer),
        )
        client._raise_for_status(response)
        connection = response.raw._fp.fp.raw._sock
        for line in response.iter_lines():
            connection.settimeout(5 * REQUEST_TIMEOUT)
            message = json.loads(line)
            if "error" in message:
                raise ImageNotFound(f"The engine could not pull {reference}: {message['error']}")
            report(str(message.get("status", "")))
        return str(client.inspect_image(reference)["Id"])

    async def commit(self, id: str, reference: str, changes: Iterable[str] = ()) -> str:
        """Makes an image of a container's file system; returns the image's id."""
        repository, _, tag = reference.rpartition(":")
        reply = await self._call(
            f"commit image {reference}",
            partial(self._client.commit, id, repository=repository, tag=tag, changes=list(changes)),
        )
        return str(reply["Id"])

    async def tag_image(self, id: str, reference: str) -> None:
        """Gives an image one more name."""
        repository, _, tag = reference.rpartition(":")
        await self._call(
            f"tag image {reference}", self._client.tag, id, repository, tag, idempotent=True
        )

    async def list_images(self, labels: Labels) -> list[dict[str, Any]]:
        """The images that bear these labels; a value of None stands for any."""
        reply = await self._call(
            "list images",
            partial(self._client.images, all=False, filters=_filters(labels)),
            idempotent=True,
        )
        return list(reply)

    async def remove_image(self, reference: str) -> bool:
        """Removes an image that no container uses; False when one does."""
        return await self._discard(
            f"remove image {reference}", partial(self._client.remove_image, reference)
        )

    # ─── volumes ────────────────────────────────────────────────────────────────────

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Creates a volume; one of that name that exists is left as it is."""
        await self._call(
            f"create volume {name}",
            partial(self._client.create_volume, name, labels=dict(labels)),
            idempotent=True,
        )

    async def inspect_volume(self, name: str) -> dict[str, Any] | None:
        """What the engine knows of a volume; None when there is none of that name."""
        try:
            return dict(
                await self._call(
                    f"inspect volume {name}", self._client.inspect_volume, name, idempotent=True
                )
            )
        except EngineError as error:
            if status(error) == 404:
                return None
            raise

    async def list_volumes(self, labels: Labels) -> list[dict[str, Any]]:
        """The volumes that bear these labels; a value of None stands for any."""
        reply = await self._call(
            "list volumes", partial(self._client.volumes, _filters(labels)), idempotent=True
        )
        return list(reply.get("Volumes") or [])

    async def remove_volume(self, name: str) -> bool:
        """Removes a volume that no container uses; False when one does."""
        return await self._discard(
            f"remove volume {name}", partial(self._client.remove_volume, name)
        )

    # ─── one call ───────────────────────────────────────────────────────────────────

    async def _discard(self, what: str, function: Callable[[], object]) -> bool:
        """True when the thing is gone (now or before), False when it is in use."""
        try:
            await self._call(what, function, idempotent=True)
        except EngineError as error:
            if status(error) == 409:
                return False
            if status(error) != 404:
                raise
        return True

    async def _call(
        self,
        what: str,
        function: Callable[..., T],
        *arguments: Any,
        idempotent: bool = False,
        texts: bool = True,
    ) -> T:
        """Runs an SDK call on the pool; retries what passes, words what does not.

        Args:
            what: completes the sentence "The engine could not …".
            idempotent: may be repeated when nobody knows whether it was done.
            texts: failures with a transient text may be repeated, too.
        """
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

        loop = asyncio.get_running_loop()
        retrying = AsyncRetrying(
            retry=retry_if_exception(partial(_is_transient, idempotent=idempotent, texts=texts)),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential(0.05, max=1),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await loop.run_in_executor(self._pool, partial(function, *arguments))
        except EngineError:
            raise
        except Exception as error:
            raise self._failure(what, error) from error
        raise AssertionError("a retry ends by a result or an exception")

    def _failure(self, what: str, error: Exception) -> EngineError:
        """The SDK's exception as a sentence."""
        import docker.errors
        import requests.exceptions

        text = _text(error)
        if isinstance(error, requests.exceptions.ReadTimeout):
            text = f"it gave no answer within {REQUEST_TIMEOUT:g} s"
        if isinstance(error, docker.errors.ImageNotFound):
            return ImageNotFound(f"The engine could not {what}: {text}")
        if isinstance(error, docker.errors.APIError):
            return EngineError(f"The engine could not {what}: {text}")
        number = _errno(error)
        if number in (errno.ENOENT, errno.ECONNREFUSED, errno.EACCES):
            return EngineUnavailable(_unavailable(self.facts.address, error))
        return EngineError(f"The engine could not {what}: {text}")


def status(error: EngineError) -> int | None:
    """The engine's HTTP status behind an error; None when it gave none."""
    response = getattr(error.__cause__, "response", None)
    number = getattr(response, "status_code", None)
    if number == _SERVER_ERROR and any(text in str(error).lower() for text in _GONE):
        return _NOT_FOUND
    return number if isinstance(number, int) else None


class _accepting:
    """Suppresses engine errors of these statuses: what was asked for is so already."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, EngineError) and status(error) in self._statuses


def _meet(settings: Settings, address: str) -> tuple[docker.APIClient, EngineFacts]:
    """What the engine says of itself, and a client that speaks the version both know."""
    first = _open_client(settings, None)
    info = first.info()
    if info.get("Rootless") is True:
        info[DELEGATED] = _delegated(first)
    facts = parse_facts(address, first.version(api_version=False), info)
    first.close()
    _check_version(facts)
    return _open_client(settings, ".".join(map(str, facts.api_version))), facts


def _delegated(client: Any) -> list[str]:
    """The control groups of a rootless Podman, which its own API tells and Docker's does not."""
    response = client.get(f"{client.base_url}/v4.0.0/libpod/info", timeout=CONNECT_TIMEOUT)
    with suppress(ValueError, KeyError, TypeError):
        return [str(name) for name in response.json()["host"]["cgroupControllers"]]
    return []


def _open_client(settings: Settings, version: str | None) -> docker.APIClient:
    """An SDK client for the address; it sends nothing yet."""
    import docker

    address = settings.docker_host or DEFAULT_SOCKET
    tls: docker.tls.TLSConfig | bool = False
    if settings.tls_verify or address.startswith("https://"):
        tls = _tls(settings)
    client = docker.APIClient(
        base_url=address,
        version=version or ".".join(map(str, API_FLOOR)),
        timeout=REQUEST_TIMEOUT if version else CONNECT_TIMEOUT,
        tls=tls,
        max_pool_size=_THREADS,
    )
    # An HTTP proxy of the environment is for the web, not for the engine.
    client.trust_env = False
    return client


def _tls(settings: Settings) -> docker.tls.TLSConfig:
    import docker

    directory = settings.cert_path
    if directory is None:
        return docker.tls.TLSConfig(verify=True)
    pair = (str(directory / "cert.pem"), str(directory / "key.pem"))
    return docker.tls.TLSConfig(client_cert=pair, ca_cert=str(directory / "ca.pem"), verify=True)


def _filters(labels: Labels) -> dict[str, list[str]]:
    pairs = labels.items()
    return {"label": [name if value is None else f"{name}={value}" for name, value in pairs]}


def _pieces(content: Path | Iterable[bytes]) -> Iterable[bytes]:
    if not isinstance(content, Path):
        yield from content
        return
    with content.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _last_status(text: str) -> str:
    """The image's id, out of the lines that an import answers with.

    Raises:
        EngineError: one of the lines is an error; the status had been sent by then.
    """
    last = ""
    for line in text.splitlines():
        message = json.loads(line) if line.strip() else {}
        if "error" in message:
            raise EngineError(f"The engine could not import the image: {message['error']}")
        last = str(message.get("status") or last)
    return last


# ─── what went wrong ────────────────────────────────────────────────────────────────


def _is_transient(error: BaseException, *, idempotent: bool, texts: bool) -> bool:
    """Whether the same request may well succeed in a moment."""
    import docker.errors
    import requests.exceptions

    if isinstance(error, docker.errors.APIError):
        text = _text(error).lower()
        return texts and error.is_server_error() and any(part in text for part in _TRANSIENT)
    if isinstance(error, requests.exceptions.ReadTimeout):
        return False  # it had a minute; asked again, it would have its caller wait for three
    if isinstance(error, requests.exceptions.ConnectionError):
        return idempotent or _errno(error) == errno.ECONNREFUSED
    return False


def _errno(error: BaseException | None) -> int | None:
    """The system's error number at the bottom of an exception of the HTTP layers."""
    while error is not None:
        if isinstance(error, OSError) and isinstance(error.errno, int):
            return error.errno
        inner = [part for part in error.args if isinstance(part, BaseException)]
        error = inner[0] if inner else error.__cause__ or error.__context__
    return None


def _text(error: BaseException) -> str:
    """The engine's own words, on one line and not endless."""
    words = getattr(error, "explanation", None) or str(error) or type(error).__name__
    line = " ".join(str(words).split())
    return line if len(line) <= _TEXT_LIMIT else line[:_TEXT_LIMIT] + "…"


def address_fault(settings: Settings) -> str | None:
    """Why the engine at this address must not be used: anybody may command it."""
    address = settings.docker_host or DEFAULT_SOCKET
    override = f"or set {OVERRIDE}=1 if nobody else can reach it"
    if address.startswith(("tcp://", "http://")) and not settings.tls_verify:
        return (
            f"The engine at {address} is reached without TLS, so anybody on that network is "
            f"root on its machine. Set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH, {override}."
        )
    path = Path(address.removeprefix("unix://"))
    with suppress(OSError):
        if address.startswith("unix://") and path.stat().st_mode & S_IWOTH:
            return (
                f"The engine's socket {path} may be written by everybody, so everybody is root "
                f"on this machine. Run `chmod o-w {path}`, {override}."
            )
    return None


def _check_version(facts: EngineFacts) -> None:
    """Raises `EngineUnavailable` when no common version is spoken."""
    floor = ".".join(map(str, API_FLOOR))
    offered = ".".join(map(str, facts.offered_api)) or "no version"
    if facts.offered_api < API_FLOOR:
        raise EngineUnavailable(
            f"The engine at {facts.address} speaks API {offered}, {floor} is the oldest that is "
            "supported. Upgrade it to Docker 20.10 or newer."
        )
    if facts.minimum_api > facts.api_version:
        least = ".".join(map(str, facts.minimum_api))
        raise EngineUnavailable(
            f"The engine at {facts.address} wants API {least} or newer, which this version of "
            "executor does not speak yet. Upgrade executor."
        )


def _unavailable(address: str, error: Exception) -> str:
    """The sentence for an engine that can't be reached: address, why, mend."""
    import docker.errors
    import requests.exceptions

    other = "or name another engine in DOCKER_HOST"
    causes = {
        errno.ENOENT: f"the socket does not exist. Start Docker, {other}",
        errno.ECONNREFUSED: f"nothing listens there. Start Docker, {other}",
        errno.EACCES: "this user may not open the socket. Join the group that owns it "
        f"(usually `docker`) and log in again, {other}",
    }
    cause = causes.get(_errno(error) or 0)
    if cause is None and isinstance(error, requests.exceptions.SSLError):
        cause = f"TLS failed ({_text(error)}). Check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH"
    elif cause is None and isinstance(error, requests.exceptions.Timeout):
        cause = f"it gave no answer within {CONNECT_TIMEOUT:g} s. Restart Docker, {other}"
    elif cause is None and isinstance(error, docker.errors.TLSParameterError):
        cause = f"the TLS files are missing in DOCKER_CERT_PATH ({_text(error)})"
    elif cause is None:
        cause = f"{_text(error)}. Check the address, {other}"
    return f"No container engine can be used at {address}: {cause}."
