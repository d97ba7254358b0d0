#include "client/text/log_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text/job_view.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {

using services::TimeText;

std::string LogText(const job::v1::LogLine& line, const LogStyle& style) {
  std::string who = line.role() == common::v1::ROLE_WORKER        ? absl::StrCat("w", line.index())
                    : line.role() == common::v1::ROLE_PARAM_STORE ? absl::StrCat("s", line.index())
                                                                  : "c";
  if (!line.host().empty()) absl::StrAppend(&who, " ", Printable(line.host()));
  const bool bad = line.level() == "warning" || line.level() == "error";
  std::string out;
  if (style.timestamps) absl::StrAppend(&out, TimeText(line.time()), " ");
  absl::StrAppend(&out, "[", who, "] ");
  const std::string level = line.level().empty() || line.level() == "info"
                                ? ""
                                : absl::StrCat(Printable(line.level()), ": ");
  const std::string text = absl::StrCat(level, Printable(line.text()));
  if (!bad || !style.color) return absl::StrCat(out, text);
  return absl::StrCat(out, line.level() == "error" ? "\033[31m" : "\033[33m", text, "\033[0m");
}

bool IsChatter(absl::string_view line) {
  if (absl::StartsWith(line, "event=listening ")) return true;
  const size_t level = line.find(' ');
  if (!absl::StartsWith(line, "time=") || level == absl::string_view::npos) return false;
  line.remove_prefix(level + 1);
  return absl::StartsWith(line, "level=info ") || absl::StartsWith(line, "level=debug ");
}

std::string EventText(const std::string& job_id, const job::v1::Event& event) {
  std::string out = absl::StrFormat(
      "%s  %s  %-20s %7s  %s", TimeText(event.time()), Printable(job_id), Printable(event.type()),
      event.step() > 0 ? absl::StrCat(event.step()) : "-", Printable(event.message()));
  absl::StripTrailingAsciiWhitespace(&out);  // if the event has no message
  return out;
}

}  // namespace capstan::client
