"""What a segment asks of the engine; pure."""

from meshnet_common.protocol.bodies import SEGMENT_SAMPLE, Segment
from meshnet_worker.engine_port import Draw, RunSegment
from meshnet_worker.sessions import HopSession, SegmentError


def run_command(session: HopSession, segment: Segment, hidden_bytes: int, dtype: str) -> RunSegment:
    """Put a segment that was accepted into a command; raises SegmentError if it does not fit."""
    if hidden_bytes and dtype != session.wire_dtype:
        raise SegmentError(f"It came in {dtype}; this Route's is {session.wire_dtype}.")
    if hidden_bytes != segment.tokens * session.row_bytes:
        raise SegmentError(f"A position has {session.row_bytes} bytes on this Route.")
    if session.place == 0 and segment.token_ids is None:
        raise SegmentError("The first Hop starts from token ids, and it has none.")
    wants_token = session.ends_model and segment.flags & SEGMENT_SAMPLE
    return RunSegment(
        session=session.engine_session,
        epoch=segment.epoch,
        start=segment.start,
        tokens=segment.tokens,
        flags=segment.flags,
        token_ids=segment.token_ids if session.place == 0 else None,
        draw=_draw(session) if wants_token else None,
        last_hop=segment.last_hop,
    )


def _draw(session: HopSession) -> Draw:
    sampling = session.sampling
    if sampling is None:
        raise SegmentError("It wants a token, but nobody said how to draw.")
    return Draw(sampling.temperature, sampling.top_p, sampling.seed)
