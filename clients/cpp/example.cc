// The smallest use of Cairn from C++: asks one question about a text, then a second one in the same
// conversation, whose keys and values are not computed again.
//   cairn-client-example [SOCKET]
#include <cstdio>
#include <string>
#include <string_view>

#include "clients/cpp/cairn_client.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

// What the arguments ask for beside the example itself: nullptr for nothing.
const char* TextFor(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--version") return "cairn-client-example " CAIRN_VERSION "\n";
  if (first == "--help") {
    return "usage: cairn-client-example [SOCKET]\n"
           "Asks two questions in a conversation, and deletes it. SOCKET is that of\n"
           "cairn-compute-node; default: $CAIRN_SOCKET, else where it listens by default.\n"
           "example: cairn-client-example /run/cairn/compute.sock\n";
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* text = TextFor(argc, argv); text != nullptr) {
    return std::fputs(text, stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
  }
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::fprintf(stderr, "cairn-client-example: unknown argument %s; see --help\n", argv[argc - 1]);
    return 2;
  }
  const std::string socket = argc > 1 ? argv[1] : cairn::DefaultComputeSocket();
  auto client = cairn::CairnClient::Connect(socket);
  if (!client.ok()) return Fail(client.status());

  cairn::GenerateOptions options;
  options.prompt =
      "Mira keeps the lantern in the cellar. The code of the red door is 4821.\n"
      "Q: What is the code of the red door?\nA:";
  options.tokens_max = 32;
  options.stop = {"\n"};
  options.on_text = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  auto first = (*client)->Generate(options);
  if (!first.ok()) return Fail(first.status());

  options.conversation_id = first->conversation_id;
  options.prompt = "\nQ: Where does Mira keep the lantern?\nA:";
  auto second = (*client)->Generate(options);
  if (!second.ok()) return Fail(second.status());
  std::printf("\n%lld tokens were reused\n", static_cast<long long>(second->reused_token_count));

  const absl::Status deleted = (*client)->DeleteConversation(first->conversation_id);
  return deleted.ok() ? 0 : Fail(deleted);
}
