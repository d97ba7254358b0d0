// Reads a job file, i.e. strict YAML, into a JobSpec. Every error has file, line, column and the
// path of the key.
#ifndef CAPSTAN_TRAINING_SPEC_JOB_FILE_H_
#define CAPSTAN_TRAINING_SPEC_JOB_FILE_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/spec/yaml_tree.h"

namespace capstan::training::spec {

struct FileError {
  Mark mark;            // 0:0 for a value from --set
  std::string message;  // names the key, the value and the limit
};

// The position of each known key, by its path; 0:0 for keys from --set.
using Marks = std::map<std::string, Mark>;

struct JobFile {
  job::v1::JobSpec spec;  // as written; defaults are not filled in
  std::vector<FileError>
      errors;  // in the order of the file; the spec is valid only if this is empty
  Marks marks;
};

// Reads the network in a file that `model.graph` names, and gives it its loss. `numbers`: targets
// are numbers, as `training.loss` says. The message of an error begins with the file's name.
using GraphFileReader =
    std::function<absl::StatusOr<job::v1::Graph>(const std::string& path, bool numbers)>;

// `overrides` are the `--set key=value` pairs, e.g. {"training.epochs", "3"}. The value is read as
// YAML and replaces the file's value; null removes the key, so that its default holds. All errors
// of names, types and values are reported at once (training/spec/validate.h), unless the file is
// not YAML. Missing keys and contradictions are reported only if there is no other error, because
// they may follow from one.
//
// Without `read_graph`, a model.graph that is a text is an error.
JobFile ParseJobFile(absl::string_view text,
                     const std::vector<std::pair<std::string, std::string>>& overrides = {},
                     const GraphFileReader& read_graph = nullptr);

// Where a path, or its nearest enclosing group, was written; 0:0 if neither was.
Mark MarkOf(const Marks& marks, absl::string_view path);

// One line for each error, like "job.yaml:3:3: error: unknown field 'training.epoches' (did you
// mean 'epochs'?)".
std::string FormatErrors(absl::string_view filename, const std::vector<FileError>& errors);

// Every key of the job file that docs/interface.md names, and whether this version carries it out.
struct KeyInfo {
  std::string path;
  bool carried_out = false;  // false: refused by name
};
std::vector<KeyInfo> AllKeys();

// The spec as a job file that is read back to the same spec.
std::string ToYaml(const job::v1::JobSpec& spec);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_JOB_FILE_H_
