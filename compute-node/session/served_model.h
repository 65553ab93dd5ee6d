// ModelIdentity is what the keys and values of a conversation depend on besides its tokens. Each
// conversation has its own, which is stored with it and never changes. ServedModel is what a
// process can compute: a base model, bare or with one of the adapters that are loaded.
//
// Threading:  values.
#pragma once

#include <set>
#include <string>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::compute {

struct ModelIdentity {
  SegmentKey key;
  EntryLayout layout;
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

inline ModelIdentity IdentityOf(const Attachment& session) { return {session.key, session.layout}; }
inline ModelIdentity IdentityOf(const SessionInfo& session) {
  return {session.key, session.layout};
}

struct ServedModel {
  // Of a conversation without an adapter. All that can be served have its layout.
  ModelIdentity base;
  // Of the adapters that are loaded. A conversation gives the scale.
  std::set<std::string> adapter_digests;

  // Whether a conversation of this identity can be gone on with: FAILED_PRECONDITION says what it
  // needs instead.
  absl::Status CheckServes(SessionId conversation, const ModelIdentity& identity) const;
};

// Of conversations with the model as it is. Reads the whole file the first time: see Model::Digest.
absl::StatusOr<ModelIdentity> BaseIdentity(const Model& model, KvFormat kv_format);

}  // namespace cairn::compute
