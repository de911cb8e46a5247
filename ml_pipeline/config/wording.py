"""How sentences that are told to a user put things."""


def counted(n: int, what: str) -> str:
    """So many of what, in the plural unless it is one.

    >>> counted(1, "symbol"), counted(1200, "bar")
    ('1 symbol', '1,200 bars')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"
