#include "services/grpc_init/grpc_init.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "services/logging/log.h"

namespace capstan::services {
namespace {

void ForwardToLog(gpr_log_func_args* args) {
  // gRPC's errors are caused by a peer, or we report them ourselves by a Status, so they are
  // warnings at most. The exception is the last line of a process: a failed assertion of gRPC
  // aborts it without any other message.
  const LogLevel level = absl::StartsWith(args->message, "assertion failed") ? kError
                         : args->severity == GPR_LOG_SEVERITY_ERROR          ? kWarning
                         : args->severity == GPR_LOG_SEVERITY_INFO           ? kInfo
                                                                             : kDebug;
  absl::string_view file = args->file;
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  const std::string at = absl::StrCat(file, ":", args->line);
  Log(level, "grpc").Limit(at).Kv("at", at).Kv("message", args->message);
}

}  // namespace

void KeepGrpcInitialised() {
  static const bool once = [] {
    gpr_set_log_function(ForwardToLog);
    grpc_init();
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace capstan::services
