"""What costs time is made once: model folders, and one engine process for all who share it."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from meshnet_worker.text.tokenizer import TextCodec
from tests.worker.chatting import Serve, served_chat
from tests.worker.engines import SharedEngine, engine_with_llama
from tests.worker.models import save_model, save_tokenizer

ModelFolders = Callable[[str], Path]


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    """The folder of a small model by its name; nobody may change what is in it."""
    root = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            save_model(name, root / name)
        return root / name

    return folder


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A small tokenizer whose token 1 is `w1`, and so on."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return TextCodec.load(folder)


@pytest.fixture
def serve(codec: TextCodec) -> Serve:
    return partial(served_chat, codec)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_engine(model_folders: ModelFolders) -> AsyncIterator[SharedEngine]:
    async with engine_with_llama(model_folders("llama")) as shared:
        yield shared


@pytest.fixture
def shared_engine(session_engine: SharedEngine) -> SharedEngine:
    """The engine that all share; its tests run in the session's event loop."""
    session_engine.forget()
    return session_engine
