// One flipped bit anywhere in a stopped store: in the value of any row, in any page that a part
// lies in. A check says so, or nothing that sessions show of keys and values is different; an
// engine over it refuses, tells what is lost, or shows what it showed before. RocksDB's checksums,
// which find flips of its files first, are not in the way: rows are changed behind them.
#include <fcntl.h>
#include <unistd.h>

#include <random>

#include "kv-node/engine/load/session_loader.h"
#include "kv-node/util/segment_check.h"
#include "tests/tools/seed.h"
#include "tests/unit/util/store_fixture.h"

namespace cairn::kv {
namespace {

// Of longer rows so many bytes, evenly spread.
constexpr std::size_t kFlippedBytesMax = 40;

// All rows of a store in memory.
class MapReader final : public MetaReader {
 public:
  using FamilyRows = std::map<std::string, std::string, std::less<>>;

  absl::StatusOr<std::optional<std::string>> Get(Family family, std::string_view key) override {
    const FamilyRows& rows = rows_[family];
    const auto found = rows.find(key);
    if (found == rows.end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }
  absl::Status ScanRange(Family family, std::string_view first, std::string_view end,
                         const Visit& visit) override {
    const FamilyRows& rows = rows_[family];
    for (auto row = rows.lower_bound(first); row != rows.end(); ++row) {
      if (!end.empty() && row->first >= end) break;
      CAIRN_RETURN_IF_ERROR(visit(row->first, row->second));
    }
    return absl::OkStatus();
  }
  std::map<Family, FamilyRows>& rows() { return rows_; }

 private:
  std::map<Family, FamilyRows> rows_;
};

class FlippedBits : public StoreTest {
 protected:
  void TearDown() override {
    engine_.reset();
    if (fd_ >= 0) close(fd_);
  }

  void ReadRows() {
    MetaOptions options;
    options.path = dir_.File(kMetaDirectoryName);
    const auto meta = MetaStore::Open(options);
    ASSERT_TRUE(meta.ok()) << meta.status();
    for (int i = 0; i < kFamilyCount; ++i) {
      const auto family = static_cast<Family>(i);
      for (auto& [key, value] : RowsOf((*meta)->reader(), family)) {
        reader_.rows()[family][key] = value;
      }
    }
    const auto file = ExtentFile::Open({.directory = dir_.path(), .read_only = true});
    ASSERT_TRUE(file.ok()) << file.status();
    store_id_ = (*file)->store_id();
    fd_ = open((*file)->path().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }

  std::vector<std::string> Findings() {
    const StoreView view{store_id_, fd_, "extents", kStoreBytes / kPageBytes, &reader_};
    std::vector<std::string> lines;
    const auto survey =
        CheckStore(view, [&](const Finding& finding) { lines.push_back(FormatFinding(finding)); });
    EXPECT_TRUE(survey.ok()) << survey.status();
    return lines;
  }

  // Where everything lies that the session shows of keys and values.
  std::string Shown(SessionId session) {
    absl::StatusOr<StoredSession> stored = LoadSession(reader_, session);
    if (!stored.ok()) return stored.status().ToString();
    const absl::StatusOr<LoadedState> loaded = BuildState(UnusedMap(), *std::move(stored));
    if (!loaded.ok()) return loaded.status().ToString();
    std::string out = fmt::format("tokens {}\n", loaded->row.token_count);
    const auto tell = [&](const ClusterKey& key, const StoredPart& part, std::int64_t count) {
      out +=
          fmt::format("{} {} {}: part {} page {} of {} offset {} {} count {} positions", key.layer,
                      key.head, key.cluster_id, part.id, part.first_page, part.page_count,
                      part.offset_bytes, part.direction == Direction::kUp, count);
      part.positions.ForEach([&](std::int64_t position) { out += fmt::format(" {}", position); });
      for (const std::uint32_t crc : part.crcs) out += fmt::format(" {:08x}", crc);
      out += '\n';
    };
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (const ClusterInfo& cluster : loaded->state->ClustersOf(layer)) {
        const ClusterKey key{layer, cluster.cluster.head, cluster.cluster.cluster_id};
        for (const auto& visible : loaded->state->StoredPartsOf(key)) {
          tell(key, visible.part, visible.count);
        }
      }
      for (const auto& [key, parts] : loaded->state->CarriedOf(layer)) {
        for (const Part& part : parts) {
          StoredPart stored_part = part;
          stored_part.first_page = part.extent->first();
          stored_part.page_count = part.extent->page_count();
          tell(key, stored_part, part.count());
        }
      }
    }
    return out;
  }
  std::string ShownByAll() { return Shown(talk_) + Shown(fork_) + Shown(alone_); }

  // Calls `fn` with each byte of the row that is to be changed.
  template <typename Fn>
  static void ForSomeBytes(const std::string& value, Fn&& fn) {
    const std::size_t count = std::min(value.size(), kFlippedBytesMax);
    for (std::size_t i = 0; i < count; ++i) fn(i * value.size() / count);
  }

  // An engine over the rows as they are now, and the extent file.
  absl::Status OpenOverRows() {
    engine_.reset();
    auto meta = MetaStore::Open({.path = "/flipped-bits-test", .in_memory = true});
    EXPECT_TRUE(meta.ok());
    MetaBatch batch;
    for (const auto& [family, rows] : reader_.rows()) {
      for (const auto& [key, value] : rows) batch.Put(family, key, value);
    }
    EXPECT_TRUE((*meta)->CommitAndWait(std::move(batch)).ok());
    auto device = OpenFileDevice(fd_, {.engine = IoEngine::kThreads, .size_bytes = kStoreBytes});
    EXPECT_TRUE(device.ok());
    EngineOptions options;
    options.durable = options.place_at_idle = options.defragment = false;
    options.arena_bytes_max = 0;  // every fetch reads the file
    auto engine = Engine::Open(options, store_id_, *std::move(device), *std::move(meta));
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    return absl::OkStatus();
  }

  // Fetches all clusters of a session. How many were lost; what is found must be right.
  int FetchAll(TestSession& session) {
    int lost_count = 0;
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      const auto clusters = session.Read(GetClusters{layer});
      if (!clusters.ok()) continue;
      for (const ClusterInfo& cluster : std::get<ClustersReply>(*clusters).clusters) {
        const auto reply = session.Read(Fetch{layer, {cluster.cluster}, /*with_positions=*/true});
        if (!reply.ok()) continue;
        const auto& fetched = std::get<FetchReply>(*reply).clusters.at(0);
        lost_count += fetched.outcome == FetchOutcome::kLost;
        if (fetched.outcome != FetchOutcome::kFound) continue;
        const JoinedCluster joined = Join(layout_, fetched);
        EXPECT_EQ(joined.positions, cluster.positions);
        if (rows_are_whole_) {
          EXPECT_TRUE(joined.entries ==
                      EntriesBytes(layout_, kSalt, layer, cluster.cluster.head, joined.positions));
        }
      }
      const auto carried = session.Read(GetCarried{layer});
      lost_count += carried.status().code() == absl::StatusCode::kDataLoss;
      for (std::size_t i = 0;
           carried.ok() && rows_are_whole_ && i < std::get<CarriedReply>(*carried).carried.size();
           ++i) {
        const CarriedEntries& entries = std::get<CarriedReply>(*carried).carried[i];
        EXPECT_TRUE(entries.entries ==
                    EntriesBytes(layout_, kSalt, layer, entries.head, entries.positions));
      }
      EXPECT_TRUE(session.Read(GetIndex{layer}).ok());
      EXPECT_TRUE(session.Read(FetchIndex{.layer = layer, .only_visible = true}).ok());
    }
    return lost_count;
  }

  // Sealed segments lie in packed runs afterwards. As in VerifyTest, links are a reason for it.
  void Pack() {
    EditRows([this](MetaReader&, MetaBatch& batch) {
      for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
        batch.Put(Family::kCoretrieval, LinkRowKey(sealed_, {layer, 0, ClusterId(1)}),
                  EncodeLinks({{ClusterId(2), 5}}));
      }
    });
    defragment_ = true;
    ASSERT_NO_FATAL_FAILURE(OpenEngine());
    ASSERT_TRUE(
        WaitForStats([](const KvStats& stats) { return stats.write_defragment_bytes > 0; }));
    CloseEngine();
  }

  struct Piece {
    ExtentKind kind = ExtentKind::kPool;
    PagePiece piece;
  };
  // The bytes of all parts, of clusters and index rows.
  std::vector<Piece> Pieces() {
    std::vector<Piece> out;
    const auto add = [&](const StoredPart& part, std::int64_t entry_bytes) {
      for (const PagePiece& piece : PiecesOf(part, entry_bytes, 0, part.count())) {
        out.push_back({part.kind, piece});
      }
    };
    for (const auto& [key, value] : reader_.rows()[Family::kClusters]) {
      const ClusterRowKind kind = ParseClusterRowKey(key)->kind;
      if (kind != ClusterRowKind::kParts && kind != ClusterRowKind::kCarried) continue;
      for (const StoredPart& part : PartsIn({key, value})) add(part, layout_.EntryBytes(0));
    }
    for (const auto& [key, value] : reader_.rows()[Family::kRuns]) {
      const StoredIndexRun run = *DecodeIndexRun(value);
      for (const StoredPart& part : run.parts) add(part, run.record_bytes);
    }
    return out;
  }

  // Such a row may have positions that are shown by a later fork only: carried ones, and those of a
  // part that one session has masked and the other's limit leaves out.
  bool IsOfSealedSegment(Family family, const std::string& key) const {
    return family == Family::kClusters && key.starts_with(SegmentPrefix(sealed_));
  }

  void FlipInFile(std::int64_t offset, int bit) const {
    unsigned char byte = 0;
    ASSERT_EQ(pread(fd_, &byte, 1, offset), 1);
    byte = static_cast<unsigned char>(byte ^ 1U << bit);
    ASSERT_EQ(pwrite(fd_, &byte, 1, offset), 1);
  }

  MapReader reader_;
  StoreId store_id_{};
  int fd_ = -1;
  bool rows_are_whole_ = false;
};

TEST_F(FlippedBits, OfAnyRowAreReportedOrChangeNothingThatIsShown) {
  ASSERT_NO_FATAL_FAILURE(ReadRows());
  ASSERT_TRUE(Findings().empty());
  const std::string shown = ShownByAll();
  std::map<Family, int> flipped, silent;
  for (auto& [family, rows] : reader_.rows()) {
    for (auto& [key, value] : rows) {
      ForSomeBytes(value, [&, family = family, &key = key, &value = value](std::size_t at) {
        const char before = value[at];
        value[at] = static_cast<char>(before ^ 1 << at % 8);
        ++flipped[family];
        if (Findings().empty()) {
          EXPECT_EQ(ShownByAll(), shown) << FamilyName(family) << " byte " << at;
          if (!IsOfSealedSegment(family, key)) ++silent[family];
        }
        value[at] = before;
      });
    }
  }
  // Where keys and values lie: nothing goes unnoticed.
  for (const Family family : {Family::kClusters, Family::kPools, Family::kRuns}) {
    EXPECT_GT(flipped[family], 20) << FamilyName(family);
    EXPECT_EQ(silent[family], 0) << FamilyName(family);
  }
  for (const Family family : {Family::kSessions, Family::kSegments}) {
    EXPECT_LT(silent[family], flipped[family]) << FamilyName(family);
  }
}

// Whatever the rows say, the engine answers: an error, what is lost, or entries.
TEST_F(FlippedBits, OfAnyRowAreSurvivedByTheEngine) {
  ASSERT_NO_FATAL_FAILURE(ReadRows());
  std::mt19937_64 random(test::TestSeed());
  for (auto& [family, rows] : reader_.rows()) {
    for (auto& [key, value] : rows) {
      if (value.empty() || random() % 2 == 0) continue;  // others in another run
      SCOPED_TRACE(FamilyName(family));
      const std::string before = value;
      const std::size_t at = random() % value.size();
      value[at] = static_cast<char>(value[at] ^ 1 << random() % 8);
      const absl::Status opened = OpenOverRows();
      if (opened.ok()) {
        for (const SessionId id : {talk_, fork_, alone_}) {
          const auto session = TestSession::Open(*engine_, id);
          if (session.ok()) FetchAll(**session);
        }
      } else {
        EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << opened;
      }
      value = before;
    }
  }
}

TEST_F(FlippedBits, OfAnyPageAreReportedAndNeverServed) {
  ASSERT_NO_FATAL_FAILURE(Pack());
  ASSERT_NO_FATAL_FAILURE(ReadRows());
  rows_are_whole_ = true;
  ASSERT_TRUE(Findings().empty());
  ASSERT_TRUE(OpenOverRows().ok());
  std::vector<std::unique_ptr<TestSession>> sessions;
  for (const SessionId id : {talk_, fork_, alone_}) sessions.push_back(Open(id));
  const auto lost_count = [&] {
    int count = 0;
    for (const auto& session : sessions) count += FetchAll(*session);
    return count;
  };
  EXPECT_EQ(lost_count(), 0);
  std::mt19937_64 random(test::TestSeed());
  std::map<ExtentKind, int> flipped;
  int fetched_lost = 0;
  for (const Piece& piece : Pieces()) {
    const std::int64_t size = piece.piece.end - piece.piece.begin;
    const auto inside = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
    for (const std::int64_t at : {std::int64_t{0}, inside, size - 1}) {
      const std::int64_t offset = piece.piece.page.value() * kPageBytes + piece.piece.begin + at;
      const int bit = static_cast<int>(random() % 8);
      FlipInFile(offset, bit);
      const std::vector<std::string> lines = Findings();
      const char* const kind =
          piece.kind == ExtentKind::kIndexRun ? "kind=index_run" : "kind=page_damaged";
      EXPECT_TRUE(Has(lines, kind)) << offset << Joined(lines);
      if (at == inside) fetched_lost += lost_count();
      FlipInFile(offset, bit);
      ++flipped[piece.kind];
    }
  }
  EXPECT_EQ(lost_count(), 0);
  EXPECT_GT(fetched_lost, 20);
  EXPECT_EQ(flipped.size(), 4U);  // kinds of extents
}

}  // namespace
}  // namespace cairn::kv
