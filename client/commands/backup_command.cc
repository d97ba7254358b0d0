// `capstan backup` copies the coordinator's journal while it runs. `capstan restore` makes a state
// folder from such a copy.
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "coordinator/journal/journal_copy.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"
#include "training/codec/sha256.h"

namespace capstan::client {
namespace {

using services::Dump;

struct BackupOptions {
  std::string folder;
  std::string state_dir;
};

// What arrives with a copy besides its bytes.
struct Received {
  std::string version;
  std::string mark;
  int64_t commits = 0;
  int64_t size_bytes = -1;
};

// Sets `here` if the error is about a file of this host.
absl::Status Receive(JobClient& client, services::AtomicFile& file, Received* received,
                     bool* here) {
  const auto context = services::NewContext(client.timeout());
  const auto reader = client.backups().Backup(context.get(), job::v1::BackupRequest());
  training::Sha256 sha;
  std::string want;
  job::v1::BackupResponse response;
  absl::Status written;
  while (written.ok() && reader->Read(&response)) {
    if (received->size_bytes < 0) {
      *received = {response.version(), response.mark(), response.commits(), response.size_bytes()};
    }
    sha.Update(response.data());
    written = file.Append(response.data());
    if (!response.sha256().empty()) want = response.sha256();
  }
  if (!written.ok()) context->TryCancel();
  const absl::Status status = services::FromGrpcStatus(reader->Finish());
  *here = !written.ok();
  if (!written.ok()) return written;
  if (!status.ok()) return status;
  const std::string got = sha.FinishHex();
  if (file.size_bytes() != received->size_bytes || got != want) {
    return absl::DataLossError(absl::StrCat(
        "the journal came as ", file.size_bytes(), " bytes with SHA-256 ", got, ", want ",
        received->size_bytes, " with ", want.empty() ? "a hash that did not arrive" : want));
  }
  return absl::OkStatus();
}

ExitCode BackupTo(const std::string& folder, JobClient& client, const Console& console) {
  const auto here = [&](const absl::Status& status) {
    Report(status, console);
    return kExitInternal;
  };
  const std::string path = absl::StrCat(folder, "/journal.db");
  if (::access(path.c_str(), F_OK) == 0) {
    console.Err(absl::StrCat("capstan: ", folder,
                             " already holds a backup; use a new folder for each backup\n"));
    return kExitUsage;
  }
  // Private, because the journal has names of people, hosts and paths.
  if (absl::Status status = services::EnsureDir(folder, 0700); !status.ok()) return here(status);
  auto file = services::AtomicFile::Create(path, {.mode = 0600});
  if (!file.ok()) return here(file.status());
  Received received;
  bool is_here = false;
  absl::Status status = Receive(client, **file, &received, &is_here);
  if (!status.ok()) return is_here ? here(status) : Report(status, console);
  status = (*file)->Commit();
  if (!status.ok()) return here(status);
  // Written last: without the mark, the folder is refused.
  status = services::WriteFileAtomically(absl::StrCat(folder, "/journal.mark"), received.mark,
                                         {.mode = 0600});
  if (!status.ok()) return here(status);
  console.Out(console.json() ? Dump({{"folder", folder},
                                     {"commits", received.commits},
                                     {"size_bytes", received.size_bytes},
                                     {"coordinator_version", received.version}}) +
                                   "\n"
                             : absl::StrCat(folder, "  ", received.commits, " commits, ",
                                            received.size_bytes, " bytes\n"));
  return kExitDone;
}

ExitCode RestoreFrom(const BackupOptions& options, const Console& console) {
  const auto restored = coordinator::RestoreJournal(options.folder, options.state_dir);
  if (!restored.ok()) {
    Report(restored.status(), console);
    return kExitInternal;
  }
  if (console.json()) {
    console.Out(Dump({{"state_dir", options.state_dir},
                      {"commits", restored->commits},
                      {"jobs", restored->jobs},
                      {"jobs_not_ended", restored->going},
                      {"missing_checkpoints", restored->lacking}}) +
                "\n");
    return kExitDone;
  }
  console.Out(absl::StrCat(options.state_dir, "  ", restored->commits, " commits, ", restored->jobs,
                           " jobs, ", restored->going, " not ended\n"));
  for (const std::string& folder : restored->lacking) {
    console.Err(absl::StrCat("capstan: not on this host: ", folder,
                             "; copy it before the coordinator starts, or its job continues from "
                             "an older checkpoint, or fails\n"));
  }
  console.Note(absl::StrCat("start it: capstan_coordinator --state-dir ", options.state_dir, "\n"));
  return kExitDone;
}

}  // namespace

void AddBackup(Command parent, Action& slot) {
  {
    const auto options = std::make_shared<BackupOptions>();
    Command command = parent.Sub("backup", "copy the coordinator's journal while it runs (admin)");
    command.Add("FOLDER", options->folder, "a new folder on this host").Required();
    CarryOut(command, slot, {Output::kTable, Output::kJson}, [options](const Context& context) {
      return WithCoordinator(context, [&](JobClient& client) {
        return BackupTo(options->folder, client, context.console);
      });
    });
  }
  const auto options = std::make_shared<BackupOptions>();
  Command command = parent.Sub("restore", "make a state folder on this host from a backup");
  command.Add("FOLDER", options->folder, "folder written by capstan backup").Required();
  command
      .Add("STATE_DIR", options->state_dir,
           "state folder of the new coordinator, without a journal")
      .Required();
  CarryOut(
      command, slot, {Output::kTable, Output::kJson},
      [options](const Context& context) { return RestoreFrom(*options, context.console); },
      kActsAlone);
}

}  // namespace capstan::client
