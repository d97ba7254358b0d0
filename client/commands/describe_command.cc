// `capstan describe`: all about one job.
#include <memory>
#include <string>

#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/text/describe_text.h"
#include "client/text/job_json.h"
#include "training/spec/job_file.h"

namespace capstan::client {

void AddDescribe(Command parent, Action& slot) {
  const auto job_id = std::make_shared<std::string>();
  Command command = parent.Sub(
      "describe", "everything about a job; -o yaml prints its file, which can be submitted again");
  command.Add("JOB", *job_id, "id of the job, or the folder of a run").Required();
  CarryOut(command, slot, {Output::kTable, Output::kJson, Output::kYaml},
           [job_id](const Context& context) {
             return WithJobOrRun(context, *job_id, [&](JobClient& client, const std::string& id) {
               const Console& console = context.console;
               const auto job = client.Get(id);
               if (!job.ok()) return ReportJob(client, id, job.status(), console);
               if (console.json()) {
                 console.Out(DescriptionJson(*job) + "\n");
               } else if (console.output == Output::kYaml) {
                 console.Out(training::spec::ToYaml(job->spec()));
               } else {
                 console.Out(DescribeText(
                     *job, {console.stdout_tty ? console.width : 0, console.stdout_color}));
               }
               return kExitDone;
             });
           });
}

}  // namespace capstan::client
