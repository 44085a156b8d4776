"""Settings of a storage node: the struct, its limits and what must fit together."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kvstore.core import config
from kvstore.core.errors import ConfigError
from kvstore.core.log_lines import LogFormat
from kvstore.node.kv_events import EventForm, HashForm
from kvstore.node.pages import Pages
from kvstore.wire_codec import MESSAGE_BYTES_MAX

_UNIX_PATH_BYTES_MAX = 107  # sun_path of sockaddr_un, less its terminator
_NODE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # stands unquoted in log lines and URLs


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One storage node. Sizes in bytes, times in milliseconds."""

    node_id: Annotated[str, Meta(description="name in logs, metrics and `stockpot top`; empty: the host's name")] = ""
    listen: Annotated[str, Meta(description="address of the gRPC server; port 0 picks a free one")] = "127.0.0.1:0"
    arena_bytes: Annotated[int, Meta(ge=4096, description="memory for values, taken at start")] = 1 << 30
    namespace_bytes_max: Annotated[int, Meta(ge=0, description="most memory for one namespace; 0: all of it")] = 0
    arena_pages: Annotated[Pages, Meta(description="1g, 2m or normal: only these pages; auto: the best there are")] = (
        "auto"
    )
    require_hugepages: Annotated[bool, Meta(description="refuse to start without huge pages")] = False
    numa_node: Annotated[
        int | str,
        Meta(description="where the arena lies: a NUMA node, a list such as 0,1 (in turn), interleave, or none"),
    ] = "none"
    data_dir: Annotated[str | None, Meta(description="folder of the disk tier; none: memory only")] = None
    disk_bytes_max: Annotated[int, Meta(ge=8192, description="disk space for values")] = 16 << 30
    segment_bytes: Annotated[int, Meta(ge=4096, description="size of one segment file")] = 256 << 20
    local_socket: Annotated[str | None, Meta(description="unix socket for clients of this host")] = None
    bulk_port: Annotated[
        int,
        Meta(
            ge=-1,
            le=65535,
            description="port for the bytes of blocks, on the host of `listen`; 0: a free one; -1: none",
        ),
    ] = 0
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        Meta(description="port of /metrics, /healthz and /readyz; 0 picks a free one"),
    ] = None
    log_format: Annotated[LogFormat, Meta(description="form of the log on stderr: text or json")] = "text"
    ready_file: Annotated[str | None, Meta(description="written with the addresses once the node is ready")] = None
    lease_ttl_ms: Annotated[int, Meta(ge=1, description="lifetime of a lease that names no other")] = 10_000
    lease_ttl_ms_max: Annotated[int, Meta(ge=1, description="longest lifetime of a lease")] = 60_000
    pin_ttl_ms_max: Annotated[int, Meta(ge=1, description="longest lifetime of a pin")] = 3_600_000
    value_bytes_max: Annotated[int, Meta(ge=1, description="largest value of one block")] = 64 << 20
    items_max: Annotated[int, Meta(ge=1, le=65536, description="most blocks or keys of one call")] = 16_384
    event_log_events: Annotated[int, Meta(ge=1, description="events kept for watchers that resume")] = 65_536
    demote_queue_blocks: Annotated[int, Meta(ge=1, description="blocks that wait for the disk")] = 65_536
    zmq_listen: Annotated[
        str | None, Meta(description="publish KV events for routers here, tcp://HOST:PORT or ipc://PATH; none: do not")
    ] = None
    zmq_connect: Annotated[
        str | None, Meta(description="publish KV events to the subscriber that listens here (instead, or as well)")
    ] = None
    zmq_replay: Annotated[str | None, Meta(description="where subscribers ask again for batches they missed")] = None
    zmq_topic: Annotated[str, Meta(description="topic of KV events; llm-d reads kv@POD@MODEL")] = "kv@stockpot@"
    zmq_model: Annotated[
        str | None, Meta(description="publish only namespaces whose property `model` is this; none: all")
    ] = None
    zmq_events: Annotated[EventForm, Meta(description="form of KV events: maps or positional")] = "maps"
    zmq_hashes: Annotated[HashForm, Meta(description="whose block hashes keys are: vllm or sglang")] = "vllm"
    zmq_queue_batches: Annotated[
        int, Meta(ge=1, le=1 << 20, description="batches that wait for a slow subscriber before it misses some")
    ] = 4096
    zmq_replay_bytes: Annotated[int, Meta(ge=0, description="memory for batches that can be asked for again")] = (
        64 << 20
    )
    stop_deadline_ms: Annotated[
        int, Meta(ge=0, description="after SIGTERM: half of it for running calls, the rest for writes to disk")
    ] = 5_000


_PROGRAM = config.Program(
    name="stockpot node",
    description="A storage node: KV blocks in hugepage RAM and on disk, served by gRPC and shared memory.",
    env_prefix="STOCKPOT_NODE_",
    groups={
        "identity, log and end": ("node_id", "log_format", "ready_file", "stop_deadline_ms"),
        "where it answers": ("listen", "bulk_port", "local_socket", "metrics_port"),
        "memory": ("arena_bytes", "arena_pages", "require_hugepages", "numa_node", "namespace_bytes_max"),
        "disk": ("data_dir", "disk_bytes_max", "segment_bytes", "demote_queue_blocks"),
        "limits of calls": (
            "value_bytes_max",
            "items_max",
            "lease_ttl_ms",
            "lease_ttl_ms_max",
            "pin_ttl_ms_max",
            "event_log_events",
        ),
        "KV events for routers of other engines": (
            "zmq_listen",
            "zmq_connect",
            "zmq_replay",
            "zmq_topic",
            "zmq_model",
            "zmq_events",
            "zmq_hashes",
            "zmq_queue_batches",
            "zmq_replay_bytes",
        ),
    },
    switches={"check": "check settings and machine, print what would be used and where it is from, and end"},
    notes="""\
settings, later wins:
  defaults; the config file (TOML, keys as `arena_bytes`); environment (`STOCKPOT_NODE_ARENA_BYTES`); flags.
  Unknown keys and flags are refused, unknown variables are named in a warning. Sizes are bytes or have a
  unit: 64GiB, 512MiB. Times are milliseconds.

signals:
  SIGTERM, SIGINT   drain: no new calls, running ones end, watchers are told, blocks go to disk, exit 0
  a second one      end at once, exit 128 + its number; blocks not yet on disk are lost

exit codes:
  0    drained; with --check: nothing is wrong
  1    failed while running; with --check: settings are sound, but this machine cannot run them now
  2    a setting cannot work, one line says which and why; wrong usage

More: docs/operations.md, docs/metrics.md.
""",
)


def read_command_line(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> config.Reading[NodeSettings]:
    """Settings from command line, environment and file, each by itself right. Raises: ConfigError."""
    return config.read_command_line(NodeSettings, _PROGRAM, arguments, environ)


def node_id_of(settings: NodeSettings) -> str:
    """The node's name."""
    return settings.node_id or socket.gethostname()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may ask for."""

    value_bytes_max: int
    items_max: int
    lease_ttl_ms: int
    lease_ttl_ms_max: int
    pin_ttl_ms_max: int


def limits_of(settings: NodeSettings) -> Limits:
    """The limits that clients are told; a value never exceeds the arena."""
    return Limits(
        min(settings.value_bytes_max, settings.arena_bytes),
        settings.items_max,
        settings.lease_ttl_ms,
        settings.lease_ttl_ms_max,
        settings.pin_ttl_ms_max,
    )


def check_settings(settings: NodeSettings) -> None:
    """Raises: ConfigError when settings contradict each other; the message says what to change."""
    if settings.node_id and not _NODE_ID.fullmatch(settings.node_id):
        raise ConfigError(f"node_id is {settings.node_id!r}, expected up to 64 of A-Z a-z 0-9 . _ : -")
    host, _, port = settings.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listen is {settings.listen!r}, expected HOST:PORT")
    if settings.lease_ttl_ms > settings.lease_ttl_ms_max:
        raise ConfigError(
            f"lease_ttl_ms is {settings.lease_ttl_ms}, above lease_ttl_ms_max {settings.lease_ttl_ms_max}"
        )
    if settings.items_max * 128 > MESSAGE_BYTES_MAX:  # a PutItem with keys of 32 bytes takes less than 128
        raise ConfigError(f"items_max is {settings.items_max}, more than fits one message of {MESSAGE_BYTES_MAX} bytes")
    if settings.local_socket is not None and len(settings.local_socket.encode()) > _UNIX_PATH_BYTES_MAX:
        raise ConfigError(f"local_socket is longer than the {_UNIX_PATH_BYTES_MAX} bytes that a unix socket may have")
    if settings.require_hugepages and settings.arena_pages == "normal":
        raise ConfigError("require_hugepages is set, but arena_pages is normal: choose auto, 1g or 2m")
    if settings.data_dir is not None:
        _check_disk(settings)
    _check_events(settings)


def _check_events(settings: NodeSettings) -> None:
    for name in ("zmq_listen", "zmq_connect", "zmq_replay"):
        address: str | None = getattr(settings, name)
        tcp = re.fullmatch(r"tcp://.+:([0-9]+|\*)", address or "")
        is_tcp = tcp is not None and (tcp[1] == "*" or int(tcp[1]) <= 65535)
        if address is not None and not is_tcp and not re.fullmatch("ipc://.+", address):
            raise ConfigError(f"{name} is {address!r}, expected tcp://HOST:PORT, tcp://*:PORT or ipc://PATH")
    if settings.zmq_replay is not None and not publishes_events(settings):
        raise ConfigError("zmq_replay is set, but neither zmq_listen nor zmq_connect: nothing would be published")


def publishes_events(settings: NodeSettings) -> bool:
    """Whether KV events go out over ZeroMQ."""
    return settings.zmq_listen is not None or settings.zmq_connect is not None


def _check_disk(settings: NodeSettings) -> None:
    if settings.segment_bytes % 4096:
        raise ConfigError(f"segment_bytes is {settings.segment_bytes}, expected a multiple of 4096")
    if settings.disk_bytes_max < 2 * settings.segment_bytes:
        raise ConfigError(
            f"disk_bytes_max is {settings.disk_bytes_max}, expected at least two segments of {settings.segment_bytes}"
        )
    if limits_of(settings).value_bytes_max > settings.segment_bytes:
        raise ConfigError(
            f"segment_bytes is {settings.segment_bytes}, but a value may have {settings.value_bytes_max}: "
            "raise the first or lower value_bytes_max"
        )
    assert settings.data_dir is not None
    if Path(settings.data_dir).exists() and not Path(settings.data_dir).is_dir():
        raise ConfigError(f"data_dir {settings.data_dir} is not a folder")
