#include "services/visible_text/visible_text.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace capstan::services {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;  // not a character

// Characters beyond ASCII: C1 controls, direction marks, zero-width characters, line and paragraph
// separators, private tags.
bool IsHidden(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0xAD || c == 0x061C || c == 0x180E ||
         (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
         (c >= 0xE0000 && c <= 0xE0FFF);
}

// Removes the first character of `text`, which must not be empty, and returns it. If it is invalid,
// removes one byte.
uint32_t Next(absl::string_view* text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>((*text)[i]); };
  const unsigned char first = byte(0);
  const size_t size = first < 0x80   ? 1
                      : first < 0xC2 ? 0
                      : first < 0xE0 ? 2
                      : first < 0xF0 ? 3
                      : first < 0xF5 ? 4
                                     : 0;
  uint32_t c = size <= 1 ? first : first & (0xFFu >> (size + 1));
  bool good = size > 0 && size <= text->size();
  for (size_t i = 1; good && i < size; ++i) {
    good = (byte(i) & 0xC0) == 0x80;
    c = c << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  good = good && c >= kLeast[size] && c <= 0x10FFFF && !(c >= 0xD800 && c < 0xE000);
  text->remove_prefix(good ? size : 1);
  return good ? c : kNone;
}

// The length of the colour sequence that `text` begins with; 0 if there is none.
size_t ColourAt(absl::string_view text) {
  constexpr size_t kMost = 16;
  if (text.substr(0, 2) != "\033[") return 0;
  const size_t end = text.substr(0, kMost).find_first_not_of("0123456789;", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

// Whether a character is shown unchanged; kNone is not.
bool IsShown(uint32_t c) { return c != kNone && c >= 0x20 && c != 0x7F && !IsHidden(c); }

std::string Visible(absl::string_view text, bool lines) {
  std::string out;
  while (!text.empty()) {
    const absl::string_view before = text;
    const size_t kept = !lines ? 0 : text[0] == '\n' || text[0] == '\t' ? 1 : ColourAt(text);
    if (kept > 0) {
      out.append(text.data(), kept);
      text.remove_prefix(kept);
      continue;
    }
    const uint32_t c = Next(&text);
    if (IsShown(c)) {
      out.append(before.data(), before.size() - text.size());
    } else {
      out.push_back('?');
    }
  }
  return out;
}

}  // namespace

size_t SizeIfShown(absl::string_view text) {
  const size_t size = text.size();
  return IsShown(Next(&text)) ? size - text.size() : 0;
}

std::string VisibleText(absl::string_view text) { return Visible(text, /*lines=*/false); }

std::string VisibleLines(absl::string_view text) { return Visible(text, /*lines=*/true); }

std::string VisibleJson(absl::string_view json) {
  std::string out;
  while (!json.empty()) {
    const absl::string_view before = json;
    const uint32_t c = Next(&json);
    if (c == kNone) {
      out.append("\\ufffd");
    } else if (c == 0x7F || (c < 0x10000 && IsHidden(c))) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else if (IsHidden(c)) {
      const uint32_t rest = c - 0x10000;
      absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      out.append(before.data(), before.size() - json.size());
    }
  }
  return out;
}

}  // namespace capstan::services
