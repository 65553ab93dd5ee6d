// A store on files that an engine has written: a sealed segment with two sessions on it (one that
// went on, one fork) and a session of its own; then stopped, damaged by hand, and looked at.
#pragma once

#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/device/file_device.h"
#include "kv-node/engine/place/co_fetches.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/layout/index_run.h"
#include "kv-node/layout/rows.h"
#include "kv-node/util/store_tool.h"
#include "tests/tools/file_bytes.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {

class StoreTest : public EngineTest {
 protected:
  static constexpr std::int64_t kStoreBytes = std::int64_t{4} << 20;
  static constexpr std::int64_t kSealedTokens = 64;
  static constexpr std::int64_t kForkedTokens = 50;
  static constexpr std::int64_t kTokens = 90;

  // The engine writes it once for all tests of the process; each gets a copy.
  void SetUp() override {
    static const test::TempDir written;
    static SegmentId sealed;
    static SessionId talk, fork, alone;
    if (sealed.value() == 0) {
      ASSERT_NO_FATAL_FAILURE(Write());
      std::filesystem::copy(dir_.path(), written.path(), std::filesystem::copy_options::recursive);
      std::tie(sealed, talk, fork, alone) = std::tie(sealed_, talk_, fork_, alone_);
    } else {
      std::filesystem::copy(written.path(), dir_.path(), std::filesystem::copy_options::recursive);
      std::tie(sealed_, talk_, fork_, alone_) = std::tie(sealed, talk, fork, alone);
    }
  }

  void Write() {
    auto file = ExtentFile::Create({.directory = dir_.path()},
                                   {.size_bytes = kStoreBytes, .prefill = false});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    ASSERT_NO_FATAL_FAILURE(OpenEngine());
    ASSERT_NO_FATAL_FAILURE(Fill());
    CloseEngine();
  }

  void OpenEngine() {
    if (file_ == nullptr) {
      auto file = ExtentFile::Open({.directory = dir_.path()});
      ASSERT_TRUE(file.ok()) << file.status();
      file_ = *std::move(file);
    }
    auto device = OpenFileDevice(file_->fd(),
                                 {.engine = IoEngine::kThreads, .size_bytes = file_->size_bytes()});
    ASSERT_TRUE(device.ok()) << device.status();
    auto store = MetaStore::Open(Meta());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(CheckStoreId(**store, Meta().store_id, file_->path()).ok());
    EngineOptions options;
    options.place_entries_min = 3;
    options.index_changed_min = 1;
    options.defragment = defragment_;
    options.defragment_idle = std::chrono::milliseconds(0);
    auto engine = Engine::Open(options, file_->store_id(), *std::move(device), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // As the daemon does.
  void CloseEngine() {
    engine_.reset();
    EXPECT_TRUE(file_->RecordMetadataSequence(closed_sequence_).ok());
    file_.reset();
  }

  MetaOptions Meta() {
    MetaOptions meta;
    meta.path = dir_.File(kMetaDirectoryName);
    meta.sequence_min = file_->superblock().metadata_sequence;
    meta.extent_path = file_->path();
    meta.store_id.assign(reinterpret_cast<const char*>(file_->store_id().data()),
                         file_->store_id().size());
    meta.on_clean_close = [this](std::uint64_t sequence) { closed_sequence_ = sequence; };
    return meta;
  }

  void Fill() {
    next_cluster_id_ = 3;
    const SessionId talk = Create();
    auto first = Open(talk);
    AppendAll(*first, 1, Positions::Range(0, 20));
    AppendAll(*first, 2, Positions::Range(20, 40));
    CarryAll(*first, Positions::Range(60, 4), Positions::Range(60, 4));
    first->Send(RowsOfLayer1(1, "sealed", 20));
    const auto sealed = TakeCheckpoint(*first, 0, kSealedTokens, /*seal=*/true);
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    sealed_ = sealed->sealed_segment_id;
    first.reset();
    Continue(talk);
    const SessionId fork = Create(sealed_, kForkedTokens);
    auto second = Open(fork);
    AppendAll(*second, 5, Positions::Range(kForkedTokens, 30));
    const auto forked = TakeCheckpoint(*second, kForkedTokens, kForkedTokens + 30);
    ASSERT_TRUE(forked.ok()) << forked.status();
    const SessionId alone = Create();
    auto third = Open(alone);
    AppendAll(*third, 1, Positions::Range(0, 30));
    ASSERT_TRUE(TakeCheckpoint(*third, 0, 30).ok());
    talk_ = talk;
    fork_ = fork;
    alone_ = alone;
  }

  // A row for each head: enough for a run.
  PutIndexRows RowsOfLayer1(std::int64_t cluster, const std::string& row,
                            std::int64_t entry_count) const {
    PutIndexRows put;
    put.layer = 1;
    for (std::int32_t head = 0; head < layout_.head_count; ++head) {
      put.rows.push_back({{head, ClusterId(cluster)}, row, true, entry_count});
    }
    return put;
  }

  // An old cluster grows, another is split (and masked), one of the children evicted.
  void Continue(SessionId id) {
    auto session = Open(id);
    AppendAll(*session, 1, Positions::Range(60, 20));
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        Replace op;
        op.layer = layer;
        op.head = head;
        op.parent_ids = {ClusterId(2)};
        op.children = {{ClusterId(10), Positions::Range(20, 15)},
                       {ClusterId(11), Positions::Range(35, 20)}};
        op.evicted_positions = Positions::Range(55, 5);
        session->Send(std::move(op));
      }
    }
    next_cluster_id_ = 12;
    PutIndexRows index;
    index.rows = {{{0, ClusterId(10)}, "centroid", false, 15}};
    session->Send(index);
    session->Send(RowsOfLayer1(11, "packed", 20));
    for (std::uint64_t i = 0; i < 16 * kCoFetchSample; ++i) {  // until it is counted
      ASSERT_TRUE(session->Read(Fetch{0, {{0, ClusterId(10)}, {0, ClusterId(11)}}, false}).ok());
    }
    PutPolicyState policy;
    policy.version = 1;
    policy.state = "state";
    session->Send(policy);
    CarryAll(*session, Positions::Range(80, 10), Positions::Range(80, 10));
    const auto done = TakeCheckpoint(*session, kSealedTokens, kTokens);
    ASSERT_TRUE(done.ok()) << done.status();
  }

  // Changes rows of the stopped store behind the engine's back.
  using Row = std::pair<std::string, std::string>;
  void EditRows(const std::function<void(MetaReader&, MetaBatch&)>& edit) {
    MetaOptions options;
    options.path = dir_.File(kMetaDirectoryName);
    auto meta = MetaStore::Open(options);
    ASSERT_TRUE(meta.ok()) << meta.status();
    MetaBatch batch;
    edit((*meta)->reader(), batch);
    ASSERT_FALSE(batch.empty());
    ASSERT_TRUE((*meta)->CommitAndWait(std::move(batch)).ok());
  }
  static std::vector<Row> RowsOf(MetaReader& reader, Family family,
                                 const std::string& prefix = "") {
    std::vector<Row> rows;
    EXPECT_TRUE(reader
                    .Scan(family, prefix,
                          [&](std::string_view key, std::string_view value) {
                            rows.emplace_back(key, value);
                            return absl::OkStatus();
                          })
                    .ok());
    return rows;
  }
  static std::vector<Row> ClusterRows(MetaReader& reader, SegmentId segment, ClusterRowKind kind) {
    std::vector<Row> rows = RowsOf(reader, Family::kClusters, SegmentPrefix(segment));
    std::erase_if(rows,
                  [&](const Row& row) { return ParseClusterRowKey(row.first)->kind != kind; });
    return rows;
  }
  SessionRow SessionOf(MetaReader& reader, SessionId id) {
    return *DecodeSessionRow(*reader.Get(Family::kSessions, SessionKeyBytes(id)).value());
  }
  SegmentId OpenSegmentOf(MetaReader& reader, SessionId id) {
    return SessionOf(reader, id).segment;
  }
  // Of one head, as all clusters in these tests.
  std::vector<StoredPart> PartsIn(const Row& row) const {
    return *DecodeParts(row.second, layout_.EntryBytes(0));
  }
  std::string PartsValue(const std::vector<StoredPart>& parts) const {
    std::vector<Part> out;
    const auto map = std::make_shared<FreeMap>(0, 0);
    for (const StoredPart& stored : parts) {
      Part part;
      part.id = stored.id;
      part.SetExtent(std::make_shared<Extent>(map, stored.kind, stored.first_page,
                                              stored.page_count,
                                              /*committed=*/true));
      part.offset_bytes = stored.offset_bytes;
      part.direction = stored.direction;
      part.positions = stored.positions;
      part.crcs = stored.crcs;
      out.push_back(part);
    }
    return EncodeParts(out, layout_.EntryBytes(0));
  }

  void FlipByte(std::int64_t offset) {
    std::fstream file(dir_.File(kExtentFileName), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(offset);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }

  ToolOptions Tool() const {
    return {.directory = dir_.path(), .lock_wait = std::chrono::milliseconds(0)};
  }
  // All lines; the status of the call is expected to be OK.
  std::vector<std::string> Verify() {
    std::vector<std::string> lines;
    const auto count = VerifyStore(Tool(), [&](const std::string& line) { lines.push_back(line); });
    EXPECT_TRUE(count.ok()) << count.status();
    finding_count_ = count.value_or(-1);
    return lines;
  }
  std::vector<std::string> Repair(RepairMode mode = RepairMode::kRepair) {
    std::vector<std::string> lines;
    const auto count =
        RepairStore(Tool(), mode, [&](const std::string& line) { lines.push_back(line); });
    EXPECT_TRUE(count.ok()) << count.status();
    finding_count_ = count.value_or(-1);
    return lines;
  }
  static bool Has(const std::vector<std::string>& lines, const std::string& text) {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.find(text) != std::string::npos; });
  }
  static std::string Joined(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& line : lines) out += line + "\n";
    return out;
  }

  // Every file's name and content.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().string()] = test::BytesOfFile(entry.path());
    }
    return files;
  }

  const test::TempDir dir_;
  std::unique_ptr<ExtentFile> file_;
  std::uint64_t closed_sequence_ = 0;
  SegmentId sealed_;
  SessionId talk_, fork_, alone_;
  std::int64_t finding_count_ = 0;
  bool defragment_ = false;  // for engines that are opened from now on
};

}  // namespace cairn::kv
