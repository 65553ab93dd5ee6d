// The smallest use of Cairn from C++: asks one question about a text, then a second one in the same
// conversation, whose keys and values are not computed again.
//   cairn-client-example [SOCKET]
#include <cstdio>
#include <string>

#include "clients/cpp/cairn_client.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
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
