// Lines as a terminal shows them: how wide they are, where they end. Pure text.
#ifndef CAPSTAN_CLIENT_SCREEN_TEXT_H_
#define CAPSTAN_CLIENT_SCREEN_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan::client {

// Columns of one line: characters of UTF-8, without colours (CSI ... m).
int ShownWidth(absl::string_view line);

// The line, cut to so many columns; a colour that is on there ends with it. `width` >= 0.
std::string CutLine(absl::string_view line, int width);

// Each line cut to `width` columns, and what is beyond `height` lines left out.
std::string FitLines(absl::string_view lines, int width, int height);

// How many rows `lines` take on a terminal of `width` columns, which wraps what is longer.
int RowsOf(absl::string_view lines, int width);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_SCREEN_TEXT_H_
