"""Certificates for tests: a CA of their own, nodes' and clients' certificates, as files."""

import datetime
from pathlib import Path
from typing import NamedTuple

import trustme

NODE_HOST = "127.0.0.1"


class Pair(NamedTuple):
    """A certificate with its chain, and its key."""

    certificate: Path
    key: Path


class Authority:
    """A CA that writes what it issues into `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._ca = trustme.CA(organization_name=name)
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, host: str = NODE_HOST, *, is_expired: bool = False) -> Pair:
        """A certificate for `host`, in files called `name`; issuing it again replaces them."""
        now = datetime.datetime.now(datetime.UTC)
        begin, end = now - datetime.timedelta(days=30), now + datetime.timedelta(days=-1 if is_expired else 1)
        issued = self._ca.issue_cert(host, not_before=begin, not_after=end)
        pair = Pair(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        issued.private_key_pem.write_to_path(pair.key)
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return pair
