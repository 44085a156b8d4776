"""TLS of the storage node and of its clients: which files, what they must be, and contexts made of them.

gRPC brings a TLS of its own and takes the files' bytes; sockets of ours take an `ssl.SSLContext`. Both
are made from the same `ServerTls` or `ClientTls`, so they trust and show the same certificates.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from kvstore.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of a node."""

    certificate: Path
    """The node's certificate, then those between it and the CA."""
    key: Path
    client_ca: Path | None = None
    """Who signs the certificates of clients: with it, a client without one is refused (mutual TLS)."""

    @property
    def files(self) -> list[Path]:
        """All files there are."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files of a client."""

    ca: Path
    """Who signs the certificates of nodes that the client trusts."""
    certificate: Path | None = None
    """The client's own, for nodes that ask for one."""
    key: Path | None = None
    server_name: str = ""
    """The name in the node's certificate, if it is not the host of the address."""

    @property
    def files(self) -> list[Path]:
        """All files there are."""
        return [path for path in (self.ca, self.certificate, self.key) if path is not None]

    def name_at(self, address: str) -> str:
        """The name that the certificate of the node at `address` (HOST:PORT) must have."""
        return self.server_name or address.rpartition(":")[0].strip("[]")


def server_tls(certificate: str | None, key: str | None, client_ca: str | None) -> ServerTls | None:
    """TLS as settings name it; None when they name no file. Raises: ConfigError when one is missing."""
    if not (certificate or key or client_ca):
        return None
    if not (certificate and key):
        raise ConfigError("tls_certificate and tls_key belong together: give both (and tls_client_ca for mutual TLS)")
    return ServerTls(Path(certificate), Path(key), Path(client_ca) if client_ca else None)


def client_tls(ca: str | None, certificate: str | None, key: str | None, server_name: str | None) -> ClientTls | None:
    """TLS as settings name it; None when they name no file. Raises: ConfigError when one is missing."""
    if not (ca or certificate or key or server_name):
        return None
    if not ca:
        raise ConfigError("TLS to a storage node needs a CA file: who signed the node's certificate")
    if bool(certificate) != bool(key):
        raise ConfigError("a client certificate and its key belong together: give both or none")
    return ClientTls(
        Path(ca), Path(certificate) if certificate else None, Path(key) if key else None, server_name or ""
    )


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """For sockets that a node accepts. Raises: ConfigError naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, tls.certificate, tls.key)
    if tls.client_ca is not None:
        _load_ca(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """For sockets connected to a node; wrap them with `server_hostname=tls.name_at(address)`.

    Raises: ConfigError naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_ca(context, tls.ca)
    if tls.certificate is not None and tls.key is not None:
        _load_certificate(context, tls.certificate, tls.key)
    return context


def read_pem(path: Path | None) -> bytes | None:
    """The bytes of a PEM file, for gRPC; None without one. Raises: ConfigError."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file {path}: {error.strerror}") from error


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    # Each by itself first, since the error of `load_cert_chain` names no file.
    for path, label in ((certificate, b"CERTIFICATE-----"), (key, b"PRIVATE KEY-----")):
        if label not in (read_pem(path) or b""):
            raise ConfigError(f"TLS file {path} holds no {label.decode().rstrip('-').lower()}: expected PEM")
    try:
        # Without a password of ours, OpenSSL would ask at the terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"TLS certificate {certificate} and key {key} cannot be used: {_words(error)}; the key must be that of the "
            "file's first certificate, without a password"
        ) from error


def _load_ca(context: ssl.SSLContext, path: Path) -> None:
    read_pem(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"TLS file {path} holds no certificates of a CA: {_words(error)}") from error


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _no_password() -> bytes:
    return b""
