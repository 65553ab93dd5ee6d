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

std::uint32_t TagOf(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

// Bytes of a length-delimited field with `size` bytes inside.
std::size_t FieldBytes(int field, std::size_t size) {
  return CodedOutputStream::VarintSize32(TagOf(field)) + CodedOutputStream::VarintSize64(size) +
         size;
}

// A message without its entries and without the messages in it that have frames of their own.
struct Frame {
  std::size_t header_begin = 0;  // in ReplyFrames::headers
  std::size_t header_bytes = 0;
  std::size_t bytes = 0;  // of the whole message
  bool is_inline = false;
};
struct ReplyFrames {
  std::string headers;
  std::vector<Frame> clusters;
  std::vector<Frame> spans;  // of the clusters, one behind the other
  // Filled anew for each frame, in the memory that they have.
  pb::FetchedCluster cluster_message;
  pb::Span span_message;

  Frame NewFrame(const google::protobuf::MessageLite& header) {
    const std::size_t begin = headers.size();
    header.AppendToString(&headers);
    const std::size_t bytes = headers.size() - begin;
    return {.header_begin = begin, .header_bytes = bytes, .bytes = bytes};
  }
  std::string_view HeaderOf(const Frame& frame) const {
    return std::string_view(headers).substr(frame.header_begin, frame.header_bytes);
  }
};

void AddSpan(const Span& span, bool uses_arena, ReplyFrames* frames) {
  pb::Span& message = frames->span_message;
  message.Clear();
  message.set_part_id(span.part_id.value());
  message.set_first_entry(span.first_entry);
  message.set_entry_count(span.entry_count);
  message.set_direction(static_cast<pb::Direction>(span.direction));
  if (!span.positions.empty()) PositionsToProto(span.positions, message.mutable_positions());
  const bool is_inline = !uses_arena || span.arena.granule_id == 0;
  if (!is_inline) {
    pb::ArenaRange& range = *message.mutable_arena();
    range.set_granule_id(span.arena.granule_id);
    range.set_offset_bytes(span.arena.offset_bytes);
    range.set_size_bytes(std::ssize(span.bytes));
    range.set_generation(span.arena.generation);
  }
  Frame& frame = frames->spans.emplace_back(frames->NewFrame(message));
  frame.is_inline = is_inline;
  if (is_inline) frame.bytes += FieldBytes(pb::Span::kEntriesFieldNumber, span.bytes.size());
}

// Returns the cluster's size.
std::size_t AddCluster(const FetchedCluster& cluster, bool uses_arena, ReplyFrames* frames) {
  pb::FetchedCluster& message = frames->cluster_message;
  ClusterToProto(cluster.cluster, &message);
  message.set_outcome(static_cast<pb::FetchOutcome>(cluster.outcome));
  Frame frame = frames->NewFrame(message);
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
  void BeginField(int field, std::size_t size) {
    std::uint8_t header[20];  // the longest varints
    std::uint8_t* end = CodedOutputStream::WriteVarint32ToArray(TagOf(field), header);
    end = CodedOutputStream::WriteVarint64ToArray(size, end);
    own_.append(header, end);
  }
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
  pb::FetchReply numbers;
  numbers.set_read_bytes(reply.read_bytes);
  fetch_bytes += numbers.ByteSizeLong();
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
  writer.Add(numbers.SerializeAsString());
  return writer.Finish();
}

}  // namespace cairn::rpc
