// Random rows of every kind, for tests that encode them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv-node/layout/rows.h"
#include "tests/tools/rng.h"

namespace cairn::kv {

inline std::int64_t Draw(test::Rng& rng, std::int64_t bound) {
  return static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(bound)));
}

inline std::string RandomBytes(test::Rng& rng, std::int64_t size) {
  std::string out(static_cast<std::size_t>(size), '\0');
  for (char& c : out) c = static_cast<char>(rng.Next());
  return out;
}

// Small numbers mostly, large ones now and then, up to what a varint holds.
inline std::int64_t RandomNumber(test::Rng& rng) {
  return static_cast<std::int64_t>(rng.Next() >> (1 + rng.Below(63)));
}

inline Positions RandomPositions(test::Rng& rng, std::int64_t run_count) {
  Positions out;
  std::int64_t next = Draw(rng, 5000);
  for (std::int64_t i = 0; i < run_count; ++i) {
    const std::int64_t length = 1 + Draw(rng, 4);
    out.AppendAll(Positions::Range(next, length));
    next += length + 1 + Draw(rng, 300);
  }
  return out;
}

inline EntryLayout RandomLayout(test::Rng& rng) {
  return {.layer_count = static_cast<std::int32_t>(1 + Draw(rng, kLayerCountMax)),
          .head_count = static_cast<std::int32_t>(1 + Draw(rng, kHeadCountMax)),
          .head_dim = static_cast<std::int32_t>(1 + Draw(rng, kHeadDimMax)),
          .kv_format = kKvFormats[rng.Below(kKvFormats.size())]};
}

inline SegmentKey RandomKey(test::Rng& rng) {
  const bool adapted = rng.Below(2) == 0;
  return {.model_digest = RandomBytes(rng, kDigestBytes),
          .adapter_digest = adapted ? RandomBytes(rng, kDigestBytes) : std::string(),
          .adapter_scale = adapted ? 0.75F : 0.0F,
          .rope_parameters = RandomBytes(rng, 1 + Draw(rng, 40)),
          .kv_format = kKvFormats[rng.Below(kKvFormats.size())],
          .sharing_domain = RandomBytes(rng, Draw(rng, 20))};
}

inline SessionRow RandomSessionRow(test::Rng& rng) {
  SessionRow row;
  row.app = AppId(RandomNumber(rng));
  row.segment = SegmentId(RandomNumber(rng));
  row.epoch = Epoch(RandomNumber(rng));
  row.op_seq = OpSeq(RandomNumber(rng));
  row.layout = RandomLayout(rng);
  row.key = RandomKey(rng);
  row.label = RandomBytes(rng, Draw(rng, kLabelBytesMax + 1));
  row.token_count = RandomNumber(rng);
  row.flash_bytes = RandomNumber(rng);
  row.create_time_us = RandomNumber(rng);
  row.checkpoint_time_us = RandomNumber(rng);
  if (rng.Below(4) != 0) row.uid = RandomBytes(rng, kUidBytes);
  if (rng.Below(4) != 0) row.owner = {RandomBytes(rng, kUidBytes), RandomNumber(rng)};
  row.lifetime = static_cast<SessionLifetime>(1 + rng.Below(3));
  row.creator = RandomBytes(rng, Draw(rng, kCreatorBytesMax + 1));
  return row;
}

inline SegmentRow RandomSegmentRow(test::Rng& rng) {
  SegmentRow row;
  row.app = AppId(RandomNumber(rng));
  row.parent = SegmentId(RandomNumber(rng));
  row.start = Draw(rng, kPositionMax);
  row.token_count = Draw(rng, kPositionMax);
  row.sealed = rng.Below(2) == 0;
  row.has_checkpoint = rng.Below(2) == 0;
  for (std::int64_t i = Draw(rng, 60); i > 0; --i) {
    row.next_cluster_ids.push_back(RandomNumber(rng));
  }
  row.key = RandomKey(rng);
  row.layout = RandomLayout(rng);
  return row;
}

inline std::vector<ClusterLink> RandomLinks(test::Rng& rng) {
  std::vector<ClusterLink> links;
  std::int64_t id = 0;
  for (std::int64_t i = 1 + Draw(rng, kLinksOfClusterMax); i > 0; --i) {
    id += 1 + Draw(rng, std::int64_t{1} << (1 + Draw(rng, 40)));
    links.push_back({ClusterId(id), static_cast<std::int32_t>(1 + Draw(rng, kLinkCountMax))});
  }
  return links;
}

inline DeviceProfile RandomProfile(test::Rng& rng) {
  DeviceProfile profile;
  profile.device_name = RandomBytes(rng, Draw(rng, 65));
  profile.page_latency = std::chrono::microseconds(Draw(rng, 1 << 20));
  profile.knee_bytes = Draw(rng, kRequestBytesMax + 1);
  profile.break_even_gap_bytes = Draw(rng, kRequestBytesMax + 1);
  profile.queue_depth = static_cast<int>(1 + Draw(rng, kQueueDepthMax));
  for (auto* points : {&profile.by_size, &profile.by_depth}) {
    points->resize(static_cast<std::size_t>(Draw(rng, kProfilePointsMax + 1)));
    for (ProfilePoint& point : *points) {
      point = {.request_bytes = Draw(rng, kRequestBytesMax + 1),
               .depth = static_cast<int>(Draw(rng, kQueueDepthMax + 1)),
               .bytes_per_second = RandomNumber(rng)};
    }
  }
  return profile;
}

// Parts that EncodeParts may be given: pool parts of both directions, and in runs groups of
// neighbouring one-entry records among others.
inline std::vector<Part> RandomParts(test::Rng& rng, std::int64_t entry_bytes) {
  std::vector<Part> parts;
  const auto map = std::make_shared<FreeMap>(1 << 20, 2);
  std::int64_t id = 1 + Draw(rng, 1 << 30);
  std::int64_t position = Draw(rng, 1000);
  for (std::int64_t i = Draw(rng, 6); i > 0; --i) {
    const bool pool = rng.Below(2) == 0;
    const std::int64_t page_count = pool ? std::int64_t{1} << Draw(rng, 5) : 1 + Draw(rng, 40);
    const auto extent =
        std::make_shared<Extent>(map, pool ? ExtentKind::kPool : ExtentKind::kLogRun,
                                 PageIndex(2 + Draw(rng, 1 << 19)), page_count,
                                 /*committed=*/true);
    const std::int64_t room = extent->size_bytes() / entry_bytes;
    const std::int64_t record_count = pool ? 1 : 1 + Draw(rng, std::min<std::int64_t>(room, 9));
    std::int64_t offset_bytes = 0;
    for (std::int64_t j = 0; j < record_count; ++j) {
      Part part;
      part.id = PartId(id++);
      part.SetExtent(extent);
      part.offset_bytes = offset_bytes;
      part.direction = pool && rng.Below(2) == 0 ? Direction::kDown : Direction::kUp;
      const std::int64_t count = pool ? 1 + Draw(rng, room) : 1;
      part.positions = Positions::Range(position, count);
      position += count + (rng.Below(4) == 0 ? 1 + Draw(rng, 50) : 0);
      const auto pieces = PiecesOf(part, entry_bytes, 0, count);
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        part.crcs.push_back(static_cast<std::uint32_t>(rng.Next()));
      }
      offset_bytes += count * entry_bytes;
      parts.push_back(part);
    }
    id += Draw(rng, 3);
  }
  return parts;
}

}  // namespace cairn::kv
