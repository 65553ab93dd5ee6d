// Random operations and replies from a seed, valid as the protocol wants them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/kv/messages.h"
#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::rpc::test {

class RandomValues {
 public:
  explicit RandomValues(std::uint64_t seed) : rng_(seed) {}

  std::int64_t Between(std::int64_t min, std::int64_t max) {
    return min + static_cast<std::int64_t>(rng_.Below(static_cast<std::uint64_t>(max - min + 1)));
  }
  bool Coin() { return rng_.Below(2) == 1; }
  std::string Bytes(std::int64_t count) {
    std::string out(static_cast<std::size_t>(count), '\0');
    for (char& c : out) c = static_cast<char>(rng_.Next());
    return out;
  }
  std::int32_t Layer() { return static_cast<std::int32_t>(Between(0, kLayerCountMax - 1)); }
  std::int32_t Head() { return static_cast<std::int32_t>(Between(kAllHeads, kHeadCountMax - 1)); }
  ClusterRef Ref() { return {Head(), ClusterId(Between(1, std::int64_t{1} << 40))}; }
  Positions RandomPositions(std::int64_t count_min) {
    Positions out;
    const std::int64_t count = Between(count_min, 20);
    std::int64_t next = Between(0, 1000);
    for (std::int64_t i = 0; i < count; ++i) {
      out.Append(next);
      next += Between(1, 4);
    }
    return out;
  }
  std::string EntriesOf(const Positions& positions) { return Bytes(positions.count() * 8); }

  EntryLayout Layout() {
    return {static_cast<std::int32_t>(Between(1, kLayerCountMax)),
            static_cast<std::int32_t>(Between(1, kHeadCountMax)),
            static_cast<std::int32_t>(Between(1, kHeadDimMax)),
            kKvFormats[static_cast<std::size_t>(Between(0, std::ssize(kKvFormats) - 1))]};
  }
  SegmentKey Key(KvFormat format) {
    SegmentKey key;
    key.model_digest = Bytes(kDigestBytes);
    if (Coin()) key.adapter_digest = Bytes(kDigestBytes);
    key.adapter_scale = static_cast<float>(Between(0, 100)) / 7.0F;
    key.rope_parameters = "base=" + std::to_string(Between(1, 1000000));
    key.kv_format = format;
    if (Coin()) key.sharing_domain = "public";
    return key;
  }
  IndexRow Row() { return {Ref(), Bytes(Between(0, 64)), Coin(), Between(0, 1000)}; }
  CarriedEntries Carried() {
    CarriedEntries out;
    out.head = Head();
    out.buffer_cluster_id = Coin() ? kWindowBuffer : ClusterId(Between(1, 1000));
    out.positions = RandomPositions(0);
    return out;
  }

  ChangingOperation Change() {
    switch (Between(0, 6)) {
      case 0: {
        Append append{Layer(), {}};
        for (std::int64_t i = Between(0, 5); i > 0; --i) {
          ClusterEntries cluster{Ref(), RandomPositions(1), ""};
          cluster.entries = EntriesOf(cluster.positions);
          append.clusters.push_back(std::move(cluster));
        }
        return append;
      }
      case 1: {
        Replace replace;
        replace.layer = Layer();
        replace.head = Head();
        for (std::int64_t i = Between(0, 5); i > 0; --i) {
          replace.parent_ids.emplace_back(Between(1, 100));
          replace.children.push_back({ClusterId(Between(1, 100)), RandomPositions(1)});
        }
        replace.brought_positions = RandomPositions(0);
        replace.brought_entries = EntriesOf(replace.brought_positions);
        replace.evicted_positions = RandomPositions(0);
        return replace;
      }
      case 2: {
        PutIndexRows put{Layer(), {}};
        for (std::int64_t i = Between(0, 5); i > 0; --i) put.rows.push_back(Row());
        return put;
      }
      case 3:
        return PutPolicyState{static_cast<std::int32_t>(Between(0, 9)), Bytes(Between(0, 99))};
      case 4: {
        StageCarried stage{Layer(), {}};
        for (std::int64_t i = Between(0, 5); i > 0; --i) {
          CarriedEntries carried = Carried();
          carried.brought_positions = carried.positions.Slice(0, carried.positions.count() / 2);
          carried.entries = EntriesOf(carried.brought_positions);
          stage.carried.push_back(std::move(carried));
        }
        return stage;
      }
      case 5: {
        Evict evict{Layer(), Head(), {}};
        evict.positions = RandomPositions(1);
        return evict;
      }
      default: {
        Checkpoint checkpoint;
        checkpoint.token_ids_start = Between(0, 100);
        for (std::int64_t i = Between(0, 20); i > 0; --i) {
          checkpoint.token_ids.push_back(static_cast<std::int32_t>(Between(0, 100000)));
        }
        checkpoint.token_count = checkpoint.token_ids_start + std::ssize(checkpoint.token_ids);
        checkpoint.seal = Coin();
        checkpoint.random_state = Bytes(Between(0, 40));
        for (std::int64_t i = Between(0, 20); i > 0; --i) {
          checkpoint.next_cluster_ids.push_back(Between(0, 1000));
        }
        return checkpoint;
      }
    }
  }

  ReadOperation ReadOf() {
    switch (Between(0, 6)) {
      case 0: {
        Fetch fetch{Layer(), {}, Coin()};
        for (std::int64_t i = Between(0, 9); i > 0; --i) fetch.clusters.push_back(Ref());
        return fetch;
      }
      case 1:
        return GetIndex{Layer()};
      case 2:
        return GetCarried{Layer()};
      case 3:
        return GetTokens{Between(0, 1000),
                         static_cast<std::int32_t>(Between(0, kGetTokensCountMax))};
      case 4:
        return GetPolicyState{};
      case 5:
        return FetchIndex{Layer(), Coin()};
      default:
        return GetClusters{Layer()};
    }
  }

  FetchReply Fetched() {
    FetchReply reply;
    reply.read_bytes = Between(0, 100000);
    for (std::int64_t i = Between(0, 5); i > 0; --i) {
      FetchedCluster cluster;
      cluster.cluster = Ref();
      cluster.outcome = static_cast<FetchOutcome>(Between(1, 3));
      for (std::int64_t k = Between(0, 3); k > 0; --k) {
        Span span;
        span.part_id = PartId(Between(0, 100000));
        span.first_entry = Between(0, 10);
        span.positions = RandomPositions(1);
        span.entry_count = span.positions.count();
        span.direction = Coin() ? Direction::kUp : Direction::kDown;
        // On both sides of what is lent instead of copied.
        const std::int64_t entry_bytes = Coin() ? 16 : 4096;
        auto bytes = std::make_shared<const std::string>(Bytes(span.entry_count * entry_bytes));
        span.bytes = std::as_bytes(std::span<const char>(bytes->data(), bytes->size()));
        span.owner = bytes;
        if (Coin()) span.positions = Positions();
        cluster.spans.push_back(std::move(span));
      }
      reply.clusters.push_back(std::move(cluster));
    }
    return reply;
  }

 private:
  cairn::test::Rng rng_;
};

// A test whose values come from a seed, which is printed.
class SeededTest : public testing::Test {
 protected:
  const std::uint64_t seed_ = cairn::test::TestSeed();
};

}  // namespace cairn::rpc::test
