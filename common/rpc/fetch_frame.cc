#include "common/rpc/fetch_frame.h"

#include <memory>
#include <vector>

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

// The messages without their entries, and the sizes with them.
struct SpanFrame {
  pb::Span header;
  std::size_t bytes = 0;
};
struct ClusterFrame {
  pb::FetchedCluster header;
  std::vector<SpanFrame> spans;
  std::size_t bytes = 0;
};

bool IsInline(const SpanFrame& frame) { return !frame.header.has_arena(); }

ClusterFrame MeasureCluster(const FetchedCluster& cluster, bool uses_arena) {
  ClusterFrame frame;
  frame.header.set_head(cluster.cluster.head);
  frame.header.set_cluster_id(cluster.cluster.cluster_id.value());
  frame.header.set_outcome(static_cast<pb::FetchOutcome>(cluster.outcome));
  frame.bytes = frame.header.ByteSizeLong();
  frame.spans.reserve(cluster.spans.size());
  for (const Span& span : cluster.spans) {
    SpanFrame& span_frame = frame.spans.emplace_back();
    SpanToProto(span, uses_arena, &span_frame.header);
    span_frame.bytes = span_frame.header.ByteSizeLong();
    if (IsInline(span_frame)) {
      span_frame.bytes += FieldBytes(pb::Span::kEntriesFieldNumber, span.bytes.size());
    }
    frame.bytes += FieldBytes(pb::FetchedCluster::kSpansFieldNumber, span_frame.bytes);
  }
  return frame;
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

void WriteCluster(const FetchedCluster& cluster, const ClusterFrame& frame, SliceWriter* writer) {
  writer->AddMessage(frame.header);
  for (std::size_t i = 0; i < cluster.spans.size(); ++i) {
    const Span& span = cluster.spans[i];
    writer->BeginField(pb::FetchedCluster::kSpansFieldNumber, frame.spans[i].bytes);
    writer->AddMessage(frame.spans[i].header);
    if (!IsInline(frame.spans[i])) continue;
    writer->BeginField(pb::Span::kEntriesFieldNumber, span.bytes.size());
    writer->AddLent(span.bytes, span.owner);
  }
}

}  // namespace

grpc::ByteBuffer FrameFetchReply(const std::string& boot_token, RequestId request,
                                 const FetchReply& reply, bool uses_arena) {
  std::vector<ClusterFrame> frames;
  frames.reserve(reply.clusters.size());
  std::size_t fetch_bytes = 0;
  for (const FetchedCluster& cluster : reply.clusters) {
    frames.push_back(MeasureCluster(cluster, uses_arena));
    fetch_bytes += FieldBytes(pb::FetchReply::kClustersFieldNumber, frames.back().bytes);
  }
  pb::ChannelReply header;
  header.set_boot_token(boot_token);
  header.set_request_id(request.value());
  SliceWriter writer;
  writer.AddMessage(header);
  writer.BeginField(pb::ChannelReply::kFetchFieldNumber, fetch_bytes);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    writer.BeginField(pb::FetchReply::kClustersFieldNumber, frames[i].bytes);
    WriteCluster(reply.clusters[i], frames[i], &writer);
  }
  return writer.Finish();
}

}  // namespace cairn::rpc
