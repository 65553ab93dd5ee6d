// SimWorld is both tiers under one scheduler: a KV node, compute nodes with their conversations,
// two stores, and what is on its way between them. Each step is one event, drawn from the seed and
// the step's number alone, so that a step may be left out without changing what the others draw:
// that is how a failing run is shrunk. Every step's outcome is judged.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/sim_chat.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_store_check.h"
#include "tests/sim/sim_wire.h"
#include "tests/tools/rng.h"
#include "tests/unit/engine/oracle.h"

namespace cairn::sim {

class SimWorld {
 public:
  explicit SimWorld(std::uint64_t seed);
  ~SimWorld() = default;
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // The event of that number. Not OK: something is wrong.
  absl::Status Step(std::int64_t step);
  // No more faults: every conversation shows what it must, and when all are deleted flash is empty.
  absl::Status End();
  // What happened, by name.
  const std::map<std::string, int>& counts() const { return context_.counts; }
  std::uint64_t trace() const { return wire_.trace(); }
  // Of the step before: what it was.
  const std::string& last_event() const { return last_event_; }

 private:
  std::int64_t Random(std::int64_t below);
  SimChat& AnyChat();
  void SeldomEvent();
  void EndNode();
  void FailIo();
  void Rest();
  void CheckRules(SimStore& store);
  void TakeCopy(SimStore& store);
  void PutBack(SimStore& store);
  void StartNode(SimStore& store);
  void AddChat();
  // A chat computes again what another one holds.
  void RepeatChat();
  void RunEngine();
  void Age();
  // Lets everything go on until `done` says so.
  bool Settle(const std::function<bool()>& done);
  void EndStore(SimStore& store);
  void DeleteStrays();
  void CheckEmpty(const SimStore& store);

  const std::uint64_t seed_;
  test::Rng rng_;
  kv::EngineTime now_;
  kv::RandomOperations operations_;
  SimStore stores_[2];
  SimStoreCheck checks_[2];  // of each
  SimWire wire_;
  SimNode node_;
  SimContext context_;
  std::vector<std::shared_ptr<SimChat>> chats_;
  std::optional<SimCopy> copy_;         // of the first store
  std::uint64_t checked_sequence_ = 0;  // of the metadata: when the rules were checked last
  std::string last_event_;
  // Of the end: answers that are to come, which may be later than it.
  std::int64_t to_come_ = 0;
  std::int64_t used_bytes_ = -1;  // of flash
};

}  // namespace cairn::sim
