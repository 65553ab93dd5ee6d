// cairn status
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"
#include "common/base/json_string.h"
#include "common/base/printable.h"
#include "common/command/output.h"
#include "common/daemon/paths.h"
#include "common/kv/messages.h"
#include "common/rpc/unix_socket.h"

namespace cairn::cli {
namespace {

// A KV node that serves answers within some milliseconds; the compute node itself waits longer.
constexpr std::chrono::seconds kStoreTimeMax{3};

struct StatusArguments {
  std::string socket;
  bool json = false;
};

struct Report {
  std::string socket;
  DaemonStatus compute;
  std::optional<ModelDescription> model;  // once it is loaded
  std::optional<StoreStatus> store;       // if the KV node answers
  absl::Status problem;                   // why not all serves
};

// In the order of the enumerators.
constexpr std::array kDaemonPhases = {"loading", "ready", "stopping"};
static_assert(static_cast<std::size_t>(DaemonPhase::kStopping) + 1 == kDaemonPhases.size());
constexpr std::array kGenerationPhases = {"queued",   "opening",     "prefilling",
                                          "decoding", "recomputing", "waiting"};
static_assert(static_cast<std::size_t>(GenerationPhase::kWaiting) + 1 == kGenerationPhases.size());

std::string_view PhaseName(DaemonPhase phase) {
  return kDaemonPhases[static_cast<std::size_t>(phase)];
}

std::string_view PhaseName(GenerationPhase phase) {
  return kGenerationPhases[static_cast<std::size_t>(phase)];
}

// Without cairn-compute-node nobody says how cairn-kv-node is, which is to be started before it.
absl::Status WithKvNode(const absl::Status& unreachable) {
  const std::string socket = DefaultSocketPath(ProcessEnvironment(), "kv.sock");
  const bool is_served = rpc::ConnectToSocket(socket, std::chrono::milliseconds(0)).ok();
  return Unavailable("{}; cairn-kv-node, which it needs, {} at {}{}", Message(unreachable),
                     is_served ? "serves" : "does not serve", socket,
                     is_served
                         ? ""
                         : ": start it first, with `cairn-kv-node`, unless cairn-compute-node "
                           "has the store itself (kv: \"embedded\")");
}

absl::StatusOr<Report> Ask(const std::string& socket) {
  Report report{.socket = socket, .compute = {}, .model = {}, .store = {}, .problem = {}};
  const absl::StatusOr<std::unique_ptr<CairnClient>> connected = CairnClient::Connect(socket);
  if (absl::IsUnavailable(connected.status())) return WithKvNode(connected.status());
  CAIRN_RETURN_IF_ERROR(connected.status());
  CairnClient* const client = connected->get();
  CAIRN_ASSIGN_OR_RETURN(report.compute, client->GetStatus());
  if (report.compute.phase != DaemonPhase::kReady) {
    const std::string& why = report.compute.kv_node_problem;
    report.problem = Unavailable("cairn-compute-node is {}{}{}", PhaseName(report.compute.phase),
                                 why.empty() ? "" : ": ", why);
    return report;
  }
  CAIRN_ASSIGN_OR_RETURN(report.model, client->GetModel());
  if (!report.compute.kv_node_problem.empty()) {
    report.problem = Unavailable("{}", report.compute.kv_node_problem);
    return report;
  }
  const absl::StatusOr<StoreStatus> store = client->GetStore(kStoreTimeMax);
  if (store.ok()) {
    report.store = *store;
  } else {
    report.problem = Unavailable(
        "cairn-kv-node does not answer cairn-compute-node ({}): is it running? Its log may say why",
        absl::IsDeadlineExceeded(store.status()) ? fmt::format("within {} s", kStoreTimeMax.count())
                                                 : Message(store.status()));
  }
  return report;
}

std::string Line(std::string_view name, const std::string& value) {
  return fmt::format("{:<19} {}\n", name, value);
}

// What it does, and what it has.
std::string Text(const GenerationStatus& generation) {
  std::string text(PhaseName(generation.phase));
  if (generation.phase == GenerationPhase::kWaiting) text += " for cairn-kv-node";
  if (generation.total_token_count > 0) {
    text += fmt::format(", {} of {} tokens computed", generation.done_token_count,
                        generation.total_token_count);
  }
  if (!generation.policy.empty()) {
    text += fmt::format("; has {} tokens, {} stored; {}, {} in memory, {} read",
                        generation.token_count, generation.stored_token_count, generation.policy,
                        HumanBytes(generation.kv_dram_bytes), HumanBytes(generation.kv_read_bytes));
  }
  if (!generation.label.empty()) text += "; " + EscapeControls(generation.label);
  return text;
}

std::string Text(const Report& report) {
  const DaemonStatus& compute = report.compute;
  std::string text = Line("cairn-compute-node",
                          fmt::format("{}, socket {}", PhaseName(compute.phase), report.socket));
  if (compute.phase == DaemonPhase::kLoading && compute.model_size_bytes > 0) {
    text += Line("model", fmt::format("{} of {} loaded", HumanBytes(compute.model_loaded_bytes),
                                      HumanBytes(compute.model_size_bytes)));
  }
  if (report.model.has_value()) {
    text += Line(
        "model",
        fmt::format("{}, context of {} tokens, chat template {}",
                    EscapeControls(report.model->name), report.model->context_token_count,
                    report.model->chat_template.empty() ? "none" : report.model->chat_template));
    text += Line("generations",
                 fmt::format("{} running or waiting, {} of keys and values in memory",
                             compute.generation_count, HumanBytes(compute.kv_dram_bytes)));
    for (const GenerationStatus& generation : compute.generations) {
      const std::int64_t id = generation.conversation_id;
      text += Line(id == 0 ? "  new conversation" : fmt::format("  conversation {}", id),
                   Text(generation));
    }
    const bool in_memory = report.store.has_value() && report.store->io_engine == "memory";
    const bool embedded =
        report.store.has_value() && report.store->io_engine.ends_with(kEmbeddedSuffix);
    if (embedded) {
      text += Line("cairn-kv-node", "is not needed: the store is cairn-compute-node's own, by " +
                                        report.store->io_engine);
    } else if (!in_memory) {
      text +=
          Line("cairn-kv-node", report.store.has_value() ? "serves, by " + report.store->io_engine
                                                         : std::string("does not answer"));
    }
  }
  if (report.store.has_value()) {
    text +=
        Line("store",
             fmt::format("{} of {} used, conversations: {}", HumanBytes(report.store->used_bytes),
                         HumanBytes(report.store->size_bytes), report.store->conversation_count));
  }
  return text;
}

std::string Json(const std::vector<GenerationStatus>& generations) {
  std::string out;
  for (const GenerationStatus& generation : generations) {
    out += fmt::format(
        "{}{{\"phase\": \"{}\", \"conversation_id\": {}, \"label\": {}, \"policy\": {}, "
        "\"token_count\": {}, \"stored_token_count\": {}, \"done_token_count\": {}, "
        "\"total_token_count\": {}, \"kv_dram_bytes\": {}, \"kv_read_bytes\": {}}}",
        out.empty() ? "" : ", ", PhaseName(generation.phase), generation.conversation_id,
        JsonString(generation.label), JsonString(generation.policy), generation.token_count,
        generation.stored_token_count, generation.done_token_count, generation.total_token_count,
        generation.kv_dram_bytes, generation.kv_read_bytes);
  }
  return "[" + out + "]";
}

std::string Json(const Report& report) {
  const DaemonStatus& compute = report.compute;
  std::string model = "null";
  if (report.model.has_value()) {
    model = fmt::format("{{\"name\": {}, \"context_token_count\": {}, \"chat_template\": {}}}",
                        JsonString(report.model->name), report.model->context_token_count,
                        JsonString(report.model->chat_template));
  }
  std::string store = "null";
  if (report.store.has_value()) {
    store = fmt::format(
        "{{\"io_engine\": {}, \"used_bytes\": {}, \"size_bytes\": {}, \"conversation_count\": {}}}",
        JsonString(report.store->io_engine), report.store->used_bytes, report.store->size_bytes,
        report.store->conversation_count);
  }
  return fmt::format(
      "{{\"serves\": {}, \"socket\": {}, \"phase\": \"{}\", \"model_loaded_bytes\": {}, "
      "\"model_size_bytes\": {}, \"generation_count\": {}, \"generations\": {}, "
      "\"kv_dram_bytes\": {}, \"model\": {}, \"store\": {}}}\n",
      report.problem.ok(), JsonString(report.socket), PhaseName(compute.phase),
      compute.model_loaded_bytes, compute.model_size_bytes, compute.generation_count,
      Json(compute.generations), compute.kv_dram_bytes, model, store);
}

absl::Status Run(const StatusArguments& options) {
  CAIRN_ASSIGN_OR_RETURN(const Report report, Ask(options.socket));
  CAIRN_RETURN_IF_ERROR(WriteOutput(options.json ? Json(report) : Text(report)));
  return report.problem;
}

}  // namespace

void AddStatusCommand(CLI::App& app, CommandResult& result) {
  CLI::App& command = *app.add_subcommand("status",
                                          "Whether both daemons serve, with which model, and how "
                                          "full the store is. Exit status 0: both serve");
  auto options = std::make_shared<StatusArguments>();
  command.add_flag("--json", options->json, "As a JSON object");
  AddSocketOption(command, options->socket);
  command.footer("example: cairn status");
  SetAction(command, result, [options] { return Run(*options); });
}

}  // namespace cairn::cli
