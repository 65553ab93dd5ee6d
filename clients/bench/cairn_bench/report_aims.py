"""What Cairn wants to reach, and what the results say of it.

An aim is judged by the figures of the pages; where these were not measured it is not told.
"""
import collections
import statistics

from .report_data import OURS, REFERENCE
from .report_format import PROFILES, count, mib, percent, points, rate, table
from .report_tables import HIDDEN, SPEED, decoded, kv_bytes, shape, speed_parts
from .results import ratio

# page: where the figures stand. reached: whether measured is as good as wanted, both as they are shown.
Aim = collections.namedtuple("Aim", "page what wanted measured reached")

NET_PREFILLED_MIN, NET_FED_MIN = -2, -3
# The most that a policy which does not look may answer: at 1K its 192 tokens are a fifth of the text.
BLIND_SHARE_MAX, SHORT_LENGTH, BLIND_SHARE_SHORT_MAX = 0.10, 1024, 0.25
LOCAL_POINTS_MIN = 25
# The paper's speed to its baselines, on average.
PAPER_SPEED = {"no-cluster": 2.00, "static-cluster": 1.47, "local-cluster": 1.31}
SHAPE_SPEED_MIN, PEER_SPEED_MIN, HIDDEN_MIN = 0.8, 2.0, 0.8
MEMORY_SHARE = 13
RESUME_SHARE_MAX, RESUME_STEPS_MAX = 0.15, 2.0
FLASH_MAX, WRITTEN_MAX = 2.5, 8.0
ANSWERS, RATES, ROOM = "answers.md", "speed.md", "memory-and-flash.md"


def at_least(page, what, measured, wanted, show):
    return [] if measured is None else [Aim(page, what, f"at least {show(wanted)}", show(measured), measured >= wanted)]


def at_most(page, what, measured, wanted, show):
    return [] if measured is None else [Aim(page, what, f"at most {show(wanted)}", show(measured), measured <= wanted)]


def multiple(value):
    return f"{value:.2f} times"


def answers_like_full(results):
    full = results.answers("answers-prefilled", REFERENCE)
    for part, how, least in (("answers-prefilled", "computed as one prompt", NET_PREFILLED_MIN),
                             ("answers-fed", "computed token by token", NET_FED_MIN)):
        ours = results.answers(part, OURS)
        for length in ours.lengths() if ours else ():
            yield from at_least(ANSWERS, f"`{OURS}` to `{REFERENCE}` at {length:,} tokens, {how}, in points",
                                ours.net(full, length), least, points)


def answers_of_others(results):
    for policy in ("random", "streaming"):
        blind = results.answers("answers-baselines", policy)
        for length in blind.lengths() if blind else ():
            most = BLIND_SHARE_SHORT_MAX if length <= SHORT_LENGTH else BLIND_SHARE_MAX
            yield from at_most(ANSWERS, f"right answers of `{policy}` at {length:,} tokens: guessing must not pay",
                               blind.share(length), most, percent)
    ours, local, static = (results.answers(part, policy) for part, policy in (
        ("answers-fed", OURS), ("answers-fed-baselines", "local-cluster"),
        ("answers-fed-baselines", "static-cluster")))
    for length in local.lengths() if local and ours and static else ():
        if length > SHORT_LENGTH:
            yield from at_least(ANSWERS, f"`{OURS}` above `local-cluster` at {length:,} tokens, computed token by "
                                "token, in points", ours.net(local, length), LOCAL_POINTS_MIN, points)
            yield from at_least(ANSWERS, f"`local-cluster` above `static-cluster` at {length:,} tokens, computed token "
                                "by token, in points", local.net(static, length), 0, points)


def speeds(results):
    for profile, part in speed_parts(results):
        for context in sorted({run.context for run in results.runs(part)}):
            full, ours = (results.run(part, context, policy) for policy in (REFERENCE, OURS))
            if full and ours:
                yield from at_least(RATES, f"speed of `{OURS}` to `{REFERENCE}` behind {context:,} tokens, "
                                    f"{PROFILES[profile]}", ratio(ours.median(SPEED), full.median(SPEED)), 1, multiple)
    for run in results.runs("near-full"):
        ours = results.run("near-full", run.context, OURS)
        if run.policy in PAPER_SPEED and ours:
            yield from at_least(RATES, f"speed of `{OURS}` to `{run.policy}` behind {run.context:,} tokens, "
                                f"{PROFILES['emmc']}", ratio(ours.median(SPEED), run.median(SPEED)),
                                PAPER_SPEED[run.policy], multiple)


def large_model(results):
    pair = shape(results)
    if not pair:
        return
    short, long = pair
    yield from at_least(RATES, f"large model: speed behind {long.context:,} tokens to that behind {short.context:,}",
                        ratio(long.median(SPEED), short.median(SPEED)), SHAPE_SPEED_MIN, multiple)
    peers = results.peers("shape-long").get(long.context)
    if peers:
        yield from at_least(RATES, f"large model: speed to llama.cpp's behind {long.context:,} tokens",
                            ratio(long.median(SPEED), statistics.median(peers)), PEER_SPEED_MIN, multiple)
    yield from at_least(RATES, "large model: reading that hides behind computing", long.median(HIDDEN), HIDDEN_MIN,
                        percent)
    everything = kv_bytes(results, "shape-long", long)
    yield from at_most(ROOM, "large model: memory for keys and values, MiB", long.median("kv_dram_bytes"),
                       everything / MEMORY_SHARE, mib)
    yield from at_most(ROOM, "large model: what resuming reads of the keys and values",
                       long.median("resume_read_share"), RESUME_SHARE_MAX, lambda value: percent(value, 1))
    yield from at_most(ROOM, "large model: the first token of a resumed conversation, in steps",
                       long.median("resume_steps"), RESUME_STEPS_MAX, rate)


def flash(results):
    for part in ("decode-long", "decode-behind"):
        for run in results.runs(part):
            if run.policy == OURS:
                tokens = run.context + decoded(results, part)
                held = results.parts[part]["manifest"]["model"]["kv_token_bytes"] * tokens
                where = f"{count(tokens - run.context)} tokens decoded behind {count(run.context)}"
                yield from at_most(ROOM, f"flash to the bytes of keys and values, {where}",
                                   run.median("kv_flash_bytes") / held, FLASH_MAX, multiple)
                yield from at_most(ROOM, f"bytes written to those decoded, {where}", run.median("write_amplification"),
                                   WRITTEN_MAX, multiple)


def judged(results):
    """-> [Aim] of all that was measured."""
    return [aim for judge in (answers_like_full, answers_of_others, speeds, large_model, flash)
            for aim in judge(results)]


def missed(results):
    """-> a table of the aims that were not reached, or None."""
    return table(["page", "aim", "wanted", "measured"],
                 [[f"[{aim.page}]({aim.page})", aim.what, aim.wanted, aim.measured]
                  for aim in judged(results) if not aim.reached])


def tally(results):
    """-> how many aims were missed, as part of a sentence."""
    aims = judged(results)
    return f"{sum(not aim.reached for aim in aims)} of {len(aims)}" if aims else None
