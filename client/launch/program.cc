#include "client/launch/program.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "services/process/process.h"

namespace capstan::client {

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat(name, " is not in PATH"));
}

absl::StatusOr<ProgramEnd> RunProgram(const std::vector<std::string>& args,
                                      absl::Duration timeout) {
  absl::StatusOr<std::string> binary = FindProgram(args[0]);
  if (!binary.ok()) return binary.status();
  ProgramEnd end;  // filled in by the spawner's thread, read after WaitFor
  services::ProcessSpawner spawner;
  services::ProcessOptions options;
  options.binary = *std::move(binary);
  options.args.assign(args.begin() + 1, args.end());
  options.on_line = [&end](services::OutputStream stream, absl::string_view line) {
    absl::StrAppend(stream == services::OutputStream::kStdout ? &end.out : &end.error, line, "\n");
  };
  const absl::StatusOr<std::unique_ptr<services::Process>> process =
      spawner.Spawn(std::move(options));
  if (!process.ok()) return process.status();
  const std::optional<services::ExitStatus> status = (*process)->WaitFor(timeout);
  if (!status.has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat(args[0], ": no answer within ", absl::FormatDuration(timeout)));
  }
  end.success = status->success();
  if (!end.success) absl::StrAppend(&end.error, status->ToString());
  return end;
}

}  // namespace capstan::client
