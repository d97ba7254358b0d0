// Log lines and events as people and programs read them.
#ifndef CAPSTAN_CLIENT_LOG_TEXT_H_
#define CAPSTAN_CLIENT_LOG_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct LogStyle {
  bool timestamps = false;
  bool color = false;
};

// "[w0 node-a] warning: text": w rank, s shard index, else c; the level where it is not info.
// Control characters become '?'.
std::string LogText(const job::v1::LogLine& line, const LogStyle& style);

// Whether a service says in this line how it goes on, and nothing a person must know: a log line below
// a warning, or where it listens. What is no line of ours, an error of ssh say, is none.
bool IsChatter(absl::string_view line);

// "2026-01-02T03:04:05.678Z  lenet-x3n9  RUNNING ...": time, job, type, step where there is one, message.
std::string EventText(const std::string& job_id, const job::v1::Event& event);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LOG_TEXT_H_
