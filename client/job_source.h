// Where a job file comes from, and what it says once defaults and data are looked at.
#ifndef CAPSTAN_CLIENT_JOB_SOURCE_H_
#define CAPSTAN_CLIENT_JOB_SOURCE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "client/console.h"
#include "client/exit_codes.h"
#include "training/spec/job_file.h"

namespace capstan::client {

struct JobSource {
  std::string file;               // path, or "-" for standard input
  std::string example;            // --example NAME instead of a file
  std::vector<std::string> sets;  // --set key=value
};

// kExitUsage, and a sentence on stderr: neither a file nor an example was named.
ExitCode NeedSource(const JobSource& source, const Console& console);

// Reads and checks the file. On errors, all of them are printed to stderr, each with its place, and
// the code is InvalidArgument with an empty message; NotFound or another code with a message where
// the file cannot be read. Relative paths in the file are made absolute against its folder (those
// of --set against the working directory).
absl::StatusOr<job::v1::JobSpec> LoadJob(const JobSource& source, const Console& console);

// Where the keys of a job file stand, for what is found wrong with them later.
struct JobPlaces {
  std::string file;  // as it is shown
  training::spec::Marks marks;
};

// The same, and where everything stood.
absl::StatusOr<job::v1::JobSpec> LoadJob(const JobSource& source, const Console& console,
                                         JobPlaces& places);

// The line for a person: "job.yaml:4:3: error: 'training.epochs' ..." where the message begins with
// a key in quotes, else "capstan: ...".
std::string ErrorLine(const JobPlaces& places, absl::string_view message);

// The same for a folder of runs that cannot be written, as `status` says; kExitUsage.
ExitCode ReportStorage(const absl::Status& status, const job::v1::JobSpec& spec,
                       const JobPlaces& places, const Console& console);

// Names of the examples that are installed beside the program, sorted.
std::vector<std::string> ExampleNames();

// Looks at the data set from here and fills in what the job implies. The errors are those of
// gpu_worker/data and training/spec/resolve.h.
absl::StatusOr<job::v1::ResolvedSpec> ResolveHere(const job::v1::JobSpec& spec);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_SOURCE_H_
