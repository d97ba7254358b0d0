// The offset between another host's clock and ours.
#ifndef CAPSTAN_SERVICES_CLOCK_CLOCK_READING_H_
#define CAPSTAN_SERVICES_CLOCK_CLOCK_READING_H_

#include <algorithm>

#include "absl/time/time.h"

namespace capstan {

struct ClockReading {
  double round_trip_seconds = 0;  // without the time that the other host took
  double ahead_seconds = 0;       // how far the other clock is ahead; exact to half the round trip
};

// Reads the other clock from one call: our wall clock gives when it was `sent` and its answer was
// `received`, and the other host's clock when it was `asked` and `answered` (RFC 5905, section 8:
// delay and offset).
inline ClockReading ReadClock(absl::Time sent, absl::Time asked, absl::Time answered,
                              absl::Time received) {
  return {std::max(0.0, absl::ToDoubleSeconds((received - sent) - (answered - asked))),
          absl::ToDoubleSeconds((asked - sent) + (answered - received)) / 2};
}

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_CLOCK_CLOCK_READING_H_
