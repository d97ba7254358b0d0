// Log lines and events, for people and for programs.
#ifndef CAPSTAN_CLIENT_TEXT_LOG_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_LOG_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct LogStyle {
  bool timestamps = false;
  bool color = false;
};

// "[w0 node-a] warning: text": w and the rank, s and the shard's index, or c; the level unless it
// is info. Control characters become '?'.
std::string LogText(const job::v1::LogLine& line, const LogStyle& style);

// Whether a service's line is only about its progress and nothing a person must know: a log line
// below a warning, or the line that says where it listens. False for lines that are not a
// service's, such as an error of ssh.
bool IsChatter(absl::string_view line);

// "2026-01-02T03:04:05.678Z  lenet-x3n9  RUNNING ...": time, job, type, step if there is one,
// message.
std::string EventText(const std::string& job_id, const job::v1::Event& event);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_LOG_TEXT_H_
