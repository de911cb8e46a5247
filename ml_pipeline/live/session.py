"""A session of paper trading: opened, run and reported. This is its Python interface."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.live.account_claim import claim_account
from ml_pipeline.live.alerting.alerts import Alerts, open_alerts
from ml_pipeline.live.alpaca.config import check_terminal
from ml_pipeline.live.brokers.broker import Broker, QuantityRules, TradingSession
from ml_pipeline.live.clocks import Clocks
from ml_pipeline.live.components import EngineSettings, SessionComponents
from ml_pipeline.live.config import PaperTradeConfig
from ml_pipeline.live.connections import (
    Ask,
    BrokerConnection,
    Patience,
    StillUnreachable,
    StopWhileWaiting,
    check_long_enough,
    open_broker,
    open_feed,
    retry_until_available,
    still_unreachable,
)
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy, load_deployed_policy, model_name
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.engine import TradingEngine
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.feeds.hours import SessionTimes
from ml_pipeline.live.model_changes import earlier_starts, keep_costs, model_to_begin_with, runner_loader
from ml_pipeline.live.orders import OrderManager, client_order_id
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.protection import Protector
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
    warm_up,
)
from ml_pipeline.live.report import write_session_report
from ml_pipeline.live.retraining.model_updates import ModelUpdates
from ml_pipeline.live.retraining.retrainer import RetrainedSession, RetrainEvent
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.live.session_files import JOURNAL_FILE, REPORT_FILE, root_of_sessions
from ml_pipeline.live.shutdown import Ended
from ml_pipeline.live.state import SessionState
from ml_pipeline.live.supervision.dead_mans_switch import DeadMansSwitch
from ml_pipeline.live.supervision.heartbeat import Heartbeat
from ml_pipeline.live.supervision.requests import Requests, leave_request
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.runtime.database_file import disk_failed
from ml_pipeline.trading.accounts.rules import TradingRules

Answer = TypeVar("Answer")
_MONTH = np.timedelta64(31, "D")


@dataclass(frozen=True)
class SessionResult:
    """How a session ended, and the folder of its files.

    asked: whether a user or the end of the bars ended it; otherwise a guard or a difference did. table: the figures of
    its report; None if there is no report. again: a restart may succeed, because what ended it may pass.
    """

    folder: Path
    status: Literal["finished", "stopped", "failed"]
    reason: str
    flat: bool | None
    asked: bool
    table: str | None
    again: bool = False


class PaperTrading:
    """One session: `run` trades until the bars end or a stop is requested. Call it again to continue.

    feed, broker: replace those of the settings; the session closes them when it ends.
    stop: may be requested from any thread at any time. say: called with each message for the user, and at the start
    with all notices about the bars, one per line.
    ask: asks the user a question on a terminal, which real money needs; None: there is no terminal.
    """

    def __init__(
        self,
        config: PaperTradeConfig,
        *,
        feed: Feed | None = None,
        broker: Broker | None = None,
        stop: StopRequest | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        ask: Ask | None = None,
        package_version: str | None = None,
    ) -> None:
        """package_version: recorded in retrained models. Raises UserError if the model cannot be used."""
        self.config = config
        self.stop = stop or StopRequest()
        self._feed, self._broker = feed, broker
        self._say, self._ask, self._package_version = say, ask, package_version
        changes: dict[str, Any] = dict(config.changes)
        if config.feed.replay is not None:
            changes["data"] = config.feed.replay
        self._changes = changes
        self._is_this_session = False  # known when its feed and its journal are open
        if config.broker == "alpaca" and broker is None:
            check_terminal(config.alpaca, ask)
        name = config.session.name or model_name(find_policy(config.model))
        self.folder = root_of_sessions(config.session.root) / name
        self._state: SessionState | None = None
        self._has_traded = (self.folder / JOURNAL_FILE).is_file()
        self._typed: str | None = None  # the account number that confirmed real money
        self._opens_again = feed is None and broker is None and config.feed.replay is None
        self.policy = self._policy_to_trade()

    def _policy_to_trade(self) -> DeployedPolicy:
        """The model of the settings, or the one that traded last."""
        config, earlier = self.config, earlier_starts(self.folder)
        begins_with = model_to_begin_with(
            config.retraining, named=config.model, folder=self.folder, traded_last=earlier.traded_last
        )
        return load_deployed_policy(begins_with, {**earlier.costs, **self._changes})

    def run(self) -> SessionResult:
        """Trade. Raises UserError if the session cannot start or continue.

        After a full or failing disk, a session in real time is opened again from its journal, as after a kill.
        """
        heartbeat = Heartbeat(self.folder)
        patience = Patience(self.config.session.unreachable_for_s, self.stop, heartbeat.beat)
        number, first, self._typed = -1, "", None
        try:
            while True:
                try:
                    return self._run_once(heartbeat)
                except UserError as error:
                    if not (self._opens_again and disk_failed(error)):
                        raise
                    why = in_one_line(str(error))
                reached = 0 if self._state is None else self._state.number
                if reached > number:  # it has traded since the last failure
                    number, first = reached, why
                    patience.reset()
                    self._alert(f"{why} Nothing is ordered meanwhile; trying again.")
                patience.wait(first)
                self.policy = self._policy_to_trade()
        except StopWhileWaiting:
            return self._result(Ended("stopped", self._stop_reason))
        except StillUnreachable as error:
            return self._result(self._give_up(str(error)))
        finally:
            heartbeat.close()

    def _run_once(self, heartbeat: Heartbeat) -> SessionResult:
        """One start, and its end in the folder."""
        exists = (self.folder / JOURNAL_FILE).is_file()
        claim = FolderClaim(self.folder)
        status: Literal["finished", "stopped", "failed"] = "failed"
        reason: str | None = None
        bars = 0
        try:
            with ExitStack() as stack:
                ended, table, bars = self._open_and_trade(stack, heartbeat)
                status, reason = ended.status, ended.reason
        except BaseException as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            try:
                if exists and not self._is_this_session:  # started by mistake
                    claim.abandon()
                else:
                    claim.end(status, reason, global_step=bars, iterations=bars, best_score=None)
            except UserError as error:  # a full disk must not hide how it ended
                self._say(str(error))
            finally:
                claim.release()
        return self._result(ended, table)

    def _result(self, ended: Ended, table: str | None = None) -> SessionResult:
        return SessionResult(self.folder, ended.status, ended.reason, ended.flat, ended.asked, table, ended.again)

    def _open_and_trade(self, stack: ExitStack, heartbeat: Heartbeat) -> tuple[Ended, str | None, int]:
        """Returns how it ended, the table of its report, and its number of bars."""
        config, policy = self.config, self.policy
        feed = stack.enter_context(closing(self._feed or open_feed(config, policy)))
        is_replay = config.feed.replay is not None
        journal = stack.enter_context(closing(Journal(self.folder / JOURNAL_FILE, durable=not is_replay)))
        broker_name = config.broker if self._broker is None else self._broker.name
        check_same_session(journal, self.folder, feed, broker=broker_name)
        self._is_this_session = True
        keep_costs(journal, policy)
        state = self._state = SessionState.load(journal, feed.symbols)
        self._has_traded = initial_cash(journal) is not None
        heartbeat.start()
        alerts = open_alerts(config.alerts, self.folder.name)
        stack.callback(self._say_undelivered, alerts)
        stack.enter_context(alerts)
        switch = stack.enter_context(DeadMansSwitch(config.alerts.switch_url(), works=heartbeat.is_beating))
        self._say("\n".join((*policy.notices_on(feed.symbols), *feed.notices)))
        try:
            broker, rules = self._open_broker(journal, state, feed, stack, heartbeat)
            record = self._record(journal, state, feed, rules, alerts)
            stack.callback(record.close)
            session = self._components(
                *(record, feed, broker, rules),
                undelivered=lambda: [*alerts.take_failures(), *switch.take_outages()],
                heartbeat=heartbeat,
            )
            ended = self._trade(session, stack, heartbeat)
            if not ended.asked:
                switch.fail(ended.reason)
        except StopWhileWaiting:
            return Ended("stopped", self._stop_reason), None, journal.n_bars()
        except StillUnreachable as error:
            ended = self._give_up(f"The broker cannot be reached: {error}")
            alerts.tell("stop", state.time, {"why": ended.reason})
            switch.fail(ended.reason)
            return ended, None, journal.n_bars()
        return ended, self._report(journal, feed, rules), journal.n_bars()

    def _open_broker(
        self, journal: Journal, state: SessionState, feed: Feed, stack: ExitStack, heartbeat: Heartbeat
    ) -> tuple[Broker, TradingRules]:
        """The broker, and the rules with the account's initial cash."""
        config, rules, broker = self.config, self.policy.rules, self._broker
        per_year = periods_per_year(journal, self.policy, feed)
        if broker is None:
            open_it = partial(
                open_broker,
                config,
                feed,
                rules,
                folder=self.folder,
                periods_per_year=per_year,
                ask=self._answer_or_ask(),
            )
            broker = self._retry(open_it, heartbeat)
            if broker.real_money:
                self._typed = getattr(broker, "account_number", None)
        stack.callback(broker.close)
        stack.enter_context(claim_account(broker, self.folder, self._say))
        if notices := getattr(broker, "notices", ()):
            self._say("\n".join(notices))
        if (cash := initial_cash(journal)) is None:
            account = self._retry(broker.account, heartbeat)
            quantities = broker.quantities or QuantityRules()
            if left_over := quantities.left_over(account.positions):
                self._say(f"In the account at {broker.name},{left_over}")
            account = account._replace(positions=quantities.open_positions(account.positions))
            if not config.session.take_over:
                check_first_account(account, broker=broker.name)
            _, cursor = self._retry(partial(broker.poll, None), heartbeat)
            cash = begin_account(journal, state, account, cursor)
            self._has_traded = True
        return broker, replace(rules, initial_cash=cash)

    def _record(
        self, journal: Journal, state: SessionState, feed: Feed, rules: TradingRules, alerts: Alerts
    ) -> SessionRecord:
        ledger = {"exits": rules.acts_within_bars, "by_day": rules.financing_bps_per_year is not None}
        return SessionRecord(
            *(self.folder, journal, state),
            symbols=feed.symbols,
            timing=feed.timing,
            ledger=ledger,
            say=self._say,
            tell=alerts.tell,
        )

    def _components(
        self,
        record: SessionRecord,
        feed: Feed,
        broker: Broker,
        rules: TradingRules,
        *,
        undelivered: Callable[[], Sequence[str]],
        heartbeat: Heartbeat,
    ) -> SessionComponents:
        """Create the objects of the session. rules: with the account's initial cash."""
        config, policy, state, journal = self.config, self.policy, record.state, record.journal
        account = AccountBook(feed.symbols, rules, decimal=not broker.sizes_at_fill)
        if state.taken_over is not None:
            account.take_over(**state.taken_over)
        sessions = self._retry(partial(_last_month, broker), heartbeat)
        real_time = config.feed.replay is None
        session_id, terms = str(journal.meta("session_id")), rules.terms(periods_per_year(journal, policy, feed))
        protector = Protector(broker, record, terms, name=partial(_protection_id, session_id, state))
        return SessionComponents(
            broker=broker,
            connection=BrokerConnection(record),
            clocks=Clocks(
                feed,
                broker,
                most_s=config.guards.guard_clock_s,
                real_time=real_time,
                tell=lambda kind, sentence: record.log_now("alert", state.time, guard=kind, sentence=sentence),
            ),
            feed=feed,
            runner=PolicyRunner(policy, feed.symbols, feed.timing, policy.calendar(feed.calendar)),
            account=account,
            guards=Guards(config.guards, feed.symbols, timing=feed.timing, sessions=sessions),
            orders=OrderManager(broker, record, feed.symbols, protector),
            record=record,
            settings=EngineSettings(
                session_id=session_id,
                on_gap=config.feed.on_gap,
                on_difference=config.session.on_difference,
                on_error=config.session.on_error,
                on_unreachable=config.session.on_unreachable,
                unreachable_for_s=config.session.unreachable_for_s,
                real_time=real_time,
            ),
            rules=rules,
            terms=terms,
            requests=Requests(self.folder),
            session_of=SessionTimes(broker),
            undelivered=undelivered,
            about={"name": self.folder.name, "broker": broker.name, "real_money": broker.real_money},
        )

    def _trade(self, session: SessionComponents, stack: ExitStack, heartbeat: Heartbeat) -> Ended:
        """Restore the state in the journal, compare the account with the books, and trade to the end."""
        config, policy, record, broker, feed = self.config, self.policy, session.record, session.broker, session.feed
        is_first = session.state.last is None
        restore(session, same_model=note_model(record, policy))
        if is_first:
            warm_up(session)
        session.models = stack.enter_context(closing(self._models(session, heartbeat)))
        engine = TradingEngine(session, self.stop, beat=heartbeat.beat)
        with record.transaction():
            record.log(
                "start",
                None,
                model=str(policy.checkpoint),
                version=policy.version,
                broker=broker.name,
                real_money=broker.real_money,
                symbols=feed.symbols,
                settings=config.as_data(),
            )
        if not is_first:
            self._retry(partial(reconcile_at_start, session), heartbeat)
        ended = _run(engine, record)
        if config.feed.replay is not None and ended.status == "finished" and record.journal.first_account_bar() is None:
            try:
                check_long_enough(config.feed.replay, policy)
            except UserError as error:  # not a failure: the recording may grow and the session continue
                ended = replace(ended, reason=f"{ended.reason} {error}")
        return ended

    def _report(self, journal: Journal, feed: Feed, rules: TradingRules) -> str | None:
        """Write report.html and return its table. An error in the report does not fail the session."""
        calendar = self.policy.calendar(feed.calendar)
        try:
            return write_session_report(
                self.folder, journal, self.policy, rules, symbols=feed.symbols, timing=feed.timing, calendar=calendar
            )
        except UserError as error:
            self._say(f"No {REPORT_FILE} was written: {error}")
            return None

    def _models(self, session: SessionComponents, heartbeat: Heartbeat) -> ModelUpdates:
        """The object that looks for another model between two bars."""
        record, feed = session.record, session.feed

        def log(event: RetrainEvent) -> None:
            record.log_now("retrain", None, **event.as_json())

        def tell(sentence: str) -> None:
            record.log_now("alert", None, guard="model", sentence=sentence)

        retrained = RetrainedSession(
            folder=self.folder,
            named=self.config.model,
            checkpoint=self.policy.checkpoint,
            trading=self.policy.config,
            package_version=self._package_version,
        )
        return ModelUpdates(
            self.config.retraining,
            retrained,
            load=runner_loader(session.policy, feed, self._changes),
            tell=tell,
            log=log,
            stopping=lambda: not self._goes_on(heartbeat),  # a replay that waits for a retraining still beats and stops
        )

    def _say_undelivered(self, alerts: Alerts) -> None:
        """After the last deliveries, when nothing is logged any more."""
        for sentence in alerts.take_failures():
            self._say(sentence)

    def _answer_or_ask(self) -> Ask | None:
        """Ask the user, unless this run has confirmed real money before it opened its journal again."""
        typed = self._typed
        return self._ask if typed is None else lambda question: typed

    def _goes_on(self, heartbeat: Heartbeat) -> bool:
        heartbeat.beat()
        return not self.stop.requested

    def _retry(self, ask: Callable[[], Answer], heartbeat: Heartbeat) -> Answer:
        return retry_until_available(
            ask,
            self.stop,
            self._say,
            beat=heartbeat.beat,
            most_s=self.config.session.unreachable_for_s,
            keys_count=self._has_traded,
        )

    def _give_up(self, why: str) -> Ended:
        """The end after an outage that lasted too long; positions are closed at the next start if that is set."""
        session = self.config.session
        positions = session.on_unreachable if self._has_traded else "hold"
        reason = still_unreachable(why, session.unreachable_for_s, positions)
        if positions == "flatten":
            try:
                leave_request(self.folder, "flatten")
            except UserError as error:
                reason += f" But this could not be noted: {error}"
        return Ended("failed", reason, None, asked=False, again=True)

    def _alert(self, sentence: str) -> None:
        """Report a failure while the session is closed."""
        self._say(sentence)
        with open_alerts(self.config.alerts, self.folder.name) as alerts:
            alerts.tell("alert", None, {"sentence": sentence})

    @property
    def _stop_reason(self) -> str:
        return self.stop.reason or "A stop was requested."


def _last_month(broker: Broker) -> list[TradingSession]:
    return broker.sessions(broker.now() - _MONTH, broker.now())


def _protection_id(session_id: str, state: SessionState, symbol: str, number: int) -> str:
    assert state.time is not None
    return client_order_id(session_id, state.time, symbol, purpose=f"protection {number}")


def _run(engine: TradingEngine, record: SessionRecord) -> Ended:
    """Run the engine; log a failure."""
    try:
        return engine.run()
    except Exception as error:
        if not disk_failed(error):  # the journal cannot be written
            with suppress(Exception):  # the first error counts
                why = f"The session failed: {in_one_line(str(error) or type(error).__name__)}"
                record.log_now("stop", None, why=why, flat=None, sentence=why)
        raise
