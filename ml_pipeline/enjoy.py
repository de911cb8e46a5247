"""Command: run a trained policy in its environment, and show or record it.

ml-pipeline enjoy checkpoints/RUN
ml-pipeline enjoy checkpoints/RUN --video out.mp4
ml-pipeline enjoy checkpoints/RUN --render human --episodes 10
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.wording import counted
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import parse_enjoy

PROG = "enjoy"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the return and the length of each episode; return 0.

    Exits with one sentence: code 2 if the input is invalid, 128 + the number of the signal that ended it.
    """
    with entry(prog):
        config = parse_enjoy(argv, prog=prog, description=COMMANDS["enjoy"].sentence)

        from ml_pipeline.runs.trained.enjoy import Played, play

        def show(played: Played) -> None:
            print(
                f"Episode {played.episode}: return {played.episode_return:,.4g}, {counted(played.length, 'step')}",
                flush=True,
            )

        result = play(config, on_episode=show)
        print(result.policy)
        if config.video is not None and result.n_frames:
            print(f"Written to {config.video}: {result.n_frames:,} frames")
        if result.interrupted is not None:
            raise result.interrupted
    return 0
