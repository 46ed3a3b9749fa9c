"""What leaves a Hop after one engine step; pure.

What was computed together travels together: at most two Activation Frames per next Hop (Decode
Steps apart from Prefill Chunks) and one Token Frame per Head Worker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshnet_common.presets import DTYPE_BYTES
from meshnet_common.protocol.bodies import (
    SEGMENT_FILL,
    SEGMENT_PREFILL,
    ActivationFrame,
    ActivationsHeader,
    Body,
    ChosenToken,
    ProgressBody,
    ReplayBody,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_worker.engine_port import StepResult
from meshnet_worker.kept import KeptActivations
from meshnet_worker.sessions import HopSession, Outlet, SessionTable


class Outgoing(NamedTuple):
    """A body and where it goes: to a Hop, or to the outlet instead where there is one."""

    target: RouteHop
    outlet: Outlet | None
    body: Body


@dataclass(slots=True)
class _Onward:
    """Hidden states that share one frame."""

    target: RouteHop
    outlet: Outlet | None
    dtype: str
    segments: list[Segment] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    def frame(self) -> ActivationFrame:
        hidden = b"".join(self.parts)
        rows = sum(segment.tokens for segment in self.segments)
        header = ActivationsHeader(
            segments=tuple(self.segments),
            hidden_size=len(hidden) // rows // DTYPE_BYTES[self.dtype],
            dtype=self.dtype,
        )
        return ActivationFrame(header, hidden)


@dataclass(slots=True)
class _Homeward:
    """Tokens that share one frame."""

    target: RouteHop
    outlet: Outlet | None
    tokens: list[ChosenToken] = field(default_factory=list)


def outgoing(
    sessions: SessionTable,
    kept: KeptActivations,
    results: Sequence[StepResult],
    payload: bytes,
) -> Iterator[Outgoing]:
    """Group a step's results by where they go, and keep what goes to another Hop.

    A Session that has closed meanwhile is left out.
    """
    onward: dict[tuple[str, bool, int], _Onward] = {}
    homeward: dict[tuple[str, int], _Homeward] = {}
    offset = 0
    for result in results:
        hidden = payload[offset : offset + result.hidden_bytes]
        offset += result.hidden_bytes
        session = sessions.of_engine(result.session)
        if session is None or result.epoch < session.epoch:
            continue
        if result.token_id is not None:
            _add_token(homeward, session, result, result.token_id)
        elif session.ends_model or _ends_here(session, result):
            if hidden:
                # Whoever comes after this Hop may have to be refilled from here as well.
                kept.add(result.session, result.start, result.tokens, hidden)
            yield Outgoing(session.head, session.outlet, _progress(session, result))
        else:
            kept.add(result.session, result.start, result.tokens, hidden)
            _add_hidden(onward, session, result, hidden)
    for group in onward.values():
        yield Outgoing(group.target, group.outlet, group.frame())
    for tokens in homeward.values():
        yield Outgoing(tokens.target, tokens.outlet, TokensBody(tokens=tuple(tokens.tokens)))


def replay_frame(session: HopSession, body: ReplayBody, rows: bytes) -> ActivationFrame:
    """Put rows that were kept into a frame that refills the next Hop."""
    segment = Segment(
        body.session_id,
        body.epoch,
        body.start,
        body.tokens,
        SEGMENT_FILL | SEGMENT_PREFILL,
        last_hop=body.last_hop,
    )
    hidden_size = len(rows) // body.tokens // DTYPE_BYTES[session.wire_dtype]
    return ActivationFrame(ActivationsHeader((segment,), hidden_size, session.wire_dtype), rows)


def _ends_here(session: HopSession, result: StepResult) -> bool:
    return bool(result.flags & SEGMENT_FILL) and result.last_hop in (None, session.place)


def _add_token(
    homeward: dict[tuple[str, int], _Homeward],
    session: HopSession,
    result: StepResult,
    token_id: int,
) -> None:
    key = (session.head.worker_id, id(session.outlet))
    group = homeward.setdefault(key, _Homeward(session.head, session.outlet))
    position = result.start + result.tokens
    group.tokens.append(
        ChosenToken(session.session_id, result.epoch, position, token_id, result.logprobs)
    )


def _add_hidden(
    onward: dict[tuple[str, bool, int], _Onward],
    session: HopSession,
    result: StepResult,
    hidden: bytes,
) -> None:
    target = session.following or session.head
    key = (target.worker_id, bool(result.flags & SEGMENT_PREFILL), id(session.outlet))
    group = onward.setdefault(key, _Onward(target, session.outlet, session.wire_dtype))
    segment = Segment(
        session.session_id,
        result.epoch,
        result.start,
        result.tokens,
        result.flags,
        last_hop=result.last_hop,
    )
    group.segments.append(segment)
    group.parts.append(hidden)


def sign_of_waiting(session: HopSession) -> ProgressBody:
    """What a Head Worker hears of a Session whose segment waits for an engine or on a link."""
    return ProgressBody(
        session_id=session.session_id,
        epoch=session.epoch,
        position=session.held,
        waits=True,
    )


def _progress(session: HopSession, result: StepResult) -> ProgressBody:
    return ProgressBody(
        session_id=session.session_id,
        epoch=result.epoch,
        position=result.start + result.tokens,
    )
