"""LangChain's own standard tests, as they come, for its OpenAI classes pointed at a Mesh.

Not collected here: langchain_client.py runs this file with the pytest of its own environment.
"""

import json
import os
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
)

FACTS: dict[str, Any] = json.loads(os.environ["MESH_FACTS"])
WHERE = {"base_url": FACTS["url"], "api_key": "not-needed", "max_retries": 0}
MAX_TOKENS = 96
# A small model that may write any text into a JSON string repeats itself until it is cut.
NO_REPEATS = {"repetition_penalty": 1.3}


class TestChat(ChatModelIntegrationTests):  # type: ignore[misc]
    """What a text model can do; it takes no images, no audio and no documents."""

    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            **WHERE,
            "model": FACTS["chat_model"],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            # Left off by this class wherever it is told another base_url than OpenAI's.
            "stream_usage": True,
            "extra_body": NO_REPEATS,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        alias: str = FACTS["chat_alias"]
        return alias


class TestEmbeddings(EmbeddingsIntegrationTests):  # type: ignore[misc]
    """Texts go as texts: by default this class would send OpenAI's own token ids."""

    @property
    def embeddings_class(self) -> Any:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        model = FACTS["embedding_model"]
        return {**WHERE, "model": model, "check_embedding_ctx_length": False}
