#include "compute-node/http/openai_api.h"

#include <gtest/gtest.h>

#include "compute-node/http/json_reader.h"

namespace cairn::compute {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

class OpenAiApiTest : public testing::Test {
 protected:
  // The status with which a request is admitted, or not.
  int Admit(const std::string& method, const std::string& path, const Headers& headers) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.headers = headers;
    return api_.Admit(request).status;
  }

  DaemonState state_;
  GenerationQueue queue_{1};
  OpenAiApi api_{state_, queue_, ""};
};

// What a browser says for a page; other programs say nothing.
TEST_F(OpenAiApiTest, PagesOfOtherOriginsAreRefusedWhateverTheyAskFor) {
  const std::pair<Headers, int> cases[] = {
      {{}, 200},
      {{{"Origin", "http://localhost:8080"}}, 200},
      {{{"origin", "http://LOCALHOST:8080"}, {"sec-fetch-site", "same-origin"}}, 200},
      {{{"Sec-Fetch-Site", "none"}}, 200},  // somebody typed the address
      {{{"Origin", "http://evil.example"}}, 403},
      {{{"Origin", "https://localhost:8080"}}, 403},
      {{{"Origin", "http://localhost"}}, 403},
      {{{"Origin", "http://localhost:8081"}}, 403},
      {{{"Origin", "http://127.0.0.1:8080"}}, 403},
      {{{"Origin", "http://localhost:8080.evil.example"}}, 403},
      {{{"Origin", "http://localhost:8080/"}}, 403},
      {{{"Origin", "null"}}, 403},  // a page of a file, or in a frame without rights
      {{{"Origin", ""}}, 403},
      {{{"Origin", "http://localhost:8080"}, {"Sec-Fetch-Site", "cross-site"}}, 403},
      {{{"Sec-Fetch-Site", "cross-site"}}, 403},
      {{{"Sec-Fetch-Site", "same-site"}}, 403},  // another port
      {{{"Sec-Fetch-Site", "what comes next"}}, 403},
  };
  for (const auto& [extra, status] : cases) {
    Headers headers = extra;
    headers.emplace_back("Host", "localhost:8080");
    headers.emplace_back("Content-Type", "application/json");
    const std::string what = extra.empty() ? "(nothing)" : extra.back().second;
    EXPECT_EQ(Admit("GET", "/v1/models", headers), status) << what;
    EXPECT_EQ(Admit("GET", "/health", headers), status) << what;
    EXPECT_EQ(Admit("HEAD", "/v1/models", headers), status) << what;
    EXPECT_EQ(Admit("POST", "/v1/completions", headers), status) << what;
    EXPECT_EQ(Admit("POST", "/v1/chat/completions", headers), status) << what;
    // Also where it would be another error: a page learns nothing.
    EXPECT_EQ(Admit("OPTIONS", "/v1/chat/completions", headers), status == 200 ? 405 : 403) << what;
    EXPECT_EQ(Admit("GET", "/other", headers), status == 200 ? 404 : 403) << what;
  }
}

TEST_F(OpenAiApiTest, OnlyNamesOfThisMachineAreServed) {
  using namespace std::string_literals;
  for (const std::string& host : {"localhost"s, "localhost:9"s, "127.0.0.1"s, "[::1]:80"s}) {
    EXPECT_EQ(Admit("GET", "/health", {{"Host", host}}), 200) << host;
  }
  for (const std::string& host : {""s, "evil.example"s, "localhost.evil.example"s,
                                  "localhost\0evil.example"s, "127.0.0.1\0.evil.example"s}) {
    EXPECT_EQ(Admit("GET", "/health", {{"Host", host}}), 403) << host;
  }
  EXPECT_EQ(Admit("GET", "/health", {}), 403);
}

TEST_F(OpenAiApiTest, HealthIsThatOfTheKvNodeToo) {
  const auto health = [this] {
    HttpRequest request;
    request.method = "GET";
    request.path = "/health";
    return api_.Answer(request, [] { return true; });
  };
  EXPECT_EQ(health().status, 503);  // it loads
  state_.SetReady(std::make_shared<Runtime>());
  EXPECT_EQ(health().status, 200);
  state_.SetKvStatus(Unavailable("the KV node is gone"));
  const HttpReply gone = health();
  EXPECT_EQ(gone.status, 503);
  EXPECT_NE(gone.body.find("the KV node is gone"), std::string::npos);
  EXPECT_EQ(gone.headers.front().first, "Retry-After");
  state_.SetKvStatus(absl::OkStatus());
  EXPECT_EQ(health().status, 200);
}

TEST_F(OpenAiApiTest, MethodsThatAPathDoesNotTakeAreNamed) {
  for (const char* method : {"BREW", "CONNECT", "DELETE", "PUT", "POST", "TRACE", "get"}) {
    EXPECT_EQ(Admit(method, "/health", {{"Host", "localhost"}}), 405) << method;
  }
}

}  // namespace
}  // namespace cairn::compute
