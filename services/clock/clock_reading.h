// How far another host's clock is from ours.
#ifndef CAPSTAN_SERVICES_CLOCK_CLOCK_READING_H_
#define CAPSTAN_SERVICES_CLOCK_CLOCK_READING_H_

#include <algorithm>

#include "absl/time/time.h"

namespace capstan {

struct ClockReading {
  double round_trip_seconds = 0;  // without the time that the other one took
  double ahead_seconds = 0;       // of the other clock; known to half the round trip
};

// Of a call that was sent and whose answer was received by our wall clock, asked and answered by the
// other one (RFC 5905, section 8: delay and offset).
inline ClockReading ReadClock(absl::Time sent, absl::Time asked, absl::Time answered,
                              absl::Time received) {
  return {std::max(0.0, absl::ToDoubleSeconds((received - sent) - (answered - asked))),
          absl::ToDoubleSeconds((asked - sent) + (answered - received)) / 2};
}

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_CLOCK_CLOCK_READING_H_
