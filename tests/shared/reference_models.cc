#include "tests/shared/reference_models.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "tests/tools/shared_folder.h"

namespace cairn::test {

std::string SharedModelPath(const std::string& shared, const SharedModel& model) {
  if (model.make == nullptr) {
    const bool f16 = std::string_view(model.name).ends_with("f16");
    return fmt::format("{}/models/retrieval-3m/model-{}.gguf", shared, f16 ? "f16" : "f32");
  }
  std::string path = fmt::format("{}/{}.gguf", testing::TempDir(), model.name);
  if (!std::filesystem::exists(path)) {
    // Several test programs may make the same file at once.
    const std::string part = fmt::format("{}.{}", path, getpid());
    CommandOutput(fmt::format("/usr/bin/python3 '{}/tools/make_gguf.py' {} -o '{}'", shared,
                              model.make, part));
    std::filesystem::rename(part, path);
  }
  return path;
}

std::vector<double> SharedLogits(const std::string& shared, const SharedModel& model,
                                 int64_t token_count) {
  const std::string bytes = CommandOutput(fmt::format(
      "/usr/bin/python3 -c 'import sys, numpy; "
      "sys.stdout.buffer.write(numpy.load(sys.argv[1])[sys.argv[2]].astype(\"<f8\").tobytes())' "
      "'{}/models/expected/{}.npz' ref_{}",
      shared, model.name, token_count));
  std::vector<double> logits(bytes.size() / sizeof(double));
  CAIRN_CHECK(!logits.empty());
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  return logits;
}

}  // namespace cairn::test
