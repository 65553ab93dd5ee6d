#include "tests/sim/sim_meta_store.h"

#include <utility>

#include "common/base/check.h"

namespace cairn::sim {
namespace {

constexpr std::int64_t kGroupMax = 4;
// Of a store that failed and whose disk can be written again: it recovers at one step in so many.
constexpr std::int64_t kRecoverOneIn = 4;

}  // namespace

SimMetaStore::~SimMetaStore() {
  if (!dead_) SettleDoubt();
}

absl::Status SimMetaStore::Commit(kv::MetaBatch batch, CommitDone done) {
  if (std::ssize(queue_) >= kv::kMetaQueueCountMax) return Unavailable("the queue is full");
  queue_.push_back({std::move(batch), std::move(done), nullptr});
  return absl::OkStatus();
}

absl::Status SimMetaStore::Run(Task task) {
  if (std::ssize(queue_) >= kv::kMetaQueueCountMax) return Unavailable("the queue is full");
  queue_.push_back({{}, nullptr, std::move(task)});
  return absl::OkStatus();
}

absl::Status SimMetaStore::CommitAndWait(kv::MetaBatch batch) {
  std::optional<absl::Status> result;
  CAIRN_RETURN_IF_ERROR(
      Commit(std::move(batch), [&result](absl::Status status) { result = std::move(status); }));
  while (!result) Step();
  return *result;
}

std::vector<SimMetaStore::Item> SimMetaStore::TakeGroup() {
  std::vector<Item> group;
  const std::int64_t count_max = 1 + random_(kGroupMax);
  while (!queue_.empty() && std::ssize(group) < count_max) {
    const bool is_task = queue_.front().task != nullptr;
    if (is_task && !group.empty()) break;
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
    if (is_task) break;
  }
  return group;
}

bool SimMetaStore::Step() {
  if (!broken_.ok() && !disk_is_full_ && !dead_ && random_(kRecoverOneIn) == 0) {
    SettleDoubt();
    broken_ = absl::OkStatus();
  }
  const std::vector<Item> group = TakeGroup();
  if (group.empty()) return false;
  if (group.front().task) {
    group.front().task(*this);
    return true;
  }
  const absl::Status status = Write(group);
  for (const Item& item : group) item.done(status);
  return true;
}

absl::Status SimMetaStore::Write(const std::vector<Item>& group) {
  if (!broken_.ok()) return broken_;
  if (disk_is_full_) {
    for (const Item& item : group) {
      doubtful_.insert(doubtful_.end(), item.batch.changes().begin(), item.batch.changes().end());
    }
    broken_ = ResourceExhausted("commit to the metadata store: no space");
    return broken_;
  }
  for (const Item& item : group) Apply(item.batch.changes());
  return absl::OkStatus();
}

void SimMetaStore::Apply(const std::vector<kv::MetaBatch::Change>& changes) {
  for (const kv::MetaBatch::Change& change : changes) {
    auto& family = rows_[static_cast<std::size_t>(change.family)];
    ++sequence_;
    switch (change.kind) {
      case kv::MetaBatch::Kind::kPut:
        family[change.key] = change.value;
        break;
      case kv::MetaBatch::Kind::kDelete:
        family.erase(change.key);
        break;
      case kv::MetaBatch::Kind::kDeletePrefix: {
        const std::string end = kv::PrefixEnd(change.key);
        family.erase(family.lower_bound(change.key),
                     end.empty() ? family.end() : family.lower_bound(end));
        break;
      }
    }
  }
}

void SimMetaStore::SettleDoubt() {
  if (!doubtful_.empty() && random_(2) == 0) Apply(doubtful_);
  doubtful_.clear();
}

void SimMetaStore::Die() {
  CAIRN_CHECK(!dead_);
  SettleDoubt();
  if (broken_.ok() && !queue_.empty() && !queue_.front().task && random_(2) == 0) {
    Apply(queue_.front().batch.changes());
  }
  dead_ = true;
  broken_ = Unavailable("the process has ended");
}

absl::StatusOr<std::optional<std::string>> SimMetaStore::Get(kv::Family family,
                                                             std::string_view key) {
  const auto& rows = rows_[static_cast<std::size_t>(family)];
  const auto found = rows.find(key);
  if (found == rows.end()) return std::optional<std::string>();
  return std::optional<std::string>(found->second);
}

absl::Status SimMetaStore::ScanRange(kv::Family family, std::string_view first,
                                     std::string_view end, const Visit& visit) {
  const auto& rows = rows_[static_cast<std::size_t>(family)];
  const auto last = end.empty() ? rows.end() : rows.lower_bound(end);
  for (auto row = rows.lower_bound(first); row != last; ++row) {
    CAIRN_RETURN_IF_ERROR(visit(row->first, row->second));
  }
  return absl::OkStatus();
}

}  // namespace cairn::sim
