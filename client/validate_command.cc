#include "client/validate_command.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::client {

ExitCode Validate(const ValidateOptions& options, const Console& console) {
  absl::StatusOr<job::v1::JobSpec> spec = LoadJob(options.source, console);
  if (!spec.ok()) {
    if (!spec.status().message().empty())
      console.Err(absl::StrCat("capstan: ", spec.status().message(), "\n"));
    return ExitCodeOf(spec.status());
  }
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(*spec);
  if (options.show_defaults) {
    training::spec::FillDefaults(*spec);
    console.Out(training::spec::ToYaml(*spec));
  }
  if (!plan.ok()) {
    // The data may lie on the workers' hosts only: the file is good, its plan is not known here.
    if (absl::IsNotFound(plan.status()) && !console.json) {
      console.Err(absl::StrCat(
          "capstan: no plan, the data is not on this host: ", plan.status().message(), "\n"));
      return kExitDone;
    }
    console.Err(absl::StrCat("capstan: ", plan.status().message(), "\n"));
    return absl::IsNotFound(plan.status()) ? kExitDone : kExitUsage;
  }
  if (console.json) {
    std::string json;
    google::protobuf::util::JsonPrintOptions style;
    style.preserve_proto_field_names = true;
    style.always_print_primitive_fields = true;
    if (!google::protobuf::util::MessageToJsonString(*plan, &json, style).ok())
      return kExitInternal;
    console.Out(json + "\n");
  } else if (!options.show_defaults) {
    console.Out(training::spec::PlanText(*plan));
  }
  return kExitDone;
}

}  // namespace capstan::client
