"""What a segment asks of the engine; pure."""

from meshnet_common.protocol.bodies import SEGMENT_SAMPLE, Segment
from meshnet_worker.engine_port import RunSegment
from meshnet_worker.sessions import HopSession, SegmentError


def run_command(session: HopSession, segment: Segment, hidden_bytes: int, dtype: str) -> RunSegment:
    """Put a segment that was accepted into a command; raises SegmentError if it does not fit."""
    if hidden_bytes and dtype != session.wire_dtype:
        raise SegmentError(f"It came in {dtype}; this Route's is {session.wire_dtype}.")
    if hidden_bytes != segment.tokens * session.row_bytes:
        raise SegmentError(f"A position has {session.row_bytes} bytes on this Route.")
    if session.place == 0 and segment.token_ids is None:
        raise SegmentError("The first Hop starts from token ids, and it has none.")
    draws = session.ends_model and bool(segment.flags & SEGMENT_SAMPLE)
    if draws and session.sampling is None:
        raise SegmentError("It wants a token, but nobody said how to draw.")
    return RunSegment(
        session=session.engine_session,
        epoch=segment.epoch,
        start=segment.start,
        tokens=segment.tokens,
        flags=segment.flags,
        token_ids=segment.token_ids if session.place == 0 else None,
        draws=draws,
        last_hop=segment.last_hop,
    )
