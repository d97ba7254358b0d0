#include "services/server/http2_guard.h"

#include <algorithm>

namespace capstan::services {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kRstStream = 3;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndHeaders = 4;

}  // namespace

bool Http2Guard::Take(absl::string_view bytes, absl::Duration now) {
  if (*why_ != '\0') return false;
  if (other_) return true;
  if (preface_ < kPreface.size()) {
    const size_t size = std::min(bytes.size(), kPreface.size() - preface_);
    if (bytes.substr(0, size) != kPreface.substr(preface_, size)) {
      other_ = true;
      return true;
    }
    preface_ += size;
    bytes.remove_prefix(size);
    refilled_ = now;
  }
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const size_t size = std::min(payload_left_, bytes.size());
      payload_left_ -= size;
      bytes.remove_prefix(size);
      continue;
    }
    head_[head_size_++] = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    if (head_size_ < sizeof(head_)) continue;
    head_size_ = 0;
    payload_left_ = size_t{head_[0]} << 16 | size_t{head_[1]} << 8 | head_[2];
    if (!OnFrame(now)) return false;
  }
  return true;
}

// Judges a frame by its head alone, so that the cost of a block is known before it is read.
bool Http2Guard::OnFrame(absl::Duration now) {
  const uint8_t type = head_[3];
  if (type == kHeaders || type == kContinuation) {
    if (!in_headers_) header_bytes_ = 0;
    header_bytes_ += sizeof(head_) + payload_left_;
    in_headers_ = (head_[4] & kEndHeaders) == 0;
    if (header_bytes_ > limits_.max_header_bytes) why_ = "a header block without an end";
  } else if (type == kRstStream) {
    resets_left_ =
        std::min(limits_.reset_burst,
                 resets_left_ + absl::ToDoubleSeconds(now - refilled_) * limits_.resets_per_second);
    refilled_ = now;
    resets_left_ -= 1;
    if (resets_left_ < 0) why_ = "streams that are opened and reset";
  }
  return *why_ == '\0';
}

}  // namespace capstan::services
