// The power goes off between every two steps of the write order, one after the other: after each
// write and flush of the extent file, and in place of each sync of the metadata's log. What was not
// durable is torn. The engine that starts again must show the last acknowledged checkpoint of every
// session, or one that was under way, to the byte; and no flash may be left in use without one.
// The same while extents are moved to the front of a file that is to become shorter.
//
// CAIRN_TEST_SEED=N        another sequence of operations; default 1
// CAIRN_TEST_EVERY_STEP=1  every step, in place of every third from a random one on: with it, the
//                          step that failed comes again
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "compute-node/kv_client/in_process_kv_node.h"
#include "kv-node/engine/defragment/extent_mover.h"
#include "kv-node/layout/superblock.h"
#include "tests/crash/crash_world.h"
#include "tests/tools/faulty_device.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/unsynced_fs.h"

namespace cairn::kv {
namespace {

constexpr int kOperationCount = 45;
constexpr std::int64_t kDiskBytes = std::int64_t{16} << 20;
// Few enough that nearly all is moved.
constexpr std::int64_t kSlackPages = 8;

// One whose operations leave free pages between those in use.
constexpr std::uint64_t kSeedWithHoles = 4;

std::uint64_t Seed(std::uint64_t fallback = 1) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in this program changes the environment
  const char* text = std::getenv("CAIRN_TEST_SEED");
  return text == nullptr ? fallback : static_cast<std::uint64_t>(std::atoll(text));
}

// One machine: its flash, its files, and the same operations each time.
class Machine {
 public:
  explicit Machine(std::uint64_t seed)
      : seed_(seed), disk_({.size_bytes = kDiskBytes, .seed = seed}), world_(seed) {}
  ~Machine() { world_.Disconnect(); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void Start() {
    auto store = OpenMeta();
    ASSERT_TRUE(store.ok()) << store.status();
    EngineOptions options;
    options.place_entries_min = 3;
    options.index_changed_min = 3;
    options.pending_bytes_max = 64 << 10;
    options.defragment = true;
    options.defragment_idle = std::chrono::milliseconds(0);
    auto engine = Engine::Open(options, StoreId{}, disk_.Open(), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status();
    const absl::Status connected =
        world_.Connect(std::make_unique<compute::InProcessKvNode>(*std::move(engine)));
    ASSERT_TRUE(connected.ok()) << connected;
  }

  // Moves all that is stored as far to the front as it can go, in the stopped store. `arm` is
  // called when the files are open.
  absl::StatusOr<MoveResult> Move(const std::function<void()>& arm) {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<MetaStore> store, OpenMeta());
    const std::unique_ptr<Device> device = disk_.Open();
    arm();
    MoveOptions options{.page_count = kDiskBytes / kPageBytes, .end = kFirstDataPage};
    CAIRN_ASSIGN_OR_RETURN(const MoveResult used, MoveExtentsBelow(*store, *device, options));
    options.end = used.used_page_count + kSlackPages;
    auto moved = MoveExtentsBelow(*store, *device, options);
    if (!moved.ok()) files_->PowerCut();  // before the store closes in order
    return moved;
  }

  // OK: all operations were done before the power went.
  absl::Status Work() {
    for (int i = 0; i < kOperationCount; ++i) CAIRN_RETURN_IF_ERROR(world_.Step());
    return absl::OkStatus();
  }

  void CutPower() {
    disk_.PowerCut();
    files_->PowerCut();
    world_.Disconnect();
  }

  void Stop() { world_.Disconnect(); }

  FaultyDisk& disk() { return disk_; }
  UnsyncedFs& files() { return *files_; }
  CrashWorld& world() { return world_; }

 private:
  absl::StatusOr<std::unique_ptr<MetaStore>> OpenMeta() {
    MetaOptions meta;
    meta.path = directory_.File("meta");
    meta.wrap_file_system = [this](const std::shared_ptr<rocksdb::FileSystem>& base) {
      files_ = std::make_shared<UnsyncedFs>(base, seed_);
      return files_;
    };
    return MetaStore::Open(meta);
  }

  const std::uint64_t seed_;
  const test::TempDir directory_;
  FaultyDisk disk_;
  std::shared_ptr<UnsyncedFs> files_;
  CrashWorld world_;
};

// By day every third step, another third in each run; by night every step.
constexpr int kStrideByDay = 3;

// Tries the steps until there is none left, and says how many there were. How many a run has
// depends on how far placing and defragmenting come meanwhile: so several runs must end before.
int CutAtSteps(bool device_dies, const std::function<void(Machine&, int step)>& arm) {
  constexpr int kEndedMax = 4;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in this program changes the environment
  const bool every = std::getenv("CAIRN_TEST_EVERY_STEP") != nullptr;
  const int stride = every ? 1 : kStrideByDay;
  int ended_count = 0;
  for (int step = static_cast<int>(std::random_device()() % static_cast<unsigned>(stride));;
       step += stride) {
    SCOPED_TRACE(fmt::format("step {} with CAIRN_TEST_SEED={}", step, Seed()));
    Machine machine(Seed());
    machine.Start();
    if (testing::Test::HasFailure()) return step;
    arm(machine, step);
    const absl::Status end = machine.Work();
    const std::string said = Message(end);
    EXPECT_EQ(said.find("WRONG"), std::string::npos) << end;
    // A device that is gone has lost clusters and index rows, until the next start.
    EXPECT_TRUE(device_dies || said.find("LOST") == std::string::npos) << end;
    machine.CutPower();
    machine.Start();
    if (testing::Test::HasFailure()) return step;
    const absl::Status ended = machine.world().End();
    EXPECT_TRUE(ended.ok()) << ended;
    if (end.ok()) ++ended_count;
    if (ended_count == kEndedMax || testing::Test::HasFailure()) return step;
  }
}

TEST(PowerCutTest, AfterEveryWriteAndFlushOfTheExtentFile) {
  ASSERT_TRUE(InitLogging("power_cut_test", "error").ok());
  const int step_count = CutAtSteps(
      /*device_dies=*/true, [](Machine& machine, int step) { machine.disk().DieAfter(step); });
  std::cout << "writes and flushes: " << step_count << "\n";
  EXPECT_GT(step_count, 20);  // without any that placing and defragmenting add
}

TEST(PowerCutTest, InPlaceOfEverySyncOfTheMetadata) {
  ASSERT_TRUE(InitLogging("power_cut_test", "error").ok());
  const int step_count = CutAtSteps(/*device_dies=*/false, [](Machine& machine, int step) {
    machine.files().CutAtSyncOf(".log", step);
  });
  std::cout << "syncs: " << step_count << "\n";
  EXPECT_GT(step_count, 10);
}

// A move has no step that depends on time: every step is tried once.
int CutMovesAtEveryStep(const std::function<void(Machine&, int step)>& arm) {
  for (int step = 0;; ++step) {
    const std::uint64_t seed = Seed(kSeedWithHoles);
    SCOPED_TRACE(fmt::format("step {} with CAIRN_TEST_SEED={}", step, seed));
    Machine machine(seed);
    machine.Start();
    if (testing::Test::HasFailure()) return step;
    const absl::Status worked = machine.Work();
    EXPECT_TRUE(worked.ok()) << worked;
    machine.Stop();
    const auto moved = machine.Move([&] { arm(machine, step); });
    machine.CutPower();
    machine.Start();
    if (testing::Test::HasFailure()) return step;
    const absl::Status ended = machine.world().End();
    EXPECT_TRUE(ended.ok()) << ended;
    if (moved.ok() || testing::Test::HasFailure()) return step;
  }
}

TEST(PowerCutTest, AfterEveryWriteAndFlushOfAMove) {
  ASSERT_TRUE(InitLogging("power_cut_test", "error").ok());
  const int step_count =
      CutMovesAtEveryStep([](Machine& machine, int step) { machine.disk().DieAfter(step); });
  std::cout << "writes and flushes: " << step_count << "\n";
  EXPECT_GT(step_count, 3);
}

TEST(PowerCutTest, InPlaceOfEverySyncOfAMove) {
  ASSERT_TRUE(InitLogging("power_cut_test", "error").ok());
  const int step_count = CutMovesAtEveryStep(
      [](Machine& machine, int step) { machine.files().CutAtSyncOf(".log", step); });
  std::cout << "syncs: " << step_count << "\n";
  EXPECT_GE(step_count, 1);
}

}  // namespace
}  // namespace cairn::kv
