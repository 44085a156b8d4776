"""Log lines as text and as JSON."""

import json
import logging
from collections.abc import Iterator

import pytest

from kvstore.core.log_lines import KeyValues, LogFormat, start_logging

log = logging.getLogger("kvstore.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def lines(capsys: pytest.CaptureFixture[str], log_format: LogFormat) -> list[str]:
    start_logging(log_format, node_id="n1")
    log.warning("block_corrupt key=%s size=%d reason=%r", "ab" * 4, 3, 'a "b"\nc')
    log.info("node_start %s", KeyValues(arena_bytes=4096, data_dir=None))
    log.info("node_end")
    logging.getLogger("grpc").error("cannot %s", "bind")
    logging.getLogger("grpc").info("chatter")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("loop_died at=%d", 7)
    return capsys.readouterr().err.splitlines()


def test_json_lines_have_the_names_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    corrupt, start, end, foreign, died = [json.loads(line) for line in lines(capsys, "json")]
    for line in (corrupt, start, end, foreign, died):
        assert line["node_id"] == "n1"
        assert line.pop("time").endswith("Z")
    assert corrupt == {
        "level": "warning",
        "logger": "kvstore.test",
        "node_id": "n1",
        "event": "block_corrupt",
        "key": "abababab",
        "size": 3,
        "reason": 'a "b"\nc',
    }
    assert (start["event"], start["arena_bytes"], start["data_dir"]) == ("node_start", 4096, None)
    assert end["event"] == "node_end"
    assert (foreign["event"], foreign["text"]) == ("message", "cannot bind")
    assert (died["event"], died["at"]) == ("loop_died", 7)
    assert "ValueError: no" in died["traceback"]


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    corrupt, start, end, foreign, died, *traceback = lines(capsys, "text")
    assert corrupt.endswith(
        "Z level=WARNING logger=kvstore.test node_id=n1 event=block_corrupt key=abababab size=3 reason='a \"b\"\\nc'"
    )
    assert start.endswith("event=node_start arena_bytes=4096 data_dir=None")
    assert end.endswith("event=node_end")
    assert foreign.endswith("logger=grpc node_id=n1 event=message text='cannot bind'")
    assert died.endswith("event=loop_died at=7")
    assert traceback[-1] == "ValueError: no"
