// What the command line writes to, and how: stdout and stderr are looked at separately.
#ifndef CAPSTAN_CLIENT_CONSOLE_H_
#define CAPSTAN_CLIENT_CONSOLE_H_

#include <string>

#include "absl/strings/string_view.h"

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
  int width = 80;  // columns of the terminal at stderr
  int height = 24;

  bool json() const { return output == Output::kJson; }

  // Looks at the terminals and at NO_COLOR, TERM and COLUMNS.
  static Console Detect(bool no_color);

  // Data: to stdout, flushed. On a terminal without what it would obey or hide (visible_text.h).
  void Out(absl::string_view text) const;
  // Everything else: to stderr, always without that.
  void Err(absl::string_view text) const;
  // To stderr unless -q was given.
  void Note(absl::string_view text) const;
};

// Lines at the bottom of the terminal that are drawn over again. Does nothing where stderr is no
// terminal.
class LiveArea {
 public:
  explicit LiveArea(const Console& console) : console_(console) {}
  ~LiveArea() { Clear(); }

  void Draw(const std::string& lines);
  // Takes the area away, for a permanent line or the end.
  void Clear();

 private:
  const Console& console_;
  int drawn_ = 0;  // lines on the screen
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CONSOLE_H_
