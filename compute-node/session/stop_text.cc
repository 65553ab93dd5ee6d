#include "compute-node/session/stop_text.h"

#include <algorithm>
#include <utility>

namespace cairn::compute {
namespace {

// Length of the longest end of `text` that begins `stop` without completing it.
std::size_t PartialMatch(std::string_view text, std::string_view stop) {
  for (std::size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == stop.substr(0, size)) return size;
  }
  return 0;
}

}  // namespace

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopText::Append(std::string_view piece) {
  if (matched_) return "";
  held_ += piece;
  std::size_t match = std::string::npos;
  std::size_t match_end = std::string::npos;
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    const std::size_t begin = held_.find(stop);
    if (begin == std::string::npos) {
      keep = std::max(keep, PartialMatch(held_, stop));
      continue;
    }
    const std::size_t end = begin + stop.size();
    if (end > match_end || (end == match_end && begin > match)) continue;
    match = begin;
    match_end = end;
  }
  if (match != std::string::npos) {
    matched_ = true;
    held_.resize(match);
    return std::exchange(held_, "");
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopText::Finish() { return matched_ ? "" : std::exchange(held_, ""); }

}  // namespace cairn::compute
