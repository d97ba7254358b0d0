// Reads a job file, and resolves it with defaults and data.
#ifndef CAPSTAN_CLIENT_JOB_SOURCE_H_
#define CAPSTAN_CLIENT_JOB_SOURCE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "client/console.h"
#include "client/text/exit_codes.h"
#include "training/spec/job_file.h"

namespace capstan::client {

struct JobSource {
  std::string file;               // path, or "-" for standard input
  std::string example;            // --example NAME instead of a file
  std::vector<std::string> sets;  // --set key=value
};

// Prints a sentence to stderr if neither a file nor an example was named; returns kExitUsage then.
ExitCode NeedSource(const JobSource& source, const Console& console);

// The lines of a job file's keys, for errors that are found later.
struct JobPlaces {
  std::string file;  // as messages show it
  training::spec::Marks marks;
};

// Reads and checks the file, and sets `places`. If the file has errors, all of them are printed to
// stderr with their places, and the result is InvalidArgument with an empty message. If the file
// cannot be read, the result is an error with a message. Relative paths in the file are made
// absolute against its folder, those of --set against the working directory.
absl::StatusOr<job::v1::JobSpec> LoadJob(const JobSource& source, const Console& console,
                                         JobPlaces& places);

// Formats an error for a person: "job.yaml:4:3: error: 'training.epochs' ..." if the message begins
// with a key in quotes, else "capstan: ...".
std::string ErrorLine(const JobPlaces& places, absl::string_view message);

// Prints why the folder of runs cannot be written, as `status` says. Returns kExitUsage. `given`:
// the job file sets storage_path.
ExitCode ReportStorage(const absl::Status& status, bool given, const JobPlaces& places,
                       const Console& console);

// The sorted names of the examples installed beside the program.
std::vector<std::string> ExampleNames();

// Reads the data set on this machine and derives the job's numbers from it. Returns the errors of
// gpu_worker/data and training/spec/resolve.h.
absl::StatusOr<job::v1::ResolvedSpec> ResolveHere(const job::v1::JobSpec& spec);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_SOURCE_H_
