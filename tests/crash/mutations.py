#!/usr/bin/env python3
"""Breaks the sources of both nodes one line at a time and expects a test to notice.

usage: mutations.py [BUILD_DIR] [NAME...]      default: build/release and all mutations

Those that rules.py names for a rule of the store must be noticed by the very tests that it names.
Not part of CI: each mutation is a build. It works in the tree that it lies in, which must have no changes of its
own in the mutated files; every file is put back, also after Ctrl-C. Prints a table, and fails if a mutation
survives, or if its text is no longer in the source (then the table here is what is out of date).
"""
import os
import subprocess
import sys

import rules

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
ENGINE = "kv-node/engine/"
UTIL = "kv-node/util/"
DEVICE_DIR = "kv-node/device/"
LAYOUT_DIR = "kv-node/layout/"
RETRIEVAL = "compute-node/retrieval/"
HISTORY = ("history_test", "tests/unit/engine/history_test", {"CAIRN_TEST_HISTORIES": "20"})
STATE = ("session_state_test", "tests/unit/session_state/session_state_test", {})
CHECK = ("util_test", "tests/unit/util/util_test", {})
PARTS = ("layout_rows_test", "tests/unit/layout_rows/layout_rows_test", {})
KILLS = ("kill_loop_test", "tests/crash/kill_loop_test", {})
ENGINE_TEST = ("engine_test", "tests/unit/engine/engine_test", {})
FAULTS = ("engine_fault_test", "tests/unit/engine/engine_fault_test", {})
CACHE = ("cache_test", "tests/unit/cache/cache_test", {})
DEVICE = ("device_test", "tests/unit/device/device_test", {})
LAYOUT = ("layout_test", "tests/unit/layout/layout_test", {})
META = ("meta_test", "tests/unit/meta/meta_test", {})
POLICIES = ("cairn_retrieval_test", "tests/unit/retrieval/cairn_retrieval_test", {"GTEST_FILTER": "DynaKv*"})
PAGES = ("page_io_test", "tests/unit/engine/page_io_test", {})

# name, file, text that is there once, what takes its place (or two lists of as many), the test that must fail
MUTATIONS = [
    ("no flush before the commit", ENGINE + "checkpoint/checkpointer.cc",
     "if (!context_.options.durable) return Commit();",
     "if (context_.options.durable) return Commit();", HISTORY),
    ("a flush of the thread pool's device does nothing", DEVICE_DIR + "thread_pool_device.cc",
     "result = fdatasync(fd_);", "result = 0;", DEVICE),
    ("a flush of io_uring's device does nothing", DEVICE_DIR + "uring_device.cc",
     "io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);", "io_uring_prep_nop(sqe);", DEVICE),
    ("a write that failed is forgotten", ENGINE + "state/session_writes.cc",
     "if (!status.ok()) host_.Fail(Annotate(status, fmt::format(\"session {}\", host_.id())));",
     "static_cast<void>(status);", FAULTS),
    ("a flush that failed is forgotten", ENGINE + "checkpoint/checkpointer.cc",
     "      return host_.Fail(Annotate(status, fmt::format(\"session {}: flush\", host_.id())));\n",
     "      static_cast<void>(status);\n", FAULTS),
    ("a disk that does not answer is taken for damage", ENGINE + "io/page_io.cc",
     "return failed ? PartState::kUnreadable : PartState::kDamaged;", "return PartState::kDamaged;", FAULTS),
    ("rows that change behind the cut are committed (rule 8)", ENGINE + "checkpoint/checkpointer.cc",
     "  context_.Commit(std::move(job_->batch),",
     "  CaptureRows(*job_);\n  context_.Commit(std::move(job_->batch),", ENGINE_TEST),
    ("log runs are free at the cut (rule 17)", ENGINE + "checkpoint/checkpoint_capture.cc",
     "  job.released = std::move(cut.released);\n",
     "  for (const ExtentRef& extent : cut.released) extent->set_committed(false);\n"
     "  cut.released.clear();\n", ENGINE_TEST),
    ("operations of older epochs are applied (rule 12)", ENGINE + "engine.cc",
     "if (found == attached_.end() || found->second->epoch() != epoch) return nullptr;",
     "if (found == attached_.end() || found->second->epoch() < epoch) return nullptr;", ENGINE_TEST),
    ("a seal by the node keeps the epoch (rule 2)", ENGINE + "engine_sessions.cc",
     "  stored.row.epoch = Epoch(stored.row.epoch.value() + 1);\n", "", ENGINE_TEST),
    ("the node seals what is attached (rule 2)", ENGINE + "engine_sessions.cc",
     "if (attached != attached_.end()) {  // rule 2", "if (attached != attached_.end() && false) {", ENGINE_TEST),
    ("another app's sessions are there", ENGINE + "load/session_loader.cc",
     "if (row.app != app) return NoSession(session.id);", "static_cast<void>(app);", ENGINE_TEST),
    ("damage of another app's session tells that it is there", ENGINE + "engine_attach.cc",
     "CAIRN_RETURN_IF_ERROR(LoadSessionRow(reader, app, ref).status());",
     "static_cast<void>(LoadSessionRow(reader, app, ref).status());", ENGINE_TEST),
    ("forks stand on other apps' segments", ENGINE + "load/session_loader.cc",
     "return row.app == app ? absl::OkStatus() : NoSegment(segment);",
     "return row.app == app || true ? absl::OkStatus() : NoSegment(segment);", ENGINE_TEST),
    ("a position is evicted twice", ENGINE + "state/session_state.cc",
     "if (!twice || *twice >= rows.limit) continue;", "if (!twice || *twice >= 0) continue;", ENGINE_TEST),
    ("a seal without new positions seals (rule 2)", ENGINE + "checkpoint/checkpointer.cc",
     "return op.seal && op.token_count > state_.open().start;",
     "return op.seal;", ENGINE_TEST),
    ("the bit of a stale index row is not stored (rule 11)", "kv-node/layout/rows.cc",
     "  out.Byte(row.stale ? 1 : 0);\n  out.Varint(row.entry_count);",
     "  out.Byte(0);\n  out.Varint(row.entry_count);", ENGINE_TEST),
    ("a checkpoint does not wait for the one before (rule 8)", ENGINE + "checkpoint/checkpointer.cc",
     "if (job_ != nullptr || placer_.is_placing()) return", "if (placer_.is_placing()) return", ENGINE_TEST),
    ("a seal goes over to the next segment at its commit (rule 2)", ENGINE + "checkpoint/checkpointer.cc",
     ["    state_.Roll(job.op.token_count, next);\n    space_.BeginSegment();\n"
      "    placer_.pools().Clear();\n",
      "  if (job->sealed.value() != 0) context_.on_sealed(job->sealed);\n"],
     ["", "  if (job->sealed.value() != 0) {\n    state_.Roll(job->op.token_count, job->row.segment);\n"
      "    space_.BeginSegment();\n    placer_.pools().Clear();\n  }\n"], ENGINE_TEST),
    ("a sealed segment's log runs stay the session's (rule 3)", ENGINE + "state/segment_space.cc",
     "  log_extents_.clear();\n", "", ENGINE_TEST),
    ("a sealed segment goes while others stand on it (rule 3)", ENGINE + "state/segment_tree.cc",
     "if (tree.child_count[parent] > 1) break;", "if (tree.child_count[parent] > 1000) break;", ENGINE_TEST),
    ("an open goes on with the attachment that is there (rule 4)", ENGINE + "engine_attach.cc",
     "  ++opening_count_;\n  StopSession(",
     "  if (!request.lost && attached != attached_.end()) return done(attached->second->attachment());\n"
     "  ++opening_count_;\n  StopSession(", ENGINE_TEST),
    ("the epoch of an attachment is not stored (rule 4)", ENGINE + "engine_attach.cc",
     "  batch.Put(Family::kSessions, SessionKeyBytes(session), EncodeSessionRow(loaded.row));\n", "", ENGINE_TEST),
    ("a resume ends a newer owner's attachment (rule 13)", ENGINE + "engine_attach.cc",
     "    const absl::Status may = request.Check(attached->second->row());\n    if (!may.ok()) return done(may);\n",
     "", ENGINE_TEST),
    ("a resume needs no epoch (rule 13)", ENGINE + "engine_attach.cc",
     "attempt.owner.empty() ? row.epoch == lost->epoch :", "attempt.owner.empty() ? row.epoch >= lost->epoch :",
     ENGINE_TEST),
    ("a resume needs no owner (rule 13)", ENGINE + "engine_attach.cc",
     "row.epoch == lost->epoch : IsOfOwnerOf(row);", "row.epoch == lost->epoch : true;", FAULTS),
    ("the number of an attempt to attach is not stored (rule 13)", ENGINE + "engine_attach.cc",
     "  loaded.row.owner = request.attempt;\n", "  loaded.row.owner.owner = request.attempt.owner;\n", FAULTS),
    ("an attempt that comes late attaches (rule 13)", ENGINE + "engine_attach.cc",
     "attempt.number <= row.owner.number) {", "attempt.number < 0) {", FAULTS),
    ("a resume goes on in an older copy of the store (rule 13)", ENGINE + "engine_attach.cc",
     "  if (row.op_seq >= lost->op_seq) return", "  if (row.op_seq >= OpSeq()) return", FAULTS),
    ("an operation that failed counts as applied (rule 14)", ENGINE + "session/attached_session.cc",
     "    refused_ = op_seq;\n", "    applied_ = op_seq;\n", ENGINE_TEST),
    ("operations may be missing (rule 14)", ENGINE + "session/attached_session.cc",
     "if (head.op_seq.value() > next && refused_.value() == 0) {", "if (head.op_seq < applied_) {", ENGINE_TEST),
    ("a read comes before what it follows (rule 14)", ENGINE + "session/attached_session.cc",
     "if (head.after > applied_) {", "if (head.after < OpSeq(0)) {", ENGINE_TEST),
    ("commit before the writes have ended", ENGINE + "checkpoint/checkpointer.cc",
     "if (!writes_.HasEndedUpTo(job_->write_number)) return;", "", HISTORY),
    ("acknowledge before the commit", ENGINE + "checkpoint/checkpointer.cc",
     "  context_.Commit(std::move(job_->batch),",
     "  host_.TellCheckpointed(job_->op_seq, job_->op.token_count, job_->sealed);\n"
     "  context_.Commit(std::move(job_->batch),", KILLS),
    ("no write of an index run before the commit", ENGINE + "index/session_index.cc",
     "  writes_.Write(extent, extent->first(), std::move(image), WriteCause::kIndex);\n", "", ENGINE_TEST),
    ("an index run's pages stay free", ENGINE + "index/session_index.cc",
     "  space_.AddIndexRun(extent);\n", "", CHECK),
    ("an old index run's pages stay in use", ENGINE + "state/segment_space.cc",
     "if (std::erase(new_extents_, extent) == 0) dropped_extents_.push_back(extent);",
     "std::erase(new_extents_, extent);", ENGINE_TEST),
    ("rows that a new index run has stay beside it", ENGINE + "checkpoint/checkpoint_capture.cc",
     "    job.batch.DeletePrefix(Family::kIndex, SegmentLayerPrefix(open.id, layer));\n", "", HISTORY),
    ("two segments may have the same page", ENGINE + "space/allocation.cc",
     "if (map.MarkUsed(page, 1)) continue;", "if (map.MarkUsed(page, 1) || page.value() >= 0) continue;", ENGINE_TEST),
    ("a replaced cluster's record stays", ENGINE + "state/session_state.cc",
     "    open().index.Put(key, GoneIndexRow());  // whether the run has a record is not known here\n",
     "    open().index.Erase(key);\n", ENGINE_TEST),
    ("records of an index run are not checked", ENGINE + "index/session_index.cc",
     "if (CheckPart(context_.store_id, part, record_bytes, part.count(), pages) !=\n        PartState::kIntact) {",
     "if (part.count() == 0) {", FAULTS),
    ("rows of older segments show behind a damaged index run", ENGINE + "index/session_index.cc",
     "if (lost_before) rows.erase(rows.upper_bound(last), rows.lower_bound(next));",
     "static_cast<void>(next);", FAULTS),
    ("no position rule at a checkpoint", ENGINE + "checkpoint/checkpointer.cc",
     "return state_.CheckPositions(op.token_count, staged_);", "return absl::OkStatus();", ENGINE_TEST),
    ("the log is not synced", "kv-node/meta/meta_store.cc", "write.sync = !options_.in_memory;",
     "write.sync = false;", META),
    ("a superblock is not synced", LAYOUT_DIR + "extent_file.cc",
     "if (fdatasync(fd_) != 0) {", "if (fd_ < 0) {", LAYOUT),
    ("a new extent file is not synced", LAYOUT_DIR + "extent_file_create.cc",
     "if (fsync(fd_) != 0) return", "if (fd_ < 0) return", LAYOUT),
    ("the name of a new extent file is not synced", LAYOUT_DIR + "extent_file_create.cc",
     "  const int result = fsync(fd);\n", "  const int result = 0;\n", LAYOUT),
    ("the name of the metadata's directory is not synced", "kv-node/meta/meta_store.cc",
     "const bool synced = fd >= 0 && fsync(fd) == 0;", "const bool synced = fd >= 0;", META),
    # That its last change is written with sync = true has no mutation: the flush behind it makes it durable too.
    ("a clean close leaves rows in the log", "kv-node/meta/meta_store.cc",
     "if (rocksdb::Status status = db().Flush(flush, Handles()); !status.ok()) return status;", "", META),
    ("a clean close leaves its last change in the log", "kv-node/meta/meta_store.cc",
     "    return db().Flush(flush);\n", "    return rocksdb::Status::OK();\n", META),
    ("a clean close tells no last change", "kv-node/meta/meta_store.cc",
     "if (rocksdb::Status status = db().Put(write, key, \"\"); !status.ok()) return status;",
     "if (write.sync && key.empty()) return {};", META),
    ("new extents are not in the allocation record", ENGINE + "state/segment_space.cc",
     "    records.Mark(extent->first(), extent->page_count(), true);\n", "", CHECK),
    ("dropped extents stay in the allocation record", ENGINE + "state/segment_space.cc",
     "    records.Mark(extent->first(), extent->page_count(), false);\n", "", HISTORY),
    ("masks are not stored", ENGINE + "checkpoint/checkpoint_capture.cc",
     "job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kMask), \"\");",
     "static_cast<void>(key);", CHECK),
    ("carried rows of all segments count", ENGINE + "state/session_state.cc",
     "if (rows.has_checkpoint) last = &rows;",
     "if (rows.has_checkpoint && last == nullptr) last = &rows;", STATE),
    ("carried rows behind the limit count (rule 1)", ENGINE + "state/session_state.cc",
     "if (part.positions.first() < last->limit) out", "out", STATE),
    ("a fork has its parent's records (rule 1)", ENGINE + "session/session_reads.cc",
     "const bool own = state_->open().has_checkpoint;", "const bool own = state_ != nullptr;", ENGINE_TEST),
    ("a child of a Replace may have a used id (rule 10)", ENGINE + "state/session_state.cc",
     "if (child.cluster_id.value() <= last_id || child.positions.empty()) {", "if (child.positions.empty()) {", STATE),
    ("ids that are not to be seen may be used again (rule 10)", ENGINE + "load/session_loader.cc",
     "head == layout.head_count ? kAllHeads : head, next_ids[i] - 1);",
     "head == layout.head_count ? kAllHeads : head, 0);", ENGINE_TEST),
    ("a cluster id may be used again", ENGINE + "state/session_state.cc",
     "if (held.empty() && key.cluster_id.value() <= UsedIdMax(key.layer, key.head)) {", "if (false) {", STATE),
    ("positions may be out of order", ENGINE + "state/session_state.cc",
     "if (!held.empty() && positions.first() <= held.last()) {", "if (false) {", STATE),
    ("the checksum has no part id in its seed", "kv-node/layout/part.cc",
     "const auto id = static_cast<std::uint64_t>(part.value());",
     "const auto id = static_cast<std::uint64_t>(part.value() & 0);", PARTS),
    ("the checksum has no page number in its seed", "kv-node/layout/part.cc",
     "const auto number = static_cast<std::uint64_t>(page_number);",
     "const auto number = static_cast<std::uint64_t>(page_number & 0);", PARTS),
    ("the checksum has no store id in its seed", "kv-node/layout/part.cc",
     "std::memcpy(seed.data(), store.data(), store.size());",
     "std::memset(seed.data(), 0, store.size());", PARTS),
    ("slots outlive their attachment", ENGINE + "engine.cc", "  cache.ForgetAllOf(session);", "",
     ENGINE_TEST),
    ("slots outlive their attachment and what is written there (rule 5)", ENGINE + "engine.cc",
     ["  cache.ForgetAllOf(session);", "caches->OnWrite(first, bytes);"],
     ["", "if (first.value() < 0) caches->OnWrite(first, bytes);"], ENGINE_TEST),
    ("a read of an ended attachment is served (rule 5)", ENGINE + "fetch/fetch_reader.cc",
     "  if (host_.stopped()) return;  // rule 5: reads of an ended epoch are dropped unchecked\n", "", ENGINE_TEST),
    ("a lease holds flash (rule 16)", ENGINE + "fetch/fetch_reader.cc",
     "  span.owner = std::move(wanted.owner);\n",
     "  span.owner = std::make_shared<std::pair<std::shared_ptr<const void>, ExtentRef>>(\n"
     "      wanted.owner, wanted.extent);\n", ENGINE_TEST),
    ("a write lands under a lease", "kv-node/cache/slot_cache.cc", "    if (InUse(*slot)) {\n      Forget(slot);",
     "    if (slot->loading_) {\n      Forget(slot);", CACHE),
    ("a write lands under a load", "kv-node/cache/slot_cache.cc", "    if (InUse(*slot)) {\n      Forget(slot);",
     "    if (slot->lease_count_.load() != 0) {\n      Forget(slot);", CACHE),
    ("a written slot keeps its checks", "kv-node/cache/slot_cache.cc", "  slot->checked_.Clear();\n", "", CACHE),
    ("a write keeps the generation", "kv-node/cache/slot_cache.cc",
     "  slot->generation_ = ++last_generation_;",
     "  if (slot->generation_ == 0) slot->generation_ = ++last_generation_;", CACHE),
    ("holes stay in the arena", ENGINE + "fetch/fetch_reader.cc",
     "            ClearHoles(run, slot->block().bytes());\n",
     "            if (slot == nullptr) ClearHoles(run, {});\n", ENGINE_TEST),
    ("parts are served unchecked", ENGINE + "fetch/fetch_reader.cc", "(checked || IsIntact(context_.store_id, wanted))",
     "(checked || IsIntact(context_.store_id, wanted) || true)", FAULTS),
    ("kept places outlive the cut", ENGINE + "checkpoint/checkpointer.cc",
     "  placer_.ForgetPlans();", "  //", ENGINE_TEST),
    ("others take a kept end", ENGINE + "space/pool_table.cc",
     "    if (live != nullptr && live->kept[Slot(direction)]) continue;\n",
     "    static_cast<void>(live);\n", ENGINE_TEST),
    ("pairs do not lie across a seam", ENGINE + "place/placer_together.cc",
     "if (pool > 0) keep(2 * pool - 1, Direction::kUp);\n"
     "    if (2 * pool < run.size()) keep(2 * pool, Direction::kDown);",
     "if (2 * pool + 1 < run.size()) keep(2 * pool + 1, Direction::kDown);\n"
     "    if (2 * pool < run.size()) keep(2 * pool, Direction::kUp);", ENGINE_TEST),
    ("a spill drops carried rows", ENGINE + "checkpoint/log_plan.cc",
     "for (const Part& part : parts) plan.carried[key].push_back(LogItem::Existing(part));",
     "if (parts.empty()) plan.carried.erase(key);", ENGINE_TEST),
    ("spilled runs are not bounded", ENGINE + "checkpoint/log_plan.cc",
     "  PlanStragglers(plan);\n}\n\nvoid LogPlanner::PlanPending(",
     "}\n\nvoid LogPlanner::PlanPending(", ENGINE_TEST),
    ("spilled runs that nothing names are kept", ENGINE + "checkpoint/log_writer.cc",
     "if (placer_.error().ok()) space_.ForgetUnnamedRuns(state_.open());", "", ENGINE_TEST),
    ("a page is spilled for each operation", ENGINE + "session/attached_session.cc",
     "full_bytes / kSpillShare", "0 * kSpillShare", ENGINE_TEST),
    ("a damaged cluster is placed for room for ever", ENGINE + "place/placer.cc",
     "if (tried_for_room_.contains(key)) continue;",
     "", FAULTS),
    ("log runs that hardly anything names stay (rule 19)", ENGINE + "checkpoint/log_plan.cc",
     "const bool sparse = size_bytes > all_named_bytes * 3 / 2 + kLogSlackBytes;",
     "const bool sparse = false;", ENGINE_TEST),
    ("small children of a split go to pools", ENGINE + "session/replacer.cc",
     "return count < context_.options.place_entries_min &&",
     "return count < 0 &&", ENGINE_TEST),
    ("what a seal carries lies among the clusters", ENGINE + "checkpoint/checkpointer.cc",
     "plan->carried_apart = Seals(op);",
     "plan->carried_apart = false;", ENGINE_TEST),
    ("neighbours are not stored", ENGINE + "checkpoint/checkpoint_capture.cc",
     "job.batch.Put(Family::kCoretrieval, LinkRowKey(segment, key), EncodeLinks(links));",
     "static_cast<void>(links);", ENGINE_TEST),
    ("two writers of a pool's page", ENGINE + "space/pool_table.cc",
     "if (live != nullptr && live->held) return true;", "static_cast<void>(live);", ENGINE_TEST),
    ("a page that is being written is written again (rule 6)", ENGINE + "space/pool_table.cc",
     "if (is_being_written(PageIndex(pool.first.value() + i))) return true;",
     "static_cast<void>(is_being_written(PageIndex(pool.first.value() + i)));", ENGINE_TEST),
    ("a page is read for what memory names only (rule 6)", ENGINE + "space/pool_table.cc",
     "facing, At(*part.extent).ends[Slot(facing)].bytes);",
     "facing,\n              At(*part.extent).ends[Slot(facing)].by_row\n"
     "                  ? At(*part.extent).ends[Slot(facing)].bytes : 0);", ENGINE_TEST),
    ("a page is written again with the growing part only (rule 6)", ENGINE + "place/placer.cc",
     "      std::memcpy(image->data() + begin - image_begin, pages.Page(page).data(), kPageBytes);\n",
     "      const ByteRange own = RangeOf(part, entry_bytes, 0, first);\n"
     "      const std::int64_t from = std::max(own.begin, begin);\n"
     "      const std::int64_t to = std::min(own.end, begin + kPageBytes);\n"
     "      if (from >= to) continue;\n"
     "      std::memcpy(image->data() + from - image_begin, pages.Page(page).data() + from - begin,\n"
     "                  static_cast<std::size_t>(to - from));\n", ENGINE_TEST),
    ("the growing part of a page is not checked (rule 6)", ENGINE + "space/pool_table.cc",
     "if (!PieceIsIntact(store, part, last, pages.Page(page))) return false;",
     "static_cast<void>(PieceIsIntact(store, part, last, pages.Page(page)));", FAULTS),
    ("a page that is being written is read from the device (rule 6)", ENGINE + "io/page_io.cc",
     "    if (in_flight_.contains(page)) continue;\n    if (!pieces", "    if (!pieces", PAGES),
    ("a fetch reads what is being written from the device (rule 6)", ENGINE + "io/page_io.cc",
     "if (const auto writing = in_flight_.find(page_at(i)); writing != in_flight_.end()) {",
     "if (const auto writing = in_flight_.find(page_at(i)); writing != in_flight_.end() && i < 0) {", ENGINE_TEST),
    ("a write does not hold its pages (rule 15)", ENGINE + "state/session_writes.cc",
     ["  // Rule 15: space is in use while a write in flight names it.\n", "[this, number, extent, io = "],
     ["  static_cast<void>(extent);\n", "[this, number, io = "], ENGINE_TEST),
    ("a part grows over what a commit names (rule 15)", ENGINE + "space/pool_table.cc",
     "  return part.extent->size_bytes() - At(*part.extent).ends[Slot(Opposite(part.direction))].bytes;\n",
     "  const End other = At(*part.extent).ends[Slot(Opposite(part.direction))];\n"
     "  return part.extent->size_bytes() - (other.by_row ? other.bytes : 0);\n", ENGINE_TEST),
    ("the lock is the process's (rule 7)", LAYOUT_DIR + "file_calls.cc", "F_OFD_SETLK", "F_SETLK", LAYOUT),
    ("checkpoints do not bound log runs (rule 19)", ENGINE + "checkpoint/log_plan.cc",
     "  PlanStragglers(plan);\n  return absl::OkStatus();\n", "  return absl::OkStatus();\n", ENGINE_TEST),
    ("the other part of a page is not checked", ENGINE + "space/pool_table.cc",
     "if (other.last_crc != PartCrc(store, other.part, number, bytes)) return false;",
     "static_cast<void>(PartCrc(store, other.part, number, bytes));", FAULTS),
    ("a fetch does not hold what it reads", ENGINE + "fetch/fetch_reader.cc",
     "if (wanted.outcome == WantedPart::Outcome::kOpen) HoldPages(state_, wanted);", "", ENGINE_TEST),
    ("an end that a commit still names is free", ENGINE + "space/pool_table.cc",
     "  dropped_.push_back(part.extent);\n", "", ENGINE_TEST),
    ("an end that was dropped is never free", ENGINE + "space/pool_table.cc",
     "if (!end.by_row) end = End();", "static_cast<void>(end);", ENGINE_TEST),
    ("pools without a checkpoint are never free", ENGINE + "space/pool_table.cc",
     "    map_->Free(pool.first, pool.page_count);\n", "", ENGINE_TEST),
    ("a pool forgets that it was committed", ENGINE + "space/pool_table.cc",
     "if (extent.changed()) pool->committed = extent.committed();", "", ENGINE_TEST),
    ("log runs that no row names are kept", ENGINE + "state/segment_parts.cc",
     "if (run->second.named_bytes == 0) log_runs_.erase(run);", "", ENGINE_TEST),
    ("verify: checksums are not compared", UTIL + "segment_check.cc",
     "if (bytes.ok() && PieceIsIntact(store_.store_id, part, piece, *bytes)) continue;\n    // Only",
     "if (bytes.ok()) continue;\n    // Only", CHECK),
    ("verify: overlapping parts pass", UTIL + "segment_check.cc",
     "if (same && placed.range.begin < farthest->range.end) {",
     "if (same && placed.range.end < farthest->range.begin) {", CHECK),
    ("verify: kinds of extents pass", UTIL + "segment_check.cc",
     "extent == ExtentKind::kPackedRun && row_.sealed);", "extent == ExtentKind::kPackedRun);", CHECK),
    ("verify: leaked pages pass", UTIL + "segment_check.cc", "tell(was & ~is,", "tell(was & is & ~is,", CHECK),
    ("verify: positions are not counted", UTIL + "session_check.cc",
     "return state.CheckPositions(token_count, carried);",
     "static_cast<void>(token_count);\n  return absl::OkStatus();", CHECK),
    ("verify: orphans pass", UTIL + "store_check.cc", "} else if (!entry.needed) {", "} else if (false) {",
     CHECK),
    ("repair: half read metadata is repaired", UTIL + "repair_plan.cc",
     "if (survey.incomplete) return plan;", "", CHECK),
    ("repair: a dry run commits", UTIL + "store_tool.cc", "if (mode == RepairMode::kDryRun) break;", "", CHECK),
    ("defragmentation frees pools that others lie in", ENGINE + "defragment/defragmenter.cc",
     "if (--named.at(part.first_page) == 0)", "if (--named.at(part.first_page) >= 0)", ENGINE_TEST),
    ("defragmentation moves what a session reads", ENGINE + "engine_sessions.cc",
     "return entry.second->HasInChain(segment);", "return entry.second->HasInChain(segment) && false;", ENGINE_TEST),
    ("defragmentation moves what fails its check", ENGINE + "defragment/defragmenter.cc",
     "return CheckPart(context_.store_id, part, entry_bytes, part.count(), pages) ==\n             PartState::kIntact;",
     "return entry_bytes > 0 && part.count() > 0;", FAULTS),
    ("defragmented pages stay in the allocation record", ENGINE + "defragment/defragmenter.cc",
     "for (const FreeMap::Range& range : unnamed) records.Mark(range.first, range.count, false);",
     "for (const FreeMap::Range& range : unnamed) records.Mark(range.first, range.count, true);", CHECK),
    ("packed runs are not flushed before the commit", ENGINE + "defragment/defragmenter.cc",
     "if (!context_.options.durable) return LockUnit(unit);",
     "if (context_.options.durable) return LockUnit(unit);", HISTORY),
    ("rows of older segments show where a run was lost", ENGINE + "index/session_index.cc",
     "if (source.run.hides_older) rows.clear();", "if (source.run.hides_older) rows = RowsByKey(rows);", CHECK),
    ("the same of records", ENGINE + "fetch/fetch_reader.cc",
     "run != nullptr && run->hides_older", "run != nullptr && run->hides_older && run->record_bytes < 0", CHECK),
    ("replaced clusters' rows show in forks", ENGINE + "fetch/fetch_reader.cc",
     "if (!hidden.empty()) job.clusters", "if (hidden.empty()) job.clusters", HISTORY),
    ("older records show behind a damaged index run", ENGINE + "fetch/fetch_reader.cc",
     "if (job.only_visible && has_older)", "if (job.only_visible && !has_older)", FAULTS),
    ("packing forgets that a run was lost", ENGINE + "index/session_index.cc",
     "run.hides_older = source.run.hides_older;", "run.hides_older = false;", CHECK),
    ("unpacked index rows may take any memory", ENGINE + "index/session_index.cc",
     "open.index.memory_bytes() > context_.options.index_changed_bytes_max;",
     "open.index.memory_bytes() > 1000 * context_.options.index_changed_bytes_max;", ENGINE_TEST),
    ("full log runs of whole clusters are merged", ENGINE + "checkpoint/log_plan.cc",
     "return settled->contains(run.second); });", "return !settled->contains(run.second); });", ENGINE_TEST),
    ("log runs do not follow the links", ENGINE + "checkpoint/log_writer.cc",
     "links[owner].push_back({key.cluster_id, link.cluster, link.count});",
     "links[owner].push_back({key.cluster_id, key.cluster_id, link.count});", ENGINE_TEST),
    ("a centroid does not follow what joins its cluster", RETRIEVAL + "clustering/cluster_index.cc",
     "moved[i] = old + (key[i] - centre_[i] - old) * share;",
     "moved[i] = old + (key[i] - centre_[i] - old) * share * 0;", POLICIES),
    ("a variance does not follow what joins its cluster", RETRIEVAL + "clustering/cluster_index.cc",
     "  ++entry_count_;\n  variances_[slot] = variance;", "  ++entry_count_;\n  static_cast<void>(variance);",
     POLICIES),
    ("a wide cluster is not split", RETRIEVAL + "dynakv/dynakv_update.cc",
     "flags.split = full || variance > threshold;", "flags.split = full || variance > threshold + 1e30F;", POLICIES),
    ("a large cluster is not split", RETRIEVAL + "dynakv/dynakv_update.cc",
     "flags.split = full || variance > threshold;", "flags.split = (full && variance < 0) || variance > threshold;",
     POLICIES),
    ("what waits for a split is in no place", RETRIEVAL + "dynakv/dynakv_update.cc",
     "      actions.held.push_back({cluster, position});\n", "      static_cast<void>(position);\n", POLICIES),
    ("a cluster whose row was lost does not split", RETRIEVAL + "dynakv/dynakv_policy.cc",
     "head->index.MarkSplit(*slot);", "static_cast<void>(slot);", POLICIES),
    ("sinks whose row was lost are a cluster like others", RETRIEVAL + "dynakv/dynakv_index.cc",
     ".pinned = info.cluster.cluster_id == kSinkCluster", ".pinned = false", POLICIES),
]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
        file.write(text)


def run(command, environment=None, seconds=600):
    """True when the command succeeded; a hang is a failure, as a test that notices by waiting is."""
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, timeout=seconds,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def mutated(text, old, new):
    """The text with its mutation, or None where it does not apply."""
    for one_old, one_new in zip(old, new) if isinstance(old, list) else [(old, new)]:
        if text.count(one_old) != 1:
            return None
        text = text.replace(one_old, one_new)
    return text


def judge(build, name, file, old, new, test):
    target, binary, environment = test
    before = read(file)
    after = mutated(before, old, new)
    if after is None:
        return "NOT APPLIED"
    try:
        write(file, after)
        # Warnings are errors, so a mutation must leave nothing unused.
        if not run(["cmake", "--build", build, "--target", target]):
            return "NOT BUILT"
        command = [os.path.join(build, binary)]
        survived = [only for only in rules.tests_of(name) or [environment.get("GTEST_FILTER", "*")]
                    if run(command + ["--gtest_filter=" + only], environment)]
        return "SURVIVED " + ", ".join(survived) if survived else "caught"
    finally:
        write(file, before)


def main():
    arguments = sys.argv[1:]
    build = arguments.pop(0) if arguments and os.path.isdir(os.path.join(ROOT, arguments[0])) else "build/release"
    wanted = [row for row in MUTATIONS if not arguments or row[0] in arguments]
    survived = 0
    print("| mutation | file | test | outcome |\n| --- | --- | --- | --- |")
    for name, file, old, new, test in wanted:
        outcome = judge(build, name, file, old, new, test)
        survived += outcome != "caught"
        print("| %s | %s | %s | %s |" % (name, file, test[0], outcome), flush=True)
    print("%d mutations, %d not caught" % (len(wanted), survived))
    return 1 if survived or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
