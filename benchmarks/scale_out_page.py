"""docs/scale-out.md out of the figures of `benchmarks.scale_out`: tables, picture, and what follows from them.

Every sentence is made of the figures, so that it stays true when they are measured again.
"""

import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.measured_page import DOCS, Figures, Row, measured_on, sections, table, write_measured
from benchmarks.scale_out_model import (
    TRANSITION_BYTES,
    constants,
    networks,
    predicted,
    training_of_steps,
)
from ml_pipeline.models.rl.distributed.cost_model import (
    EFFICIENT,
    Network,
    iteration_cost,
    shortest_step_that_pays,
    speedup,
)
from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes

PAGE = DOCS / "scale-out.md"
FIGURES = DOCS / "scale-out.json"
PICTURE = DOCS / "scale-out.png"

MACHINES = (2, 4, 16, 64, 256)
STEPS_S = {"10 µs": 1e-5, "0.1 ms": 1e-4, "1 ms": 1e-3, "10 ms": 1e-2, "100 ms": 0.1}
_COLORS = ("#c9a227", "#d1495b", AGENT_COLOR, "#0a9b8e", "#6b4fbb")


def write_page(figures: Figures) -> None:
    """Write the figures, the picture, and the part of the page that is measured."""
    _draw(figures, PICTURE)
    write_measured(PAGE, measured_part(figures), figures)


def measured_part(figures: Figures) -> str:
    """What the page says of one measurement."""
    about = figures["machine"]
    library = f"PyTorch {about['torch']}"
    intro = f"{measured_on(about, library)}, one core for each rank, by medians; the groups of a table took turns."
    picture = f"![How many times as fast, and from which step on, by the number of machines]({PICTURE.name})"
    return sections(intro, conclusions(figures), picture, printed(figures))


def printed(figures: Figures) -> str:
    """All tables."""
    return "\n\n".join(
        [
            *("## Groups of ranks", *_groups(figures)),
            *("## The model", _constants(figures), _held_against(figures)),
            *("## Many machines", *_many(figures)),
        ]
    )


def conclusions(figures: Figures) -> list[str]:
    """When a second machine pays, what bounds the number of machines, and what ranks are not for."""
    found = constants(figures)
    from_step = {
        name: shortest_step_that_pays(lambda step_s: training_of_steps(figures, step_s), network)
        for name, network in networks(figures).items()
    }
    listed = "; ".join(f"{duration(step_s)} over {name}" for name, step_s in from_step.items())
    cart_pole = next(ratio for name, _, ratio in ratios(figures) if name == "CartPole")
    return [
        f"**A second machine of one core pays** (trains at least {2 * EFFICIENT:g} times as fast) where a step takes "
        f"at least {listed}. On machines of more cores, a step must take as many times longer, since each steps its "
        "environments that much faster.",
        "**Learning is the bound.** Every machine learns from all transitions, "
        f"{duration(found.learning_s)} for each with the default settings and network. However many machines there "
        "are, they train at most about as many times as fast as a step takes longer than that: "
        + ", ".join(
            f"{step_s / found.learning_s:,.0f} times at {name}"
            for name, step_s in STEPS_S.items()
            if step_s > 2 * found.learning_s
        )
        + ". Fewer epochs (`--n-epochs`) move the bound.",
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


def with_predictions(figures: Figures) -> dict[str, Any]:
    """The figures, with the iteration that the model predicts for each group."""
    groups = [{**group, "predicted_s": predicted(figures, group).total_s} for group in figures["groups"]]
    return {**figures, "groups": groups}


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


def _constants(figures: Figures) -> str:
    found = constants(figures)
    fields = [
        ("acting, a vector step", duration(found.acting_call_s)),
        ("acting, each environment more", duration(found.acting_row_s)),
        ("learning, a transition", duration(found.learning_s)),
        ("exchange, a transition", f"{TRANSITION_BYTES} bytes"),
        ("a hop between two processes", duration(found.between_processes.hop_s)),
        ("a hop between two machines", duration(found.between_machines.hop_s)),
        ("between two machines", f"{8e-6 * found.between_machines.bytes_per_s:,.0f} Mbit/s"),
    ]
    return table([["measured on one rank, and between two", ""], *map(list, fields)])


def _held_against(figures: Figures) -> str:
    lines = [["an iteration of", "predicted", "measured", "predicted / measured"]]
    for row in figures["groups"]:
        lines.append(
            [
                f"{row['comparison']}: {row['group']}",
                duration(row["predicted_s"]),
                duration(row["iteration_s"]),
                f"{row['predicted_s'] / row['iteration_s']:.2f}",
            ]
        )
    return table(lines)


def _many(figures: Figures) -> list[str]:
    many = figures["pieces"]["many"]
    network = constants(figures).between_machines
    speed = [["a step takes", *(f"{n} machines" for n in MACHINES)]]
    for name, step_s in STEPS_S.items():
        training = training_of_steps(figures, step_s)
        speed.append([name, *(f"{float(f'{speedup(training, n, network):.2g}'):g}" for n in MACHINES)])
    pays = [["network", *(f"{n} machines" for n in MACHINES)]]
    for name, each in networks(figures).items():
        pays.append([name, *(duration(_shortest(figures, each, n)) for n in MACHINES)])
    at_most = iteration_cost(training_of_steps(figures, STEPS_S["1 ms"]), MACHINES[-1], network)
    return [
        f"Predicted for machines of one core, {many['num_envs']} environments and {many['n_steps']} steps in a "
        "rollout: how many times as fast as one machine, on the measured network.",
        table(speed),
        f"The shortest step from which so many machines pay, each being worth at least {EFFICIENT:.0%}".replace(
            "%", " %"
        )
        + " of itself:",
        table(pays),
        f"The exchange goes around a ring, so its messages become the bound with many machines: "
        f"{duration(at_most.exchanging_s)} for {MACHINES[-1]}. Longer rollouts (`--n-steps`) need fewer of them.",
    ]


def _shortest(figures: Figures, network: Network, machines: int) -> float:
    return shortest_step_that_pays(lambda step_s: training_of_steps(figures, step_s), network, machines=machines)


def _draw(figures: Figures, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    network = constants(figures).between_machines
    numbers = [2**k for k in range(9)]
    left.plot(numbers, numbers, color="#b6bcc6", linewidth=1.0, linestyle=":")
    for (name, step_s), color in zip(STEPS_S.items(), _COLORS, strict=True):
        training = training_of_steps(figures, step_s)
        gains = [speedup(training, n, network) for n in numbers]
        left.plot(numbers, gains, color=color, linewidth=1.6, label=f"{name} a step")
    groups = [row for row in figures["groups"] if row["on_machines"]]
    rates = [statistics.median(row["steps_per_second"]) for row in groups]
    gains = [rate / rates[0] for rate in rates]
    left.plot(
        [row["ranks"] for row in groups], gains, "o", color=AGENT_COLOR, markersize=6, label="measured, 1 ms a step"
    )
    left.set_ylabel("times as fast as one machine")
    left.set_title(next(name for name, each in networks(figures).items() if each == network), fontsize=10)
    for (name, each), color in zip(networks(figures).items(), _COLORS, strict=False):
        steps = [1e3 * _shortest(figures, each, n) for n in numbers[1:]]
        right.plot(numbers[1:], steps, color=color, linewidth=1.6, marker="o", markersize=3, label=name)
    right.set_ylabel("shortest step that pays, ms")
    right.set_title("each machine worth 75 % of itself", fontsize=10)
    for axes in (left, right):
        style_axes(axes)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2 if axes is left else 10)
        axes.set_xticks(numbers, [str(n) for n in numbers])
        axes.set_xlabel("machines of one core")
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    left.set_ylim(0.1, 300)
    left.set_yticks(numbers, [str(n) for n in numbers])
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    figure.savefig(path, dpi=110)
