"""What the compiler made of an explained program, in words."""

from ...engine.origins.explanation import CompiledProgram


def compiled_bytes(found: CompiledProgram) -> dict[str, int]:
    """Returns the bytes on one device, by what takes them."""
    return {"arguments": found.argument_bytes, "outputs": found.output_bytes, "temporaries": found.temporary_bytes}


def differences(found: CompiledProgram) -> list[str]:
    """Returns where the compiled collectives differ from the estimated ones, a line each, or that they do not."""
    if found.collectives is None:
        return ["its collectives are unknown: it was compiled for another number of devices"]
    return found.differs or ["the compiled program has the collectives that were estimated"]
