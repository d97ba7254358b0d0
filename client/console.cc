#include "client/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/visible_text/visible_text.h"

namespace capstan::client {
namespace {

bool ColorAllowed(bool tty, bool no_color) {
  const char* no_color_env = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return tty && !no_color && (no_color_env == nullptr || *no_color_env == '\0') &&
         (term == nullptr || std::strcmp(term, "dumb") != 0);
}

}  // namespace

Console Console::Detect(bool no_color) {
  Console console;
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::strcmp(term, "dumb") == 0;  // no cursor movement either
  console.stdout_tty = isatty(STDOUT_FILENO) != 0 && !dumb;
  console.stderr_tty = isatty(STDERR_FILENO) != 0 && !dumb;
  console.stdout_color = ColorAllowed(console.stdout_tty, no_color);
  console.stderr_color = ColorAllowed(console.stderr_tty, no_color);
  console.may_ask = isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    console.width = size.ws_col;
    console.height = std::max<int>(size.ws_row, 2);
  }
  return console;
}

void Console::Out(absl::string_view text) const {
  // What goes to a file or a program is left as it is.
  std::string shown;
  if (isatty(STDOUT_FILENO) != 0) text = shown = services::VisibleLines(text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Console::Err(absl::string_view text) const {
  const std::string shown = services::VisibleLines(text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void Console::Note(absl::string_view text) const {
  if (!quiet) Err(text);
}

void LiveArea::Draw(const std::string& lines) {
  if (!console_.stderr_tty || console_.quiet || console_.json()) return;
  Clear();
  console_.Err(absl::StrCat(lines, "\n"));
  drawn_ = 1 + static_cast<int>(std::count(lines.begin(), lines.end(), '\n'));
}

void LiveArea::Clear() {
  if (drawn_ == 0) return;
  std::fprintf(stderr, "\033[%dA\r\033[J", drawn_);  // up to its first line, then erase to the end
  drawn_ = 0;
}

}  // namespace capstan::client
