// Numbers as people read them.
#ifndef CAPSTAN_CLIENT_TEXT_NUMBER_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_NUMBER_TEXT_H_

#include <cmath>
#include <string>

#include "absl/strings/str_format.h"

namespace capstan::client {

// The shortest text with so many significant digits: "0.25", "1.43413e-08", "inf". A NaN is "nan":
// its sign depends on the processor and has no meaning.
inline std::string NumberText(double value, int digits) {
  return std::isnan(value) ? "nan" : absl::StrFormat("%.*g", digits, value);
}

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_NUMBER_TEXT_H_
