"""Metrics of a worker, with the names that `nestling serve` uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import nestling

REASONS = ("stop", "length", "cancelled", "error")


class WorkerMetrics(Collector):
    """Counters of finished requests, and the state of the model when it is scraped."""

    def __init__(self, status: Callable[[], nestling.Status], level: int | None) -> None:
        self.registry = CollectorRegistry()
        self._status = status
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._completions: Counter[str] = Counter()
        # Bits; 0 until a request has finished if the model was opened with all of its planes.
        self._level = float(level or 0)
        self.registry.register(self)

    def finished(self, finished: nestling.Finished) -> None:
        """Counts a request that ended, cancelled ones included."""
        usage = finished.usage
        self._prompt_tokens += usage.prompt_tokens
        self._cached_tokens += usage.cached_tokens
        self._generation_tokens += usage.completion_tokens
        self._completions["length" if finished.reason == "context_full" else finished.reason] += 1
        if finished.stats.mean_level is not None:
            self._level = finished.stats.mean_level

    def failed(self) -> None:
        """Counts a request that ended with an error."""
        self._completions["error"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics. Called by the registry on a scrape."""
        for name, text, value in (
            ("prompt_tokens", "Tokens of prompts.", self._prompt_tokens),
            ("prompt_tokens_cached", "Tokens of prompts that were not computed again.", self._cached_tokens),
            ("generation_tokens", "Tokens generated.", self._generation_tokens),
        ):
            yield CounterMetricFamily(f"nestling_{name}", text, value=value)
        completions = CounterMetricFamily("nestling_completions", "Answers by why they ended.", labels=["reason"])
        for reason in REASONS:
            completions.add_metric([reason], self._completions[reason])
        yield completions
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        try:
            status = self._status()
        except nestling.NestlingError:
            # The model is being opened or was closed.
            return
        used = status.pages_total - status.pages_free
        for name, text, value in (
            ("requests_running", "Requests being computed.", status.running),
            ("requests_waiting", "Requests waiting for memory.", status.waiting),
            ("kv_cache_usage_ratio", "Share of KV pages in use.", used / max(status.pages_total, 1)),
            ("memory_used_bytes", "Bytes of the memory budget in use.", status.memory_used),
            ("memory_budget_bytes", "Memory budget in bytes; +Inf is no limit.", _limit(status.memory_budget)),
            ("weight_bytes", "Bytes of weights.", status.weight_bytes),
            ("level_bits", "Mean bits of the weights that the last request computed with.", self._level),
        ):
            yield GaugeMetricFamily(f"nestling_{name}", text, value=value)
        pages = GaugeMetricFamily("nestling_kv_pages", "Pages of the KV cache by state.", labels=["state"])
        pages.add_metric(["used"], used)
        pages.add_metric(["free"], status.pages_free)
        yield pages


def _limit(budget: int | None) -> float:
    return float("inf") if budget is None else budget
