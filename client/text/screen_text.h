// Lines as a terminal shows them: their width and where they are cut. Pure text.
#ifndef CAPSTAN_CLIENT_TEXT_SCREEN_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_SCREEN_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan::client {

// The columns of one line: characters of UTF-8, without colours (CSI ... m).
int ShownWidth(absl::string_view line);

// Cuts the line to `width` >= 0 columns. A colour that is on at the cut is ended there.
std::string CutLine(absl::string_view line, int width);

// Cuts each line to `width` columns, and leaves out lines beyond `height`.
std::string FitLines(absl::string_view lines, int width, int height);

// How many rows `lines` take on a terminal of `width` columns, which wraps longer lines.
int RowsOf(absl::string_view lines, int width);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_SCREEN_TEXT_H_
