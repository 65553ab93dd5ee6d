#include "common/rpc/fetch_frame.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include "common/base/check.h"
#include "common/rpc/kv_codec.h"

namespace cairn::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

std::uint32_t TagOf(int field, WireFormatLite::WireType type) {
  return WireFormatLite::MakeTag(field, type);
}

// A few fields of one message, without memory of their own.
class FieldBuffer {
 public:
  // Of an integer or an enum; zero is what is not there.
  void AddNumber(int field, std::int64_t value) {
    if (value == 0) return;
    AddVarint(TagOf(field, WireFormatLite::WIRETYPE_VARINT));
    AddVarint(static_cast<std::uint64_t>(value));
  }
  // Of a field with `size` bytes inside, which are not added.
  void AddHeader(int field, std::size_t size) {
    AddVarint(TagOf(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    AddVarint(size);
  }
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(bytes_), static_cast<std::size_t>(end_ - bytes_)};
  }

 private:
  static constexpr int kNumbersMax = 5;

  void AddVarint(std::uint64_t value) {
    CAIRN_CHECK_LE(end_ - bytes_ + 10, std::ssize(bytes_));
    end_ = CodedOutputStream::WriteVarint64ToArray(value, end_);
  }

  std::uint8_t bytes_[kNumbersMax * 20];  // the longest varints
  std::uint8_t* end_ = bytes_;
};

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
  FieldBuffer range;
  range.AddNumber(pb::ArenaRange::kGranuleIdFieldNumber, span.arena.granule_id);
  range.AddNumber(pb::ArenaRange::kOffsetBytesFieldNumber, span.arena.offset_bytes);
  range.AddNumber(pb::ArenaRange::kSizeBytesFieldNumber, std::ssize(span.bytes));
  range.AddNumber(pb::ArenaRange::kGenerationFieldNumber, span.arena.generation);
  FieldBuffer header;
  header.AddHeader(pb::Span::kArenaFieldNumber, range.bytes().size());
  out->append(header.bytes()).append(range.bytes());
}

void AppendPositions(const Positions& positions, std::string* out) {
  pb::Positions message;
  PositionsToProto(positions, &message);
  FieldBuffer header;
  header.AddHeader(pb::Span::kPositionsFieldNumber, message.ByteSizeLong());
  out->append(header.bytes());
  message.AppendToString(out);
}

void AddSpan(const Span& span, bool uses_arena, ReplyFrames* frames) {
  std::string& out = frames->headers;
  Frame& frame = frames->spans.emplace_back();
  frame.header_begin = out.size();
  frame.is_inline = !uses_arena || span.arena.granule_id == 0;
  FieldBuffer numbers;
  numbers.AddNumber(pb::Span::kPartIdFieldNumber, span.part_id.value());
  numbers.AddNumber(pb::Span::kFirstEntryFieldNumber, span.first_entry);
  numbers.AddNumber(pb::Span::kEntryCountFieldNumber, span.entry_count);
  numbers.AddNumber(pb::Span::kDirectionFieldNumber, static_cast<std::int64_t>(span.direction));
  out.append(numbers.bytes());
  if (!span.positions.empty()) AppendPositions(span.positions, &out);
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
  FieldBuffer numbers;
  numbers.AddNumber(pb::FetchedCluster::kHeadFieldNumber, cluster.cluster.head);
  numbers.AddNumber(pb::FetchedCluster::kClusterIdFieldNumber, cluster.cluster.cluster_id.value());
  numbers.AddNumber(pb::FetchedCluster::kOutcomeFieldNumber,
                    static_cast<std::int64_t>(cluster.outcome));
  out.append(numbers.bytes());
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
  void BeginField(int field, std::size_t size) {
    FieldBuffer header;
    header.AddHeader(field, size);
    own_.append(header.bytes());
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
  FieldBuffer numbers;
  numbers.AddNumber(pb::FetchReply::kReadBytesFieldNumber, reply.read_bytes);
  fetch_bytes += numbers.bytes().size();
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
  writer.Add(numbers.bytes());
  return writer.Finish();
}

}  // namespace cairn::rpc
