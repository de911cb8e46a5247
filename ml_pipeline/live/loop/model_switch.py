"""The switch to another model between two bars."""

from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.live.retraining.model_watch import ReadyModel


def look_for_model(session: RunningSession, *, n_waiting: int) -> None:
    """Switch to another model, if there is one that can decide at the next bar. n_waiting: bars not booked yet."""
    if (ready := session.parts.new_model()) is not None:
        _switch(session, ready, n_waiting=n_waiting)


def _switch(session: RunningSession, ready: ReadyModel[PolicyRunner], *, n_waiting: int) -> None:
    """Let another model decide from now on; its choices are those of the positions held."""
    parts, before = session.parts, session.parts.model
    policy = ready.decider.policy
    parts.decider, parts.clip, parts.window = ready.decider, policy.clip, policy.window
    parts.model, parts.version = str(policy.checkpoint), policy.version
    parts.decider.follow_holdings(parts.books.holdings)
    sentence = f"From the next bars on, {ready.version} decides: {ready.why}"
    with session.record.transaction():
        session.state.awaiting_previous_model = True
        number, checkpoint = session.state.number + n_waiting, str(policy.checkpoint.absolute())
        session.journal.add_model(number, checkpoint, parts.version, ready.why)
        session.state.policy = parts.decider.state()
        values = {"from": before, "to": parts.model, "why": ready.why, "sentence": sentence}
        session.record.log("model", session.state.time, **values)
