"""Small random models with a tokenizer of one token per word, so that text tells the token ids.

Random weights would make many near-ties, which float32 may settle either way; a wide initialisation
spreads the logits, and the tests check the gaps that they rely on.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

LAYERS = 8
WORDS = 256
CONTEXT_TOKENS = 512
END_ID = 0
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def gpt2_config() -> PretrainedConfig:
    return GPT2Config(
        vocab_size=WORDS,
        n_positions=CONTEXT_TOKENS,
        n_embd=256,
        n_layer=LAYERS,
        n_head=4,
        initializer_range=0.15,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
    )


def llama_config() -> PretrainedConfig:
    return LlamaConfig(
        vocab_size=WORDS,
        max_position_embeddings=CONTEXT_TOKENS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        tie_word_embeddings=False,
    )


def save_random_model(config: PretrainedConfig, folder: Path, seed: int = 6) -> Path:
    """Make a model folder as a publisher would: safetensors, tokenizer and chat template."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # A logit of zero is never the largest, so answers have the length that a test asks for.
    with torch.no_grad():
        model.get_output_embeddings().weight[END_ID] = 0
    model.save_pretrained(folder)
    vocabulary = {"<end>": END_ID, **{f"w{number}": number for number in range(1, WORDS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", chat_template=CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return folder


def prompt_of(tokens: int) -> list[int]:
    """Some prompt of exactly this many tokens, without the end token."""
    return [1 + (position * 37 + position // 11) % (WORDS - 1) for position in range(tokens)]


def text_of(ids: list[int]) -> str:
    return " ".join(f"w{token}" for token in ids)


def ids_of(text: str) -> list[int]:
    return [int(word.removeprefix("w")) for word in text.split()]


@torch.inference_mode()
def whole_model_answer(
    folder: Path, prompt: tuple[int, ...], tokens: int
) -> tuple[list[int], float]:
    """Let transformers itself answer greedily; returns the ids and the smallest top-2 gap."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([list(prompt)])
    generated = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=END_ID,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(generated.logits).topk(2).values
    answer = generated.sequences[0, len(prompt) :].tolist()
    return answer, float((best[:, 0] - best[:, 1]).min())
