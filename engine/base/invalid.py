"""The error for an invalid request of the user."""


class Invalid(Exception):
    """A request of the user is invalid: an option, a preset, a file."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        """What is wrong and what to do about it, one line per problem."""
