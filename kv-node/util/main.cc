// cairn-kv-util: looks after the store of a KV node that does not run.
#include <sys/stat.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "common/daemon/paths.h"
#include "common/daemon/program.h"
#include "common/log/log.h"
#include "kv-node/util/calibrate.h"
#include "kv-node/util/line_json.h"
#include "kv-node/util/store_tool.h"

namespace cairn::kv {
namespace {

constexpr char kName[] = "cairn-kv-util";
constexpr int kExitFindings = 1;
constexpr int kExitCannotRun = 2;

constexpr const char* kDescription =
    "Checks and repairs the store of a cairn-kv-node that does not run, and measures its flash.\n"
    "Exit code: 0 the store is whole, 1 something is wrong with it, 2 this could not be found out.";

int CannotRun(const std::string& message) {
  PrintError(fmt::format("{}: {}\n", kName, message));
  return kExitCannotRun;
}

int Calibrate(CalibrateCommand command, const std::string& engine_name) {
  const absl::StatusOr<IoEngine> engine = ParseIoEngine(engine_name);
  if (!engine.ok()) return CannotRun(Message(engine.status()));
  command.engine = *engine;
  const absl::StatusOr<std::string> report = RunCalibrate(command);
  if (!report.ok()) return CannotRun(Message(report.status()));
  const absl::Status printed = PrintText(*report);
  return printed.ok() ? 0 : CannotRun(Message(printed));
}

constexpr const char* kExamples =
    "examples:\n"
    "  cairn-kv-util verify\n"
    "  cairn-kv-util repair --dry-run --store /mnt/flash/cairn\n"
    "  cairn-kv-util calibrate --json";

int Run(int argc, char** argv) {
  CLI::App app{kDescription, kName};
  app.set_version_flag("--version", std::string(kName) + " " CAIRN_VERSION);
  app.footer(kExamples);
  app.require_subcommand(1);
  ToolOptions options;
  options.directory = DefaultStateDir(ProcessEnvironment());
  bool dry_run = false;
  bool json = false;
  CLI::App& verify =
      *app.add_subcommand("verify", "Read everything and report what is wrong; changes nothing");
  CalibrateCommand calibration;
  std::string engine_name = "auto";
  CLI::App& calibrate = *app.add_subcommand(
      "calibrate",
      "Measure the flash again, for a second; the daemon works by it from its next start");
  calibrate.add_option("--io-engine", engine_name, "\"auto\", \"io_uring\" or \"threads\"");
  calibrate.add_option("--device-profile", calibration.device_profile,
                       "As the flash is below this device_profile: emmc, ufs3.1 or ufs4.0");
  CLI::App& repair = *app.add_subcommand(
      "repair", "Drop what is lost, and say what that was; a store that is whole is left as it is");
  for (CLI::App* command : {&verify, &repair, &calibrate}) {
    command
        ->add_option("--store", options.directory,
                     "Directory of the store (data_dir); default: that of cairn-kv-node")
        ->capture_default_str();
    command->add_flag("--json", json, "As JSON: an object a line, the fields of each line of text");
  }
  repair.add_flag("--dry-run", dry_run, "Only say what would be lost and changed");
  repair.add_flag("--drop-unreadable", options.drop_unreadable,
                  "Give up what the disk cannot read, too; without it that is left as it is");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    std::ostringstream text;  // of --help and --version
    app.exit(success, text);
    return PrintText(text.str()).ok() ? 0 : kExitCannotRun;
  } catch (const CLI::ParseError& error) {
    return CannotRun(fmt::format("{}; see {} --help", error.what(), kName));
  }
  const absl::Status logging = InitLogging(kName, "error");
  if (!logging.ok()) return CannotRun(Message(logging));
  if (calibrate.parsed()) {
    calibration.data_dir = options.directory;
    calibration.json = json;
    return Calibrate(std::move(calibration), engine_name);
  }
  absl::Status printed;
  const LineSink print = [&printed, json](const std::string& line) {
    if (printed.ok()) printed = PrintText((json ? LineAsJson(line) : line) + "\n");
  };
  const absl::StatusOr<std::int64_t> findings =
      verify.parsed()
          ? VerifyStore(options, print)
          : RepairStore(options, dry_run ? RepairMode::kDryRun : RepairMode::kRepair, print);
  if (!findings.ok()) return CannotRun(Message(findings.status()));
  if (!printed.ok()) return CannotRun(Message(printed));
  return *findings == 0 ? 0 : kExitFindings;
}

}  // namespace
}  // namespace cairn::kv

int main(int argc, char** argv) {
  // What a repair writes is as private as what the daemon writes.
  ::umask(0077);
  try {
    return cairn::kv::Run(argc, argv);
  } catch (const std::exception& error) {
    return cairn::kv::CannotRun(error.what());
  }
}
