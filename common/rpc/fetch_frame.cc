#include "common/rpc/fetch_frame.h"

#include <cstddef>
#include <memory>
#include <vector>

#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include "common/rpc/kv_codec.h"

namespace cairn::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// Bytes of a length-delimited field with `size` bytes inside.
std::size_t FieldBytes(int field, std::size_t size) {
  return CodedOutputStream::VarintSize32(
             WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) +
         CodedOutputStream::VarintSize64(size) + size;
}

// The messages without their entries, in a protobuf arena, and the sizes with them.
struct SpanFrame {
  const pb::Span* header = nullptr;
  std::size_t bytes = 0;
};
struct ClusterFrame {
  const pb::FetchedCluster* header = nullptr;
  std::size_t bytes = 0;
};
struct ReplyFrames {
  google::protobuf::Arena arena;
  std::vector<ClusterFrame> clusters;
  std::vector<SpanFrame> spans;  // of the clusters, one behind the other
};

bool IsInline(const SpanFrame& frame) { return !frame.header->has_arena(); }

// Adds the cluster and returns its size.
std::size_t MeasureCluster(const FetchedCluster& cluster, bool uses_arena, ReplyFrames* frames) {
  auto* header = google::protobuf::Arena::CreateMessage<pb::FetchedCluster>(&frames->arena);
  header->set_head(cluster.cluster.head);
  header->set_cluster_id(cluster.cluster.cluster_id.value());
  header->set_outcome(static_cast<pb::FetchOutcome>(cluster.outcome));
  std::size_t bytes = header->ByteSizeLong();
  for (const Span& span : cluster.spans) {
    auto* span_header = google::protobuf::Arena::CreateMessage<pb::Span>(&frames->arena);
    SpanToProto(span, uses_arena, span_header);
    SpanFrame& frame = frames->spans.emplace_back(SpanFrame{span_header, 0});
    frame.bytes = span_header->ByteSizeLong();
    if (IsInline(frame)) {
      frame.bytes += FieldBytes(pb::Span::kEntriesFieldNumber, span.bytes.size());
    }
    bytes += FieldBytes(pb::FetchedCluster::kSpansFieldNumber, frame.bytes);
  }
  frames->clusters.push_back({header, bytes});
  return bytes;
}

// Collects slices: its own bytes, and lent ones between them.
class SliceWriter {
 public:
  void BeginField(int field, std::size_t size) {
    AddVarint(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    AddVarint(size);
  }
  void AddMessage(const google::protobuf::MessageLite& message) {
    message.AppendPartialToString(&own_);
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

  void AddVarint(std::uint64_t value) {
    std::uint8_t bytes[10];
    const std::uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
    own_.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(end - bytes));
  }
  void FlushOwn() {
    if (own_.empty()) return;
    slices_.emplace_back(own_.data(), own_.size());
    own_.clear();
  }

  std::string own_;
  std::vector<grpc::Slice> slices_;
};

// `frames`: of the cluster's spans.
void WriteCluster(const FetchedCluster& cluster, const ClusterFrame& frame, const SpanFrame* frames,
                  SliceWriter* writer) {
  writer->AddMessage(*frame.header);
  for (const Span& span : cluster.spans) {
    const SpanFrame& span_frame = *frames++;
    writer->BeginField(pb::FetchedCluster::kSpansFieldNumber, span_frame.bytes);
    writer->AddMessage(*span_frame.header);
    if (!IsInline(span_frame)) continue;
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
    fetch_bytes += FieldBytes(pb::FetchReply::kClustersFieldNumber,
                              MeasureCluster(cluster, uses_arena, &frames));
  }
  pb::ChannelReply header;
  header.set_boot_token(boot_token);
  header.set_request_id(request.value());
  SliceWriter writer;
  writer.AddMessage(header);
  writer.BeginField(pb::ChannelReply::kFetchFieldNumber, fetch_bytes);
  const SpanFrame* spans = frames.spans.data();
  for (std::size_t i = 0; i < frames.clusters.size(); ++i) {
    writer.BeginField(pb::FetchReply::kClustersFieldNumber, frames.clusters[i].bytes);
    WriteCluster(reply.clusters[i], frames.clusters[i], spans, &writer);
    spans += reply.clusters[i].spans.size();
  }
  return writer.Finish();
}

}  // namespace cairn::rpc
