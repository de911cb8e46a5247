"""A session of paper trading, to be called from Python: its folder, its parts, its start, its loop and its end."""

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.live.alerting.alerts import open_alerts
from ml_pipeline.live.brokers.broker import Broker
from ml_pipeline.live.config import PaperTradeConfig
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy, model_name
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.loop.broker_line import StopWhileWaiting, patiently
from ml_pipeline.live.loop.parts import Ending, Parts
from ml_pipeline.live.loop.trading_loop import TradingLoop
from ml_pipeline.live.model_changes import ModelChanges, SessionMarket, earlier_starts, keep_costs, model_to_begin_with
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.recovery import (
    begin_account,
    check_first_account,
    check_same_session,
    initial_cash,
    note_model,
    periods_per_year,
    reconcile_at_start,
    restore,
)
from ml_pipeline.live.retraining.model_updates import UpdatedSession
from ml_pipeline.live.retraining.retrainer import RetrainEvent
from ml_pipeline.live.session_files import JOURNAL_FILE, REPORT_FILE, root_of_sessions
from ml_pipeline.live.session_parts import last_month, loop_settings, make_parts, make_record, start_event, warm_up
from ml_pipeline.live.session_report import write_session_report
from ml_pipeline.live.session_sources import Ask, check_long_enough, open_broker, open_feed
from ml_pipeline.live.state import SessionState
from ml_pipeline.live.supervision.heartbeat import Heartbeat
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.trading.accounts.rules import TradingRules

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SessionResult:
    """How a session ended, and the folder of its files.

    asked: whether a person, or the end of the bars, ended it; otherwise a guard or a difference did. table: the figures
    of its report; None where there is none.
    """

    folder: Path
    status: Literal["finished", "stopped", "failed"]
    reason: str
    flat: bool | None
    asked: bool
    table: str | None


class PaperTrading:
    """One session: `run` trades until the bars end, or somebody asks for an end; called again, it goes on.

    stop: may be requested by anyone, at any time. say: told one sentence for each thing that a person should see, and
    at the start all that is noticed about the bars, one sentence a line.
    ask: asks a person on a terminal, which real money needs; None: there is nobody.
    """

    def __init__(
        self,
        config: PaperTradeConfig,
        *,
        stop: StopRequest | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        ask: Ask | None = None,
        package_version: str | None = None,
    ) -> None:
        """package_version: for what is trained meanwhile. Raises UserError where the model cannot be used."""
        self.config = config
        self.stop = stop or StopRequest()
        self._say, self._ask, self._package_version = say, ask, package_version
        changes: dict[str, Any] = dict(config.changes)
        if config.feed.replay is not None:
            changes["data"] = config.feed.replay
        self._changes = changes
        self._is_this_session = False  # known once its feed and its journal are open
        name = config.session.name or model_name(find_policy(config.model))
        self.folder = root_of_sessions(config.session.root) / name
        earlier = earlier_starts(self.folder)
        begins_with = model_to_begin_with(
            config.retraining, named=config.model, folder=self.folder, traded_last=earlier.traded_last
        )
        self.policy = load_deployed_policy(begins_with, {**earlier.costs, **changes})

    def _updated(self) -> UpdatedSession:
        return UpdatedSession(
            folder=self.folder,
            name=self.folder.name,
            named=self.config.model,
            checkpoint=self.policy.checkpoint,
            trading=self.policy.config,
            package_version=self._package_version,
        )

    def run(self) -> SessionResult:
        """Trade. Raises UserError where the session cannot begin or go on, and AccountDiffers where the account at the
        broker is not the one in its books."""
        exists = (self.folder / JOURNAL_FILE).is_file()
        claim = FolderClaim(self.folder)
        status: Literal["finished", "stopped", "failed"] = "failed"
        reason: str | None = None
        bars = 0
        try:
            with ExitStack() as stack:
                ending, table, bars = self._traded(stack)
                status, reason = ending.status, ending.reason
        except BaseException as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            if exists and not self._is_this_session:  # a start by mistake
                claim.abandon()
            else:
                claim.end(status, reason, global_step=bars, iterations=bars, best_score=None)
            claim.release()
        return SessionResult(self.folder, ending.status, ending.reason, ending.flat, ending.asked, table)

    def _traded(self, stack: ExitStack) -> tuple[Ending, str | None, int]:
        config, policy = self.config, self.policy
        feed = stack.enter_context(closing(open_feed(config, policy)))
        replays = config.feed.replay is not None
        journal = stack.enter_context(closing(Journal(self.folder / JOURNAL_FILE, durable=not replays)))
        check_same_session(journal, self.folder, feed, broker=config.broker)
        self._is_this_session = True
        keep_costs(journal, policy)
        state = SessionState.load(journal, feed.symbols)
        heartbeat = stack.enter_context(Heartbeat(self.folder))
        alerts = stack.enter_context(open_alerts(config.alerts, self.folder.name))
        self._say("\n".join((*policy.notices_on(feed.symbols), *feed.notices)))
        try:
            broker, rules = self._broker(journal, state, feed, stack, heartbeat)
            record = make_record(self.folder, journal, state, feed, rules, say=self._say, tell=alerts.tell)
            stack.callback(record.close)
            sessions = self._patiently(partial(last_month, broker), heartbeat)
            parts = make_parts(
                config,
                policy,
                folder=self.folder,
                journal=journal,
                state=state,
                feed=feed,
                broker=broker,
                rules=rules,
                sessions=sessions,
            )
            parts.undelivered = alerts.take_failures
            is_first = state.last is None
            restore(parts, record, same_model=note_model(record, policy))
            if is_first:
                warm_up(parts, record)
            desk = OrderManager(broker, record, feed.symbols)
            settings = loop_settings(config, journal)
            models = stack.enter_context(closing(self._models(feed, parts, record, heartbeat)))
            parts.new_model, parts.retraining = models, models.status
            loop = TradingLoop(parts, record, desk, settings, self.stop, beat=heartbeat.beat)
            with record.transaction():
                record.log("start", None, **start_event(config, policy, broker, feed))
            if not is_first:

                def go_on() -> bool:
                    heartbeat.beat()
                    return not self.stop.requested

                self._patiently(partial(reconcile_at_start, parts, record, desk, settings, go_on), heartbeat)
            ending = _ending_of(loop, record)
            if config.feed.replay is not None and ending.status == "finished" and journal.first_account_bar() is None:
                try:
                    check_long_enough(config.feed.replay, policy)
                except UserError as error:  # no failure: a recording that grows goes on here
                    ending = ending._replace(reason=f"{ending.reason} {error}")
        except StopWhileWaiting:
            ending = Ending("stopped", self.stop.reason or "A stop was requested.", None)
            return ending, None, journal.n_bars()
        return ending, self._report(journal, feed, rules), journal.n_bars()

    def _report(self, journal: Journal, feed: Feed, rules: TradingRules) -> str | None:
        """Write report.html, and return its table; a session has traded even where the page fails."""
        calendar = self.policy.calendar(feed.calendar)
        try:
            return write_session_report(
                self.folder, journal, self.policy, rules, symbols=feed.symbols, timing=feed.timing, calendar=calendar
            )
        except UserError as error:
            self._say(f"There is no {REPORT_FILE}: {error}")
            return None

    def _models(self, feed: Feed, parts: Parts, record: SessionRecord, heartbeat: Heartbeat) -> ModelChanges:
        """What looks for another model between two bars."""

        def log(event: RetrainEvent) -> None:
            record.log_now("retrain", None, **event.as_json())

        def tell(sentence: str) -> None:
            record.log_now("alert", None, sentence=sentence)

        def stopping() -> bool:
            heartbeat.beat()  # a replay that waits for a retraining does not hang
            return self.stop.requested

        market = SessionMarket(symbols=feed.symbols, timing=feed.timing, calendar=feed.calendar)
        return ModelChanges(
            self.config.retraining,
            self._updated(),
            market,
            parts.decider,
            changes=self._changes,
            tell=tell,
            log=log,
            stopping=stopping,
        )

    def _patiently(self, ask: Callable[[], Answer], heartbeat: Heartbeat) -> Answer:
        return patiently(ask, self.stop, self._say, beat=heartbeat.beat)

    def _broker(
        self, journal: Journal, state: SessionState, feed: Feed, stack: ExitStack, heartbeat: Heartbeat
    ) -> tuple[Broker, TradingRules]:
        """The broker, and the rules with the money that the account began with."""
        config, rules = self.config, self.policy.rules
        per_year = periods_per_year(journal, self.policy, feed)
        open_it = partial(
            open_broker, config, feed, rules, folder=self.folder, periods_per_year=per_year, ask=self._ask
        )
        broker = self._patiently(open_it, heartbeat)
        stack.callback(broker.close)
        if (cash := initial_cash(journal)) is None:
            account = self._patiently(broker.account, heartbeat)
            if not config.session.take_over:
                check_first_account(account, broker=broker.name)
            _, cursor = self._patiently(lambda: broker.poll(None), heartbeat)
            cash = begin_account(journal, state, account, cursor)
        return broker, replace(rules, initial_cash=cash)


def _ending_of(loop: TradingLoop, record: SessionRecord) -> Ending:
    """Let the loop run; where it fails, the log says so."""
    try:
        return loop.run()
    except Exception as error:
        with suppress(Exception):  # the first error counts
            why = f"The session failed: {in_one_line(str(error) or type(error).__name__)}"
            record.log_now("stop", None, why=why, flat=None, sentence=why)
        raise
