"""Reads the programs that a trace contains, as HLO text."""

from .trace import Trace
from .xspace import MODULE, Plane


def read_programs(plane: Plane, trace: Trace) -> None:
    """Adds the text of each program in the plane `/host:metadata`."""
    for id, stats in plane.event_stats.items():
        named = MODULE.match(plane.event_names[id])
        if named and (proto := stats.get("Hlo Proto")):
            trace.program(named[2], named[1]).text = hlo_text(proto)


def hlo_text(proto: bytes) -> str:
    """Returns the text of a serialized `HloProto`; empty if it is not valid."""
    from jaxlib.xla_client import hlo  # type: ignore[attr-defined] # jax has no public way to a text

    options = hlo.HloPrintOptions()
    options.print_metadata = True
    try:
        return hlo.XlaComputation(_first_field(proto)).get_hlo_module().to_string(options)
    except Exception:  # jax raises its own type, or one of the protobuf library
        return ""


def _first_field(proto: bytes) -> bytes:
    """The first field of an `HloProto`, its module: a tag, the length as a varint, the content."""
    length, at, shift = 0, 1, 0
    while at < len(proto):
        length |= (proto[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if proto[at - 1] < 0x80:
            break
    return proto[at : at + length]
