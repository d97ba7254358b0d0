#include "client/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/text/screen_text.h"
#include "services/clock/clock.h"
#include "services/visible_text/visible_text.h"

namespace capstan::client {
namespace {

bool ColorAllowed(bool tty, bool no_color) {
  const char* no_color_env = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return tty && !no_color && (no_color_env == nullptr || *no_color_env == '\0') &&
         (term == nullptr || std::strcmp(term, "dumb") != 0);
}

bool SameTerminal(int a, int b) {
  struct stat one, other;
  return isatty(a) != 0 && isatty(b) != 0 && fstat(a, &one) == 0 && fstat(b, &other) == 0 &&
         one.st_rdev == other.st_rdev && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
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
  console.one_terminal = !dumb && SameTerminal(STDOUT_FILENO, STDERR_FILENO);
  console.width = SizeOfTerminal().width;
  return console;
}

void Console::Out(absl::string_view text) const {
  // Output to a file or a program stays unchanged.
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

TerminalSize SizeOfTerminal() {
  TerminalSize size;
  winsize found{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &found) == 0 && found.ws_col > 0) {
    size = {found.ws_col, std::max<int>(found.ws_row, 2)};
  }
  return size;
}

LiveArea::LiveArea(const Console& console)
    : console_(console),
      on_(console.one_terminal && !console.quiet && !console.verbose && !console.json()) {}

void LiveArea::Draw(const std::string& lines) {
  if (!on_) return;
  Clear();
  size_ = SizeOfTerminal();
  // The cursor stands in the line below. Some terminals begin it already after the last column.
  drawn_ = FitLines(lines, size_.width - 1, size_.height - 1);
  console_.Err(absl::StrCat(drawn_, "\n"));
}

void LiveArea::Clear() {
  if (drawn_.empty()) return;
  // A terminal that has become narrower has wrapped the lines. Go up to the first row, then erase
  // to the end.
  std::fprintf(stderr, "\033[%dA\r\033[J", RowsOf(drawn_, SizeOfTerminal().width));
  drawn_.clear();
}

Keyboard::Keyboard() : there_(isatty(STDIN_FILENO) != 0 && tcgetpgrp(STDIN_FILENO) == getpgrp()) {}

bool Keyboard::WaitFor(char key, absl::Duration timeout) {
  if (!there_) return false;
  const absl::Duration until = MonotonicNow() + timeout;
  termios before{};
  // A process in the background may neither read from nor change the terminal.
  if (tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &before) != 0) {
    poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
    return false;
  }
  termios raw = before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;  // read returns at once with what there is
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  bool pressed = false;
  while (!pressed) {
    const absl::Duration left = until - MonotonicNow();
    pollfd entry = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int64_t wait_ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(left));
    if (poll(&entry, 1, static_cast<int>(wait_ms)) <= 0) break;  // a signal also ends the wait
    char got = 0;
    if (read(STDIN_FILENO, &got, 1) != 1) break;
    pressed = got == key;
  }
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
  return pressed;
}

}  // namespace capstan::client
