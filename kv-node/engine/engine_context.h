// What the parts of the engine share. One instance in each engine; used on the engine thread only,
// but for `post`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kv-node/cache/app_caches.h"
#include "kv-node/engine/engine.h"
#include "kv-node/engine/id_source.h"
#include "kv-node/engine/io/page_io.h"
#include "kv-node/layout/free_map.h"

namespace cairn::kv {

struct EngineContext {
  EngineOptions options;
  StoreId store_id{};
  std::shared_ptr<FreeMap> free_map;
  std::unique_ptr<PageIo> io;
  std::unique_ptr<AppCaches> caches;  // null: without an arena
  MetaStore* meta = nullptr;
  std::unique_ptr<IdSource> ids;
  EngineTime now{};  // of the pass that runs
  std::function<std::int64_t()> unix_microseconds;
  std::function<void()> return_freed_memory;
  // Runs a function on the engine thread; from any thread, never refused: for completions, whose
  // number the engine bounds.
  std::function<void(std::function<void()>)> post;

  // A segment was sealed, and that is committed.
  std::function<void(SegmentId)> on_sealed;

  // Pages that batches which failed begin or cease to name are doubted: they stay in use until a
  // later batch is committed. Then all that failed before are there in full or not at all.
  bool may_settle_doubts = false;

  std::int64_t pending_bytes = 0;  // over all sessions
  KvStats counts;                  // without what is only so at a moment

  void NoteState(PartState state) {
    if (state == PartState::kDamaged) ++counts.lost_part_count;
    if (state == PartState::kUnreadable) ++counts.unreadable_part_count;
  }

  // A new extent. RESOURCE_EXHAUSTED when flash is full.
  absl::StatusOr<ExtentRef> Allocate(ExtentKind kind, std::int64_t page_count) const {
    absl::StatusOr<PageIndex> first = free_map->Allocate(page_count);
    if (!first.ok()) return first.status();
    return std::make_shared<Extent>(free_map, kind, *first, page_count, false);
  }

  // REQUIRES: the pages are free.
  ExtentRef AllocateAt(ExtentKind kind, PageIndex first, std::int64_t page_count) const {
    CAIRN_CHECK(free_map->MarkUsed(first, page_count));
    return std::make_shared<Extent>(free_map, kind, first, page_count, false);
  }

  // Reads the parts' pages; what fails its check is read once more.
  void ReadParts(std::vector<PartRead> parts, ReadCause cause, PageIo::ReadDone done) const {
    std::vector<PageIndex> pages = PagesOf(parts);
    io->Read(std::move(pages), cause, std::move(done), DoubtOf(store_id, std::move(parts)));
  }

  // Commits a batch and runs `done` on the engine thread, where what it holds is released too.
  void Commit(MetaBatch batch, std::function<void(absl::Status)> done) {
    auto shared = std::make_shared<std::function<void(absl::Status)>>(
        [this, done = std::move(done)](const absl::Status& status) {
          if (status.ok() && free_map->has_doubts()) may_settle_doubts = true;
          done(status);
        });
    const absl::Status posted =
        meta->Commit(std::move(batch), [post = post, shared](absl::Status status) {
          post([shared, status = std::move(status)] { std::exchange(*shared, nullptr)(status); });
        });
    if (!posted.ok()) post([shared, posted] { std::exchange(*shared, nullptr)(posted); });
  }

  // Load() for what is changed then: refused while rows may turn out to be others.
  template <typename T>
  void LoadToChange(std::function<absl::StatusOr<T>(MetaReader&)> read,
                    std::function<void(absl::StatusOr<T>)> done) const {
    Load<T>(
        [read = std::move(read)](MetaReader& reader) -> absl::StatusOr<T> {
          CAIRN_RETURN_IF_ERROR(reader.Settled());
          return read(reader);
        },
        std::move(done));
  }

  // Reads on the metadata thread, behind all batches posted before, and runs `done` on the engine
  // thread.
  template <typename T>
  void Load(std::function<absl::StatusOr<T>(MetaReader&)> read,
            std::function<void(absl::StatusOr<T>)> done) const {
    auto shared = std::make_shared<std::function<void(absl::StatusOr<T>)>>(std::move(done));
    const absl::Status posted =
        meta->Run([post = post, read = std::move(read), shared](MetaReader& reader) {
          auto result = std::make_shared<absl::StatusOr<T>>(read(reader));
          post([shared, result] { std::exchange(*shared, nullptr)(std::move(*result)); });
        });
    if (!posted.ok()) post([shared, posted] { std::exchange(*shared, nullptr)(posted); });
  }
};

}  // namespace cairn::kv
