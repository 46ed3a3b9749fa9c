from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DynamicCache,
    MambaConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
)

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.cached import SessionCache, cache_argument
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.shard import Shard, ShardSource

LAYERS = 3
WORDS = 64
TOKENS = 24

CONFIGS: dict[str, PretrainedConfig] = {
    "bloom": BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=LAYERS, n_head=4),
    "mamba": MambaConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=LAYERS, state_size=4),
}

TRAINED_ON = 16
LONG_ROPE = Phi3Config(
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    original_max_position_embeddings=TRAINED_ON,
    rope_parameters={
        "rope_type": "longrope",
        "short_factor": [1.0, 1.0, 1.0, 1.0],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
    },
    initializer_range=0.3,
    pad_token_id=0,
)
"""Turns all rows of a pass by other angles where one of them is beyond what it was trained on."""


def prompt(session: int) -> list[int]:
    return [1 + (place * 7 + session * 11) % (WORDS - 1) for place in range(TOKENS)]


class Split:
    """A model of three Layers over two Hops, each with KV for two Sessions."""

    def __init__(self, config: PretrainedConfig, folder: Path) -> None:
        torch.manual_seed(3)
        self.whole: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
        self.whole.save_pretrained(folder)
        self.ranges = (ShardRange(0, 1), ShardRange(1, LAYERS))
        self.shards = [self._loaded(folder, shard_range) for shard_range in self.ranges]
        self.kv = [[SessionKv.alone(64, range(LAYERS)) for _ in range(2)] for _ in self.ranges]

    def run(self, *segments: tuple[int, int, int]) -> torch.Tensor:
        """Run (session, start, end) as one Batch; the logits of every row."""
        rows = torch.tensor([i for s, start, end in segments for i in prompt(s)[start:end]])
        for hop, shard in enumerate(self.shards):
            flat, row = [], 0
            for session, start, end in segments:
                flat.append(FlatSegment(self.kv[hop][session], row, end - start, start))
                row += end - start
            sampled = range(len(rows)) if hop else ()
            rows = shard.run(self.ranges[hop], rows, flat, sampled)
        return rows

    @torch.inference_mode()
    def expected(self, session: int) -> torch.Tensor:
        logits: torch.Tensor = self.whole(torch.tensor([prompt(session)])).logits
        return logits[0]

    @torch.inference_mode()
    def in_chunks(self, session: int, *ends: int) -> torch.Tensor:
        """The whole model's logits where it takes a Session in chunks, through its own Cache."""
        cache, logits = DynamicCache(config=self.whole.config), []
        for start, end in pairwise((0, *ends)):
            ids = torch.tensor([prompt(session)[start:end]])
            named = {cache_argument(self.whole): cache}
            logits.append(self.whole(ids, use_cache=True, **named).logits[0])
        return torch.cat(logits)

    @staticmethod
    def _loaded(folder: Path, shard_range: ShardRange) -> Shard:
        shard = Shard(ShardSource(str(folder), torch.float32, torch.device("cpu")))
        for _ in shard.load(shard_range):
            pass
        return shard


@pytest.fixture(params=CONFIGS)
def split(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    return Split(CONFIGS[request.param], tmp_path)


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-4)


def test_sessions_in_one_batch_run_as_the_whole_model_does(split: Split) -> None:
    assert all(shard.runs_alone for shard in split.shards)
    first, second = split.expected(0), split.expected(1)
    got = split.run((0, 0, 12), (1, 0, 1))
    assert close(got, torch.cat((first[:12], second[:1])))
    got = split.run((1, 1, 9), (0, 12, 13))
    assert close(got, torch.cat((second[1:9], first[12:13])))
    assert close(split.run((0, 13, 24)), first[13:24])


def test_a_short_session_never_feels_how_long_another_one_is(tmp_path: Path) -> None:
    split = Split(LONG_ROPE, tmp_path)
    long, short = split.in_chunks(0, 12, 20, 21, TOKENS), split.in_chunks(1, 5, 6, 10)
    got = split.run((0, 0, 12), (1, 0, 5))
    assert close(got, torch.cat((long[:12], short[:5])))
    got = split.run((0, 12, 20), (1, 5, 6))
    assert close(got, torch.cat((long[12:20], short[5:6])))
    got = split.run((1, 6, 10), (0, 20, 21))
    assert close(got, torch.cat((short[6:10], long[20:21])))
    assert close(split.run((0, 21, TOKENS)), long[21:])
    # The lengths matter: in one pass all of the long Session is turned the long way.
    assert not close(long[:TRAINED_ON], split.expected(0)[:TRAINED_ON])


def test_a_segment_that_is_sent_again_gives_the_same(split: Split) -> None:
    split.run((0, 0, 12))
    once, again = split.run((0, 12, 16)), split.run((0, 12, 16))
    assert torch.equal(once, again)
    assert close(split.run((0, 16, 17)), split.expected(0)[16:17])


def test_a_session_that_begins_anew_forgets(split: Split) -> None:
    split.run((0, 0, 12))
    assert close(split.run((0, 0, 10)), split.expected(0)[:10])


def test_keys_and_values_are_truncated(tmp_path: Path) -> None:
    split = Split(CONFIGS["bloom"], tmp_path)
    split.run((0, 0, 20))
    assert close(split.run((0, 8, 20)), split.expected(0)[8:20])


def test_a_recurrent_state_that_cannot_go_back_says_so(tmp_path: Path) -> None:
    split = Split(CONFIGS["mamba"], tmp_path)
    split.run((0, 0, 20))
    with pytest.raises(ValueError, match="cannot go back from position 20 to 8"):
        split.run((0, 8, 20))


def test_positions_must_follow_what_is_held() -> None:
    with pytest.raises(ValueError, match="beyond the 0"):
        SessionCache(DynamicCache()).forget_from(3)


def test_a_pass_that_breaks_in_the_middle_leaves_nothing_to_build_on(split: Split) -> None:
    split.run((0, 0, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionCache, "settle", broken)
        with pytest.raises(RuntimeError, match="broken"):
            split.run((0, 12, 13))
    with pytest.raises(ValueError, match="beyond the 0"):
        split.run((0, 12, 13))
    assert close(split.run((0, 0, 13)), split.expected(0)[:13])


def broken(_cache: SessionCache, _held: int) -> None:
    raise RuntimeError("broken")
