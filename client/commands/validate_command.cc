#include "client/commands/validate_command.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "services/proto_json/proto_json.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::client {

using services::Dump;
using services::ProtoJson;

ExitCode Validate(const ValidateOptions& options, const Console& console) {
  if (options.show_defaults && console.json()) {
    console.Err("capstan: --show-defaults prints a job file, -o json the plan: give one of them\n");
    return kExitUsage;
  }
  JobPlaces places;
  absl::StatusOr<job::v1::JobSpec> spec = LoadJob(options.source, console, places);
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
    // The data may be only on the workers' hosts. The file is valid then, but has no plan here.
    if (absl::IsNotFound(plan.status())) {
      if (console.json()) console.Out("null\n");
      console.Err(absl::StrCat(
          "capstan: no plan, the data is not on this host: ", plan.status().message(), "\n"));
      return kExitDone;
    }
    console.Err(ErrorLine(places, plan.status().message()));
    return kExitUsage;
  }
  if (console.json()) {
    console.Out(Dump(ProtoJson(*plan)) + "\n");
  } else if (!options.show_defaults) {
    console.Out(training::spec::PlanText(*plan));
  }
  return kExitDone;
}

void AddValidate(Command parent, Action& slot) {
  const auto options = std::make_shared<ValidateOptions>();
  Command command =
      parent.Sub("validate", "check a job file and print its plan; nothing is started");
  AddJobSource(command, options->source);
  command.AddSwitch("--show-defaults", options->show_defaults,
                    "print the file with every default filled in");
  CarryOut(
      command, slot, {Output::kTable, Output::kJson},
      [options](const Context& context) {
        const ExitCode code = NeedSource(options->source, context.console);
        return code != kExitDone ? code : Validate(*options, context.console);
      },
      kActsAlone);
}

}  // namespace capstan::client
