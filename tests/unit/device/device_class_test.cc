// Which of the waiting requests a device starts next. One request at a time is worked on, so that
// the order of the completions is the order of the starts.
#include <string>
#include <vector>

#include "kv-node/device/memory_device.h"
#include "tests/unit/device/device_testing.h"

namespace cairn::kv {
namespace {

class DeviceClassTest : public testing::Test {
 protected:
  void SubmitRead(IoClass io_class, char name, int count = 1) {
    for (int i = 0; i < count; ++i) {
      device_.SubmitRead(DeviceOffset(0), page_.span(), Note(name), io_class);
    }
  }
  IoDone Note(char name) {
    return [this, name](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      order_ += name;
    };
  }
  // The order of everything that was submitted behind a first request, which holds the one slot.
  std::string Order() {
    Drain(device_);
    return order_.substr(1);
  }

  MemoryDevice device_{16 * kPage, /*queue_depth=*/1};
  AlignedBuffer page_{kPage};
  std::string order_;
};

TEST_F(DeviceClassTest, MoreUrgentRequestsStartFirst) {
  SubmitRead(IoClass::kDefragment, '0');
  SubmitRead(IoClass::kDefragment, 'g', 2);
  SubmitRead(IoClass::kWriteBack, 'w', 2);
  SubmitRead(IoClass::kDemand, 'd', 2);
  EXPECT_EQ(Order(), "ddwwgg");
}

TEST_F(DeviceClassTest, RequestsOfOneClassStartInOrder) {
  SubmitRead(IoClass::kDemand, '0');
  for (const char name : std::string("abcdef")) SubmitRead(IoClass::kWriteBack, name);
  EXPECT_EQ(Order(), "abcdef");
}

TEST_F(DeviceClassTest, WritesAndFlushesHaveAClassToo) {
  SubmitRead(IoClass::kDemand, '0');
  device_.SubmitFlush(Note('f'), IoClass::kDefragment);
  device_.SubmitWrite(DeviceOffset(0), page_.span(), Note('w'), IoClass::kWriteBack);
  SubmitRead(IoClass::kDemand, 'd');
  EXPECT_EQ(Order(), "dwf");
}

TEST_F(DeviceClassTest, AClassThatWasPassedOverOftenEnoughIsNext) {
  SubmitRead(IoClass::kDemand, '0');
  SubmitRead(IoClass::kWriteBack, 'w', 2);
  SubmitRead(IoClass::kDemand, 'd', 3 * kPassedOverMax);
  const std::string turn(kPassedOverMax, 'd');
  EXPECT_EQ(Order(), turn + 'w' + turn + 'w' + turn);
}

TEST_F(DeviceClassTest, EveryClassGetsItsTurn) {
  SubmitRead(IoClass::kDemand, '0');
  SubmitRead(IoClass::kDefragment, 'g');
  SubmitRead(IoClass::kWriteBack, 'w');
  SubmitRead(IoClass::kDemand, 'd', 2 * kPassedOverMax);
  const std::string turn(kPassedOverMax, 'd');
  EXPECT_EQ(Order(), turn + "wg" + turn);
}

TEST_F(DeviceClassTest, WaitingIsCountedFromWhenAClassHasSomethingToDo) {
  SubmitRead(IoClass::kDemand, '0');
  SubmitRead(IoClass::kDemand, 'd', kPassedOverMax);
  Drain(device_);
  SubmitRead(IoClass::kDemand, 'e');
  SubmitRead(IoClass::kDefragment, 'g');
  SubmitRead(IoClass::kDemand, 'f', 3);
  EXPECT_EQ(Order(), std::string(kPassedOverMax, 'd') + "efffg");
}

}  // namespace
}  // namespace cairn::kv
