#include "tests/sim/sim_world.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kv-node/layout/superblock.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::sim {
namespace {

constexpr std::size_t kChatsMax = 4;
// Where data lies mostly: places are given from the front.
constexpr std::int64_t kRottenPagesMax = 100;
// Of Settle: far more than anything needs.
constexpr int kSettleStepsMax = 200000;
constexpr std::int64_t kRestPassesMax = 300;
// Of the steps behind which rows have changed.
constexpr std::int64_t kCheckOneIn = 512;

std::int64_t PageCountOf(std::uint64_t seed) {
  return seed % 3 == 0 ? kSmallStorePages : kLargeStorePages;
}
// Of a step, or of the end.
test::Rng RngOf(std::uint64_t seed, std::int64_t step) {
  std::uint64_t mixed = seed + static_cast<std::uint64_t>(step) * 0x9e3779b97f4a7c15ULL;
  return test::Rng(test::SplitMix64(mixed));
}

}  // namespace

SimWorld::SimWorld(std::uint64_t seed)
    : seed_(seed),
      rng_(seed),
      now_(std::chrono::seconds(1000)),
      operations_(kv::SmallLayout(), [this](std::int64_t below) { return Random(below); }),
      stores_{{seed * 2, 'a', PageCountOf(seed)}, {seed * 2 + 1, 'b', PageCountOf(seed + 1)}},
      checks_{SimStoreCheck(stores_[0]), SimStoreCheck(stores_[1])},
      node_(wire_, [this](std::int64_t below) { return Random(below); }),
      context_{wire_, node_, operations_, [this](std::int64_t below) { return Random(below); },
               now_,  {},    false,       0,
               {},    {},    {}} {}

std::int64_t SimWorld::Random(std::int64_t below) {
  return static_cast<std::int64_t>(rng_.Below(static_cast<std::uint64_t>(below)));
}

SimChat& SimWorld::AnyChat() {
  if (chats_.empty()) AddChat();
  return *chats_[static_cast<std::size_t>(Random(std::ssize(chats_)))];
}

absl::Status SimWorld::Step(std::int64_t step) {
  rng_ = RngOf(seed_, step);
  if (context_.node_dies_in > 0 && --context_.node_dies_in == 0 && node_.is_up()) {
    EndNode();
    return context_.wrong;
  }
  const std::int64_t dice = Random(1000);
  if (dice < 400) {
    last_event_ = "a message arrives";
    wire_.Step(context_.random);
  } else if (dice < 570) {
    last_event_ = "the engine runs";
    if (node_.is_up()) RunEngine();
  } else if (dice < 690) {
    last_event_ = "the metadata are committed";
    if (node_.is_up()) node_.meta().Step();
  } else if (dice < 979) {
    last_event_ = "a chat acts";
    AnyChat().Act();
  } else if (dice < 991) {
    last_event_ = "time passes";
    Age();
  } else {
    SeldomEvent();
  }
  const bool has_changed = node_.is_up() && node_.meta().latest_sequence() != checked_sequence_;
  if (has_changed && Random(kCheckOneIn) == 0) CheckRules(node_.store());
  return context_.wrong;
}

void SimWorld::RunEngine() {
  node_.RunEngine(now_);
  if (!node_.IsWithinBudget()) context_.Wrong("there is more shared memory than may be");
}

void SimWorld::Age() {
  const bool long_time = Random(20) == 0;
  now_ += std::chrono::milliseconds(long_time ? Random(40000) : Random(50));
}

void SimWorld::SeldomEvent() {
  const std::int64_t dice = Random(110);
  if (!node_.is_up()) {
    if (dice < 8) return TakeCopy(stores_[0]);
    if (dice < 14 && copy_) return PutBack(stores_[0]);
    last_event_ = "the KV node starts";
    return StartNode(stores_[Random(8) == 0 ? 1 : 0]);
  }
  if (dice < 16) {
    EndNode();
  } else if (dice < 20) {
    last_event_ = "the KV node stops";
    node_.End(SimNode::Ending::kStop, now_);
    ++context_.counts["stopped"];
  } else if (dice < 25) {
    last_event_ = "the KV node is about to stop";
    node_.TellStopping();
  } else if (dice < 32) {
    FailIo();
  } else if (dice < 45) {
    last_event_ = "a connection breaks";
    AnyChat().BreakStream();
  } else if (dice < 50) {
    last_event_ = "the KV node is left alone";
    Rest();
  } else if (dice < 53) {
    last_event_ = "a chat is closed";
    AnyChat().Close();
  } else if (dice < 61) {
    last_event_ = "a compute node crashes";
    AnyChat().Crash();
  } else if (dice < 64) {
    last_event_ = "a chat is sealed by the node";
    AnyChat().SealAsStored();
  } else if (dice < 67) {
    last_event_ = "a chat is deleted";
    AnyChat().Delete();
  } else if (dice < 82) {
    std::erase_if(chats_, [](const auto& chat) { return chat->is_gone(); });
    if (dice >= 77) return RepeatChat();
    last_event_ = "a chat begins";
    if (chats_.size() < kChatsMax) AddChat();
  } else if (dice < 90) {
    last_event_ = "the metadata's disk is full";
    node_.meta().FillDisk();
    context_.was_metadata_disk_full = true;
    ++context_.counts["metadata disk full"];
  } else if (dice < 94) {
    last_event_ = "somebody else opens a chat";
    AnyChat().OpenBySomebodyElse();
  } else if (dice < 95) {
    last_event_ = "somebody else deletes a chat";
    AnyChat().DeleteBySomebodyElse();
  } else {
    last_event_ = "the metadata's disk has room";
    node_.meta().FreeDisk();
  }
}

void SimWorld::EndNode() {
  const bool is_power_cut = Random(2) == 0;
  last_event_ = is_power_cut ? "the power goes off" : "the KV node is killed";
  node_.End(is_power_cut ? SimNode::Ending::kPowerCut : SimNode::Ending::kKill, now_);
  ++context_.counts[is_power_cut ? "power cut" : "killed"];
}

// Nobody asks for anything: it places, and packs what was sealed, until the next event.
void SimWorld::Rest() {
  for (std::int64_t passes = Random(kRestPassesMax); passes > 0; --passes) {
    node_.meta().Step();
    node_.RunEngine(now_);
    now_ += std::chrono::milliseconds(1);
  }
}

void SimWorld::FailIo() {
  kv::FaultyDisk& disk = node_.store().disk;
  node_.SetHasIoFaults(true);
  const int count = static_cast<int>(1 + Random(3));
  const bool lasts = seed_ % 4 == 1;
  switch (Random(lasts ? 7 : 4)) {
    case 0:
      last_event_ = "reads fail";
      return disk.FailNextReads(count);
    case 1:
      last_event_ = "a write fails";
      return disk.FailNextWrites(1);
    case 2:
      last_event_ = "a flush fails";
      return disk.FailNextFlushes(1);
    case 3:
      last_event_ = "transfers end early";
      return disk.ShortenNext(count);
    case 4:
      last_event_ = "reads come wrong";
      node_.store().is_damaged = true;
      return disk.FlipNextReads(count);
    default:
      last_event_ = "a page rots";
      node_.store().is_damaged = true;
      return disk.CorruptPage(kv::kFirstDataPage + Random(kRottenPagesMax));
  }
}

void SimWorld::AddChat() {
  std::optional<SimSealed> parent;
  if (!context_.sealed.empty() && Random(2) == 0) {
    const auto index = static_cast<std::size_t>(Random(std::ssize(context_.sealed)));
    parent = context_.sealed[index];
    const std::int64_t own = parent->oracle.token_count - parent->start;
    parent->oracle.CutTo(parent->start + 1 + Random(own));
  }
  chats_.push_back(std::make_shared<SimChat>(context_, std::move(parent)));
}

void SimWorld::RepeatChat() {
  last_event_ = "a chat is computed again";
  if (chats_.empty() || chats_.size() > kChatsMax) return;
  std::rotate(chats_.begin(), chats_.begin() + Random(std::ssize(chats_)), chats_.end());
  const auto found = std::find_if(chats_.begin(), chats_.end(),
                                  [](const auto& chat) { return chat->MayBeRepeated(); });
  if (found == chats_.end()) return;
  const std::shared_ptr<SimChat> repeated = *found;
  chats_.push_back(std::make_shared<SimChat>(context_, repeated));
  repeated->SetReplacement(chats_.back());
}

void SimWorld::StartNode(SimStore& store) {
  kv::EngineOptions options;
  options.place_entries_min = Random(2) == 0 ? 3 : 40;
  options.pending_bytes_max = 64 << 10;
  options.pooled_children_max = Random(2) == 0 ? 1 : 64;
  options.index_changed_min = Random(3) * 3;
  options.merge_gap_bytes = Random(3) * 2 * kv::kPageBytes;
  // None; less than there is to be read, and than the daemon allows; about as much.
  constexpr std::int64_t kArenaBytes[] = {0, kv::kGranuleBytesMin, kv::kArenaBytesMin};
  options.arena_bytes_max = kArenaBytes[Random(3)];
  options.defragment = Random(4) != 0;
  options.defragment_idle = std::chrono::milliseconds(Random(6));
  if (Random(8) == 0) CheckRules(store);
  const absl::Status started = node_.Start(store, options, now_);
  if (!started.ok()) context_.Wrong("the KV node does not start: {}", Message(started));
  ++context_.counts[&store == &stores_[0] ? "started" : "started with the other store"];
}

void SimWorld::CheckRules(SimStore& store) {
  if (node_.is_up()) checked_sequence_ = node_.meta().latest_sequence();
  const SimPages pages = Random(2) == 0 ? SimPages::kVisible : SimPages::kDurable;
  const absl::Status checked = checks_[&store == &stores_[0] ? 0 : 1].Check(pages);
  if (!checked.ok()) {
    context_.Wrong("the store {}: {}", node_.is_up() ? "in use" : "at rest", Message(checked));
  }
  ++context_.counts[node_.is_up() ? "store checked in use" : "store checked"];
}

// Of a store that nobody uses.
void SimWorld::TakeCopy(SimStore& store) {
  last_event_ = "the store is copied";
  copy_ = SimCopy{store.rows, store.disk.Copy(), {}, {}};
  for (const auto& chat : chats_) {
    if (chat->store() == &store) chat->NoteIn(*copy_);
  }
  for (const SimSealed& sealed : context_.sealed) {
    if (sealed.store == &store) copy_->sealed.insert(sealed.segment);
  }
}

void SimWorld::PutBack(SimStore& store) {
  last_event_ = "an older copy of the store is put back";
  ++context_.counts["older store"];
  // Of what was said before nothing arrives behind it.
  while (wire_.Step(context_.random)) {
  }
  store.rows = copy_->rows;
  store.disk.PutBack(copy_->disk);
  std::erase_if(context_.heard_uids, [&](const auto& heard) { return heard.first == store.name; });
  for (const auto& chat : chats_) chat->OnPutBack(store, *copy_);
  std::erase_if(context_.sealed, [&](const SimSealed& sealed) {
    return sealed.store == &store && !copy_->sealed.contains(sealed.segment);
  });
}

bool SimWorld::Settle(const std::function<bool()>& done) {
  for (int i = 0; i < kSettleStepsMax && context_.wrong.ok(); ++i) {
    if (done()) return true;
    for (const auto& chat : chats_) {
      if (!chat->is_quiet()) chat->GoOn();
    }
    wire_.Step(context_.random);
    node_.meta().Step();
    node_.RunEngine(now_);
    now_ += std::chrono::milliseconds(1);
  }
  return false;
}

absl::Status SimWorld::End() {
  last_event_ = "the end";
  rng_ = RngOf(seed_, -1);
  for (SimStore& store : stores_) {
    for (const auto& family : store.rows) {
      for (const auto& [key, value] : family) {
        wire_.Note(key);
        wire_.Note(value);
      }
    }
  }
  for (SimStore& store : stores_) EndStore(store);
  context_.counts["page packed"] = static_cast<int>(node_.packed_page_count());
  return context_.wrong;
}

void SimWorld::EndStore(SimStore& store) {
  if (node_.is_up()) node_.End(SimNode::Ending::kPowerCut, now_);
  StartNode(store);
  if (!context_.wrong.ok()) return;
  const auto is_here = [&](const SimChat& chat) {
    return chat.store() == &store && !chat.is_gone();
  };
  const auto all_quiet = [&] {
    return std::all_of(chats_.begin(), chats_.end(),
                       [&](const auto& chat) { return !is_here(*chat) || chat->is_quiet(); });
  };
  // Those that are not made yet would go on being made.
  std::erase_if(chats_, [](const auto& chat) { return chat->store() == nullptr; });
  const auto wait = [&](std::string_view what, const std::function<bool()>& done) {
    if (Settle(done)) return true;
    std::string left;
    for (const auto& chat : chats_) {
      if (is_here(*chat) && !chat->is_quiet()) left += " " + chat->Describe();
    }
    context_.Wrong("the conversations do not {}:{}", what, left);
    return false;
  };
  if (!wait("come back", all_quiet)) return;
  node_.SetHasIoFaults(false);  // whatever failed is heard of by now, and is right again
  for (const auto& chat : chats_) {
    if (is_here(*chat)) chat->AskAll();
  }
  if (!wait("answer", all_quiet)) return;
  for (const auto& chat : chats_) {
    if (is_here(*chat)) chat->Delete();
  }
  const auto all_gone = [&] {
    return std::none_of(chats_.begin(), chats_.end(),
                        [&](const auto& chat) { return is_here(*chat); });
  };
  if (!wait("go", all_gone)) return;
  DeleteStrays();
  CheckEmpty(store);
}

// Sessions that were made for somebody who never heard of it.
void SimWorld::DeleteStrays() {
  to_come_ = 1;
  node_.core().ListSessions(
      kDefaultApp, ListDetail::kRows,
      [&](const absl::StatusOr<std::vector<SessionInfo>>& sessions) {
        --to_come_;
        if (!sessions.ok()) return context_.Wrong("{}", Message(sessions.status()));
        for (const SessionInfo& session : *sessions) {
          if (context_.heard_uids.contains({node_.store().name, session.uid})) {
            return context_.Wrong("session {} is there again", session.session_id);
          }
          ++to_come_;
          ++context_.counts["stray session"];
          node_.core().DeleteSession(kDefaultApp, RefTo(session),
                                     [&](const absl::StatusOr<std::monostate>& deleted) {
                                       --to_come_;
                                       // One that is ephemeral goes by itself.
                                       if (absl::IsNotFound(deleted.status())) return;
                                       if (!deleted.ok())
                                         context_.Wrong("{}", Message(deleted.status()));
                                     });
        }
      });
  if (!Settle([&] { return to_come_ == 0; })) context_.Wrong("strays are not deleted");
}

void SimWorld::CheckEmpty(const SimStore& store) {
  used_bytes_ = -1;
  const auto ask = [&] {
    node_.core().GetStats(kDefaultApp, [&](const absl::StatusOr<KvStats>& stats) {
      if (!stats.ok()) return;
      used_bytes_ = stats->flash_used_bytes;
    });
    return used_bytes_ == 2 * kv::kPageBytes;
  };
  if (!Settle(ask)) {
    context_.Wrong("{} bytes of flash leaked in store {}", used_bytes_, store.name.front());
  }
  for (const kv::Family family :
       {kv::Family::kSessions, kv::Family::kSegments, kv::Family::kClusters, kv::Family::kPools,
        kv::Family::kRuns, kv::Family::kIndex, kv::Family::kCoretrieval}) {
    const auto& rows = store.rows[static_cast<std::size_t>(family)];
    if (!rows.empty()) {
      context_.Wrong("{} rows of {} are left", rows.size(), kv::FamilyName(family));
    }
  }
}

}  // namespace cairn::sim
