"""The tables of a journal, and the version of them that this program writes."""

VERSION = 1
TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bars (
    number INTEGER PRIMARY KEY, time INTEGER NOT NULL UNIQUE, kind TEXT NOT NULL, late INTEGER NOT NULL,
    data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS decisions (
    number INTEGER PRIMARY KEY, model TEXT NOT NULL, action TEXT NOT NULL, weights TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    client_order_id TEXT PRIMARY KEY, number INTEGER NOT NULL, symbol TEXT NOT NULL, quantity REAL NOT NULL,
    weight REAL NOT NULL, limit_price REAL, closing INTEGER NOT NULL, targets TEXT, status TEXT NOT NULL,
    filled_quantity REAL NOT NULL, reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS orders_by_status ON orders (status);
CREATE INDEX IF NOT EXISTS orders_by_bar ON orders (number);
CREATE TABLE IF NOT EXISTS fills (
    fill_id TEXT PRIMARY KEY, client_order_id TEXT NOT NULL, symbol TEXT NOT NULL, quantity REAL NOT NULL,
    price REAL NOT NULL, costs REAL NOT NULL, time INTEGER NOT NULL, exit INTEGER NOT NULL,
    margin_called INTEGER NOT NULL DEFAULT 0, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    charge_id TEXT PRIMARY KEY, amount REAL NOT NULL, what TEXT NOT NULL, time INTEGER NOT NULL, days REAL,
    margin_called INTEGER NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS models (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, version TEXT, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (name TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""
