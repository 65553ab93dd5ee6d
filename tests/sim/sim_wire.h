// SimWire holds the messages that are on their way between processes: in order within a lane, in
// any order between lanes.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn::sim {

class SimWire {
 public:
  using Arrive = std::function<void()>;
  using Random = std::function<std::int64_t(std::int64_t below)>;
  // Whether whoever reads the lane takes its next message now.
  using MayArrive = std::function<bool()>;

  std::int64_t NewLane(MayArrive may_arrive = nullptr) {
    lanes_[++last_lane_].may_arrive = std::move(may_arrive);
    return last_lane_;
  }
  void Send(std::int64_t lane, Arrive arrive) {
    const auto found = lanes_.find(lane);
    if (found != lanes_.end()) found->second.messages.push_back(std::move(arrive));
  }
  // The last of them are lost.
  void Cut(std::int64_t lane, const Random& random) {
    const auto found = lanes_.find(lane);
    if (found == lanes_.end()) return;
    auto& messages = found->second.messages;
    messages.resize(static_cast<std::size_t>(random(std::ssize(messages) + 1)));
  }
  void Close(std::int64_t lane) { lanes_.erase(lane); }

  // What was said, in order: two runs of the same steps say the same.
  void Note(std::string_view message) {
    trace_ = trace_ * 0x100000001b3ULL ^ std::hash<std::string_view>()(message);
  }
  std::uint64_t trace() const { return trace_; }

  // One message of a lane that has any. False: nothing can arrive.
  bool Step(const Random& random) {
    std::vector<std::int64_t> ready;
    for (const auto& [id, lane] : lanes_) {
      if (!lane.messages.empty() && (!lane.may_arrive || lane.may_arrive())) ready.push_back(id);
    }
    if (ready.empty()) return false;
    auto& messages = lanes_[ready[static_cast<std::size_t>(random(std::ssize(ready)))]].messages;
    const Arrive arrive = std::move(messages.front());
    messages.pop_front();
    arrive();
    return true;
  }

 private:
  struct Lane {
    std::deque<Arrive> messages;
    MayArrive may_arrive;
  };
  std::map<std::int64_t, Lane> lanes_;
  std::int64_t last_lane_ = 0;
  std::uint64_t trace_ = 0;
};

}  // namespace cairn::sim
