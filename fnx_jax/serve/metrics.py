"""Host side: `/metrics` under vLLM's names, so that dashboards made for it draw without edits; ours begin with `fnx:`.

Counts of the engine are read from its status at scrape time; times are observed as emissions arrive. A family that
nothing could move is not published. Read next: client.py (arrivals).
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fnx_jax.engine.prompt_cache.status import CacheStatus
from fnx_jax.engine.records import RoundRecord
from fnx_jax.engine.request import Finish
from fnx_jax.engine.status import EngineStatus
from fnx_jax.serve.client import EngineClient

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
LONG_SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000)
ROUND_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
REPLIES = (1, 2, 5, 10, 20)
LABELS = ("model_name", "engine")

HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": ("Seconds from a request's arrival to its first token.", SECONDS),
    "vllm:inter_token_latency_seconds": ("Seconds between tokens of a reply.", SECONDS),
    "vllm:time_per_output_token_seconds": ("The same under its older name.", SECONDS),
    "vllm:e2e_request_latency_seconds": ("Seconds from arrival to the last token.", LONG_SECONDS),
    "vllm:request_queue_time_seconds": ("Seconds spent waiting for a lane.", LONG_SECONDS),
    "vllm:request_prefill_time_seconds": ("Seconds spent filling the prompt.", LONG_SECONDS),
    "vllm:request_decode_time_seconds": ("Seconds spent decoding.", LONG_SECONDS),
    "vllm:request_inference_time_seconds": ("Seconds from a lane to the last token.", LONG_SECONDS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", TOKENS),
    "vllm:request_generation_tokens": ("Reply tokens of a request.", TOKENS),
    "vllm:request_params_n": ("Replies asked for.", REPLIES),
    "vllm:request_params_max_tokens": ("Reply limit of a request.", TOKENS),
    "vllm:iteration_tokens_total": ("Rows of a round.", ROUND_TOKENS),
}


class Metrics:
    """One server's metrics, in a registry of its own.

    The histograms carry the model's name, so nothing is counted before `watch` is called with it.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._histograms: dict[str, Histogram] = {}

    def watch(
        self,
        model_name: str,
        engine: EngineClient,
        cache: Mapping[str, str],
        counters: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Starts to publish an engine.

        Args:
          cache: label values of `vllm:cache_config_info`. counters: name to running total, published as `fnx:name`.
        """
        labels = {"model_name": model_name, "engine": "0"}
        for name, (says, buckets) in HISTOGRAMS.items():
            family = Histogram(name, says, LABELS, registry=self._registry, buckets=buckets)
            self._histograms[name] = family.labels(**labels)
        self._registry.register(_EngineCollector(engine, labels, cache, counters))

    def observe(self, name: str, value: float) -> None:
        """Adds one value to a histogram, by its full name."""
        if name in self._histograms:
            self._histograms[name].observe(value)

    def note_round(self, record: RoundRecord) -> None:
        """Counts a round; fit to be an engine's `on_record`."""
        self.observe("vllm:iteration_tokens_total", record.rows)

    def note_tokens(self, gap_s: float, count: int) -> None:
        """Spreads the seconds between two emissions over the tokens of the second."""
        for _ in range(count):
            self.observe("vllm:inter_token_latency_seconds", gap_s / count)
            self.observe("vllm:time_per_output_token_seconds", gap_s / count)

    def note_finish(self, finish: Finish, seconds: float, prompt: int, reply: int, most: int) -> None:
        """Counts an ended reply. Args: seconds: since arrival. prompt, reply: tokens. most: its reply limit."""
        timing = finish.timing
        self.observe("vllm:e2e_request_latency_seconds", seconds)
        self.observe("vllm:request_queue_time_seconds", timing.queue_s)
        self.observe("vllm:request_prefill_time_seconds", timing.prefill_s)
        self.observe("vllm:request_decode_time_seconds", timing.decode_s)
        self.observe("vllm:request_inference_time_seconds", timing.prefill_s + timing.decode_s)
        self.observe("vllm:request_prompt_tokens", prompt)
        self.observe("vllm:request_generation_tokens", reply)
        self.observe("vllm:request_params_max_tokens", most)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's status when scraped; takes no lock of the engine's."""

    def __init__(
        self,
        engine: EngineClient,
        labels: Mapping[str, str],
        cache: Mapping[str, str],
        counters: Callable[[], Mapping[str, float]],
    ):
        self._engine, self._labels, self._cache, self._counters = engine, labels, cache, counters

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        status = self._engine.status()
        yield self._gauge("vllm:num_requests_running", "Requests with a lane.", status.running + status.filling)
        yield self._gauge("vllm:num_requests_waiting", "Requests without a lane.", status.waiting)
        used = status.pages_used / max(status.pages, 1)
        if status.cache.slots:
            yield self._gauge("fnx:kept_states", "Kept states of prompts.", status.cache.kept)
            yield self._gauge("fnx:kept_states_on_host", "Those in the host's memory.", status.cache.away)
            yield self._gauge("fnx:kept_bytes_on_host", "Bytes of these.", status.cache.away_bytes)
            if (disk := status.cache.disk) is not None:
                yield self._gauge("fnx:kept_states_on_disk", "Those in files.", disk.kept)
                yield self._gauge("fnx:kept_bytes_on_disk", "Bytes of these files.", disk.nbytes)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the cache's pages in use, 0 to 1.", used)
        if self._cache:
            info = GaugeMetricFamily("vllm:cache_config_info", "The cache.", labels=["engine", *self._cache])
            info.add_metric(["0", *self._cache.values()], 1)
            yield info
        yield from self._totals(status)

    def _totals(self, status: EngineStatus) -> Iterable[Metric]:
        for name, says, value in (
            ("vllm:prompt_tokens", "Prompt tokens run.", status.prompt_tokens),
            ("vllm:generation_tokens", "Reply tokens made.", status.generation_tokens),
            ("fnx:rounds", "Rounds run.", status.rounds),
            *(_cache_totals(status.cache) if status.cache.slots else ()),
            *((f"fnx:{name}", f"{name} so far.", value) for name, value in self._counters().items()),
        ):
            family = CounterMetricFamily(name, says, labels=LABELS)
            family.add_metric(list(self._labels.values()), value)
            yield family
        if status.drafted:
            yield from self._drafts(status)
        ended = CounterMetricFamily("vllm:request_success", "Ended requests.", labels=(*LABELS, "finished_reason"))
        for reason, count in status.finished.items():
            ended.add_metric([*self._labels.values(), reason], count)
        yield ended

    def _drafts(self, status: EngineStatus) -> Iterable[Metric]:
        for name, says, value in (
            ("drafts", "Windows that tested drafts.", status.draft_windows),
            ("draft_tokens", "Drafts tested.", sum(status.drafted)),
            ("accepted_tokens", "Drafts that became tokens.", sum(status.accepted)),
        ):
            family = CounterMetricFamily(f"vllm:spec_decode_num_{name}", says, labels=LABELS)
            family.add_metric(list(self._labels.values()), value)
            yield family
        name, says = "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted drafts by their place in the window."
        by_place = CounterMetricFamily(name, says, labels=(*LABELS, "position"))
        for place, accepted in enumerate(status.accepted):
            by_place.add_metric([*self._labels.values(), str(place)], accepted)
        yield by_place

    def _gauge(self, name: str, says: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, says, labels=LABELS)
        family.add_metric(list(self._labels.values()), value)
        return family


def _cache_totals(cache: CacheStatus) -> Iterable[tuple[str, str, float]]:
    """Counters of kept states."""
    yield "vllm:prompt_tokens_cached", "Prompt tokens that were not run, their state having been kept.", cache.hits
    yield "vllm:prefix_cache_queries", "Prompt tokens that were looked up among kept states.", cache.queries
    yield "vllm:prefix_cache_hits", "Those that were found.", cache.hits
    yield "fnx:prompts_resumed", "Prompts that began behind a kept state.", cache.resumed
    yield "fnx:states_saved", "States of prompts kept.", cache.saved
    yield "fnx:states_evicted", "Kept states let go for want of room.", cache.evicted
    yield "fnx:states_returned", "Kept states that came back from the host's memory.", cache.returned
    yield "fnx:reuse_failed", "States that could not be kept or restored.", cache.failed
    if cache.disk is not None:
        yield "fnx:states_written", "Kept states written to files.", cache.disk.written
        yield "fnx:states_read", "Kept states that came back from files.", cache.disk.read
        yield "fnx:state_files_lost", "States that could not be written to a file or read from one.", cache.disk.lost
