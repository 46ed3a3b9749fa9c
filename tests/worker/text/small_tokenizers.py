"""Small tokenizers of both kinds, trained or written here, and a model folder made of one."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "The waves of the ocean, a tapestry woven with life, a canvas of endless blue.",
    "Größe, café, naïve: 日本語 and 😀 emoji, said the user to the assistant.",
    "<|im_start|>user hello <|im_end|>",
]
BEGIN, END = "<|im_start|>", "<|im_end|>"


@cache
def byte_level() -> Tokenizer:
    """A GPT-2 kind of tokenizer, so small that most characters take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BEGIN, END],
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("schön", normalized=False), AddedToken("ÃÃ")])
    return tokenizer


@cache
def sentencepiece() -> Tokenizer:
    """A Llama 2 kind: words begin with ▁, unknown characters are spelled in byte tokens."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    letters = ["▁", *sorted(set("".join(TEXTS[0].split())))]
    merged = ["▁t", "▁th", "▁the", "▁a", "▁o", "▁of"]
    vocabulary = {word: place for place, word in enumerate([*words, *letters, *merged])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "a"), ("▁", "o"), ("▁o", "f")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def model_folder(folder: Path, tokenizer: Tokenizer, **files: dict[str, Any]) -> Path:
    """Write a model's text files: tokenizer.json and the named JSON files."""
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
