"""docs/scale-out.md out of the figures of `benchmarks.scale_out`: tables, and what follows from them.

Every sentence is made of the figures, so that it stays true when they are measured again.
"""

import math
import statistics

from benchmarks.measured_page import DOCS, Figures, Row, measured_on, table, write_measured

PAGE = DOCS / "scale-out.md"
FIGURES = DOCS / "scale-out.json"


def write_page(figures: Figures) -> None:
    """Write the figures, and the part of the page that is measured."""
    write_measured(PAGE, measured_part(figures), figures)


def measured_part(figures: Figures) -> str:
    """What the page says of one measurement."""
    about = figures["machine"]
    library = f"PyTorch {about['torch']}"
    intro = f"{measured_on(about, library)}, one core for each rank, by medians; the groups of a table took turns."
    return "\n\n".join([intro, "## What follows", *conclusions(figures), printed(figures)])


def printed(figures: Figures) -> str:
    """All tables."""
    return "\n\n".join(["## Groups of ranks", *_groups(figures), "## An exchange", _exchanges(figures)])


def conclusions(figures: Figures) -> list[str]:
    """What bounds the number of machines, and what ranks are not for."""
    learning = figures["learning"]
    transition_s = learning["learning_s"] / (learning["num_envs"] * learning["n_steps"])
    cart_pole = next(ratio for name, _, ratio in ratios(figures) if name == "CartPole")
    return [
        f"**Learning is the bound.** Every machine learns from all transitions, {duration(transition_s)} for each with "
        "the default settings and network. However many machines there are, they train at most about as many times as "
        f"fast as a step takes longer than that: {1e-3 / transition_s:,.0f} times at 1 ms. Fewer epochs (`--n-epochs`) "
        "move the bound.",
        f"**CartPole is not what this is for**: its step takes a few µs, and two ranks train {cart_pole:.2f} times as "
        "fast as one process.",
    ]


def ratios(figures: Figures) -> list[tuple[str, str, float]]:
    """(comparison, group, how many times the steps per second of the first group of the comparison)."""
    found = []
    for first, group in _beside_the_first(figures):
        pairs = zip(group["steps_per_second"], first["steps_per_second"], strict=True)
        found.append((group["comparison"], group["group"], statistics.median(one / other for one, other in pairs)))
    return found


def duration(seconds: float) -> str:
    """Two digits, in the unit that fits.

    >>> duration(3.14e-4), duration(0.0278), duration(2.0)
    ('0.31 ms', '28 ms', '2 s')
    """
    if math.isinf(seconds):
        return "more than 100 s"
    for unit, scale, least in (("s", 1.0, 1.0), ("ms", 1e3, 0.1)):
        if seconds * scale >= least:
            return f"{float(f'{seconds * scale:.2g}'):g} {unit}"
    return f"{float(f'{seconds * 1e6:.2g}'):g} µs"


def _beside_the_first(figures: Figures) -> list[tuple[Row, Row]]:
    groups = figures["groups"]
    first = {group["comparison"]: group for group in reversed(groups)}
    return [(first[group["comparison"]], group) for group in groups if group is not first[group["comparison"]]]


def _groups(figures: Figures) -> list[str]:
    of_group = {(name, group): ratio for name, group, ratio in ratios(figures)}
    about = figures["network"]
    lines = [["", "group", "steps/s", "beside the first", "exchange, share of an iteration"]]
    for row in figures["groups"]:
        ratio = of_group.get((row["comparison"], row["group"]))
        share = row["exchange_s"] / row["iteration_s"]
        lines.append(
            [
                row["comparison"] if ratio is None else "",
                row["group"],
                f"{statistics.median(row['steps_per_second']):,.0f}",
                "" if ratio is None else f"{ratio:.2f}",
                f"{share:.2%}".replace("%", " %") if row["exchange_s"] else "",
            ]
        )
    cores = figures["machine"]["cores"]
    most = max(group["ranks"] for group in figures["groups"])
    text = (
        f"Machines are network namespaces, with {1e3 * about['delay_s']:g} ms from one to another and "
        f"{about['bits_per_s'] / 1e9:g} Gbit/s each. Each steps its environments one after another; a wait stands for "
        f"a step that computes, since {cores:g} cores cannot be busy {most} times. They do learn at the same time, "
        f"{most} on {cores:g} cores, which machines of their own would not have to."
    )
    return [text, table(lines)]


def _exchanges(figures: Figures) -> str:
    lines = [["between", "64 bytes of each", "1 MiB of each"]]
    for where, of_sizes in figures["exchanges"].items():
        for n, times in of_sizes.items():
            ranks = f"{n} processes of {where}" if where == "one machine" else f"{n} machines"
            lines.append([ranks, duration(times["short_s"]), duration(times["short_s"] + times["more_s"])])
    return table(lines)
