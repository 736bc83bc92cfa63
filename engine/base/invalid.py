"""What the user asked for and cannot have."""


class Invalid(Exception):
    """The user asked for something that cannot be. `problems`: one line each, what is wrong, then a way out."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
