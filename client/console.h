// What the command line writes to, and how: stdout and stderr are looked at separately.
#ifndef CAPSTAN_CLIENT_CONSOLE_H_
#define CAPSTAN_CLIENT_CONSOLE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::client {

enum class Output { kTable, kWide, kJson, kYaml, kName, kCsv };  // -o

struct Console {
  Output output = Output::kTable;
  bool quiet = false;    // -q: nothing but results and errors
  bool verbose = false;  // -v: what the services say, too
  bool may_ask = false;  // stdin and stderr are terminals, and --no-input was not given
  bool stdout_tty = false;
  bool stderr_tty = false;
  bool stdout_color = false;
  bool stderr_color = false;
  // Both are one terminal: lines may be drawn over again there. Not so where another program writes
  // our stdout to it, between our lines (`| tee`).
  bool one_terminal = false;
  int width = 80;  // columns of the terminal at stderr when we began

  bool json() const { return output == Output::kJson; }

  // Looks at the terminals and at NO_COLOR and TERM.
  static Console Detect(bool no_color);

  // Data: to stdout, flushed. On a terminal without what it would obey or hide (visible_text.h).
  void Out(absl::string_view text) const;
  // Everything else: to stderr, always without that.
  void Err(absl::string_view text) const;
  // To stderr unless -q was given.
  void Note(absl::string_view text) const;
};

struct TerminalSize {
  int width = 80;  // columns
  int height = 24;

  friend bool operator==(const TerminalSize& a, const TerminalSize& b) {
    return a.width == b.width && a.height == b.height;
  }
  friend bool operator!=(const TerminalSize& a, const TerminalSize& b) { return !(a == b); }
};

// Of the terminal at stderr, now: people pull at their windows. The default where there is none.
TerminalSize SizeOfTerminal();

// Lines at the bottom of the terminal that are drawn over again, cut to its size. Does nothing where
// stdout and stderr are not one terminal, with -q, -v and -o json.
class LiveArea {
 public:
  explicit LiveArea(const Console& console);
  ~LiveArea() { Clear(); }
  LiveArea(const LiveArea&) = delete;
  LiveArea& operator=(const LiveArea&) = delete;

  bool on() const { return on_; }
  // True: the terminal has another size than when it was drawn; what fits is another thing now.
  bool Resized() const { return on_ && !drawn_.empty() && SizeOfTerminal() != size_; }
  void Draw(const std::string& lines);
  // Takes the area away, for a permanent line or the end.
  void Clear();

 private:
  const Console& console_;
  const bool on_;
  std::string drawn_;  // on the screen, with a line feed behind it; empty: nothing
  TerminalSize size_;  // when it was drawn
};

// The keyboard at stdin, a key at a time. Between two looks the terminal is as it was found: whoever
// ends us then finds it so.
class Keyboard {
 public:
  Keyboard();

  // Waits for `key`, at most `timeout`. False: it was not pressed; at once where stdin is no terminal
  // of ours (then the caller has to wait for itself).
  bool WaitFor(char key, absl::Duration timeout);
  bool there() const { return there_; }

 private:
  const bool there_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CONSOLE_H_
