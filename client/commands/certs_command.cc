// `capstan certs`: a cluster's private authority, certificates and tokens. Needs no coordinator.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/certs.h"
#include "client/commands/commands.h"
#include "services/security/role.h"

namespace capstan::client {
namespace {

ExitCode Failed(const absl::Status& status, const Console& console) {
  console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kExitUsage;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return kExitRefused;
    default:
      return kExitInternal;
  }
}

ExitCode Init(const CertsInitOptions& options, const Console& console) {
  if (absl::Status status = InitCerts(options, absl::Now()); !status.ok()) {
    return Failed(status, console);
  }
  console.Note(absl::StrCat("Made ", options.folder,
                            "/ca.crt, ca.key and tokens.json. Keep ca.key ",
                            "where only you can read it.\n\nNext: capstan certs issue coordinator ",
                            "--ca ", options.folder, " --host NAME --out DIR\n"));
  return kExitDone;
}

ExitCode Issue(CertsIssueOptions options, const std::string& role, const Console& console) {
  const absl::StatusOr<services::Role> parsed = services::ParseRole(role);
  if (!parsed.ok()) return Failed(parsed.status(), console);
  options.role = *parsed;
  const absl::StatusOr<services::Identity> issued = IssueCerts(options, absl::Now());
  if (!issued.ok()) return Failed(issued.status(), console);
  const std::string& from = options.authority.empty() ? options.out : options.authority;
  console.Note(absl::StrCat("Made ", options.out, "/", role, ".crt, ", role, ".key and ", role,
                            ".token for '", issued->name, "', valid ", options.days, " days.\n",
                            from, "/tokens.json has its hash: give it to the coordinator and the ",
                            "shards (--tokens).\n"));
  return kExitDone;
}

ExitCode Rotate(const CertsRotateOptions& options, const Console& console) {
  if (absl::Status status = RotateCerts(options, absl::Now()); !status.ok()) {
    return Failed(status, console);
  }
  const std::string& folder = options.folder;
  console.Note(
      options.finish
          ? absl::StrCat(folder,
                         "/ca.crt holds only the new authority. Copy it again; from then on "
                         "certificates of the old one are refused.\n")
          : absl::StrCat("Made a new ", folder, "/ca.key. ", folder,
                         "/ca.crt holds the new authority and the old one.\n\nNext:\n"
                         "1. Copy ca.crt to every host, and wait until all have read it (2 s).\n"
                         "2. `capstan certs issue ... --force --overlap-days N` for each service "
                         "and person.\n3. `capstan certs rotate ",
                         folder, " --finish`, and copy ca.crt again.\n"));
  return kExitDone;
}

}  // namespace

void AddCerts(Command parent, Action& slot) {
  Command certs = parent.Sub("certs", "a private authority, certificates and tokens of a cluster");
  certs.NeedsSub();

  const auto init = std::make_shared<CertsInitOptions>();
  Command init_command = certs.Sub("init", "make an authority");
  init_command.Add("DIR", init->folder, "folder of ca.crt, ca.key and tokens.json").Required();
  init_command.Add("--days", init->days, "days that it is valid, default 3650").Between(1, 36500);
  init_command.AddSwitch("--force", init->force, "replace an existing authority");
  CarryOut(
      init_command, slot, {Output::kTable},
      [init](const Context& context) { return Init(*init, context.console); }, kActsAlone);

  const auto rotate = std::make_shared<CertsRotateOptions>();
  Command rotate_command = certs.Sub("rotate", "replace the authority; both are valid meanwhile");
  rotate_command.Add("DIR", rotate->folder, "folder of `certs init`").Required();
  Flag days =
      rotate_command.Add("--days", rotate->days, "days that the new one is valid, default 3650");
  days.Between(1, 36500);
  rotate_command
      .AddSwitch("--finish", rotate->finish,
                 "remove the old authority, once every service has a certificate of the new one")
      .Excludes(days);
  CarryOut(
      rotate_command, slot, {Output::kTable},
      [rotate](const Context& context) { return Rotate(*rotate, context.console); }, kActsAlone);

  const auto issue = std::make_shared<CertsIssueOptions>();
  const auto role = std::make_shared<std::string>();
  const auto uid = std::make_shared<int64_t>(-1);
  Command issue_command = certs.Sub("issue", "make a certificate, its key and a token");
  issue_command.Add("ROLE", *role, "client | admin | worker | param_store | coordinator")
      .Required();
  issue_command.AddRepeated("--host", issue->hosts, "NAME",
                            "a name or address by which others reach it; may be repeated");
  issue_command.Add("--out", issue->out, "folder of the files").Required();
  issue_command.Add("--ca", issue->authority, "folder of `certs init`, default: --out");
  issue_command.Add("--name", issue->name,
                    "its owner, a person or a node; default: the first host, or the role");
  issue_command.Add("--days", issue->days, "days that both are valid, default 365")
      .Between(1, 36500);
  issue_command.Add("--uid", *uid, "user id that will own the files").Between(0, 4294967294);
  Flag force = issue_command.AddSwitch("--force", issue->force,
                                       "replace existing files; their token is withdrawn");
  issue_command
      .Add("--overlap-days", issue->overlap_days,
           "with --force: days that the old token stays valid, so that all can get the new files; "
           "default 0")
      .Between(0, 365)
      .Needs(force);
  CarryOut(
      issue_command, slot, {Output::kTable},
      [issue, role, uid](const Context& context) {
        if (*uid >= 0) issue->uid = static_cast<uid_t>(*uid);
        return Issue(*issue, *role, context.console);
      },
      kActsAlone);
}

}  // namespace capstan::client
