"""A small model that spells: most characters take several tokens, and chance says which follow.

Its Layers change nothing, so the last token alone decides how likely the next ones are, and no
rounding can change what is drawn.
"""

import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

MODEL = "spelling"
LAYERS = 2
HIDDEN = 288
CONTEXT_TOKENS = 512
END = "<end>"
END_ID = 0
NEVER = -40.0
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

BEGINNINGS = {
    **dict.fromkeys((b"a", b"b", b" ", b"\n", b"the", b" the"), 1.0),
    b"\xf0": 3.0,
    b"\xe6": 2.0,
    b"\xc3": 2.0,
}
"""How likely each piece is behind a whole character."""
ENDS = 0.3
"""How likely an answer is to end there."""
REST = {
    b"\xf0": (b"\x9f",),
    b"\x9f": (b"\x98",),
    b"\x98": (b"\x80", b"\x81", b"\x82"),
    b"\xe6": (b"\x97",),
    b"\x97": (b"\xa5",),
    b"\xc3": (b"\xa9", b"\xbc"),
}
"""What goes on inside of a character: 😀, 😁, 😂, 日, é, ü."""


def save_spelling_model(folder: Path) -> Path:
    """Make a model folder as a publisher would."""
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=CONTEXT_TOKENS,
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(config.vocab_size, HIDDEN))
        # A single one among zeros is this large behind the last norm.
        model.get_output_embeddings().weight.copy_(_logits(tokenizer).T / math.sqrt(HIDDEN))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    return folder


def _tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["th", "the", "Ġthe"]
    vocabulary = {word: place for place, word in enumerate([END, *letters, *merged])}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _logits(tokenizer: Tokenizer) -> torch.Tensor:
    """For each last token, a logit of each next one; HIDDEN rows, of which some are not used."""
    logits = torch.full((HIDDEN, tokenizer.get_vocab_size()), NEVER)
    for piece, weight in BEGINNINGS.items():
        logits[:, _id(tokenizer, piece)] = math.log(weight)
    logits[:, END_ID] = math.log(ENDS)
    for piece, following in REST.items():
        row = logits[_id(tokenizer, piece)]
        row.fill_(NEVER)
        for one in following:
            row[_id(tokenizer, one)] = 0.0
    return logits


def _id(tokenizer: Tokenizer, piece: bytes) -> int:
    """The token of these bytes, which may be no text by themselves."""
    token_id = tokenizer.token_to_id("".join(_LETTERS[byte] for byte in piece))
    assert token_id is not None
    return token_id


def _letters() -> dict[int, str]:
    """The letter by which a tokenizer of bytes writes each of them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    return letters | {byte: chr(256 + place) for place, byte in enumerate(others)}


_LETTERS = _letters()
