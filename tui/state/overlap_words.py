"""How much of the traffic is overlapped with computation, as text."""

from collections.abc import Sequence

from ...engine.analysis.traffic import Flow, overlapped_share
from ...engine.base import figures


def overlap_words(flows: Sequence[Flow]) -> str:
    """Returns a share such as `36 % overlapped with computation`; empty if unknown or nothing is sent."""
    share = overlapped_share(flows)
    if share is None:
        return ""
    return f"{figures.percent(share) if share else 'none'} overlapped with computation"
