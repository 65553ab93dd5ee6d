#include "tests/bench/trace/trace_source.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "compute-node/kernels/convert.h"
#include "tests/tools/rng.h"

namespace cairn::bench {
namespace {

constexpr std::int64_t kTokensPerTopic = 64;
constexpr std::uint64_t kTopicTokens = 16;  // that a text stays with one, on average
constexpr std::uint64_t kQueryTokens = 8;
constexpr float kDrift = 0.05F;
constexpr float kSpread = 0.5F;  // around a topic whose coordinates are about 1

// One layer and KV head.
class TopicWalk {
 public:
  TopicWalk(std::int64_t dim, std::int64_t topic_max, std::uint64_t seed)
      : rng_(seed), dim_(dim), topic_max_(topic_max) {}

  std::vector<float> NextKey() {
    if (topics_.empty() || rng_.Below(kTopicTokens) == 0) Move();
    std::vector<float>& topic = topics_[here_];
    for (float& x : topic) x += kDrift * rng_.Normal();
    return Near(topic);
  }

  std::vector<float> NextQueries(std::int64_t group_size) {
    if (rng_.Below(kQueryTokens) == 0) wanted_ = rng_.Below(topics_.size());
    std::vector<float> rows;
    for (std::int64_t i = 0; i < group_size; ++i) {
      const std::vector<float> row = Near(topics_[wanted_]);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

 private:
  void Move() {
    const bool old = !topics_.empty() && rng_.Below(2) == 0;
    if (old || std::ssize(topics_) >= topic_max_) {
      here_ = rng_.Below(topics_.size());
      return;
    }
    here_ = topics_.size();
    std::vector<float> topic(static_cast<std::size_t>(dim_));
    for (float& x : topic) x = rng_.Normal();
    topics_.push_back(std::move(topic));
  }

  std::vector<float> Near(const std::vector<float>& topic) {
    std::vector<float> out = topic;
    for (float& x : out) x += kSpread * rng_.Normal();
    return out;
  }

  test::Rng rng_;
  const std::int64_t dim_;
  const std::int64_t topic_max_;
  std::vector<std::vector<float>> topics_;
  std::size_t here_ = 0;
  std::size_t wanted_ = 0;
};

// The trace's rows are const for readers only.
std::span<std::uint16_t> Writable(std::span<const std::uint16_t> row) {
  return {const_cast<std::uint16_t*>(row.data()), row.size()};
}

void SizeRows(Trace& trace) {
  trace.keys.resize(static_cast<std::size_t>(trace.key_value_count()));
  trace.queries.resize(static_cast<std::size_t>(trace.query_value_count()));
}

void Walk(const SyntheticOptions& options, std::int64_t layer, std::int64_t head, Trace& trace) {
  const auto stream = static_cast<std::uint64_t>(layer * trace.kv_head_count + head);
  TopicWalk walk(trace.head_dim, 1 + trace.token_count / kTokensPerTopic,
                 options.seed * 1000003 + stream);
  std::int64_t step = 0;
  for (std::int64_t at = 0; at < trace.token_count; ++at) {
    if (step < std::ssize(trace.steps) && trace.steps[static_cast<std::size_t>(step)] == at) {
      compute::F32ToF16(walk.NextQueries(trace.group_size),
                        Writable(trace.Queries(step, layer, head)));
      ++step;
    }
    compute::F32ToF16(walk.NextKey(), Writable(trace.Key(layer, head, at)));
  }
}

}  // namespace

absl::StatusOr<Trace> SyntheticTrace(const SyntheticOptions& options) {
  if (options.query_every < 1 || options.prompt_count < 1) {
    return InvalidArgument("a synthetic trace needs a prompt, and queries every 1 or more tokens");
  }
  Trace trace;
  trace.layer_count = static_cast<std::int32_t>(options.layer_count);
  trace.kv_head_count = static_cast<std::int32_t>(options.kv_head_count);
  trace.group_size = static_cast<std::int32_t>(options.group_size);
  trace.head_dim = static_cast<std::int32_t>(options.head_dim);
  trace.token_count = options.token_count;
  trace.prompt_count = options.prompt_count;
  trace.origin = fmt::format("synthetic: keys around topics that move, seed {}", options.seed);
  trace.layers.resize(static_cast<std::size_t>(
      std::clamp<std::int64_t>(options.layer_count, 0, std::int64_t{1} << 10)));
  trace.kv_heads.resize(static_cast<std::size_t>(
      std::clamp<std::int64_t>(options.kv_head_count, 0, std::int64_t{1} << 10)));
  std::iota(trace.layers.begin(), trace.layers.end(), 0);
  std::iota(trace.kv_heads.begin(), trace.kv_heads.end(), 0);
  const std::int64_t query_from = options.query_from < 0 ? trace.prompt_count : options.query_from;
  for (std::int64_t at = query_from; at < trace.token_count; at += options.query_every) {
    trace.steps.push_back(static_cast<std::int32_t>(at));
  }
  SizeRows(trace);
  CAIRN_RETURN_IF_ERROR(trace.Validate());
  for (std::int64_t layer = 0; layer < options.layer_count; ++layer) {
    for (std::int64_t head = 0; head < options.kv_head_count; ++head) {
      Walk(options, layer, head, trace);
    }
  }
  return trace;
}

absl::StatusOr<Trace> PairHeads(const Trace& trace) {
  const std::int64_t head_count = std::ssize(trace.kv_heads);
  if (head_count % 2 != 0) {
    return InvalidArgument("pair heads: {} KV heads are recorded, not an even number", head_count);
  }
  Trace out = trace;
  out.kv_head_count = static_cast<std::int32_t>(head_count / 2);
  out.head_dim = 2 * trace.head_dim;
  out.origin += "; pairs of KV heads taken as one of twice the size";
  out.kv_heads.resize(static_cast<std::size_t>(head_count / 2));
  std::iota(out.kv_heads.begin(), out.kv_heads.end(), 0);
  SizeRows(out);
  CAIRN_RETURN_IF_ERROR(out.Validate());
  const auto dim = static_cast<std::size_t>(trace.head_dim);
  for (std::int64_t layer = 0; layer < std::ssize(trace.layers); ++layer) {
    for (std::int64_t head = 0; head < head_count; ++head) {
      const std::size_t offset = head % 2 == 0 ? 0 : dim;
      for (std::int64_t token = 0; token < trace.token_count; ++token) {
        const std::span<const std::uint16_t> key = trace.Key(layer, head, token);
        std::copy(key.begin(), key.end(),
                  Writable(out.Key(layer, head / 2, token)).begin() +
                      static_cast<std::ptrdiff_t>(offset));
      }
      for (std::int64_t step = 0; step < std::ssize(trace.steps); ++step) {
        const std::span<const std::uint16_t> from = trace.Queries(step, layer, head);
        const std::span<std::uint16_t> to = Writable(out.Queries(step, layer, head / 2));
        for (std::size_t row = 0; row * dim < from.size(); ++row) {
          std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(row * dim), dim,
                      to.begin() + static_cast<std::ptrdiff_t>(2 * row * dim + offset));
        }
      }
    }
  }
  return out;
}

}  // namespace cairn::bench
