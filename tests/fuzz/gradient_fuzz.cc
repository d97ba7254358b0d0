// Reads any words as an encoded chunk of a gradient, in each format. They are refused, or decoded
// into all of the chunk. What was decoded from a 16-bit format is encoded as the same words.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "services/check/check.h"
#include "training/compress/gradient_format.h"

namespace {

using capstan::training::GradientEncoding;
using capstan::training::GradientFormat;

constexpr size_t kHeader = 4;

}  // namespace

// format, floats (2 bytes), ratio in 1/256, words.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHeader) return 0;
  const GradientFormat format{.encoding = static_cast<GradientEncoding>(data[0] % 7),
                              .ratio = (data[3] + 1) / 256.0};
  const int64_t floats = 1 + data[1] + 256 * (data[2] % 4);
  std::vector<float> words(capstan::training::EncodedWords(format, floats));
  const size_t given = std::min(size - kHeader, words.size() * sizeof(float));
  std::memcpy(words.data(), data + kHeader, given);
  if (!capstan::training::IsWellFormed(format, words, floats)) return 0;
  const float mark = -12345.0f;
  std::vector<float> first(floats, mark), second(floats, -mark);
  capstan::training::Decode(format, words, absl::MakeSpan(first));
  capstan::training::Decode(format, words, absl::MakeSpan(second));
  CAPSTAN_CHECK(std::memcmp(first.data(), second.data(), floats * sizeof(float)) == 0);
  const bool halves = format.encoding == GradientEncoding::kFloat16 ||
                      format.encoding == GradientEncoding::kBFloat16;
  if (!halves || floats % 2 == 1) return 0;
  for (const float value : first) {
    if (std::isnan(value)) return 0;
  }
  std::vector<float> again(words.size());
  capstan::training::Encode(format, first, absl::MakeSpan(again));
  CAPSTAN_CHECK(std::memcmp(again.data(), words.data(), words.size() * sizeof(float)) == 0);
  return 0;
}
