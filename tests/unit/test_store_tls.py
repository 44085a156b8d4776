"""TLS contexts from files, and files that are read anew."""

import logging
import os
import ssl
from pathlib import Path

import pytest

from kvstore.core.errors import ConfigError
from kvstore.core.reloading import Reloading
from kvstore.core.tls import ClientTls, ServerTls, client_context, client_tls, server_context, server_tls
from tests.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole handshake and one byte each way, in memory. Raises: ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname=name)
    steps = [here.do_handshake, there.do_handshake, lambda: here.write(b"x"), lambda: there.read(1)]
    for _ in range(10):
        pending = []
        for step in steps:
            try:
                step()
            except ssl.SSLWantReadError:
                pending.append(step)
        steps = pending
    assert not steps, "the handshake stands still"


def test_mutual_tls_between_contexts(authority: Authority) -> None:
    node, client = authority.issue("node"), authority.issue("client", "client.test")
    server = server_context(ServerTls(*node, client_ca=authority.file))
    shake_hands(server, client_context(ClientTls(authority.file, *client)), "127.0.0.1")
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client_context(ClientTls(authority.file)), "127.0.0.1")


def test_a_client_refuses_other_names_other_authorities_and_old_certificates(
    authority: Authority, tmp_path: Path
) -> None:
    server = server_context(ServerTls(*authority.issue("node")))
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shake_hands(server, client_context(ClientTls(authority.file)), "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="local issuer"):
        shake_hands(server, client_context(ClientTls(Authority(tmp_path, "other").file)), "127.0.0.1")
    expired = server_context(ServerTls(*authority.issue("old", is_expired=True)))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(expired, client_context(ClientTls(authority.file)), "127.0.0.1")


def test_bad_files_are_named(authority: Authority, tmp_path: Path) -> None:
    node, other = authority.issue("node"), authority.issue("other")
    absent, empty = tmp_path / "absent.pem", tmp_path / "empty.pem"
    empty.touch()
    for pair, words in (
        (Pair(absent, node.key), f"cannot read the TLS file {absent}: No such file"),
        (Pair(empty, node.key), f"{empty} holds no certificate"),
        (Pair(node.certificate, node.certificate), f"{node.certificate} holds no private key"),
        (Pair(node.certificate, other.key), "key values mismatch"),
    ):
        with pytest.raises(ConfigError, match=words):
            server_context(ServerTls(*pair))
    with pytest.raises(ConfigError, match=f"{empty} holds no certificates of a CA"):
        client_context(ClientTls(empty))


def test_settings_that_name_half_of_it() -> None:
    assert server_tls(None, None, None) is None
    assert client_tls(None, "", None, "") is None
    with pytest.raises(ConfigError, match="give both"):
        server_tls("node.pem", None, None)
    with pytest.raises(ConfigError, match="give both"):
        server_tls(None, None, "ca.pem")
    with pytest.raises(ConfigError, match="needs a CA file"):
        client_tls(None, "client.pem", "client.key", None)
    with pytest.raises(ConfigError, match="give both or none"):
        client_tls("ca.pem", "client.pem", None, None)


@pytest.mark.parametrize(
    ("address", "name"), [("10.0.0.1:7000", "10.0.0.1"), ("[::1]:7000", "::1"), ("node-1.cache:7000", "node-1.cache")]
)
def test_the_name_that_is_expected(address: str, name: str) -> None:
    assert ClientTls(Path("ca")).name_at(address) == name
    assert ClientTls(Path("ca"), server_name="other").name_at(address) == "other"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_files_are_read_again_once_they_change_and_bad_ones_are_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "number", Clock()
    reads = written_s = 0

    def load() -> int:
        nonlocal reads
        reads += 1
        text = file.read_text() if file.exists() else "nothing"
        if not text.isdigit():
            raise ConfigError(f"{text} is no number")
        return int(text)

    def write(text: str) -> None:
        nonlocal written_s
        file.write_text(text)
        written_s += 1
        os.utime(file, (written_s, written_s))  # the stamp differs whatever the clock of the file system
        clock.now_s += 1

    write("1")
    value = Reloading([file], load, clock)
    write("2")
    assert value.current() == 2
    assert value.current() == 2
    clock.now_s += 1
    assert (value.current(), reads) == (2, 2)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        write("bad")
        assert value.current() == 2
        clock.now_s += 1
        assert value.current() == 2
    assert [record.message for record in caplog.records] == [
        f"files_not_reloaded files={file} reason='bad is no number'"
    ]
    file.unlink()
    clock.now_s += 1
    assert value.current() == 2
    write("3")
    assert value.current() == 3
