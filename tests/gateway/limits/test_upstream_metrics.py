import pytest

from meshnet_gateway.limits.upstream_metrics import UpstreamLoad, read_load

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 5.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 999.0
"""
BY_REASON = """\
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 9.0
"""
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="tiny"} 8.0
sglang:num_queue_reqs{model_name="tiny"} 4.0
sglang:token_usage{model_name="tiny"} 0.52
"""
LLAMA_CPP = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
"""


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (VLLM, UpstreamLoad(waiting=5, running=7, kv_use=0.75)),
        (SGLANG, UpstreamLoad(waiting=4, running=8, kv_use=0.52)),
        (LLAMA_CPP, UpstreamLoad(waiting=2, running=1, kv_use=None)),
        ("vllm:gpu_cache_usage_perc 0.5\n", UpstreamLoad(kv_use=0.5)),
    ],
)
def test_the_load_is_read_by_each_servers_names(page: str, load: UpstreamLoad) -> None:
    assert read_load(page, "tiny") == load


def test_only_those_that_wait_for_capacity_count_where_the_page_tells_why() -> None:
    assert read_load(VLLM + BY_REASON, "tiny").waiting == 2


def test_only_the_models_own_series_count_where_the_page_tells_models_apart() -> None:
    page = VLLM + 'vllm:num_requests_running{engine="0",model_name="large"} 50.0\n'
    assert read_load(page, "tiny").running == 7
    assert read_load(page, "large").running == 50


def test_a_model_known_there_by_another_name_has_all_of_the_page() -> None:
    assert read_load(SGLANG, "public-name").running == 8


def test_what_a_page_does_not_say_is_unknown_and_not_zero() -> None:
    assert read_load("", "tiny") == UpstreamLoad(None, None, None)
    assert read_load("process_open_fds 12\n", "tiny") == UpstreamLoad(None, None, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e400"])
def test_an_impossible_number_is_unknown(value: str) -> None:
    page = f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc {value}\n"
    assert read_load(page, "tiny") == UpstreamLoad()


@pytest.mark.parametrize("page", ["<html><body>404</body></html>", "a{b=", '{"error": 1}', "x y"])
def test_a_page_that_is_none_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_load(page, "tiny")
