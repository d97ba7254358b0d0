// `capstan checkpoint export` and `download` fetch a checkpoint's tensors or files from the
// coordinator's host. `capstan checkpoint delete` removes a checkpoint.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/checkpoint_files.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/job_name.h"
#include "param_store/checkpoint/weights_file.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"
#include "training/codec/manifest.h"
#include "training/codec/sha256.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

using services::Dump;

constexpr char kManifestName[] = "manifest.json";
constexpr int64_t kMaxManifestBytes = int64_t{16} << 20;
constexpr int64_t kBlockBytes = int64_t{1} << 20;

struct FilesOptions {
  std::string name;  // JOB[@STEP]
  std::string out;
  bool yes = false;
};

ExitCode ReportFiles(JobClient& client, const std::string& name, const absl::Status& status,
                     const Console& console) {
  if (absl::IsCancelled(status)) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return kExitInterrupted;
  }
  const auto parsed = ParseCheckpointName(name);
  const auto id = FindJob(client, parsed.ok() ? parsed->job_id : name);
  return ReportJob(client, id.ok() ? *id : name, status, console);
}

// An error in writing a file here is not a refusal by the coordinator.
ExitCode ReportHere(const absl::Status& status, const Console& console) {
  Report(status, console);
  return kExitInternal;
}

// ---- export ----

ExitCode ExportTo(const FilesOptions& options, JobClient& client, const Console& console) {
  const auto found = LookUpCheckpoint(client, options.name);
  if (!found.ok()) return ReportFiles(client, options.name, found.status(), console);
  const auto job = client.Get(found->job_id);
  if (!job.ok()) return ReportFiles(client, options.name, job.status(), console);
  const auto layout = training::spec::MakeLayout(job->resolved());
  if (!layout.ok()) return Report(layout.status(), console);
  const std::string path = options.out.empty() ? "weights.safetensors" : options.out;
  param_store::ExportRequest request;
  request.folder = found->saved.uri();
  request.job_id = found->job_id;
  request.training_digest = job->resolved().training_digest();
  request.layout = &*layout;
  request.open = [&](const std::string& name) { return OpenRemoteFile(client, *found, name); };
  param_store::ExportedWeights exported;
  const param_store::BaseWeightsError error = param_store::ExportWeights(request, path, &exported);
  if (error.reason == "OutputFailed") return ReportHere(error.status, console);
  if (!error.reason.empty()) return ReportFiles(client, options.name, error.status, console);
  console.Note(absl::StrCat("step ", exported.step, ", ", exported.size_bytes,
                            " bytes, weights_sha256 ", exported.weights_sha256, "\n"));
  console.Out(console.json() ? Dump({{"job_id", found->job_id},
                                     {"checkpoint", found->saved.id()},
                                     {"step", exported.step},
                                     {"path", path},
                                     {"size_bytes", exported.size_bytes},
                                     {"weights_sha256", exported.weights_sha256}}) +
                                   "\n"
                             : path + "\n");
  return kExitDone;
}

// ---- download ----

absl::StatusOr<std::string> ReadAll(param_store::InputFile& file, int64_t max_bytes) {
  if (file.size_bytes() > max_bytes) {
    return absl::DataLossError(
        absl::StrCat(kManifestName, ": ", file.size_bytes(), " bytes, limit ", max_bytes));
  }
  std::string bytes(static_cast<size_t>(file.size_bytes()), '\0');
  const absl::Status status = file.ReadAt(0, bytes.data(), file.size_bytes());
  if (!status.ok()) return status;
  return bytes;
}

// DataLoss unless the manifest matches the coordinator's record.
absl::Status CheckManifest(const training::Manifest& manifest, const FoundCheckpoint& found) {
  bool same = manifest.job_id == found.job_id && manifest.lineage == found.saved.lineage() &&
              manifest.step == found.saved.step() &&
              manifest.files.size() == static_cast<size_t>(found.saved.files_size());
  for (const training::ManifestFile& file : manifest.files) {
    const auto& files = found.saved.files();
    same = same && std::any_of(files.begin(), files.end(), [&](const common::v1::FileInfo& info) {
             return info.name() == file.name && info.size_bytes() == file.size_bytes &&
                    absl::BytesToHexString(info.sha256()) == file.sha256;
           });
  }
  if (same) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(found.saved.uri(), "/", kManifestName,
                                          ": is not that of checkpoint ", found.saved.id(), " of ",
                                          found.job_id));
}

// Whether an earlier call left the whole file there.
bool IsThere(const std::string& path, const training::ManifestFile& file) {
  std::error_code error;
  if (static_cast<int64_t>(std::filesystem::file_size(path, error)) != file.size_bytes || error) {
    return false;
  }
  auto local = param_store::LocalFiles().OpenInitialWeights(path, "");
  if (!local.ok()) return false;
  training::Sha256 sha;
  std::string block;
  for (int64_t at = 0; at < file.size_bytes; at += static_cast<int64_t>(block.size())) {
    block.resize(static_cast<size_t>(std::min(kBlockBytes, file.size_bytes - at)));
    if (!(*local)->ReadAt(at, block.data(), static_cast<int64_t>(block.size())).ok()) return false;
    sha.Update(block);
  }
  return sha.FinishHex() == file.sha256;
}

// Sets `here` if the error is about a file of this host.
absl::Status FetchFile(JobClient& client, const FoundCheckpoint& found,
                       const training::ManifestFile& file, const std::string& path, bool* here) {
  const auto remote = OpenRemoteFile(client, found, file.name);
  if (!remote.ok()) return remote.status();
  if ((*remote)->size_bytes() != file.size_bytes) {
    return absl::DataLossError(absl::StrCat(file.name, ": ", (*remote)->size_bytes(),
                                            " bytes, the manifest says ", file.size_bytes));
  }
  *here = true;
  const auto local = services::AtomicFile::Create(path);
  if (!local.ok()) return local.status();
  training::Sha256 sha;
  std::string block;
  for (int64_t at = 0; at < file.size_bytes; at += static_cast<int64_t>(block.size())) {
    block.resize(static_cast<size_t>(std::min(kBlockBytes, file.size_bytes - at)));
    *here = false;
    absl::Status status = (*remote)->ReadAt(at, block.data(), static_cast<int64_t>(block.size()));
    if (!status.ok()) return status;
    sha.Update(block);
    *here = true;
    if (status = (*local)->Append(block); !status.ok()) return status;
  }
  if (const std::string hash = sha.FinishHex(); hash != file.sha256) {
    *here = false;
    return absl::DataLossError(
        absl::StrCat(file.name, ": SHA-256 is ", hash, ", the manifest says ", file.sha256));
  }
  return (*local)->Commit();
}

ExitCode DownloadTo(const FilesOptions& options, JobClient& client, const Console& console) {
  const auto found = LookUpCheckpoint(client, options.name);
  if (!found.ok()) return ReportFiles(client, options.name, found.status(), console);
  const auto file = OpenRemoteFile(client, *found, kManifestName);
  if (!file.ok()) return ReportFiles(client, options.name, file.status(), console);
  const auto text = ReadAll(**file, kMaxManifestBytes);
  if (!text.ok()) return ReportFiles(client, options.name, text.status(), console);
  const auto manifest = training::ParseManifest(kManifestName, *text);
  absl::Status status = manifest.status();
  if (status.ok()) status = CheckManifest(*manifest, *found);
  if (!status.ok()) return Report(status, console);

  const std::string folder =
      options.out.empty() ? absl::StrCat(found->job_id, "/", found->saved.id()) : options.out;
  if (status = services::EnsureDir(folder); !status.ok()) return ReportHere(status, console);
  for (const training::ManifestFile& wanted : manifest->files) {
    const std::string path = absl::StrCat(folder, "/", wanted.name);
    if (IsThere(path, wanted)) {
      console.Note(absl::StrCat(path, ": exists already\n"));
      continue;
    }
    console.Note(absl::StrCat(path, ": ", wanted.size_bytes, " bytes\n"));
    bool here = false;
    if (status = FetchFile(client, *found, wanted, path, &here); !status.ok()) {
      return here ? ReportHere(status, console)
                  : ReportFiles(client, options.name, status, console);
    }
  }
  // Written last: a folder without it is no checkpoint.
  status = services::WriteFileAtomically(absl::StrCat(folder, "/", kManifestName), *text);
  if (!status.ok()) return ReportHere(status, console);
  console.Out(console.json() ? Dump({{"job_id", found->job_id},
                                     {"checkpoint", found->saved.id()},
                                     {"step", found->saved.step()},
                                     {"folder", folder},
                                     {"size_bytes", found->saved.size_bytes()}}) +
                                   "\n"
                             : folder + "\n");
  return kExitDone;
}

// ---- delete ----

ExitCode DeleteOne(const FilesOptions& options, const Context& context) {
  const Console& console = context.console;
  const auto name = ParseCheckpointName(options.name);
  if (!name.ok()) return Report(name.status(), console);
  if (name->which.empty()) {
    console.Err(absl::StrCat("capstan: name one: ", name->job_id, "@STEP; capstan checkpoint list ",
                             name->job_id, " shows them\n"));
    return kExitUsage;
  }
  if (!options.yes && !console.may_ask) {
    console.Err("capstan: delete asks on a terminal; without one, give -y\n");
    return kExitUsage;
  }
  return WithCoordinator(context, [&](JobClient& client) {
    const auto found = LookUpCheckpoint(client, options.name);
    if (!found.ok()) return ReportFiles(client, options.name, found.status(), console);
    if (!options.yes) {
      console.Err(absl::StrCat("delete ", found->saved.uri(), ", ", found->saved.size_bytes(),
                               " bytes? [y/N] "));
      std::string answer;
      std::getline(std::cin, answer);
      if (answer != "y" && answer != "yes") return kExitInterrupted;
    }
    job::v1::DeleteCheckpointRequest request;
    request.set_job_id(found->job_id);
    request.set_checkpoint(found->saved.id());
    job::v1::DeleteCheckpointResponse response;
    const auto call = services::NewContext(client.timeout());
    const absl::Status status = services::FromGrpcStatus(
        client.checkpoints().DeleteCheckpoint(call.get(), request, &response));
    if (!status.ok()) return ReportFiles(client, options.name, status, console);
    console.Out(console.json() ? Dump({{"job_id", found->job_id},
                                       {"checkpoint", found->saved.id()},
                                       {"step", found->saved.step()},
                                       {"size_bytes", response.size_bytes()}}) +
                                     "\n"
                               : absl::StrCat(found->job_id, "  ", found->saved.id(), "  deleted, ",
                                              response.size_bytes(), " bytes\n"));
    return kExitDone;
  });
}

}  // namespace

void AddCheckpointFiles(Command group, Action& slot) {
  const auto add = [&](const char* name, const char* help, const char* which) {
    const auto options = std::make_shared<FilesOptions>();
    Command command = group.Sub(name, help);
    command.Add("JOB", options->name, which).Required();
    return std::pair(command, options);
  };
  const std::set<Output> outputs = {Output::kTable, Output::kJson};
  constexpr char kWhich[] =
      "id of the job or the folder of a run, JOB@STEP or JOB@best; default its newest checkpoint";
  {
    auto [command, options] =
        add("export", "weights.safetensors of any checkpoint: its parameters by name", kWhich);
    command.Add("--out", options->out, "file to write, default weights.safetensors");
    CarryOut(command, slot, outputs, [options = options](const Context& context) {
      return WithPlaceOf(context, options->name, [&](JobClient& client) {
        return ExportTo(*options, client, context.console);
      });
    });
  }
  {
    auto [command, options] =
        add("download", "all files of a checkpoint, each compared with its hash", kWhich);
    command.Add("--out", options->out, "folder for the files, default JOB/CHECKPOINT");
    CarryOut(command, slot, outputs, [options = options](const Context& context) {
      return WithPlaceOf(context, options->name, [&](JobClient& client) {
        return DownloadTo(*options, client, context.console);
      });
    });
  }
  auto [command, options] =
      add("delete", "remove a checkpoint that no job will continue from", "JOB@STEP");
  command.AddSwitch("-y,--yes", options->yes, "do not ask");
  CarryOut(command, slot, outputs,
           [options = options](const Context& context) { return DeleteOne(*options, context); });
}

}  // namespace capstan::client
