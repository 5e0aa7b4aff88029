"""`electra plan`: a run config and a machine -> parameters, FLOPs, memory, disk, time and cost of the run."""

from collections.abc import Sequence
from pathlib import Path

from electra import config, files
from electra.config import Given
from electra.pretraining.communication import Link
from electra.pretraining.cost import Machine
from electra.pretraining.plan import FULL_WIDTH, REACHED_BANDWIDTH, Plan, PlanConfig, make_plans, recommended
from electra.show import duration, short, table


def main(arguments: Sequence[str]) -> None:
    """Estimate and print."""
    with config.read(PlanConfig, arguments, prog="electra plan").opened(
        reads=("data",), runs=("start",)
    ) as given:
        plan(given)


def plan(given: Given[PlanConfig]) -> None:
    """Estimate what was given."""
    settings, plans = given.draft(), make_plans(given)
    shown = budget_table(plans) if settings.has_budget else plan_table(plans[0])
    print("\n".join([shown, "", "Assumptions", *(f"  - {note}" for note in assumptions(plans[0]))]))
    if settings.json:
        files.write_json(Path(settings.json), {"plans": [one.facts() for one in plans]})


def plan_table(plan: Plan) -> str:
    """The needs of one run."""
    needs, work, machine, memory = plan.needs, plan.work, plan.machine, plan.needs.memory
    room = "" if plan.fits else "; that is TOO MUCH: set --train.micro_batch auto"
    parts = ", ".join(f"{name.replace('_', ' ')} {short(count)}" for name, count in needs.parameters.items())
    paper = "" if needs.paper_flops is None else f", {needs.paper_flops:.3g} by the paper's accounting"
    lines = {
        "run": f"{plan.size}, {plan.model.config.objective}, {work.steps:,} steps of {work.batch_size:,} "
        f"rows of {work.length} tokens",
        "parameters": f"{sum(needs.parameters.values()):,} ({parts})",
        "tokens": f"{short(needs.tokens)}; {work.fill:.0%} of each row is text",
        "FLOPs": f"{needs.flops:.3g} in matrix products{paper}",
        "machine": f"{in_nodes(machine)}: {short(machine.peak)}FLOP/s in {machine.format}, "
        f"{machine.memory / 1e9:.0f} GB each",
        "memory": f"{memory.total / 1e9:.2f} GB each: weights {memory.weights / 1e9:.2f}, gradients "
        f"{memory.gradients / 1e9:.2f}, optimizer {memory.optimizer / 1e9:.2f}, activations of "
        f"{work.rows_at_once} rows {memory.activations / 1e9:.2f}, logits {memory.logits / 1e9:.2f}{room}",
        **({} if machine.link is None else {"step": step_line(plan, machine.link)}),
        "speed": f"{short(needs.tokens_per_second)} tokens/s",
        "time": duration(needs.seconds),
        "cost": "unknown: give --price_per_hour" if needs.cost is None else f"{needs.cost:,.2f}",
        "disk": f"{needs.disk / 1e9:.2f} GB for {work.checkpoints} checkpoints",
    }
    return table(lines)


def in_nodes(machine: Machine) -> str:
    """How many devices there are, and of what kind."""
    each = f"{machine.devices // machine.nodes} x {machine.name}"
    return each if machine.nodes == 1 else f"{machine.nodes} nodes with {each}"


def step_line(plan: Plan, link: Link) -> str:
    """What a step of several devices consists of."""
    needs, sent = plan.needs, plan.needs.communication
    rows = -(-plan.work.batch_size // plan.machine.devices)
    whole = needs.computing + sent.waited
    return (
        f"{1e3 * whole:.3g} ms: {1e3 * needs.computing:.3g} ms to compute {rows} rows on each device, "
        f"{1e3 * sent.seconds:.3g} ms to send {short(sent.sent)}B at {short(link.bandwidth)}B/s, of which "
        f"{1e3 * sent.waited:.3g} ms are waited for; devices compute for {needs.computing / whole:.1%} of it"
    )


def budget_table(plans: Sequence[Plan]) -> str:
    """What fits into the budget, by size, and which size to choose."""
    rows = [("size", "steps", "of its schedule", "tokens", "FLOPs", "memory each", "time", "cost")]
    for plan in plans:
        needs = plan.needs
        memory = f"{needs.memory.total / 1e9:.1f} GB{'' if plan.fits else ' (too much)'}"
        cost = "–" if needs.cost is None else f"{needs.cost:,.2f}"
        share = f"{plan.share_of_schedule:.2g} x"
        numbers = (f"{plan.work.steps:,}", share, short(needs.tokens), f"{needs.flops:.2g}")
        rows.append((plan.size, *numbers, memory, duration(needs.seconds), cost))
    chosen, is_enough = recommended(plans)
    why = "the largest size that gets" if is_enough else "no larger size comes closer to"
    advice = (
        f"Choose {chosen.size}: {why} a sixteenth of its full schedule.\n"
        f"  electra pretrain --model.size {chosen.size} --train.steps {chosen.work.steps} "
        f"--train.micro_batch {chosen.work.rows_at_once} --data DATA --out RUN"
    )
    return "\n".join([table(rows), "", advice])


def assumptions(plan: Plan) -> list[str]:
    """What the numbers rest on."""
    machine = plan.machine
    speed = f"training reaches {machine.achievable:.1%} of the "
    if machine.name == "this":
        speed += "speed measured here in the model's matrix products"
    else:
        speed += (
            f"peak; below a width of {FULL_WIDTH} the share falls with the width. The paper's 4 days for "
            "ELECTRA-small on a V100 are 2.7 % of its 16-bit peak, or 21 % of its 32-bit peak"
        )
    notes = [
        f"{speed}; change it with --achievable",
        f"memory: Adam, float32 weights, products in {machine.format}; measured peaks are 10 to 25 % higher",
    ]
    if machine.devices > 1:
        overlap = "they compute" if machine.overlaps else "nothing is computed"
        notes.append(
            f"devices form a ring ({plan.work.parallel}) and reach {REACHED_BANDWIDTH:.0%} of its bandwidth; "
            f"{overlap} while they send; change the link with --bandwidth and --latency"
        )
    if machine.price is not None:
        notes.append(
            f"a device costs {machine.price:g} per hour; prices of the table are rough: give --price_per_hour"
        )
    return notes
