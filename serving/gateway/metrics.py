"""What a gateway process counts, for Prometheus: by policy, version and arm, never by user. `admin` shows it."""

from collections.abc import Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from ingest.contracts.turn import Turn

M = TypeVar("M", bound=MetricWrapperBase)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The counters of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple, Any] = {}
        self._requests = Counter(
            "everloop_requests_total", "Answers by HTTP status.", ("path", "status"), registry=self.registry
        )
        self._refused = Counter(
            "everloop_refused_heads_total",
            "Refused before any path took it: heads that are no HTTP, too large or too slow; bad chunks; connections "
            "above what open files allow.",
            ("code",),
            registry=self.registry,
        )
        labels = ("policy", "version", "arm")
        self._turns = Counter(
            "everloop_turns_total", "Turns by how they ended.", (*labels, "finish"), registry=self.registry
        )
        self._prompt = Counter("everloop_prompt_tokens_total", "Prompt tokens.", labels, registry=self.registry)
        self._output = Counter("everloop_output_tokens_total", "Sampled tokens.", labels, registry=self.registry)
        self._first = Histogram(
            "everloop_first_token_seconds",
            "From the request to its first token.",
            labels,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._made = Counter("everloop_captures_total", "Turns committed to the spool.", labels, registry=self.registry)
        self._lost = Counter(
            "everloop_captures_lost_total",
            "Turns whose record or commit was lost; without a record the version is not known.",
            (*labels, "reason"),
            registry=self.registry,
        )
        self._untrainable = Counter(
            "everloop_untrainable_total",
            "Turns that cannot be trained on, by reason.",
            ("policy", "reason"),
            registry=self.registry,
        )
        self._dropped = Counter(
            "everloop_unknown_fields_total", "Request fields that were left out.", ("dialect",), registry=self.registry
        )
        self._retried = Counter(
            "everloop_engine_retries_total",
            "Requests asked again on another engine.",
            ("policy",),
            registry=self.registry,
        )
        self._feedback = Counter("everloop_feedback_total", "Feedback accepted.", ("kind",), registry=self.registry)
        self.spool_depth = Gauge(
            "everloop_spool_bytes", "Bytes in all the spools, as this worker counted last.", registry=self.registry
        )
        self.spool_refused = Gauge(
            "everloop_spool_refused_events",
            "Events on this machine that the broker refused and that wait to be sent again.",
            registry=self.registry,
        )
        self.spool_lost = Gauge(
            "everloop_spool_lost_rows", "Rows of this machine's spools lost to damage.", registry=self.registry
        )
        self.revision = Gauge(
            "everloop_snapshot_revision", "Control's revision that this worker goes by.", registry=self.registry
        )
        self.workers = Gauge(
            "everloop_workers", "Workers of all gateways, which share each key's limits.", registry=self.registry
        )
        self.in_flight = Gauge("everloop_turns_in_progress", "Turns in progress.", registry=self.registry)
        self.bodies = Gauge(
            "everloop_body_bytes", "Bytes reserved for the bodies of requests in progress.", registry=self.registry
        )

    def _of(self, metric: M, *labels: str) -> M:
        """`metric.labels(…)`, remembered: six of them took a twentieth of a turn's time."""
        found = self._children.get((metric, *labels))
        if found is None:
            found = self._children[metric, *labels] = metric.labels(*labels)
        return found

    def answered(self, path: str, status: int) -> None:
        """One HTTP answer. `path` is a route, never what a caller made up."""
        self._of(self._requests, path, str(status)).inc()

    def refused(self, code: str) -> None:
        """A request that HTTP's parser refused, or whose head came too late or was too large."""
        self._of(self._refused, code).inc()

    def captured(self, turns: list[Turn], version: str) -> None:
        """Turns that are on the spool now. `version` is the one that most of them, or all, come from."""
        for turn in turns:
            labels = (turn.policy, version, turn.arm)
            self._of(self._turns, *labels, str(turn.finish)).inc()
            self._of(self._output, *labels).inc(len(turn.output_ids) // 4)
            if turn.untrainable_reason is not None:
                self.untrainable(turn.policy, turn.untrainable_reason)
        first = turns[0]
        labels = (first.policy, version, first.arm)
        self._of(self._prompt, *labels).inc(len(first.prompt_ids) // 4)
        if first.first_token_at is not None:
            self._of(self._first, *labels).observe(max(0.0, first.first_token_at - first.started_at))
        self._of(self._made, *labels).inc(len(turns))

    def untrainable(self, policy: str, reason: str) -> None:
        """A turn that cannot be trained on."""
        self._of(self._untrainable, policy, reason).inc()

    def lost(self, turns: Sequence[Turn], reason: str) -> None:
        """Turns whose record (`no_record`) or commit (`spool_full`, `commit_timeout`, …) was lost."""
        version = next((span.version for turn in turns for span in turn.weight_versions), "")
        self._of(self._lost, turns[0].policy, version, turns[0].arm, reason).inc(len(turns))

    def dropped(self, dialect: str, fields: int) -> None:
        """Unknown request fields that were left out."""
        self._of(self._dropped, dialect).inc(fields)

    def retried(self, policy: str) -> None:
        """A request was asked again, of another engine."""
        self._of(self._retried, policy).inc()

    def feedback(self, kind: str) -> None:
        """One signal accepted."""
        self._of(self._feedback, kind).inc()
