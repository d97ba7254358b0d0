// A text as a data set for language models on characters: a folder with input.txt, which may also be
// packed as .gz or .xz, and perhaps a test file. Without one, the end of the training file is the
// test set.
//
// A character is a byte. The vocabulary is the sorted set of the bytes that occur in the training
// and the test file, and a token is the number of a byte in it. A sample is an image of 1 x 1 x T
// tokens, the characters iT to iT + T - 1 of its part of the text; its label is the character after
// them. Samples do not overlap, so a part of n characters has (n - 1) / T samples, and what is left
// at its end is not used.
//
// The text is held in memory, a byte for each character.
#ifndef CAPSTAN_GPU_WORKER_DATA_TEXT_H_
#define CAPSTAN_GPU_WORKER_DATA_TEXT_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

inline constexpr int64_t kMaxSequenceLength = 1 << 14;

// Which bytes occur. Threads: none of its own.
class Vocabulary {
 public:
  void Add(uint8_t byte) { there_[byte] = true; }
  int64_t size() const;
  // The token of each byte; 0 for one that does not occur.
  std::array<uint8_t, 256> Tokens() const;

 private:
  std::array<bool, 256> there_ = {};
};

struct TextScan {
  int64_t count = 0;           // characters
  std::vector<uint8_t> bytes;  // if they are wanted
};

// Reads a whole text and adds its bytes to the vocabulary. Errors of the source. InvalidArgument,
// InvalidSpec: more than `memory_limit_bytes` characters. Throws bad_alloc.
absl::StatusOr<TextScan> ScanText(ByteSource& source, bool keep, int64_t memory_limit_bytes,
                                  Vocabulary& vocabulary);

// How many of `count` characters at the end of a text are its test part: the whole number of
// count * fraction.
int64_t TestCharacters(int64_t count, double fraction);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_TEXT_H_
