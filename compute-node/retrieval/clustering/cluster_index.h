// ClusterIndex is what a policy knows of the clusters of one (layer, KV head): for each the
// centroid, how many entries it has and how far they lie around it, but not which they are.
//
// Centroids are relative to a common centre, the mean of the first keys: keys of some models share
// large components, which would take all the resolution of 8 bits; queries rank clusters the same
// without them. A row of the index holds exactly what memory does, so that a conversation goes on
// after a restart as if there had been none.
//
// Scores are made of the centroids' sketches, which have half of their bits and are always in
// memory. The codes may lie with the rows in the KV node while no entry joins a cluster: Unload
// lets go of what rows have, Load brings it back (docs/decisions/0027-*).
//
// Order:      by id, which is the order of making; removed clusters leave no trace in any answer.
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/index_record.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/attention.h"

namespace cairn::compute {

// Of some keys: their mean, and the mean squared distance from it.
struct ClusterMoments {
  std::vector<float> centroid;
  float variance = 0;
  std::int64_t count = 0;
  // The mean of their values; empty where none are kept.
  std::vector<float> value{};
};
// `keys` is (key, dim), at least one; `values` likewise, or empty.
ClusterMoments MomentsOf(std::span<const float> keys, std::int64_t dim,
                         std::span<const float> values = {});

class ClusterIndex {
 public:
  // What else is known of a cluster.
  struct Flags {
    bool pinned = false;   // read by every step, never split
    bool split = false;    // to be split when it is selected next
    bool stale = false;    // the moments are of other entries
    bool missing = false;  // there are no moments: to be read at the next step
  };

  // `keeps_values`: moments have the mean value too, and rows hold it.
  explicit ClusterIndex(std::int64_t dim, bool keeps_values = false);

  std::int64_t dim() const { return dim_; }
  bool keeps_values() const { return keeps_values_; }
  // Slots are numbered from 0; those of removed clusters count, until Compact.
  std::size_t slot_count() const { return ids_.size(); }
  std::int64_t cluster_count() const {
    return static_cast<std::int64_t>(ids_.size()) - dead_count_;
  }
  std::int64_t entry_count() const { return entry_count_; }
  std::int64_t memory_bytes() const;
  // Of the codes of all slots, whether they are loaded or not.
  std::int64_t code_bytes() const;

  // Whether the codes of all clusters are in memory, as in the beginning. If not: Nearest,
  // Centroid, LoadMeans, VarianceWith, Append, SetFlags, Row and Transform must not be called, but
  // of clusters that Add or Set made since the last TakeChanged.
  bool is_loaded() const { return is_loaded_; }
  // Lets go of all clusters; the codes of those to come are loaded.
  void Clear();
  // Lets go of the codes of clusters whose rows did not change since TakeChanged.
  void Unload();
  // Brings them back. `for_each_row` calls what it is given with the clusters' records: of two of a
  // cluster the later counts, and only the row that this index made last. Returns the number of
  // clusters that have none: MarkMissing says what becomes of them.
  template <typename ForEachRow>
  std::int64_t Load(ForEachRow&& for_each_row) {
    Loading loading = StartLoad();
    for_each_row([&](const IndexRecord& record) { TakeRecord(loading, record); });
    return EndLoad(std::move(loading));
  }
  // Flags those clusters as missing. REQUIRES: nothing changed since Load.
  void MarkMissing();
  // Flags it as to be split, and as changed no more than it was. Needs no codes.
  void MarkSplit(std::size_t slot);

  // REQUIRES: no clusters. `transformed`: the centre is as Transform makes it; rows from before
  // that are as if they were not there.
  void SetCentre(std::span<const float> centre, bool transformed);
  std::span<const float> centre() const { return centre_; }

  // Makes room for so many clusters at once, which is what adding them then takes.
  void Reserve(std::size_t slot_count);
  // REQUIRES: the id is above all others.
  std::size_t Add(ClusterId id, const ClusterMoments& moments, Flags flags);
  // Sets the centre and all centroids to what `change` makes of them, in place; the variances
  // become those of other entries. Once at most.
  void Transform(const std::function<void(std::span<float>)>& change);
  // Writes other moments.
  void Set(std::size_t slot, const ClusterMoments& moments);
  void Remove(std::size_t slot);
  // Frees the slots of removed clusters when they are many, and memory that is not used; slots
  // change.
  void Compact();
  std::optional<std::size_t> Find(ClusterId id) const;

  bool alive(std::size_t slot) const { return counts_[slot] > 0; }
  ClusterId id(std::size_t slot) const { return ClusterId(ids_[slot]); }
  std::int64_t count(std::size_t slot) const { return counts_[slot]; }
  float variance(std::size_t slot) const { return variances_[slot]; }
  std::vector<float> Centroid(std::size_t slot) const;
  // Centroids and mean values of up to kAttentionBlockEntries clusters, ids ascending, as a block,
  // and how many entries each has. REQUIRES: values are kept; the clusters are there.
  void LoadMeans(std::span<const ClusterId> clusters, KvBlock& block,
                 std::span<float> counts) const;
  Flags flags(std::size_t slot) const;
  void SetFlags(std::size_t slot, Flags flags);

  // The variance if `key` were one of the cluster, in O(dim) (Alg. 1 of the paper, UPDATEVAR).
  float VarianceWith(std::size_t slot, std::span<const float> key) const;
  // One entry more: count, centroid, and the given variance.
  void Append(std::size_t slot, std::span<const float> key, float variance,
              std::span<const float> value = {});

  // Scores of all slots: query times centroid, as its sketch has it, less what is the same for all,
  // and `spread_weight` times the deviation that products of the query with the cluster's keys have
  // around that, as if these lay equally far in all directions; lowest for removed ones and where
  // that is not a number. `scores` has slot_count() elements.
  void Score(std::span<const float> query, float spread_weight, std::span<float> scores) const;
  // The nearest cluster for each key that is not pinned or missing; -1 if there is none. `keys` is
  // (key, dim).
  void Nearest(std::span<const float> keys, std::span<std::int32_t> slots) const;

  // The row that a checkpoint stores, and the reverse. INVALID_ARGUMENT for a row of another size
  // or that is none. A row from before Transform is that of a cluster whose moments are missing.
  // AddRow keeps the codes only if the others' are loaded.
  std::string Row(std::size_t slot) const;
  absl::Status AddRow(ClusterId id, std::int64_t count, bool stale, std::string_view row);
  std::int64_t row_bytes() const;
  // Clusters whose rows changed since the last call, as slots.
  std::vector<std::size_t> TakeChanged();

 private:
  enum FlagBit : std::uint8_t {
    kPinned = 1,
    kSplit = 2,
    kStale = 4,
    kMissing = 8,
    kTransformed = 16,
    kChanged = 128
  };

  // What stands before the codes in a row.
  struct RowHead {
    float scale;
    float variance;
    std::uint32_t flags;
  };
  // Codes that are being loaded.
  struct Loading {
    std::vector<std::int8_t> codes;
    std::vector<std::int8_t> value_codes;
    std::vector<std::uint8_t> is_known;  // by slot
    std::size_t next_slot = 0;           // rows mostly ascend
  };

  Loading StartLoad();
  void TakeRecord(Loading& loading, const IndexRecord& record) const;
  std::int64_t EndLoad(Loading loading);
  // Where the slot's codes are, in slots. REQUIRES: they are in memory.
  std::size_t PlaceOf(std::size_t slot) const;
  // The same; makes room where they are not.
  std::size_t MakePlace(std::size_t slot);
  void Relative(std::span<const float> key, std::vector<float>& relative) const;
  std::size_t AddSlot(ClusterId id, std::int64_t count, float variance, std::uint8_t flags);
  // Calls visit(values, width) for each array that has `width` values of every slot.
  template <typename Visit>
  void ForEachArray(const Visit& visit) {
    const std::size_t dim = static_cast<std::size_t>(dim_);
    visit(ids_, 1);
    visit(sketches_, dim / 2);
    visit(scales_, 1);
    visit(half_squares_, 1);
    visit(variances_, 1);
    visit(counts_, 1);
    visit(flags_, 1);
    if (is_loaded_) visit(codes_, dim);
    if (!keeps_values_) return;
    visit(value_scales_, 1);
    if (is_loaded_) visit(value_codes_, dim);
  }
  // What follows from a slot's codes, scale and flags.
  void SetSketch(std::size_t slot, std::span<const std::int8_t> codes);
  void SetHalfSquare(std::size_t slot, std::span<const std::int8_t> codes);
  void RemoveDeadSlots();
  void WriteCentroid(std::size_t slot, std::span<const float> centroid);
  void WriteValue(std::size_t slot, std::span<const float> value);
  std::span<const std::int8_t> codes(std::size_t slot) const {
    return std::span(codes_).subspan(PlaceOf(slot) * static_cast<std::size_t>(dim_),
                                     static_cast<std::size_t>(dim_));
  }
  const std::int8_t* value_codes(std::size_t slot) const {
    return value_codes_.data() + PlaceOf(slot) * static_cast<std::size_t>(dim_);
  }

  const std::int64_t dim_;
  const bool keeps_values_;
  bool transformed_ = false;
  std::int64_t dead_count_ = 0;
  std::int64_t entry_count_ = 0;
  std::vector<float> centre_;
  bool is_loaded_ = true;
  std::vector<std::size_t> kept_slots_;     // not loaded: whose codes there are, ascending
  std::vector<std::size_t> unknown_slots_;  // whose codes Load did not find
  // By slot.
  std::vector<std::int64_t> ids_;
  std::vector<std::int8_t> codes_;      // dim of each; not loaded: by kept slot
  std::vector<std::uint8_t> sketches_;  // dim / 2 of each
  std::vector<float> scales_;
  std::vector<float> half_squares_;  // infinite: not to be found by Nearest
  std::vector<float> variances_;
  std::vector<std::int32_t> counts_;
  std::vector<std::uint8_t> flags_;
  // Of the mean values, likewise; empty where there are none.
  std::vector<std::int8_t> value_codes_;
  std::vector<float> value_scales_;
};

}  // namespace cairn::compute
