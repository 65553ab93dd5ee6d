"""What `cairn-bench tune` measures, in which order, and what it takes of it ("KVSwap", Appendix A).

The search is the paper's: the most exact small keys that have room, and of these the smallest groups whose reading
hides behind computing; where none does, less exact keys, which leave more memory for groups that are kept. What is then
taken is the fastest of everything that was measured, within the memory and near enough to full attention.
"""
import collections

# What a conversation is made with. small_key_bits: "" as the policy has it for the model.
Setting = collections.namedtuple("Setting", "policy cluster_entries small_key_bits")
# What a daemon has that nobody has configured.
UNTUNED = Setting("dynakv", 8, "")
CLUSTER_SIZES = (8, 16)
GROUP_SIZES = (4, 8, 16)
# Small keys may have so much of the budget: the other half is window, kept groups and what is on its way.
SMALL_KEY_SHARE = 0.5
# A conversation may grow to so many times the longest length before its small keys take the whole budget, which ends
# it.
GROWTH = 2
# Small keys have a digit of bits for each 32 axes, and the axes of all layers have room for so much.
AXES_OF_DIGIT = 32
DIGITS_MAX = 32
AXES_BYTES_MAX = 2 << 20
# Below it what counts is what the daemons account for.
MEASURED_BUDGET_MIN = 16 << 20
# More numbers than this in the keys of all heads the policy refuses.
JOINT_KEY_MAX = 1024


def name(setting):
    """-> a setting for people."""
    of = "clusters" if setting.policy == UNTUNED.policy else "groups"
    bits = f", small keys {short_bits(setting.small_key_bits)}" if setting.small_key_bits else ""
    return f"{setting.policy}, {of} of {setting.cluster_entries}{bits}"


def short_bits(bits):
    """-> "4x2 4x1" of "22221111"."""
    runs = []
    for digit in bits:
        if runs and runs[-1][1] == digit:
            runs[-1][0] += 1
        else:
            runs.append([1, digit])
    return " ".join(f"{count}x{digit}" for count, digit in runs)


def small_key_levels(model):
    """-> small_key_bits that a model can have, from the most exact ones on; [] where it can have none."""
    joint = model.joint_key_dim
    if joint > JOINT_KEY_MAX:
        return []
    room = AXES_BYTES_MAX // (model.layer_count * joint * AXES_OF_DIGIT)
    digits = max(1, min(-(-joint // AXES_OF_DIGIT), room, DIGITS_MAX))
    half = (digits + 1) // 2
    return list(dict.fromkeys(["4" * digits, "2" * digits, "2" * half + "1" * (digits - half), "1" * digits]))


def small_key_bytes(bits, model, context):
    """-> the memory of all small keys of a conversation."""
    return sum(map(int, bits)) * AXES_OF_DIGIT // 8 * model.layer_count * context


def fitting_levels(model, context, longest, budget):
    """-> those of small_key_levels that have room in the budget, also once a conversation has grown.

    longest: of the lengths that are tuned for. A conversation has the setting of the length that it begins with.
    """
    grown = min(GROWTH * longest, model.context_tokens)
    return [bits for bits in small_key_levels(model)
            if small_key_bytes(bits, model, context) <= SMALL_KEY_SHARE * budget
            and small_key_bytes(bits, model, grown) <= budget]


def search(levels, hidden_wanted, measure):
    """Measures what the paper's solver would, for one context.

    levels: from the most exact ones on. measure(setting) -> the share of reading that is hidden behind computing, None
    where nothing is read.
    """
    for bits in levels:
        for size in GROUP_SIZES:
            hidden = measure(Setting("kvswap", size, bits))
            if hidden is None or hidden >= hidden_wanted:
                return


def memory_bytes(figures, budget):
    """-> what a setting takes at most: both processes as measured, or, where the programs' own buffers would count
    more than keys and values, what the daemons accounted for.
    """
    decoding = "kv_dram_bytes" if budget >= MEASURED_BUDGET_MIN else "kv_dram_accounted_bytes"
    return max(figures[decoding], figures["prefill"]["kv_dram_accounted_bytes"])


def within(measured, budget):
    """-> those of the settings that keep within the budget. measured: {Setting: figures of tune_command}."""
    return {setting: figures for setting, figures in measured.items() if memory_bytes(figures, budget) <= budget}


def best(measured, divergence, limit):
    """-> the fastest setting that is near enough, or None.

    measured: {Setting: figures of tune_command}. divergence(setting) -> its mean divergence from full attention, asked
    for as few settings as possible. limit: the most that may be.
    """
    for setting in sorted(measured, key=lambda each: -measured[each]["decode_tokens_per_second"]):
        if setting == UNTUNED or divergence(setting) <= limit:
            return setting
    return None
