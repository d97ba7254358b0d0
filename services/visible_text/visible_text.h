// Safe display of untrusted text on a terminal.
//
// A terminal obeys more than ASCII's control characters. U+009B alone begins an escape sequence, as
// its two bytes and on some terminals as the byte 0x9B. U+202E reverses the order of a line, so
// that it reads differently. U+200B and others are invisible.
#ifndef CAPSTAN_SERVICES_VISIBLE_TEXT_VISIBLE_TEXT_H_
#define CAPSTAN_SERVICES_VISIBLE_TEXT_VISIBLE_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace capstan::services {

// The size in bytes of the first character of `text`, which must not be empty; 0 if VisibleText
// does not show it, or if it is not UTF-8.
size_t SizeIfShown(absl::string_view text);

// `text` with '?' for each control character (also tab and line feed), each character that is
// invisible or changes the order of others, and each byte that is not UTF-8.
std::string VisibleText(absl::string_view text);

// The same for whole lines of ours that contain untrusted text: line feeds, tabs and colours (CSI
// ... m) stay.
std::string VisibleLines(absl::string_view text);

// Equivalent JSON with characters beyond ASCII as \uXXXX. Bytes that are not UTF-8 become U+FFFD.
std::string VisibleJson(absl::string_view json);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_VISIBLE_TEXT_VISIBLE_TEXT_H_
