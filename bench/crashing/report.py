"""The report of a run, for machines and for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.crashing.judge import Verdict

# How many lines of a kind the short form shows.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Report:
    """`plan`: how the run was started. `beside`: findings that the verdict does not know of.
    `figures`: what else is worth telling."""

    plan: Mapping[str, Any]
    verdict: Verdict
    beside: Mapping[str, Sequence[str]]
    faults: Mapping[str, int]
    answers: Mapping[str, int]
    figures: Mapping[str, float]

    @property
    def findings(self) -> Mapping[str, Sequence[str]]:
        """All that must be empty."""
        return {**self.verdict.findings, **self.beside}

    @property
    def clean(self) -> bool:
        return not any(self.findings.values())

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        verdict = self.verdict
        return {
            "clean": self.clean,
            "plan": dict(self.plan),
            "sent": verdict.sent,
            "acknowledged": verdict.acknowledged,
            "deliveries": verdict.expected,
            "delivered": verdict.delivered,
            "delivered_more_than_once": dict(verdict.repeats),
            "dead": dict(verdict.dead),
            "slowest_seconds": round(verdict.slowest, 1),
            "findings": {name: list(lines) for name, lines in self.findings.items()},
            "faults": dict(self.faults),
            "answers": dict(self.answers),
            **self.figures,
        }

    def as_text(self) -> str:
        """A short form."""
        verdict = self.verdict
        rows = [
            ("plan", _pairs(self.plan)),
            ("faults", _pairs(self.faults)),
            ("updates", f"{verdict.sent} sent, {verdict.acknowledged} acknowledged"),
            ("answers", _pairs(self.answers)),
            ("deliveries", f"{verdict.expected} expected, {verdict.delivered} delivered"),
            ("more than once", _pairs(verdict.repeats)),
            ("dead", _pairs(verdict.dead)),
            ("slowest", f"{verdict.slowest:.1f} s"),
            *((name, f"{value:g}") for name, value in self.figures.items()),
            *((name, str(len(lines))) for name, lines in self.findings.items()),
        ]
        text = [f"{name:<22} {value}" for name, value in rows]
        for name, lines in self.findings.items():
            text += [f"  {name}: {line}" for line in lines[:SHOWN]]
        return "\n".join(text)


def _pairs(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(found.items())) or "none"
