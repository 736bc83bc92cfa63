"""A list of findings, each group under the heading of its code."""

from collections.abc import Sequence

from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.finding import RULES, Finding
from .choices import Choices


class FindingList(Choices):
    """Findings with their code, what was found, the fix and the source line."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: dict[str, Finding] = {}
        """By option id."""

    def show_findings(self, findings: Sequence[Finding], nothing: Sequence[Content]) -> None:
        """Lists the findings. `nothing`: the rows to show if there are none."""
        self.findings = {}
        rows = {} if findings else {str(at): line for at, line in enumerate(nothing)}
        for group in grouped(findings):
            rows[group[0].code] = heading(group)
            for found in group:
                id = str(len(self.findings))
                self.findings[id], rows[id] = found, finding_content(found)
        self.show_rows(rows, rows.keys() - self.findings.keys())
        self.action_first()

    @property
    def highlighted_finding(self) -> Finding | None:
        return self.findings.get(self.highlighted_id or "")


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Returns the findings of each code; groups and findings with the most bytes per device first."""
    by_code: dict[str, list[Finding]] = {}
    for found in sorted(findings, key=lambda found: -found.bytes_per_device):
        by_code.setdefault(found.code, []).append(found)
    return sorted(by_code.values(), key=lambda group: -sum(found.bytes_per_device for found in group))


def heading(group: Sequence[Finding]) -> Content:
    """Returns the heading of a code: its name, what it means, and the bytes of its findings."""
    first, cost = group[0], sum(found.bytes_per_device for found in group)
    count = f" · {len(group)} findings" if len(group) > 1 else ""
    size = f" · {formatting.size(cost)} per device" if cost and len(group) > 1 else ""
    return Content.assemble(
        (f"{first.code} {first.name}", "bold $warning"), (f"  {RULES[first.code][1]}{count}{size}", "$text-muted")
    )


def finding_content(finding: Finding) -> Content:
    lines = [Content(f"  {finding.message}"), Content.styled(f"  → {finding.fix}", "$success")]
    if finding.source:
        lines.append(Content.styled(f"  {finding.source}", "$text-muted"))
    return Content("\n").join([*lines, Content()])
