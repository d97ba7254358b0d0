// The lines of a text with numbers, for the formats that are tables.
//
// Threads: one at a time.
#ifndef CAPSTAN_GPU_WORKER_DATA_TEXT_LINES_H_
#define CAPSTAN_GPU_WORKER_DATA_TEXT_LINES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

inline constexpr int64_t kMaxLineBytes = 16 << 20;

// Reads a source line by line. A line ends in LF or CR LF; the last one may end without. A byte
// order mark of UTF-8 at the start is skipped.
class TextLines {
 public:
  // Borrows the source.
  explicit TextLines(ByteSource& source) : source_(source), buffer_(kFirstBytes) {}

  // The next line without its end, valid until the next call; nullopt at the end of the source.
  // DataLoss, DataMissing: a line of more than kMaxLineBytes. Memory: twice the longest line, or
  // 64 KiB. Throws bad_alloc.
  absl::StatusOr<std::optional<absl::string_view>> Next();

  int64_t number() const { return number_; }  // of the line that Next returned, from 1
  // "<file>: line 3", for messages.
  std::string Place() const;
  // DataLoss, DataMissing: "<file>: line 3: <what>".
  absl::Status Wrong(absl::string_view what) const;

 private:
  static constexpr size_t kFirstBytes = 64 << 10;

  absl::string_view Rest() const {
    return {reinterpret_cast<const char*>(buffer_.data()) + begin_, end_ - begin_};
  }

  ByteSource& source_;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0, end_ = 0;  // what was read and not yet returned
  bool at_end_ = false;
  int64_t number_ = 0;
};

// Reads a decimal number, like "-1.5e3" or "+2", into `value`. Returns nullptr, or what is wrong
// with it, to stand behind "'<text>' ". NaN and infinity are wrong. The result is the float32 next
// to the number's float64.
const char* ParseFloat(absl::string_view text, float& value);

// Whether ParseFloat takes the text for a number, be it of a right value or not.
bool LooksLikeNumber(absl::string_view text);

// Reads a whole number, like "3", "-1" or "3.0", of at most 2^53. Returns as ParseFloat does.
const char* ParseWhole(absl::string_view text, int64_t& value);

// What is added to the message of a wrong label: if `text` is a number, how to train on numbers.
// Empty if it is none, or if `numbers` says that targets are numbers already.
std::string NumbersHint(bool numbers, absl::string_view text);

// The beginning of a text from a file, for messages: 'abc', 'a\x00b', 'long...'.
std::string Excerpt(absl::string_view text);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_TEXT_LINES_H_
