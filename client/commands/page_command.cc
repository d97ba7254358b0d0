// `capstan page`: the status page over runs in a folder.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/run_folder.h"
#include "services/clock/clock.h"
#include "services/endpoint/endpoint.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kUntilItSays = absl::Seconds(5);  // for the line with its address
constexpr absl::Duration kPageLook = absl::Milliseconds(20);
constexpr absl::Duration kHealthLook = absl::Milliseconds(500);

struct PageOptions {
  std::string folder = kDefaultRunsFolder;
  std::string http = "127.0.0.1:0";
};

// Serves until SIGINT or SIGTERM.
ExitCode ServePage(const PageOptions& options, const Console& console) {
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  const absl::StatusOr<services::Endpoint> http = services::ParseEndpoint(options.http);
  if (!http.ok() || http->is_unix() || !services::IsLoopback(http->host)) {
    return Report(absl::InvalidArgumentError(absl::StrCat(
                      "--http: want a loopback address such as 127.0.0.1:7071, because the page "
                      "requires no token; got '",
                      options.http, "'")),
                  console);
  }
  if (absl::Status runs = CheckRunsIn(options.folder); !runs.ok()) return Report(runs, console);
  const absl::StatusOr<std::unique_ptr<Look>> look =
      Look::Open(options.folder, kDefaultTimeout, options.http);
  if (!look.ok()) return Report(look.status(), console);
  const LocalCluster& cluster = (*look)->cluster();
  const absl::Duration until = MonotonicNow() + kUntilItSays;
  while (cluster.http().empty()) {
    if (absl::Status health = cluster.Health(); !health.ok()) return Report(health, console);
    if (signal.WaitFor(kPageLook)) return kExitDone;
    if (MonotonicNow() > until) {
      return Report(absl::InternalError(absl::StrCat("the status page was not served within ",
                                                     absl::FormatDuration(kUntilItSays))),
                    console);
    }
  }
  console.Out(absl::StrCat("http://", cluster.http(), "/\n"));
  console.Note(
      absl::StrCat("the runs in ", options.folder,
                   ", as they are now, for everybody on this machine; Ctrl-C ends the page\n"));
  while (!signal.WaitFor(kHealthLook)) {
    if (absl::Status health = cluster.Health(); !health.ok()) return Report(health, console);
  }
  return kExitDone;
}

}  // namespace

void AddPage(Command parent, Action& slot) {
  const auto options = std::make_shared<PageOptions>();
  Command command =
      parent.Sub("page", "serve the status page for the runs in a folder, until Ctrl-C");
  command.Add("FOLDER", options->folder, "folder of runs, or one run; default ./capstan-out");
  command.Add("--http", options->http, "loopback address, default 127.0.0.1:0: a free port");
  CarryOut(
      command, slot, {Output::kTable},
      [options](const Context& context) { return ServePage(*options, context.console); },
      kActsAlone);
}

}  // namespace capstan::client
