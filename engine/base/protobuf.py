"""Messages of protocol buffers, declared in Python. protobuf comes with orbax and grain."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Messages = Mapping[str, Sequence[str]]
"""Message to its fields: type (with `*` if repeated), name, number. Fields that are not declared are skipped."""


def message_class(package: str, messages: Messages, name: str) -> type[Any]:
    """Returns the class of message `name`. A type of a field is a scalar one, or another of `messages`."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for each, fields in messages.items():
        message = file.message_type.add(name=each)
        for text in fields:
            _add_field(message, package, messages, *text.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def _add_field(
    message: descriptor_pb2.DescriptorProto, package: str, messages: Messages, kind: str, name: str, number: str
) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    label = types.LABEL_REPEATED if kind.endswith("*") else types.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if (bare := kind.rstrip("*")) in messages:
        field.type, field.type_name = types.TYPE_MESSAGE, f".{package}.{bare}"
    else:
        field.type = types.Type.Value(f"TYPE_{bare.upper()}")
