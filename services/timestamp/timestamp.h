// Conversion between absl::Time and protobuf timestamps.
#ifndef CAPSTAN_SERVICES_TIMESTAMP_TIMESTAMP_H_
#define CAPSTAN_SERVICES_TIMESTAMP_TIMESTAMP_H_

#include <google/protobuf/timestamp.pb.h>

#include "absl/time/time.h"

namespace capstan {

absl::Time TimeOf(const google::protobuf::Timestamp& time);
// Leaves `out` unchanged if the time is not finite.
void SetTime(absl::Time time, google::protobuf::Timestamp* out);

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_TIMESTAMP_TIMESTAMP_H_
