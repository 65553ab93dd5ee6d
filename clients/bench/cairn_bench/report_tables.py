"""The tables of the pages in docs/results, by the names that the template has for them.

Each takes report_data.Results and gives Markdown, or None where the parts that it needs were not measured.
"""
from . import measure_plan
from .kv_stats import WRITE_CAUSES
from .report_data import OURS, REFERENCE
from .report_format import PROFILES, count, mib, number, percent, points, rate, right, spread, table, times
from .speed_command import WARM_TOKENS, added_tokens

SPEED, WAITED, HIDDEN = "decode_tokens_per_second", "exposed_io_milliseconds_per_token", "hidden_io_share"
POLICY_ORDER = (REFERENCE, "oracle", OURS, *measure_plan.BASELINES, "random", "streaming")
HARDEST = "dense"
# What write counters are of; where two are of one thing they count together.
WRITTEN = (("entries, as they come", ("write_log_bytes",)), ("entries that were written again", ("write_relog_bytes",)),
           ("clusters that were split", ("write_split_bytes",)), ("other clusters", ("write_pool_bytes",)),
           ("index", ("write_index_bytes",)), ("what lies where", ("write_meta_log_bytes", "write_meta_table_bytes")),
           ("defragmenting", ("write_defragment_bytes",)))


def lengths_head(lengths):
    return [f"{length:,} tokens" for length in lengths]


def in_order(policies):
    return sorted(policies, key=lambda name: POLICY_ORDER.index(name) if name in POLICY_ORDER else len(POLICY_ORDER))


def answers_prefilled(results, part="answers-prefilled"):
    full, ours = results.answers(part, REFERENCE), results.answers(part, OURS)
    if not full or not ours:
        return None
    lengths = full.lengths()
    return table(["", *lengths_head(lengths)], [
        [f"`{REFERENCE}`", *(right(full.right(length)) for length in lengths)],
        [f"`{OURS}`", *(right(ours.right(length)) for length in lengths)],
        [f"`{OURS}` more than `{REFERENCE}`, in points", *(points(ours.net(full, length)) for length in lengths)]])


def answers_larger(results):
    return answers_prefilled(results, "answers-larger")


def answers_fed(results):
    full, ours = results.answers("answers-prefilled", REFERENCE), results.answers("answers-fed", OURS)
    if not full or not ours:
        return None
    lengths = ours.lengths()
    rows = [[f"`{REFERENCE}`, the same documents prefilled",
             *(right(full.right(length, ours.documents(length))) for length in lengths)],
            [f"`{OURS}`", *(right(ours.right(length)) for length in lengths)],
            [f"`{OURS}` more than `{REFERENCE}`, in points", *(points(ours.net(full, length)) for length in lengths)]]
    for policy in in_order(results.policies("answers-fed-baselines")):
        other = results.answers("answers-fed-baselines", policy)
        rows.append([f"`{policy}`", *(right(other.right(length)) for length in lengths)])
    return table(["", *lengths_head(lengths)], rows)


def answers_baselines(results):
    """All on the documents that the baselines were asked about."""
    policies = results.policies("answers-baselines")
    if not policies:
        return None
    some = results.answers("answers-baselines", policies[0])
    lengths, rows = some.lengths(), []
    for policy in in_order([*policies, REFERENCE, OURS]):
        asked = results.answers("answers-baselines" if policy in policies else "answers-prefilled", policy)
        if asked:
            rows.append([f"`{policy}`", *(percent(asked.share(length, some.documents(length))) for length in lengths)])
    return table(["right answers", *lengths_head(lengths)], rows)


def answers_hardest(results):
    full, ours = (results.answers("answers-prefilled", policy) for policy in (REFERENCE, OURS))
    fed = results.answers("answers-fed", OURS)
    named = ((f"`{REFERENCE}`", full), (f"`{OURS}`", ours), (f"`{OURS}`, token by token", fed))
    lengths = full.lengths() if full else []
    rows = [[name, *(right(answers.of_task(length, HARDEST)) for length in lengths)]
            for name, answers in named if answers and any(answers.of_task(length, HARDEST) for length in lengths)]
    return table(["", *lengths_head(lengths)], rows)


def near_full(results):
    near = results.parts.get("near-full", {}).get("near", {})
    rows = [[f"`{policy}`", number(1000 * near[policy]["kl_mean"], 2), number(1000 * near[policy]["kl_p99"]),
             percent(near[policy]["same_best"], 1), percent(near[policy]["recall"], 1),
             count(near[policy]["attended_tokens"])]
            for policy in in_order(near) if near[policy]["kl_mean"] is not None]
    return table(["", "divergence, mean", "of 100 tokens the worst", "the same likeliest token",
                  "attention that was seen", "tokens attended"], rows)


def speed_contexts(results, parts):
    return sorted({run.context for part in parts for run in results.runs(part)})


def speed_parts(results):
    """-> [(profile, name of its part)] of those that were measured."""
    return [(profile, f"speed-{profile}") for profile in measure_plan.PROFILES if results.runs(f"speed-{profile}")]


def speed_by_flash(results):
    parts = speed_parts(results)
    contexts, rows = speed_contexts(results, [part for _, part in parts]), []
    for profile, part in parts:
        runs = [[results.run(part, context, policy) for context in contexts] for policy in (REFERENCE, OURS)]
        for policy, some in zip((REFERENCE, OURS), runs):
            rows.append([PROFILES[profile] if policy == REFERENCE else "", f"`{policy}`",
                         *(spread(run.values(SPEED), rate) if run else "" for run in some)])
        rows.append(["", f"`{OURS}` to `{REFERENCE}`",
                     *(times(ours.median(SPEED), full.median(SPEED)) if full and ours else ""
                       for full, ours in zip(*runs))])
    return table(["flash", "tokens a second", *lengths_head(contexts)], rows)


def speed_peer(results):
    """All keys and values of the other engine are in memory, so that the fastest flash stands beside it."""
    peers = results.peers("speed-nvme")
    rows = []
    for policy in (REFERENCE, OURS):
        runs = [results.run("speed-nvme", context, policy) for context in sorted(peers)]
        rows.append([f"`{policy}`", *(spread(run.values(SPEED), rate) if run else "" for run in runs)])
    rows.append(["llama.cpp", *(spread(values, rate) for _, values in sorted(peers.items()))])
    return table(["tokens a second", *lengths_head(sorted(peers))], rows if peers else [])


def speed_waiting(results):
    rows = []
    for profile, part in speed_parts(results):
        longest = max(run.context for run in results.runs(part))
        run = results.run(part, longest, OURS)
        if run:
            rows.append([PROFILES[profile], number(run.median("milliseconds_per_token")),
                         number(run.median("io_milliseconds_per_token")), number(run.median(WAITED)),
                         percent(run.median(HIDDEN)), count(run.median("reads_per_token")),
                         mib(run.median("read_bytes_per_token"))])
    return table(["flash", "ms a token", "ms in reads", "ms that it waits for them", "hidden behind computing",
                  "device reads a token", "MiB read a token"], rows)


def speed_baselines(results):
    runs = results.runs("near-full")
    rows = []
    for context in sorted({run.context for run in runs}):
        ours = results.run("near-full", context, OURS)
        some = {run.policy: run for run in runs if run.context == context}
        for policy in in_order(some):
            run = some[policy]
            rows.append([f"{context:,}", f"`{policy}`", spread(run.values(SPEED), rate),
                         times(ours.median(SPEED), run.median(SPEED)) if ours and policy != OURS else "",
                         mib(run.median("read_bytes_per_token")), count(run.median("reads_per_token")),
                         mib(run.median("kv_dram_bytes"))])
    return table(["tokens behind it", "", "tokens a second", f"`{OURS}` to it", "MiB read a token",
                  "device reads a token", "MiB of memory"], rows)


def shape(results):
    """-> (run behind few tokens, run behind many), or None."""
    short, long = results.runs("shape-short"), [run for run in results.runs("shape-long") if run.policy == OURS]
    return (short[0], long[-1]) if short and long else None


def speed_shape(results):
    pair = shape(results)
    if not pair:
        return None
    rows = [[f"{run.context:,}", f"`{run.policy}`", spread(run.values(SPEED), rate),
             percent(run.median(HIDDEN)) if run.median("reads_per_token") else "", count(run.median("reads_per_token")),
             mib(run.median("read_bytes_per_token"))] for run in pair]
    for run, part in zip(pair, ("shape-short", "shape-long")):
        values = results.peers(part).get(run.context)
        if values:
            rows.append([f"{run.context:,}", "llama.cpp, all in memory", spread(values, rate), "", "", ""])
    return table(["tokens behind it", "", "tokens a second", "reading hidden behind computing", "device reads a token",
                  "MiB read a token"], rows)


def memory_by_budget(results):
    rows = []
    for budget in measure_plan.BUDGETS:
        for run in results.runs(measure_plan.budget_name(budget)):
            rows.append([budget, spread(run.values(SPEED), rate), mib(run.median("kv_dram_accounted_bytes")),
                         spread(run.values("kv_dram_bytes"), mib), mib(run.median("read_bytes_per_token")),
                         count(run.median("reads_per_token"))])
    return table(["budget", "tokens a second", "MiB accounted for", "MiB measured", "MiB read a token",
                  "device reads a token"], rows)


def kv_bytes(results, part, run):
    """-> the bytes of all keys and values of a run's conversation."""
    return results.parts[part]["manifest"]["model"]["kv_token_bytes"] * run.context


def memory_shape(results):
    pair = shape(results)
    if not pair:
        return None
    run, everything = pair[1], kv_bytes(results, "shape-long", pair[1])
    return table(["", "MiB"], [["all keys and values", mib(everything)], ["a thirteenth of them", mib(everything / 13)],
                               ["measured", spread(run.values("kv_dram_bytes"), mib)],
                               ["of it accounted for", mib(run.median("kv_dram_accounted_bytes"))]])


def decoded(results, part):
    """-> how many tokens a round had decoded behind the context when its flash was looked at."""
    return added_tokens(results.parts[part]["options"]["tokens"]) - (1 + WARM_TOKENS)


def flash_of_decode(results):
    rows = []
    for part in ("decode-long", "decode-behind"):
        for run in results.runs(part):
            tokens = run.context + decoded(results, part)
            held = results.parts[part]["manifest"]["model"]["kv_token_bytes"] * tokens
            rows.append([f"`{run.policy}`", count(run.context), count(tokens - run.context), mib(held),
                         mib(run.median("kv_flash_bytes")), times(run.median("kv_flash_bytes"), held),
                         times(run.median("write_amplification"), 1)])
    return table(["", "prompt", "decoded", "MiB of keys and values", "MiB on flash", "of their size",
                  "written of what was decoded"], rows)


def written_by_cause(results):
    part = "decode-behind" if results.runs("decode-behind") else "decode-long"
    run = next((run for run in results.runs(part) if run.policy == OURS), None)
    if not run:
        return None
    each = results.parts[part]["manifest"]["model"]["kv_token_bytes"]
    values = {name: run.median(f"{name}_per_token") for name in WRITE_CAUSES}
    values["write_pool_bytes"] -= values["write_split_bytes"]  # which has them too
    return table(["what is written", "bytes for a byte of keys and values"],
                 [[what, number(sum(values[name] for name in names) / each, 2)] for what, names in WRITTEN])


def resumed(results):
    rows = []
    parts = [(PROFILES[profile], part) for profile, part in speed_parts(results)]
    for what, part in [*parts, ("large model, the machine's own disk", "shape-long")]:
        for run in results.runs(part):
            if run.policy == OURS:
                rows.append([what, count(run.context), number(1000 * run.median("resume_first_token_seconds"), 0),
                             number(1000 * run.median("resume_open_seconds"), 0),
                             spread(run.values("resume_steps")), percent(run.median("resume_read_share"), 1),
                             number(run.prefill_seconds)])
                what = ""
    return table(["flash", "tokens", "ms until the first token", "of it opening", "in steps",
                  "read of its keys and values", "seconds to compute it anew"], rows)


TABLES = {function.__name__: function for function in (
    answers_prefilled, answers_fed, answers_baselines, answers_hardest, answers_larger, near_full, speed_by_flash,
    speed_peer, speed_waiting, speed_baselines, speed_shape, memory_by_budget, memory_shape, flash_of_decode,
    written_by_cause, resumed)}
