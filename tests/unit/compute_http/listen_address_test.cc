#include "compute-node/http/listen_address.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

std::string Parsed(std::string_view text) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
  return address.ok() ? address->ToText() : Message(address.status());
}

TEST(ListenAddressTest, LoopbackIsTakenInEveryForm) {
  EXPECT_EQ(Parsed("127.0.0.1:8080"), "127.0.0.1:8080");
  EXPECT_EQ(Parsed("127.5.6.7:1"), "127.5.6.7:1");
  EXPECT_EQ(Parsed("localhost:0"), "127.0.0.1:0");
  EXPECT_EQ(Parsed("[::1]:65535"), "[::1]:65535");
}

TEST(ListenAddressTest, EverythingElseIsRefusedWithTheReason) {
  for (const char* text : {"0.0.0.0:8080", "192.168.1.2:8080", "[::]:8080", "[fe80::1]:8080",
                           "[::ffff:127.0.0.1]:8080", "example.org:8080", "*:8080", ":8080",
                           "128.0.0.1:8080", "2130706433:8080"}) {
    EXPECT_NE(Parsed(text).find("not loopback"), std::string::npos) << text << ": " << Parsed(text);
    EXPECT_NE(Parsed(text).find("127.0.0.1:8080"), std::string::npos) << text;
  }
}

TEST(ListenAddressTest, AnAddressNeedsAPort) {
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:80x",
                           "127.0.0.1:65536", "127.0.0.1:-1", "::1:8080", "[::1]", "[::1]8080",
                           "[::1", "8080", "http://127.0.0.1:8080"}) {
    EXPECT_NE(Parsed(text).find("no address with a port"), std::string::npos)
        << text << ": " << Parsed(text);
  }
}

TEST(ListenAddressTest, AHostHeaderMustNameThisMachineWithWhateverPort) {
  for (const char* header : {"localhost:8080", "LocalHost:8080", "127.0.0.1:8080", "[::1]:8080",
                             "localhost", "localhost:9", "127.0.0.1", "[::1]"}) {
    EXPECT_TRUE(IsLoopbackHost(header)) << header;
  }
  for (const char* header :
       {"", "evil.example:8080", "evil.example", "localhost.evil.example:8080",
        "127.0.0.1.evil.example:8080", "192.168.1.2:8080", "[::2]:8080", "localhost:", ":8080",
        "localhost:x", "localhost:80:80", "x@localhost:80", "2130706433:80"}) {
    EXPECT_FALSE(IsLoopbackHost(header)) << header;
  }
}

}  // namespace
}  // namespace cairn::compute
