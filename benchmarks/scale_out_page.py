"""Several machines in docs/evidence.md: conclusions and tables from the figures of `benchmarks.scale_out`.

The sentences contain the figures, so they stay true when the figures are measured again.
"""

import math
import statistics

from benchmarks.measured_page import DOCS, Figures, Row, measured_on, table, write_measured

NAME = "scale-out"
FIGURES = DOCS / "scale-out.json"


def write_page(figures: Figures) -> None:
    """Write the figures and the measured part of the page."""
    write_measured(NAME, measured_part(figures), figures, file=FIGURES)


def measured_part(figures: Figures) -> str:
    """Machine, conclusions and tables."""
    about = figures["machine"]
    library = f"PyTorch {about['torch']}"
    intro = f"{measured_on(about, library)}, one core per rank; medians, and the groups of a table took turns."
    return "\n\n".join([intro, *conclusions(figures), printed(figures)])


def printed(figures: Figures) -> str:
    """All tables."""
    return "\n\n".join([*_groups(figures), _exchanges(figures)])


def conclusions(figures: Figures) -> list[str]:
    """What limits the gain, and for which environments there is none."""
    learning = figures["learning"]
    transition_s = learning["learning_s"] / (learning["num_envs"] * learning["n_steps"])
    cart_pole = next(ratio for name, _, ratio in ratios(figures) if name == "CartPole")
    return [
        f"**Learning is the limit.** Every rank learns from all transitions, which takes {duration(transition_s)} per "
        "transition with the default settings and network. With any number of machines, training is at most "
        f"{1e-3 / transition_s:,.0f} times as fast at 1 ms per step. Fewer epochs (`--n-epochs`) raise this limit.",
        f"**Short steps gain nothing.** A step of CartPole takes a few µs, and two ranks train {cart_pole:.2f} times "
        "as fast as one process.",
    ]


def ratios(figures: Figures) -> list[tuple[str, str, float]]:
    """(comparison, group, how many times the steps per second of the first group of the comparison)."""
    found = []
    for first, group in _pairs_with_the_first(figures):
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


def _pairs_with_the_first(figures: Figures) -> list[tuple[Row, Row]]:
    groups = figures["groups"]
    first = {group["comparison"]: group for group in reversed(groups)}
    return [(first[group["comparison"]], group) for group in groups if group is not first[group["comparison"]]]


def _groups(figures: Figures) -> list[str]:
    of_group = {(name, group): ratio for name, group, ratio in ratios(figures)}
    about = figures["network"]
    lines = [["", "group", "steps/s", "times the first group", "exchange, share of an iteration"]]
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
        f"Machines are network namespaces with a latency of {1e3 * about['delay_s']:g} ms and a bandwidth of "
        f"{about['bits_per_s'] / 1e9:g} Gbit/s. Each steps its environments one after another. Waits stand for "
        f"steps that compute, because {cores:g} cores cannot compute {most} steps at once. Learning does compute, on "
        f"up to {most} ranks at once, which slows it compared with machines that have their own cores."
    )
    return [text, table(lines)]


def _exchanges(figures: Figures) -> str:
    lines = [["exchange between", "64 bytes from each", "1 MiB from each"]]
    for where, of_sizes in figures["exchanges"].items():
        for n, times in of_sizes.items():
            ranks = f"{n} processes of {where}" if where == "one machine" else f"{n} machines"
            lines.append([ranks, duration(times["short_s"]), duration(times["short_s"] + times["more_s"])])
    return table(lines)
