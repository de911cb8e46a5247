"""Load the market of the settings, or one market per symbol, from files or the built-in market."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.symbol_files import SymbolFiles, find_symbol_files
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.market.timeframes import Calendar
from ml_pipeline.trading.settings import TradingConfig


def load_configured_market(config: TradingConfig) -> MarketData:
    """The market of `config`: its data file, or the built-in market."""
    if config.data is not None:
        return annualized(load_market(config.data, symbols=config.symbols or None, **config.reading()), config)
    market = annualized(synthetic_market(), config)
    return market.select(config.symbols) if config.symbols else market


def annualized(market: MarketData, config: TradingConfig) -> MarketData:
    """The market with the settings' bars per year, if they are set."""
    return replace(market, calendar=calendar_of(market.calendar, config))


def calendar_of(inferred: Calendar, config: TradingConfig) -> Calendar:
    """The calendar with the settings' bars per year, if they are set."""
    if (given := config.periods_per_year) is None:
        return inferred
    return inferred._replace(periods_per_year=float(given), reason="set by periods_per_year")


def load_markets(config: TradingConfig) -> dict[str, MarketData]:
    """The market of `config` under ""; with `per_symbol`, a market for each symbol, from its files or a common file."""
    if not config.per_symbol:
        return {"": load_configured_market(config)}
    if config.data is None:
        market = load_configured_market(config)
        return {symbol: market.select([symbol]) for symbol in market.symbols}
    if not config.data.is_dir():
        symbols = config.symbols or load_configured_market(config).symbols
        return {
            symbol: load_configured_market(replace(config, per_symbol=False, symbols=(symbol,))) for symbol in symbols
        }
    found = find_symbol_files(config.data, config.symbols)
    return {symbol: _market_in(own, symbol, config) for symbol, own in found.items()}


def listed(symbols: Iterable[str], most: int = 8) -> str:
    """The first symbols, as part of a sentence."""
    names = list(symbols)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _market_in(own: SymbolFiles, symbol: str, config: TradingConfig) -> MarketData:
    """The market of one symbol in its files, whose names may spell it differently."""
    name = symbol if len(own.files) == 1 else None
    read = partial(load_market, own.files, **config.reading())
    market = read(name=name)
    if len(market.symbols) > 1:
        if symbol not in market.symbols:
            raise UserError(
                f"{own.files[0].name} holds {counted(len(market.symbols), 'symbol')} ({listed(market.symbols)}), but a "
                f"file of {symbol} alone is expected; pass the file itself as data."
            )
        market = read(symbols=[symbol])
    called = market.symbols[0]
    if called == symbol:
        return market
    remarks = tuple(
        f"{symbol}{each.removeprefix(called)}" if each.startswith(called) else each for each in market.remarks
    )
    return replace(market, symbols=(symbol,), remarks=remarks)
