#include "kv-node/engine/space/part_rows.h"

#include <algorithm>

namespace cairn::kv {
namespace {

// Room for a part of scattered entries.
constexpr std::int64_t kPartRowBytesUsual = 64;

// Most runs are one position long: a bit says so.
void PutPositions(ByteWriter& out, const Positions& positions) {
  out.Varint(std::ssize(positions.runs()));
  std::int64_t end = 0;
  for (const Positions::Run& run : positions.runs()) {
    out.Varint((run.start - end) << 1 | (run.length > 1 ? 1 : 0));
    if (run.length > 1) out.Varint(run.length);
    end = run.start + run.length;
  }
}

Positions GetFirstAndCount(ByteReader& in) {
  std::int64_t first = 0;
  std::int64_t count = 0;
  for (std::int64_t left = in.Varint(); left > 0; --left) {
    const std::int64_t head = in.Varint();
    if (count == 0) first = head >> 1;
    count += (head & 1) != 0 ? in.Varint() : 1;
  }
  return Positions::Range(first, count);
}

Positions GetPositions(ByteReader& in) {
  Positions::Runs runs(static_cast<std::size_t>(in.Varint()));
  std::int64_t end = 0;
  for (Positions::Run& run : runs) {
    run = RowPositions::NextRun(in, end);
    end = run.start + run.length;
  }
  return Positions::FromOwnRuns(std::move(runs));
}

}  // namespace

// As DecodeOne reads them.
void RowPositions::SkipPlace(ByteReader& in) {
  in.Byte();    // kind and direction
  in.Varint();  // id
  in.Varint();  // first page
  in.Varint();  // page count
  in.Varint();  // offset
}

void RowPositions::SkipCrcs(ByteReader& in) {
  for (std::int64_t left = in.Varint(); left > 0; --left) in.Fixed32();
}

std::vector<StoredPart> PartRows::Find(const ClusterKey& key) const {
  const std::optional<std::string_view> row = rows_.Find(key);
  return row ? Decode(*row) : std::vector<StoredPart>();
}

void PartRows::Put(const ClusterKey& key, const std::vector<StoredPart>& parts) {
  CAIRN_CHECK(!parts.empty());
  ByteWriter out;
  out.Reserve(std::ssize(parts) * kPartRowBytesUsual);
  const bool names_log = std::any_of(parts.begin(), parts.end(), [](const StoredPart& part) {
    return part.kind == ExtentKind::kLogRun;
  });
  out.Byte(names_log ? 1 : 0);
  for (const StoredPart& part : parts) {
    out.Byte(static_cast<std::uint8_t>(static_cast<int>(part.kind) << 1 |
                                       (part.direction == Direction::kDown ? 1 : 0)));
    out.Varint(part.id.value());
    out.Varint(part.first_page.value());
    out.Varint(part.page_count);
    out.Varint(part.offset_bytes);
    PutPositions(out, part.positions);
    out.Varint(std::ssize(part.crcs));
    for (const std::uint32_t crc : part.crcs) out.Fixed32(crc);
  }
  rows_.Put(key, out.Take());
}

StoredPart PartRows::DecodeOne(ByteReader& in, PositionDetail detail) {
  StoredPart part;
  const std::uint8_t flags = in.Byte();
  part.kind = static_cast<ExtentKind>(flags >> 1);
  part.direction = (flags & 1) != 0 ? Direction::kDown : Direction::kUp;
  part.id = PartId(in.Varint());
  part.first_page = PageIndex(in.Varint());
  part.page_count = in.Varint();
  part.offset_bytes = in.Varint();
  part.positions = detail == PositionDetail::kAll ? GetPositions(in) : GetFirstAndCount(in);
  part.crcs.resize(static_cast<std::size_t>(in.Varint()));
  for (std::uint32_t& crc : part.crcs) crc = in.Fixed32();
  return part;
}

std::vector<StoredPart> PartRows::Decode(std::string_view row) {
  std::vector<StoredPart> parts;
  DecodeEach(row, PositionDetail::kAll, [&](StoredPart part) { parts.push_back(std::move(part)); });
  return parts;
}

}  // namespace cairn::kv
