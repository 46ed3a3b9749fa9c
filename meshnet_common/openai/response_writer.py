"""Responses: the events of a stream and the whole answer, from pieces of any answer; pure.

A stream tells each item when it begins, while it grows and when it ends. Every event has a number,
and the last one has the whole answer: both follow from the pieces alone, so another Head Worker
that is told them again goes on with the next number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshnet_common.openai.pieces import FinishReason, Piece, TextPiece, ToolCallPiece, WholeChoice
from meshnet_common.openai.response_objects import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    IncompleteDetails,
    ItemEvent,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    Response,
    ResponseEvent,
    ResponseUsage,
    TextDelta,
    TextDone,
)
from meshnet_common.openai.response_request import ResponseRequest
from meshnet_common.openai.writer import AnswerIdentity, Usage

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"


@dataclass(slots=True)
class _Message:
    """A message that grows."""

    id: str
    text: list[str] = field(default_factory=list)

    def item(self, status: str) -> OutputMessage:
        content = () if status == IN_PROGRESS else (OutputText(text="".join(self.text)),)
        return OutputMessage(id=self.id, status=status, content=content)


@dataclass(slots=True)
class _Call:
    """A call that grows."""

    id: str
    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def item(self, status: str) -> OutputCall:
        return OutputCall(
            id=self.id,
            status=status,
            call_id=self.call_id,
            name=self.name,
            arguments="".join(self.arguments),
        )


@dataclass(slots=True)
class ResponseWriter:
    """Writes one answer, which has one choice."""

    identity: AnswerIdentity
    request: ResponseRequest
    _told: int = 0
    _items: list[OutputItem] = field(default_factory=list)
    """Those that have ended."""
    _open: _Message | _Call | None = None
    _status: str = IN_PROGRESS

    def begin(self, choice: int) -> Sequence[bytes]:  # noqa: ARG002 - there is only one
        kinds = ("response.created", "response.in_progress")
        return [self._event(ResponseEvent, kind, response=self._response(None)) for kind in kinds]

    def pieces(self, choice: int, pieces: Sequence[Piece]) -> Sequence[bytes]:  # noqa: ARG002
        return [event for piece in pieces for event in self._piece(piece)]

    def finish(self, choice: int, reason: FinishReason) -> Sequence[bytes]:  # noqa: ARG002
        self._status = INCOMPLETE if reason is FinishReason.LENGTH else COMPLETED
        # An answer that says nothing is a message that says nothing.
        begun = () if self._open or self._items else tuple(self._begin_message())
        return [*begun, *self._end(self._status)]

    def usage(self, usage: Usage) -> Sequence[bytes]:
        kind = f"response.{self._status}"
        return [self._event(ResponseEvent, kind, response=self._response(usage))]

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        (choice,) = choices
        again = ResponseWriter(self.identity, self.request)
        again.pieces(choice.index, choice.pieces)
        again.finish(choice.index, choice.finish_reason)
        return msgspec.json.encode(again._response(usage))

    def _piece(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case TextPiece():
                if not isinstance(self._open, _Message):
                    yield from self._end(COMPLETED)
                    yield from self._begin_message()
                yield from self._grow_message(piece.text)
            case ToolCallPiece():
                if piece.id is not None:
                    yield from self._end(COMPLETED)
                    yield from self._begin_call(piece.id, piece.name or "")
                yield from self._grow_call(piece.arguments)

    def _begin_message(self) -> Iterator[bytes]:
        messages = sum(isinstance(item, OutputMessage) for item in self._items)
        name = self.identity.id.removeprefix(ResponseRequest.ID_PREFIX)
        message = _Message(f"msg_{name}_{messages}" if messages else f"msg_{name}")
        self._open = message
        yield self._item("response.output_item.added", message.item(IN_PROGRESS))
        yield self._part("response.content_part.added", message)

    def _grow_message(self, text: str) -> Iterator[bytes]:
        assert isinstance(self._open, _Message)
        if text:
            self._open.text.append(text)
            yield self._grown(TextDelta, "response.output_text.delta", delta=text)

    def _begin_call(self, call_id: str, name: str) -> Iterator[bytes]:
        self._open = _Call(f"fc_{call_id.removeprefix('call_')}", call_id, name)
        yield self._item("response.output_item.added", self._open.item(IN_PROGRESS))

    def _grow_call(self, arguments: str) -> Iterator[bytes]:
        assert isinstance(self._open, _Call)
        if arguments:
            self._open.arguments.append(arguments)
            kind = "response.function_call_arguments.delta"
            yield self._grown(ArgumentsDelta, kind, delta=arguments)

    def _end(self, status: str) -> Iterator[bytes]:
        """End the item that grows, if there is one."""
        match self._open:
            case None:
                return
            case _Message() as message:
                text = "".join(message.text)
                yield self._grown(TextDone, "response.output_text.done", text=text)
                yield self._part("response.content_part.done", message)
            case _Call() as call:
                facts = {"arguments": "".join(call.arguments), "name": call.name}
                kind = "response.function_call_arguments.done"
                yield self._grown(ArgumentsDone, kind, **facts)
        item = self._open.item(status)
        yield self._item("response.output_item.done", item)
        self._items.append(item)
        self._open = None

    def _item(self, kind: str, item: OutputItem) -> bytes:
        return self._event(ItemEvent, kind, output_index=len(self._items), item=item)

    def _part(self, kind: str, message: _Message) -> bytes:
        return self._grown(PartEvent, kind, part=OutputText(text="".join(message.text)))

    def _grown(self, event: type[Event], kind: str, **facts: Any) -> bytes:
        assert self._open is not None
        place = {"item_id": self._open.id, "output_index": len(self._items)}
        return self._event(event, kind, **place, **facts)

    def _event(self, event: type[Event], kind: str, **facts: Any) -> bytes:
        number = self._told
        self._told += 1
        return msgspec.json.encode(event(type=kind, sequence_number=number, **facts))

    def _response(self, usage: Usage | None) -> Response:
        """The answer as far as it is; what was asked for is as it came, with the defaults."""
        request, body = self.request, self.request.body
        choice = body.tool_choice
        text: dict[str, Any] = msgspec.to_builtins(body.text) if body.text else {}
        shown = {name: value for name, value in text.items() if value is not None}
        is_cut = self._status == INCOMPLETE
        return Response(
            id=self.identity.id,
            created_at=self.identity.created,
            status=self._status,
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=self.identity.model,
            output=list(self._items),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            temperature=request.temperature,
            text={"format": {"type": "text"}, **shown},
            tool_choice="auto" if choice is None else choice,
            tools=[msgspec.to_builtins(tool) for tool in body.tools or ()],
            top_p=request.top_p,
            usage=None if usage is None else _usage(usage),
            user=body.user,
            metadata=body.metadata or {},
        )


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )
