// A ChannelReply with a FetchReply, framed by hand: on the wire exactly what protobuf would write,
// but the entries' bytes are lent to gRPC instead of copied twice.
//
// Threading: pure function. gRPC drops the spans' owners on a thread of its own, when the transport
//            is done with the bytes.
#pragma once

#include <string>

#include <grpcpp/support/byte_buffer.h>

#include "common/kv/messages.h"

namespace cairn::rpc {

// Spans below this are copied: lending costs an allocation and a slice each.
inline constexpr std::int64_t kLendBytesMin = 4096;

// With `uses_arena` spans in the arena go as ranges; their owners are the caller's to keep.
grpc::ByteBuffer FrameFetchReply(const std::string& boot_token, RequestId request,
                                 const FetchReply& reply, bool uses_arena);

}  // namespace cairn::rpc
