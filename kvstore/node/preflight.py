"""`stockpot node --check`: would this node start here and now, and with which settings? The
settings are printed as a config file.

Looks, and changes nothing. Exit codes: 0 nothing is wrong; 1 the settings are sound, but the machine cannot
run them now (a port is taken, a folder cannot be written, memory is short); 2 the settings are wrong.
"""

import fcntl
import json
import logging
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kvstore.core.config import Reading, is_size, readable_size
from kvstore.core.errors import ConfigError
from kvstore.node import numa
from kvstore.node.local import is_answered
from kvstore.node.pages import PageWish, fix_command, map_pages
from kvstore.node.settings import NodeSettings, check_settings

_FILES_BESIDE_SEGMENTS = 1024
"""Descriptors for connections, libraries and the index."""


def run_check(reading: Reading[NodeSettings], write: Callable[[str], object] = sys.stdout.write) -> int:
    """Print the settings in effect and what is wrong; returns the exit code. Raises: ConfigError (exit code 2)."""
    settings = reading.settings
    check_settings(settings)
    logging.getLogger("kvstore").setLevel(logging.ERROR)  # what the parts would warn of is printed here
    for name, value in reading.shown().items():
        write(_line(name, value, reading.origins[name]))
    for variable in reading.variables_unknown:
        write(f"warning: {variable} is set in the environment, but no setting has that name\n")
    findings = [*_memory_findings(settings), *(f"problem: {problem}" for problem in _problems(settings))]
    if settings.data_dir is None:
        findings.append("warning: data_dir is not set: blocks are lost when the node ends")
    for finding in findings:
        write(f"{finding}\n")
    problems = sum(finding.startswith("problem") for finding in findings)
    write(f"{problems} problem{'s' * (problems != 1)}\n")
    return 1 if problems else 0


def _problems(settings: NodeSettings) -> Iterator[str]:
    host, _, port = settings.listen.rpartition(":")
    yield from _port_problems("listen", host, int(port))
    if settings.metrics_port is not None:
        yield from _port_problems("metrics_port", host, settings.metrics_port)
        if settings.metrics_port == int(port) != 0:
            yield f"metrics_port is {port}, the port of listen too: give it its own"
    if settings.local_socket:
        yield from _socket_problems(Path(settings.local_socket))
    if settings.ready_file:
        yield from _folder_problems("ready_file", Path(settings.ready_file).absolute().parent)
    if settings.data_dir:
        yield from _disk_problems(settings, Path(settings.data_dir).absolute())


def _port_problems(name: str, host: str, port: int) -> Iterator[str]:
    if port == 0:
        return
    try:
        *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        family = socket.AF_INET6 if len(address) == 4 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        yield f"{name}: cannot listen on {host}:{port}: {error.strerror}: end who does, or choose another"


def _socket_problems(path: Path) -> Iterator[str]:
    yield from _folder_problems("local_socket", path.absolute().parent)
    if path.is_socket():
        if is_answered(path):
            yield f"local_socket {path} is another node's: give this one its own"
    elif path.exists():
        yield f"local_socket {path} exists and is no socket: remove it, or choose another path"


def _folder_problems(name: str, folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        yield f"{name}: there is no folder {folder}: make it"
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield f"{name}: the folder {folder} cannot be written by this user"


def _memory_findings(settings: NodeSettings) -> Iterator[str]:
    """Maps the arena for a moment, without touching it."""
    try:
        nodes = numa.chosen_nodes(str(settings.numa_node), numa.nodes_with_memory())
        wish = PageWish(settings.arena_bytes, settings.arena_pages, settings.require_hugepages, nodes)
        mapped = map_pages(wish)
    except ConfigError as error:
        yield f"problem: {error}"
        return
    mapped.map.close()
    os.close(mapped.fd)
    if mapped.bytes < settings.arena_bytes:
        yield f"warning: of arena_bytes, {mapped.bytes} can be had in whole pages"
    if mapped.name in ("thp", "small") and settings.arena_pages != "normal":
        yield f"warning: no huge pages for the arena, so access is slower: `{fix_command(wish)}` as root"


def _disk_problems(settings: NodeSettings, folder: Path) -> Iterator[str]:
    if not folder.exists():
        exists = next(parent for parent in folder.parents if parent.exists())
        if not os.access(exists, os.W_OK | os.X_OK):
            yield f"data_dir: {folder} is not there, and {exists} cannot be written by this user: make it"
    else:
        yield from _folder_problems("data_dir", folder)
        if _is_locked(folder / "LOCK"):
            yield f"data_dir {folder} is in use by another node: stop it, or give this one its own"
    segments = sum(file.stat().st_size for file in folder.glob("segments/*.seg"))
    exists = next(path for path in (folder, *folder.parents) if path.exists())
    if settings.disk_bytes_max > (room := shutil.disk_usage(exists).free + segments):
        budget = readable_size(settings.disk_bytes_max)
        yield f"disk_bytes_max is {budget}, but {exists} has room for {readable_size(room)}: lower it, or make room"
    files = settings.disk_bytes_max // settings.segment_bytes + _FILES_BESIDE_SEGMENTS
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > files_max:
        yield f"segments and connections need {files} open files, the limit is {files_max}: raise segment_bytes or it"


def _is_locked(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _line(name: str, value: object, origin: str) -> str:
    """A line of a config file, with what the value means and where it is from as a comment."""
    if value is None:
        return f"# {name} is not set\n"
    size = f"{readable_size(value)}, " if isinstance(value, int) and is_size(name) and value >= 1024 else ""
    return f"{name} = {json.dumps(value)}  # {size}{origin}\n"
