#include "services/timestamp/timestamp.h"

#include <cstdint>

namespace capstan {

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

void SetTime(absl::Time time, google::protobuf::Timestamp* out) {
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return;
  const int64_t nanos = absl::ToUnixNanos(time);
  int64_t seconds = nanos / 1000000000;
  int64_t rest = nanos % 1000000000;
  if (rest < 0) {
    rest += 1000000000;
    --seconds;
  }
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(rest));
}

}  // namespace capstan
