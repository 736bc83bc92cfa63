"""The version of the wire."""

VERSION = 2
"""Of the messages. A viewer and an engine of two versions do not talk, but for `Stop`."""
