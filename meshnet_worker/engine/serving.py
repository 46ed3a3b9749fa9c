"""The engine at work: commands come in, Layers are loaded, Batches run, events go out.

One thread does all of it; nothing else in its process is ever busy beside torch.
"""

import select
import socket

import torch

from meshnet_worker.engine.attention import prove_kernel
from meshnet_worker.engine.benchmark import Measuring
from meshnet_worker.engine.device import probe
from meshnet_worker.engine.drawing import Mask
from meshnet_worker.engine.encoding import Encoding
from meshnet_worker.engine.grammar import Followed, Grammars, Vocabulary
from meshnet_worker.engine.graph_proof import prove_graphs
from meshnet_worker.engine.loader import Loader
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_messages import Message, MessageParser, encode_message
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    DropLayers,
    DropTexts,
    EncodeTexts,
    Event,
    ExtendSession,
    LoadLayers,
    MeasureLayers,
    OpenSession,
    ProbeDevice,
    RunSegment,
    SizePool,
    TruncateSession,
    Tune,
)

RECEIVE_BYTES = 1 << 20


class Engine:
    """Joins the port, the loader and the runner in one loop."""

    def __init__(self, port: socket.socket, device: torch.device) -> None:
        self._port = port
        self._device = device
        self._parser = MessageParser()
        if device.type == "cuda":
            prove_kernel(device)
            prove_graphs(device, lambda noted: self._send(noted, b""))
        self._loader = Loader(device, self._send)
        self._grammars = Grammars()
        self._runner = BatchRunner(self._loader.shards, device, self._send, self._make_mask)
        self._encoding = Encoding(self._loader.encoders, self._send)
        self._measuring = Measuring(self._loader.shards, device, self._send)

    def serve(self) -> None:
        """Work until the daemon hangs up."""
        while self._receive():
            self._runner.admit_ready()
            if self._runner.has_work and self._runner.wait_seconds() == 0.0:
                self._runner.step()
                self._encoding.give_way()
            if self._encoding.has_work and self._encoding.wait_seconds() == 0.0:
                self._encoding.step()
            if self._loader.has_work:
                self._loader.step()
            elif self._measuring.has_work and not self._runner.has_work:
                self._measuring.step()

    def end(self) -> None:
        """End what still runs beside this process: its compilers."""
        for shard in self._loader.shards.values():
            shard.forget_compiled()

    def _receive(self) -> bool:
        """Handle all commands that have arrived; wait for one only when there is no work."""
        self._wait(self._idle_seconds())
        try:
            data = self._port.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            while data:
                self._parser.feed(data)
                for message in self._parser.messages():
                    self._handle(message)
                data = self._port.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        return False

    def _idle_seconds(self) -> float | None:
        """How long there is nothing to do unless a command comes; None is for ever."""
        if self._loader.has_work or (self._measuring.has_work and not self._runner.has_work):
            return 0.0
        # A Batch that waits for the rest of its group is woken by whatever comes.
        waits = [self._runner.wait_seconds()] if self._runner.has_work else []
        waits += [self._encoding.wait_seconds()] if self._encoding.has_work else []
        return min(waits, default=None)

    def _wait(self, seconds: float | None) -> None:
        """Wait for a command, and take what has been compiled meanwhile."""
        shards = self._loader.shards.values()
        lifelines = [line for shard in shards for line in shard.lifelines()]
        lines = (self._port.fileno(), self._grammars.lifeline, *lifelines)
        readable, _, _ = select.select(lines, (), (), seconds)
        if self._grammars.lifeline in readable:
            self._grammars.quieten()
        for shard in shards:
            shard.look_after_builds()

    def _handle(self, message: Message) -> None:
        match message.body:
            case RunSegment() as command:
                self._runner.add(command, message.payload)
            case OpenSession() | ArmSession() | ExtendSession() as command:
                self._runner.change(command)
            case TruncateSession() | CloseSession() as command:
                self._runner.change(command)
            case EncodeTexts() | DropTexts() as command:
                self._encoding.hear(command, message.payload)
            case LoadLayers() | DropLayers() | MeasureLayers() | SizePool() as command:
                self._change_layers(command)
            case Tune() as command:
                torch.set_num_threads(command.threads)
                self._runner.groups.count = command.decode_groups
                self._loader.compiles = command.compiles
            case ProbeDevice():
                self._send(probe(self._device), b"")
            case _:
                raise AssertionError(message.body)

    def _change_layers(self, command: LoadLayers | DropLayers | MeasureLayers | SizePool) -> None:
        match command:
            case SizePool():
                self._runner.size_pool(command)
            case LoadLayers():
                self._loader.add(command)
            case DropLayers():
                self._loader.drop(command)
                self._runner.drop(command)
            case MeasureLayers():
                self._measuring.add(command)

    def _make_mask(self, shard: Shard, command: ArmSession) -> Mask:
        sampling, history = command.sampling, command.history
        return self._grammars.begin(
            Vocabulary(shard.folder, shard.vocabulary_size),
            Followed(sampling.grammar, sampling.end_ids),
            history.answer_ids if history else (),
        )

    def _send(self, event: Event, payload: bytes) -> None:
        self._port.sendall(encode_message(event, payload))
