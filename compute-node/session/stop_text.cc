#include "compute-node/session/stop_text.h"

#include <algorithm>
#include <cstddef>
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

// What is held back, as it is shown or with the names of tokens.
struct StopText::View {
  std::string text;
  std::vector<std::size_t> places;  // of each byte of the text in held_; behind them held_'s size

  // Where in held_ the longest beginning of a stop text at the end begins.
  std::size_t PartialBegin(const std::vector<std::string>& stops) const {
    std::size_t size = 0;
    for (const std::string& stop : stops) size = std::max(size, PartialMatch(text, stop));
    return places[text.size() - size];
  }
};

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopText::Append(std::string_view piece) {
  if (matched()) return "";
  if (stops_.empty()) return std::string(piece);
  Hold(piece, Part::kBoth);
  return Advance();
}

std::string StopText::AppendNamed(std::string_view name, std::string_view piece) {
  if (matched()) return "";
  if (stops_.empty()) return std::string(piece);
  Hold(name, Part::kName);
  Hold(piece, Part::kShown);
  return Advance();
}

std::string StopText::Finish() { return matched() ? "" : TakeShown(held_.size()); }

void StopText::Hold(std::string_view bytes, Part part) {
  held_ += bytes;
  parts_.insert(parts_.end(), bytes.size(), part);
}

StopText::View StopText::ViewWithout(Part part) const {
  View view;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (parts_[i] == part) continue;
    view.text += held_[i];
    view.places.push_back(i);
  }
  view.places.push_back(held_.size());
  return view;
}

// The first `count` bytes of what is held, less the names.
std::string StopText::TakeShown(std::size_t count) {
  std::string shown;
  for (std::size_t i = 0; i < count; ++i) {
    if (parts_[i] != Part::kName) shown += held_[i];
  }
  held_.erase(0, count);
  parts_.erase(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(count));
  return shown;
}

std::string StopText::Advance() {
  const View shown = ViewWithout(Part::kName);
  const View named = ViewWithout(Part::kShown);
  std::size_t begin = std::string::npos;
  std::size_t end = std::string::npos;
  for (const View* view : {&shown, &named}) {
    for (const std::string& stop : stops_) {
      const std::size_t found = view->text.find(stop);
      if (found == std::string::npos) continue;
      const std::size_t found_begin = view->places[found];
      const std::size_t found_end = view->places[found + stop.size() - 1] + 1;
      if (found_end > end || (found_end == end && found_begin >= begin)) continue;
      begin = found_begin;
      end = found_end;
      match_ = stop;
    }
  }
  if (matched()) return TakeShown(begin);
  const std::size_t named_begin = named.PartialBegin(stops_);
  const std::size_t kept = std::min(shown.PartialBegin(stops_), named_begin);
  std::string text = TakeShown(kept);
  // Names that no stop text can begin in any more are of no use, however many come.
  std::size_t count = 0;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (i + kept < named_begin && parts_[i] == Part::kName) continue;
    held_[count] = held_[i];
    parts_[count++] = parts_[i];
  }
  held_.resize(count);
  parts_.resize(count);
  return text;
}

}  // namespace cairn::compute
