"""Whatever bytes come, the codec accepts what protobuf accepts, and as the same."""

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import CallerError
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import PutChunk, decode_get_frame, decode_put_request, encode_get_frame, encode_put_chunk

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
GET_RESPONSES = st.builds(
    pb.GetResponse,
    index=U32,
    status=st.integers(0, 9),
    size=U64,
    offset=U64,
    checksum=st.binary(max_size=20),
    data=st.binary(max_size=200),
)
PUT_REQUESTS = st.one_of(
    st.builds(
        lambda index, offset, data: pb.PutRequest(chunk=pb.PutChunk(index=index, offset=offset, data=data)),
        U32,
        U64,
        st.binary(max_size=200),
    ),
    st.builds(lambda lease: pb.PutRequest(commit=pb.PutCommit(lease_id=lease)), U64),
)


def mangled(messages: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    """Real messages with bytes cut, doubled, changed or mixed, and plain noise."""
    raw = st.lists(messages.map(lambda each: each.SerializeToString()), min_size=1, max_size=3).map(b"".join)
    cut = st.tuples(raw, st.integers(0, 300)).map(lambda pair: pair[0][: pair[1]])
    changed = st.tuples(raw.filter(len), st.integers(0, 10**6), st.integers(0, 255)).map(
        lambda each: each[0][: each[1] % len(each[0])] + bytes([each[2]]) + each[0][each[1] % len(each[0]) + 1 :]
    )
    return st.one_of(raw, cut, changed, st.binary(max_size=60))


@given(mangled(GET_RESPONSES))
def test_get_frame_agrees_with_protobuf(raw: bytes) -> None:
    try:
        expected = pb.GetResponse.FromString(raw)
    except DecodeError:
        expected = None
    try:
        frame = decode_get_frame(raw)
    except CallerError:
        assert expected is None
        return
    assert expected is not None
    assert (frame.item, frame.status, frame.size, frame.offset) == (
        expected.index,
        expected.status,
        expected.size,
        expected.offset,
    )
    assert (frame.checksum, bytes(frame.data)) == (expected.checksum, expected.data)


@given(mangled(PUT_REQUESTS))
def test_put_request_agrees_with_protobuf(raw: bytes) -> None:
    try:
        expected = pb.PutRequest.FromString(raw)
    except DecodeError:
        expected = None
    try:
        step = decode_put_request(raw)
    except CallerError:
        assert expected is None
        return
    assert expected is not None
    if isinstance(step, PutChunk):
        chunk = expected.chunk
        assert (step.item, step.offset, bytes(step.data)) == (chunk.index, chunk.offset, chunk.data)
    else:
        assert step == expected


@given(U32, st.integers(0, 9), U64, U64, st.binary(max_size=16), st.binary(max_size=500))
def test_get_frame_round_trip(item: int, status: int, size: int, offset: int, checksum: bytes, data: bytes) -> None:
    raw = encode_get_frame(item, status, size, offset, checksum, data)
    assert decode_get_frame(raw) == (item, status, size, offset, checksum, data)


@given(U32, U64, st.binary(max_size=500))
def test_put_chunk_round_trip(item: int, offset: int, data: bytes) -> None:
    assert decode_put_request(encode_put_chunk(item, offset, data)) == (item, offset, data)
