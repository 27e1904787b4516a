"""Metrics carry the names dashboards know, move with the work, and never show what can't move."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from fnx_jax.serve.metrics import Metrics
from fnx_jax.serve.service import Service
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import Script, TestServer, fake_model, running

LABELS = {"model_name": "tiny", "engine": "0"}


def scrape(server: TestServer) -> dict[str, float]:
    """Sample name, with further labels where it has some, to value."""
    response = server.http.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain; version=0.0.4")
    out = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            if sample.name.endswith(("_created", "_bucket")) or sample.name == "vllm:cache_config_info":
                continue
            assert LABELS.items() <= sample.labels.items()
            more = [value for name, value in sample.labels.items() if name not in LABELS]
            out["/".join([sample.name, *more])] = sample.value
    return out


def test_counters_and_times_move_with_the_work():
    with running() as server:
        before = scrape(server)
        server.script.say("</think>Hello", draft=2)
        usage = server.chat(n=2, max_tokens=50).json()["usage"]
        after = scrape(server)
        moved = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}
        assert moved["vllm:prompt_tokens_total"] == 2 * usage["prompt_tokens"]
        assert moved["vllm:generation_tokens_total"] == usage["completion_tokens"]
        assert moved["vllm:request_success_total/stop"] == 2
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
            assert moved[f"vllm:{name}_seconds_count"] == 2
        assert moved["vllm:time_to_first_token_seconds_count"] == 2
        assert moved["vllm:request_inference_time_seconds_count"] == 2
        gaps = usage["completion_tokens"] - moved["vllm:time_to_first_token_seconds_count"]
        assert 0 < moved["vllm:inter_token_latency_seconds_count"] <= gaps
        older = moved["vllm:time_per_output_token_seconds_count"]
        assert moved["vllm:inter_token_latency_seconds_count"] == older
        assert moved["vllm:request_prompt_tokens_sum"] == 2 * usage["prompt_tokens"]
        assert moved["vllm:request_generation_tokens_sum"] == usage["completion_tokens"]
        assert moved["vllm:request_params_max_tokens_sum"] == 100
        assert (moved["vllm:request_params_n_count"], moved["vllm:request_params_n_sum"]) == (1, 2)
        assert moved["vllm:iteration_tokens_total_count"] == moved["fnx:rounds_total"]


def test_drafts_are_counted_by_place_and_told_in_usage():
    with running() as server:
        server.script.say("</think>Hello, how are you?", draft=2)
        details = server.chat(max_tokens=50).json()["usage"]["completion_tokens_details"]
        found = scrape(server)
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert accepted > 2 and not rejected  # the script knows what comes
    spec = "vllm:spec_decode_num_"
    assert found[f"{spec}draft_tokens_total"] == found[f"{spec}accepted_tokens_total"] == accepted
    assert found[f"{spec}accepted_tokens_per_pos_total/0"] == found[f"{spec}drafts_total"]
    assert sum(found[f"{spec}accepted_tokens_per_pos_total/{place}"] for place in range(2)) == accepted


def test_a_reply_without_drafts_tells_of_none(server):
    server.script.say("</think>Hello")
    assert "accepted_prediction_tokens" not in server.chat().json()["usage"]["completion_tokens_details"]


def test_gauges_show_running_waiting_and_pages():
    with running(lanes=1) as server:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        assert [scrape(server)[name] for name in names] == [0, 0, 0]
        seen: list[list[float]] = []
        server.script.say(None)
        number = server.engine.status().rounds

        def look() -> None:
            if server.engine.status().rounds == number + 2:
                seen.append([scrape(server)[name] for name in names])

        gate = server.script.gate
        server.script.gate = Watched(gate, look)  # type: ignore[assignment]
        server.complete([[5] * 4, [6] * 4], max_tokens=8, ignore_eos=True)
        server.script.gate = gate
        assert seen[0][:2] == [1, 1] and 0 < seen[0][2] <= 1
        assert [scrape(server)[name] for name in names] == [0, 0, 0]


class Watched:
    """A gate that looks before it lets a round through."""

    def __init__(self, gate, look):
        self._gate, self._look = gate, look

    def wait(self) -> bool:
        self._look()
        return self._gate.wait()

    def set(self) -> None:
        self._gate.set()


def test_metrics_are_there_before_the_model_is():
    assert Metrics().text() == b""


def test_a_gap_is_shared_by_the_tokens_after_it():
    model, metrics = fake_model(Script()), Metrics()
    model.engine.stop()
    metrics.watch("tiny", model.engine, {})
    metrics.note_tokens(0.5, 4)
    text = metrics.text().decode()
    assert 'vllm:inter_token_latency_seconds_sum{engine="0",model_name="tiny"} 0.5' in text
    assert 'vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 4.0' in text


def test_no_family_is_only_ever_zero(server):
    server.script.say("</think>Hello, how are you?")
    server.chat()
    text = server.http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    may_be_idle = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}
    for name, family in families.items():
        assert name in may_be_idle or any(sample.value for sample in family.samples), name
    assert "vllm:num_preemptions" not in families


def test_loader_counters_and_cache_facts_are_published():
    service = Service(ServerSettings(served_names=("shown",)))
    model = fake_model(Script())
    counts = {"compilations": 3.0}
    service.become_ready(replace(model, cache={"block_size": "16"}, counters=lambda: counts))
    text = service.metrics.text().decode()
    assert 'vllm:cache_config_info{block_size="16",engine="0"} 1.0' in text
    assert 'fnx:compilations_total{engine="0",model_name="shown"} 3.0' in text
    model.engine.stop()
