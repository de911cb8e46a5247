"""What the page can do to a run where a service serves it."""

from typing import Literal, Protocol


class Controls(Protocol):
    """Stops, resumes and scales runs, which are named by their folders.

    Each may raise UserError, whose sentence the page shows. Called from threads of the server, several at once.
    """

    def stop(self, run: str) -> object:
        """Ask a run to save and end; take one that is queued out of the queue."""

    def resume(self, run: str, *, total_timesteps: int | None = None) -> object:
        """Let a run that has ended go on from its checkpoint; False where it has none, and begins anew.

        total_timesteps: up to which one that has finished goes on.
        """

    def scale(
        self, run: str, *, n_workers: int | Literal["auto", "dynamic"] | None = None, n_envs: int | None = None
    ) -> object:
        """Ask a run for other numbers of workers or environments, from its next iteration on; None keeps one."""
