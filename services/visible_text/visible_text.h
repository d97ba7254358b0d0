// Text of strangers on a terminal.
//
// A terminal obeys more than ASCII's controls: U+009B alone begins an escape sequence, in its two bytes
// and on some terminals as the byte 0x9B; U+202E turns the order of a line around, so that it reads
// as another one; U+200B and others are not seen at all.
#ifndef CAPSTAN_SERVICES_VISIBLE_TEXT_VISIBLE_TEXT_H_
#define CAPSTAN_SERVICES_VISIBLE_TEXT_VISIBLE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan::services {

// With '?' for each control (also tab and line feed), each character that is not seen or changes the
// order of others, and each byte that is no UTF-8.
std::string VisibleText(absl::string_view text);

// The same for whole lines of ours that have others' text in them: line feeds, tabs and colours (CSI
// ... m) stay.
std::string VisibleLines(absl::string_view text);

// JSON that says the same: those beyond ASCII as \uXXXX. Bytes that are no UTF-8 become U+FFFD.
std::string VisibleJson(absl::string_view json);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_VISIBLE_TEXT_VISIBLE_TEXT_H_
