"""Kinds of instructions, by what they mean for the time of a device."""

CONTAINERS = {"while", "call", "conditional"}
"""Operations whose time is that of the operations in them."""
MOVES = {
    *("copy", "copy-start", "copy-done", "transpose", "concatenate", "slice", "dynamic-slice", "dynamic-update-slice"),
    *("pad", "bitcast", "reshape"),
}
"""What only moves data."""
FORMAL = {"parameter", "constant", "tuple", "get-tuple-element", "opt-barrier"}
"""What takes no time."""
NO_WORK = FORMAL | {"bitcast", "after-all", "partition-id", "replica-id", "recv", "send-done"}
"""What is no operation of a device."""
