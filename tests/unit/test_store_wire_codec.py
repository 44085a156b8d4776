"""Hand-framed messages are protobuf's, byte for field, both ways."""

import pytest

from kvstore.core.errors import CallerError
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import PutChunk, decode_get_frame, decode_put_request, encode_get_frame, encode_put_chunk

DATA = bytes(range(256)) * 1000


def test_get_frame_reads_as_protobuf() -> None:
    raw = encode_get_frame(300, pb.STATUS_OK, 2**40, 2**33, b"c" * 16, memoryview(DATA))
    assert pb.GetResponse.FromString(raw) == pb.GetResponse(
        index=300, status=pb.STATUS_OK, size=2**40, offset=2**33, checksum=b"c" * 16, data=DATA
    )


def test_get_frame_of_a_miss_reads_as_protobuf() -> None:
    assert pb.GetResponse.FromString(encode_get_frame(0, pb.STATUS_MISS)) == pb.GetResponse(status=pb.STATUS_MISS)


def test_protobuf_reads_as_get_frame() -> None:
    message = pb.GetResponse(index=7, status=pb.STATUS_OK, size=9, offset=5, checksum=b"s" * 16, data=DATA)
    frame = decode_get_frame(message.SerializeToString())
    assert (frame.item, frame.status, frame.size, frame.offset, frame.checksum) == (7, 1, 9, 5, b"s" * 16)
    assert frame.data == DATA


def test_fields_in_another_order_are_read_too() -> None:
    raw = pb.GetResponse(data=b"abc").SerializeToString() + pb.GetResponse(index=4, size=3).SerializeToString()
    frame = decode_get_frame(raw)
    assert (frame.item, frame.size, bytes(frame.data)) == (4, 3, b"abc")


def test_put_chunk_reads_as_protobuf_and_back() -> None:
    raw = encode_put_chunk(5, 1 << 22, memoryview(DATA))
    assert pb.PutRequest.FromString(raw) == pb.PutRequest(chunk=pb.PutChunk(index=5, offset=1 << 22, data=DATA))
    chunk = decode_put_request(pb.PutRequest(chunk=pb.PutChunk(index=5, data=DATA)).SerializeToString())
    assert isinstance(chunk, PutChunk)
    assert (chunk.item, chunk.offset, bytes(chunk.data)) == (5, 0, DATA)


def test_other_steps_are_protobuf_messages() -> None:
    begin = pb.PutRequest(begin=pb.PutBegin(namespace_id=b"n", items=[pb.PutItem(size=3)]))
    assert decode_put_request(begin.SerializeToString()) == begin


def test_payload_is_not_copied_on_reading() -> None:
    raw = encode_get_frame(0, pb.STATUS_OK, len(DATA), 0, b"", DATA)
    assert decode_get_frame(raw).data.obj is raw


@pytest.mark.parametrize("raw", [b"\xff", b"\x32\x05ab", b"\x12\xff\xff\xff\xff\x0f", b"\x08"])
def test_garbage_is_the_callers_error(raw: bytes) -> None:
    with pytest.raises(CallerError):
        decode_get_frame(raw)
    with pytest.raises(CallerError):
        decode_put_request(raw)
