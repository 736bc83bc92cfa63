"""The JSON of `shardtui lint`."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from ...engine.analysis.lint import Finding, lint
from ...engine.origins.explanation import Explained, Explanation
from ...engine.wire.descriptions import ArrayInfo
from ...engine.wire.events import Inspection
from ..state import finding_origins
from .inspect_report import all_arrays


class FindingReport(Finding, frozen=True, kw_only=True):
    """A finding, and where to change what it is about."""

    origin: list[str] | None
    """Where the chains of its arrays, and of what its source line computes and moves, end: each rule and line once, by
    the partitioner's passes. Null if the passes failed."""


class LintReport(Struct, frozen=True, kw_only=True):
    """Likely mistakes in the layout of a preset."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    preset: str
    """Name of the preset."""
    findings: list[FindingReport]
    """The findings; empty if there are none."""


def findings(inspection: Inspection) -> list[Finding]:
    """Returns likely mistakes in the layout."""
    return lint(inspection.compiled, inspection.inspected, inspection.flops_per_step)


def lint_report(inspection: Inspection, found: Sequence[Finding], explained: Explained) -> LintReport:
    """Returns the JSON form of findings."""
    explanation, arrays = explained.explanation, all_arrays(inspection)
    return LintReport(
        preset=inspection.compiled.preset, findings=[_finding(each, explanation, arrays) for each in found]
    )


def _finding(found: Finding, explanation: Explanation | None, arrays: Sequence[ArrayInfo]) -> FindingReport:
    ends = explanation and finding_origins.ends(
        found, finding_origins.evidence(found, explanation, arrays), explanation
    )
    return FindingReport(**asdict(found), origin=ends)
