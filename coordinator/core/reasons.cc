#include "coordinator/core/reasons.h"

#include <cstddef>

namespace capstan::coordinator::core {
namespace {

constexpr size_t kMaxMessageBytes = 2048;  // of a failure's sentence

}  // namespace

std::string KnownReason(const std::string& reason) {
  static constexpr const char* kReasons[] = {
      "InvalidSpec", "DataMissing",   "GpuOutOfMemory",   "HostOutOfMemory",  "NonFiniteLoss",
      "WorkerLost",  "ShardLost",     "Stalled",          "DeadlineExceeded", "MaxRestartsExceeded",
      "NcclTimeout", "InternalError", "CheckpointCorrupt"};
  for (const char* known : kReasons) {
    if (reason == known) return reason;
  }
  return kInternalError;
}

std::string Sentence(const std::string& text) {
  if (text.size() <= kMaxMessageBytes) return text;
  size_t cut = kMaxMessageBytes;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

}  // namespace capstan::coordinator::core
