"""The two ways in which a command ends early; cli.py turns them into exit codes."""

from __future__ import annotations


class UserError(Exception):
    """The user's input is wrong: exit code 2. One line per problem: what is wrong, where, and what to do."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type[UserError], tuple[str, ...]]:
        """For an error that comes from another process."""
        return type(self), self.problems


class RunError(Exception):
    """The work could not be finished (environment, a NaN, failed cells): exit code 1, one line."""
