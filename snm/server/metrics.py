"""Figures of the server for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The figures of one server; two servers in a process have their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = Counter(
            "snm_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "snm_request_seconds", "From the first byte of a request to the last of its answer.", ["path"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.answering = Gauge("snm_requests_in_progress", "Requests that are being answered.", registry=self.registry)

    def text(self) -> bytes:
        found: bytes = generate_latest(self.registry)
        return found
