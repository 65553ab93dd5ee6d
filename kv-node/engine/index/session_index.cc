#include "kv-node/engine/index/session_index.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/log/log.h"
#include "kv-node/engine/index/index_records.h"

namespace cairn::kv {
namespace {

// A layer's run is written anew when this share of it has changed.
constexpr std::int64_t kIndexChangedShare = 2;
// A larger layer stays unpacked: a run is in memory while it is written.
constexpr std::int64_t kIndexRunBytesMax = std::int64_t{64} << 20;
// What records may take beyond their rows: one of them is as large as the largest.
constexpr std::int64_t kIndexPaddingBytesMax = std::int64_t{1} << 20;
// Checkpoints until a layer that could not be packed is tried again.
constexpr int kIndexRetryCheckpoints = 16;

using RowsByKey = SessionIndex::RowsByKey;

// Behind all that there are.
const ClusterKey kLastKey{std::numeric_limits<std::int32_t>::max(), 0, ClusterId(0)};

std::vector<PartRead> ReadsOf(const IndexRun& run) {
  std::vector<PartRead> reads;
  for (const Part& part : run.parts) reads.push_back({part, run.record_bytes, part.count()});
  return reads;
}

bool ReadFailed(const IndexRun& run, const PageSet& pages) {
  const std::vector<PageIndex> read = PagesOf(ReadsOf(run));
  return std::any_of(read.begin(), read.end(), [&](PageIndex page) { return pages.Failed(page); });
}

// The rows of a part that passed its check.
std::vector<IndexRow> RecordsOf(const Part& part, std::int64_t record_bytes, const PageSet& pages) {
  std::vector<IndexRow> rows;
  for (std::int64_t i = 0; i < part.count(); ++i) {
    absl::StatusOr<IndexRow> row =
        DecodeIndexRecord(pages.Bytes(*part.extent, RangeOf(part, record_bytes, i, 1)));
    if (row.ok()) rows.push_back(*std::move(row));
  }
  return rows;
}

// `value`: as family `index` has it, and as it was checked when it came.
void PutChange(const ClusterKey& key, std::string_view value, RowsByKey& rows) {
  if (value == GoneIndexRow()) {
    rows.erase(key);
    return;
  }
  absl::StatusOr<IndexRow> row = DecodeIndexRow(key, value);
  CAIRN_CHECK(row.ok());
  rows[key] = *std::move(row);
}

std::int64_t BytesOf(const RowsByKey& rows) {
  std::int64_t bytes = 0;
  for (const auto& [key, row] : rows) bytes += IndexRecordBytes(row);
  return bytes;
}

}  // namespace

// The rows that a segment's run and its changes add to those of older segments, `rows`. Returns the
// number of parts that are lost: the clusters in them have no row, also none of an older segment,
// which may say something else by now.
std::int64_t SessionIndex::PutIndexOf(const IndexSource& source, std::int32_t layer,
                                      const PageSet& pages, RowsByKey& rows) const {
  if (source.run.hides_older && !FailPoint("rows of older segments show where a run was lost")) {
    rows.clear();
  }
  for (const ClusterKey& mask : source.masks) rows.erase(mask);
  std::int64_t lost_count = 0;
  bool lost_before = false;
  // Records ascend: what is lost lies between the last one that is there and the next.
  ClusterKey last{layer, kAllHeads, ClusterId(std::numeric_limits<std::int64_t>::min())};
  const auto forget_between = [&](const ClusterKey& next) {
    if (lost_before && !FailPoint("rows of older segments show behind a damaged index run")) {
      rows.erase(rows.upper_bound(last), rows.lower_bound(next));
    }
    lost_before = false;
  };
  for (const Part& part : source.run.parts) {
    const std::int64_t record_bytes = source.run.record_bytes;
    if (CheckPart(context_.store_id, part, record_bytes, part.count(), pages) !=
            PartState::kIntact &&
        !FailPoint("records of an index run are not checked")) {
      ++lost_count;
      lost_before = true;
      continue;
    }
    for (IndexRow& row : RecordsOf(part, record_bytes, pages)) {
      const ClusterKey key{layer, row.cluster.head, row.cluster.cluster_id};
      forget_between(key);
      last = key;
      rows.insert_or_assign(rows.end(), key, std::move(row));  // mostly behind all others
    }
  }
  forget_between(kLastKey);
  for (const auto& [key, value] : source.changed) PutChange(key, value, rows);
  return lost_count;
}

Applied SessionIndex::StartGet(RequestId request_id, const GetIndex& op) {
  if (!host_.HasIoRoom()) return Applied::kWait;
  auto sources = std::make_shared<std::vector<IndexSource>>(state_.IndexSourcesOf(op.layer));
  std::vector<PartRead> reads;
  for (const IndexSource& source : *sources) {
    for (PartRead& read : ReadsOf(source.run)) reads.push_back(std::move(read));
  }
  const auto answer = [this, request_id, sources, layer = op.layer,
                       io = host_.HoldIo()](const PageSet& set) {
    if (host_.stopped()) return;
    RowsByKey rows;
    for (const IndexSource& source : *sources) {
      if (!ReadFailed(source.run, set)) continue;
      ++context_.counts.unreadable_part_count;
      return host_.Reply(request_id, UnreadableIndex(host_.id(), layer));
    }
    for (const IndexSource& source : *sources) {
      context_.counts.lost_part_count += PutIndexOf(source, layer, set, rows);
    }
    host_.Reply(request_id, IndexReplyOf(rows, set.page_count() * kPageBytes));
  };
  if (reads.empty()) {
    answer(PageSet());
  } else {
    context_.ReadParts(std::move(reads), ReadCause::kIndex, answer);
  }
  return Applied::kYes;
}

absl::StatusOr<ReadReply> SessionIndex::IndexReplyOf(RowsByKey& rows, std::int64_t read_bytes) {
  CAIRN_RETURN_IF_ERROR(CheckIndexBytes(BytesOf(rows)));
  IndexReply reply;
  reply.read_bytes = read_bytes;
  reply.rows.reserve(rows.size());
  for (auto& [key, row] : rows) reply.rows.push_back(std::move(row));
  return ReadReply(std::move(reply));
}

// The layer that changed most, of those whose rows are to be packed.
std::optional<std::int32_t> SessionIndex::LayerToPack() const {
  const SegmentRows& open = state_.open();
  std::optional<std::int32_t> layer_to_pack;
  std::int64_t most = 0;
  const bool too_much = open.index.memory_bytes() > context_.options.index_changed_bytes_max &&
                        !FailPoint("unpacked index rows may take any memory");
  for (std::int32_t layer = 0; layer < state_.layout().layer_count; ++layer) {
    const std::int64_t changed_count = open.index.CountOfLayer(layer);
    const auto run = open.index_runs.find(layer);
    const std::int64_t packed_count = run == open.index_runs.end() ? 0 : run->second.record_count();
    if (refused_.contains(layer)) continue;
    if (changed_count > std::max({context_.options.index_changed_min,
                                  too_much ? 0 : packed_count / kIndexChangedShare, most})) {
      most = changed_count;
      layer_to_pack = layer;
    }
  }
  return layer_to_pack;
}

bool SessionIndex::Pack(std::int64_t reserved_page_count) {
  reserved_page_count_ = reserved_page_count;
  while (const std::optional<std::int32_t> layer = LayerToPack()) {
    if (!host_.HasIoRoom()) return true;  // one layer at a time is in memory
    const auto run = state_.open().index_runs.find(*layer);
    if (run == state_.open().index_runs.end() || run->second.parts.empty()) {
      PackLayer(*layer, PageSet());
      continue;
    }
    const std::vector<PartRead> reads = ReadsOf(run->second);
    host_.ReadAtHead(
        PagesOf(reads), AfterRead::kIsTriedAgain,
        [this, layer](const PageSet& pages) { PackLayer(*layer, pages); },
        DoubtOf(context_.store_id, reads));
    return true;
  }
  return false;
}

void SessionIndex::NoteCut() {
  for (auto& [layer, checkpoint_count] : refused_) --checkpoint_count;
  std::erase_if(refused_, [](const auto& layer) { return layer.second == 0; });
}

void SessionIndex::PackLayer(std::int32_t layer, const PageSet& pages) {
  const absl::Status written = WriteIndexRun(layer, pages);
  if (written.ok()) return;
  // What changed stays where it is, in memory and in the family `index`.
  refused_[layer] = kIndexRetryCheckpoints;
  LogInfo("session={} layer={} index run not written error=\"{}\"", host_.id(), layer,
          Message(written));
}

absl::Status SessionIndex::WriteIndexRun(std::int32_t layer, const PageSet& pages) {
  IndexSource source = state_.IndexSourcesOf(layer).back();
  source.masks.clear();  // of older segments' clusters
  if (ReadFailed(source.run, pages)) return Unavailable("the layer's run cannot be read");
  RowsByKey rows;
  const std::int64_t lost_count = PutIndexOf(source, layer, pages, rows);
  context_.counts.lost_part_count += lost_count;
  // Without its damaged part the run would let rows of older segments show.
  if (lost_count > 0 && state_.chain().size() > 1) return DataLoss("the layer's run is damaged");
  IndexRun run;
  run.hides_older = source.run.hides_older && !FailPoint("packing forgets that a run was lost");
  for (const auto& [key, row] : rows) {
    run.record_bytes = std::max(run.record_bytes, IndexRecordBytes(row));
  }
  if (!rows.empty()) CAIRN_RETURN_IF_ERROR(PackRecords(rows, run));
  const auto old = state_.open().index_runs.find(layer);
  if (old != state_.open().index_runs.end() && !old->second.parts.empty()) {
    space_.DropIndexRun(old->second.parts.front().extent);
  }
  state_.SetIndexRun(layer, std::move(run));
  return absl::OkStatus();
}

absl::Status SessionIndex::PackRecords(const RowsByKey& rows, IndexRun& run) {
  const auto record_count = static_cast<std::int64_t>(rows.size());
  const std::int64_t bytes = record_count * run.record_bytes;
  if (bytes > kIndexRunBytesMax || bytes > 2 * BytesOf(rows) + kIndexPaddingBytesMax) {
    return ResourceExhausted("{} rows of up to {} bytes: too many, or too different in size",
                             record_count, run.record_bytes);
  }
  const std::int64_t page_count = (bytes + kPageBytes - 1) / kPageBytes;
  const FreeMap& map = *context_.free_map;
  if (map.page_count() - map.used_count() < page_count + reserved_page_count_) {
    return ResourceExhausted("flash is nearly full");
  }
  const std::int64_t count_max = kPartBytesMax / run.record_bytes;
  CAIRN_ASSIGN_OR_RETURN(const ExtentRef extent,
                         context_.Allocate(ExtentKind::kIndexRun, page_count));
  CAIRN_ASSIGN_OR_RETURN(std::int64_t next_id,
                         context_.ids->Next((record_count + count_max - 1) / count_max));
  SharedBuffer image = context_.io->buffers().MakeZeroed(extent->size_bytes());
  std::int64_t at = 0;
  for (const auto& [key, row] : rows) {
    EncodeIndexRecord(row, image->span().subspan(static_cast<std::size_t>(at),
                                                 static_cast<std::size_t>(run.record_bytes)));
    at += run.record_bytes;
  }
  for (std::int64_t first = 0; first < record_count; first += count_max) {
    Part part;
    part.id = PartId(next_id++);
    part.SetExtent(extent);
    part.offset_bytes = first * run.record_bytes;
    part.positions = Positions::Range(first, std::min(count_max, record_count - first));
    SetCrcs(context_.store_id, part, run.record_bytes, 0, part.count(), *image, 0);
    run.parts.push_back(std::move(part));
  }
  if (!FailPoint("an index run's pages stay free")) space_.AddIndexRun(extent);
  if (!FailPoint("no write of an index run before the commit")) {
    writes_.Write(extent, extent->first(), std::move(image), WriteCause::kIndex);
  }
  return absl::OkStatus();
}

}  // namespace cairn::kv
