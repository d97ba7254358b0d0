#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/launch/program.h"
#include "client/launch/scheduler.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kSubmitTimeout = absl::Seconds(60);
constexpr absl::Duration kCallTimeout = absl::Seconds(10);

class GridEngine : public Scheduler {
 public:
  GridEngine(std::vector<std::string> hosts, std::vector<std::string> args)
      : hosts_(std::move(hosts)), args_(std::move(args)) {}

  absl::StatusOr<std::string> Submit(const std::string& script, int ranks) override {
    // The script redirects a task's output. "-r n": a task that is run again would be a second one
    // under the same name.
    std::vector<std::string> args = {
        "qsub", "-terse",  "-notify", "-N",        "capstan",
        "-S",   "/bin/sh", "-o",      "/dev/null", "-j",
        "y",    "-r",      "n",       "-t",        absl::StrCat("1-", ranks)};
    if (!hosts_.empty()) {
      args.insert(args.end(), {"-l", absl::StrCat("hostname=", absl::StrJoin(hosts_, "|"))});
    }
    args.insert(args.end(), args_.begin(), args_.end());
    args.push_back(script);
    const absl::StatusOr<ProgramEnd> end = RunProgram(args, kSubmitTimeout);
    if (!end.ok()) return end.status();
    if (!end->success) return absl::InternalError(absl::StrCat("qsub: ", end->error));
    absl::StatusOr<std::string> id = ParseQsub(end->out);
    if (id.ok()) id_ = *id;
    return id;
  }

  absl::string_view TaskVariable() const override { return "SGE_TASK_ID"; }

  absl::Status Look() override {
    const absl::StatusOr<ProgramEnd> end = RunProgram({"qstat", "-j", id_}, kCallTimeout);
    if (!end.ok()) return absl::OkStatus();
    return ParseQstat(end->success, end->out, end->error);
  }

  void Delete() override {
    if (!id_.empty()) (void)RunProgram({"qdel", id_}, kCallTimeout);
  }

 private:
  const std::vector<std::string> hosts_;
  const std::vector<std::string> args_;
  std::string id_;
};

}  // namespace

std::unique_ptr<Scheduler> MakeGridEngine(std::vector<std::string> hosts,
                                          std::vector<std::string> args) {
  return std::make_unique<GridEngine>(std::move(hosts), std::move(args));
}

absl::StatusOr<std::string> ParseQsub(absl::string_view out) {
  const absl::string_view id = out.substr(0, out.find_first_not_of("0123456789"));
  if (id.empty() || id.size() == out.size()) {
    return absl::InternalError(absl::StrCat("qsub: got '", absl::StripAsciiWhitespace(out),
                                            "', want the number of a job"));
  }
  return std::string(id);
}

absl::Status ParseQstat(bool success, absl::string_view out, absl::string_view error) {
  // "Following jobs do not exist or permissions are not sufficient". A master that is away gives
  // another message.
  if (!success && absl::StrContains(absl::StrCat(out, error), "do not exist")) {
    return absl::AbortedError("the job has left the queue");
  }
  for (const absl::string_view line : absl::StrSplit(out, '\n')) {
    if (absl::StartsWith(line, "error reason")) return absl::FailedPreconditionError(line);
  }
  return absl::OkStatus();
}

}  // namespace capstan::client
