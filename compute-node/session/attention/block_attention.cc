#include "compute-node/session/attention/block_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// Tokens of one task: with the heads of a group enough rows to pay for converting a block of
// entries, few enough that the rows' states stay in the cache.
constexpr std::int64_t kTaskTokens = 64;
// Entries of a chunk that are attended before others may compute: a whole number of blocks. For a
// chunk of 4096 tokens and 32 heads of 64 some tens of milliseconds.
constexpr std::int64_t kPieceEntries = 512;
static_assert(kPieceEntries % kAttentionBlockEntries == 0);

constexpr std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Empty behind the last one.
std::span<const std::byte* const> BlockOf(const EntryRun& run, std::int64_t first) {
  first = std::min(first, std::ssize(run.entries));
  const std::int64_t count =
      std::min<std::int64_t>(kAttentionBlockEntries, std::ssize(run.entries) - first);
  return std::span(run.entries)
      .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

BlockAttention::BlockAttention(const ModelConfig& config, KvFormat format, ThreadPool& pool)
    : config_(config),
      format_(format),
      pool_(pool),
      scale_(1.0F / std::sqrt(static_cast<float>(config.head_dim))),
      first_blocks_(static_cast<std::size_t>(config.kv_head_count), 0) {}

void BlockAttention::Start(const AttentionBatch& batch, AttentionScratch& scratch,
                           AttentionWeights* weights) {
  CAIRN_CHECK_LE(batch.token_count * config_.head_count, scratch.row_count_max());
  scratch_ = &scratch;
  batch_ = &batch;
  weights_ = weights;
  token_blocks_ = CeilDivide(batch.token_count, kTaskTokens);
  const std::int64_t tasks = token_blocks_ * config_.kv_head_count;
  head_splits_ = std::min(config_.group_size(), CeilDivide(pool_.thread_count(), tasks));
  pool_.ParallelFor(config_.head_count, [&](std::int64_t head) {
    InitAttention(scratch_->Rows(head * batch.token_count, batch.token_count), config_.head_dim);
  });
}

BlockAttention::Task BlockAttention::TaskAt(std::int64_t index) const {
  const std::int64_t split = index % head_splits_;
  index /= head_splits_;
  const std::int64_t kv_head = index % config_.kv_head_count;
  const std::int64_t block = index / config_.kv_head_count;
  const std::int64_t group = config_.group_size();
  const std::int64_t first = group * split / head_splits_;
  const std::int64_t end = group * (split + 1) / head_splits_;
  const std::int64_t first_token = block * kTaskTokens;
  return {.kv_head = static_cast<std::int32_t>(kv_head),
          .first_head = kv_head * group + first,
          .head_count = end - first,
          .first_token = first_token,
          .token_count = std::min(kTaskTokens, batch_->token_count - first_token)};
}

void BlockAttention::NumberBlocks(std::span<const EntryRun> runs) {
  if (weights_ == nullptr) return;
  for (std::int32_t head = 0; head < config_.kv_head_count; ++head) {
    first_blocks_[static_cast<std::size_t>(head)] = weights_->block_count(head);
  }
  for (const EntryRun& run : runs) weights_->AddBlocks(run.head, std::ssize(run.entries));
}

void BlockAttention::ScoreOne(const Task& task, const KvBlock& block,
                              std::span<const std::int32_t> visible_counts, std::int64_t number) {
  const float* q = batch_->q.data();
  if (batch_->token_count == 1) {
    ScoreBlock(block, scale_,
               {q + task.first_head * config_.head_dim, task.head_count, config_.head_dim},
               visible_counts, weights_->ScoresOf(task.first_head, 0, number));
    return;
  }
  const std::int64_t first = std::max(task.first_token, weights_->first_token());
  const std::int64_t count = task.first_token + task.token_count - first;
  if (count <= 0) return;
  if (!visible_counts.empty()) {
    visible_counts = visible_counts.subspan(static_cast<std::size_t>(first - task.first_token));
  }
  for (std::int64_t head = task.first_head; head < task.first_head + task.head_count; ++head) {
    ScoreBlock(block, scale_,
               {q + first * config_.query_length() + head * config_.head_dim, count,
                config_.query_length()},
               visible_counts, weights_->ScoresOf(head, first, number));
  }
}

void BlockAttention::AttendOne(const Task& task, const KvBlock& block,
                               std::span<const std::int32_t> visible_counts, std::int64_t number) {
  if (weights_ != nullptr) ScoreOne(task, block, visible_counts, number);
  const float* q = batch_->q.data();
  if (batch_->token_count == 1) {
    AttendBlock(block, scale_,
                {q + task.first_head * config_.head_dim, task.head_count, config_.head_dim},
                visible_counts, scratch_->Rows(task.first_head, task.head_count));
    return;
  }
  for (std::int64_t i = 0; i < task.head_count; ++i) {
    const std::int64_t head = task.first_head + i;
    AttendBlock(block, scale_,
                {q + task.first_token * config_.query_length() + head * config_.head_dim,
                 task.token_count, config_.query_length()},
                visible_counts,
                scratch_->Rows(head * batch_->token_count + task.first_token, task.token_count));
  }
}

void BlockAttention::AttendAll(std::span<const EntryRun> runs) {
  NumberBlocks(runs);
  const std::int64_t tasks = token_blocks_ * config_.kv_head_count * head_splits_;
  pool_.ParallelFor(tasks, [&](std::int64_t index) {
    const Task task = TaskAt(index);
    KvBlock block;
    std::int64_t number = first_blocks_[static_cast<std::size_t>(task.kv_head)];
    for (const EntryRun& run : runs) {
      if (run.head != task.kv_head) continue;
      for (std::int64_t i = 0; i < std::ssize(run.entries); i += kAttentionBlockEntries) {
        LoadBlock(BlockOf(run, i), BlockOf(run, i + kAttentionBlockEntries), format_,
                  config_.head_dim, block);
        AttendOne(task, block, {}, number++);
      }
    }
  });
}

void BlockAttention::AttendMeans(std::span<const std::vector<ClusterId>> clusters,
                                 const LoadMeansOf& load) {
  CAIRN_CHECK_EQ(batch_->token_count, 1);
  const std::int64_t tasks = config_.kv_head_count * head_splits_;
  pool_.ParallelFor(tasks, [&](std::int64_t index) {
    const Task task = TaskAt(index);
    const std::span<const ClusterId> of_head = clusters[static_cast<std::size_t>(task.kv_head)];
    const QueryRows rows{batch_->q.data() + task.first_head * config_.head_dim, task.head_count,
                         config_.head_dim};
    KvBlock block;
    std::array<float, kAttentionBlockEntries> biases{};
    for (std::size_t first = 0; first < of_head.size(); first += kAttentionBlockEntries) {
      const std::size_t count =
          std::min<std::size_t>(kAttentionBlockEntries, of_head.size() - first);
      const std::span<float> of_block = std::span(biases).first(count);
      load(task.kv_head, of_head.subspan(first, count), block, of_block);
      for (float& bias : of_block) bias = std::log(bias);
      cairn::compute::AttendMeans(block, of_block, scale_, rows,
                                  scratch_->Rows(task.first_head, task.head_count));
    }
  });
}

void BlockAttention::AttendCausal(std::span<const EntryRun> runs, std::int64_t first_position) {
  NumberBlocks(runs);
  const std::int64_t tasks = token_blocks_ * config_.kv_head_count * head_splits_;
  const std::int64_t entry_count = batch_->first_position + batch_->token_count - first_position;
  for (std::int64_t first = 0; first < entry_count; first += kPieceEntries) {
    if (first > 0 && batch_->between != nullptr) (*batch_->between)();
    pool_.ParallelFor(tasks, [&](std::int64_t index) {
      const Task task = TaskAt(index);
      AttendCausalTask(task, runs[static_cast<std::size_t>(task.kv_head)], first_position, first,
                       first + kPieceEntries);
    });
  }
}

void BlockAttention::AttendCausalTask(const Task& task, const EntryRun& run,
                                      std::int64_t first_position, std::int64_t first,
                                      std::int64_t end) {
  // Entries that the first row of the task sees, and the last.
  const std::int64_t visible_first = batch_->first_position + task.first_token + 1 - first_position;
  const std::int64_t visible_last = visible_first + task.token_count - 1;
  const std::int64_t first_number = first_blocks_[static_cast<std::size_t>(task.kv_head)];
  KvBlock block;
  end = std::min(end, visible_last);
  for (std::int64_t i = first; i < end; i += kAttentionBlockEntries) {
    LoadBlock(BlockOf(run, i), BlockOf(run, i + kAttentionBlockEntries), format_, config_.head_dim,
              block);
    const std::int64_t number = first_number + i / kAttentionBlockEntries;
    if (i + block.entry_count <= visible_first) {
      AttendOne(task, block, {}, number);
      continue;
    }
    CAIRN_CHECK_LT(1, batch_->token_count);  // a single token sees every entry
    std::array<std::int32_t, kTaskTokens> visible_counts;
    for (std::int64_t row = 0; row < task.token_count; ++row) {
      visible_counts[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(visible_first + row - i, 0, block.entry_count));
    }
    AttendOne(task, block,
              std::span(visible_counts).first(static_cast<std::size_t>(task.token_count)), number);
  }
}

std::vector<std::vector<float>> BlockAttention::Finish() {
  const std::int64_t tasks = token_blocks_ * config_.kv_head_count * head_splits_;
  pool_.ParallelFor(tasks, [&](std::int64_t index) {
    const Task task = TaskAt(index);
    for (std::int64_t i = 0; i < task.head_count; ++i) {
      const std::int64_t head = task.first_head + i;
      FinishAttention(
          scratch_->Rows(head * batch_->token_count + task.first_token, task.token_count),
          config_.head_dim,
          batch_->out.data() + task.first_token * config_.query_length() + head * config_.head_dim,
          config_.query_length());
    }
  });
  std::vector<std::vector<float>> weights;
  if (weights_ != nullptr) {
    weights.resize(first_blocks_.size());
    pool_.ParallelFor(config_.kv_head_count, [&](std::int64_t kv_head) {
      weights[static_cast<std::size_t>(kv_head)] = weights_->Sum(
          static_cast<std::int32_t>(kv_head), [&](std::int64_t head, std::int64_t token) {
            return scratch_->Rows(head * batch_->token_count + token, 1);
          });
    });
  }
  batch_ = nullptr;
  weights_ = nullptr;
  return weights;
}

}  // namespace cairn::compute
