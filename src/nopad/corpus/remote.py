"""Files on object stores and servers: any URL that pyarrow can open, or fsspec if it is installed.

pyarrow itself opens ``s3://``, ``gs://``, ``hdfs://``, ``abfs://`` and ``file://``, as far as it was built for them.
Other schemes (``https://``, ``memory://``, ``az://``) need fsspec and the package that fsspec uses for the scheme.
These libraries take credentials from the environment, their configuration files, or the URL.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nopad.corpus.inputs import InputFile
from nopad.corpus.network import WAIT_S, reachable
from nopad.errors import MissingExtraError, SourceError
from nopad.wording import first_line

__all__ = ["Remote", "find_remote", "is_url"]

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A remote file: its `path` in `filesystem`, a `pyarrow.fs.FileSystem`."""

    filesystem: Any
    path: str

    def random(self) -> Any:
        """Open the file for reading at any position, and return it as a pyarrow file object."""
        return self.filesystem.open_input_file(self.path)

    def stream(self) -> Any:
        """Open the file for reading from start to end, and return it as a pyarrow stream of its stored bytes."""
        return self.filesystem.open_input_stream(self.path, compression=None)

    def now(self) -> tuple[int, tuple[int, int] | None]:
        """Ask the store, and return ``(size, stamp)``: the file's present size in bytes, and its present stamp.

        The size is 0 if the file is gone, or if the store gives no size. The stamp is (modification time in ns, 0), or
        None if the store has no such time.
        """
        info = self.filesystem.get_file_info(self.path)
        return int(info.size or 0), _stamp_of(info)


def _stamp_of(info: Any) -> tuple[int, int] | None:
    """Return (modification time in ns, 0), by which a replaced file is noticed; None if the store has no such time.

    `info` is a `pyarrow.fs.FileInfo`.
    """
    return None if info.mtime_ns is None else (int(info.mtime_ns), 0)


def is_url(text: str) -> bool:
    """Return whether a text is a URL and not a path.

    >>> is_url("s3://bucket/a.parquet"), is_url("a.parquet")
    (True, False)
    """
    return bool(_URL.match(text))


def find_remote(url: str) -> list[InputFile]:
    """List the file at a URL, or all files under it, sorted by name; a folder without files gives an empty list.

    The name of a file under a URL is its path relative to the URL; hidden files and folders are left out. If the URL is
    that of one file, the name is the file's own name.

    Raises:
        SourceError: the host does not answer, there is nothing at the URL, neither pyarrow nor fsspec knows the scheme,
            or files cannot be listed, for example without credentials.
        MissingExtraError: the scheme needs a package that is not installed.
    """
    import pyarrow.fs as pafs

    scheme = url.split("://")[0].lower()
    host = _host(url, scheme)
    if host and not reachable(host):
        raise SourceError(f"{url}: {host} did not answer within {WAIT_S:g} s; check the network, the URL and any proxy")
    try:
        filesystem, root = _filesystem(url, scheme)
        here = filesystem.get_file_info(root)
        if here.type == pafs.FileType.File:
            return [_found(url, here.base_name, here, filesystem)]
        inside = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    except (MissingExtraError, SourceError):
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{url}: nothing there; check the URL") from error
    except Exception as error:  # every store has errors of its own
        reason = first_line(error)
        reason = reason if len(reason) <= 200 else reason[:200] + "…"
        raise SourceError(
            f"{url}: cannot be opened ({reason}); check the URL, the network and your credentials for {scheme}://"
        ) from error
    found = []
    for info in inside:
        name = info.path[len(root) :].lstrip("/") if info.path.startswith(root) else info.path
        if info.type == pafs.FileType.File and not any(part.startswith(".") for part in name.split("/")):
            found.append(_found(f"{url.rstrip('/')}/{name}", name, info, filesystem))
    return sorted(found, key=lambda file: file.name.encode())


def _found(url: str, name: str, info: Any, filesystem: Any) -> InputFile:
    """Return the remote file that `info`, a `pyarrow.fs.FileInfo`, describes.

    `url` is its path in messages, `name` its name in fingerprints, and `filesystem` the file system that holds it.
    """
    remote = Remote(filesystem=filesystem, path=info.path)
    return InputFile(path=url, name=name, size=info.size, remote=remote, stamp=_stamp_of(info))


def _host(url: str, scheme: str) -> str | None:
    """Return the URL of the host to which opening `url` will connect; None if the host is not known for this scheme."""
    parts = urlsplit(url)
    if scheme in ("http", "https"):
        return f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    set_by: tuple[str | None, ...]
    if scheme == "s3":
        set_by = (asked.get("endpoint_override"), *map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")))
        region = asked.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        usual = f"s3.{region}.amazonaws.com" if region else "s3.amazonaws.com"
    elif scheme in ("gs", "gcs"):
        set_by = (asked.get("endpoint_override"), os.environ.get("STORAGE_EMULATOR_HOST"))
        usual = "storage.googleapis.com"
    else:
        return None
    given = next(filter(None, set_by), usual)
    return given if is_url(given) else f"{asked.get('scheme', 'https')}://{given}"


def _filesystem(url: str, scheme: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        MissingExtraError: fsspec, or the package that it needs for the scheme, is not installed.
        SourceError: neither pyarrow nor fsspec knows the scheme.
    """
    import pyarrow as pa
    import pyarrow.fs as pafs

    if scheme in ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss", "file"):
        if scheme in ("gs", "gcs") and "?" not in url:
            url += "?retry_limit_seconds=15"  # the default is 15 minutes, during which Ctrl-C does not work
        try:
            return pafs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
        except pa.ArrowNotImplementedError:
            pass  # this build of pyarrow lacks it
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(f"{url}: opening {scheme}:// needs fsspec: pip install fsspec") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # the scheme's own package
        raise MissingExtraError(f"{url}: {error}") from error
    except ValueError as error:
        raise SourceError(f"{url}: {error}; nopad reads paths, and URLs that pyarrow or fsspec opens") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path
