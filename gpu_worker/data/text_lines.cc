#include "gpu_worker/data/text_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

constexpr char kNoNumber[] = "is no number";
constexpr char kNotFinite[] = "is not finite";
constexpr char kTooLarge[] = "is outside the range of its type";
constexpr double kMostWhole = 9007199254740992;  // 2^53

// The same for float64, whose errors are those of every number.
const char* ParseDouble(absl::string_view text, double& value) {
  // from_chars does not take a plus sign.
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return kNoNumber;
  if (result.ec == std::errc::result_out_of_range) return kTooLarge;
  return std::isfinite(value) ? nullptr : kNotFinite;
}

}  // namespace

absl::StatusOr<std::optional<absl::string_view>> TextLines::Next() {
  size_t searched = 0;
  for (;;) {
    const absl::string_view rest = Rest();
    const size_t line_end = rest.find('\n', searched);
    if (line_end == absl::string_view::npos && !at_end_) {
      searched = rest.size();
      if (static_cast<int64_t>(rest.size()) > kMaxLineBytes) {
        ++number_;
        return Wrong(absl::StrCat("longer than ", kMaxLineBytes, " bytes"));
      }
      // Makes room behind what is left, which is less than a line.
      std::copy(buffer_.begin() + static_cast<int64_t>(begin_),
                buffer_.begin() + static_cast<int64_t>(end_), buffer_.begin());
      end_ -= begin_;
      begin_ = 0;
      if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
      absl::StatusOr<size_t> got = source_.Read(buffer_.data() + end_, buffer_.size() - end_);
      if (!got.ok()) return got.status();
      at_end_ = *got < buffer_.size() - end_;
      end_ += *got;
      continue;
    }
    if (line_end == absl::string_view::npos && rest.empty()) return std::nullopt;
    absl::string_view line = rest.substr(0, line_end);
    begin_ += line.size() + (line_end == absl::string_view::npos ? 0 : 1);
    ++number_;
    if (static_cast<int64_t>(line.size()) > kMaxLineBytes) {
      return Wrong(absl::StrCat("longer than ", kMaxLineBytes, " bytes"));
    }
    absl::ConsumeSuffix(&line, "\r");
    if (number_ == 1) absl::ConsumePrefix(&line, "\xef\xbb\xbf");
    return line;
  }
}

std::string TextLines::Place() const { return absl::StrCat(source_.file(), ": line ", number_); }

absl::Status TextLines::Wrong(absl::string_view what) const { return Damaged(Place(), what); }

const char* ParseFloat(absl::string_view text, float& value) {
  double number = 0;
  if (const char* const wrong = ParseDouble(text, number)) return wrong;
  value = static_cast<float>(number);
  return std::isfinite(value) ? nullptr : kTooLarge;
}

bool LooksLikeNumber(absl::string_view text) {
  double ignored = 0;
  return ParseDouble(text, ignored) != kNoNumber;
}

const char* ParseWhole(absl::string_view text, int64_t& value) {
  double number = 0;
  if (const char* const wrong = ParseDouble(text, number)) return wrong;
  if (std::abs(number) > kMostWhole) return kTooLarge;
  if (number != std::floor(number)) return "is no whole number";
  value = static_cast<int64_t>(number);
  return nullptr;
}

std::string NumbersHint(bool numbers, absl::string_view text) {
  return numbers || !LooksLikeNumber(text)
             ? ""
             : "; if labels are numbers to predict, set 'training.loss' to mean_squared_error";
}

std::string Excerpt(absl::string_view text) {
  constexpr size_t kShown = 40;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "..." : "", "'");
}

}  // namespace capstan::data
