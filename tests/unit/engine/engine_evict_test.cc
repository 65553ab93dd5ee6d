// Positions that are given up without having been in a cluster.
#include <cstdint>

#include <gtest/gtest.h>

#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

TEST_F(EngineTest, EvictGivesUpWhatNoClusterHolds) {
  const SessionId id = Create();
  auto session = Open(id);
  const auto evict = [&](const Positions& positions) {
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      for (std::int32_t head = 0; head < 2; ++head) {
        session->Send(cairn::Evict{layer, head, positions});
      }
    }
  };
  AppendAll(*session, 1, Positions::Range(0, 10));
  evict(Positions::Range(12, 8));
  evict(Positions::Range(10, 2));
  CarryAll(*session, Positions::Range(20, 5), Positions::Range(20, 5));
  const auto sealed = TakeCheckpoint(*session, 0, 25, /*seal=*/true);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  session.reset();
  session = Open(id);
  ExpectCluster(*session, 1, Positions::Range(0, 10));
  evict(Positions::Range(20, 3));  // they were carried, and are not any more
  CarryAll(*session, Positions::Range(23, 2), Positions::Range(23, 2));
  EXPECT_EQ(TakeCheckpoint(*session, 25, 25).status().ToString(), "OK");
  evict(Positions::Range(9, 1));  // of the cluster: found at the checkpoint
  EXPECT_EQ(TakeCheckpoint(*session, 25, 25).status().code(),
            absl::StatusCode::kFailedPrecondition);

  session = Open(Create(sealed->sealed_segment_id, 15));
  evict(Positions::Range(14, 1));
  EXPECT_EQ(session->Read(GetCarried{0}).status().code(), absl::StatusCode::kOk);
  EXPECT_EQ(session->failure().code(), absl::StatusCode::kInvalidArgument) << "evicted already";
  session = Open(Create(sealed->sealed_segment_id, 15));
  evict(Positions::Range(15, 1));
  EXPECT_EQ(TakeCheckpoint(*session, 15, 16).status().ToString(), "OK");
}

}  // namespace
}  // namespace cairn::kv
