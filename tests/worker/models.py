"""Small random models that torch and transformers make in milliseconds.

A wide initialisation spreads the logits, so that float32 leaves no doubt which one is the largest.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LAYERS = 4
HIDDEN_SIZE = 32
WORDS = 128
CONTEXT_TOKENS = 512
END_ID = 0
WINDOW = 16

_COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.2,
    "bos_token_id": END_ID,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
}


def _gpt2(is_tied: bool) -> PretrainedConfig:
    return GPT2Config(
        vocab_size=WORDS,
        n_positions=CONTEXT_TOKENS,
        n_embd=HIDDEN_SIZE,
        n_layer=LAYERS,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        tie_word_embeddings=is_tied,
    )


CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2": lambda: _gpt2(True),
    "gpt2-untied": lambda: _gpt2(False),
    "llama": lambda: LlamaConfig(**_COMMON, tie_word_embeddings=False),
    "llama-tied": lambda: LlamaConfig(**_COMMON, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(
        **_COMMON, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8
    ),
}


def make_model(name: str) -> PreTrainedModel:
    """The whole model in transformers' own hands, the same at every call."""
    torch.manual_seed(6)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
    assert isinstance(model, PreTrainedModel)
    model.eval()
    return model


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one token per word: `w1`, `w2`, ... and an end token."""
    vocabulary = {"<end>": END_ID, **{f"w{number}": number for number in range(1, WORDS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", chat_template=template
    ).save_pretrained(folder)


def save_model(name: str, folder: Path, shard_size: str = "1GB") -> Path:
    """Write a model folder as a publisher would: safetensors, configuration and tokenizer."""
    make_model(name).save_pretrained(folder, max_shard_size=shard_size)
    save_tokenizer(folder)
    return folder


def prompt_of(tokens: int) -> list[int]:
    """Some prompt of exactly this many tokens, without the end token."""
    return [1 + (position * 37 + position // 11) % (WORDS - 1) for position in range(tokens)]


@cache
def whole_model(name: str) -> PreTrainedModel:
    return make_model(name)


@torch.inference_mode()
def logits_of(name: str, ids: list[int]) -> torch.Tensor:
    """The whole model's logits `[positions, vocabulary]`."""
    logits: torch.Tensor = whole_model(name)(torch.tensor([ids])).logits
    return logits[0]


@cache
def greedy_answer(name: str, prompt_tokens: int, tokens: int) -> list[int]:
    """What transformers itself answers to `prompt_of(prompt_tokens)`, the end token ignored."""
    prompt = prompt_of(prompt_tokens)
    answer: list[int] = []
    for _ in range(tokens):
        answer.append(int(logits_of(name, prompt + answer)[-1].argmax()))
    return answer
