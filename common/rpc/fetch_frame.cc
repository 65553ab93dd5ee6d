#include "common/rpc/fetch_frame.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include "common/rpc/kv_codec.h"

namespace cairn::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

std::uint32_t TagOf(int field, WireFormatLite::WireType type) {
  return WireFormatLite::MakeTag(field, type);
}

void AppendVarint(std::uint64_t value, std::string* out) {
  std::uint8_t bytes[10];
  const std::uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(end - bytes));
}

// Of an integer or an enum; zero is what is not there.
void AppendNumber(int field, std::int64_t value, std::string* out) {
  if (value == 0) return;
  AppendVarint(TagOf(field, WireFormatLite::WIRETYPE_VARINT), out);
  AppendVarint(static_cast<std::uint64_t>(value), out);
}

void AppendFieldHeader(int field, std::size_t size, std::string* out) {
  AppendVarint(TagOf(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), out);
  AppendVarint(size, out);
}

// Bytes of a length-delimited field with `size` bytes inside.
std::size_t FieldBytes(int field, std::size_t size) {
  return CodedOutputStream::VarintSize32(TagOf(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) +
         CodedOutputStream::VarintSize64(size) + size;
}

// A message without its entries and without the messages in it that have frames of their own.
struct Frame {
  std::size_t header_begin = 0;  // in ReplyFrames::headers
  std::size_t header_end = 0;
  std::size_t bytes = 0;  // of the whole message
  bool is_inline = false;
};
struct ReplyFrames {
  std::string headers;
  std::vector<Frame> clusters;
  std::vector<Frame> spans;  // of the clusters, one behind the other

  std::string_view HeaderOf(const Frame& frame) const {
    return std::string_view(headers).substr(frame.header_begin,
                                            frame.header_end - frame.header_begin);
  }
};

void AppendArenaRange(const Span& span, std::string* out) {
  std::string range;  // within a string's own room, mostly
  AppendNumber(pb::ArenaRange::kGranuleIdFieldNumber, span.arena.granule_id, &range);
  AppendNumber(pb::ArenaRange::kOffsetBytesFieldNumber, span.arena.offset_bytes, &range);
  AppendNumber(pb::ArenaRange::kSizeBytesFieldNumber, std::ssize(span.bytes), &range);
  AppendNumber(pb::ArenaRange::kGenerationFieldNumber, span.arena.generation, &range);
  AppendFieldHeader(pb::Span::kArenaFieldNumber, range.size(), out);
  out->append(range);
}

void AddSpan(const Span& span, bool uses_arena, ReplyFrames* frames) {
  std::string& out = frames->headers;
  Frame& frame = frames->spans.emplace_back();
  frame.header_begin = out.size();
  frame.is_inline = !uses_arena || span.arena.granule_id == 0;
  AppendNumber(pb::Span::kPartIdFieldNumber, span.part_id.value(), &out);
  AppendNumber(pb::Span::kFirstEntryFieldNumber, span.first_entry, &out);
  AppendNumber(pb::Span::kEntryCountFieldNumber, span.entry_count, &out);
  AppendNumber(pb::Span::kDirectionFieldNumber, static_cast<std::int64_t>(span.direction), &out);
  if (!span.positions.empty()) {
    pb::Positions positions;
    PositionsToProto(span.positions, &positions);
    AppendFieldHeader(pb::Span::kPositionsFieldNumber, positions.ByteSizeLong(), &out);
    positions.AppendToString(&out);
  }
  if (!frame.is_inline) AppendArenaRange(span, &out);
  frame.header_end = out.size();
  frame.bytes = frame.header_end - frame.header_begin;
  if (frame.is_inline) frame.bytes += FieldBytes(pb::Span::kEntriesFieldNumber, span.bytes.size());
}

// Returns the cluster's size.
std::size_t AddCluster(const FetchedCluster& cluster, bool uses_arena, ReplyFrames* frames) {
  std::string& out = frames->headers;
  Frame frame;
  frame.header_begin = out.size();
  AppendNumber(pb::FetchedCluster::kHeadFieldNumber, cluster.cluster.head, &out);
  AppendNumber(pb::FetchedCluster::kClusterIdFieldNumber, cluster.cluster.cluster_id.value(), &out);
  AppendNumber(pb::FetchedCluster::kOutcomeFieldNumber, static_cast<std::int64_t>(cluster.outcome),
               &out);
  frame.header_end = out.size();
  frame.bytes = frame.header_end - frame.header_begin;
  for (const Span& span : cluster.spans) {
    AddSpan(span, uses_arena, frames);
    frame.bytes += FieldBytes(pb::FetchedCluster::kSpansFieldNumber, frames->spans.back().bytes);
  }
  frames->clusters.push_back(frame);
  return frame.bytes;
}

// Collects slices: its own bytes, and lent ones between them.
class SliceWriter {
 public:
  void Add(std::string_view bytes) { own_.append(bytes); }
  void BeginField(int field, std::size_t size) { AppendFieldHeader(field, size, &own_); }
  void AddLent(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner) {
    if (static_cast<std::int64_t>(bytes.size()) < kLendBytesMin || owner == nullptr) {
      own_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return;
    }
    FlushOwn();
    // gRPC only reads from it; its interface has no const.
    void* data = const_cast<std::byte*>(bytes.data());
    slices_.emplace_back(data, bytes.size(), &DropOwner, new std::shared_ptr<const void>(owner));
  }
  grpc::ByteBuffer Finish() {
    FlushOwn();
    return {slices_.data(), slices_.size()};
  }

 private:
  static void DropOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

  void FlushOwn() {
    if (own_.empty()) return;
    slices_.emplace_back(own_.data(), own_.size());
    own_.clear();
  }

  std::string own_;
  std::vector<grpc::Slice> slices_;
};

// `spans`: of the cluster.
void WriteCluster(const FetchedCluster& cluster, const Frame& frame, const Frame* spans,
                  const ReplyFrames& frames, SliceWriter* writer) {
  writer->Add(frames.HeaderOf(frame));
  for (const Span& span : cluster.spans) {
    const Frame& span_frame = *spans++;
    writer->BeginField(pb::FetchedCluster::kSpansFieldNumber, span_frame.bytes);
    writer->Add(frames.HeaderOf(span_frame));
    if (!span_frame.is_inline) continue;
    writer->BeginField(pb::Span::kEntriesFieldNumber, span.bytes.size());
    writer->AddLent(span.bytes, span.owner);
  }
}

}  // namespace

grpc::ByteBuffer FrameFetchReply(const std::string& boot_token, RequestId request,
                                 const FetchReply& reply, bool uses_arena) {
  ReplyFrames frames;
  frames.clusters.reserve(reply.clusters.size());
  frames.spans.reserve(reply.clusters.size());
  std::size_t fetch_bytes = 0;
  for (const FetchedCluster& cluster : reply.clusters) {
    fetch_bytes +=
        FieldBytes(pb::FetchReply::kClustersFieldNumber, AddCluster(cluster, uses_arena, &frames));
  }
  pb::ChannelReply header;
  header.set_boot_token(boot_token);
  header.set_request_id(request.value());
  SliceWriter writer;
  writer.Add(header.SerializeAsString());
  writer.BeginField(pb::ChannelReply::kFetchFieldNumber, fetch_bytes);
  const Frame* spans = frames.spans.data();
  for (std::size_t i = 0; i < frames.clusters.size(); ++i) {
    writer.BeginField(pb::FetchReply::kClustersFieldNumber, frames.clusters[i].bytes);
    WriteCluster(reply.clusters[i], frames.clusters[i], spans, frames, &writer);
    spans += reply.clusters[i].spans.size();
  }
  return writer.Finish();
}

}  // namespace cairn::rpc
