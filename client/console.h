// How the command line writes to stdout and stderr. Each stream has its own terminal settings.
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
  bool verbose = false;  // -v: also what the services print
  bool may_ask = false;  // stdin and stderr are terminals, and --no-input was not given
  bool stdout_tty = false;
  bool stderr_tty = false;
  bool stdout_color = false;
  bool stderr_color = false;
  // stdout and stderr are one terminal, so lines may be redrawn there. False if another program
  // writes our stdout to that terminal between our lines (`| tee`).
  bool one_terminal = false;
  int width = 80;  // columns of the terminal at stderr at the start

  bool json() const { return output == Output::kJson; }

  // Detects the terminals and reads NO_COLOR and TERM.
  static Console Detect(bool no_color);

  // Writes data to stdout and flushes. If that is a terminal, characters that it would obey or
  // hide become '?' (visible_text.h).
  void Out(absl::string_view text) const;
  // Writes all other text to stderr. Such characters always become '?' there.
  void Err(absl::string_view text) const;
  // Like Err, unless -q was given.
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

// The present size of the terminal at stderr, which people resize. The default if there is none.
TerminalSize SizeOfTerminal();

// Lines at the bottom of the terminal that are redrawn, cut to its size. Does nothing if stdout and
// stderr are not one terminal, or with -q, -v or -o json.
class LiveArea {
 public:
  explicit LiveArea(const Console& console);
  ~LiveArea() { Clear(); }
  LiveArea(const LiveArea&) = delete;
  LiveArea& operator=(const LiveArea&) = delete;

  bool on() const { return on_; }
  // True: the terminal has changed its size since the last Draw, so other lines may fit.
  bool Resized() const { return on_ && !drawn_.empty() && SizeOfTerminal() != size_; }
  void Draw(const std::string& lines);
  // Removes the area, before a permanent line or at the end.
  void Clear();

 private:
  const Console& console_;
  const bool on_;
  std::string drawn_;  // on the screen, followed by a line feed; empty: nothing
  TerminalSize size_;  // when it was drawn
};

// Reads keys from stdin. Restores the terminal's settings after each wait, so a signal that ends
// the process between two waits leaves the terminal as it was.
class Keyboard {
 public:
  Keyboard();

  // Waits for `key`, at most `timeout`. False: the key was not pressed. Returns false at once if
  // stdin is not a terminal of ours; then the caller has to wait by itself.
  bool WaitFor(char key, absl::Duration timeout);
  bool there() const { return there_; }

 private:
  const bool there_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CONSOLE_H_
