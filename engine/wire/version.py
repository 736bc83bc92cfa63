"""The version of the protocol between engine and viewers."""

VERSION = 5
"""A viewer and an engine of different versions exchange nothing but `Stop`."""
